--- serve/metrics.lua - what ./tl serve counts, as Prometheus reads it at /metrics.
local metrics = require "tidelock.run.metrics"
local screen = require "tidelock.text.screen"
local sorted_keys = require "tidelock.text.sorted_keys"

local serve_metrics = {}

--- Families in order: name, type, help, and where the value comes from. docs/operations.md lists
--- them.
serve_metrics.families = {
  { "tidelock_serve_info", "gauge", "The model; always 1." },
  { "tidelock_serve_answers_total", "counter", "Answers by status." },
  { "tidelock_serve_left_total", "counter", "Requests whose client left before their end." },
  { "tidelock_serve_tokens_total", "counter", "Tokens that were made." },
  { "tidelock_serve_first_token_seconds", "histogram", "From a request to its first token." },
  { "tidelock_serve_request_seconds", "histogram", "From a request to its answer's end." },
  { "tidelock_serve_running", "gauge", "Requests that the engine works on." },
  { "tidelock_serve_waiting", "gauge", "Requests that wait for a slot or for pages." },
  { "tidelock_serve_pages", "gauge", "Pages of the pool." },
  { "tidelock_serve_pages_free", "gauge", "Pages that nobody needs." },
  { "tidelock_serve_pages_kept", "gauge", "Pages of known prefixes that no request reads now." },
  { "tidelock_serve_prefix_hits_total", "counter", "Pages that were found, not computed." },
  { "tidelock_serve_steps_total", "counter", "Steps of the engine." },
  { "tidelock_serve_rows_total", "counter", "Rows that these steps computed." },
}

--- Upper bounds of the buckets of seconds, as they are written.
local bounds = { "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1",
  "2.5", "5", "10", "25", "60", "+Inf" }

local function histogram()
  local self = { sum = 0, counts = {} }
  for i = 1, #bounds do self.counts[i] = 0 end
  return self
end

---@class tidelock.ServeMetrics
local Metrics = {}
Metrics.__index = Metrics

---@param model string
---@param http tidelock.Http
---@return tidelock.ServeMetrics
function serve_metrics.new(model, http)
  return setmetatable({ model = model, http = http, statuses = {}, left_count = 0, tokens = 0,
    first = histogram(), requests = histogram() }, Metrics)
end

function Metrics:answered(status) self.statuses[status] = (self.statuses[status] or 0) + 1 end

function Metrics:left() self.left_count = self.left_count + 1 end

--- A bucket counts all that is not above its bound.
local function observe(seen, seconds)
  seen.sum = seen.sum + seconds
  for i, bound in ipairs(bounds) do
    if seconds <= (tonumber(bound) or math.huge) then seen.counts[i] = seen.counts[i] + 1 end
  end
end

--- A token was made; `first`: after so many seconds, where it is the first of its request.
function Metrics:token(first)
  self.tokens = self.tokens + 1
  if first then observe(self.first, first) end
end

function Metrics:whole(seconds) observe(self.requests, seconds) end

--- Answers by status: ours, and those that the HTTP side gives by itself.
local function count_all(self)
  local counts = {}
  for status, count in pairs(self.statuses) do counts[status] = count end
  for _, status in ipairs { 400, 401, 413, 417, 429, 501, 503 } do
    local refused = self.http:refused(status)
    if refused > 0 then counts[status] = (counts[status] or 0) + refused end
  end
  return counts
end

--- The whole text. `stats` are the engine's.
function Metrics:text(stats)
  local samples, counts = {}, count_all(self)
  local function put(name, ...)
    samples["tidelock_serve_" .. name] = { metrics.sample("tidelock_serve_" .. name, ...) }
  end
  local function put_histogram(name, seen)
    local full, lines = "tidelock_serve_" .. name, {}
    for i, bound in ipairs(bounds) do
      lines[i] = metrics.sample(full .. "_bucket", seen.counts[i], { "le", bound })
    end
    lines[#lines + 1] = metrics.sample(full .. "_sum", seen.sum)
    lines[#lines + 1] = metrics.sample(full .. "_count", seen.counts[#bounds])
    samples[full] = lines
  end
  put("info", 1, { "model", self.model })
  local list = {}
  for i, status in ipairs(sorted_keys(counts)) do
    list[i] = metrics.sample("tidelock_serve_answers_total", counts[status],
      { "status", status })
  end
  samples.tidelock_serve_answers_total = list
  put("left_total", self.left_count)
  put("tokens_total", self.tokens)
  put_histogram("first_token_seconds", self.first)
  put_histogram("request_seconds", self.requests)
  put("running", stats.running)
  put("waiting", stats.waiting)
  put("pages", stats.pages)
  put("pages_free", stats.free)
  put("pages_kept", stats.kept)
  put("prefix_hits_total", stats.hits)
  put("steps_total", stats.steps)
  put("rows_total", stats.rows)
  local lines = {}
  for _, family in ipairs(serve_metrics.families) do
    lines[#lines + 1] = ("# HELP %s %s"):format(family[1], family[3])
    lines[#lines + 1] = ("# TYPE %s %s"):format(family[1], family[2])
    table.move(samples[family[1]], 1, #samples[family[1]], #lines + 1, lines)
  end
  return table.concat(lines, "\n") .. "\n"
end

--- One line for the end of the server.
function Metrics:summary()
  local words, counts = {}, count_all(self)
  for _, status in ipairs(sorted_keys(counts)) do
    words[#words + 1] = ("%s with %d"):format(screen.plural(counts[status], "answer"), status)
  end
  if #words == 0 then words[1] = "no request came" end
  return ("%s; %s made"):format(table.concat(words, ", "), screen.plural(self.tokens, "token"))
end

return serve_metrics
