-- Bytes of experts' rows by the path that they took, counted on every rank.
local core = require "tidelock.core"
local mixtures = require "support.mixtures"
local models = require "support.models"
local new_folder = require "support.folder"
local planted = require "support.planted"
local trace = require "tidelock.trace"
local traces = require "tidelock.trace.traces"

local top_k, dim = 3, 32

--- Every token chooses the experts 0, 1 and 2, which are rank 0's.
local options = mixtures.with({ experts = 8, top_k = top_k, hidden = 16, router = "hash" }, {
  layers = 1, dim = dim, weights = { { "*.choices", init = function(i) return i % 3 end } } })

local function exchanged(fields)
  local run <close> = models.start(models.with(options, fields))
  run:step()
  return run:step().exchange
end

describe("bytes of rows", function()
  it("are those that routing needs, among threads from peers alone", function()
    -- 64 tokens a rank: rank 0 reads x, dy and a weight of each of rank 1's rows, rank 1 reads out,
    -- dx and a weight's gradient
    local bytes = 64 * top_k * (2 * dim * 4 + 4)
    assert.same({ { rank = 0, peer = bytes, network = 0, host = 0 },
      { rank = 1, peer = bytes, network = 0, host = 0 } },
      exchanged { ["layout.dp"] = 2, ["layout.ep"] = 2 })
  end)

  it("grow where rows go round", function()
    local flat = exchanged { ["layout.dp"] = 4, ["layout.ep"] = 4 }
    local ring = exchanged { ["layout.dp"] = 4, ["layout.ep"] = 4, ["layout.all_to_all"] = "ring" }
    for i, one in ipairs(ring) do
      assert.is_true(one.peer >= flat[i].peer)
      assert.equal(0, one.network + one.host)
    end
    assert.is_true(ring[2].peer > flat[2].peer)
  end)

  it("are more than planned only where the worst routing moves fewer", function()
    local function flags(fields, faults)
      local all = models.with(options, fields)
      local t <close> = traces.open(planted.trace(all, { faults = faults, recorder = { values =
        false, full = false } }, 1))
      return trace.flags(t)
    end
    for _, fields in ipairs { { all_to_all = "flat" }, { all_to_all = "ring" },
      { all_to_all = "hierarchical", island = 2 } } do
      local own = { ["layout.dp"] = 4, ["layout.ep"] = 4, ["blocks.moe.waves"] = 2 }
      for key, value in pairs(fields) do own["layout." .. key] = value end
      assert.same({}, flags(own))
    end
    local own = { ["layout.dp"] = 2, ["layout.ep"] = 2 }
    local index, list = planted.instruction(models.with(options, own), { op = "exchange",
      rank = 0 }), {}
    for rank = 0, 1 do
      list[rank + 1] = { rank = rank, instruction = index, kind = "twice", step = 1 }
    end
    local found = flags(own, list) -- to rank 0 all rows come, to rank 1 none
    assert.equal(1, #found)
    assert.same({ 0, index, 2 * found[1].planned }, { found[1].rank, found[1].instruction,
      found[1].moved })
  end)

  it("are not told where no rows leave their rank", function()
    assert.is_nil(exchanged { ["layout.dp"] = 2 })
  end)
end)

describe("./tl run", function()
  it("writes them to the log and to the metrics", function()
    local folder = new_folder()
    local jsonl, prom = folder:path "log.jsonl", folder:path "m.prom"
    local pipe = assert(io.popen(("./tl run recipes/moe_small.lua layout.dp=2 layout.ep=2 "
      .. "batch.samples=8 batch.micro=4 batch.length=16 --stop-at 2 "
      .. "--runs %s --jsonl %s --metrics %s 2>&1"):format(folder:path "runs", jsonl, prom)))
    local text = pipe:read "a"
    assert.is_true(pipe:close(), text)
    local totals = { 0, 0 }
    for line in core.files.read_all(jsonl):gmatch "[^\n]+" do
      local record = core.json.decode(line)
      for i, one in ipairs(record.exchange or {}) do
        totals[i] = totals[i] + one.peer
        assert.equal(i - 1, one.rank)
        assert.equal(0, one.network + one.host)
      end
    end
    local metrics = core.files.read_all(prom)
    for i, total in ipairs(totals) do
      assert.is_true(total > 0)
      local sample = 'tidelock_exchange_bytes_total{rank="%d",path="%s"} %d\n'
      assert.is_truthy(metrics:find(sample:format(i - 1, "peer", total), 1, true), metrics)
      assert.is_truthy(metrics:find(sample:format(i - 1, "host", 0), 1, true))
    end
    folder:remove()
  end)
end)
