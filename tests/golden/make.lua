--- Writes tests/golden/quickstart.json: the bits of the first steps of recipes/quickstart.lua, and
--- of recipes/moe_small.lua.
---
---     ./tl lua tests/golden/make.lua    # then read the diff; the commit says why bits changed
---
--- `record` is also what golden_spec compares with: the same run, in another layout or not.
local driver = require "tidelock.run.driver"
local tl = require "tidelock"

local golden = {}

golden.file = "tests/golden/quickstart.json"

--- Steps that are written down: f32 is what the quickstart trains in; bf16 is emulated, and slower.
golden.steps = { f32 = 20, bf16 = 5 }

--- The same model on a text that lies here, so that bits are compared on every machine.
golden.own = { name = "own text, ", steps = 3, text = "tests/golden/text.txt" }

--- A model with experts on the same text.
golden.experts = { name = "experts, own text, ", steps = 2, recipe = "recipes/moe_small.lua" }

--- The fields that replace the quickstart's data by the own text.
function golden.with_own_text(fields)
  fields.data = tl.data.text { golden.own.text }
  return fields
end

--- Bits of `steps` steps of the quickstart, or of the recipe `path`: { key, steps = { { loss,
--- grad_norm }, .. }, weights }.
function golden.record(dtype, steps, overrides, path)
  local fields = { dtype = dtype }
  for key, value in pairs(overrides or {}) do fields[key] = value end
  local recipe = tl.load(path or "recipes/quickstart.lua"):with(fields)
  local run <close> = driver.start(recipe)
  local list = {}
  for i = 1, steps do
    local s = run:step()
    list[i] = { loss = s.loss_bits, grad_norm = s.grad_norm_bits }
  end
  return { key = run.plan.key, steps = list, weights = run:weights_hash() }
end

--- The text of the file: one step a line, so that a diff shows the first that changed.
local function text_of(records)
  local lines = { "{" }
  for i, entry in ipairs(records) do
    local record = entry.record
    lines[#lines + 1] = ('  "%s": {\n    "key": "%s",\n    "steps": ['):format(entry.name,
      record.key)
    for step, bits in ipairs(record.steps) do
      lines[#lines + 1] = ('      { "loss": "%s", "grad_norm": "%s" }%s'):format(bits.loss,
        bits.grad_norm, step < #record.steps and "," or "")
    end
    lines[#lines + 1] = ('    ],\n    "weights": "%s"\n  }%s'):format(record.weights,
      i < #records and "," or "")
  end
  lines[#lines + 1] = "}\n"
  return table.concat(lines, "\n")
end

function golden.make()
  local records = {}
  for _, dtype in ipairs { "f32", "bf16" } do
    local record = golden.record(dtype, golden.steps[dtype])
    records[#records + 1] = { name = dtype, record = record }
  end
  for _, dtype in ipairs { "f32", "bf16" } do
    local record = golden.record(dtype, golden.own.steps, golden.with_own_text {})
    records[#records + 1] = { name = golden.own.name .. dtype, record = record }
  end
  for _, dtype in ipairs { "f32", "bf16" } do
    local record = golden.record(dtype, golden.experts.steps, golden.with_own_text {},
      golden.experts.recipe)
    records[#records + 1] = { name = golden.experts.name .. dtype, record = record }
  end
  local file = assert(io.open(golden.file, "wb"))
  file:write(text_of(records))
  file:close()
end

if arg and arg[0] and arg[0]:find "golden/make.lua$" then golden.make() end

return golden
