--- Policies: what is promised about bits, resolved to numbers.
--
--     policy     leaves unless set     promise
--     "layout"   tp 4, dp 8, cp 1      the same bits for every tp, dp, pp and micro that fit
--     "batch"    the layout's own      the same for any batch and pp, for one choice of tp and dp
--     "fast"     the layout's own      none; on the host it runs the same kernels as "batch"
--
-- Leaves are the inputs of the trees that add across ranks: powers of two, a multiple of the axis,
-- and part of the key. They never grow by themselves.
local policy = {}

policy.leaves_max = 65536

local arithmetic_of = { f32 = "fma", bf16 = "sm_90" }

local function is_power_of_two(n) return n & (n - 1) == 0 end

--- The leaves of each axis for the checked form `given` under `layout`.
function policy.leaves(given, layout)
  local set = given.leaves or {}
  local own = given.name ~= "layout"
  return {
    tp = set.tp or (own and layout.tp or 4),
    dp = set.dp or (own and layout.dp or 8),
    cp = set.cp or (own and layout.cp or 1),
  }
end

local function check_leaves(resolved, given, report)
  for _, axis in ipairs { "tp", "dp", "cp" } do
    local count, set = resolved.leaves[axis], given.leaves and given.leaves[axis]
    if not is_power_of_two(count) then
      local below = 1
      while below * 2 < count do below = below * 2 end
      report(set and "policy.leaves." .. axis or "layout." .. axis,
        "%s %d is not a power of two, and trees add pairs%s; try %s = %d or %d", axis, count,
        set and "" or " (its leaves are the layout's own)", axis, below, below * 2)
    elseif count > policy.leaves_max then
      report("policy.leaves." .. axis, "%s %d is above %d, the most leaves that a tree has", axis,
        count, policy.leaves_max)
    elseif axis == "cp" and count > 1 then
      report("policy.leaves.cp", "leaves.cp %d is not available in this version; leave it out",
        count)
    end
  end
end

local function check_arithmetic(resolved, dtype, report)
  local name, own = resolved.arithmetic, arithmetic_of[dtype]
  if name == "sm_80" then
    report("policy.arithmetic",
      "\"sm_80\" adds in other steps than \"sm_90\", and no device has them "
      .. "in this version; try arithmetic = %q", own)
  elseif name ~= own then
    report("policy.arithmetic", "%q does not go with dtype %q; try arithmetic = %q", name, dtype,
      own)
  end
end

--- The policy of a recipe: { name, leaves = { tp, dp, cp }, arithmetic, seed }. `given` is the
--- checked form; `layout` has its defaults.
function policy.resolve(given, layout, dtype, report)
  local resolved = {
    name = given.name,
    leaves = policy.leaves(given, layout),
    arithmetic = given.arithmetic or arithmetic_of[dtype],
    seed = given.seed,
  }
  check_leaves(resolved, given, report)
  check_arithmetic(resolved, dtype, report)
  return resolved
end

return policy
