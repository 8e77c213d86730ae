--- differences.lua - the fields in which two recipes differ and that can change bits.
---
---     differences.of(old, new)       of two texts of ./tl explain RECIPE --stage check:
---                                    { path, label, old, new } of each field
---     differences.gathered(list)     the same for people: what only one side has is one entry, and
---                                    so is what is alike in layers that follow each other
---
---     path     model.layer_modules[2][2].children[2].options.hidden
---     label    layer 1, swiglu: hidden
local differences = {}

--- Fields that cannot change bits; their subfields neither.
local free = {
  "layout", "device", "log", "notes", "name", "file", "batch.micro", "blocks.gemm", "blocks.moe",
  "blocks.attention.q", "train.save", "eval", "policy.name", "format", "serve",
  "experts", -- said by the model's modules, too
}

local function is_free(path)
  if path:find("%.site$") or path == "site" then return true end
  for _, name in ipairs(free) do
    local behind = path:sub(1, #name) == name and path:sub(#name + 1, #name + 1)
    if behind == "" or behind == "." or behind == "[" then return true end
  end
  return false
end

local function text_of(value)
  if type(value) == "string" then return value == "function" and value or ("%q"):format(value) end
  return math.type(value) == "float" and ("%.9g"):format(value) or tostring(value)
end

--- A side's fields: the text of each by its path, one for each number or word.
local function add_leaves(side, path, value)
  if type(value) ~= "table" then
    if is_free(path) then return end
    side.by_path[path], side.order[#side.order + 1] = text_of(value), path
    for at in path:gmatch "()[.%[]" do side.inside[path:sub(1, at - 1)] = true end
    return
  end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end -- sorted below
  table.sort(keys, function(a, b)
    if math.type(a) and math.type(b) then return a < b end
    return tostring(a) < tostring(b)
  end)
  for _, key in ipairs(keys) do
    local inner = math.type(key) == "integer" and ("%s[%d]"):format(path, key) or path .. "." .. key
    add_leaves(side, inner, value[key])
  end
end

--- However many fields stood on a line.
local function read(text)
  local side = { by_path = {}, order = {}, inside = {} } -- inside: beginnings of paths
  for line in text:gmatch "[^\n]+" do
    local path, value = line:match "^(%S+) = (.*)$"
    if path then
      local literal = value:gsub("%f[%a]function%f[%A]", "\"function\"")
      local good, found = pcall(load("return " .. literal, "=field", "t", {}) or error)
      if not good then found = value end
      add_leaves(side, path, found)
    end
  end
  return side
end

--- A path as people read it: what belongs to a module is named after its layer and kind.
local function label_of(path, old, new)
  local layer, inside = path:match "^model%.layer_modules%[(%d+)%](.*)$"
  if not layer then return path end
  local module, field = inside:match "^(.*)%.options%.(.*)$"
  if not module then module, field = inside:match "^(.*)%.([%w_]+)$" end
  local at = ("model.layer_modules[%s]%s.kind"):format(layer, module or "")
  if field == "kind" then return ("layer %d, module"):format(layer - 1) end
  local kind = (new.by_path[at] or old.by_path[at] or "\"module\""):match '"(.*)"'
  return ("layer %d, %s: %s"):format(layer - 1, kind, field or inside)
end

--- Every field that differs: { path, label, old, new, alone }; old or new is "unset" where one side
--- has none, and `alone` is the outermost part of the path that only the other side has.
---@param old_text string
---@param new_text string
---@return table[]
function differences.of(old_text, new_text)
  local old, new, list = read(old_text), read(new_text), {}
  local function alone(path, other)
    for at in path:gmatch "()[.%[]" do
      local lead = path:sub(1, at - 1)
      if not other.inside[lead] and lead:find "[.%[]" then return lead end
    end
  end
  local function add(path)
    local x, y = old.by_path[path], new.by_path[path]
    if x == y then return end
    list[#list + 1] = {
      path = path, label = label_of(path, old, new), old = x or "unset", new = y or "unset",
      alone = (not x and alone(path, old)) or (not y and alone(path, new)) or nil,
    }
  end
  for _, path in ipairs(new.order) do add(path) end
  for _, path in ipairs(old.order) do
    if not new.by_path[path] then add(path) end
  end
  return list
end

--- The lead of `label` before its layer, and the number: "layer 3, swiglu: hidden".
local function layer_of(label)
  local layer, rest = label:match "^layer (%d+)(, .*)$"
  return tonumber(layer), rest
end

--- What only one side has is one entry each, with what is in it: { .. } where it is much.
local function whole(list)
  local result, by_lead = {}, {}
  for _, d in ipairs(list) do
    local known = d.alone and by_lead[d.alone]
    if known then
      known.count = known.count + 1
      known.label = known.lead
      known.old = known.old == "unset" and "unset" or "{ .. }"
      known.new = known.new == "unset" and "unset" or "{ .. }"
    else
      local one = { path = d.path, label = d.label, old = d.old, new = d.new, count = 1 }
      if d.alone then
        local layer, rest = d.alone:match "^model%.layer_modules%[(%d+)%](.*)$"
        one.lead = layer and rest == "" and ("layer %d, all of it"):format(layer - 1)
          or layer and d.label:match "^layer %d+, [^:]*" .. ": "
            .. (rest:match "%.options%.(.*)$" or "all of it")
          or d.alone
        by_lead[d.alone] = one
      end
      result[#result + 1] = one
    end
  end
  return result
end

---@param list table[] # of differences.of
---@return table[]
function differences.gathered(list)
  local result, open = {}, {}
  for _, d in ipairs(whole(list)) do
    local layer, rest = layer_of(d.label)
    local same = layer and table.concat({ rest, d.old, d.new }, "\0")
    local before = same and open[same]
    if before and before.last == layer - 1 then
      before.last = layer
      before.label = ("layers %d to %d%s"):format(before.first, layer, rest)
    else
      local one = { path = d.path, label = d.label, old = d.old, new = d.new }
      one.first, one.last = layer, layer
      if same then open[same] = one end
      result[#result + 1] = one
    end
  end
  return result
end

return differences
