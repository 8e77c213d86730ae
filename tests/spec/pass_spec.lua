--- pass_spec.lua - few rows pass through a model in one kernel of a GPU, whose blocks run apart
--- until a place is used again: places of values that are near each other in the program must not
--- meet.
local serving = require "tidelock.plan.serving"
local tl = require "tidelock"
local nn = tl.nn

local near = 26 -- instructions of two layers, so that blocks seldom have to meet

local function plan_of(fields)
  local function layer()
    return {
      nn.residual { nn.rms_norm {}, nn.attention { heads = 8, kv_heads = 2 } },
      nn.residual { nn.rms_norm {}, nn.swiglu { hidden = 192 } },
    }
  end
  return serving.plan(tl.recipe({
    model = nn.decoder { vocab = 333, dim = 128, layers = 3, layer = layer }, dtype = "bf16",
    data = tl.data.given { { tokens = { 0 } } }, batch = { samples = 1, length = 64 },
    policy = { "layout", leaves = { tp = 4, dp = 1 } }, train = { steps = 1, lr = 0 },
  }):with(fields))
end

local function bytes(t)
  local count = ({ f32 = 4, i32 = 4, bf16 = 2, i64 = 8 })[t.dtype]
  for _, size in ipairs(t.shape) do count = count * size end
  return count
end

local function meet(a, b)
  return a.offset < b.offset + bytes(b) and b.offset < a.offset + bytes(a)
end

--- Outputs of a section that lie where another value does that an instruction near by touches.
local function meetings(program, section)
  local range, found = program.sections[section], 0
  local last = range[1] + range[2] - 1
  for i = range[1], last do
    for _, y in ipairs(program.instructions[i].outputs) do
      local made = program.tensors[y]
      for j = math.max(range[1], i - near), math.min(last, i + near) do
        local other = program.instructions[j]
        for _, list in ipairs { other.inputs, other.outputs } do
          for _, x in ipairs(list) do
            local value = program.tensors[x]
            local is_other = j < i or value.offset ~= made.offset -- before i, y is not there
            if is_other and meet(made, value) then found = found + 1 end
          end
        end
      end
    end
  end
  return found
end

describe("places of a section of few rows", function()
  local plan = plan_of { ["serve.context"] = 160, ["serve.rows"] = 48, ["serve.requests"] = 6 }

  it("are apart where instructions are near", function()
    assert.same({ 1, 4, 8, 16, 32, 48 }, plan.classes)
    for s = 0, 2 do assert.equal(0, meetings(plan.programs[1], "serve" .. s)) end
  end)

  it("also with parts of a model on two ranks of a pipeline", function()
    local cut = plan_of { ["serve.context"] = 160, ["serve.rows"] = 8, ["layout.pp"] = 2 }
    for rank = 1, 2 do
      for s = 0, 2 do assert.equal(0, meetings(cut.programs[rank], "serve" .. s)) end
    end
  end)
end)
