--- The rules that a layout must keep for mixtures of experts. What is said of rules.lua holds here.
local experts = require "tidelock.plan.experts"
local fit = require "tidelock.text.fit"

local rules = {}

--- Sizes of ep that suit the layout: multiples of tp that divide tp * dp.
local function fitting(l)
  local list = {}
  for _, n in ipairs(fit.divisors(l.tp * l.dp)) do
    if n % l.tp == 0 then list[#list + 1] = n end
  end
  return list
end

--- Keys that mean nothing without experts.
local function needs_experts(facts, report)
  local l = facts.layout
  if #facts.model.moes > 0 then return end
  if l.ep > 1 then
    report("layout.ep", "ep %d, but the model has no experts; leave it out, or use nn.moe", l.ep)
  end
end

--- R2, R27: ep folds over tp x dp, and an owner sees whole samples.
local function grid(facts, report)
  local l = facts.layout
  if #facts.model.moes == 0 then return true end
  local list = fitting(l)
  local allowed = fit.list(list)
  if l.tp > 1 and not l.sequence_parallel then
    report("layout.sequence_parallel", "experts with tp %d need it: each rank routes its own run "
      .. "of every sample; leave it out", l.tp)
  end
  if (l.tp * l.dp) % l.ep ~= 0 then
    report("layout.ep", "ep %d does not divide tp %d * dp %d = %d; allowed: %s, or a larger "
      .. "dp", l.ep, l.tp, l.dp, l.tp * l.dp, allowed)
    return false
  elseif l.ep % l.tp ~= 0 then
    report("layout.ep", "ep %d is not a multiple of tp %d, whose ranks hold runs of one sample; "
      .. "allowed: %s", l.ep, l.tp, allowed)
    return false
  end
  return true
end

--- R3: every rank has as many experts, or a list says who has which.
local function placement(facts, report, one)
  local l, count = facts.layout, one.experts
  if type(l.experts) == "table" then
    if #l.experts ~= count then
      report("layout.experts", "a list of %d ranks for %d experts (%s)", #l.experts, count,
        one.site)
      return false
    end
    for e, rank in ipairs(l.experts) do
      if rank >= l.ep then
        report("layout.experts", "expert %d is on rank %d of ep; there are %d", e - 1, rank, l.ep)
        return false
      end
    end
    return true
  end
  if count % l.ep == 0 then return true end
  local list = {}
  for _, n in ipairs(fitting(l)) do
    if count % n == 0 then list[#list + 1] = n end
  end
  local allowed = #list > 0 and fit.list(list) or ("another tp than %d"):format(l.tp)
  report("layout.ep", "ep %d does not divide experts %d (%s); allowed: %s, or layout.experts = a "
    .. "list of ranks by expert", l.ep, count, one.site, allowed)
  return false
end

--- Waves cut the experts of a rank evenly.
local function waves(facts, report, one)
  local l, w = facts.layout, facts.blocks.moe.waves
  local most = experts.most(experts.owners(one.experts, l.ep, l.experts), l.ep)
  if most % w == 0 then return end
  report("blocks.moe.waves", "waves %d does not divide %d, the experts of a rank (experts %d, %s, "
    .. "ep %d); allowed: %s", w, most, one.experts, one.site, l.ep, fit.list(fit.divisors(most)))
end

--- Islands cut the group evenly.
local function islands(facts, report)
  local l = facts.layout
  if l.island and (l.ep % l.island ~= 0) then
    report("layout.island", "island %d does not divide ep %d; allowed: %s", l.island, l.ep,
      fit.list(fit.divisors(l.ep)))
  end
  if l.all_to_all == "hierarchical" and not l.island then
    report("layout.all_to_all", "\"hierarchical\" needs layout.island, the ranks with fast links "
      .. "between them; allowed: %s", fit.list(fit.divisors(l.ep)))
  end
end

--- A threshold of link speeds decides where they are known, and where nothing else has.
local function threshold(facts, report)
  local l = facts.layout
  if not l.all_to_all_threshold then return end
  if l.all_to_all ~= "auto" then
    report("layout.all_to_all_threshold", "it decides for \"auto\" alone, and layout.all_to_all "
      .. "is %q; leave one of them out", l.all_to_all)
  elseif not facts.links then
    report("layout.all_to_all_threshold", "link speeds are not known here; give them to plan or "
      .. "run by --cluster FILE, or say layout.all_to_all")
  end
end

--- Checks all rules of experts.
function rules.check(facts, report)
  needs_experts(facts, report)
  islands(facts, report)
  threshold(facts, report)
  if facts.serving then return end -- every rank has all experts, and all rows
  if not grid(facts, report) then return end
  for _, one in ipairs(facts.model.moes) do
    if placement(facts, report, one) then waves(facts, report, one) end
  end
end

return rules
