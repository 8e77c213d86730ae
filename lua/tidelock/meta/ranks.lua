---@meta
--- meta/ranks.lua - core.lua, continued: ranks that execute programs, and what they record.
-- luacheck: ignore 212 241

---@class tidelock.core
local core = {}

---@class tidelock.TraceOptions # what one rank records; rows of integers as in bind_trace.c
---@field outputs integer[][]
---@field captures integer[][]
---@field capture_bytes integer

---@class tidelock.Ranks # threads that execute programs
local Ranks = {}
---@param section "init"|"step"|"eval"|string # or "serve0" .. "serve11"
---@param options? { step?: integer, scalars?: number[], check?: boolean }
---@return { loss?: number, loss_bits?: string, grad_norm?: number, grad_norm_bits?: string,
---  control?: number[], skipped?: string, count?: integer, ms: number }
function Ranks:run(section, options) end
--- The same at a place of the queue, with what is written before it and read after it; on one GPU
--- it returns when all that is queued.
---@param place 0|1
---@param section string
---@param options { step?: integer, fresh?: boolean }
---@param ins any[] # rank, tensor, what is written there; and so on
---@param outs integer[] # rank, tensor; and so on, four at most
function Ranks:queue(place, section, options, ins, outs) end
--- Waits for the run at a place.
---@param place 0|1
---@return tidelock.Tensor ... # in the order of outs
function Ranks:await(place) end
---@return boolean # whether queued runs are beside this thread's work
function Ranks:queues() end
---@param rank integer # from 0
---@param tensor integer # from 1
---@return tidelock.Tensor
function Ranks:read(rank, tensor) end
---@param rank integer
---@param tensor integer
---@param from tidelock.Tensor
function Ranks:write(rank, tensor, from) end
---@param rank integer
---@param tensor integer
---@param name string
---@param place table # { row_first, col_first, cols_full, rows, cols, pitch }
---@return integer
function Ranks:hash(rank, tensor, name, place) end
--- Records from the next run on: times alone, or what the tables say, one a rank.
---@param what boolean|tidelock.TraceOptions[]
function Ranks:trace(what) end
---@param rank integer
---@return integer[] ns # of each instruction of the last run
function Ranks:times(rank) end
---@param rank integer
---@return integer[][] # { from, to } of each instruction
function Ranks:spans(rank) end
---@param rank integer
---@param instruction integer # from 1
---@param count integer
---@return string # 64 bytes an instruction, then 8 for each hash: runtime/bind/bind_trace.c
function Ranks:record(rank, instruction, count) end
---@param rank integer
---@param first integer # byte, from 0
---@param count integer
---@return string # of the operands that were kept
function Ranks:captured(rank, first, count) end
---@return table # bytes by kind, and peak = { .. }
function Ranks:memory() end
---@param rank integer
---@return integer[]? # bytes that it exchanged in each group of its program; nil: not counted
---@return integer? # ns that it has waited for others
---@return { peer: integer, network: integer, host: integer }? # of experts' rows
function Ranks:traffic(rank) end
---@return integer
function Ranks:count() end
function Ranks:serve() end -- in a process whose rank is not 0: does what rank 0 says
function Ranks:close() end
---@return boolean # whether a profiler listens for ranges
---@return string? # why not
function core.profiler() end
---@param options table # programs, ranks, seed, data, samples, threads, timeout_s, faults, ..
---@return tidelock.Ranks
function core.ranks(options) end

local Job = {} ---@class tidelock.Job # the processes of a run: runtime/bind/bind_job.c
function Job:rank() end
function Job:world() end
function Job:about() end
function Job:gather(text) end
function Job:fail(message) end
function Job:headless() end
function Job:close(good) end
function Job:leave(status) end
function core.job(options) end

-- Traces ----------------------------------------------------------------------------------------

---@param dtype string
---@param shape integer[]
---@param bytes string # little-endian, as many as the shape says
---@return tidelock.Tensor
function core.trace_tensor(dtype, shape, bytes) end
---@param a tidelock.Tensor
---@param b tidelock.Tensor # of the same dtype and size
---@return integer? first # element whose bits differ, from 1
---@return integer count # of elements that differ
function core.trace_compare(a, b) end

return core
