--- A recipe as a value: what tl.recipe, :with and :over make.
--
-- A recipe is a value. It holds the tables as they were written and where each field stands;
-- nothing is checked for sense and nothing runs before the stage "check". `with` and `over` make
-- other recipes:
--
--     base                       one point
--       :over("layout", {a, b})  a, b                      sections are replaced whole
--       :over("depth", {6, 12})  a 6, a 12, b 6, b 12      the last axis is the fastest; a knob of
--                                                          tl.params loads the file again
--
-- What the command line sets comes last and holds for every point.
local fields = require "tidelock.language.fields"
local overrides = require "tidelock.language.overrides"
local problems = require "tidelock.text.problems"
local types = require "tidelock.language.types"
local where = require "tidelock.language.where"

local draft = {}

---@class tidelock.Recipe
---@field file string # as given on the command line
---@field name string # of the file, without folder and ending
---@field values table # the sections as written
---@field axes table[] # of a sweep: { key, values }
---@field files table[] # everything that was loaded: { path, text }
---@field problems table # found while loading
---@field point? table[] # of a point of a sweep: { key, value }
---@field label? string # of a point: "dp 2 tp 4"
local methods = {}

local states = setmetatable({}, { __mode = "k" })

local Recipe = {
  __index = function(self, key) return methods[key] or states[self][key] end,
  __newindex = function(_, key)
    error(
      ("a recipe does not change: recipe:with { %s = .. } makes another"):format(tostring(key)), 2
    )
  end,
  __tostring = function(self) return "recipe(" .. tostring(states[self].file) .. ")" end,
  __name = "tidelock.Recipe",
}

--- Functions that recipes have as methods; other modules may add theirs (start, ..).
draft.methods = methods

function draft.is(value) return getmetatable(value) == Recipe end

local function make(state)
  local self = setmetatable({}, Recipe)
  states[self] = state
  return self
end

local function derive(self, changes)
  local state = {}
  for key, value in pairs(states[self]) do state[key] = value end
  for key, value in pairs(changes) do state[key] = value end
  return make(state)
end

--- Plain tables are copied, so that a table changed later changes no recipe; modules and data stay
--- as they are.
local function copy(value, depth)
  if type(value) ~= "table" or getmetatable(value) or types.is_made(value) then return value end
  local other = {}
  depth = (depth or 0) + 1
  if depth > 50 then
    error(("%s: a table of a recipe contains itself, or has 50 others around it"):format(
      where.here() or "recipe"), 0)
  end
  for key, entry in pairs(value) do other[key] = copy(entry, depth) end
  return other
end

--- `sites` after the field `key` was set at `place`: what was known of its old fields is forgotten.
local function move_sites(sites, key, place, inner)
  local moved = {}
  for path, site in pairs(sites) do
    local next_byte = path:sub(#key + 1, #key + 1)
    local inside = path:sub(1, #key) == key and (
      next_byte == "" or next_byte == "." or next_byte == "["
    )
    if not inside then moved[path] = site end
  end
  moved[key] = place
  for path, site in pairs(inner or {}) do moved[path] = site end
  return moved
end

local function collector()
  local context = where.context()
  return context and context.problems or problems.new()
end

--- tl.recipe { ... }
function draft.new(values)
  local site, context = where.here(), where.context()
  local collected = collector()
  local sites = { [""] = site }
  if type(values) ~= "table" then
    collected:add(site, "tl.recipe", "expected a table, got " .. types.show(values))
    values = {}
  end
  where.each(site, "recipe", nil, function(path, place) sites[path] = place end)
  local file = context and context.path or site and site:match "^(.*):%d+$" or "recipe"
  return make {
    values = copy(values),
    sites = sites,
    file = file,
    name = file:match "([^/]*)$":gsub("%.lua$", ""),
    axes = {},
    set = {},
    changed = {},
    own_axes = 0,
    own_problems = 0,
    declared = context and context.declared or {},
    files = context and context.files or {},
    problems = collected,
    expects_same_bits = false,
  }
end

--- Sets fields in order: each { key, value, place, inner sites }.
local function apply(self, changes)
  local values, sites = states[self].values, states[self].sites
  for _, change in ipairs(changes) do
    local changed, reason = overrides.set(values, change.key, copy(change.value))
    if changed then
      values, sites = changed, move_sites(sites, change.key, change.place, change.inner)
    else
      states[self].problems:add(change.place, change.key, reason)
    end
  end
  return derive(self, { values = values, sites = sites })
end

--- Where a field stands: "file:line" or "command line"; the nearest known place around it.
function methods.site(self, path)
  local sites = states[self].sites
  local word = path
  while word ~= "" and not sites[word] do
    word = word:match "^(.*)%[[^%[]*%]$" or word:match "^(.*)%.[^.]*$" or ""
  end
  return sites[word]
end

--- The recipe with knobs of its file at other values: the file is loaded again, and what was set
--- or swept since is set again. Of a sweep's point, which has no axes, what it chose is kept.
local function reknob(self, knobs)
  local state, all, axes = states[self], {}, {}
  for name, entry in pairs(state.knobs or {}) do all[name] = entry end
  for name, entry in pairs(knobs) do all[name] = entry end
  local base = draft.again(self, all)
  if not base then return self end
  states[base].problems:merge(state.problems, state.own_problems + 1)
  if not state.point then
    axes = table.move(states[base].axes, 1, #states[base].axes, 1, {})
    table.move(state.axes, state.own_axes + 1, #state.axes, #axes + 1, axes)
  end
  return apply(derive(base, {
    knobs = all, axes = axes, set = state.set, changed = state.changed, point = state.point,
    label = state.label, expects_same_bits = state.expects_same_bits,
  }), state.changed)
end

--- What its file gave: changes, axes and mistakes that come later are there again when the file has
--- been loaded again.
function draft.loaded(self, more)
  more.changed, more.own_axes = {}, #states[self].axes
  more.own_problems = #(more.problems or states[self].problems)
  return derive(self, more)
end

local function joined(list, other)
  return table.move(other, 1, #other, #list + 1, table.move(list, 1, #list, 1, {}))
end

--- Splits what `with` was given into fields, sorted by name, and knobs: name -> { value, place }.
local function sort_changes(self, changes, site, inner)
  local list, knobs, state = {}, nil, states[self]
  for key, value in pairs(changes) do
    local known, message = overrides.known(tostring(key), state.declared)
    local place = inner[key] or site
    if state.declared[key] ~= nil and not fields.sections.recipe.by_name[key] then
      knobs = knobs or {}
      knobs[key] = { value = value, place = place }
    elseif known then
      list[#list + 1] = { key = key, value = value, place = place, inner = {} }
    else
      state.problems:add(place, tostring(key), message)
    end
  end
  table.sort(list, function(a, b) return a.key < b.key end)
  return list, knobs
end

--- Another recipe: a bare key replaces a section or sets a knob, a dotted key sets one field.
function methods.with(self, changes)
  local site = where.here()
  if type(changes) ~= "table" then
    collector():add(
      site, "with", "expected a table as { [\"train.steps\"] = 6 }, got " .. types.show(changes)
    )
    return self
  end
  local inner = {}
  where.each(site, "with", nil, function(path, place) inner[path] = place end)
  local list, knobs = sort_changes(self, changes, site, inner)
  for _, change in ipairs(list) do
    for path, place in pairs(inner) do
      if path:sub(1, #change.key + 1):find("^" .. change.key:gsub("%.", "%%.") .. "[.%[]") then
        change.inner[path] = place
      end
    end
  end
  local base = knobs and reknob(self, knobs) or self
  return derive(apply(base, list), { changed = joined(states[base].changed, list) })
end

--- A sweep: one more axis, the section, field or knob `key` with each of `values`.
function methods.over(self, key, values)
  local site = where.here()
  local state = states[self]
  local known, message = overrides.known(tostring(key), state.declared)
  if state.declared[key] ~= nil then known = true end
  if not known then
    state.problems:add(site, ("over(%s)"):format(types.show(key)), message)
    return self
  end
  if type(values) ~= "table" or #values == 0 then
    state.problems:add(
      site, ("over(%q)"):format(key), "expected a list of values, got " .. types.show(values)
    )
    return self
  end
  local axis = { key = key, values = copy(values), sites = {}, place = site }
  where.each(site, "over", key, function(path, place) axis.sites[path] = place end)
  local axes = table.move(state.axes, 1, #state.axes, 1, {})
  axes[#axes + 1] = axis
  return derive(self, { axes = axes })
end

--- States that all points must have one key and give the same bits.
function methods.same_bits(self) return derive(self, { expects_same_bits = true }) end

--- Entry `i` of an axis as a change of the recipe, with the places of its fields.
local function change_of(axis, i)
  local inner, lead = {}, ("[%d]"):format(i)
  for path, place in pairs(axis.sites) do
    local below = path:sub(1, #lead) == lead and path:sub(#lead + 1) or ""
    if below ~= "" then inner[axis.key .. below] = place end
  end
  return {
    key = axis.key, value = axis.values[i], place = axis.sites[lead] or axis.place, inner = inner,
  }
end

local axis_rank = { dp = 1, tp = 2, cp = 3, pp = 4, ep = 5 }

--- A value as the tables of a sweep show it: { dp = 2, tp = 4 } is "dp 2 tp 4", a name stays as
--- it is.
local function label_of(value)
  if type(value) ~= "table" then return types.show(value):gsub("\"", "") end
  local keys, words = {}, {}
  for key in pairs(value) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    local first, second = axis_rank[a] or 9, axis_rank[b] or 9
    if first ~= second then return first < second end
    return tostring(a) < tostring(b)
  end)
  for _, key in ipairs(keys) do
    local text = label_of(value[key])
    local alone = math.type(key) == "integer" or key == "schedule"
    words[#words + 1] = alone and text or tostring(key) .. " " .. text
  end
  return table.concat(words, " ")
end

--- One point: `chosen` is the number of the entry on each axis.
local function point_of(self, chosen)
  local state = states[self]
  local given, changes, point, words, reload = {}, {}, {}, {}, false
  for name, entry in pairs(state.given or {}) do given[name] = entry end
  for i, axis in ipairs(state.axes) do
    local value = axis.values[chosen[i]]
    if state.declared[axis.key] ~= nil and not fields.sections.recipe.by_name[axis.key] then
      given[axis.key], reload = { value = value, place = change_of(axis, chosen[i]).place }, true
    else
      changes[#changes + 1] = change_of(axis, chosen[i])
    end
    point[i] = { key = axis.key, value = value }
    words[i] = axis.key == "layout" and label_of(value)
      or axis.key:match "[^.]+$" .. " " .. label_of(value)
  end
  local base = self
  if reload then
    base = draft.reload(state.file, given)
    states[base].problems:merge(state.problems, state.own_problems + 1)
    base = apply(base, state.changed)
  end
  for _, change in ipairs(state.set) do changes[#changes + 1] = change end
  local one = apply(base, changes)
  return derive(one, {
    axes = {}, set = state.set, point = point, label = table.concat(words, ", "),
    changed = joined(state.changed, changes),
  })
end

--- The points of a sweep, in written order, the last axis fastest; of other recipes themselves.
function methods.points(self)
  local list = {}
  for n = 1, draft.count(self) do list[n] = draft.point(self, n) end
  return list
end

--- How many points a recipe has.
function draft.count(self)
  local count = 1
  for _, axis in ipairs(states[self].axes) do count = count * #axis.values end
  return count
end

--- One of them, from 1, without making the others.
function draft.point(self, number)
  local axes, chosen, rest = states[self].axes, {}, number - 1
  if #axes == 0 then return self end
  for i = #axes, 1, -1 do
    chosen[i] = rest % #axes[i].values + 1
    rest = rest // #axes[i].values
  end
  return point_of(self, chosen)
end

--- A field as it was written, such as "layout.stages"; nil where it was not.
---@param self tidelock.Recipe
---@param key string
---@return any
function draft.written(self, key)
  local value = states[self].values
  for name in key:gmatch "[^.]+" do
    if type(value) ~= "table" then return nil end
    value = value[name]
  end
  return value
end

--- This recipe with fields and knobs set as on the command line: a list of "key=value".
function methods.override(self, words)
  local list, knobs = {}, nil
  for _, entry in ipairs(overrides.parse(words, states[self].problems)) do
    if states[self].declared[entry.key] ~= nil then
      knobs = knobs or {}
      knobs[entry.key] = { value = entry.value, place = overrides.place }
    else
      list[#list + 1] = entry
    end
  end
  return draft.set(knobs and reknob(self, knobs) or self, list)
end

--- This recipe with parsed overrides set; they also hold for every point of a sweep.
function draft.set(self, list)
  local changes = table.move(states[self].set, 1, #states[self].set, 1, {})
  local fresh = {}
  for _, entry in ipairs(list) do
    local known, message = overrides.known(entry.key, states[self].declared)
    if known then
      fresh[#fresh + 1] = { key = entry.key, value = entry.value, place = overrides.place }
      changes[#changes + 1] = fresh[#fresh]
    else
      states[self].problems:add(overrides.place, entry.key, message)
    end
  end
  return derive(apply(self, fresh), {
    set = changes, changed = joined(states[self].changed, fresh),
  })
end

draft.derive = derive

return draft
