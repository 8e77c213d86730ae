--- Functions of numbers with the same bits on every machine.
--
-- exp, log, cos and sin of a C library differ in the last bit between versions and processors, and
-- a recipe's numbers are inside the promise. These are made of IEEE f64 additions, multiplications
-- and divisions alone, one rounding each, in the order that is written here; Lua never contracts
-- them.
--
--     exp(x)    x = k ln 2 + r, |r| <= ln 2 / 2; a rational approximation in r^2; times 2^k
--     log(x)    x = 2^k (1 + f), sqrt(1/2) < 1 + f < sqrt 2; an odd series in f / (2 + f)
--     cos, sin  x = n pi/2 + r, |r| <= pi/4, pi/2 in three pieces; a polynomial in r^2
--
-- Errors are below 1 unit in the last place of f64, far below the f32 that values end in.
local numbers = {}

local LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10

--- 2^k for -1022 <= k <= 1023, exact.
local function power_of_two(k) return (
  string.unpack("<d", string.pack("<i8", (k + 1023) << 52))
) end

--- `x` rounded once to f32 (nearest, ties to even), as a Lua number.
function numbers.f32(x) return (string.unpack("<f", string.pack("<f", x))) end

function numbers.exp(x)
  if x ~= x or x == math.huge then return x end
  if x > 709.7 then return math.huge end
  if x < -708 then return 0.0 end
  local k = math.floor(1.44269504088896338700 * x + 0.5)
  local high, low = x - k * LN2_HIGH, k * LN2_LOW
  local r = high - low
  local t = r * r
  local p = 6.61375632143793436117e-05 + t * (
    -1.65339022054652515390e-06 + t * 4.13813679705723846039e-08
  )
  local c = r - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * p))
  local y = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
  if k == 1024 then return y * 2.0 * power_of_two(1023) end
  return y * power_of_two(k)
end

function numbers.log(x, base)
  if base then return numbers.log(x) / numbers.log(base) end
  if x ~= x or x < 0 then return 0.0 / 0.0 end
  if x == 0 then return -math.huge end
  if x == math.huge then return x end
  local k = 0
  if x < 2.2250738585072014e-308 then -- below the smallest normal number: scale by 2^54, exact
    x, k = x * power_of_two(54), -54
  end
  local bits = string.unpack("<i8", string.pack("<d", x))
  k = k + (bits >> 52) - 1023
  local m = string.unpack("<d", string.pack("<i8", (bits & 0xfffffffffffff) | (1023 << 52)))
  if m > 1.4142135623730951 then
    m, k = m * 0.5, k + 1
  end
  local f = m - 1.0
  local s = f / (2.0 + f)
  local z = s * s
  local w = z * z
  local even = w * (
    3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01)
  )
  local odd = 1.818357216161805012e-01 + w * 1.479819860511658591e-01
  odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * odd))
  local half = 0.5 * f * f
  return k * LN2_HIGH - ((half - (s * (half + (odd + even)) + k * LN2_LOW)) - f)
end

local function sine(x, tail)
  local z = x * x
  local r = 2.75573137070700676789e-06 + z * (
    -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10
  )
  r = 8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * r)
  local v = z * x
  return x - ((z * (0.5 * tail - v * r) - tail) - v * -1.66666666666666324348e-01)
end

local function cosine(x, tail)
  local z = x * x
  local r = 2.08757232129817482790e-09 + z * -1.13596475577881948265e-11
  r = z * (
    -1.38888888888741095749e-03 + z * (
      2.48015872894767294178e-05 + z * (-2.75573143513906633035e-07 + z * r)
    )
  )
  r = z * (4.16666666666666019037e-02 + r)
  local half = 0.5 * z
  local w = 1.0 - half
  return w + (((1.0 - w) - half) + (z * r - x * tail))
end

--- x = n pi/2 + r: n modulo 4, r, and the part of r that f64 cannot hold.
local function reduce(x)
  if math.abs(x) > 1000000 then error("cos and sin take angles up to 1,000,000, got " .. x, 0) end
  local n = math.floor(x * 6.36619772367581382433e-01 + 0.5)
  local t = x - n * 1.57079632673412561417e+00
  local w = n * 6.07710050630396597660e-11
  local r = t - w
  w = n * 2.02226624879595063154e-21 - ((t - r) - w)
  local y = r - w
  return n % 4, y, (r - y) - w
end

function numbers.cos(x)
  local n, r, tail = reduce(x)
  if n == 0 then return cosine(r, tail) end
  if n == 1 then return -sine(r, tail) end
  if n == 2 then return -cosine(r, tail) end
  return sine(r, tail)
end

function numbers.sin(x)
  local n, r, tail = reduce(x)
  if n == 0 then return sine(r, tail) end
  if n == 1 then return cosine(r, tail) end
  if n == 2 then return -sine(r, tail) end
  return -cosine(r, tail)
end

--- x^y: for a whole y by squaring, highest bit of y first; else exp(y log x).
function numbers.power(x, y)
  local whole = math.tointeger(y)
  if not whole then return numbers.exp(y * numbers.log(x)) end
  local result, bit = 1.0, 1
  local count = whole < 0 and -whole or whole
  while bit <= count // 2 do bit = bit * 2 end
  while bit > 0 do
    result = result * result
    if count & bit ~= 0 then result = result * x end
    bit = bit // 2
  end
  return whole < 0 and 1.0 / result or result
end

return numbers
