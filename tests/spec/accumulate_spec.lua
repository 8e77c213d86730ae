-- The order of weight gradient sums: written down as expressions, it must not depend on the
-- micro-batch size or on how many ranks share the leaves.
local accumulate = require "tidelock.plan.accumulate"

local function tree(parts)
  while #parts > 1 do
    local next_parts = {}
    for i = 1, #parts, 2 do next_parts[#next_parts + 1] = "(" .. parts[i] .. " + " .. parts[i + 1]
      .. ")" end
    parts = next_parts
  end
  return parts[1]
end

local function text(x) return type(x) == "table" and "[" .. table.concat(x, " ") .. "]" or x end

--- A chain of samples, or the tree over so many leaves of them.
local function sum_of(chain, leaves)
  if leaves == 1 then return chain end
  local parts, each = {}, #chain // leaves
  assert(#chain % leaves == 0, "leaves are not alike")
  for i = 1, leaves do parts[i] = text(table.move(chain, (i - 1) * each + 1, i * each, 1, {})) end
  return tree(parts)
end

--- Runs the actions on symbols; a chain is a list of samples, a sum a string.
local function run(o)
  local actions = accumulate.plan(o)
  local stack = {}
  for micro, list in ipairs(actions) do
    for _, action in ipairs(list) do
      if action.kind == "sum" then
        local chain = {}
        for s = action.first, action.first + action.samples - 1 do
          assert(s // o.micro == micro - 1, "a sample of another micro-batch")
          chain[#chain + 1] = action.rows and string.format("%d:%d+%d", s + (o.base or 0),
            action.row, action.rows)
            or tostring(s + (o.base or 0))
        end
        chain = sum_of(chain, action.leaves or 1)
        if action.mode == 1 then
          local resumed = stack[action.buffer]
          assert(type(resumed) == "table", "resumes what is no chain")
          for _, s in ipairs(chain) do resumed[#resumed + 1] = s end
        elseif action.mode == 2 then
          stack[action.buffer] = "(" .. text(stack[action.buffer]) .. " + " .. text(chain) .. ")"
        else
          stack[action.buffer] = chain
        end
      elseif action.kind == "zero" then
        stack[action.buffer] = "0"
      else
        stack[action.buffer] = "(" .. text(stack[action.buffer]) .. " + "
          .. text(stack[action.from]) .. ")"
        stack[action.from] = nil
      end
    end
  end
  return text(stack[0])
end

describe("sums of weight gradients", function()
  it("add the leaves pairwise, samples ascending in each", function()
    assert.are.equal("(([0 1] + [2 3]) + ([4 5] + [6 7]))",
      run { samples = 8, micro = 2, leaves = 4, length = 256, matrix = true })
  end)

  it("add an empty leaf as zero", function()
    assert.are.equal("((0 + [0]) + (0 + [1]))", run { samples = 2, micro = 1, leaves = 4,
      length = 256, matrix = true })
  end)

  it("close a block after 8,192 tokens and add blocks ascending", function()
    assert.are.equal("(([0 1] + [2 3]) + [4])", run { samples = 5, micro = 1, leaves = 1,
      length = 4096, matrix = true })
  end)

  it("cut a sample that is longer than a block", function()
    assert.are.equal("(([0:0+8192] + [0:8192+8192]) + [0:16384+3616])",
      run { samples = 1, micro = 1, leaves = 1, length = 20000, matrix = true })
  end)

  it("keep one chain per leaf for vectors", function()
    assert.are.equal("[0 1 2 3 4]", run { samples = 5, micro = 1, leaves = 1, length = 4096,
      matrix = false })
  end)

  for _, length in ipairs { 100, 2048, 3000, 8192, 9000 } do
    for _, leaves in ipairs { 1, 2, 4, 8 } do
      it(string.format("do not depend on micro, dp or what is one sum: length %d, %d leaves",
        length, leaves), function()
        for _, samples in ipairs { 8, 12, 16, 24 } do
          local whole = run { samples = samples, micro = samples, leaves = leaves,
            length = length, matrix = true }
          for dp = 1, leaves do
            if leaves % dp == 0 and samples % dp == 0 then
              local share = samples // dp
              for micro = 1, share do
                if share % micro == 0 then
                  local parts = {}
                  for rank = 0, dp - 1 do
                    parts[rank + 1] = run {
                      samples = share, micro = micro, leaves = leaves // dp, length = length,
                      matrix = true, base = rank * share, together = 1 << (micro + dp) % 4,
                    }
                  end
                  assert.are.equal(whole, tree(parts))
                end
              end
            end
          end
        end
      end)
    end
  end

  it("are one instruction a micro-batch where its leaves are a subtree", function()
    local actions, depth = accumulate.plan { samples = 16, micro = 8, leaves = 8, length = 2048,
      matrix = true, together = 8 }
    assert.are.equal(1, depth)
    assert.are.same({ { kind = "sum", buffer = 0, first = 0, samples = 8, mode = 0, leaves = 4 } },
      actions[1])
    assert.are.same({ { kind = "sum", buffer = 0, first = 8, samples = 8, mode = 2, leaves = 4 } },
      actions[2])
  end)

  it("use a stack of 1 + log2(leaves) buffers, one less where a leaf is one instruction", function()
    for exponent = 0, 5 do
      local _, depth = accumulate.plan { samples = 64, micro = 4, leaves = 1 << exponent,
        length = 16, matrix = true }
      assert.are.equal(exponent < 4 and exponent + 1 or exponent, depth)
      _, depth = accumulate.plan { samples = 64, micro = 4, leaves = 1 << exponent,
        length = 16, matrix = false }
      assert.are.equal(exponent + 1, depth)
    end
  end)
end)
