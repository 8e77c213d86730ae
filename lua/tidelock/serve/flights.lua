--- flights.lua - steps of the engine that are under way, at most two: while the device computes
--- one, the one before it is read and told as events, and the one after it is prepared.
---
---     take_off   rows of the next step are chosen and queued
---     land       waits for the oldest step, and settles what its rows have come to
---
---     device    | step 1         | step 2         | step 3         |
---     host        queue 2, wait 1 | settle 1, queue 3, wait 2 | settle 2, ..
---
--- A step that is queued ahead takes what it can know: how far each request will be, but not the
--- tokens that the step under way chooses. Those are fed as places among its ids (sampling.h,
--- `follow`). A request that will be as long as it may be takes no row; one that turns out to have
--- met a stop, or is cancelled meanwhile, has taken one in vain, and keeps slot and pages until
--- that step has ended. No bit depends on any of it.
local core = require "tidelock.core"
local feeds = require "tidelock.serve.feed"

local flights = {}

local carried_most = 1000 -- tensors that a queued step takes along, less than ranks:queue does

---@class tidelock.Flight
---@field spans tidelock.Span[]
---@field rows integer # that are used
---@field count integer # of the rows that have an id, those of the section or those that choose
---@field place integer # of the queue of runs, 0 or 1
---@field tops boolean # logits of some rows are read

--- The rank of the pipeline, as planned, that `rank` is: ranks count tp first.
function flights.stage_of(plan, rank) return plan.ranks[rank // plan.spec.layout.tp + 1] end

--- The pipeline's last rank, which chooses the tokens, and a tensor of it.
function flights.last(self) return (#self.plan.ranks - 1) * self.plan.spec.layout.tp end

function flights.tensor(self, key)
  return self.plan.ranks[#self.plan.ranks].persistent[key].tensor
end

--- Calls what works on ranks. Where in this code one that fails was called is nobody's business.
local function on_ranks(call, ...)
  local good, first, second = pcall(call, ...)
  if good then return first, second end
  error(type(first) == "string" and first:gsub("^[^\n]-%.lua:%d+: ", "") or first, 0)
end

--- The next step begins with these elements of a tensor, on every rank that has it.
function flights.write(self, key, from)
  for rank = 0, self.ranks:count() - 1 do
    local view = flights.stage_of(self.plan, rank).persistent[key]
    if view and #self.carried >= 3 * carried_most then
      self.ranks:write(rank, view.tensor, from)
    elseif view then
      table.move({ rank, view.tensor, from }, 1, 3, #self.carried + 1, self.carried)
    end
  end
end

-- requests that end ------------------------------------------------------------------------------

local function remove(list, item)
  for i, other in ipairs(list) do
    if other == item then return table.remove(list, i) end
  end
end

--- Gives back slot and pages. Later pages go first: they are the first to be forgotten.
local function release(self, request)
  if request.slot then
    for i = #request.pages, 1, -1 do self.pages:release(request.pages[i]) end
    self.free_slots[#self.free_slots + 1] = request.slot
    remove(self.running, request)
  else
    remove(self.waiting, request)
  end
end

--- The request wants no more rows. What it holds it gives back when no step under way has one.
function flights.finish(self, request)
  request.finished = true
  self.by_id[request.id] = nil
  if request.flying == 0 then release(self, request) end
end

-- take off ---------------------------------------------------------------------------------------

--- Its last row chooses a token.
local function note_choice(request, span)
  span.chooses = span.first + span.count == #request.tokens + request.pending
  if span.chooses then request.pending = request.pending + 1 end
end

local function add_span(spans, place, request, at, count)
  local span, first = request.spans[place], request.planned
  span.at, span.first, span.count = at, first, count
  span.decodes = #request.tokens + request.pending - first == 1
  span.token = span.decodes and (request.tokens[first + 1] or -2 - request.row) or nil
  spans[#spans + 1] = span
  note_choice(request, span)
  request.planned, request.flying = first + count, request.flying + 1
end

--- Rows of the next step, as spans (feed.lua), and how many. Requests that decode come first.
local function choose_rows(self, place)
  local spans, rows, most = {}, 0, self.sizes.rows
  for _, request in ipairs(self.running) do
    local length = #request.tokens + request.pending
    local wants = length - request.planned == 1 and not request.finished
      and (request.pending == 0 or length < request.last)
    if wants and rows < most then
      rows = rows + 1
      add_span(spans, place, request, rows, 1)
    end
  end
  for _, request in ipairs(self.running) do
    local left = #request.tokens + request.pending - request.planned
    local count = left > 1 and not request.finished and math.min(left, self.chunk, most - rows)
      or 0
    if count > 0 then
      add_span(spans, place, request, rows + 1, count)
      rows = rows + count
    end
  end
  return spans, rows
end

--- The short section of a class, where the step can be one: nobody wants to know about rows that do
--- not choose.
local function find_short(self, spans, class)
  local choices = 0
  for _, span in ipairs(spans) do
    if span.request.echo then return nil end
    if span.chooses then choices = choices + 1 end
  end
  for _, short in ipairs(self.plan.shorts) do
    if short.class == class and choices <= self.plan.choosers then return short end
  end
end

--- Where each choice will stand among the ids of the step.
local function place_choices(spans, short)
  local choices = 0
  for _, span in ipairs(spans) do
    span.choice = nil
    if span.chooses then
      choices = choices + 1
      span.choice = short and choices or span.at + span.count - 1
      span.request.row = span.choice - 1
    end
  end
end

--- Queues a step, if some request wants rows.
function flights.take_off(self)
  local place = self.flights[1] and 1 - self.flights[1].place or 0
  local spans, rows = choose_rows(self, place)
  if rows == 0 then return end
  local class, tops = 1, false
  while self.plan.classes[class] < rows do class = class + 1 end
  for _, span in ipairs(spans) do tops = tops or span.request.top > 0 end
  local short, count = find_short(self, spans, class), self.plan.classes[class]
  local section, key = class - 1, "feed " .. count
  local lists, controls
  place_choices(spans, short)
  if short then
    lists, controls = self.feed:fill_short(spans, rows, count, self.plan.choosers)
    section, key, count = short.index, key .. " short", self.plan.choosers
  else
    lists, controls = self.feed:fill(spans, rows, count)
  end
  flights.write(self, key, lists)
  if controls then flights.write(self, "controls " .. count, controls) end
  local last = flights.last(self)
  on_ranks(self.ranks.queue, self.ranks, place, "serve" .. section, { step = self.steps,
    fresh = self.plain }, self.carried, { last, flights.tensor(self, "ids " .. count),
      last, flights.tensor(self, "nll " .. count) })
  if controls then controls:close() end
  self.carried = {}
  self.flights[#self.flights + 1] = { spans = spans, rows = rows, count = count, place = place,
    tops = tops }
end

--- Whether the step after the one under way may be queued now: not while logits are to be read.
function flights.may_go_ahead(self)
  return self.ahead and #self.flights == 1 and not self.flights[1].tops
end

-- land -------------------------------------------------------------------------------------------

--- Pages that have become full of tokens may be found by others.
local function name_pages(self, request)
  for index = #request.serials + 1, request.done // self.sizes.page do
    local parent = index == 1 and 0 or request.serials[index - 1]
    local serial = self.pages:name(request.pages[index], parent, request.tokens, index)
    if not serial then return end
    request.serials[index] = serial
  end
end

local function finish_of(request, token)
  if request.stop[token] then return "stop" end
  if #request.tokens >= request.last then return "length" end
end

--- The likeliest tokens of row `index` of the last step's logits, with their log-probabilities: by
--- falling logit, equal ones by rising id.
local function top_of(self, logits, index, count)
  local z, n = logits:narrow(1, index, 1), self.plan["local"].n
  local flat, list = z:flat(), {}
  for id = 0, self.vocab - 1 do
    local place = #list + 1
    while place > 1 and flat[list[place - 1].token + 1] < flat[id + 1] do place = place - 1 end
    if place <= count then
      table.insert(list, place, { token = id })
      list[count + 1] = nil
    end
  end
  local function stat() return core.tensor("f32", { 1 }) end
  local m, s, zt, zsum, nll = stat(), stat(), stat(), stat(), stat()
  core.call("row_max", { z }, { m }, { columns = self.vocab })
  for _, entry in ipairs(list) do
    local target = core.tensor("i32", { 1 }, { entry.token })
    core.call("row_sum_exp", { z, m, target }, { s, zt, zsum }, { columns = self.vocab, first = 0,
      leaves = n })
    core.call("cross_entropy", { m, s, zt, zsum, target }, { nll }, { vocab = self.vocab,
      smoothing = 0, z = 0 })
    entry.logprob = -nll:flat()[1]
  end
  return list
end

--- What a row has come to, as an event. `known`: its next token, where it was given.
local function settle(request, position, known, token, nll, bits)
  if known < 0 and token < 0 then -- a GPU's way to say what the host says by itself
    error({ status = 1, message = ("request %d: the logits at position %d hold a NaN or "
      .. "Inf"):format(request.id, position) }, 0)
  end
  local event = { id = request.id, token = token, position = position + 1, logprob = -nll,
    logprob_bits = bits ~ 0x80000000 }
  if known >= 0 then
    event.prompt = true
    return event
  end
  request.tokens[#request.tokens + 1] = token
  event.finish = finish_of(request, token)
  if event.finish then request.finished = true end
  return event
end

--- Tokens of a step's rows: at(row) -> token, nll, bits. Of a step that makes few tokens these are
--- read one by one.
local function results(flight, ids, nll)
  local few = #flight.spans * 8 < flight.rows
  for _, span in ipairs(flight.spans) do few = few and not span.request.echo end
  if few then
    return function(row)
      local id <close> = ids:narrow(1, row, 1)
      local loss <close> = nll:narrow(1, row, 1)
      return id:flat()[1], loss:flat()[1], loss:bits()[1]
    end
  end
  local tokens, losses, bits = ids:flat(), nll:flat(), nll:bits()
  return function(row) return tokens[row], losses[row], bits[row] end
end

--- Events of a span's rows.
local function settle_span(self, flight, span, at, events)
  local request, first, logits = span.request, span.first, nil
  for k = request.echo and 0 or span.count - 1, span.count - 1 do
    local known = feeds.next_of(span, k)
    local row = known == -1 and span.choice or span.at + k
    if known ~= -2 then -- else of a prompt, without echo
      local event = settle(request, first + k, known, at(row))
      if request.top > 0 then
        logits = logits or self.ranks:read(flights.last(self),
          flights.tensor(self, "logits " .. flight.count))
        event.top = top_of(self, logits, row, request.top)
      end
      events[#events + 1] = event
    end
  end
  request.done = first + span.count
end

--- Waits for the oldest step, and adds its events.
function flights.land(self, events)
  local flight = table.remove(self.flights, 1)
  local ids, nll = on_ranks(self.ranks.await, self.ranks, flight.place)
  local at = results(flight, ids, nll)
  self.steps, self.rows_run = self.steps + 1, self.rows_run + flight.rows
  for _, span in ipairs(flight.spans) do
    local request = span.request
    request.flying = request.flying - 1
    span.vain = request.finished
    if span.chooses then request.pending = request.pending - 1 end
    if not span.vain then settle_span(self, flight, span, at, events) end
  end
  for _, span in ipairs(flight.spans) do
    local request = span.request
    local is_full = not span.decodes or request.done % self.sizes.page == 0
    if is_full and not span.vain then name_pages(self, request) end
    if span.vain and request.flying == 0 then
      release(self, request)
    elseif request.finished and not span.vain then
      flights.finish(self, request)
    end
  end
  ids:close()
  nll:close()
end

--- Steps all of whose requests have ended are waited for: nobody else will.
function flights.land_over(self)
  while self.flights[1] do
    for _, span in ipairs(self.flights[1].spans) do
      if not span.request.finished then return end
    end
    flights.land(self, {})
  end
end

return flights
