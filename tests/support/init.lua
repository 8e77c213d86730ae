--- What specs share: assertions on bits, poison, values that repeat, running the program.
---
---     local support = require "support"
---     assert.bits(expected, actual)   -- tensors; names the first element that differs
local core = require "tidelock.core"
local assert = require "luassert"
local say = require "say"

package.path = "tests/?.lua;tests/?/init.lua;" .. package.path

local support = {}

--- The program under test.
support.program = os.getenv "TIDELOCK" or "build/tidelock"

--- A folder of data that is not part of the program: below TIDELOCK_SHARED, or ../shared beside the
--- clone. nil where it is absent: the test is then pending, and says so.
function support.shared(path)
  local full = (os.getenv "TIDELOCK_SHARED" or "../shared") .. "/" .. path
  return core.files.exists(full) and full or nil
end

local function first_difference(expected, actual)
  local same, element = core.equal(expected, actual)
  if same then return nil end
  if not element then return ("%s against %s"):format(expected, actual) end
  return ("element %d of %s: expected bits %x, got %x"):format(element, actual,
    expected:bits()[element], actual:bits()[element])
end

local function bits(state, arguments)
  local difference = first_difference(arguments[1], arguments[2])
  state.failure_message = difference
  return difference == nil
end

say:set("assertion.bits.positive", "bits differ: %s %s")
say:set("assertion.bits.negative", "bits are the same: %s %s")
assert:register("assertion", "bits", bits, "assertion.bits.positive", "assertion.bits.negative")

--- A tensor whose every byte is 0xFF: NaN in f32 and bf16, -1 in integers.
function support.poison(dtype, shape)
  local t = core.tensor(dtype, shape)
  local all = ({ f32 = 0xFFFFFFFF, bf16 = 0xFFFF, i32 = 0xFFFFFFFF, i64 = -1, u8 = 0xFF })[dtype]
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  t:close()
  local values = {}
  for i = 1, count do values[i] = all end
  return core.tensor_from_bits(dtype, shape, values)
end

--- Value `index` (from 0) of the fill F(`stream`): a number in [-1, 1) that is exact in f32.
function support.fill_value(stream, index)
  local h = (index + stream * 0x9E3779B9) & 0xFFFFFFFF
  h = h ~ h >> 16
  h = h * 0x7FEB352D & 0xFFFFFFFF
  h = h ~ h >> 15
  h = h * 0x846CA68B & 0xFFFFFFFF
  h = h ~ h >> 16
  return (h >> 8) * 2.0 ^ -23 - 1
end

--- A tensor filled with F(stream), rounded to its dtype.
function support.filled(dtype, shape, stream)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local values = {}
  for i = 1, count do values[i] = support.fill_value(stream, i - 1) end
  return core.tensor(dtype, shape, values)
end

--- In front of a command that loads libraries of others, such as MPI's: under the address sanitizer
--- what they do not free is no failure of ours.
support.with_others = core.build().sanitizer == "address" and "ASAN_OPTIONS=detect_leaks=0 " or ""

--- Runs the program, or another one of tests/support, with `arguments` (shell text); returns stdout
--- and stderr as one text, and the exit status.
---@param before string? # "VARIABLE=value "
function support.run(arguments, name, before)
  local program = (before or "") .. support.program
  if name then program = program:gsub("[^/]*$", "support/" .. name) end
  local pipe = assert(io.popen(program .. " " .. arguments .. " 2>&1"))
  local text = pipe:read "a"
  local _, _, status = pipe:close()
  return text, status
end

--- The files below `folders` whose names match `pattern`, sorted.
function support.files(folders, pattern)
  local list = {}
  local pipe = assert(io.popen("find " .. folders .. " -type f 2>/dev/null | LC_ALL=C sort"))
  for path in pipe:lines() do
    if path:find(pattern) then list[#list + 1] = path end
  end
  pipe:close()
  return list
end

--- Runs a Lua script, which prints so many lines, once for each level of processors; what it prints
--- must be the same.
---@param script string
---@param lines integer
function support.same_at_levels(script, lines)
  local path, first = os.tmpname(), nil
  local file = assert(io.open(path, "w"))
  file:write(script)
  file:close()
  for _, level in ipairs { "avx512", "avx2", "portable" } do
    local pipe = assert(io.popen(("TL_SIMD=%s %s lua %s 2>/dev/null"):format(level, support.program,
      path)))
    local text = pipe:read "a"
    pipe:close()
    first = first or text
    assert.equal(lines, select(2, text:gsub("\n", "\n")), level)
    assert.equal(first, text, level)
  end
  os.remove(path)
end

return support
