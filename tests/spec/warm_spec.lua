-- Ranks that meet their peers two by two do not wait in a circle (runtime/comm_warm.h).
local support = require "support"

--- The peers of each rank in the order in which it meets them; lists[rank + 1]: as they are added.
local function orders(lists)
  local lines, all = {}, {}
  for rank, peers in ipairs(lists) do
    lines[rank] = rank - 1 .. " " .. table.concat(peers, " ")
  end
  local printed = support.run("", "warm", "printf '" .. table.concat(lines, "\\n") .. "\\n' | ")
  for line in printed:gmatch "([^\n]*)\n" do
    local peers = {}
    for peer in line:gmatch "%d+" do peers[#peers + 1] = tonumber(peer) end
    all[#all + 1] = peers
  end
  return all
end

--- Meets two by two; returns who is left waiting.
local function meet(all)
  local at, again, left = {}, true, {}
  for rank = 0, #all - 1 do at[rank] = 1 end
  while again do
    again = false
    for rank = 0, #all - 1 do
      local peer = all[rank + 1][at[rank]]
      if peer and all[peer + 1][at[peer]] == rank then
        at[rank], at[peer], again = at[rank] + 1, at[peer] + 1, true
      end
    end
  end
  for rank = 0, #all - 1 do
    if all[rank + 1][at[rank]] then left[#left + 1] = rank end
  end
  return left
end

--- Peers of every rank from groups, as each rank adds them: groups in order, itself included.
local function peers_of(world, groups)
  local lists = {}
  for rank = 0, world - 1 do
    lists[rank + 1] = {}
    for _, group in ipairs(groups) do
      local mine = false
      for _, member in ipairs(group) do mine = mine or member == rank end
      if mine then table.move(group, 1, #group, #lists[rank + 1] + 1, lists[rank + 1]) end
    end
  end
  return lists
end

--- All of `world`; a grid of rows and columns; neighbours of a ring; pseudorandom groups.
local function shapes(world)
  local all, rows, columns, ring, any = {}, {}, {}, {}, {}
  local wide = world % 4 == 0 and 4 or world % 3 == 0 and 3 or 1
  for rank = 0, world - 1 do
    all[rank + 1] = rank
    local r, c = rank // wide + 1, rank % wide + 1
    rows[r], columns[c] = rows[r] or {}, columns[c] or {}
    table.insert(rows[r], rank)
    table.insert(columns[c], rank)
    ring[rank + 1] = { rank, (rank + 1) % world }
  end
  local state = world
  for g = 1, 6 do
    any[g] = {}
    for rank = 0, world - 1 do
      state = (state * 1103515245 + 12345) % 2147483648
      if state // 65536 % 3 == 0 then table.insert(any[g], rank) end
    end
  end
  local grid = table.move(columns, 1, #columns, #rows + 1, rows)
  return { all = { all }, grid = grid, ring = ring, any = any }
end

describe("ranks that meet two by two", function()
  for _, case in ipairs {
    { "0", "", "nobody" }, { "0 1", "1", "one" }, { "3 0 1 2 3", "2 1 0", "all but itself" },
    { "5 4 6 5 7 6 4 0", "4 7 6 0", "each once, whatever group has it" },
    { "2 0 4 7 9", "0 7 4 9", "a world that is no power of two" },
  } do
    it("meet " .. case[3], function()
      local text = support.run("", "warm", "echo '" .. case[1] .. "' | ")
      assert.equal(case[2] .. "\n", text)
    end)
  end

  it("are never left waiting, in worlds of up to 33 ranks", function()
    for _, world in ipairs { 1, 2, 3, 6, 8, 12, 16, 33 } do
      for name, groups in pairs(shapes(world)) do
        local lists = peers_of(world, groups)
        local left = meet(orders(lists))
        assert.equal("", table.concat(left, " "), ("world %d, %s"):format(world, name))
      end
    end
  end)

  it("would be, if each went round from its own place", function()
    local all = {}
    for rank = 0, 2 do all[rank + 1] = { (rank + 1) % 3, (rank + 2) % 3 } end
    assert.equal("0 1 2", table.concat(meet(all), " "))
  end)
end)
