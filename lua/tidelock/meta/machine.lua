---@meta
--- meta/machine.lua - core.lua, continued: YAML, machine code of kernels, facts for ./tl doctor.
-- luacheck: ignore 212 241

---@class tidelock.core
local core = {}

core.yaml = {}
--- Maps and lists as tables; raises with the line.
---@param text string
function core.yaml.decode(text) end

core.manifest = {}
---@class tidelock.Kernel
---@field name string
---@field sha256 string
---@field registers integer
---@field shared integer # static bytes of a block
---@field local integer # bytes of a thread; 0: nothing is spilled
--- The cubins inside this program.
---@return { name: string, arch: integer, size: integer, compiler: string, flags: string,
---  kernels: tidelock.Kernel[] }[]
function core.manifest.images() end
---@param i integer # from 1
---@return string # the cubin
function core.manifest.image(i) end
--- A cubin's compiler, its flags and its kernels; raises when it is damaged.
---@param cubin string
---@return string, string, tidelock.Kernel[]
function core.manifest.read(cubin) end
--- The table of verified machine code, and that of this build.
---@return string, string
function core.manifest.texts() end
--- The other compiler that the verified table was made with, or nil; raises, with their names, when
--- kernels are not as the table says.
---@return string?
function core.manifest.check(name, arch, cubin, verified, own) end

core.doctor = {}
--- 13000 is CUDA 13.0; nil and the reason without a driver.
---@return integer?, string?
function core.doctor.driver_version() end
--- From GPU `from` to GPU `to`; copies 64 MiB a few times.
---@return { direct: boolean, rank: integer, bytes_per_second: number }
function core.doctor.link(from, to) end
--- Bytes read and written a second by copies of 1 GiB inside a GPU.
---@param device integer # from 0
---@return number
function core.doctor.copy_speed(device) end
---@param i integer # from 1; nil behind the last one
---@return { name: string, use: string, file: string?, version: integer? }?
function core.doctor.library(i) end
--- Sums of blocks of exp2's inputs: kernels/selftest/selftest.h.
---@param device "host"|"cuda"
---@param first integer # from 0
---@param count integer
---@param threads integer?
---@return integer[]
function core.doctor.exp2(device, first, count, threads) end
--- Outputs that differ from the host's model, all outputs, their hash, the first that differs.
---@param device "host"|"cuda"
---@param pattern integer # from 1
---@return integer, integer, integer, string?
function core.doctor.steps(device, pattern, seed, tiles) end
---@return string[]
function core.doctor.patterns() end

--- Which way of cuBLASLt gives our own kernel's bits for a product, and is fastest; id 0: none.
---@param device "host"|"cuda"
---@param product table # product, dtype, out, rows, columns, depth, add, parts of a linear
---@return { id: integer, offered: integer, refused: integer, own_us: number, us: number }
function core.doctor.product(device, product) end
--- One range of addresses in the memory of several GPUs; `tl.memory.span` checks its keys.
---@class tidelock.Span
local Span = {}
---@return integer # of the whole range
function Span:bytes() end
---@return { gpu: integer, first: integer, bytes: integer }[] # first: a byte of the range, from 0
function Span:parts() end
---@param at integer # a byte, from 0
---@param tensor tidelock.Tensor
function Span:write(at, tensor) end
---@param at integer
---@param tensor tidelock.Tensor # is filled
---@return tidelock.Tensor
function Span:read(at, tensor) end
--- An operator on GPU `gpu`; operands are { at =, dtype =, shape = }, or false. Waits for it.
---@param gpu integer # one of the span's
---@param op string
function Span:call(gpu, op, inputs, outputs, attrs) end
function Span:close() end

---@param options { gpus: integer[], bytes: integer }
---@return tidelock.Span
function core.span(options) end

return core
