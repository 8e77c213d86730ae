-- Faults that users of other systems reported, on experts; tests carry the names of the cases.
-- H08, H09, H11, H19: moe_spec.lua. H10: tests/errors/experts_capacity.lua. H20: mixtures_spec.lua.
local data = require("tidelock").data
local models = require "support.models"
local nn = require("tidelock").nn
local serve = require "support.serve"
local support = require "support"

local dim, experts = 16, 8

--- Token 8 a + b goes to the experts a and b: the router looks at the first eight channels alone.
local function embedding(i)
  local id, column = i // dim, i % dim
  if column >= experts then return support.fill_value(1, i) end
  return column == id // 8 and 3 or column == id % 8 and 2 or 0
end
local function router(i) return i // dim == i % dim and 1 or 0 end

local function options_of(more)
  return models.with({ vocab = 64, dim = dim, layers = 1, leaves = { tp = 1, dp = 4 },
    layer = function()
      return nn.residual { nn.moe { experts = experts, top_k = 2, hidden = 24 } }
    end,
    weights = { { "embed", init = embedding }, { "*.router", init = router, frozen = true } },
  }, more)
end

describe("H03, who else is routed", function()
  local token = 8 * 1 + 6 -- to experts 1 and 6
  local crowds = {
    function(i) return 8 * 6 + ({ 0, 2, 3, 4, 5, 7 })[i % 6 + 1] end, -- all to expert 6
    function(i) return 1 + i % 7 end, -- all to expert 0
    function(i) -- spread; nobody is the token itself
      local id = math.floor((support.fill_value(4, i) + 1) * 32)
      return id == token and 7 or id
    end,
  }

  --- The token stands first, before `others`, on `ep` ranks; its loss is the only one. Loss, and
  --- the gradient of its own row of the embedding, in bits.
  local function outcome(crowd, others, ep)
    local length, samples = (others + 1) // ep, {}
    for s = 0, ep - 1 do
      local tokens, targets = {}, {}
      for i = 1, length do
        tokens[i], targets[i] = crowd(s * length + i), -1
      end
      samples[s + 1] = { tokens = tokens, targets = targets }
    end
    samples[1].tokens[1], samples[1].targets[1] = token, 5
    local run <close> = models.start(options_of { samples = ep, micro = 1, length = length,
      data = data.given(samples), ["layout.dp"] = ep, ["layout.ep"] = ep },
      { keep = { "embed.grad" }, poison = 255 })
    local step = run:step()
    return step.loss_bits .. " "
      .. table.concat(run:kept("embed.grad"):narrow(1, token + 1, 1):bits(), " ")
  end

  it("changes no bit of a token's output and gradient", function()
    local expected = outcome(crowds[1], 0, 1)
    for i, crowd in ipairs(crowds) do
      for ep, counts in pairs { { 1, 63, 500 }, { 1, 63, 501 }, [4] = { 3, 63, 503 } } do
        for _, others in ipairs(counts) do
          assert.equal(expected, outcome(crowd, others, ep),
            ("crowd %d, %d others, ep %d"):format(i, others, ep))
        end
      end
    end
  end)
end)

describe("H06, tokens that are not there", function()
  it("change nothing, and no load counts them", function()
    local options = options_of { samples = 2, micro = 1, length = 100, ["layout.dp"] = 2,
      ["layout.ep"] = 2 }
    local run <close> = models.start(options, { poison = 255 })
    local rows = 0
    for _, layer in ipairs(run:step().experts) do
      for _, count in ipairs(layer.load) do rows = rows + count end
    end
    assert.equal(2 * 200, rows)
  end)

  it("are rows of no request in generation: 100 tokens beside 0, 1 and 100 others", function()
    local file <close> = serve.train { layer = function()
      return {
        nn.residual { nn.rms_norm {}, nn.attention { heads = 4, kv_heads = 2 } },
        nn.residual { nn.rms_norm {}, nn.moe { experts = experts, top_k = 2, hidden = 32 } },
      }
    end }
    local sizes = { ["serve.context"] = 160, ["serve.rows"] = 256, ["serve.page"] = 16 }
    local function request(seed, count)
      return { tokens = models.tokens(seed, count, models.defaults.vocab), max_tokens = 4,
        temperature = 1, seed = seed, echo = true }
    end
    local expected
    for _, poison in ipairs { 255, 0 } do -- unused rows hold NaN, then zeros
      for _, count in ipairs { 0, 1, 100 } do
        local list = { request(5, 100), count > 0 and request(6, count) or nil }
        local got = serve.outcomes(file, sizes, list, { poison = poison })[1]
        expected = expected or got
        assert.equal(expected, got, count .. " others")
      end
    end
  end)
end)
