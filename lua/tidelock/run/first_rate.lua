--- first_rate.lua - from which step on two recipes have other learning rates.
---
---     train.lr = { floor = 0.0003, name = "cosine", peak = 0.003, steps = 200, warmup = 20 }
---     train.steps = 200                                       texts of --stage check, old and new
---
--- Both are read from their texts, whose numbers have nine digits: so both are rounded alike.
local rates = require "tidelock.language.rates"

--- The rate and the number of steps that a text says; nil where it says none that is known.
local function read(text)
  local lr, steps = nil, nil
  for line in text:gmatch "[^\n]+" do
    local path, value = line:match "^(train%.%S+) = (.*)$"
    local good, found = pcall(load("return " .. (value or "nil"), "=field", "t", {}) or error)
    local name, at = (path or ""):match "^train%.lr%.(%a+)%[?(%d*)%]?$"
    if path == "train.steps" and good then steps = found end
    if path == "train.lr" and good then lr = found end
    if name and good then
      lr = lr or {}
      if at == "" then
        lr[name] = found
      else
        lr[name] = lr[name] or {}
        lr[name][math.tointeger(at)] = found
      end
    end
  end
  if type(lr) ~= "table" or math.type(steps) ~= "integer" then return nil end
  return lr, steps
end

--- The first step behind `done` whose rates differ, and both; nil where none does, or where a text
--- cannot be read.
---@param old string
---@param new string
---@param done integer
---@return integer? step, number? before, number? now
return function(old, new, done)
  local was, was_steps = read(old)
  local is, is_steps = read(new)
  for step = done + 1, was and is and math.min(was_steps, is_steps) or 0 do
    local good, before = pcall(rates.at, was, step)
    local fine, now = pcall(rates.at, is, step)
    if not (good and fine) then return nil end
    if before ~= now then return step, before, now end
  end
end
