--- engine.lua - many requests on one model: continuous batching over pages of keys and values.
---
---     local e <close> = engine.open(loader.open "runs/quickstart-eaf6")
---     local id = e:submit { tokens = { 84, 105 }, max_tokens = 20, temperature = 0.8, seed = 1 }
---     while not e:idle() do
---       for _, event in ipairs(e:step()) do print(event.id, event.token, event.finish) end
---     end
---
---     waiting  [ r7 r8 ]        in order of arrival, until a slot and all its pages are there
---     running  [ r3 r5 r6 ]     a step takes a row of each that decodes, then parts of prompts in
---                               order of arrival, while there are rows
---     events   { id, token, logprob }     as they are made; the last of a request has finish
---
--- A request takes all pages it can need when it begins, so none is ever thrown out half way. What
--- a request gives depends on its tokens, its controls, seed and number alone: neighbours, chunks,
--- pages, prefixes and time change no bit (plan/serving.lua, kernels/cache/cache.h).
local blocks = require "tidelock.language.blocks"
local core = require "tidelock.core"
local emit = require "tidelock.plan.stages.emit"
local feeds = require "tidelock.serve.feed"
local gpus = require "tidelock.machine.gpus"
local pages = require "tidelock.serve.pages"
local problems = require "tidelock.text.problems"
local room = require "tidelock.machine.room"
local screen = require "tidelock.text.screen"
local serving = require "tidelock.plan.serving"
local submission = require "tidelock.serve.submission"

local engine = {}

local next_of = feeds.next_of

---@class tidelock.Engine
---@field plan tidelock.ServingPlan
---@field vocab integer
---@field context integer # tokens of a request at most
---@field steps integer # that were run
local Engine = {}
Engine.__index = Engine

---@class tidelock.Event
---@field id integer # of the request, as submit gave it
---@field token? integer # nil only where a request ends without one (cancel)
---@field position? integer # of the token in its request, from 0
---@field logprob? number # natural logarithm, of the model's own distribution
---@field logprob_bits? integer
---@field prompt? boolean # the token was given: with `echo`
---@field top? { token: integer, logprob: number }[] # the likeliest tokens, with `top`
---@field finish? "stop"|"length"|"cancelled" # the last event of its request

--- The rank of the pipeline, as planned, that `rank` is: ranks count tp first.
local function stage_of(plan, rank) return plan.ranks[rank // plan.spec.layout.tp + 1] end

--- The weights of the model go to every rank that holds a part of them.
local function load_weights(self, read)
  for rank = 0, self.ranks:count() - 1 do
    local stage, tp = stage_of(self.plan, rank), rank % self.plan.spec.layout.tp
    local persistent = stage.persistent
    for _, param in ipairs(stage.params) do
      local part = read(param, emit.resolve(param.row_first, tp),
        emit.resolve(param.col_first, tp))
      if param.fields.dtype ~= part:dtype() then
        local rounded = core.tensor(param.fields.dtype, part:shape())
        core.call("cast", { part }, { rounded }, {})
        part = rounded
      end
      local view = persistent["weight " .. param.name]
      if #view.shape == 3 then part = core.panels(part) end
      self.ranks:write(rank, view.tensor, part)
    end
  end
end

local function open_ranks(plan, options)
  local tp, pp, table_, programs = plan.spec.layout.tp, plan.spec.layout.pp, {}, {}
  for rank = 0, tp * pp - 1 do
    local groups = { tp = {}, dp = { rank }, pp = {} }
    for i = 0, tp - 1 do groups.tp[i + 1] = rank // tp * tp + i end
    for i = 0, pp - 1 do groups.pp[i + 1] = i * tp + rank % tp end
    table_[rank + 1] = { program = rank + 1, groups = groups }
    programs[rank + 1] = core.program(plan.programs[rank + 1])
  end
  return core.ranks { programs = programs, ranks = table_, seed = plan.spec.policy.seed,
    threads = options.threads, poison = options.poison,
    gemm_rows = plan.spec.blocks.gemm.m, gemm_columns = plan.spec.blocks.gemm.n,
    attention_rows = plan.spec.blocks.attention.q,
    gemm_provider = blocks.gemm_providers[plan.spec.blocks.gemm.provider],
    gpu_first = plan.spec.device == "cuda" and 0 or -1 }
end

--- The GPUs are there, have kernels for this arithmetic and room for the plan.
local function check_gpus(plan)
  local spec, machine, found = plan.spec, gpus.machine(), problems.new()
  local complaints = gpus.compare(core.manifest.images())
  local more = gpus.complaints(spec, machine)
  table.move(more, 1, #more, #complaints + 1, complaints)
  for _, text in ipairs(complaints) do found:add(spec.site "device", "device", text) end
  found:raise()
  for rank = 0, spec.layout.tp * spec.layout.pp - 1 do
    local bytes = plan.places[rank // spec.layout.tp + 1].bytes
    if bytes > machine.facts[rank + 1].memory then
      error({ status = 2, message = ("%s: %s MiB of weights and pages, GPU %d has %s; fewer "
        .. "serve.pages need less"):format(spec.site "serve" or "serve",
        screen.mib(bytes), rank, screen.mib(machine.facts[rank + 1].memory)) }, 0)
    end
  end
end

local function check_room(plan)
  if plan.spec.device == "cuda" then return check_gpus(plan) end
  local bytes, needed = room.bytes(), 0
  for _, place in ipairs(plan.places) do needed = needed + place.bytes * plan.spec.layout.tp end
  if bytes and needed > bytes then
    error({ status = 2, message = ("%s: %s MiB of weights and pages, this machine has %s; fewer "
      .. "serve.pages need less"):format(plan.spec.site "serve" or "serve", screen.mib(needed),
      screen.mib(bytes)) }, 0)
  end
end

---@class tidelock.EngineOptions
---@field threads? integer
---@field chunk? integer # most tokens of one prompt in a step; unset: all rows
---@field prefix? boolean # false: prefixes are not kept
---@field batch? boolean # false: one request at a time
---@field plain? boolean # for comparison: neither batches nor prefixes nor captured graphs,
---  and the memory of each step comes from the allocator and goes back to it
---@field poison? integer

--- A model ready for requests. `model` is what loader.open gives: { recipe, read }.
---@param model tidelock.Model
---@param options? tidelock.EngineOptions
---@return tidelock.Engine
function engine.open(model, options)
  options = options or {}
  if options.plain then
    options = setmetatable({ batch = false, prefix = false }, { __index = options })
  end
  local plan = serving.plan(model.recipe)
  check_room(plan)
  local sizes = plan.sizes
  local self = setmetatable({
    plan = plan, sizes = sizes, context = sizes.context, vocab = plan.spec.model.vocab,
    pages = pages.new(sizes.pages, sizes.page, options.prefix ~= false),
    chunk = options.chunk or sizes.rows, waiting = {}, running = {}, by_id = {}, free_slots = {},
    last_id = 0, steps = 0, rows_run = 0, ended = {}, feed = feeds.new(), plain = options.plain,
  }, Engine)
  local most = options.batch == false and 1 or sizes.requests
  for slot = most - 1, 0, -1 do self.free_slots[#self.free_slots + 1] = slot end
  self.ranks = open_ranks(plan, options)
  self.ranks:run("init", { step = 0, scalars = {} })
  load_weights(self, model.read)
  return self
end

---@class tidelock.Submission
---@field tokens integer[] # the prompt, at least one
---@field max_tokens integer # tokens to make, at least 1
---@field temperature? number # 0 unless set: the likeliest token
---@field top_p? number # 1 unless set
---@field top_k? integer # 0 unless set: all
---@field seed? integer # 0 unless set
---@field request? integer # a number that tells apart requests of one seed; 0 unless set
---@field stop? integer[] # ids that end it
---@field echo? boolean # events for the prompt's tokens from the second on, too
---@field top? integer # with each token, so many of the likeliest ones; 0 unless set

--- Queues a request. Returns its number, or nil and what is wrong with it.
---@param given tidelock.Submission
---@return integer? id
---@return string? message
function Engine:submit(given)
  local request, message = submission.check(given, self)
  if not request then return nil, message end
  self.last_id = self.last_id + 1
  request.id = self.last_id
  request.span = { request = request }
  self.waiting[#self.waiting + 1], self.by_id[request.id] = request, request
  return request.id
end

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
  self.by_id[request.id] = nil
end

--- Ends a request now; its last event comes with the next step. False: there is no such request.
---@param id integer
function Engine:cancel(id)
  local request = self.by_id[id]
  if not request then return false end
  release(self, request)
  self.ended[#self.ended + 1] = { id = id, finish = "cancelled" }
  return true
end

--- Nothing waits or runs, and no event is left to tell.
function Engine:idle()
  return #self.waiting == 0 and #self.running == 0 and #self.ended == 0
end

--- { waiting, running, pages, free, kept, hits, steps, rows }, for logs and metrics.
function Engine:stats()
  return {
    waiting = #self.waiting, running = #self.running, pages = self.sizes.pages,
    free = #self.pages.free, kept = self.pages.kept_count, hits = self.pages.hits,
    steps = self.steps, rows = self.rows_run,
  }
end

-- admission --------------------------------------------------------------------------------------

--- Tells every rank which pages the request has.
local function write_table(self, request)
  local key, list = "table " .. request.slot, {}
  for i = 1, self.sizes.pages_row do list[i] = request.pages[i] or -1 end
  local pages_of <close> = core.tensor("i32", { #list }, list)
  for rank = 0, self.ranks:count() - 1 do
    local view = stage_of(self.plan, rank).persistent[key]
    if view then self.ranks:write(rank, view.tensor, pages_of) end
  end
end

--- Slot and pages for the request; false when they are not there.
local function admit(self, request)
  if #self.free_slots == 0 then return false end
  local size = self.sizes.page
  local found = request.echo and {} or self.pages:find(request.tokens, #request.tokens - 1)
  local all = (request.last + size - 1) // size
  local kept = 0
  for _, entry in ipairs(found) do
    if self.pages.readers[entry.page] == 0 then kept = kept + 1 end
  end
  if self.pages:available() - kept < all - #found then return false end
  request.slot, request.pages, request.serials = table.remove(self.free_slots), {}, {}
  for i, entry in ipairs(found) do
    self.pages:share(entry)
    request.pages[i], request.serials[i] = entry.page, entry.serial
  end
  for i = #found + 1, all do request.pages[i] = self.pages:take() end
  write_table(self, request)
  request.done = #found * size -- positions whose keys and values are there
  self.running[#self.running + 1] = request
  return true
end

local function admit_waiting(self)
  while self.waiting[1] and admit(self, self.waiting[1]) do table.remove(self.waiting, 1) end
end

-- one step ---------------------------------------------------------------------------------------

--- Rows of this step, as spans (feed.lua), and how many. Requests that decode come first.
local function choose_rows(self)
  local spans, rows, most = {}, 0, self.sizes.rows
  for _, request in ipairs(self.running) do
    if #request.tokens - request.done == 1 and rows < most then
      local span = request.span
      rows = rows + 1
      span.at, span.first, span.count, span.decodes = rows, request.done, 1, true
      spans[rows] = span
    end
  end
  for _, request in ipairs(self.running) do
    local left = #request.tokens - request.done
    local count = left > 1 and math.min(left, self.chunk, most - rows) or 0
    if count > 0 then
      local span = request.span
      span.at, span.first, span.count, span.decodes = rows + 1, request.done, count, false
      spans[#spans + 1], rows = span, rows + count
    end
  end
  return spans, rows
end

--- A tensor of the pipeline's last rank, which chooses the tokens.
local function read_last(self, key)
  local plan = self.plan
  local rank = (#plan.ranks - 1) * plan.spec.layout.tp
  return self.ranks:read(rank, plan.ranks[#plan.ranks].persistent[key].tensor)
end

--- Runs the rows of spans. Returns their tokens and negative log-probabilities, as tensors.
local function run_rows(self, spans, rows)
  local class = 1
  while self.plan.classes[class] < rows do class = class + 1 end
  local count = self.plan.classes[class]
  local lists, controls = self.feed:fill(spans, rows, count)
  for rank = 0, self.ranks:count() - 1 do
    local persistent = stage_of(self.plan, rank).persistent
    local feed, choice = persistent["feed " .. count], persistent["controls " .. count]
    if feed then self.ranks:write(rank, feed.tensor, lists) end
    if controls and choice then self.ranks:write(rank, choice.tensor, controls) end
  end
  if controls then controls:close() end
  self.ranks:run("serve" .. class - 1, { step = self.steps, fresh = self.plain })
  self.steps, self.rows_run, self.last_rows = self.steps + 1, self.rows_run + rows, count
  return read_last(self, "ids " .. count), read_last(self, "nll " .. count)
end

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

--- What the step has made, row by row: at(row) -> token, nll, bits. Of a step that makes few tokens
--- these are read one by one.
local function results(self, spans, rows)
  local ids, nll = run_rows(self, spans, rows)
  local few = #spans * 8 < rows
  for _, span in ipairs(spans) do few = few and not span.request.echo end
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
local function settle_span(self, span, at, events)
  local request, first, logits = span.request, span.first, nil
  for k = request.echo and 0 or span.count - 1, span.count - 1 do
    local known, row = next_of(span, k), span.at + k
    if known ~= -2 then -- else of a prompt, without echo
      local event = settle(request, first + k, known, at(row))
      if request.top > 0 then
        logits = logits or self:logits(self.last_rows)
        event.top = top_of(self, logits, row, request.top)
      end
      events[#events + 1] = event
    end
  end
  request.done = first + span.count
end

--- Computes the next rows. Events come in a fixed order: ended requests, then row by row.
---@return tidelock.Event[]
function Engine:step()
  local events = self.ended
  self.ended = {}
  admit_waiting(self)
  local spans, rows = choose_rows(self)
  if rows == 0 then return events end
  local at = results(self, spans, rows)
  for _, span in ipairs(spans) do settle_span(self, span, at, events) end
  for _, span in ipairs(spans) do
    local request = span.request
    if not span.decodes or request.done % self.sizes.page == 0 then name_pages(self, request) end
    if request.finished then release(self, request) end
  end
  return events
end

--- The logits of the last step's rows, (rows, padded vocabulary).
---@param rows integer # of the section
function Engine:logits(rows) return read_last(self, "logits " .. rows) end

function Engine:close()
  if self.ranks then self.ranks:close() end
  self.ranks = nil
end
Engine.__close, Engine.__gc = Engine.close, Engine.close

return engine
