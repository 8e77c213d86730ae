--- What an ELF file needs to run: shared libraries and the newest version of the C library.
--
--     elf.needs(bytes) -> { libraries = { "libm.so.6", "libc.so.6" }, glibc = "2.34" }
--
-- Read from the dynamic section and its strings; a file without one needs nothing. Source: System V
-- ABI. 64-bit little-endian files only, which are all that Tidelock is built as.

local elf = {}

local SHT_DYNAMIC, DT_NEEDED = 6, 1

--- Section i (from 0): type, offset, size, link.
local function section(bytes, table_at, i)
  local at = table_at + 64 * i + 1
  local kind = ("<I4"):unpack(bytes, at + 4)
  local offset, size, link = ("<I8I8I4"):unpack(bytes, at + 24)
  return kind, offset, size, link
end

--- The larger of two versions "2.34".
local function newer(a, b)
  local a1, a2 = a:match "(%d+)%.(%d+)"
  local b1, b2 = b:match "(%d+)%.(%d+)"
  a1, a2, b1, b2 = tonumber(a1), tonumber(a2), tonumber(b1), tonumber(b2)
  return (a1 > b1 or a1 == b1 and a2 > b2) and a or b
end

---@param bytes string # the whole file
---@return { libraries: string[], glibc: string }
function elf.needs(bytes)
  if bytes:sub(1, 6) ~= "\127ELF\2\1" then error("it is no 64-bit little-endian ELF file", 0) end
  local table_at = ("<I8"):unpack(bytes, 0x28 + 1)
  local count = ("<I2"):unpack(bytes, 0x3c + 1)
  local found = { libraries = {}, glibc = "0.0" }
  for i = 0, count - 1 do
    local kind, offset, size, link = section(bytes, table_at, i)
    if kind == SHT_DYNAMIC then
      local _, strings, strings_size = section(bytes, table_at, link)
      for at = offset + 1, offset + size, 16 do
        local tag, value = ("<i8I8"):unpack(bytes, at)
        if tag == DT_NEEDED then
          table.insert(found.libraries, (("z"):unpack(bytes, strings + value + 1)))
        end
      end
      for version in bytes:sub(strings + 1, strings + strings_size):gmatch "%zGLIBC_(%d+%.%d+)" do
        found.glibc = newer(found.glibc, version)
      end
    end
  end
  return found
end

return elf
