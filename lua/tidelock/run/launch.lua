--- launch.lua - the processes of one run: who started them, and whether they agree.
---
---     mpirun -np 8 ./tl run recipes/quickstart.lua layout.dp=8
---
---       find       which launcher's variables are there: rank, world, local rank
---       open       the processes find each other (runtime/job.h)
---       agree      recipe, key, program are the same everywhere; an odd rank is named
---
--- Rank 0 prints and keeps files; the others do what it says. Two launchers that say different
--- things are an error that names both.
local core = require "tidelock.core"

local launch = {}

--- The first whose rank is set wins; others that are set must say the same. mpi: it starts MPI; a
--- name: where that variable is set, as srun does for --mpi=pmix.
local launchers = {
  {
    name = "torchrun", rank = "RANK", world = "WORLD_SIZE", here = "LOCAL_RANK",
    here_world = "LOCAL_WORLD_SIZE",
  },
  {
    name = "mpirun (Open MPI)", rank = "OMPI_COMM_WORLD_RANK", world = "OMPI_COMM_WORLD_SIZE",
    here = "OMPI_COMM_WORLD_LOCAL_RANK", here_world = "OMPI_COMM_WORLD_LOCAL_SIZE", mpi = true,
  },
  {
    name = "srun (Slurm)", rank = "SLURM_PROCID", world = "SLURM_NTASKS", here = "SLURM_LOCALID",
    here_world = "SLURM_TASKS_PER_NODE", mpi = "PMIX_RANK", needs = "SLURM_STEP_ID",
  },
}

local function fail(format, ...)
  error({ status = 2, message = "tidelock: " .. format:format(...) }, 0)
end

--- A number in a variable: the digits that it begins with ("4(x2)" has 4), or nil.
local function number_of(getenv, name)
  local text = getenv(name)
  return text and math.tointeger(tonumber(text:match "^%d+"))
end

---@class tidelock.Launch
---@field launcher string
---@field rank integer
---@field world integer
---@field here integer # which of this machine's, from 0
---@field here_world integer # how many are on this machine
---@field mpi boolean
---@field address? string # where rank 0 listens, without MPI
---@field port? integer

--- What the variables of launchers say; nil for a process that nobody launched with others.
---@param getenv fun(name: string): string?
---@return tidelock.Launch?
function launch.find(getenv)
  local found
  for _, l in ipairs(launchers) do
    local rank, world = number_of(getenv, l.rank), number_of(getenv, l.world)
    if rank and world and (not l.needs or getenv(l.needs)) then
      if found and (found.rank ~= rank or found.world ~= world) then
        fail("%s says rank %d of %d and %s says rank %d of %d; unset the variables of one of them",
          found.launcher, found.rank, found.world, l.name, rank, world)
      end
      found = found or {
        launcher = l.name, rank = rank, world = world, here = number_of(getenv, l.here) or rank,
        here_world = number_of(getenv, l.here_world) or world, mpi = false,
        address = getenv "MASTER_ADDR", port = number_of(getenv, "MASTER_PORT"),
      }
      found.mpi = found.mpi or l.mpi == true or l.mpi ~= nil and getenv(l.mpi) ~= nil
    end
  end
  if not found or found.world == 1 then return nil end
  local without = not found.mpi and not (found.address and found.port)
  if without and found.rank > 0 then error({ status = 2, message = "" }, 0) end -- rank 0 says it
  if without and found.launcher:find "^srun" then
    fail("%s gives rank %d of %d and no PMIx, without which MPI cannot start: srun --mpi=pmix, or "
      .. "MpiDefault=pmix in slurm.conf; for device=cuda MASTER_ADDR and MASTER_PORT would do",
      found.launcher, found.rank, found.world)
  end
  if without then
    fail("%s gives rank %d of %d, but MASTER_ADDR and MASTER_PORT are not set", found.launcher,
      found.rank, found.world)
  end
  return found
end

--- Raises when several processes were started for a command that is for one.
---@param command string
function launch.refuse(command)
  local found = launch.find(os.getenv)
  if not found then return end
  if found.rank > 0 then error({ status = 2, message = "" }, 0) end -- rank 0 says it
  fail("%s is for one process, and %s started %d; several are for ./tl run", command,
    found.launcher, found.world)
end

--- Calls the C half; its messages need no place in this file.
local function call(fn, ...)
  local ok, result = pcall(fn, ...)
  if not ok then error(result, 0) end
  return result
end

--- Finds the others. Returns nil for a run of one process.
---@param timeout? integer # seconds that a silent rank is waited for
function launch.open(timeout)
  local found = launch.find(os.getenv)
  if not found then return nil end
  found.job = call(core.job, {
    rank = found.rank, world = found.world, mpi = found.mpi, address = found.address,
    port = found.port, timeout_s = timeout,
  })
  return found
end

local function read(path, otherwise)
  local file = io.open(path)
  if not file then return otherwise end
  local text = file:read "l"
  file:close()
  return text or otherwise
end

--- What a process tells the others about itself.
---@param found tidelock.Launch
---@param plan table # with key and recipe_hash
---@return table
function launch.facts(found, plan)
  local build = core.build()
  local facts = {
    rank = found.rank, host = read("/proc/sys/kernel/hostname", "?"),
    process = tonumber(read("/proc/self/stat", "0"):match "^%d+"),
    key = plan.key, recipe = plan.recipe_hash, version = build.version,
    program = core.hash(core.files.read_all "/proc/self/exe"),
    library = found.job:about() or "no MPI", simd = build.simd, device = plan.spec.device,
  }
  if plan.spec.device == "cuda" then
    local gpu = call(core.cuda_device, found.here)
    facts.device = ("GPU %d, %s"):format(found.here, gpu.name)
    facts.pci, facts.nccl = gpu.pci, call(core.nccl_version)
  end
  return facts
end

local compared = {
  { "version", "version" }, { "program", "hash of the program" }, { "recipe", "recipe hash" },
  { "key", "key" }, { "library", "MPI library" }, { "nccl", "NCCL version" },
}

--- Complaints about ranks that differ from what most have; of equally many, rank 0's.
---@param list table[] # facts of every rank, rank 0 first
---@return string[]
function launch.differences(list)
  local lines = {}
  for _, item in ipairs(compared) do
    local field, label = item[1], item[2]
    local counts, most = {}, tostring(list[1][field])
    for _, facts in ipairs(list) do
      local value = tostring(facts[field])
      counts[value] = (counts[value] or 0) + 1
    end
    for _, facts in ipairs(list) do
      local value = tostring(facts[field])
      if counts[value] > counts[most] then most = value end
    end
    for _, facts in ipairs(list) do
      local value = tostring(facts[field])
      if value ~= most then
        lines[#lines + 1] = ("rank %d (host %s, process %d): %s %s; %d of %d ranks have %s"):format(
          facts.rank, facts.host, facts.process, label, value, counts[most], #list, most)
      end
    end
  end
  return lines
end

--- Compares all ranks; raises on every rank when one is odd. Returns the facts of all.
function launch.agree(found, plan)
  local texts = call(found.job.gather, found.job, core.json.encode(launch.facts(found, plan)))
  local list = {}
  for i, text in ipairs(texts) do list[i] = core.json.decode(text) end
  local lines = launch.differences(list)
  if #lines > 0 then
    lines[#lines + 1] = "the ranks do not run the same thing; nothing was started"
    error({ status = 2, message = table.concat(lines, "\n") }, 0)
  end
  return list
end

--- One line for each rank: where it is and what it runs on.
---@param list table[] # facts, rank 0 first
---@param coordinates table[] # { tp, dp, pp } of every rank
function launch.table(list, coordinates)
  local rows = { { "rank", "host", "process", "device", "PCI", "tp dp pp", "library" } }
  for i, facts in ipairs(list) do
    local at = coordinates[i]
    rows[i + 1] = {
      tostring(facts.rank), facts.host, tostring(facts.process), facts.device, facts.pci or "-",
      ("%2d %2d %2d"):format(at.tp, at.dp, at.pp),
      facts.nccl and ("%s, NCCL %s"):format(facts.library, facts.nccl) or facts.library,
    }
  end
  local widths, lines = {}, {}
  for _, row in ipairs(rows) do
    for k, cell in ipairs(row) do widths[k] = math.max(widths[k] or 0, #cell) end
  end
  for i, row in ipairs(rows) do
    local cells = {}
    for k, cell in ipairs(row) do
      local pad = (" "):rep(widths[k] - #cell)
      cells[k] = k == 1 and pad .. cell or cell .. pad
    end
    lines[i] = ("  " .. table.concat(cells, "  ")):gsub("%s+$", "")
  end
  return table.concat(lines, "\n")
end

--- The same facts for ranks that are threads, one on each GPU of this process.
function launch.of_threads(plan, ranks)
  local list = {}
  local host = read("/proc/sys/kernel/hostname", "?")
  local process = tonumber(read("/proc/self/stat", "0"):match "^%d+")
  for rank = 0, ranks - 1 do
    local gpu = plan.spec.device == "cuda" and core.cuda_device(rank)
    list[rank + 1] = {
      rank = rank, host = host, process = process, library = "peer memory",
      device = gpu and ("GPU %d, %s"):format(rank, gpu.name) or "host", pci = gpu and gpu.pci,
    }
  end
  return list
end

return launch
