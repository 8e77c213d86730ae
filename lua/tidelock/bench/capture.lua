--- `./tl bench capture`: a step on a GPU, replayed as a graph and queued one instruction at a time.
--
-- Both runs of the recipe queue the same kernels in the same order, so every loss and the weights
-- agree on every bit, which is compared here too; the replay must never be slower. Without a GPU
-- the table says why it is empty.

local driver = require "tidelock.run.driver"
local requests = require "tidelock.plan.requests"
local rounds = require "tidelock.bench.rounds"
local screen = require "tidelock.text.screen"

local capture = {}

--- A run on the GPU and the bits of its steps. The first step of a run is always eager, the second
--- makes the graph: both are taken before any turn.
local function entrant(options, label, eager)
  local words = table.move(options.overrides, 1, #options.overrides, 1, {})
  words[#words + 1] = "device=cuda"
  local run = requests.guarded(driver.start, requests.recipe(options.recipe, words), {
    threads = options.threads, eager = eager,
  })
  local self = { label = label, run = run, bits = {} }
  function self.turn()
    return rounds.measure(function()
      for _ = 1, options.steps do
        local step = run:step()
        table.insert(self.bits, screen.bits(step.loss_bits) .. screen.bits(step.grad_norm_bits))
      end
    end)
  end
  self.turn()
  self.turn()
  return self
end

local function verdict(a, b)
  for i, bits in ipairs(a.bits) do
    if bits ~= b.bits[i] then
      return ("step %d differs: %s, %s"):format(i, bits, b.bits[i] or "-")
    end
  end
  local one, other = a.run:weights_hash(), b.run:weights_hash()
  if one ~= other then return ("weights differ: %s, %s"):format(one, other) end
  return ("%d losses and gradient norms and the weights are equal in every bit"):format(#a.bits)
end

---@param options table # recipe, overrides, rounds, steps, threads
function capture.tables(options)
  local result = {
    title = "A step captured as a graph, and eager: " .. options.recipe:match "[^/]+$",
    columns = { "step", "tok/s best", "tok/s median", "ms/step", "wall ratio" }, rows = {},
    notes = { "ratio: how many times faster than eager, in the same round" },
  }
  local good, captured = pcall(entrant, options, "captured", false)
  if not good then
    local text = type(captured) == "table" and captured.message or tostring(captured)
    table.insert(result.notes, "not measured: " .. text:match "[^\n]+")
    return { result }
  end
  local eager = entrant(options, "eager", true)
  local batch = captured.run.spec.batch
  rounds.run({ captured, eager }, options.rounds)
  for _, e in ipairs { captured, eager } do
    local best, middle = rounds.rate(e, options.steps * batch.samples * batch.length)
    table.insert(result.rows, {
      e.label, screen.short(best), screen.short(middle),
      ("%.2f"):format(1000 * rounds.middle(e, "seconds") / options.steps),
      (rounds.ratio(e, eager, "seconds")),
    })
  end
  table.insert(result.notes, verdict(captured, eager))
  for _, e in ipairs { captured, eager } do e.run:close() end
  return { result }
end

return capture
