-- docs/records.schema.json: every line that a run or a sweep writes obeys it.
local core = require "tidelock.core"
local jsonschema = require "support.jsonschema"
local log = require "tidelock.run.log"
local new_folder = require "support.folder"
local support = require "support"

local schema = core.json.decode(core.files.read_all "docs/records.schema.json")

--- Complaints about a record as one of the forms; a field that the form does not have is one, too.
local function complaints(form, record)
  local of = schema["$defs"][form]
  local list = jsonschema.complaints(of, record, schema)
  for name in pairs(record) do
    if not of.properties[name] then list[#list + 1] = name .. " stands in no schema" end
  end
  for _, text in ipairs(jsonschema.complaints(schema, record)) do list[#list + 1] = text end
  return list
end

local function obeys(form, record)
  assert.same({}, complaints(form, record), log.line(record))
end

describe("records", function()
  local folder
  before_each(function() folder = new_folder() end)
  after_each(function() folder:remove() end)

  local function recipe(experts)
    return folder:write("tiny.lua", ([[
      local tl = require "tidelock"
      local nn = tl.nn
      return tl.recipe {
        model = nn.decoder { vocab = 256, dim = 16, layers = 1, layer = function()
          return { nn.residual { nn.rms_norm {}, nn.attention { heads = 4 } },
            nn.residual { nn.rms_norm {}, %s } }
        end },
        data = tl.data.text { "LICENSE" },
        eval = { data = tl.data.text { "README.md" }, every = 1, samples = 4 },
        batch = { samples = 4, length = 16 },
        train = { steps = 2, lr = 1e-3, save = { every = 1 } },
        log = { watch = { "loss:mean" } },
      }]]):format(experts and 'nn.moe { experts = 4, top_k = 2, hidden = 8, '
        .. 'balance = { "loss", weight = 0.01 } }' or "nn.swiglu { hidden = 16 }"))
  end

  it("of runs obey the schema, with experts, evaluations, values that are watched", function()
    for _, experts in ipairs { false, true } do
      local path = folder:path "log.jsonl"
      local text, status = support.run(("run %s --quiet --runs %s --jsonl %s"):format(
        recipe(experts), folder:path(experts and "a" or "b"), path))
      assert.equal(0, status, text)
      local records = log.read(path)
      assert.equal(3, #records)
      for i, record in ipairs(records) do
        assert.equal(log.version, record.version)
        obeys(i < 3 and "step" or "summary", record)
      end
      assert.is_true(records[1].watch ~= nil and records[1].eval_loss ~= nil)
      assert.equal(experts, records[1].experts ~= nil)
    end
  end)

  it("of sweeps obey it, measured, planned and refused", function()
    recipe(false)
    local points = folder:write("points.lua", [[
      local tl = require "tidelock"
      return tl.load "tiny.lua":over("layout", { { dp = 1 }, { dp = 2, pp = 1 }, { dp = 3 } })]])
    for _, steps in ipairs { 0, 2 } do
      local path = folder:path(steps .. ".jsonl")
      local text, status = support.run(("sweep %s --jsonl %s --steps %d"):format(points, path,
        steps))
      assert.equal(0, status, text)
      local rows = log.read(path)
      assert.equal(3, #rows)
      for _, row in ipairs(rows) do obeys("sweep_row", row) end
      assert.equal("refused", rows[3].status)
    end
  end)

  it("that do not obey are seen", function()
    local record = { version = 1, step = 1, loss_bits = "40b23f1", grad_norm_bits = "40b23f14",
      lr = 1e-3, tokens = 3, ms = 2.0, tokens_per_s = "fast", bytes = 1, extra = 1 }
    assert.same({ "/loss_bits: 40b23f1 does not match ^[0-9a-f]{8}$",
      "/tokens_per_s: fast is no number", ": eta is missing", "extra stands in no schema",
      ": 0 of the forms fit" }, complaints("step", record))
  end)
end)
