-- Faults that users of other systems reported, about experts: what a token gets beside others.
local data = require "tidelock.language.data"
local models = require "support.models"
local nn = require("tidelock").nn

--- One layer of 8 experts whose places the id of a token alone decides: 0 is the token that is
--- watched, of experts 6 and 1; 1, 2 and up are others.
local function options(samples, length, list, more)
  local function choices(i)
    local id, slot = i // 2, i % 2
    local pair = ({ [0] = { 6, 1 }, { 1, 7 }, { 0, 2 } })[id] or { id % 8, (id + 3) % 8 }
    return pair[slot + 1]
  end
  local function layer()
    return { nn.residual { nn.rms_norm {}, nn.moe { experts = 8, top_k = 2, hidden = 24,
      router = "hash" } } }
  end
  return models.with({
    vocab = 61, layers = 1, layer = layer, samples = samples, length = length, micro = 1,
    leaves = { tp = 1, dp = 4 }, data = data.given(list),
    weights = { { "*.choices", init = choices } },
  }, more or {})
end

--- Samples of the watched token and `others`, ids of what stands beside it; it alone has a target.
local function beside(samples, length, others)
  local list, at = {}, 0
  for s = 1, samples do
    local tokens, targets = {}, {}
    for i = 1, length do
      local first = s == 1 and i == 1
      if not first then at = at + 1 end
      tokens[i], targets[i] = first and 0 or others(at), first and 5 or -1
    end
    list[s] = { tokens = tokens, targets = targets }
  end
  return list
end

--- Hashes of the watched token's output and of what its loss gives to its embedding; the load.
local function watched(o)
  local run <close> = models.start(o, { keep = { "layers.0.moe.out", "embed.grad" }, poison = 255 })
  local step = run:step()
  local load = 0
  for _, rows in ipairs(step.experts[1].load) do load = load + rows end
  return run:kept("layers.0.moe.out"):narrow(1, 1, 1):hash() .. " " ..
    run:kept("embed.grad"):narrow(1, 1, 1):hash(), load
end

local crowds = {
  { "all to its second expert", function() return 1 end },
  { "all to expert 0", function() return 2 end },
  { "spread over all", function(i) return 3 + i * 7 % 50 end },
}

for _, dtype in ipairs { "f32", "bf16" } do
  describe("H03, combine order depends on who else is routed, " .. dtype, function()
    local expected = watched(options(1, 1, beside(1, 1), { dtype = dtype }))

    for _, crowd in ipairs(crowds) do
      it("not beside 1, 63 or 499 others, " .. crowd[1], function()
        for _, shape in ipairs { { 1, 2 }, { 4, 16 }, { 4, 125 } } do
          local list = beside(shape[1], shape[2], crowd[2])
          for _, ranks in ipairs(shape[1] == 4 and { 1, 2, 4 } or { 1 }) do
            local more = { dtype = dtype, ["layout.dp"] = ranks, ["layout.ep"] = ranks }
            assert.equal(expected, (watched(options(shape[1], shape[2], list, more))),
              ("%d x %d, ep %d"):format(shape[1], shape[2], ranks))
          end
        end
      end)
    end
  end)
end

describe("H06, tokens that are not there", function()
  it("change nothing for a rank whose neighbour sends it rows or none", function()
    local function of(id)
      local list = beside(2, 100, function(i) return i < 100 and 3 + i % 50 or id(i) end)
      return watched(options(2, 100, list, { leaves = { tp = 1, dp = 2 }, ["layout.dp"] = 2,
        ["layout.ep"] = 2 }))
    end
    local expected, load = of(function() return 1 end) -- to experts of rank 1 alone
    assert.equal(2 * 200, load)
    for _, id in ipairs { function(i) return i == 100 and 2 or 1 end, function() return 2 end,
      function(i) return 3 + i % 50 end } do
      local got, rows = of(id)
      assert.equal(expected, got)
      assert.equal(2 * 200, rows)
    end
  end)
end)
