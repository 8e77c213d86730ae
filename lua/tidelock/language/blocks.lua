--- Block sizes of kernels: what stands in the recipe, and what it means.
--
-- The key block of attention is part of the order of sums, so its default hangs on the head alone:
-- 128 keys up to head_dim 128, 64 above. `split` closes a row's sums every so many keys and must be
-- a whole number of key blocks. All other sizes are speed only: they choose among compiled kernels.
--
-- blocks.attention.q names the query rows of a tile, and with them the kernels. Unset, the launcher
-- takes the best that has the heads and blocks of a call.
--
-- blocks.gemm names a tile of kernels/gemm/gemm_hopper.def: m rows and n columns of the outputs of
-- a block of threads, k of a step through shared memory. Unset, the launcher chooses for each
-- product; a tile that a product cannot have (its leaves, gradients) leaves that product to it too.
local blocks = {}

--- m, n, k of what is compiled.
blocks.gemm_tiles = { { 128, 256, 64 }, { 128, 176, 64 }, { 128, 128, 64 }, { 128, 88, 64 },
  { 128, 64, 64 }, { 64, 88, 64 }, { 64, 64, 64 }, { 64, 40, 64 }, { 64, 32, 64 }, { 32, 32, 64 } }

--- blocks.gemm.provider as the core numbers it (kernels/gemm/gemm_provider.h). Who multiplies never
--- changes a bit: the library is taken for a shape after it gave our kernel's bits there.
blocks.gemm_providers = { own = 0, auto = 1, cublaslt = 2 }

--- Keys of an attention block for heads of width `head_dim`, unless `kv` is set.
function blocks.attention_kv(kv, head_dim)
  if kv then return kv end
  return head_dim <= 128 and 128 or 64
end

--- Whether a size is a multiple of `unit` from 16 to 512, or not set.
local function multiple(report, path, name, value, unit)
  if not value or value % unit == 0 and value >= 16 and value <= 512 then return true end
  local near = math.min(512, math.max(16, (value + unit // 2) // unit * unit))
  report(path, "%s %d is not a multiple of %d from 16 to 512; try %s = %d", name, value, unit, name,
    near)
  return false
end

--- Rows of the query tiles that kernels of attention have, and what they are.
local query_tiles = { [64] = "mma.sync, everywhere", [128] = "wgmma, sm_90" }

local function check_query_tile(report, q)
  if not q or query_tiles[q] then return end
  report("blocks.attention.q", "q %d; kernels have tiles of 64 rows (%s) and 128 (%s); unset, the "
    .. "kernel chooses", q, query_tiles[64], query_tiles[128])
end

--- Whether a tile of products exists that has the sizes that are set.
local function exists(gemm)
  for _, tile in ipairs(blocks.gemm_tiles) do
    if (gemm.m or tile[1]) == tile[1] and (gemm.n or tile[2]) == tile[2] and
      (gemm.k or tile[3]) == tile[3] then return true end
  end
  return false
end

local function check_gemm(gemm, report)
  local good, sizes, all = true, {}, {}
  for _, name in ipairs { "m", "n", "k" } do
    local unit = name == "n" and 8 or 16
    good = multiple(report, "blocks.gemm." .. name, name, gemm[name], unit) and good
    if gemm[name] then sizes[#sizes + 1] = ("%s %d"):format(name, gemm[name]) end
  end
  if not good or exists(gemm) then return end
  for i, tile in ipairs(blocks.gemm_tiles) do all[i] = ("{ %d, %d, %d }"):format(
    table.unpack(tile)) end
  report("blocks.gemm", "no compiled product has %s; as { m, n, k } there are %s",
    table.concat(sizes, ", "), table.concat(all, ", "))
end

--- Reports sizes that no kernel has (rule R21). `section` is the checked section "blocks".
function blocks.check(section, report)
  local attention = section.attention
  check_query_tile(report, attention.q)
  if multiple(report, "blocks.attention.kv", "kv", attention.kv, 16) then
    local kv, split = attention.kv or 128, attention.split
    if split % kv ~= 0 then
      report("blocks.attention.split", "split %d is not a multiple of kv %d; try split = %d", split,
        kv, math.max(1, split // kv) * kv)
    end
  end
  check_gemm(section.gemm, report)
end

return blocks
