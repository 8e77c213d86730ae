--- profile.lua - `./tl run R --profile 10:12`: exactly these steps for a profiler.
---
---     nsys profile --capture-range=cudaProfilerApi .. ./tl run R --profile 10:12
---       step 10 > micro-batch 0 > linear (recipes/x.lua:7) > kernels
---
--- In these steps every instruction is a named range (runtime/nvtx.h), and a GPU gets them one by
--- one instead of as a graph, with the same bits; collection starts with the first and stops behind
--- the last of them. Other steps run as always.
local core = require "tidelock.core"
local recorder = require "tidelock.run.recorder"
local screen = require "tidelock.text.screen"

local profile = {}

--- "10:12", "10-12" or "10" as { first, last }; nil where there is no option.
---@param text? string
---@return integer[]?
function profile.window(text)
  if not text then return nil end
  local first, last = recorder.window((text:gsub("^(%d+)%-(%d+)$", "%1:%2")))
  if not first or first < 1 or last == math.maxinteger then
    error({ status = 2, message = ("tidelock: run: --profile: %s: steps are written 10 or 10:12, "
      .. "from 1"):format(text) }, 0)
  end
  return { first, last }
end

--- What is said before the first step: which steps, who listens, what to type.
---@param window integer[]
---@param words string # of the command, as typed behind ./tl
---@return string[]
function profile.lines(window, words)
  local listens, why = core.profiler()
  local steps = window[1] == window[2] and ("step %d"):format(window[1])
    or ("steps %d to %d"):format(window[1], window[2])
  local lines = { screen.summary_line("profile", listens and steps .. ", a profiler listens"
    or ("%s; %s; start it under one:"):format(steps, why)) }
  if not listens then
    lines[2] = screen.summary_line("", "nsys profile --trace=cuda,nvtx "
      .. "--capture-range=cudaProfilerApi --capture-range-end=stop -o steps \\")
    lines[3] = screen.summary_line("", "  ./tl " .. words)
  end
  return lines
end

return profile
