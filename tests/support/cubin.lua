--- Makes a cubin out of nothing: an ELF file with the sections that runtime/cubin.h reads.
---
---     cubin.make { compiler = "13.0.88", kernels = { { name = "f", text = ".." } } }
---
--- The machine code is any text: nobody runs it.
local cubin = {}

local section_bytes, head_bytes = 64, 64

--- An attribute of .nv.info with a value of two words.
local function attribute(number, symbol, value)
  return ("<BBI2I4I4"):pack(4, number, 8, symbol, value)
end

local function note(compiler)
  return ("\0"):rep(24) .. "\0ptxas\0Cuda compilation tools, release 13.0, V" .. compiler
    .. "\0Build cuda\0-arch sm_90a -m 64 \0"
end

--- The sections of a kernel; `symbol` is its number, `bank` that of its constants.
local function add_kernel(add, k, symbol, bank)
  add(".text." .. k.name, 1, k.text)
  add(".nv.info." .. k.name, 0x70000000, attribute(0x0a, bank, k.parameters or 0x2580210)
    .. ("<BBI2"):pack(3, 0x1b, 255))
  add(".nv.constant0." .. k.name, 1, k.constants or ("\0"):rep(32))
  if k.shared then add(".nv.shared." .. k.name, 8, "", k.shared) end
  return attribute(0x2f, symbol, k.registers or 8) .. attribute(0x11, symbol, k["local"] or 0)
end

--- Symbols of the kernels, from number 1, and their names.
local function symbols_of(kernels)
  local names, symbols = "\0", ("\0"):rep(24)
  for _, k in ipairs(kernels) do
    symbols = symbols .. ("<I4BBI2I8I8"):pack(#names, 0x12, 0x10, 1, 0, #k.text)
    names = names .. k.name .. "\0"
  end
  return names, symbols
end

---@param options { compiler: string, kernels: table[] }
---@return string
function cubin.make(options)
  local sections, names, body = { ("\0"):rep(section_bytes) }, "\0", ""
  local function add(name, kind, data, size, link)
    sections[#sections + 1] = ("<I4I4I8I8I8I8I4I4I8I8"):pack(#names, kind, 0, 0,
      head_bytes + #body, size or #data, link or 0, 0, 1, 0)
    names, body = names .. name .. "\0", body .. data
    return #sections - 1
  end
  local symbol_names, symbols = symbols_of(options.kernels)
  local strings = add(".strtab", 3, symbol_names)
  add(".symtab", 2, symbols, nil, strings)
  add(".note.nv.tkinfo", 7, note(options.compiler))
  local info = ""
  for i, k in ipairs(options.kernels) do
    info = info .. add_kernel(add, k, i, #options.kernels + i)
  end
  add(".nv.info", 0x70000000, info)
  local at = add(".shstrtab", 3, names .. ".shstrtab\0")
  body = body .. ("\0"):rep(-#body % 8)
  local head = "\127ELF\2\1\1" .. ("\0"):rep(9)
    .. ("<I2I2I4I8I8I8I4I2I2I2I2I2I2"):pack(2, 190, 1, 0, 0, head_bytes + #body, 0, head_bytes, 0,
    0, section_bytes, #sections, at)
  return head .. body .. table.concat(sections)
end

return cubin
