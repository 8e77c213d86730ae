--- decode_peers.lua - steps of decode.lua in turns with PyTorch's, on the same GPU; a table.
--
-- tests/peers/gpu_decode.py says what PyTorch does, and what it leaves out. Its time is the median
-- of 100 replays of a CUDA graph by the device's clock; ours is the median of 30 whole steps, the
-- host's part included.
local peers = require "tidelock.bench.peer"

local ways, rounds = { "eager", "compiled", "flex", "tuned" }, 3

local function milliseconds(list)
  table.sort(list)
  if #list == 0 then return "-" end
  return ("%.3f to %.3f"):format(list[1] * 1e3, list[#list] * 1e3)
end

--- One measurement of a way; what went wrong is said once.
local function ask(peer, step, way)
  local name = step.name .. ", PyTorch " .. way
  if step.failed[way] then return end
  local answer, reason = peer:ask { rows = step.rows, length = step.length, way = way }
  if not answer then
    step.failed[way] = true
    print(("%s: %s"):format(name, reason))
    return
  end
  table.insert(step.seconds[way], answer.seconds)
  print(("%s: %.3f ms (%.3f to %.3f), attention %s; %.4f from a prompt's logits"):format(name,
    answer.seconds * 1e3, answer.low * 1e3, answer.high * 1e3, answer.attention, answer.off))
end

local function show(step, chosen)
  local own = step.seconds.own
  print(("%-15s %-10s  %s"):format(step.name, "Tidelock", milliseconds(own))
    .. (step.bound and ("  bound %.3f, %.2f"):format(step.bound * 1e3, step.bound / own[1]) or ""))
  for _, way in ipairs(chosen) do
    local list = step.seconds[way]
    local text = milliseconds(list)
    if list[1] then
      text = text .. (step.bound and ("  of bound %.2f"):format(step.bound / list[1]) or "")
        .. ("  ratio %.2f"):format(list[1] / own[1])
    end
    print(("%-15s %-10s  %s"):format("", way, text))
  end
end

--- `work` is a list of { rows, length, run }: run() returns seconds, of the middle step, those of
--- the bound, and of the average one.
---@param settings table # the argument of gpu_decode.py
---@param work table[]
---@param named string[] # ways; none: all
return function(settings, work, named)
  io.stdout:setvbuf "line"
  local chosen = #named > 0 and named or ways
  local peer <close>, reason = peers.open("gpu_decode.py", "", settings)
  if not peer then
    print("skipped: " .. reason)
    return
  end
  print(peer.about)
  for _, step in ipairs(work) do
    step.name = step.length == 1 and "decode " .. step.rows
      or ("prompts %d x %d"):format(step.rows, step.length)
    step.seconds, step.failed = { own = {} }, {}
    for _, way in ipairs(chosen) do step.seconds[way] = {} end
  end
  for _ = 1, rounds do
    for _, step in ipairs(work) do
      local seconds, bound, average = step.run()
      table.insert(step.seconds.own, seconds)
      step.bound = bound
      print(("%s: %.3f ms%s"):format(step.name, seconds * 1e3,
        average and (", on average %.3f"):format(average * 1e3) or ""))
      for _, way in ipairs(chosen) do ask(peer, step, way) end
    end
  end
  print "\nms a step, fastest and slowest of the rounds; the ratio is of the fastest ones"
  for _, step in ipairs(work) do show(step, chosen) end
end
