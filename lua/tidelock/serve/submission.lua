--- submission.lua - what a request may ask for, checked before it waits.
local core = require "tidelock.core"

local submission = {}

local known = {
  tokens = true, max_tokens = true, temperature = true, top_p = true, top_k = true, seed = true,
  request = true, stop = true, echo = true, top = true,
}

local function is_whole(value) return math.type(value) == "integer" end

--- The prompt's ids, or what is wrong with them.
local function check_tokens(tokens, engine)
  if type(tokens) ~= "table" or #tokens == 0 then
    return "empty prompt; a request begins with one token at least"
  end
  for i, id in ipairs(tokens) do
    if not is_whole(id) or id < 0 or id >= engine.vocab then
      return ("token %d of the prompt is %s; ids are 0 to %d"):format(i - 1, tostring(id),
        engine.vocab - 1)
    end
  end
  if #tokens >= engine.context then
    return ("the prompt has %d tokens, and a request %d with what is made; serve.context or a "
      .. "shorter prompt"):format(#tokens, engine.context)
  end
end

local function check_controls(given)
  local temperature, top_p = given.temperature or 0, given.top_p or 1
  if type(temperature) ~= "number" or not (temperature == 0
    or temperature >= 2.0 ^ -60 and temperature <= 2.0 ^ 60) then
    return ("temperature is %s; 0 (the likeliest token), or from 2^-60 (8.7e-19) to 2^60")
      :format(tostring(temperature))
  end
  if type(top_p) ~= "number" or not (core.f32(top_p) > 0 and top_p <= 1) then
    return ("top_p is %s; above 0, at most 1"):format(tostring(top_p))
  end
  for _, name in ipairs { "top_k", "seed", "request" } do
    if given[name] ~= nil and not is_whole(given[name]) then
      return ("%s is %s; a whole number"):format(name, tostring(given[name]))
    end
  end
  local top_k = given.top_k or 0
  if top_k < 0 or top_k > 0x7fffffff then return ("top_k is %d; 0 (all), or more"):format(top_k) end
end

local top_max = 20

local function check_all(given, engine)
  if type(given) ~= "table" then return "a request is a table: { tokens = .., max_tokens = .. }" end
  local names = {}
  for name in pairs(given) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do
    if not known[name] then return ("a request has no field %s"):format(name) end
  end
  local message = check_tokens(given.tokens, engine) or check_controls(given)
  if message then return message end
  if not is_whole(given.max_tokens) or given.max_tokens < 1 then
    return ("max_tokens is %s; 1 or more"):format(tostring(given.max_tokens))
  end
  local top = given.top or 0
  if not is_whole(top) or top < 0 or top > top_max then
    return ("top is %s; 0 to %d"):format(tostring(top), top_max)
  end
  for _, id in ipairs(given.stop or {}) do
    if not is_whole(id) or id < 0 or id >= engine.vocab then
      return ("stop has %s; ids are 0 to %d"):format(tostring(id), engine.vocab - 1)
    end
  end
end

--- The lower and the upper half of 64 bits, as i32.
local function halves(value)
  local low = value & 0xffffffff
  local high = value >> 32
  local function signed(half) return half >= 0x80000000 and half - 0x100000000 or half end
  return signed(low), signed(high)
end

--- The request as the engine keeps it, or nil and what is wrong.
---@param given tidelock.Submission
---@param engine tidelock.Engine
function submission.check(given, engine)
  local message = check_all(given, engine)
  if message then return nil, message end
  local stop = {}
  for _, id in ipairs(given.stop or {}) do stop[id] = true end
  local last = #given.tokens + math.min(given.max_tokens, engine.context - #given.tokens)
  local size = engine.sizes.page
  if (last + size - 1) // size > engine.sizes.pages then
    return nil, ("it can need %d pages of %d positions, and the pool has %d; fewer max_tokens, or "
      .. "more serve.pages"):format((last + size - 1) // size, size, engine.sizes.pages)
  end
  local seed_low, seed_high = halves(given.seed or 0)
  local request_low, request_high = halves(given.request or 0)
  return {
    tokens = table.move(given.tokens, 1, #given.tokens, 1, {}), last = last, stop = stop,
    temperature = given.temperature or 0, top_p = given.top_p or 1, echo = given.echo or false,
    top = given.top or 0,
    draws = { given.top_k or 0, seed_low, seed_high, request_low, request_high },
  }
end

return submission
