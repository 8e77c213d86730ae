--- Looks into the machine code of kernels: what must not be there, and how it differs.
--
-- Two texts say what a kernel does, and each is looked at for what only it can show:
--
--   PTX    kept by the build, ptx/sm_90a/<image>.ptx: what the compiler was asked for
--            an approximation is a word here (rcp.approx, lg2.approx, div.full, ..): only
--            ex2.approx.ftz.f32 may stand, whose bits are modelled
--            a float atom or red is none of ours
--   SASS   by cuobjdump, where it is installed: what runs
--            RED, ATOM, ATOMG, ATOMS on floats: none
--            MUFU.EX2; MUFU.RCP and MUFU.RSQ are how ptxas begins an IEEE division, an integer
--            division or an IEEE root, so a kernel may have them only if its PTX has such a one
--            (MUFU.RSQ of the constant -QNAN is how a division makes its NaN); any other MUFU is
--            refused
--   cubin  local memory: 0 bytes, or a line of `machine.local_memory` that says why
--
-- So MUFU.RCP is never taken on trust: the PTX of the same compilation has no rcp.approx, and says
-- which exact operation it belongs to.

local core = require "tidelock.core"

local machine = {}

--- Kernels that may have local memory, and why.
machine.local_memory = {
  attention_grad_key_f32_256 = "f32 at head width 256 fills all 255 registers; 16 bytes spill, and "
    .. "it is no hot path: bf16 is",
}

--- The root of the tree.
function machine.root()
  return (core.files.realpath(package.searchpath("tidelock.machine.code", package.path))
    :gsub("/lua/tidelock/machine/code%.lua$", ""))
end

--- The folder of the running program (build-cuda); where /proc is not mounted, the usual one.
function machine.folder()
  local program = core.files.realpath "/proc/self/exe" or machine.root() .. "/build/tidelock"
  return (program:gsub("/[^/]*$", ""))
end

--- The toolkit's cuobjdump: TL_CUOBJDUMP, on the path, or where CUDA is installed; else nil.
local function disassembler()
  local chosen = os.getenv "TL_CUOBJDUMP"
  if chosen and chosen ~= "" then return chosen end
  local pipe = assert(io.popen "command -v cuobjdump 2>/dev/null")
  local found = pipe:read "l"
  pipe:close()
  local usual = "/usr/local/cuda/bin/cuobjdump"
  return found or core.files.exists(usual) and usual or nil
end

-- PTX ---------------------------------------------------------------------------------------------

--- What stands for MUFU.RCP and MUFU.RSQ in PTX.
local function exact_operations(body)
  return {
    RCP = body:find "div%.rn" ~= nil or body:find "rcp%.rn" ~= nil or body:find "div%.[us]" ~= nil
      or body:find "rem%.[us]" ~= nil,
    RSQ = body:find "sqrt%.rn" ~= nil,
  }
end

--- Complaints about one kernel's PTX, or about functions that kernels call.
local function scan_ptx_body(name, body, complaints)
  local function complain(what, word)
    complaints[#complaints + 1] = ("%s: %s in its PTX: %s"):format(name, what, word)
  end
  for word in body:gmatch "[%a][%w_]*%.[%w_%.:]+" do
    if word:find "%.approx" and word ~= "ex2.approx.ftz.f32" then complain("an approximation", word)
    elseif word:find "^div%.full" then complain("an approximation", word)
    elseif (word:find "^atom" or word:find "^red") and word:find "%.[b]?f%d+" then
      complain("a float atomic", word)
    end
  end
end

--- Kernels of a PTX text by name, with what explains MUFU.RCP and MUFU.RSQ; and complaints. A
-- function that is no kernel counts to every kernel of the text.
function machine.scan_ptx(text)
  local kernels, complaints, shared = {}, {}, ""
  text = text:gsub("//[^\n]*", "")
  for kind, name, body in text:gmatch "%.(%a+)%s+([%w_$]+)%s*%(.-%)[^{};]*(%b{})" do
    if kind == "entry" then kernels[#kernels + 1] = { name = name, body = body } end
  end
  for body in text:gmatch "%.func%s.-(%b{})" do shared = shared .. body end
  scan_ptx_body("a function", shared, complaints)
  local known = {}
  for _, kernel in ipairs(kernels) do
    scan_ptx_body(kernel.name, kernel.body, complaints)
    known[kernel.name] = exact_operations(kernel.body .. shared)
  end
  return known, complaints
end

-- SASS --------------------------------------------------------------------------------------------

local float_types = { "%.F16", "%.F32", "%.F64", "%.BF16" }

local function is_float_atomic(word)
  if not (word:find "^ATOM" or word:find "^RED%f[%W]") then return false end
  for _, kind in ipairs(float_types) do
    if word:find(kind) then return true end
  end
  return false
end

--- Complaints about one instruction of a kernel.
local function judge(name, text, exact, complain)
  local word = text:match "^[%w_%.]+" or ""
  local unit = word:match "^MUFU%.([%w]+)"
  if text:find "^MUFU%.RSQ%s+R%d+,%s+%-QNAN%s*$" then unit = "RCP" end
  if is_float_atomic(word) then
    complain(("%s: a float atomic: %s"):format(name, word))
  elseif unit and unit ~= "EX2" then
    local base = unit:match "^RCP" or unit:match "^RSQ"
    if not base then
      complain(("%s: an approximate unit: %s"):format(name, word))
    elseif exact and not exact[base] then
      complain(("%s: %s without an exact %s in its PTX"):format(name, word,
        base == "RCP" and "division" or "root"))
    end
  end
end

--- Complaints about the disassembly of an image. `known`: of scan_ptx.
function machine.scan_sass(text, known)
  local complaints, seen, name = {}, {}, "?"
  local function complain(line)
    if not seen[line] then complaints[#complaints + 1] = line end
    seen[line] = true
  end
  for line in text:gmatch "[^\n]+" do
    local starts = line:find("Function :", 1, true) and line:match "Function : ([%w_$]+)"
    if starts then name = starts end
    local asks = line:find("MUFU", 1, true) or line:find("ATOM", 1, true)
      or line:find("RED", 1, true) -- the others need no closer look
    local word = asks and line:match "^%s*/%*%x+%*/%s+(.-);"
    if word then
      word = word:gsub("^@!?U?P[%dT]+%s+", "")
      judge(name, word, known and known[name], complain)
    end
  end
  return complaints
end

-- an image ----------------------------------------------------------------------------------------

--- Runs a tool on bytes; returns its output, or nil and the reason.
local function run_tool(tool, arguments, bytes)
  local path = os.tmpname()
  local file = assert(io.open(path, "wb"))
  file:write(bytes)
  file:close()
  local pipe = assert(io.popen(("'%s' %s '%s' 2>&1"):format(tool, arguments, path)))
  local text = pipe:read "a"
  local good = pipe:close()
  os.remove(path)
  if good then return text end
  return nil, ("%s: %s"):format(tool, text:match "[^\n]*")
end

local function disassemble(bytes, kernel)
  local tool = disassembler()
  if not tool then
    return nil, "cuobjdump is not installed; it comes with the CUDA toolkit, or TL_CUOBJDUMP names "
      .. "one"
  end
  return run_tool(tool, kernel and "-sass -fun " .. kernel or "-sass", bytes)
end

local function scan_local(image, complaints)
  for _, k in ipairs(image.kernels) do
    if k["local"] > 0 and not machine.local_memory[k.name] then
      complaints[#complaints + 1] = ("%s: %d bytes of local memory a thread: it spills"):format(
        k.name, k["local"])
    end
  end
end

local function add_all(list, more)
  for _, item in ipairs(more) do list[#list + 1] = item end
end

--- The PTX that the build kept of an image, or nil.
local function kept_ptx(folder, image)
  if not core.files.is_directory(folder .. "/ptx") then return nil end
  local pattern = ("%s/ptx/sm_%d*/%s.ptx"):format(folder, image.arch, image.name)
  local path = core.files.glob(pattern)[1]
  return path and core.files.read_all(path)
end

--- Scans all images of this program.
---@param images table[] # of core.manifest.images
---@param folder string # the build's, with ptx/
---@return { complaints: string[], notes: string[], looked_at: string[] }
function machine.scan(images, folder)
  local report = { complaints = {}, notes = {}, looked_at = { "cubins" } }
  local ptx, sass, why = 0, 0, nil
  for i, image in ipairs(images) do
    scan_local(image, report.complaints)
    local text = kept_ptx(folder, image)
    local known
    if text then
      local complaints
      known, complaints = machine.scan_ptx(text)
      add_all(report.complaints, complaints)
      ptx = ptx + 1
    end
    local code, reason = disassemble(core.manifest.image(i))
    if code then
      add_all(report.complaints, machine.scan_sass(code, known))
      sass = sass + 1
    end
    why = why or reason
  end
  if ptx == #images then table.insert(report.looked_at, "PTX") end
  if sass == #images then table.insert(report.looked_at, "SASS") end
  if ptx < #images then
    table.insert(report.notes, ("no PTX of %d cubins below %s: which exact operation a MUFU.RCP or "
      .. "MUFU.RSQ belongs to is not known"):format(#images - ptx, folder))
  end
  if why then table.insert(report.notes, "the machine code was not disassembled: " .. why) end
  return report
end

-- differences -------------------------------------------------------------------------------------

--- Only instructions: no addresses, no encodings.
local function instructions(text)
  local lines = {}
  for line in text:gmatch "[^\n]+" do
    local word = line:match "^%s*/%*%x+%*/%s+(.-;)"
    if word then lines[#lines + 1] = word end
  end
  return table.concat(lines, "\n") .. "\n"
end

--- The kernel's instructions in two cubins, by diff. Nil and a reason where none can be shown.
function machine.diff(kernel, old, new)
  local paths = {}
  for i, bytes in ipairs { old, new } do
    local text, reason = disassemble(bytes, kernel)
    if not text then return nil, reason end
    paths[i] = os.tmpname()
    core.files.write_atomic(paths[i], instructions(text))
  end
  local pipe = assert(io.popen(("diff -u --label old --label new '%s' '%s'"):format(paths[1],
    paths[2])))
  local text = pipe:read "a"
  pipe:close()
  for _, path in ipairs(paths) do os.remove(path) end
  if text == "" then return "the instructions are the same; constants or launch limits differ" end
  return text
end

return machine
