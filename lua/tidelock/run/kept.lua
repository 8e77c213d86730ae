--- kept.lua - tensors of a step that were asked for, whole, from the shards of all ranks.
local core = require "tidelock.core"
local emit = require "tidelock.plan.stages.emit"
local experts = require "tidelock.plan.experts"
local names = require "tidelock.language.names"

local kept = {}

--- Names that were kept, in the order of the model, without repeats.
function kept.names(run, pattern)
  local list, seen = {}, {}
  for _, rank in ipairs(run.plan.ranks) do
    for _, facts in ipairs(rank.kept) do
      if not seen[facts.name] then
        seen[facts.name] = true
        list[#list + 1] = facts.name
      end
    end
  end
  return pattern and names.select(pattern, list) or list
end

--- Pieces of a gradient or a state: the shards of the weight.
local function gradient_pieces(run, facts, at, index)
  local param = facts.param
  if param.expert then
    if select(2, experts.coordinates(run.spec.layout, at)) ~= 0 then return {} end
    return { { tensor = run.ranks:read(index, facts.tensor), rows = param.rows,
      cols = param.cols } }
  end
  if at.dp ~= 0 or (not param.axis and at.tp ~= 0) or at.tp % param.replicas ~= 0 then return {} end
  return { {
    tensor = run.ranks:read(index, facts.tensor), rows = param.rows, cols = param.cols,
    row_first = emit.resolve(param.row_first, at.tp), col_first = emit.resolve(param.col_first,
      at.tp),
  } }
end

--- Pieces of an activation of one micro-batch, in rows of the global batch.
local function activation_pieces(run, facts, at, index)
  local l, spec = run.plan["local"], run.spec
  local value = facts.value
  local split_rows = value.region == "trunk" and l.sp
  local split_cols = value.region == "heads"
  if not split_rows and not split_cols and at.tp ~= 0 then return {} end
  local t = run.ranks:read(index, facts.tensor)
  local base = run.table[index + 1].sample_base + facts.micro * l.samples
  local rows = split_rows and spec.batch.length // l.t or spec.batch.length
  local pieces = {}
  for s = 0, l.samples - 1 do
    pieces[#pieces + 1] = {
      tensor = t, rows = rows, cols = value.cols, source_row = s * rows,
      row_first = (base + s) * spec.batch.length + (split_rows and at.tp * rows or 0),
      col_first = split_cols and at.tp * value.cols or 0,
    }
  end
  return pieces
end

--- Elements of a value without tokens, over all tp ranks.
local function step_size(value)
  local count = 1
  for _, dim in ipairs(value.global.dims) do count = count * dim.size end
  return count
end

--- Pieces of a value without tokens: whole on every rank, or one share a rank where its dim is cut.
local function step_pieces(run, facts, at, index)
  local value = facts.value
  local cut = value.rows < step_size(value)
  if at.dp ~= 0 or (not cut and at.tp ~= 0) or at.tp % value.replicas ~= 0 then return {} end
  local first = cut and at.tp // value.replicas * value.rows or 0
  local rows = math.min(value.rows, step_size(value) - first)
  if rows <= 0 then return {} end
  return { { tensor = run.ranks:read(index, facts.tensor), rows = rows, cols = 1,
    row_first = first } }
end

local function shape_of(run, facts)
  if facts.param then
    local weight = facts.param.weight
    return facts.param.value.vector and { weight.rows } or { weight.rows, weight.cols }
  end
  local value, l = facts.value, run.plan["local"]
  if value.region == "step" then return { step_size(value) } end
  local rows = run.spec.batch.samples * run.spec.batch.length
  local cols = value.region == "heads" and value.cols * l.t or value.cols
  return cols == 1 and { rows } or { rows, cols }
end

--- The whole tensor, or nil when nothing of that name was kept.
function kept.read(run, name)
  local pieces, shape, dtype = {}, nil, nil
  for index, entry in ipairs(run.table) do
    local at = entry.coordinates
    for _, facts in ipairs(run.plan.ranks[experts.plan_index(run.spec.layout, at)].kept) do
      if facts.name == name then
        shape, dtype = shape or shape_of(run, facts), facts.view.dtype
        local add = facts.param and gradient_pieces(run, facts, at, index - 1)
          or facts.value.region == "step" and step_pieces(run, facts, at, index - 1)
          or not facts.param and facts.value.region ~= "step" and activation_pieces(run, facts,
            at, index - 1)
        for _, piece in ipairs(add or {}) do pieces[#pieces + 1] = piece end
      end
    end
  end
  return shape and core.assemble(dtype, shape, pieces)
end

return kept
