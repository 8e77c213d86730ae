-- The types for editors: every function that a recipe or a script can call, with its arguments.
local annotations = require "tidelock.meta.annotations"
local core = require "tidelock.core"
local draft = require "tidelock.language.draft"
local driver = require "tidelock.run.driver"
local fields = require "tidelock.language.fields"
local tl = require "tidelock"

local api = core.files.read_all "lua/tidelock/meta/api.lua"

--- Functions of the text by name, "nn.graph" or "Recipe:with": { arguments }, and the lines of
--- annotations that stand before each.
local function declared(text)
  local list, above = {}, {}
  for line in text:gmatch "[^\n]+" do
    local name, arguments = line:match "^function ([%w_.:]+)%((.-)%) end$"
    if name then
      list[name] = { arguments = arguments, above = table.concat(above, "\n") }
      above = {}
    elseif line:find "^%-%-%-" then
      above[#above + 1] = line
    else
      above = {}
    end
  end
  return list
end

--- Complaints about functions that are there and have no declaration, and about arguments that
--- have no type.
local function missing(known, list)
  local complaints = {}
  for _, name in ipairs(known) do
    if not list[name] then complaints[#complaints + 1] = name end
  end
  for name, entry in pairs(list) do
    for argument in entry.arguments:gmatch "[%w_.]+" do
      local pattern = "%-%-%-@param " .. argument:gsub("%.", "%%.") .. "%??%s"
      if not entry.above:find(pattern) then
        complaints[#complaints + 1] = name .. ": " .. argument
      end
    end
  end
  table.sort(complaints)
  return complaints
end

--- The functions of a table, each behind `lead`.
local function functions(of, lead, list)
  for name, value in pairs(of) do
    if type(name) == "string" and name:sub(1, 2) ~= "__" and type(value) == "function" then
      list[#list + 1] = lead .. name
    end
  end
end

local function known_functions()
  local list = { "tl.recipe", "tl.params", "tl.load", "tl.matmul", "Source:split" }
  functions(tl.nn, "nn.", list)
  functions(tl.data, "data.", list)
  functions(draft.methods, "Recipe:", list)
  local run <close> = driver.start(tl.recipe {
    model = tl.nn.decoder { vocab = 8, dim = 8, layers = 1, layer = function()
      return { tl.nn.residual { tl.nn.rms_norm {}, tl.nn.swiglu { hidden = 8 } } }
    end },
    data = tl.data.given { { tokens = { 0, 1, 2, 3 } } },
    batch = { samples = 1, length = 4 }, policy = "batch", train = { steps = 1, lr = 1e-3 },
  })
  functions(getmetatable(run), "Run:", list)
  return list
end

describe("the types for editors", function()
  it("have every function of tl, nn, data, recipes and runs, with its arguments", function()
    assert.same({}, missing(known_functions(), declared(api)))
  end)

  it("would miss a function, and an argument", function()
    local list = declared "---@param a string\nfunction nn.linear(a, b) end\n"
    assert.same({ "nn.gelu", "nn.linear: b" }, missing({ "nn.gelu", "nn.linear" }, list))
  end)

  it("have the operators of graphs that the page on recipes names", function()
    local page, list = core.files.read_all "docs/recipes.md", declared(api)
    for name in page:gmatch "\n| `g%.([%w_]+)%(" do assert.is_table(list["g." .. name], name) end
    for word in page:match "\n| `g%.([%w_ ]+) %(x%)` | elementwise":gmatch "[%w_]+" do
      assert.is_truthy(api:find("---@field " .. word .. " tidelock.unary", 1, true), word)
    end
  end)

  it("have a class for every section, as the generator writes it", function()
    assert.equal(annotations.text(), core.files.read_all "lua/tidelock/meta/fields.lua")
    for name, entry in pairs(fields.sections) do
      local class = annotations.text():match("\n%-%-%-@class tidelock%." .. name:gsub("%p", "%%%0")
        .. "\n(.-\n)\n") or annotations.text():match("@class tidelock%." .. name
        :gsub("%p", "%%%0") .. "\n(.*)$")
      for _, field in ipairs(entry.fields) do
        assert.is_truthy(class:find("---@field " .. field.name, 1, true), name .. "." .. field.name)
      end
    end
  end)

  it("are modules that run", function()
    assert.is_table(require "tidelock.meta.api")
    assert.is_true(require "tidelock.meta.fields")
  end)
end)
