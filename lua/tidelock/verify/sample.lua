--- verify/sample.lua - one sample, alone and among others: what its neighbours may not change.
---
---     batch 1     [ s ]                       s keeps its targets, all others have none: so the
---     batch 4     [ s a b c ]                 loss, the gradient of every weight and the update
---     batch 16    [ s a b c d .. o ]          are those of s, and may not differ by a bit
---     other       [ s A B C D .. O ]
---
--- The whole batch is one micro-batch of one rank, so that the kernels really see so many rows. A
--- model whose balance of experts looks at all samples (a balance loss, a bias) has gradients of
--- its neighbours by definition: there the first step's loss and logits are compared, and the
--- output says so.
local data = require "tidelock.language.data"
local sorted_keys = require "tidelock.text.sorted_keys"

local sample = {}

sample.batches = { 1, 4, 16, 32 }

--- Tokens, targets and borders of sample `index` of a step, as tl.data.given takes them; a step has
--- `count` samples.
function sample.read(source, step, index, count)
  local tokens, targets, cu = source:micro(step, count, index, 1)
  if not tokens then error(targets, 0) end
  return { tokens = tokens, targets = targets, cu_seqlens = cu }
end

local function read(source, step, index)
  return sample.read(source, step, index, math.max(table.unpack(sample.batches)))
end

--- The same without targets.
local function silent(one)
  local targets = {}
  for i = 1, #one.targets do targets[i] = -1 end
  return { tokens = one.tokens, targets = targets, cu_seqlens = one.cu_seqlens }
end

--- The data of a batch: the sample, then neighbours of this or of another step.
---@param other boolean
local function given(source, batch, other)
  local list = { read(source, 0, 0) }
  for i = 1, batch - 1 do list[i + 1] = silent(read(source, other and 977 or 0, i)) end
  return data.given(list)
end

--- Whether neighbours reach the gradients by the balance of experts.
function sample.balanced(plan)
  for _, node in ipairs(plan.graph and plan.graph.nodes or {}) do
    if node.op == "moe" and node.attrs.balance and node.attrs.balance.name ~= "none" then
      return true
    end
  end
  return false
end

--- The recipe of a cell: one rank, the whole batch at once.
---@param recipe tidelock.Recipe
---@param cell table # batch, other, source
function sample.recipe(recipe, cell)
  local one = recipe:with {
    data = given(cell.source, cell.batch, cell.other), ["batch.samples"] = cell.batch,
    ["batch.micro"] = cell.batch, ["layout.tp"] = 1, ["layout.dp"] = 1, ["layout.pp"] = 1,
    ["layout.ep"] = 1, ["layout.schedule"] = "1f1b",
  }
  return one:override { "eval=nil" }
end

--- The rows of a run's recipe, and what has to be said about them (nil: nothing).
---@param run tidelock.Run
---@return table[] rows
---@return string? note
function sample.rows(run)
  local source, forward = run.sources[1], sample.balanced(run.plan)
  local function cell(batch, other)
    return { sample = { batch = batch, other = other, source = source, forward = forward } }
  end
  local alone = { label = "a sample alone", family = "sample", cell(1) }
  local among = { label = "among 4, 16, 32 samples", family = "sample" }
  local others = { label = "among 4, 16, 32 others", family = "sample" }
  for i = 2, #sample.batches do
    among[#among + 1] = cell(sample.batches[i])
    others[#others + 1] = cell(sample.batches[i], true)
  end
  return { alone, among, others }, forward and "a sample among others: the balance of experts "
    .. "looks at all samples, so loss and logits of the first step are compared, no gradients"
    or nil
end

--- How far two trails with tensors are apart: elements that differ, all elements, and the norm of
--- the difference over that of the first.
---@param a table<string, userdata> # tensors by name
---@param b table<string, userdata>
---@return integer differ
---@return integer total
---@return number norm
function sample.distance(a, b)
  local differ, total, square, whole = 0, 0, 0, 0
  for _, name in ipairs(sorted_keys(a)) do
    local x, y = a[name]:flat(), b[name]:flat()
    local p, q = a[name]:bits(), b[name]:bits()
    for i = 1, #x do
      total, whole = total + 1, whole + x[i] * x[i]
      if p[i] ~= q[i] then
        differ, square = differ + 1, square + (x[i] - y[i]) ^ 2
      end
    end
  end
  return differ, total, whole > 0 and math.sqrt(square / whole) or 0
end

return sample
