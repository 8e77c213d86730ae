--- Numbers that fit: the text behind "allowed" and "try" in messages.
local fit = {}

--- The divisors of n, ascending.
function fit.divisors(n)
  local low, high = {}, {}
  local i = 1
  while i * i <= n do
    if n % i == 0 then
      low[#low + 1] = i
      if i * i < n then high[#high + 1] = n // i end
    end
    i = i + 1
  end
  for j = #high, 1, -1 do low[#low + 1] = high[j] end
  return low
end

--- A list of numbers as text; of a long one the first eight and the last.
function fit.list(numbers)
  if #numbers <= 10 then return table.concat(numbers, ", ") end
  return table.concat(numbers, ", ", 1, 8) .. ", .., " .. numbers[#numbers]
end

--- The number of `candidates` nearest to `value` by ratio for which good(candidate) holds; of two
--- as near the larger. Nil when there is none.
function fit.nearest(value, candidates, good)
  local best
  for _, candidate in ipairs(candidates) do
    if good(candidate) then
      -- max(a, b) / min(a, b) compared without a division
      local a, b = math.max(candidate, value), math.min(candidate, value)
      if not best or a * best[2] <= best[1] * b then best = { a, b, candidate } end
    end
  end
  return best and best[3]
end

return fit
