--- weave.lua - two micro-batches pass through a chunk together, so that on GPUs with tensor
--- parallelism the messages of one travel beside the products of the other.
---
---     apart    [a: qkv .. o]           [norm]         [ffn ..]                    b after a
---                           <sum of a>       <gather>
---     woven    [a: qkv .. o][b: qkv ..][norm of a][b: .. o][a: ffn ..][norm of b][..
---                           <sum of a>            <gather of a> <sum of b>   ..
---
--- It happens where the schedule has the passes of two micro-batches next to each other, as "gpipe"
--- does: then both are in memory anyway. The nodes of each stay in their order, and b is never
--- ahead of a, so every sum over tokens ascends in micro-batches as ever: no bit hangs on it.
---
--- Which of the two goes on is decided on paper, with rough times: the one whose next node can
--- begin first, and of two that can, the one that is nearer to its next message.
local paper = require "tidelock.plan.paper"

local weave = {}

local talks = { gather = true, spread = true, reduce = true, all_reduce = true,
  all_reduce_max = true }
local heavy = { linear = true, linear_grad_input = true, linear_grad_weight = true,
  attention = true, attention_grad = true }

--- Seconds of the kernels and of the messages among the instructions from `first` on.
local function times_of(self, first)
  local busy, link = 0, 0
  for i = first, #self.instructions do
    local seconds, is_message = paper.seconds(self.instructions[i], self.l.length, self.l.t)
    if is_message then link = link + seconds else busy = busy + seconds end
  end
  return busy, link
end

--- Seconds of kernels until the next message of a pass.
local function distance(pass, items, known)
  local sum = 0
  for i = pass.at, #items do
    if talks[items[i].op] then break end
    sum = sum + (known[i] or heavy[items[i].op] and 1e-4 or 1e-5)
  end
  return sum
end

--- Rows of experts travel in waves of their own.
local function has_experts(self)
  for _, node in ipairs(self.l.nodes) do
    if node.moe then return true end
  end
  return false
end

--- Whether two operations of a schedule, one after the other, are woven.
function weave.fits(self, one, other)
  return self.spec.device == "cuda" and self.l.t > 1 and self.pp == 1 and other ~= nil
    and one.phase == other.phase and one.chunk == other.chunk and one.micro < other.micro
    and (one.phase == "forward" or one.phase == "backward") and not has_experts(self)
end

--- What messages among the instructions from `first` on read and write keeps its place until the
--- pass goes on: else the other's kernels would be placed there, and wait for the message.
local function hold(self, pass, first)
  for _, buffer in ipairs(pass.held) do buffer.last = math.max(buffer.last, #self.instructions) end
  pass.held = {}
  for i = first, #self.instructions do
    local made = self.instructions[i]
    for _, list in ipairs(made.attrs.group and { made.inputs, made.outputs } or {}) do
      for k = 1, #list do pass.held[#pass.held + 1] = list[k] and list[k].buffer or nil end
    end
  end
end

--- Emits the items of both passes.
---@param self tidelock.Lower
---@param items { op: string, aside?: boolean, run: fun(env: table) }[] # of a pass, in order;
---  aside: nothing of the pass waits for it
---@param envs table[] # of the two micro-batches, ascending
function weave.run(self, items, envs)
  local passes, known, now, link = {}, {}, 0, 0
  for i, env in ipairs(envs) do passes[i] = { at = 1, ready = 0, env = env, held = {} } end
  while passes[2].at <= #items do
    local best, best_start, best_distance
    for i, pass in ipairs(passes) do
      if pass.at <= #items and (i == 1 or pass.at < passes[1].at) then
        local start = math.max(now, items[pass.at].aside and 0 or pass.ready)
        local left = distance(pass, items, known)
        if not best or start < best_start or start == best_start and left < best_distance then
          best, best_start, best_distance = pass, start, left
        end
      end
    end
    local item, first = items[best.at], #self.instructions + 1
    item.run(best.env)
    local busy, sent = times_of(self, first)
    known[best.at], best.at = busy, best.at + 1
    if busy > 0 then now = best_start + busy end
    if sent > 0 then link = math.max(link, best_start + busy) + sent end
    if not item.aside then hold(self, best, first) end
    if not item.aside then best.ready = sent > 0 and link or math.max(best.ready, now) end
  end
end

return weave
