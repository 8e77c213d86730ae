--- variables.lua - variables of the environment that look like ours and that nothing reads.
---
---     TIDELOCK_LAU=lua ./tl run ..     note: TIDELOCK_LAU: nothing reads this variable; did you ..
---
--- TIDELOCK_ is ours alone; TL_ may be somebody else's, so there only what is near one of ours is
--- told. Of several processes of a run the first one tells.
local sorted_keys = require "tidelock.text.sorted_keys"
local suggest = require "tidelock.text.suggest"

local variables = {}

--- By prefix; docs/operations.md has what they do.
variables.known = {
  TIDELOCK_ = { "LUA", "PYTHON", "TRACEBACK", "TYPED" },
  TL_ = { "BUILD", "CUDA", "CUOBJDUMP", "MPI", "PIN", "SANITIZE", "SIMD", "SPIN" },
}

--- Of the tests alone.
local of_tests = { TIDELOCK_SEED = true, TIDELOCK_SHARED = true, TL_SYNCS = true }

local ranks = { "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID" }

--- What to say about one variable; nil: it is known, or somebody else's.
local function doubt(name)
  local prefix, rest = name:match "^(TIDELOCK_)(.*)$"
  if not prefix then prefix, rest = name:match "^(TL_)(.*)$" end
  if not prefix or of_tests[name] then return nil end
  for _, known in ipairs(variables.known[prefix]) do
    if rest == known then return nil end
  end
  local near = suggest.nearest(rest, variables.known[prefix])
  if not near and prefix == "TL_" then return nil end
  return ("note: %s: nothing reads this variable; %s"):format(name,
    near and ("did you mean %s%s?"):format(prefix, near)
    or "there are TIDELOCK_" .. table.concat(variables.known[prefix], ", TIDELOCK_"))
end

--- What to say about the variables of an environment, in order of their names.
---@param text string # NAME=VALUE, a zero byte behind each, as /proc/self/environ has it
---@return string[]
function variables.doubts(text)
  local set, list = {}, {}
  for name, value in text:gmatch "([%w_]+)=([^\0]*)\0?" do set[name] = value end
  for _, name in ipairs(ranks) do
    if set[name] and set[name] ~= "0" then return {} end
  end
  for _, name in ipairs(sorted_keys(set)) do list[#list + 1] = doubt(name) end
  return list
end

--- Tells them on stderr.
function variables.tell()
  local file = io.open("/proc/self/environ", "rb")
  if not file then return end
  local text = file:read "a"
  file:close()
  for _, line in ipairs(variables.doubts(text)) do io.stderr:write(line, "\n") end
end

return variables
