--- `./tl doctor --selftest`: the two models that the bits rest on, proven on what is here.
--
--     exp2      all 4,294,967,296 inputs: GPU 0 = the host's model            0.2 s + 3.1 s
--     steps     524,288 tensor-core steps in 8 patterns: GPU 0 = the host's model
--     linear    f32 and bf16 products of 3 shapes: GPU 0 = the host twin
--     library   cuBLASLt gives the bits of our kernels in 8 of 8 products; algorithms 55, 66
--     levels    avx512 = avx2 = portable: exp2 over all inputs, bf16 products
--
-- A device that differs is refused by name, with the first difference. Without a GPU the host's
-- levels are compared alone. Each line is a check of `selftest.checks`, in this order.

local core = require "tidelock.core"

local selftest = {}

local blocks, block_slice, tiles = 4096, 256, 512

---@class tidelock.Finding
---@field good boolean
---@field text string

local function finding(good, format, ...) return { good = good, text = format:format(...) } end

local function grouped(n)
  local text = tostring(n):reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
  return text
end

local function device_name() return ("GPU 0 (%s)"):format(core.cuda_device(0).name) end

--- All inputs of exp2 on the GPU, in slices so that Ctrl-C is heard.
local function exp2(context)
  local begin, on_gpu = core.files.seconds(), core.doctor.exp2("cuda", 0, blocks)
  local gpu_seconds, differ, first = core.files.seconds() - begin, 0, nil
  for from = 0, blocks - 1, block_slice do
    local on_host = core.doctor.exp2("host", from, block_slice, context.threads)
    for i, sum in ipairs(on_host) do
      if sum ~= on_gpu[from + i] then
        differ, first = differ + 1, first or from + i - 1
      end
    end
    if core.interrupted() then return finding(false, "stopped by Ctrl-C") end
  end
  if differ > 0 then
    return finding(false, "%s is not the exp2 of the contract: %d of %d blocks of 2^20 inputs "
      .. "differ, the first from bits %08x", device_name(), differ, blocks, first << 20)
  end
  return finding(true, "all %s inputs: %s = the host's model; %.2f s there, %.1f s here",
    grouped(1 << 32), device_name(), gpu_seconds,
    core.files.seconds() - begin - gpu_seconds)
end

local function steps()
  local all = 0
  for pattern, name in ipairs(core.doctor.patterns()) do
    local differ, outputs, _, first = core.doctor.steps("cuda", pattern, 1, tiles)
    all = all + outputs
    if differ > 0 then
      return finding(false, "%s is not the tensor core of \"sm_90\": %d of %d outputs differ in "
        .. "the pattern %s; %s", device_name(), differ, outputs, name, first)
    end
  end
  return finding(true, "%s tensor-core steps in %d patterns: %s = the host's model", grouped(all),
    #core.doctor.patterns(), device_name())
end

--- Products of some shapes through the kernels that a run uses.
local function linear()
  local shapes = { { 64, 256, 96 }, { 1, 512, 130 }, { 300, 1040, 256 } }
  for _, dtype in ipairs { "f32", "bf16" } do
    for i, shape in ipairs(shapes) do
      local m, k, n = table.unpack(shape)
      local x <close> = core.tensor(dtype, { m, k })
      local weight <close> = core.tensor(dtype, { n, k })
      for j, t in ipairs { x, weight } do
        core.call("init", {}, { t }, { kind = 1, name_hash = 2 * i + j, row_first = 0,
          col_first = 0, cols_full = k, first = 0, second = 1 })
      end
      local host <close> = core.tensor(dtype, { m, n })
      local gpu <close> = core.tensor(dtype, { m, n })
      local attrs = { parts = 1, biases = 0, leaves = 1 }
      core.call("linear", { x, weight }, { host }, attrs)
      core.call("linear", { x, weight }, { gpu }, attrs, { device = "cuda" })
      if not core.equal(host, gpu) then
        return finding(false, "%s: a %s product of (%d, %d) by (%d, %d) differs from the host twin",
          device_name(), dtype, m, k, n, k)
      end
    end
  end
  return finding(true, "f32 and bf16 products of %d shapes: %s = the host twin", #shapes,
    device_name())
end

--- Ways of cuBLASLt that give our kernels' bits, on the numbers of kernels/gemm/gemm_proof.c. A way
--- that does not is no fault of the machine: it is not taken.
local function library()
  if not core.doctor.library(1).file then return finding(true, "cuBLASLt is not here") end
  local proven, all, refused, ids, seen = 0, 0, 0, {}, {}
  for _, dtype in ipairs { "f32", "bf16" } do
    for _, p in ipairs { { "linear", 16, 512, 1024 }, { "linear", 640, 2048, 256 },
      { "linear_grad_input", 264, 512, 384 }, { "linear_grad_weight", 256, 512, 1000 },
      { "linear_grad_weight", 256, 512, 1000, true } } do
      local found = core.doctor.product("cuda", { product = p[1], dtype = dtype, rows = p[2],
        out = p[1] == "linear_grad_weight" and "f32" or dtype, columns = p[3], depth = p[4],
        add = p[5] })
      all, refused = all + 1, refused + found.refused
      proven = proven + (found.id > 0 and 1 or 0)
      if found.id > 0 and not seen[found.id] then
        ids[#ids + 1], seen[found.id] = tostring(found.id), true
      end
    end
  end
  return finding(true, "cuBLASLt gives the bits of our kernels in %d of %d products; algorithms %s"
    .. "; ways refused: %d", proven, all, #ids > 0 and table.concat(ids, ", ") or "none", refused)
end

--- What a level of the processor gives, from a process of its own: name -> hash, and what it says.
local function level(name, count)
  local script = package.searchpath("tidelock.machine.selftest_level", package.path)
  local program = core.files.realpath "/proc/self/exe"
  local pipe = assert(io.popen(("TL_SIMD=%s '%s' lua '%s' %d 2>&1"):format(name, program, script,
    count)))
  local found, lacks = {}, false
  for line in pipe:lines() do
    local what, hash = line:match "^(%w+) (%x+)$"
    if what then found[what] = hash end
    lacks = lacks or line:find "this processor has no" ~= nil
  end
  pipe:close()
  return found, lacks
end

--- The host's levels against each other.
---@param count integer # blocks of exp2
function selftest.levels(count)
  local expected, names = level("portable", count), { "portable" }
  for _, name in ipairs { "avx2", "avx512" } do
    local found, lacks = level(name, count)
    if not lacks then
      table.insert(names, 1, name)
      for _, what in ipairs { "exp2", "linear" } do
        if not expected[what] or found[what] ~= expected[what] then
          return finding(false, "%s: the level %s of this processor gives other bits than portable "
            .. "code: %s against %s", what, name, found[what] or "nothing",
            expected[what] or "nothing")
        end
      end
    end
  end
  return finding(true, "%s: exp2 of %s inputs, bf16 products", table.concat(names, " = "),
    grouped(count << 20))
end

---@type { name: string, gpu: boolean, slow?: string, run: fun(context: table): tidelock.Finding }[]
selftest.checks = {
  { name = "exp2", gpu = true, run = exp2 },
  { name = "steps", gpu = true, run = steps },
  { name = "linear", gpu = true, run = linear },
  { name = "library", gpu = true, run = library },
  {
    name = "levels", gpu = false,
    slow = "at work for a minute or two: all inputs of exp2, at each level of this processor",
    run = function(context) return selftest.levels(context.blocks or blocks) end,
  },
}

--- Runs all checks that this machine can run; `say` gets a line for each, `note` one before what
--- takes long.
---@param context { gpus: integer, threads: integer?, blocks: integer? }
---@param say fun(name: string, text: string)
---@param note? fun(name: string, text: string)
---@return boolean # none has failed
function selftest.run(context, say, note)
  local good = true
  for _, check in ipairs(selftest.checks) do
    local result
    if check.gpu and context.gpus == 0 then
      result = finding(true, "not run: no GPU here")
    else
      if check.slow and note then note(check.name, check.slow) end
      local ok, answer = pcall(check.run, context)
      result = ok and answer or finding(false, "failed: %s", tostring(answer))
    end
    good = good and result.good
    say(check.name, (result.good and "" or "NOT PROVEN: ") .. result.text)
  end
  return good
end

return selftest
