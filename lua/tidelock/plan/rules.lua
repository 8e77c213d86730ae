--- The rules of a layout, each with the numbers that would fit.
--
-- rules.check walks the list at the end of this file; every rule reports what breaks it and none
-- stops the others. A rule reads the facts
--
--     layout, batch, policy, eval     checked sections
--     model    { layers, vocab, positions, attentions, hiddens }, found in the modules:
--              attentions = { { heads, kv_heads, site } .. }, hiddens = { { hidden, site } .. }
--     world    ranks that are there, or nil when ranks are threads: their number is the product
--     site     function(path) -> place
--
-- and calls report(path, format, ...) or note(format, ...). Missing numbers (nil: wrong in
-- themselves, and reported) break no rule.
local fit = require "tidelock.text.fit"
local layout = require "tidelock.plan.layout"
local moe = require "tidelock.plan.rules_experts"

local rules = {}

--- Where a field stands, in brackets; of a recipe that no file has written, nothing.
local function at(facts, path)
  local site = facts.site(path)
  return site and " (" .. site .. ")" or ""
end

local function divides(n, value) return value == nil or value % n == 0 end

local function round_up(n, unit) return (n + unit - 1) // unit * unit end

--- Whether `n` tensor parallel ranks suit the whole model.
local function model_fits(facts, n)
  local good = true
  for _, one in ipairs(facts.model.attentions) do
    good = good and divides(n, one.heads) and (one.kv_heads % n == 0 or n % one.kv_heads == 0)
  end
  for _, one in ipairs(facts.model.hiddens) do good = good and divides(n, one.hidden) end
  return good
end

--- Whether they suit the policy too.
local function tp_fits(facts, n)
  return divides(n, facts.policy.leaves.tp) and model_fits(facts, n)
end

local function try_tp(facts, candidates)
  local best = fit.nearest(facts.layout.tp, candidates, function(n) return tp_fits(facts, n) end)
  return best and "; try tp = " .. best or ""
end

--- R1: the product of the axes is the number of ranks.
local function world(facts, report)
  local l = facts.layout
  local product = l.tp * l.cp * l.pp * l.dp
  if not facts.world or product == facts.world then return end
  local fitting = {}
  for _, axis in ipairs { "dp", "tp", "pp" } do
    local others = product // l[axis]
    if facts.world % others == 0 then
      fitting[#fitting + 1] = axis .. " = " .. facts.world // others
    end
  end
  local ranks = facts.world == 1 and "1 rank" or facts.world .. " ranks"
  local advice = "no single axis makes up for it"
  if fitting[1] then
    advice = "allowed: " .. table.concat(fitting, " or ") .. "; try " .. fitting[1]
  end
  report("layout", "tp %d * cp %d * pp %d * dp %d = %d, but the world has %s; %s", l.tp, l.cp, l.pp,
    l.dp, product, ranks, advice)
end

--- The order string names every axis that has ranks, once.
local function order(facts, report)
  local parsed, message = layout.parse_order(facts.layout.order, facts.layout)
  if parsed then return end
  report("layout.order", "%q: %s; try \"tp-cp-dp-pp\"", facts.layout.order, message)
end

--- What this version has no operators for.
local function available(facts, report)
  local l = facts.layout
  local missing = "not available in this version"
  if l.cp > 1 then report("layout.cp", "cp %d is %s; use dp, tp or pp", l.cp, missing) end
  if l.zero > 0 then
    report("layout.zero", "zero %d is %s; leave it out, and use tp or pp to save memory", l.zero,
      missing)
  end
  for _, key in ipairs { "cp_map", "cp_balance" } do
    if l[key] then report("layout." .. key, "it needs cp above 1, which is %s", missing) end
  end
end

--- R5: each rank has whole heads.
local function heads(facts, report)
  local tp = facts.layout.tp
  for _, one in ipairs(facts.model.attentions) do
    if one.heads % tp ~= 0 then
      local list = fit.divisors(one.heads)
      report("layout.tp", "tp %d does not divide heads %d (%s); allowed: %s%s", tp, one.heads,
        one.site, fit.list(list), try_tp(facts, list))
    end
  end
end

--- R6: key and value heads are divided, or whole ranks share one.
local function kv_heads(facts, report, note)
  local tp = facts.layout.tp
  for _, one in ipairs(facts.model.attentions) do
    local kv = one.kv_heads
    if kv == one.heads then goto continue end -- the rule of the heads says it all
    if kv % tp ~= 0 and tp % kv ~= 0 then
      local list = fit.divisors(kv)
      report("layout.tp",
        "tp %d does not divide kv_heads %d (%s); allowed: %s (or a multiple of %d)%s",
        tp, kv, one.site, fit.list(list), kv, try_tp(facts, list))
    elseif tp > kv and one.heads % tp == 0 then
      note("kv heads: each of the %d is held by %d tp ranks (%s)", kv, tp // kv, one.site)
    end
    ::continue::
  end
end

--- R7: the feed-forward width is divided.
local function hidden(facts, report)
  local tp = facts.layout.tp
  for _, one in ipairs(facts.model.hiddens) do
    if one.hidden % tp ~= 0 then
      local below, list = one.hidden // tp * tp, fit.divisors(one.hidden)
      report("layout.tp", "tp %d does not divide hidden %d (%s); allowed: %s, or hidden = %s%d%s",
        tp, one.hidden, one.site, fit.list(list), below > 0 and below .. " or " or "", below + tp,
        try_tp(facts, list))
    end
  end
end

--- R8: the vocabulary is padded inside, at every tp alike.
local function vocabulary(facts, _, note)
  local unit, vocab = 16 * facts.policy.leaves.tp, facts.model.vocab
  if not vocab or vocab % unit == 0 then return end
  note("vocab %d is padded to %d inside (a multiple of 16 x leaves.tp)", vocab,
    round_up(vocab, unit))
end

local length_max = 1 << 21 -- rope_table's positions

--- R9: tokens of a sample over the ranks of sequence parallelism, and in the position table.
local function length(facts, report, note)
  local n, tp, positions = facts.batch.length, facts.layout.tp, facts.model.positions
  if n and n > length_max then
    report("batch.length", "length %d is above %d, the longest sample whose positions are exact; "
      .. "try length = %d", n, length_max, positions or length_max)
    return
  end
  if n and facts.layout.sequence_parallel and n % tp ~= 0 then
    report("batch.length",
      "length %d is not a multiple of tp %d%s, which sequence_parallel needs; try length = %d, "
      .. "or layout.sequence_parallel = false", n, tp, at(facts, "layout.tp"), round_up(n, tp))
  end
  local trained = facts.model.trained
  if n and trained and n > trained then
    note("length %d is beyond the %d positions that this model was trained for", n, trained)
  end
  if n and positions and n > positions then
    report("batch.length", "length %d is beyond positions %d of nn.decoder%s; try length = %d", n,
      positions, at(facts, "model.positions"), positions)
  end
end

--- R13: interleaved has several pieces of the model on a rank, the other named schedules one; a
--- schedule of the user's is checked as a whole when the pipeline is planned.
local function schedule(facts, report)
  local l = facts.layout
  if type(l.schedule) == "function" then return end
  if l.schedule ~= "interleaved" then
    if l.virtual_stages == 1 then return end
    report("layout.virtual_stages",
      "virtual_stages %d needs schedule = \"interleaved\"; here it is %q%s", l.virtual_stages,
      l.schedule, at(facts, "layout.schedule"))
  elseif l.pp < 2 then
    report("layout.schedule", "\"interleaved\" needs pp 2 or more, but pp is %d%s; try \"1f1b\"",
      l.pp, at(facts, "layout.pp"))
  elseif l.virtual_stages < 2 then
    report("layout.schedule", "\"interleaved\" needs virtual_stages 2 or more, but it is %d%s; "
      .. "try virtual_stages = 2", l.virtual_stages, at(facts, "layout.virtual_stages"))
  end
end

--- "; try { 3, 3, 2 }": layers spread evenly, the last stages smaller because the head is there.
local function try_stages(layers, pieces)
  if pieces > layers then return "" end
  local list = {}
  for i = 1, pieces do list[i] = layers // pieces + (i <= layers % pieces and 1 or 0) end
  return "; try { " .. table.concat(list, ", ") .. " }"
end

--- R11: pipeline stages cover every layer once, and none is empty.
local function stages(facts, report)
  local l, layers = facts.layout, facts.model.layers
  local pieces = l.pp * l.virtual_stages
  if not layers then return end
  if pieces > layers then
    report("layout.pp",
      "pp %d * virtual_stages %d = %d stages, but the model has %d layers%s; try pp = %d", l.pp,
      l.virtual_stages, pieces, layers, at(facts, "model.layers"),
      math.max(1, layers // l.virtual_stages))
  end
  if not l.stages then return end
  local sum = 0
  for _, count in ipairs(l.stages) do sum = sum + count end
  if #l.stages ~= pieces then
    report("layout.stages", "%d entries for %d stages (pp %d * virtual_stages %d)%s", #l.stages,
      pieces, l.pp, l.virtual_stages, try_stages(layers, pieces))
  elseif sum ~= layers then
    report("layout.stages", "the entries add up to %d, but the model has %d layers%s%s", sum,
      layers, at(facts, "model.layers"), try_stages(layers, pieces))
  end
end

--- The divisors of `n` next to `wanted`, as "2 or 4".
local function around(n, wanted)
  local below, above
  for _, divisor in ipairs(fit.divisors(n)) do
    if divisor < wanted then below = divisor end
    if divisor > wanted then above = above or divisor end
  end
  return below .. (above and " or " .. above or "")
end

--- R12: samples over data parallel ranks, and over micro-batches.
local function samples(facts, report, note)
  local l, total, micro = facts.layout, facts.batch.samples, facts.batch.micro
  if not total then return end
  if total % l.dp ~= 0 then
    local list = fit.divisors(total)
    local best = fit.nearest(l.dp, list, function(n) return divides(n, facts.policy.leaves.dp) end)
    report("layout.dp", "dp %d does not divide batch.samples %d%s; allowed: %s; try dp = %d", l.dp,
      total, at(facts, "batch.samples"), fit.list(list), best)
    return
  end
  local own = total // l.dp
  if micro and own % micro ~= 0 then
    report("batch.micro", "micro %d does not divide %d, the samples of a rank%s; try micro = %s",
      micro, own, at(facts, "batch.samples"), around(own, micro))
  elseif micro and l.schedule == "interleaved" and own // micro % l.pp ~= 0 then
    note("interleaved: %d micro-batches are no multiple of pp %d, so the bubble is larger",
      own // micro, l.pp)
  end
end

--- R12: segments of a micro-batch begin at i32 indices of its tokens.
local function tokens(facts, report)
  local n, total, dp = facts.batch.length, facts.batch.samples, facts.layout.dp
  local micro = facts.batch.micro or total and total // dp
  if not n or n > length_max or not micro or micro * n < 1 << 31 then return end
  report("batch.micro", "micro %d makes micro-batches of %d tokens with batch.length %d, above %d; "
    .. "try micro = %d", micro, micro * n, n, (1 << 31) - 1, ((1 << 31) - 1) // n)
end

--- A program lists every instruction of a step: what it would list has a bound, far above what is
--- useful, so that a number with too many digits is told and not planned for hours.
local function listed(facts, report)
  local l, total, micro = facts.layout, facts.batch.samples, facts.batch.micro
  local layers, most = facts.model.layers, 1 << 20
  if not layers or not total or not micro or total % (l.dp * micro) ~= 0 then return end
  local micros = total // (l.dp * micro)
  if micros * layers <= most then return end
  report("batch.micro", "micro %d makes %d micro-batches of a rank's %d samples; with %d layers a "
    .. "step can have %d; try a larger micro, or fewer samples", micro, micros, total // l.dp,
    layers, most // layers)
end

--- The same for the held-out set.
local function eval(facts, report)
  local count, dp, total = facts.eval and facts.eval.samples, facts.layout.dp, facts.batch.samples
  if not count or not total or total % dp ~= 0 then return end
  local micro = facts.batch.micro or total // dp
  if count % (dp * micro) ~= 0 then
    report("eval.samples",
      "samples %d is not a multiple of dp %d * micro %d = %d; try samples = %d",
      count, dp, micro, dp * micro, round_up(count, dp * micro))
  end
end

--- R18: ranks own whole leaves.
local function leaves(facts, report)
  local good = {
    tp = function(n) return model_fits(facts, n) end,
    dp = function(n) return divides(n, facts.batch.samples) end,
  }
  for _, axis in ipairs { "tp", "dp" } do
    local n, count = facts.layout[axis], facts.policy.leaves[axis]
    if count % n ~= 0 then
      local list = fit.divisors(count)
      local best = fit.nearest(n, list, good[axis])
      local grow = n & (n - 1) == 0 and n > count and good[axis](n)
      report("layout." .. axis, "%s %d does not divide leaves.%s %d%s; allowed: %s; try %s = %d%s",
        axis, n, axis, count, at(facts, "policy.leaves." .. axis), fit.list(list), axis, best,
        grow and ("; policy.leaves.%s=%d fits (another key)"):format(axis, n) or "")
    end
  end
end

local list = {
  world, order, available, heads, kv_heads, hidden, vocabulary, length, schedule, stages, samples,
  tokens, listed, eval, leaves, moe.check,
}

--- Checks all rules.
function rules.check(facts, report, note)
  for _, rule in ipairs(list) do rule(facts, report, note) end
end

return rules
