---@meta tidelock
--- meta/api.lua - what `local tl = require "tidelock"` offers: types for editors (LuaLS).
--
-- Nothing here runs. A test checks that every function of tl, tl.nn, tl.data, recipes, runs and
-- graphs stands here with a type for each argument. Fields of tables are in meta/fields.lua, the
-- functions of the C half (tl.tensor, tl.call ..) in core.lua.
-- luacheck: ignore 212 241 311

---@class tidelock: tidelock.core
---@field nn tidelock.nn
---@field data tidelock.data
local tl = {}

--- A recipe from its sections. Loading it runs nothing.
---@param sections tidelock.recipe
---@return tidelock.Recipe
function tl.recipe(sections) end

--- The knobs of a file with their defaults: also set as key=value on the command line.
---@generic T: table
---@param defaults T
---@return T
function tl.params(defaults) end

--- The recipe of another file, beside this one.
---@param path string
---@return tidelock.Recipe
function tl.load(path) end

--- a (rows, n) times b (n, columns): for each element one chain over n, ascending.
---@param a tidelock.Tensor
---@param b tidelock.Tensor
---@return tidelock.Tensor
function tl.matmul(a, b) end

-- Modules ---------------------------------------------------------------------------------------

---@class tidelock.nn
local nn = {}

--- The model: embedding, layers, final norm, head.
---@param options tidelock.nn.decoder
---@return tidelock.Module
function nn.decoder(options) end
--- The model that DIR/config.json describes; its weights start from the safetensors there.
---@param options tidelock.nn.from_hf|string
---@return tidelock.Module
function nn.from_hf(options) end
--- x + f(x): modules without a key, one after the other, then options.
---@param options tidelock.nn.residual
---@return tidelock.Module
function nn.residual(options) end
---@param options tidelock.nn.attention
---@return tidelock.Module
function nn.attention(options) end
---@param options tidelock.nn.mla
---@return tidelock.Module
function nn.mla(options) end
---@param options tidelock.nn.rms_norm
---@return tidelock.Module
function nn.rms_norm(options) end
---@param options tidelock.nn.layer_norm
---@return tidelock.Module
function nn.layer_norm(options) end
---@param options tidelock.nn.swiglu
---@return tidelock.Module
function nn.swiglu(options) end
---@param options tidelock.nn.gelu
---@return tidelock.Module
function nn.gelu(options) end
---@param options tidelock.nn.linear
---@return tidelock.Module
function nn.linear(options) end
---@param options tidelock.nn.dropout
---@return tidelock.Module
function nn.dropout(options) end
---@param options tidelock.nn.moe
---@return tidelock.Module
function nn.moe(options) end
--- A graph written by hand: fn(g, x) returns a value; the name may be left out.
---@param name string|fun(g: tidelock.Operators, x: tidelock.Value): tidelock.Value
---@param fn? fun(g: tidelock.Operators, x: tidelock.Value): tidelock.Value
---@return tidelock.Module
function nn.graph(name, fn) end
--- What a module does when it is called: module(x).
---@param m tidelock.Module|function
---@param x tidelock.Value
---@param inside? boolean # its scope is open already
---@param ... any
---@return tidelock.Value
function nn.apply(m, x, inside, ...) end

-- Data ------------------------------------------------------------------------------------------

---@class tidelock.data
local data = {}

--- Texts, a document a file, bytes as tokens: paths and patterns; `sha256` pins them.
---@param options table
---@return tidelock.Source
function data.text(options) end
--- Files of token ids: { "data/*.bin", dtype = "uint16", eos = 2 }.
---@param options table
---@return tidelock.Source
function data.tokens(options) end
--- Whole shares of sources: { { 8, web }, { 2, code } }.
---@param options table
---@return tidelock.Source
function data.mix(options) end
--- Samples that are written out: { { tokens = { .. }, cu_seqlens = { .. } }, .. }.
---@param options table
---@return tidelock.Source
function data.given(options) end
--- Whether tl.data made it.
---@param value any
---@return boolean
function data.is(value) end
--- What is wrong with a source, one call of `add` each.
---@param source tidelock.Source
---@param vocab integer
---@param add function
function data.check(source, vocab, add) end
--- Opens the files.
---@param description tidelock.Source
---@param options table
---@return userdata
---@return tidelock.Notes
function data.open(description, options) end

---@class tidelock.Source
local Source = {}
--- Two sources: documents are dealt by a hash of their content.
---@param fraction number # of the first
---@return tidelock.Source
---@return tidelock.Source held
function Source:split(fraction) end

-- Recipes ---------------------------------------------------------------------------------------

---@class tidelock.Recipe
local Recipe = {}
--- A bare key replaces a section, a dotted key sets one field.
---@param changes table
---@return tidelock.Recipe
function Recipe:with(changes) end
--- One more axis of a sweep.
---@param key string
---@param values table
---@return tidelock.Recipe
function Recipe:over(key, values) end
--- States that all points give the same bits.
---@return tidelock.Recipe
function Recipe:same_bits() end
--- The recipes of a sweep, the last axis fastest.
---@return tidelock.Recipe[]
function Recipe:points() end
--- As on the command line: { "layout.tp=2" }.
---@param words string[]
---@return tidelock.Recipe
function Recipe:override(words) end
--- Where a field stands: "recipes/x.lua:12".
---@param path string
---@return string?
function Recipe:site(path) end
--- A run on ranks of this process, for scripts.
---@param options? { keep?: string[], threads?: integer, poison?: integer, check?: boolean,
---  resume?: string, forks?: string[] }
---@return tidelock.Run
function Recipe:start(options) end

-- Runs ------------------------------------------------------------------------------------------

---@class tidelock.StepResult
---@field step integer
---@field loss number
---@field loss_bits integer
---@field grad_norm number
---@field grad_norm_bits integer
---@field lr number
---@field tokens integer
---@field ms number
---@field watch? table<string, number>
---@field losses? table<string, number>
---@field losses_bits? table<string, string>
---@field experts? table[]
---@field skipped? string

---@class tidelock.Run
local Run = {}
--- Runs the next step.
---@return tidelock.StepResult
function Run:step() end
--- Loss of the held-out set.
---@return { loss: number, loss_bits: integer }
function Run:eval() end
--- A whole weight, in any layout.
---@param name string
---@return tidelock.Tensor
function Run:weight(name) end
--- The f32 value that the optimizer steps.
---@param name string
---@return tidelock.Tensor
function Run:master(name) end
--- A weight ("weight "), its master ("master ") or a moment ("m ", "v "); nil where none keeps it.
---@param param table
---@param arena string
---@return tidelock.Tensor?
function Run:stored(param, arena) end
--- What Run:stored(param, arena):hash(name) gives, computed where the shards are: nothing travels.
---@param param table
---@param arena string
---@param name string
---@return string # 16 hex digits
function Run:stored_hash(param, arena, name) end
--- The plan of the rank with these coordinates: its tensors and programs.
---@param at table # { tp, cp, pp, dp, .. }, from 0
---@return table
function Run:planned(at) end
---@return { name: string, param: table }[]
function Run:weights() end
---@return string
function Run:weights_hash() end
---@return string
function Run:optimizer_hash() end
--- A value of the last step that start { keep } asked for.
---@param name string
---@return tidelock.Tensor
function Run:kept(name) end
---@return table<string, number>
function Run:watched() end
---@return table
function Run:memory() end
--- A checkpoint in a new folder of `dir`.
---@param dir string
---@return string folder
function Run:save(dir) end
function Run:close() end
--- What start does before the first step; not for scripts.
---@param found? table
function Run:begin(found) end
--- Runs a step again, looking at every output.
---@param step integer
---@param scalars number[]
---@param result table
function Run:explain_skip(step, scalars, result) end

-- Graphs ----------------------------------------------------------------------------------------

---@class tidelock.Value
---@operator add(tidelock.Value|number): tidelock.Value
---@operator sub(tidelock.Value|number): tidelock.Value
---@operator mul(tidelock.Value|number|function): tidelock.Value
---@operator div(tidelock.Value|number): tidelock.Value
---@operator unm: tidelock.Value

--- The first argument of the function of nn.graph; called with a dot: g.matmul(x, w).
---@class tidelock.Operators
local g = {}
--- A new dim; with "tp" layouts may cut it, without it is never cut.
---@param name string
---@param size integer
---@param axis? "tp"
---@return tidelock.Dim
function g.dim(name, size, axis) end
--- A weight: output dims first; one dim is a vector. `given` as in weight rules.
---@param name string
---@param dims string # "out in"
---@param given? tidelock.weights
---@return tidelock.Value
function g.weight(name, dims, given) end
--- Gives a value a name for watch and keep.
---@param name string
---@param value tidelock.Value
---@return tidelock.Value
function g.named(name, value) end
--- Sums over the dims that both have.
---@param a tidelock.Value
---@param b tidelock.Value
---@return tidelock.Value
function g.matmul(a, b) end
--- The same value in another dtype.
---@param x tidelock.Value
---@param dtype "f32"|"bf16"
---@return tidelock.Value
function g.cast(x, dtype) end
--- The loss of each target token.
---@param logits tidelock.Value
---@param targets tidelock.Value
---@param options? { smoothing?: number, z?: number }
---@return tidelock.Value
function g.cross_entropy(logits, targets, options) end
--- The log of the sum of exponentials over a dim: one number per token.
---@param logits tidelock.Value
---@param dim "vocab"
---@return tidelock.Value
function g.logsumexp(logits, dim) end
--- One number per token, times `scale`, added to the loss; the log has the mean of `values`
--- over the targets, by name.
---@param name string
---@param values tidelock.Value
---@param scale? number
function g.add_loss(name, values, scale) end
--- A state as it was before the step; without dims one number. `given`: init, from.
---@param name string
---@param dims? string
---@param given? tidelock.weights
---@return tidelock.Value
function g.state(name, dims, given) end
--- Sets a state after the step, once.
---@param state tidelock.Value
---@param value tidelock.Value
function g.update(state, value) end
--- The sum over all tokens of the global batch, in f32: (tokens, dim) becomes (dim).
---@param x tidelock.Value
---@return tidelock.Value
function g.sum(x) end
--- The mean over all tokens of the global batch, in f32: (tokens, dim) becomes (dim).
---@param x tidelock.Value
---@return tidelock.Value
function g.mean(x) end

---@alias tidelock.unary fun(x: tidelock.Value): tidelock.Value

---@class tidelock.Operators
---@field sigmoid tidelock.unary # 1 / (1 + exp(-x)), elementwise
---@field silu tidelock.unary # x sigmoid(x), elementwise
---@field gelu tidelock.unary # the tanh form of gelu, elementwise
---@field relu tidelock.unary # max(x, 0), elementwise
---@field tanh tidelock.unary # elementwise
---@field square tidelock.unary # x x, elementwise
---@field exp tidelock.unary # elementwise
---@field log tidelock.unary # natural, elementwise
---@field neg tidelock.unary # -x, elementwise
---@field sign tidelock.unary # -1, 0 or 1, elementwise

return tl
