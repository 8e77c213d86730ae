--- A list of everything that is wrong with a recipe, raised at once.
--
--     recipes/moe.lua:23: layout.tp: tp 3 does not divide heads 16 (recipes/moe.lua:9); allowed: ..
--     command line: batch.micro: micro 12 does not divide 16, the samples of a rank; try micro = 8
--     2 errors; nothing was started
--
-- A problem is a place ("file:line" or "command line"), the path of the field, and a sentence with
-- the numbers, what is allowed and what to try. Problems are sorted by place, the command line
-- first; the same problem found twice (a layer is made many times) is printed once.
local Problems = {}
Problems.__index = Problems

local Raised = {
  __tostring = function(self) return self.message end,
}

local problems = {}

function problems.new() return setmetatable({ known = {} }, Problems) end

--- A new list with the same problems.
function Problems:copy()
  local other = problems.new()
  for i, problem in ipairs(self) do other[i] = problem end
  for line in pairs(self.known) do other.known[line] = true end
  return other
end

--- Adds one problem. `path` may be nil when the text says all.
function Problems:add(place, path, text)
  local line = (place and place .. ": " or "") .. (path and path .. ": " or "") .. text
  if self.known[line] then return end
  self.known[line] = true
  local file, number = (place or ""):match("^(.*):(%d+)$")
  self[#self + 1] = {
    file = file or place or "",
    number = tonumber(number) or 0,
    order = #self,
    from_file = file ~= nil,
    path = path or "",
    line = line,
  }
end

local function before(a, b)
  if a.from_file ~= b.from_file then return not a.from_file end
  if a.file ~= b.file then return a.file < b.file end
  if a.number ~= b.number then return a.number < b.number end
  if a.path ~= b.path then return a.path < b.path end
  return a.order < b.order
end

--- Adds what another list has, from its entry `first` on, or 1.
function Problems:merge(other, first)
  for i = first or 1, #other do
    local problem = other[i]
    if not self.known[problem.line] then
      self.known[problem.line] = true
      self[#self + 1] = problem
    end
  end
end

--- The message, or nil when nothing is wrong.
function Problems:text()
  if #self == 0 then return nil end
  local sorted, lines = {}, {}
  for i, problem in ipairs(self) do sorted[i] = problem end
  table.sort(sorted, before)
  for i, problem in ipairs(sorted) do lines[i] = problem.line end
  lines[#lines + 1] = ("%d error%s; nothing was started"):format(#lines, #lines == 1 and "" or "s")
  return table.concat(lines, "\n")
end

--- Raises everything that was added, as { status = 2, message }; returns when nothing was.
function Problems:raise()
  local text = self:text()
  if text then error(setmetatable({ status = 2, message = text }, Raised), 0) end
end

return problems
