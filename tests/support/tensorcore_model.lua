--- A bf16 tensor core step as kernels/tensorcore.h specifies it, on bits and whole numbers only.
---
---     model.step(a, b, c) -> bits of D      a, b: lists of up to 16 bf16 bits; c: bits of an f32
---     model.chain(a, b, c) -> bits          the same for any length, in steps of 16
local model = {}

local infinity, nan, sign_bit = 0x7F800000, 0x7FFFFFFF, 0x80000000

--- Signed fraction, exponent and kind of an f32; the fraction has 23 bits after the point.
local function decode(bits)
  local field, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
  local kind = field < 255 and "finite" or fraction == 0 and "infinite" or "nan"
  if field > 0 then fraction = fraction | 0x800000 else field = 1 end
  return bits & sign_bit ~= 0 and -fraction or fraction, field - 127, kind
end

--- numerator * 2^shift, bits after the point cut off.
local function shifted(number, shift)
  local size = math.abs(number)
  size = shift >= 0 and size << shift or (shift > -63 and size >> -shift or 0)
  return number < 0 and -size or size
end

local function special(terms)
  local seen = {}
  for _, term in ipairs(terms) do
    if term.kind == "nan" then return nan end
    if term.kind == "infinite" then seen[term.negative] = true end
  end
  if seen[true] and seen[false] then return nan end
  if seen[true] then return infinity | sign_bit end
  return seen[false] and infinity or nil
end

local function product(x, y)
  local fx, ex, kx = decode(x << 16)
  local fy, ey, ky = decode(y << 16)
  local kind = "finite"
  if kx ~= "finite" or ky ~= "finite" then
    local is_nan = kx == "nan" or ky == "nan" or fx == 0 or fy == 0
    kind = is_nan and "nan" or "infinite"
  end
  -- 8 bits times 8 bits, of which 14 stand after the point
  return { number = (fx // 65536) * (fy // 65536), point = 14,
    exponent = ex + ey, kind = kind, negative = (x ~ y) & 0x8000 ~= 0 }
end

--- sum * 2^exponent cut toward zero to an f32.
local function cut(sum, exponent)
  if sum == 0 then return 0 end
  local size, top = math.abs(sum), exponent - 1
  for bit = 0, 62 do
    if size >> bit ~= 0 then top = exponent + bit end
  end
  top = math.max(top, -126)
  local fraction = shifted(size, exponent - (top - 23))
  if fraction == 0 then return 0 end
  local bits = math.min((top + 126 << 23) + fraction, infinity)
  return sum < 0 and bits | sign_bit or bits
end

function model.step(a, b, c)
  local terms, largest = {}, -133
  for k = 1, 16 do terms[k] = product(a[k] or 0, b[k] or 0) end
  local fraction, exponent, kind = decode(c)
  terms[17] = { number = fraction, point = 23, exponent = exponent, kind = kind,
    negative = c & sign_bit ~= 0 }
  local found = special(terms)
  if found then return found end
  for _, term in ipairs(terms) do
    if term.number ~= 0 then largest = math.max(largest, term.exponent) end
  end
  local sum = 0
  for _, term in ipairs(terms) do
    sum = sum + shifted(term.number, 25 - term.point + term.exponent - largest)
  end
  return cut(sum, largest - 25)
end

function model.chain(a, b, c)
  for first = 1, #a, 16 do
    c = model.step({ table.unpack(a, first, math.min(first + 15, #a)) },
      { table.unpack(b, first, math.min(first + 15, #b)) }, c)
  end
  return c
end

return model
