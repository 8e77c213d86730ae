--- The rules of a layout, each with the numbers that would fit.
--
-- rules.check walks the list at the end of this file; every rule reports what breaks it and none stops
-- the others. A rule reads the facts
--
--     layout, batch, policy, train, eval     checked sections
--     model    { layers, positions, attentions, hiddens }, what stage check found in the modules:
--              attentions = { { heads, kv_heads, site } .. }, hiddens = { { hidden, site } .. }
--     world    ranks that are there, or nil when ranks are threads and their number is the product
--     site     function(path) -> place
--
-- and calls report(path, text) or note(text). Missing numbers (nil: wrong in themselves, and reported)
-- break no rule.
local fit = require "tidelock.fit"
local layout = require "tidelock.layout"

local rules = {}

local function at(facts, path) return " (" .. tostring(facts.site(path)) .. ")" end

local function divides(n, value) return value == nil or value % n == 0 end

--- Whether `n` tensor parallel ranks suit the whole model and the policy.
local function tp_fits(facts, n)
  local good = divides(n, facts.policy.leaves.tp)
  for _, one in ipairs(facts.model.attentions) do
    good = good and divides(n, one.heads) and (one.kv_heads % n == 0 or n % one.kv_heads == 0)
  end
  for _, one in ipairs(facts.model.hiddens) do good = good and divides(n, one.hidden) end
  return good
end

local function try_tp(facts, candidates)
  local best = fit.nearest(facts.layout.tp, candidates, function(n) return tp_fits(facts, n) end)
  return best and ("; try tp = %d"):format(best) or ""
end


-- R1: the product of the axes is the number of ranks
local function world(facts, report)
  local l = facts.layout
  local product = l.tp * l.cp * l.pp * l.dp
  if not facts.world or product == facts.world then return end
  local fitting, first = {}, nil
  for _, axis in ipairs { "dp", "tp", "pp" } do
    local others = product // l[axis]
    if facts.world % others == 0 then
      fitting[#fitting + 1] = ("%s = %d"):format(axis, facts.world // others)
      first = first or fitting[1]
    end
  end
  report(
    "layout",
    ("tp %d * cp %d * pp %d * dp %d = %d, but the world has %d rank%s; %s"):format(
      l.tp,
      l.cp,
      l.pp,
      l.dp,
      product,
      facts.world,
      facts.world == 1 and "" or "s",
      first and "allowed: " .. table.concat(fitting, " or ") .. "; try " .. first
        or "no single axis makes up for it"
    )
  )
end

-- Order string
local function order(facts, report)
  local parsed, message = layout.parse_order(facts.layout.order, facts.layout)
  if not parsed then report("layout.order", ("%q: %s; try \"tp-cp-dp-pp\""):format(facts.layout.order, message)) end
end

-- What this version has no operators for
local function available(facts, report)
  local l = facts.layout
  local instead = "is not available in this version; use dp, tp or pp"
  if l.cp > 1 then report("layout.cp", ("cp %d %s"):format(l.cp, instead)) end
  if l.ep > 1 then report("layout.ep", ("ep %d %s"):format(l.ep, instead)) end
  if l.zero > 0 then
    report("layout.zero", ("zero %d is not available in this version; leave it out, and use tp or pp for memory"):format(l.zero))
  end
  for _, key in ipairs { "cp_map", "cp_balance" } do
    if l[key] then report("layout." .. key, key .. " needs cp above 1, which is not available in this version") end
  end
  for _, key in ipairs { "all_to_all", "all_to_all_threshold" } do
    if l[key] then report("layout." .. key, key .. " needs ep above 1, which is not available in this version") end
  end
end

-- R5: heads
local function heads(facts, report)
  local tp = facts.layout.tp
  for _, one in ipairs(facts.model.attentions) do
    if one.heads % tp ~= 0 then
      local list = fit.divisors(one.heads)
      report(
        "layout.tp",
        ("tp %d does not divide heads %d (%s); allowed: %s%s"):format(tp, one.heads, one.site, fit.list(list), try_tp(facts, list))
      )
    end
  end
end

-- R6: key and value heads, which ranks may share
local function kv_heads(facts, report, note)
  local tp = facts.layout.tp
  for _, one in ipairs(facts.model.attentions) do
    local kv = one.kv_heads
    if kv % tp ~= 0 and tp % kv ~= 0 then
      local list = fit.divisors(kv)
      report(
        "layout.tp",
        ("tp %d does not divide kv_heads %d (%s); allowed: %s (or a multiple of %d)%s"):format(
          tp,
          kv,
          one.site,
          fit.list(list),
          kv,
          try_tp(facts, list)
        )
      )
    elseif tp > kv and one.heads % tp == 0 then
      note(("kv heads: each of the %d is held by %d tp ranks (%s)"):format(kv, tp // kv, one.site))
    end
  end
end

-- R7: width of the feed-forward part
local function hidden(facts, report)
  local tp = facts.layout.tp
  for _, one in ipairs(facts.model.hiddens) do
    if one.hidden % tp ~= 0 then
      local below = one.hidden // tp * tp
      local list = fit.divisors(one.hidden)
      report(
        "layout.tp",
        ("tp %d does not divide hidden %d (%s); allowed: %s, or hidden = %s%d%s"):format(
          tp,
          one.hidden,
          one.site,
          fit.list(list),
          below > 0 and below .. " or " or "",
          below + tp,
          try_tp(facts, list)
        )
      )
    end
  end
end

-- R8: the padded vocabulary
local function vocabulary(facts, _, note)
  local unit, vocab = 16 * facts.policy.leaves.tp, facts.model.vocab
  if vocab and vocab % unit ~= 0 then
    note(("vocab %d is padded to %d inside (16 x leaves.tp)"):format(vocab, (vocab + unit - 1) // unit * unit))
  end
end

-- R9: tokens of a sample over the ranks of sequence parallelism, and in the position table
local function length(facts, report)
  local n, tp, positions = facts.batch.length, facts.layout.tp, facts.model.positions
  if n and facts.layout.sequence_parallel and n % tp ~= 0 then
    report(
      "batch.length",
      ("length %d is not a multiple of tp %d%s, which sequence_parallel needs; "):format(n, tp, at(facts, "layout.tp"))
        .. ("try length = %d, or layout.sequence_parallel = false"):format((n + tp - 1) // tp * tp)
    )
  end
  if n and positions and n > positions then
    report(
      "batch.length",
      ("length %d is beyond positions %d of nn.decoder%s; try length = %d"):format(n, positions, at(facts, "model.positions"), positions)
    )
  end
end

-- R11, R13: layers over pipeline stages
local function stages(facts, report)
  local l, layers = facts.layout, facts.model.layers
  local pieces = l.pp * l.virtual_stages
  if l.schedule == "interleaved" and l.pp < 2 then
    report("layout.schedule", ("\"interleaved\" needs pp of 2 or more, pp is %d; try \"1f1b\", or pp = 2"):format(l.pp))
  end
  if l.schedule == "interleaved" and l.pp >= 2 and l.virtual_stages < 2 then
    report("layout.virtual_stages", "\"interleaved\" needs 2 virtual_stages or more; try virtual_stages = 2")
  end
  if l.schedule ~= "interleaved" and l.virtual_stages > 1 then
    report("layout.virtual_stages", ("%d virtual_stages need schedule = \"interleaved\"; "):format(l.virtual_stages)
      .. ("here it is %q%s"):format(l.schedule, at(facts, "layout.schedule")))
  end
  if layers and pieces > layers then
    local most = math.max(1, layers // l.virtual_stages)
    report("layout.pp", ("pp %d * virtual_stages %d = %d stages, but the model has %d layers%s; try pp = %d"):format(
      l.pp, l.virtual_stages, pieces, layers, at(facts, "model.layers"), most))
  end
  if not l.stages or not layers then return end
  local sum = 0
  for _, count in ipairs(l.stages) do sum = sum + count end
  if #l.stages ~= pieces then
    report("layout.stages", ("%d entries for %d stages (pp %d * virtual_stages %d)"):format(#l.stages, pieces, l.pp, l.virtual_stages)
      .. rules.balanced(layers, pieces))
  elseif sum ~= layers then
    report("layout.stages", ("the entries add up to %d, the model has %d layers%s"):format(sum, layers, at(facts, "model.layers"))
      .. rules.balanced(layers, pieces))
  end
end

--- "; try { 3, 3, 2 }": layers spread evenly, the later stages smaller because the head is there.
function rules.balanced(layers, pieces)
  if pieces > layers then return "" end
  local list = {}
  for i = 1, pieces do list[i] = layers // pieces + (i <= layers % pieces and 1 or 0) end
  return "; try { " .. table.concat(list, ", ") .. " }"
end

-- R12: samples over data parallel ranks and micro-batches
local function samples(facts, report, note)
  local dp, pp, total, micro = facts.layout.dp, facts.layout.pp, facts.batch.samples, facts.batch.micro
  if not total then return end
  if total % dp ~= 0 then
    local list = fit.divisors(total)
    local best = fit.nearest(dp, list, function(n) return divides(n, facts.policy.leaves.dp) end)
    report("layout.dp", ("dp %d does not divide batch.samples %d%s; allowed: %s; try dp = %d"):format(
      dp, total, at(facts, "batch.samples"), fit.list(list), best))
    return
  end
  local own = total // dp
  if micro and own % micro ~= 0 then
    local list, below, above = fit.divisors(own), 1, nil
    for _, n in ipairs(list) do
      if n < micro then below = n end
      if n > micro then above = above or n end
    end
    report("batch.micro", ("micro %d does not divide %d, the samples of a rank%s; try micro = %d%s"):format(
      micro, own, at(facts, "batch.samples"), below, above and " or " .. above or ""))
  elseif micro and facts.layout.schedule == "interleaved" and pp > 1 and own // micro % pp ~= 0 then
    note(("interleaved: %d micro-batches are no multiple of pp %d, so the bubble is larger"):format(own // micro, pp))
  end
end

-- The same for the held-out set
local function eval(facts, report)
  local count, dp, micro = facts.eval and facts.eval.samples, facts.layout.dp, facts.batch.micro
  local total = facts.batch.samples
  if not count or not total or total % dp ~= 0 then return end
  micro = micro or total // dp
  if count % (dp * micro) ~= 0 then
    local unit = dp * micro
    report("eval.samples", ("samples %d is not a multiple of dp %d * micro %d = %d; try samples = %d"):format(
      count, dp, micro, unit, (count + unit - 1) // unit * unit))
  end
end

-- R18: ranks own whole leaves
local function leaves(facts, report)
  for _, axis in ipairs { "tp", "dp" } do
    local n, count = facts.layout[axis], facts.policy.leaves[axis]
    if count % n ~= 0 then
      local list = fit.divisors(count)
      local good = axis == "tp" and function(one) return tp_fits(facts, one) end
        or function(one) return divides(one, facts.batch.samples) end
      local best = fit.nearest(n, list, good)
      local grown = n & (n - 1) == 0 and n > count
        and ("; policy.leaves.%s=%d fits (another key)"):format(axis, n) or ""
      report("layout." .. axis, ("%s %d does not divide leaves.%s %d%s; allowed: %s%s%s"):format(
        axis, n, axis, count, at(facts, "policy.leaves." .. axis), fit.list(list),
        best and ("; try %s = %d"):format(axis, best) or "", grown))
    end
  end
end

local list = { world, order, available, heads, kv_heads, hidden, vocabulary, length, stages, samples, eval, leaves }

--- Checks all rules.
function rules.check(facts, report, note)
  for _, rule in ipairs(list) do rule(facts, report, note) end
end


return rules
