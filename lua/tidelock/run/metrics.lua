--- metrics.lua - a run as Prometheus reads it: a text, replaced whole after every step.
--
--   ./tl run R --metrics /var/lib/node_exporter/tidelock.prom     a file
--   ./tl run R --metrics :9100                                    http://127.0.0.1:9100/metrics
--
--   # HELP tidelock_loss Mean over the target tokens of the global batch.
--   # TYPE tidelock_loss gauge
--   tidelock_loss 1.4326
--
-- A file is written beside the target and renamed, a page is handed over whole to the server's
-- thread (runtime/http.h): a reader sees one step or the next, never a part. Nothing is synced:
-- after a power cut the numbers are worth nothing. Counters count the steps of this process; a
-- resumed run starts them at 0, which Prometheus knows how to read.

local core = require "tidelock.core"
local loads = require "tidelock.run.loads"
local sorted_keys = require "tidelock.text.sorted_keys"

local metrics = {}

local Metrics = {}
Metrics.__index = Metrics

metrics.states = { "running", "finished", "stopped", "failed" }

--- Families in the order of the file: name, type, help. docs/operations.md lists them.
metrics.families = {
  { "tidelock_info", "gauge", "What runs; always 1." },
  { "tidelock_state", "gauge", "1 for the state that the run is in." },
  { "tidelock_step", "gauge", "The last step that was done, from 1." },
  { "tidelock_steps_planned", "gauge", "The step after which the run ends." },
  { "tidelock_last_step_timestamp_seconds", "gauge", "When the last step ended, since 1970." },
  { "tidelock_step_seconds", "gauge", "Time of the last step." },
  { "tidelock_step_duration_seconds", "summary", "Time of all steps." },
  { "tidelock_tokens_total", "counter", "Tokens of all steps." },
  { "tidelock_tokens_per_second", "gauge", "Of the last step." },
  { "tidelock_mfu", "gauge", "Work of the last step over what matrix products reach here." },
  { "tidelock_loss", "gauge", "Mean over the target tokens of the global batch." },
  { "tidelock_extra_loss", "gauge", "Mean of a loss that the model adds, by name." },
  { "tidelock_eval_loss", "gauge", "Loss of the last evaluation." },
  { "tidelock_grad_norm", "gauge", "Before clipping." },
  { "tidelock_learning_rate", "gauge", "Of the last step." },
  { "tidelock_skipped_steps_total", "counter", "Steps that changed no weight." },
  { "tidelock_nan_steps_total", "counter", "Steps that ended the run with NaN or Inf." },
  { "tidelock_memory_bytes", "gauge", "Peak of all arenas until now." },
  { "tidelock_memory_planned_bytes", "gauge", "What the plan says of them." },
  { "tidelock_plan_deviation_ratio", "gauge", "Measured over planned, less 1, by what." },
  { "tidelock_path_bytes_total", "counter", "Bytes by the way that they took." },
  { "tidelock_comm_bytes_total", "counter", "Bytes between ranks in all steps, by axis." },
  { "tidelock_comm_planned_bytes", "gauge", "What the plan says of a step, by axis." },
  { "tidelock_comm_wait_seconds_total", "counter", "That a rank has waited for others." },
  { "tidelock_clock_hertz", "gauge", "Of what computes, where it is reported." },
  { "tidelock_temperature_celsius", "gauge", "Of what computes, where it is reported." },
  { "tidelock_power_watts", "gauge", "Of what computes, where it is reported." },
  { "tidelock_exchange_bytes_total", "counter", "Bytes of experts' rows, by rank and path." },
  { "tidelock_expert_rows", "gauge", "Rows of an expert in the last step." },
  { "tidelock_expert_max_over_mean", "gauge", "Rows of the fullest expert over their mean." },
  { "tidelock_weights_info", "gauge", "Hash of all weights at the last checkpoint or the end." },
}

local escapes = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }

local function value_text(x)
  if x ~= x then return "NaN" end
  if x == math.huge then return "+Inf" end
  if x == -math.huge then return "-Inf" end
  return math.type(x) == "integer" and tostring(x) or ("%.17g"):format(x)
end

--- 'name{a="x",b="y"} 1'; labels are pairs in order.
function metrics.sample(name, value, labels)
  local words = {}
  for i = 1, #(labels or {}), 2 do
    local text = tostring(labels[i + 1]):gsub('[\\"\n]', escapes)
    words[#words + 1] = ('%s="%s"'):format(labels[i], text)
  end
  local inner = #words > 0 and "{" .. table.concat(words, ",") .. "}" or ""
  return ("%s%s %s"):format(name, inner, value_text(value))
end

local function fail(format, ...)
  error({ status = 2, message = "tidelock: --metrics " .. format:format(...) }, 0)
end

--- The text of all that is known; a family without samples is left out.
local function text_of(self)
  local lines = {}
  for _, family in ipairs(metrics.families) do
    local samples = self.samples[family[1]]
    if samples then
      lines[#lines + 1] = ("# HELP %s %s"):format(family[1], family[3])
      lines[#lines + 1] = ("# TYPE %s %s"):format(family[1], family[2])
      table.move(samples, 1, #samples, #lines + 1, lines)
    end
  end
  lines[#lines + 1] = ""
  return table.concat(lines, "\n")
end

--- What was asked for beside /metrics is answered when a step ends.
local function answer_others(server)
  local asked = server:next(0)
  while asked do
    if not asked.gone then server:reply(asked.id, 404, "GET /metrics\n", "text/plain") end
    asked = server:next(0)
  end
end

--- Replaces the file or the page; nil and a message where that fails.
local function write(self)
  if self.server then
    self.server:page("/metrics", "text/plain; version=0.0.4; charset=utf-8", text_of(self), true)
    answer_others(self.server)
    return true
  end
  local file, message = io.open(self.temporary, "w")
  local good = file
  if file then
    good, message = file:write(text_of(self))
    local closed, late = file:close()
    if good and not closed then good, message = nil, late end
  end
  if good then good, message = os.rename(self.temporary, self.path) end
  return good, message
end

--- Sets the samples of a family to one value, or takes it out.
local function set(self, name, value, labels)
  self.samples[name] = value and { metrics.sample(name, value, labels) } or nil
end

local function set_state(self, state)
  local list = {}
  for i, name in ipairs(metrics.states) do
    list[i] = metrics.sample("tidelock_state", name == state and 1 or 0, { "state", name })
  end
  self.samples.tidelock_state = list
end

--- The server of "HOST:PORT", or of ":PORT" on this machine alone; nil for a file.
local function server_of(path)
  local host, port = path:match "^([%d.]*):(%d+)$"
  if not host then host, port = path:match "^%[([%x:]+)%]:(%d+)$" end
  if path:find "^%d+$" then
    fail("%s: a port is written :%s, and a file of this name ./%s", path, path, path)
  end
  if not host then return nil end
  port = math.tointeger(tonumber(port))
  if not port or port > 65535 then fail("%s: a port is a number up to 65535", path) end
  local server, message = core.http { host = host ~= "" and host or "127.0.0.1", port = port }
  if not server then fail("%s: %s", path, message) end
  return server, ("http://%s:%d/metrics"):format(host ~= "" and host or "127.0.0.1",
    server:port())
end

---@param path string # a file, ":PORT" or "HOST:PORT"
---@param about string[] # labels of tidelock_info: name, value, name, value ..
---@param last integer # the step after which the run ends
function metrics.open(path, about, last)
  local server, address = server_of(path)
  local self = setmetatable({
    server = server, address = address,
    path = path, temporary = ("%s.tmp-%d"):format(path, core.files.getpid()), samples = {},
    seconds = 0.0, count = 0, tokens = 0, skipped = 0, ways = {},
    exchanged = {},
  }, Metrics)
  set(self, "tidelock_info", 1, about)
  set(self, "tidelock_steps_planned", last)
  set(self, "tidelock_nan_steps_total", 0)
  set_state(self, "running")
  local good, message = write(self)
  if not good then fail("%s: cannot write it: %s", path, message) end
  return self
end

local function set_experts(self, experts)
  local rows, most = {}, {}
  for _, layer in ipairs(experts) do
    local total, largest = 0, 0
    for i, count in ipairs(layer.load) do
      rows[#rows + 1] = metrics.sample("tidelock_expert_rows", count,
        { "layer", layer.name, "expert", i - 1 })
      total, largest = total + count, math.max(largest, count)
    end
    most[#most + 1] = metrics.sample("tidelock_expert_max_over_mean",
      total > 0 and largest * #layer.load / total or 0, { "layer", layer.name })
  end
  self.samples.tidelock_expert_rows, self.samples.tidelock_expert_max_over_mean = rows, most
end

--- Bytes of experts' rows so far, of every rank and path.
local function set_exchange(self, exchange)
  local list = {}
  for i, one in ipairs(exchange) do
    local total = self.exchanged[i] or { rank = one.rank }
    self.exchanged[i] = total
    for _, path in ipairs(loads.paths) do
      total[path] = (total[path] or 0) + one[path]
      list[#list + 1] = metrics.sample("tidelock_exchange_bytes_total", total[path],
        { "rank", one.rank, "path", path })
    end
  end
  self.samples.tidelock_exchange_bytes_total = list
end

local function set_losses(self, losses)
  local list = {}
  for i, name in ipairs(sorted_keys(losses)) do
    list[i] = metrics.sample("tidelock_extra_loss", losses[name], { "name", name })
  end
  self.samples.tidelock_extra_loss = list
end

--- Samples of a list: `item` gives value and labels of an entry, or nothing.
local function set_list(self, name, list, item)
  local samples = {}
  for _, entry in ipairs(list) do
    local value, labels = item(entry)
    if value then samples[#samples + 1] = metrics.sample(name, value, labels) end
  end
  self.samples[name] = #samples > 0 and samples or nil
end

--- Bytes by the way that they took; ways that were not taken are left out.
local function set_ways(self)
  set_list(self, "tidelock_path_bytes_total", { "threads", "processes", "checkpoint" },
    function(way)
      local bytes = self.ways[way]
      return bytes and bytes > 0 and bytes or nil, { "path", way }
    end)
end

--- Messages and deviations from the plan, as observer.lua has them.
local function set_observed(self, seen)
  local moved = 0
  set_list(self, "tidelock_comm_bytes_total", seen.axes, function(one)
    moved = moved + (one.total or 0)
    return one.total, { "axis", one.axis, "path", seen.path }
  end)
  set_list(self, "tidelock_comm_planned_bytes", seen.axes, function(one)
    return one.planned, { "axis", one.axis }
  end)
  set_list(self, "tidelock_comm_wait_seconds_total", seen.waits, function(one)
    return one.seconds, { "rank", one.rank }
  end)
  set_list(self, "tidelock_plan_deviation_ratio", { "memory", "messages", "step" }, function(what)
    return seen.deviation[what], { "what", what }
  end)
  self.ways[seen.path] = moved
  set_ways(self)
end

--- Clock, temperature and power: { clock_mhz, celsius, watts }, each where it is known.
local function set_vitals(self, now)
  set(self, "tidelock_clock_hertz", now.clock_mhz and now.clock_mhz * 1e6)
  set(self, "tidelock_temperature_celsius", now.celsius)
  set(self, "tidelock_power_watts", now.watts)
end

local function set_time(self, record)
  local name = "tidelock_step_duration_seconds"
  self.seconds, self.count = self.seconds + record.ms / 1000, self.count + 1
  set(self, "tidelock_step", record.step)
  set(self, "tidelock_last_step_timestamp_seconds", os.time())
  set(self, "tidelock_step_seconds", record.ms / 1000)
  self.samples[name] = { metrics.sample(name .. "_sum", self.seconds),
    metrics.sample(name .. "_count", self.count) }
end

---@class tidelock.Observed # what stands beside the record of a step
---@field skipped? any # the step changed no weight
---@field planned integer # bytes of the arenas
---@field seen? table # of observer.lua
---@field vitals? tidelock.Vitals

--- A step was done. What cannot be written is returned as a message, and the run goes on.
---@param record table # as in the log
---@param more tidelock.Observed
function Metrics:step(record, more)
  set_time(self, record)
  self.tokens = self.tokens + record.tokens
  self.skipped = self.skipped + (more.skipped and 1 or 0)
  set(self, "tidelock_tokens_total", self.tokens)
  set(self, "tidelock_tokens_per_second", record.tokens_per_s)
  set(self, "tidelock_mfu", record.mfu)
  set(self, "tidelock_loss", record.loss)
  set(self, "tidelock_grad_norm", record.grad_norm)
  set(self, "tidelock_learning_rate", record.lr)
  set(self, "tidelock_skipped_steps_total", self.skipped)
  set(self, "tidelock_memory_bytes", record.bytes)
  set(self, "tidelock_memory_planned_bytes", more.planned)
  if more.seen then set_observed(self, more.seen) end
  if more.vitals then set_vitals(self, more.vitals) end
  if record.eval_loss then set(self, "tidelock_eval_loss", record.eval_loss) end
  if record.exchange then set_exchange(self, record.exchange) end
  if record.losses then set_losses(self, record.losses) end
  if record.experts then set_experts(self, record.experts) end
  local good, message = write(self)
  return not good and ("%s: cannot write it: %s"):format(self.path, message) or nil
end

--- A checkpoint of `bytes` was begun after `step`; its weights have this hash.
function Metrics:checkpoint(step, hash, bytes)
  self.ways.checkpoint = (self.ways.checkpoint or 0) + bytes
  set_ways(self)
  set(self, "tidelock_weights_info", 1, { "step", step, "hash", hash })
end

--- The run is over: "finished", "stopped" by a signal, or "failed".
---@param state string
---@param last? { step: integer, hash: string } # of the weights
---@param problem? any # what was raised
function Metrics:finish(state, last, problem)
  set_state(self, state)
  local text = type(problem) == "table" and problem.message or tostring(problem)
  local nan = text:find "is %-?[Nn]a[Nn]" or text:find "is %-?[Ii]nf" or text:find "the loss is"
  set(self, "tidelock_nan_steps_total", nan and 1 or 0)
  if last then set(self, "tidelock_weights_info", 1, { "step", last.step, "hash", last.hash }) end
  write(self)
  if self.server then self.server:close() end
  self.server = nil
end

return metrics
