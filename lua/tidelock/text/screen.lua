--- What a run shows: header, table of steps, live line, summary. Values in, text out.
--
--   quickstart.lua   key 5e1c 09af 77d2 c340   recipe 7d20 ..          header: each thing once
--     model    853,120 weights in 39 tensors: 4 layers, dim 128, ..
--
--     step    loss  bits      grad norm       lr   tok/s   mfu    MiB   eta
--        1  5.5702  40b23f14      2.114  1.5e-04   23.6k   57%   39.7  0:35
--     [################..................]  96/200  loss 1.981  24.1k tok/s  0:18 left
--
-- On a terminal there is a row at each doubling of the step and a live line; elsewhere a row every
-- `log.every` steps, no live line, no colour. Rows go to stdout, the live line to stderr. Rows and
-- header stay below 100 columns; a narrower terminal gets a narrower header and fewer columns of
-- the table.

local screen = {}

local MIB = 1024 * 1024

screen.columns_max = 100 -- lines stay below it, also where nobody knows the width

--- 853120 -> "853,120".
function screen.grouped(n)
  local text = ("%d"):format(n)
  local sign, digits = text:match "^(%-?)(%d+)$"
  return sign .. digits:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
end

--- 23610 -> "23.6k": four significant places at most, for rates and counts.
function screen.short(n)
  if n ~= n or n == math.huge then return "-" end
  local unit = ""
  for _, next_unit in ipairs { "k", "M", "G", "T", "P" } do
    if n < 999.95 then break end
    n, unit = n / 1000, next_unit
  end
  return (unit == "" and "%.0f%s" or "%.1f%s"):format(n, unit)
end

--- 23.4e9 operations -> "23.4 GFLOP".
function screen.flop(n) return (screen.short(n):gsub("^([%d.]+)(%a?)$", "%1 %2FLOP")) end

--- Seconds as 0:34, 12:05 or 1:02:03.
function screen.clock(seconds)
  local s = math.floor(seconds + 0.5)
  if s < 3600 then return ("%d:%02d"):format(s // 60, s % 60) end
  return ("%d:%02d:%02d"):format(s // 3600, s // 60 % 60, s % 60)
end

--- Bytes in MiB with one place, without the unit.
function screen.mib(bytes) return ("%.1f"):format(bytes / MIB) end

--- "5e1c09af77d2c340" -> "5e1c 09af 77d2 c340".
function screen.spaced(hash) return (hash:gsub("(%x%x%x%x)", "%1 "):gsub(" $", "")) end

--- The bits of an f32, an integer or already text, as eight hexadecimal digits.
function screen.bits(bits)
  return type(bits) == "number" and ("%08x"):format(bits) or tostring(bits)
end

--- A loss with four places, or the word for what is not finite.
function screen.loss(x)
  if x ~= x then return "nan" end
  if x == math.huge or x == -math.huge then return x > 0 and "inf" or "-inf" end
  return ("%.4f"):format(x)
end

local function norm_text(x)
  if x ~= x or x == math.huge then return screen.loss(x) end
  return x < 1e5 and ("%.3f"):format(x) or ("%.3e"):format(x)
end

--- The columns of the table: title, width, and the text of a record. Two spaces between them.
local columns = {
  { "step", 4, function(r) return ("%d"):format(r.step) end },
  { "loss", 6, function(r) return screen.loss(r.loss) end },
  { "bits", -8, function(r) return screen.bits(r.loss_bits) end },
  { "grad norm", 9, function(r) return norm_text(r.grad_norm) end },
  { "lr", 7, function(r) return ("%.1e"):format(r.lr) end },
  { "tok/s", 6, function(r) return screen.short(r.tokens_per_s) end },
  { "mfu", 4, function(r) return r.mfu and ("%.0f%%"):format(100 * r.mfu) or "-" end },
  { "MiB", 5, function(r) return screen.mib(r.bytes) end },
  { "eta", 4, function(r) return r.eta and screen.clock(r.eta) or "-" end },
}

--- The columns that have room, from the left; at least step and loss.
local function line_of(cell, width)
  local cells, used = {}, 0
  for i, column in ipairs(columns) do
    used = used + 2 + math.abs(column[2])
    if i > 2 and used >= (width or screen.columns_max) then break end
    cells[i] = ("%" .. column[2] .. "s"):format(cell(column))
  end
  return "  " .. table.concat(cells, "  ")
end

--- The titles above the table.
---@param width integer? # of the terminal
function screen.titles(width)
  return line_of(function(column) return column[1] end, width)
end

--- One row.
---@param record table # step, loss, loss_bits, grad_norm, lr, tokens_per_s, mfu?, bytes, eta?
---@param width integer? # of the terminal
function screen.row(record, width)
  return line_of(function(column) return column[3](record) end, width)
end

--- The means of extra losses, below a row: "  losses   probe 0.0123 (3c49ba5e), .."; nil without.
---@param names string[] # in the order of the model
function screen.losses(names, record)
  local parts, shown = {}, math.min(#names, 4)
  for i = 1, shown do
    parts[i] = ("%s %.4g (%s)"):format(names[i], record.losses[names[i]],
      record.losses_bits[names[i]])
  end
  if #names > shown then parts[#parts + 1] = ("%d more in the log"):format(#names - shown) end
  return #parts > 0 and "  losses   " .. table.concat(parts, ", ") or nil
end

--- The live line: how far, how well, how long still. `width` is that of the terminal, which a line
--- that reaches its end would break.
function screen.live(record, steps, width)
  local parts, text = {
    ("%d/%d"):format(record.step, steps), ("loss %.3f"):format(record.loss),
    screen.short(record.tokens_per_s) .. " tok/s",
    record.eta and screen.clock(record.eta) .. " left" or nil,
  }, ""
  for _, part in ipairs(parts) do -- those that have room
    if #text + #part + 2 < width then text = text .. "  " .. part end
  end
  local room = math.min(34, width - #text - 5)
  if room < 8 then return text end
  local filled = math.floor(room * math.min(1, record.step / steps))
  return "  [" .. ("#"):rep(filled) .. ("."):rep(room - filled) .. "]" .. text
end

--- Is this step shown as a row? The first and the last always are.
function screen.shows(step, last, every, terminal)
  if step == 1 or step == last then return true end
  if terminal then return step & (step - 1) == 0 end
  return step % every == 0
end

--- 1 -> "1 layer", 4 -> "4 layers".
local function plural(n, word)
  local ending = n == 1 and "" or (word:find "ch$" or word:find "ss$") and "es" or "s"
  return screen.grouped(n) .. " " .. word .. ending
end
screen.plural = plural

--- "853,120 weights in 39 tensors: 4 layers, dim 128, 8 heads over 4 kv heads, vocab 256"
function screen.model_text(summary)
  local parts = {}
  if summary.layers then parts[#parts + 1] = plural(summary.layers, "layer") end
  if summary.dim then parts[#parts + 1] = "dim " .. summary.dim end
  if summary.heads then
    local kv = summary.kv_heads and summary.kv_heads ~= summary.heads
    parts[#parts + 1] = plural(summary.heads, "head")
      .. (kv and " over " .. plural(summary.kv_heads, "kv head") or "")
  end
  if summary.vocab then parts[#parts + 1] = "vocab " .. screen.grouped(summary.vocab) end
  local text = ("%s in %s"):format(plural(summary.weights, "weight"),
    plural(summary.tensors, "tensor"))
  return #parts > 0 and text .. ": " .. table.concat(parts, ", ") or text
end

--- The axes of a layout that are larger than 1, and its pipeline: "tp 2, dp 2, pp 2 (1f1b, ..)".
function screen.layout_text(layout, pipeline)
  local parts = {}
  for _, axis in ipairs { "tp", "cp", "dp", "ep", "pp" } do
    local size = layout[axis] or 1
    if size > 1 then
      parts[#parts + 1] = axis .. " " .. size
        .. (axis == "pp" and pipeline and (" (%s)"):format(pipeline) or "")
    end
  end
  return table.concat(parts, ", ")
end

--- "1f1b, 4 micro-batches, bubble 20%"
function screen.pipeline_text(schedule, micros, bubble)
  return ("%s, %s, bubble %.0f%%"):format(schedule, plural(micros, "micro-batch"), 100 * bubble)
end

--- "policy layout (leaves tp 4, dp 8)"
function screen.policy_text(policy)
  local leaves = {}
  for _, axis in ipairs { "tp", "dp", "cp" } do
    local n = policy.leaves and policy.leaves[axis]
    if n and (n > 1 or axis ~= "cp") then leaves[#leaves + 1] = axis .. " " .. n end
  end
  return "policy " .. policy.name
    .. (#leaves > 0 and (" (leaves %s)"):format(table.concat(leaves, ", ")) or "")
end

--- A table of bytes as the list of kinds that memory_text takes.
function screen.kinds(bytes)
  local list = {}
  for name, count in pairs(bytes) do list[#list + 1] = { name, count } end
  return list
end

--- "39.7 MiB: weights 3.3, gradients 13.0 (4 leaf buffers), optimizer 6.5, activations 16.9"
-- `kinds` is a list of { name, bytes, remark? }; what rounds to 0.0 MiB is left out.
function screen.memory_text(bytes, kinds)
  local list = table.move(kinds, 1, #kinds, 1, {})
  local rank = { weights = 1, gradients = 2, optimizer = 3, activations = 4 }
  table.sort(list, function(a, b)
    local x, y = rank[a[1]] or 5, rank[b[1]] or 5
    if x ~= y then return x < y end
    return a[1] < b[1]
  end)
  local parts = {}
  for _, kind in ipairs(list) do
    local size = screen.mib(kind[2])
    if size ~= "0.0" then parts[#parts + 1] = kind[1] .. " " .. size .. (kind[3] or "") end
  end
  return ("%s MiB%s"):format(screen.mib(bytes),
    #parts > 0 and ": " .. table.concat(parts, ", ") or "")
end

--- The header's lines, from a title and { label, text } pairs; long texts wrap below 100 columns,
--- or those of a narrower terminal.
function screen.header(title, pairs_list, width)
  local lines = { title }
  local room = math.max(20, math.min(width or screen.columns_max, screen.columns_max) - 12)
  for _, pair in ipairs(pairs_list) do
    local label, line = pair[1], ""
    for word in pair[2]:gmatch "%S+" do
      if #line > 0 and #line + #word + 1 > room then
        lines[#lines + 1] = ("  %-8s %s"):format(label, line)
        label, line = "", ""
      end
      line = line == "" and word or line .. " " .. word
    end
    lines[#lines + 1] = ("  %-8s %s"):format(label, line)
  end
  return table.concat(lines, "\n")
end

--- A line below 100 columns, or several: what does not fit goes on below the text that stands
--- behind the label.
---@param line string # "  label   text"
---@return string
function screen.folded(line)
  local indent, lines = #(line:match "^%s*%S.-%s%s+" or line:match "^%s*"), {}
  while #line >= screen.columns_max do
    local border = line:sub(1, screen.columns_max):match "^.*() "
    if not border or border <= indent then -- one long word, such as a path
      border = line:find("%s%S", math.max(screen.columns_max, indent + 1))
    end
    if not border then break end
    lines[#lines + 1] = line:sub(1, border - 1)
    line = (" "):rep(indent) .. line:sub(border + 1)
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

--- How the program was called, for lines that say what to type next: from another folder ./tl is
--- not there.
function screen.program() return os.getenv "TIDELOCK_TYPED" or "./tl" end

--- One line of the summary: a label in eleven columns.
function screen.summary_line(label, text) return ("%-10s %s"):format(label, text) end

-- writing -------------------------------------------------------------------------------------

local Screen = {}
Screen.__index = Screen

---@class tidelock.ScreenOptions
---@field out file* # rows
---@field live file* # the live line
---@field terminal boolean # both are one terminal
---@field color boolean
---@field width fun(): integer # of the terminal, now
---@field quiet boolean

--- A screen that writes; options as above.
---@param options tidelock.ScreenOptions
function screen.new(options)
  return setmetatable({
    out = options.out, live_file = options.live, terminal = options.terminal,
    color = options.color, width = options.width, quiet = options.quiet, live_shown = false,
  }, Screen)
end

--- Is colour wanted? NO_COLOR with any text says no, whatever the terminal.
function screen.wants_color(terminal, no_color)
  return terminal and (no_color == nil or no_color == "")
end

local function clear_live(self)
  if not self.live_shown then return end
  self.live_file:write("\r\27[K")
  self.live_file:flush()
  self.live_shown = false
end

--- A line that stays, on stdout; quiet screens keep it back unless it is `always` wanted.
function Screen:print(text, always)
  if self.quiet and not always then return end
  clear_live(self)
  self.out:write(text, "\n")
  self.out:flush()
end

--- A message, on stderr.
function Screen:note(text)
  clear_live(self)
  self.live_file:write(text, "\n")
  self.live_file:flush()
end

--- Emphasis on a terminal that may show it.
function Screen:strong(text)
  return self.color and "\27[1m" .. text .. "\27[0m" or text
end

--- Replace the live line; nothing away from a terminal.
function Screen:update(record, steps)
  if self.quiet or not self.terminal then return end
  self.live_file:write("\r\27[K", screen.live(record, steps, self.width()))
  self.live_file:flush()
  self.live_shown = true
end

--- The live line goes away.
function Screen:close() clear_live(self) end

return screen
