--- Checkpoints of the small model, for specs: written, stepped, refused.
local assert = require "luassert"
local checkpoint = require "tidelock.run.checkpoint"
local models = require "support.models"

local checkpoints = {}

--- That `text` has `part` in it.
function checkpoints.contains(part, text)
  assert.is_truthy(text:find(part, 1, true), ("no %q in:\n%s"):format(part, text))
end

--- The message of an error with status 2.
function checkpoints.refused(fn, ...)
  local good, problem = pcall(fn, ...)
  assert.is_false(good)
  assert.equal(2, problem.status, tostring(problem))
  return problem.message
end

--- `count` steps: the bits of their losses and gradient norms, as one line.
function checkpoints.steps(run, count)
  local line = {}
  for i = 1, count do
    local s = run:step()
    line[i] = s.loss_bits .. " " .. s.grad_norm_bits
  end
  return table.concat(line, " | ")
end

--- Writes a checkpoint after `count` steps; returns its folder.
function checkpoints.saved(options, dir, count, how)
  local run <close> = models.start(options)
  checkpoints.steps(run, count)
  local written = checkpoint.start(run, dir, how)
  written.saver:wait()
  written.saver:close()
  return written.folder
end

return checkpoints
