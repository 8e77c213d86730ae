--- eight_gpus_table.lua - what eight_gpus.sh needs of Lua.
---
---     ./tl lua recipes/sweeps/eight_gpus_table.lua gpus             how many are here
---     ./tl lua recipes/sweeps/eight_gpus_table.lua tokens FILE      6 M tokens, always the same
---     ./tl lua recipes/sweeps/eight_gpus_table.lua table FILE ..    rows of sweeps as Markdown
---
--- efficiency: tokens a second of all ranks over as many times those of one rank, the first row.
--- of dp: over those of plain data parallelism with the same key. exposed: share of a traced step
--- in which rank 0 does nothing but communicate. Ends with 1 when rows of one key differ in a bit.
local core = require "tidelock.core"

local eos, vocab, length, count = 2, 32000, 700, 6000000

--- Documents of 700 tokens, drawn by a multiplication.
local function write_tokens(path)
  local file <close> = assert(io.open(path, "wb"))
  local state, words = 1, {}
  for i = 1, count do
    state = state * 6364136223846793005 + 1442695040888963407
    local token = i % length == 0 and eos or 3 + (state >> 40) % (vocab - 3)
    words[#words + 1] = string.pack("<I2", token)
    if #words == 65536 or i == count then
      assert(file:write(table.concat(words)))
      words = {}
    end
  end
end

local function read_rows(path)
  local rows = {}
  local file <close> = assert(io.open(path))
  for line in file:lines() do rows[#rows + 1] = core.json.decode(line) end
  table.sort(rows, function(a, b) return a.point < b.point end)
  return rows
end

local function percent(share) return share and ("%.1f %%"):format(100 * share) or "-" end

--- Plain data parallelism: nothing but dp, or dp with experts that stay at home.
local function is_plain(row)
  return row.label:match "^dp %d+$" or row.label:match "^dp %d+ ep 1$"
end

--- Whether the rows of each key have the same bits; prints those that have not.
local function agree(rows, first)
  local good = true
  for _, row in ipairs(rows) do
    if row.bits then
      local other = first[row.key]
      if other and other.bits ~= row.bits then
        print(("\nbits differ: %s has %s, %s has %s"):format(row.label, row.bits, other.label,
          other.bits))
        good = false
      end
      first[row.key] = other or row
    end
  end
  return good
end

local ran, all = 0, 0

local function print_table(path, first)
  local rows = read_rows(path)
  local alone, plain = rows[1], {}
  for _, row in ipairs(rows) do
    ran, all = ran + (row.status == "ok" and 1 or 0), all + 1
    if row.ranks and row.ranks > 1 and is_plain(row) then plain[row.key] = row end
  end
  print(("\n%s\n"):format(path:match "([^/]+)%.jsonl$"))
  print "| layout | step ms | tokens/s | efficiency | of dp | exposed | MiB a rank | bits |"
  print "|---|---|---|---|---|---|---|---|"
  for _, row in ipairs(rows) do
    if row.status == "ok" then
      local dp, one = plain[row.key], alone.tokens_per_s
      print(("| %s | %.1f | %.0f | %s | %s | %s | %.0f | %s %s |"):format(row.label, row.ms,
        row.tokens_per_s, percent(one and row.tokens_per_s / (row.ranks * one)),
        dp and ("%.2f"):format(row.tokens_per_s / dp.tokens_per_s) or "-", percent(row.exposed),
        row.peak_bytes / row.ranks / 2 ^ 20, row.loss_bits, row.weights_hash))
    else
      print(("| %s | %s: %s |"):format(row.label, row.status, row.reason))
    end
  end
  return agree(rows, first)
end

if arg[1] == "gpus" then
  print((core.cuda_count()))
  os.exit(0)
end
if arg[1] == "tokens" then
  write_tokens(arg[2])
  os.exit(0)
end
assert(arg[1] == "table" and arg[2], "gpus, tokens FILE, or table FILE ..")
local good, first = true, {}
for i = 2, #arg do good = print_table(arg[i], first) and good end
print(("\n%d of %d rows ran; %s"):format(ran, all,
  good and "those of a key have the same bits" or "BITS DIFFER"))
os.exit(good and ran > 0 and 0 or 1)
