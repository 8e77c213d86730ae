---@meta tidelock.core
--- meta/core.lua - what `require "tidelock.core"`, the C half, offers: types for editors (LuaLS).
--
-- Nothing here runs; a test checks that every function and method of the C half stands in it.
-- Dims, elements, tensors and instructions count from 1; ranks, samples, groups, lanes and
-- micro-batches from 0. The head of runtime/bind/bind_NAME.c says more about each group.
-- luacheck: ignore 212 241

---@class tidelock.core
local core = {}

---@alias tidelock.Dtype "f32"|"bf16"|"i32"|"i64"|"u8"

-- Tensors ---------------------------------------------------------------------------------------
--- Dense and row-major; `==` is identity, core.equal compares bits. `#t` is the size of dim 1.
---@class tidelock.Tensor
local Tensor = {}

---@return integer[]
function Tensor:shape() end
---@return tidelock.Dtype
function Tensor:dtype() end
---@return table # nested
function Tensor:to_table() end
---@return number[] # all elements in one list
function Tensor:flat() end
---@return integer[] # the bits of all elements
function Tensor:bits() end
---@param value number
---@return tidelock.Tensor self
function Tensor:fill(value) end
--- Elements first .. first + count - 1 become those of a flat list.
---@param list number[]
---@param first integer
---@param count integer
---@return tidelock.Tensor self
function Tensor:put(list, first, count) end
--- Rows first .. first + count - 1, in the same memory.
---@param dim 1
---@param first integer
---@param count integer
---@return tidelock.Tensor
function Tensor:narrow(dim, first, count) end
--- Hash of name, indices and bits.
---@param name? string
---@return string # 16 hex digits
function Tensor:hash(name) end
--- The same as a number; shares of the shards of a tensor add up to the whole's.
---@param name? string
---@param row_first? integer
---@param col_first? integer
---@param cols_full? integer
---@return integer
function Tensor:hash_int(name, row_first, col_first, cols_full) end
--- Root of the sum of squares, in the fixed order of square_sum.
---@return number
function Tensor:norm() end
--- Root of the mean of squares.
---@return number
function Tensor:rms() end
---@return number
function Tensor:mean() end
---@return number
function Tensor:max() end
--- Gives the memory back; twice is fine, use afterwards raises.
function Tensor:close() end

--- +0 everywhere, or flat or nested numbers, rounded once to the dtype.
---@param dtype tidelock.Dtype
---@param shape integer[]
---@param values? table
---@return tidelock.Tensor
function core.tensor(dtype, shape, values) end
---@param dtype tidelock.Dtype
---@param shape integer[]
---@param bits integer[]
---@return tidelock.Tensor
function core.tensor_from_bits(dtype, shape, bits) end
--- A matrix of f32 in panels of 64 rows, (panels, columns, 64): linear and embedding take it.
---@param matrix tidelock.Tensor
---@return tidelock.Tensor
function core.panels(matrix) end
---@param a tidelock.Tensor
---@param b tidelock.Tensor
---@return boolean same
---@return integer? element # the first that differs, from 1
function core.equal(a, b) end
--- A logical tensor from the shards of ranks.
---@param dtype tidelock.Dtype
---@param shape integer[] # one or two sizes
---@param pieces table[] # { tensor, row_first, col_first, rows, cols, source_row }
---@return tidelock.Tensor
function core.assemble(dtype, shape, pieces) end

-- Operators -------------------------------------------------------------------------------------
--- Runs the host kernel of one row of kernels/ops.def. An operand that is left out is `false`.
---@param op string
---@param inputs (tidelock.Tensor|false)[]
---@param outputs (tidelock.Tensor|false)[]
---@param numbers? table<string, number|number[]> # all ints and floats of the row
---@param options? { step?: integer, seed?: integer, sample_base?: integer, scalars?: number[],
---  threads?: integer, scratch?: integer, device?: "host"|"cuda", repeats?: integer,
---  gemm_rows?: integer, gemm_columns?: integer, attention_rows?: integer,
---  gemm_provider?: integer }
---@return number? # with repeats: milliseconds of one of as many runs on the GPU
function core.call(op, inputs, outputs, numbers, options) end

---@class tidelock.Lane # calls in order on a thread of their own, while Lua goes on
local Lane = {}
--- As core.call, without threads, scratch and device. A tensor that it writes is read after a wait.
---@param op string
---@param inputs (tidelock.Tensor|false)[]
---@param outputs (tidelock.Tensor|false)[]
---@param numbers? table<string, number|number[]>
---@param options? { step?: integer, seed?: integer, sample_base?: integer, scalars?: number[] }
---@return integer event # calls of this lane so far
function Lane:call(op, inputs, outputs, numbers, options) end
--- What follows begins after that event of the other lane; counts as a call.
---@param other tidelock.Lane
---@param event integer
function Lane:after(other, event) end
--- Until the event, or all that was called, has passed; raises what failed, once. Calls behind a
--- failed one have been skipped.
---@param event? integer
function Lane:wait(event) end
---@return integer # calls that have ended
function Lane:done() end
--- Waits for the call that runs and skips the others; does not report a failure.
function Lane:close() end
---@param threads? integer # workers of its calls, 1 unless given
---@return tidelock.Lane
function core.lane(threads) end
--- note(source, line) before each line of Lua that runs from now on, but not in chunks whose source
--- begins with `skip`; nil: no more.
---@param note? fun(source: string, line: integer)
---@param skip? string
---@return boolean # whether a function was told so far
function core.lines(note, skip) end

---@class tidelock.Op
---@field name string
---@field inputs string
---@field outputs string
---@field ints string
---@field floats string
---@field gradient string
---@field traits table<string, boolean>
---@field host boolean # has a host kernel
---@return tidelock.Op[]
function core.ops() end
---@class tidelock.Group # thread ranks that run collectives; entry i + 1 of both lists is rank i's
local Group = {}
---@param inputs tidelock.Tensor[] # (outer, piece)
---@param outputs tidelock.Tensor[] # (outer, n, piece)
---@param options? { outer?: integer }
function Group:all_gather(inputs, outputs, options) end
---@param inputs tidelock.Tensor[] # (outer, n, piece) f32
---@param outputs tidelock.Tensor[] # (outer, piece) f32
---@param options? { outer?: integer }
function Group:reduce_scatter(inputs, outputs, options) end
--- The tree over ranks; outputs may be inputs, as in the next two.
---@param inputs tidelock.Tensor[] # f32
---@param outputs tidelock.Tensor[]
function Group:all_reduce(inputs, outputs) end
---@param inputs tidelock.Tensor[] # f32
---@param outputs tidelock.Tensor[]
function Group:all_reduce_max(inputs, outputs) end
---@param inputs tidelock.Tensor[] # i64
---@param outputs tidelock.Tensor[]
function Group:all_reduce_count(inputs, outputs) end
---@param inputs tidelock.Tensor[]
---@param outputs tidelock.Tensor[]
---@param options? { root?: integer }
function Group:broadcast(inputs, outputs, options) end
function Group:barrier() end
---@return integer
function Group:size() end
function Group:close() end
---@param ranks integer
---@return tidelock.Group
function core.group(ranks) end
--- One collective over thread ranks, by hand: entry i + 1 of both lists is rank i's.
---@param name string
---@param inputs tidelock.Tensor[]
---@param outputs tidelock.Tensor[]
---@param options? { outer?: integer, root?: integer }
function core.comm(name, inputs, outputs, options) end

-- Numbers and hashes ----------------------------------------------------------------------------
--- `x` as f32 keeps it.
---@param x number
---@return number
function core.f32(x) end
--- `x` rounded to f32, then to bf16.
---@param x number
---@return number
function core.bf16(x) end
--- Bits of an f32 to bits of a bf16; NaN payloads survive.
---@param bits integer
---@return integer
function core.bf16_bits(bits) end
---@param text string
---@return string # 16 hex digits of XXH64
function core.hash(text) end
---@param text string
---@return integer
function core.hash_int(text) end
---@param word integer
---@return integer
function core.mix64(word) end
--- Philox4x32-10 of a counter and a key.
---@return integer, integer, integer, integer
function core.philox(c0, c1, c2, c3, k0, k1) end
--- Four words as kernels draw them.
---@return integer, integer, integer, integer
function core.random_words(seed, stream, index, step) end

--- Functions of kernels/math.h: the argument is rounded to f32, the result is f32.
core.math = {}
---@param x number
---@return number
function core.math.exp2(x) end
---@param x number
---@return number
function core.math.log2(x) end
---@param x number
---@return number
function core.math.exp(x) end
---@param x number
---@return number
function core.math.log(x) end
---@param x number
---@return number
function core.math.cos(x) end
---@param x number
---@return number
function core.math.sin(x) end
---@param x number
---@return number
function core.math.tanh(x) end
---@param x number
---@return number
function core.math.sigmoid(x) end
---@param x number
---@return number
function core.math.rsqrt(x) end

-- Programs and ranks ----------------------------------------------------------------------------
---@class tidelock.Program # verified; what it is made of: runtime/bind/bind_program.c
local Program = {}
---@return integer
function Program:instructions() end
---@return integer bytes
function Program:arena_bytes() end
---@return integer bytes # that no section may expect to find from an earlier one
function Program:scratch() end
--- Device memory of a rank on a GPU beside its arena; what ranks send each other left out.
---@return integer passes # sections of few rows as one kernel (runtime/passes_cuda.h)
---@return integer kernels # for any that ask for some
function Program:gpu_bytes() end
---@param path string
---@param about string # JSON: runtime/program_file.h
function Program:save(path, about) end
function Program:close() end
---@param description table
---@return tidelock.Program
function core.program(description) end

-- Data and weights ------------------------------------------------------------------------------
---@class tidelock.Data # an opened source of samples
local Data = {}
---@param step integer
---@param samples_global integer
---@param first integer
---@param samples integer
---@return tidelock.Tensor? tokens
---@return tidelock.Tensor|string targets # or the message
---@return tidelock.Tensor? cu # borders of segments
function Data:micro(step, samples_global, first, samples) end
---@return integer? # how many targets are not -1
function Data:targets(step, samples_global, first, samples) end
---@return string # 16 hex digits: equal sources give equal samples
function Data:fingerprint() end
---@return { files: integer, documents: integer, tokens: integer, bytes: integer,
---  samples_per_epoch: integer, token_max: integer, beyond_file: integer?,
---  beyond_position: integer?, beyond_token: integer? } # beyond_*: the first token that is no id
function Data:about() end
function Data:close() end

core.data = {}
---@param paths string[]
---@param format { width: integer, eos: integer, parts: table[] }
---@param options { length: integer, vocab: integer, seed: integer, site: string }
---@return tidelock.Data?
---@return string? message
function core.data.files(paths, format, options) end
---@param sources tidelock.Data[]
---@param shares integer[]
---@return tidelock.Data?
---@return string? message
function core.data.mix(sources, shares, options) end
---@param samples table[]
---@return tidelock.Data?
---@return string? message
function core.data.given(samples, options) end
--- What place `i` (from 0) of a shuffled list of `count` points to.
---@return integer
function core.data.order(seed, name, turn, count, i) end

---@class tidelock.Weights # an open safetensors file
local Weights = {}
---@return string[] # in the order of their data
function Weights:names() end
---@param name string
---@return string? dtype
---@return integer[]? shape
function Weights:look(name) end
---@param name string
---@param widen? "f32" # F16 and F8 can be read in no other way
---@return tidelock.Tensor
function Weights:read(name, widen) end
---@param name string # of a tensor of 1 or 2 dims
---@param row integer # from 0
---@param rows integer # +0 past the last row of the tensor
---@param col? integer # from 0
---@param cols? integer
---@param widen? "f32"
---@return tidelock.Tensor # (rows, cols)
function Weights:slice(name, row, rows, col, cols, widen) end
---@param name string
---@return string # 16 hex digits of XXH64 of its bytes
function Weights:hash(name) end
---@return table<string, string>
function Weights:metadata() end
function Weights:close() end

core.weights = {}
---@param path string
---@return tidelock.Weights?
---@return string? message
function core.weights.open(path) end
---@param path string
---@param tensors table[] # { name =, tensor = }, { name =, parts =, dim = } or
---  { name =, file = tidelock.Weights, entry = its name there, dtype = "BF16" }
---@param metadata table<string, string>
function core.weights.write(path, tensors, metadata) end

---@class tidelock.Tokenizer
local Tokenizer = {}
---@param text string # any bytes
---@param template? boolean # with what the file puts around a text, such as <s>
---@param plain? boolean # "<s>" inside the text is three characters
---@return integer[]
function Tokenizer:encode(text, template, plain) end
---@param ids integer[]
---@param keep_special? boolean
---@return string # of all ids; special tokens are left out
function Tokenizer:decode(ids, keep_special) end
---@param id integer
---@return string bytes
---@return boolean special
function Tokenizer:token(id) end
---@param content string
---@return integer? id # of an added token
function Tokenizer:added(content) end
---@return integer # one more than the largest id
function Tokenizer:vocab() end
function Tokenizer:close() end

---@param path string # "bytes", a tokenizer.json, or a folder
---@return tidelock.Tokenizer?
---@return string? message
function core.tokenizer(path) end

---@class tidelock.Saver # a folder that is being written in the background
local Saver = {}
---@return boolean
function Saver:busy() end
--- Waits; raises what failed.
function Saver:wait() end
function Saver:close() end

---@param folder string # must not exist yet
---@param files table[] # { name =, tensors = as core.weights.write takes them, metadata = }
---@param texts table[] # { name =, text = }
---@return tidelock.Saver
function core.saver(folder, files, texts) end

-- JSON, files, the machine ------------------------------------------------------------------------
core.json = {}
core.json.null = nil ---@type userdata
---@return string # keys in bytewise order
function core.json.encode(value) end
---@param text string
function core.json.decode(text) end
--- Marks a table as an array, so that an empty one is written [].
---@generic T: table
---@param list T
---@return T
function core.json.array(list) end

function core.nccl_version() end -- "2.28.3"; raises where there is no NCCL
--- GPUs that can be used; 0 comes with the reason.
---@return integer count
---@return string? why
function core.cuda_count() end
---@param ordinal integer # from 0
---@return { name: string, pci: string, major: integer, minor: integer, multiprocessors: integer,
---  shared_max: integer, memory: integer }
function core.cuda_device(ordinal) end
---@param ordinal integer # from 0
---@return { clock_mhz: number?, memory_mhz: number?, celsius: number?, watts: number? }?
---@return string? why
function core.cuda_vitals(ordinal) end

core.files = {}
---@return boolean
function core.files.exists(path) end
---@return boolean
function core.files.is_directory(path) end
---@return integer? bytes
function core.files.size(path) end
---@return integer? bytes # that may still be written on the disk of `path`
---@return string? message
function core.files.free(path) end
---@return integer? seconds
function core.files.mtime(path) end
---@return string?
---@return string? message
function core.files.realpath(path) end
---@return string? # 64 hex digits
---@return string? message
function core.files.sha256(path) end
---@return string[]? names # sorted
function core.files.list(folder) end
---@return string[] # sorted
function core.files.glob(pattern) end
function core.files.mkdirs(path) end
---@return string?
---@return string? message
function core.files.read_all(path) end
--- All texts, one after the other, or the file that was there before.
---@param path string
---@param ... string
function core.files.write_atomic(path, ...) end
function core.files.append(path, text) end -- returns when the disk has it
---@return integer
function core.files.cpu_count() end
---@param descriptor integer
---@return boolean
function core.files.isatty(descriptor) end
---@return integer? # width of the terminal
function core.files.columns() end
---@return number # of a clock that never goes back
function core.files.seconds() end
---@param seconds number
function core.files.sleep(seconds) end
---@return integer
function core.files.getpid() end
---@return string
function core.files.hostname() end
---@param path string # a folder or a file
---@return userdata? # claims it until it is closed; nil: another process has it
function core.files.lock(path) end

--- Bytes of each kind of memory; with `reset`, peaks start again afterwards.
---@param reset? boolean
---@return table<string, { current: integer, peak: integer }>
function core.memory(reset) end
--- What this program is; simd: the level that kernels run at.
---@return { version: string, compiler: string, simd: "portable"|"avx2"|"avx512",
---  sanitizer: "none"|"address"|"thread" }
function core.build() end

--- From here on the first SIGINT, SIGTERM or SIGHUP only sets a flag; the second ends the process.
function core.catch_interrupts() end

--- Whether a message is of the last failure, and that was the loss of a rank: it is gone, stuck, or
--- somewhere else than the others.
---@param message string
---@return boolean
function core.lost(message) end
---@return false|"SIGINT"|"SIGTERM"|"SIGHUP" # what came since
function core.interrupted() end

return core
