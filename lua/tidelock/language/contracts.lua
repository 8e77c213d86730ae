--- contracts.lua - versions of the operators' contracts: what a result is, to the bit.
---
---     version   1     2       3              the number in keys, checkpoints, run folders
---     changes         {2, "swiglu", ..}  {3, "rope", ..}
---
--- Whoever changes the result of an operator that is there adds a row below, in the commit that
--- changes it, and the same row to docs/numerics.md. The version is that of the last row; so keys
--- move, and nothing goes on from an older checkpoint in silence: the refusal names the operators
--- that stand between both versions. An operator that is new changes nobody's bits, and has no row.
local contracts = {}

--- { version, operator, what it gives now }, versions ascending from 2.
---@type { [1]: integer, [2]: string, [3]: string }[]
contracts.changes = {}

--- The version of this program.
---@return integer
function contracts.version()
  local last = contracts.changes[#contracts.changes]
  return last and last[1] or 1
end

--- What lies between two versions: "swiglu (version 2: ..), rope (version 3: ..)".
---@param from integer
---@param to integer
---@return string
function contracts.between(from, to)
  local words = {}
  for _, change in ipairs(contracts.changes) do
    if change[1] > math.min(from, to) and change[1] <= math.max(from, to) then
      words[#words + 1] = ("%s (version %d: %s)"):format(change[2], change[1], change[3])
    end
  end
  return #words > 0 and table.concat(words, ", ") or "operators that this program does not know"
end

return contracts
