-- The way that rows of experts take: chosen by the speeds of links where they are known.
local cluster = require "tidelock.forecast.cluster"
local doctor = require "tidelock.machine.doctor"
local links = require "tidelock.plan.links"
local mixtures = require "support.mixtures"
local models = require "support.models"
local plan = require "tidelock.plan"

local two_hosts = cluster.read "recipes/clusters/h200x16.yaml" -- 367 / 45 = 8.2

local function layout(more)
  local all = { ep = 16, tp = 1, dp = 16, pp = 1, order = "tp-cp-dp-pp", all_to_all = "auto" }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end

local function choice(more, facts) return { links.choose(layout(more), facts or two_hosts) } end

describe("auto", function()
  local ratio = "links at 367 GB/s are 8.2 times the network's 45 GB/s, threshold "

  it("takes islands from the threshold on", function()
    assert.same({ "hierarchical", 8, ratio .. "4" }, choice())
    assert.same({ "flat", 8, ratio .. "9" }, choice { all_to_all_threshold = 9 })
    local even = { link = 90, network = 45, island = 8 }
    assert.equal("hierarchical", choice({ all_to_all_threshold = 2 }, even)[1])
    assert.equal("flat", choice({ all_to_all_threshold = 2.001 }, even)[1])
    assert.same({ "hierarchical", 4, ratio .. "4" }, choice { island = 4 })
  end)

  it("stays flat where there are no islands", function()
    assert.same({ "flat", nil, "all 8 ranks of ep are in one island" }, choice { ep = 8 })
    assert.same({ "flat", nil, "all 16 ranks of ep are in one island" },
      choice({}, { link = 9, ranks = 16 }))
    assert.same({ "flat", nil, "islands of 8 do not divide ep 12" }, choice { ep = 12 })
    assert.same({ "flat", nil, "ranks of ep are no neighbours in the order pp-dp-tp" },
      choice { order = "pp-dp-tp" })
  end)
end)

describe("a plan", function()
  local options = mixtures.with({ experts = 16, top_k = 2, hidden = 16 }, { samples = 16,
    micro = 1, leaves = { tp = 4, dp = 16 } })

  local function planned(fields, facts)
    local recipe = models.recipe(models.with(options, fields))
    local good, made = pcall(plan, recipe, "shard", { links = facts })
    if not good then return nil, type(made) == "table" and made.message or tostring(made) end
    return made
  end

  it("goes by known links, and says why", function()
    local fields = { ["layout.dp"] = 16, ["layout.ep"] = 16 }
    local made = planned(fields, two_hosts)
    assert.equal("hierarchical", made.spec.layout.all_to_all)
    assert.equal(8, made.spec.layout.island)
    assert.matches("8%.2 times the network's", made.way)
    fields["layout.all_to_all"] = "ring"
    assert.equal("ring", planned(fields, two_hosts).spec.layout.all_to_all)
    assert.is_nil(planned(fields, two_hosts).way)
  end)

  it("refuses a threshold without speeds, and beside another way", function()
    local fields = { ["layout.dp"] = 2, ["layout.ep"] = 2, ["layout.all_to_all_threshold"] = 3 }
    local _, text = planned(fields)
    assert.matches("link speeds are not known here; give them to plan or run by %-%-cluster FILE",
      text)
    assert.is_table(planned(fields, two_hosts))
    fields["layout.all_to_all"] = "ring"
    _, text = planned(fields, two_hosts)
    assert.matches('it decides for "auto" alone, and layout.all_to_all is "ring"', text)
  end)

  it("has the same bits either way", function()
    local fields = { ["layout.dp"] = 8, ["layout.ep"] = 8 }
    local facts = { link = 8, network = 1, island = 2 }
    local function losses(known)
      local run <close> = models.start(models.with(options, fields), { links = known })
      assert.equal(known and "hierarchical" or "auto", run.spec.layout.all_to_all)
      return run:step().loss_bits .. run:weights_hash()
    end
    assert.equal(losses(), losses(facts))
  end)
end)

describe("./tl doctor", function()
  it("says which way rows take", function()
    local function said(facts)
      return table.concat(doctor.report(facts), " "):gsub("%s+", " ")
    end
    assert.matches("rows on 2 x 8 H200 go hierarchical where ep is above 8, islands of 8: links at "
      .. "367 GB/s are 8%.2 times the network's 45 GB/s, threshold 4", said(two_hosts))
    assert.matches("go flat: 8 ranks in one island, links at 367 GB/s",
      said(cluster.read "recipes/clusters/h200x8.yaml"))
    assert.matches("experts rows go flat", said())
  end)
end)
