--- `./tl bench`: measurements of this machine, as tables.
--
--   ./tl bench                 all of them
--   ./tl bench matmul          matrix products beside OpenBLAS
--   ./tl bench gemm            matrix products on a GPU beside PyTorch
--   ./tl bench attention       attention on a GPU beside PyTorch
--   ./tl bench moe             mixtures of experts on a GPU beside PyTorch
--   ./tl bench rowwise         kernels that move bytes, on a GPU, beside a copy
--   ./tl bench step            the quickstart's training step beside PyTorch; time by operator
--   ./tl bench plan            planning 1,024 ranks
--   ./tl bench ranks           eight thread ranks against one
--   ./tl bench serve           generation: speed, and steadiness under load
--   ./tl bench trace           a traced step against one that is not
--   ./tl bench capture         on a GPU: a step replayed as a graph against one queued eagerly
--
-- Peers (tests/peers/*.py) take turns with Tidelock, round by round; where numpy or PyTorch is not
-- installed the tables say so. A kind of measurement is a module with tables(options), which
-- returns { title, columns, rows, notes } for each table.

local core = require "tidelock.core"
local requests = require "tidelock.requests"

local bench = {}

--- In the order in which all of them run.
local kinds = {
  { "plan", require "tidelock.bench_plan" },
  { "matmul", require "tidelock.bench_matmul" },
  { "gemm", require "tidelock.bench_gemm" },
  { "attention", require "tidelock.bench_attention" },
  { "moe", require "tidelock.bench_moe" },
  { "rowwise", require "tidelock.bench_rowwise" },
  { "step", require "tidelock.bench_step" },
  { "ranks", require "tidelock.bench_ranks" },
  { "serve", require "tidelock.bench_serve" },
  { "trace", require "tidelock.bench_trace" },
  { "capture", require "tidelock.bench_capture" },
}

--- Columns of text, each as wide as its widest cell; Markdown.
function bench.markdown(result)
  local widths, lines = {}, { "### " .. result.title, "" }
  local function measure(cells)
    for i, cell in ipairs(cells) do widths[i] = math.max(widths[i] or 3, #tostring(cell)) end
  end
  measure(result.columns)
  for _, row in ipairs(result.rows) do measure(row) end
  local function add(cells)
    local texts = {}
    for i, cell in ipairs(cells) do
      texts[i] = ("%" .. (i == 1 and "-" or "") .. widths[i] .. "s"):format(cell)
    end
    lines[#lines + 1] = "| " .. table.concat(texts, " | ") .. " |"
  end
  add(result.columns)
  local rule = {}
  for i, width in ipairs(widths) do rule[i] = ("-"):rep(width - 1) .. (i == 1 and "-" or ":") end
  add(rule)
  for _, row in ipairs(result.rows) do add(row) end
  lines[#lines + 1] = ""
  for _, note in ipairs(result.notes) do lines[#lines + 1] = "- " .. note end
  return table.concat(lines, "\n") .. "\n"
end

--- The processor and what runs it.
function bench.machine()
  local model, load = "unknown processor", "?"
  for _, source in ipairs { { "/proc/cpuinfo", "model name%s*:%s*([^\n]+)" },
    { "/proc/loadavg", "^(%S+)" } } do
    local file = io.open(source[1])
    local found = file and file:read("a"):match(source[2])
    if file then file:close() end
    if source[1] == "/proc/loadavg" then load = found or load else model = found or model end
  end
  return ("%s, %d cores, load %s at start"):format(model, core.files.cpu_count(), load)
end

local function options_of(request)
  local given = request.options
  return {
    recipe = request.recipe or "recipes/quickstart.lua", overrides = request.overrides,
    rounds = given.rounds or 7, steps = given.steps or 2, size = given.size,
    threads = given.threads or core.files.cpu_count(), alone = given.alone,
    count = given.count, rate = given.rate, requests = given.requests,
  }
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function bench.command(request)
  local options, form = options_of(request), request.options.output or "md"
  local machine, all = bench.machine(), {}
  core.catch_interrupts()
  if form == "md" then io.stdout:write(machine, "\n\n") end
  for _, kind in ipairs(kinds) do
    local wanted = not core.interrupted() and (request.topic or kind[1]) == kind[1]
    for _, result in ipairs(wanted and kind[2].tables(options) or {}) do
      all[#all + 1] = result
      if form == "md" then
        io.stdout:write(bench.markdown(result), "\n")
        io.stdout:flush()
      end
    end
  end
  if form == "json" then
    io.stdout:write(core.json.encode { machine = machine, tables = all }, "\n")
  end
  return core.interrupted() and requests.stopped or 0
end

return bench
