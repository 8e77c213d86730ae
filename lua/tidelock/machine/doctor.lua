--- `./tl doctor`: what this machine has, what it lacks, and what to do about it.
--
--   program     tidelock 0.1.0, gcc 12.2.0
--   processor   AMD EPYC 9965, 2 cores, 23.5 GiB; kernels for avx512
--   arithmetic  fma (f32) by the processor, sm_90 (bf16) emulated by it
--   kernels     212 in 16 cubins for sm_90, by nvcc 13.0.88, as in kernels/manifest.yaml
--   driver      CUDA 13.0
--   GPU 0       NVIDIA H200, 0000:8d:00.0, compute capability 9.0, 132 multiprocessors, 139.8 GiB;
--               arithmetic fma, sm_90
--   link 0-1    direct, 396 GB/s
--   cuBLASLt    130002, libcublasLt.so.13
--   NCCL        not here; several GPUs need it: bytes between GPUs
--   MPI         not in this build: ranks are threads of one process; launchers: none
--   experts     rows go flat: GPUs of one process reach each other's memory
--   variables   NCCL_DEBUG=INFO
--   to do       ..
--
-- It exits with 0 as long as the host can train, with 1 when --selftest finds other bits.

local cluster = require "tidelock.forecast.cluster"
local core = require "tidelock.core"
local gpus = require "tidelock.machine.gpus"
local links = require "tidelock.plan.links"
local machine_code = require "tidelock.machine.code"
local room = require "tidelock.machine.room"
local selftest = require "tidelock.machine.selftest"

local doctor = {}

local GIB = 1024 ^ 3

local function gib(bytes) return ("%.1f GiB"):format(bytes / GIB) end

--- All of a file whose size is not known beforehand; "" when it is not there.
local function read_proc(path)
  local file = io.open(path, "rb")
  local text = file and file:read "a" or ""
  if file then file:close() end
  return text
end

--- Variables of the environment that GPUs, NCCL and MPI listen to, "NAME=value", sorted.
---@param text? string # of /proc/self/environ
function doctor.variables(text)
  local found = {}
  local patterns = { "^NCCL_", "^CUDA_VISIBLE_DEVICES$", "^CUDA_DEVICE_ORDER$",
    "^CUDA_LAUNCH_BLOCKING$", "^CUDA_MODULE_LOADING$", "^CUDA_FORCE_PTX_JIT$",
    "^NVIDIA_TF32_OVERRIDE$", "^TL_", "^OMPI_MCA_", "^MASTER_ADDR$", "^MASTER_PORT$", "^RANK$",
    "^WORLD_SIZE$", "^LOCAL_RANK$" }
  for entry in ((text or read_proc "/proc/self/environ") .. "\0"):gmatch "(.-)%z" do
    local name = entry:match "^([%w_]+)="
    for _, pattern in ipairs(patterns) do
      if name and name:find(pattern) then
        found[#found + 1] = entry
        break
      end
    end
  end
  table.sort(found)
  return found
end

--- "avx512 (with vbmi and vnni)": what the processor has of what kernels are written for.
local function levels_text()
  local info = read_proc "/proc/cpuinfo"
  local flags = " " .. (info:match "flags%s*:%s*([^\n]+)" or "") .. " "
  local extra = {}
  for _, pair in ipairs { { "avx512_vnni", "vnni" }, { "avx512vbmi", "vbmi" } } do
    if flags:find(" " .. pair[1] .. " ", 1, true) then extra[#extra + 1] = pair[2] end
  end
  local level = core.build().simd
  return level .. (level == "avx512" and #extra > 0 and (" (with %s)"):format(
    table.concat(extra, " and ")) or "")
end

local function processor()
  local info = read_proc "/proc/cpuinfo"
  return info:match "model name%s*:%s*([^\n]+)" or "unknown processor"
end

local function host_lines(add)
  local build, bytes = core.build(), room.bytes()
  add("program", "tidelock %s, %s; Lua, libyaml, jansson, xxhash, libmd, PCRE2, utf8proc and "
    .. "libevent are inside, no BLAS is used", build.version, build.compiler)
  add("processor", "%s, %d cores; %s; kernels for %s, any level gives the same bits", processor(),
    core.files.cpu_count(),
    bytes and gib(bytes) or "unknown memory", levels_text())
  add("arithmetic", "fma (f32) by the processor; sm_90 (bf16) emulated by it, with a GPU's bits")
end

local function kernel_lines(add, to_do)
  local images = core.manifest.images()
  if #images == 0 then
    add("kernels", "none for GPUs in this build")
    return
  end
  local kernels = 0
  for _, image in ipairs(images) do kernels = kernels + #image.kernels end
  local complaints, note = gpus.compare(images)
  local verdict = #complaints > 0 and ("%d cubins are refused"):format(#complaints)
    or note and "checked against this build's record only" or "as in kernels/manifest.yaml"
  add("kernels", "%d in %d cubins for %s, by nvcc %s; %s", kernels, #images,
    table.concat(gpus.built_for(images), ", "), images[1].compiler, verdict)
  if #complaints > 0 then to_do("./tl manifest says which kernels are not the verified ones") end
  if note then to_do("%s", note) end
end

local function gpu_lines(add, to_do, machine)
  local version, why = core.doctor.driver_version()
  if not version then
    add("driver", "%s", why)
    return
  end
  add("driver", "CUDA %d.%d", version // 1000, version % 1000 // 10)
  for ordinal = 0, machine.count - 1 do
    local facts = machine.facts[ordinal + 1]
    add("GPU " .. ordinal, "%s, %s, compute capability %d.%d, %d multiprocessors, %s; arithmetic "
      .. "%s", facts.name, facts.pci, facts.major, facts.minor, facts.multiprocessors,
      gib(facts.memory), table.concat(gpus.arithmetics(facts.major, facts.minor), ", "))
    local refusal = #machine.built > 0 and gpus.refusal(ordinal, facts, machine.built, "fma")
    if refusal then to_do("%s", refusal) end
  end
  for a = 0, machine.count - 1 do
    for b = 0, machine.count - 1 do
      local good, link = true, nil
      if a ~= b then good, link = pcall(core.doctor.link, a, b) end
      if not good then
        add(("link %d-%d"):format(a, b), "not measured: %s", tostring(link))
      elseif link then
        add(("link %d-%d"):format(a, b), "%s, rank %d, %.0f GB/s", link.direct and "direct"
          or "through the host", link.rank, link.bytes_per_second / 1e9)
      end
    end
  end
end

local function library_lines(add)
  local i, found = 1, core.doctor.library(1)
  while found do
    add(found.name, "%s", found.file and ("%d, %s"):format(found.version, found.file)
      or ("not here; what asks for it: %s"):format(found.use))
    i = i + 1
    found = core.doctor.library(i)
  end
  local mpi = core.files.exists(machine_code.folder() .. "/lib/tidelock/mpi.so")
  local pipe = assert(io.popen "command -v mpirun srun 2>/dev/null")
  local launchers = pipe:read("a"):gsub("%s+$", ""):gsub("\n", ", ")
  pipe:close()
  add("MPI", "%s; launchers: %s", mpi and "in this build" or "not in this build: ranks are threads "
    .. "of one process", launchers ~= "" and launchers or "none")
end

--- What to do, for those who want a GPU.
local function advise(to_do, machine)
  if machine.count == 0 and #machine.built > 0 then
    to_do("device = \"cuda\": %s", machine.why)
  elseif machine.count > 0 and #machine.built == 0 then
    to_do("this build has no GPU kernels: install the CUDA toolkit 13.0 and run TL_CUDA=on ./tl "
      .. "doctor")
  end
  for _, name in ipairs { "CUDA_FORCE_PTX_JIT", "NVIDIA_TF32_OVERRIDE" } do
    local value = os.getenv(name)
    if value and value ~= "" and value ~= "0" then
      to_do("unset %s: with it the GPU would compute something else, and is refused", name)
    end
  end
end

--- Which way rows of experts take under layout.all_to_all = "auto", and why.
local function way_line(add, machine, facts)
  if facts then
    add("experts", "rows on %s go %s", facts.name, links.text(facts))
  elseif machine.count > 1 then
    add("experts", "rows go flat: GPUs of one process reach each other's memory")
  else
    add("experts", "rows go flat, or as layout.island says: no speeds of links are known; "
      .. "--cluster FILE says them")
  end
end

--- The report, as lines.
---@param facts? table # of cluster.read
---@return string[]
function doctor.report(facts)
  local lines, tasks, machine = {}, {}, gpus.machine()
  local function add(label, format, ...)
    local line = ""
    for word in format:format(...):gmatch "%S+" do
      if #line > 0 and #line + #word + 1 > 86 then
        lines[#lines + 1] = ("%-11s %s"):format(label, line)
        label, line = "", ""
      end
      line = line == "" and word or line .. " " .. word
    end
    lines[#lines + 1] = ("%-11s %s"):format(label, line)
  end
  local function to_do(format, ...) tasks[#tasks + 1] = format:format(...) end
  host_lines(add)
  kernel_lines(add, to_do)
  gpu_lines(add, to_do, machine)
  library_lines(add)
  way_line(add, machine, facts)
  local variables = doctor.variables()
  if #variables > 0 then add("variables", "%s", table.concat(variables, " ")) end
  advise(to_do, machine)
  for i, task in ipairs(tasks) do add(i == 1 and "to do" or "", "%s", task) end
  if #tasks == 0 then
    add("to do", "nothing; %s", machine.count > 0 and "device = \"cuda\" will run"
      or "the host runs every recipe, with the bits of a GPU")
  end
  return lines, machine
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function doctor.command(request)
  local file = request.options.cluster
  local lines, machine = doctor.report(file and cluster.read(file))
  for _, line in ipairs(lines) do io.stdout:write(line, "\n") end
  if not request.options.selftest then return 0 end
  io.stdout:write "\n"
  local function lines_to(stream)
    return function(name, text)
      stream:write(("%-11s %s\n"):format(name, text))
      stream:flush()
    end
  end
  local good = selftest.run({ gpus = #machine.built > 0 and machine.count or 0,
    threads = request.options.threads }, lines_to(io.stdout), lines_to(io.stderr))
  return good and 0 or 1
end

return doctor
