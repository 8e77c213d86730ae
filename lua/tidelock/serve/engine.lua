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
local flights = require "tidelock.serve.flights"
local gpus = require "tidelock.machine.gpus"
local pages = require "tidelock.serve.pages"
local problems = require "tidelock.text.problems"
local room = require "tidelock.machine.room"
local screen = require "tidelock.text.screen"
local serving = require "tidelock.plan.serving"
local serving_memory = require "tidelock.plan.serving_memory"
local submission = require "tidelock.serve.submission"

local engine = {}

---@class tidelock.Engine
---@field plan tidelock.ServingPlan # what is needed of it now: without its programs
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

local stage_of = flights.stage_of

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

--- Pages take what `serve.pages` says, or what `serve.requests` whole contexts need, and a step
--- makes what `serve.rows` says, `made` bytes: the message names the field that decides, where it
--- stands.
local function too_large(plan, what, needed, made, holder, bytes)
  local wanted, sizes = plan.spec.serve, plan.sizes
  local path = wanted and wanted.pages and "serve.pages" or "serve.requests"
  local counts = ("%d of %d positions"):format(sizes.pages, sizes.page)
  if made > needed // 2 then
    path, counts = "serve.rows", counts .. ("; steps of %d rows"):format(sizes.rows)
  end
  error({ status = 2, message = ("%s: %s: %s MiB of %s (%s), %s has %s; a smaller %s needs less")
    :format(plan.spec.site(path) or "serve", path, screen.mib(needed), what, counts, holder,
    screen.mib(bytes), path) }, 0)
end

--- Bytes that a rank of this stage takes, and those of them that a step makes.
local function rank_bytes(plan, stage)
  local kinds = plan.places[stage].kinds
  return serving_memory.of_rank(plan, stage).all, (kinds.activations or 0) + (kinds.state or 0)
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
    local bytes, made = rank_bytes(plan, rank // spec.layout.tp + 1)
    local memory = machine.facts[rank + 1].memory
    if bytes > memory then
      too_large(plan, "weights and pages", bytes, made, "GPU " .. rank, memory)
    end
  end
end

--- The arenas of ranks on the host, and the list of pages, which is there on any device.
local function check_room(plan)
  local bytes, needed, made = room.bytes(), 0, 0
  local on_gpus, tp = plan.spec.device == "cuda", plan.spec.layout.tp
  if on_gpus then check_gpus(plan) end
  for stage in ipairs(on_gpus and {} or plan.places) do
    local all, of_step = rank_bytes(plan, stage)
    needed, made = needed + all * tp, made + of_step * tp
  end
  needed = needed + serving_memory.of_list(plan.sizes)
  if bytes and needed > bytes then
    too_large(plan, on_gpus and "a list of pages" or "weights and pages", needed, made,
      "this machine", bytes)
  end
end

--- What is needed of a plan once its programs run. The rest would be most of what Lua has, and be
--- looked at in each full collection, while requests wait.
local function needed_of(plan)
  local ranks = {}
  for i, low in ipairs(plan.ranks) do
    ranks[i] = { persistent = low.persistent, params = {} }
    for k, param in ipairs(low.params) do ranks[i].params[k] = { name = param.name } end
  end
  return { spec = plan.spec, sizes = plan.sizes, classes = plan.classes, shorts = plan.shorts,
    choosers = plan.choosers, ranks = ranks, ["local"] = { n = plan["local"].n } }
end

---@class tidelock.EngineOptions
---@field threads? integer
---@field chunk? integer # most tokens of one prompt in a step; unset: all rows
---@field prefix? boolean # false: prefixes are not kept
---@field batch? boolean # false: one request at a time
---@field ahead? boolean # a step is queued before the one in front of it has been read; unset:
---  where that saves time, on one GPU. A request that meets a stop has then cost a row more
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
    flights = {}, carried = {}, last_id = 0, steps = 0, rows_run = 0, ended = {},
    feed = feeds.new(), plain = options.plain,
  }, Engine)
  local most = options.batch == false and 1 or sizes.requests
  for slot = most - 1, 0, -1 do self.free_slots[#self.free_slots + 1] = slot end
  self.ranks = open_ranks(plan, options)
  self.ahead = options.ahead
  if self.ahead == nil then self.ahead = self.ranks:queues() and not options.plain end
  self.ahead = self.ahead and plan.spec.layout.pp == 1
  self.ranks:run("init", { step = 0, scalars = {} })
  load_weights(self, model.read)
  self.plan = needed_of(plan)
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
  request.spans = { [0] = { request = request }, { request = request } }
  request.pending, request.flying = 0, 0
  self.waiting[#self.waiting + 1], self.by_id[request.id] = request, request
  return request.id
end

--- Ends a request now; its last event comes with the next step. False: there is no such request.
---@param id integer
function Engine:cancel(id)
  local request = self.by_id[id]
  if not request then return false end
  flights.finish(self, request)
  flights.land_over(self)
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

--- Every rank is to know which pages the request has, before its first row.
local function write_table(self, request)
  local key, list = "table " .. request.slot, {}
  for i = 1, self.sizes.pages_row do list[i] = request.pages[i] or -1 end
  flights.write(self, key, core.tensor("i32", { #list }, list))
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
  request.planned = request.done -- or will be, when steps under way have ended
  self.running[#self.running + 1] = request
  return true
end

local function admit_waiting(self)
  while self.waiting[1] and admit(self, self.waiting[1]) do table.remove(self.waiting, 1) end
end

-- one step ---------------------------------------------------------------------------------------

--- Computes the next rows. Events come in a fixed order: ended requests, then row by row.
---@return tidelock.Event[]
function Engine:step()
  local events = self.ended
  self.ended = {}
  if #self.flights == 0 then
    admit_waiting(self)
    flights.take_off(self)
  end
  if flights.may_go_ahead(self) then
    admit_waiting(self)
    flights.take_off(self)
  end
  if #self.flights > 0 then flights.land(self, events) end
  flights.land_over(self)
  return events
end

--- The logits of the last step's rows, (rows, padded vocabulary); where steps go ahead, of a step
--- that has rows with `top`.
---@param rows integer # of the section
function Engine:logits(rows)
  return self.ranks:read(flights.last(self), flights.tensor(self, "logits " .. rows))
end

function Engine:close()
  if self.ranks then self.ranks:close() end
  self.ranks = nil
end
Engine.__close, Engine.__gc = Engine.close, Engine.close

return engine
