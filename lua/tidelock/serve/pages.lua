--- pages.lua - the pool of pages: who has which, and which hold a prefix that may come again.
---
---     free     7 3 9           never used, or forgotten
---     in use   2: 1  5: 2      pages with the number of requests that read them
---     kept     4 1             full pages of a known prefix that no request reads; the oldest is
---                              forgotten first when free pages run out
---
---     prefix   root -- "3,9,4,1" page 5 -- "8,8,2,0" page 2      a page is known by its tokens and
---                   \- "3,9,4,2" page 4                          by the page before it
---
--- The tokens themselves are compared, no hash of them: a prefix is found when it is there, and
--- only then. Which request wrote a page changes no bit of it.
local pages = {}

---@class tidelock.Pages
local Pages = {}
Pages.__index = Pages

---@param count integer # pages of the pool
---@param size integer # positions of a page
---@param keep boolean # whether prefixes are kept
---@return tidelock.Pages
function pages.new(count, size, keep)
  local self = setmetatable({
    count = count, size = size, keep = keep, free = {}, readers = {}, known = {}, entry_of = {},
    serial = 0, first_kept = 1, last_kept = 0, kept = {}, kept_count = 0, hits = 0,
  }, Pages)
  for page = count - 1, 0, -1 do self.free[#self.free + 1] = page end
  return self
end

--- Pages that a request could have now.
function Pages:available() return #self.free + self.kept_count end

local function name_of(parent, tokens, first, size)
  return parent .. ":" .. table.concat(tokens, ",", first, first + size - 1)
end

--- Known pages of the full pages at the start of `tokens`, of its first `limit` tokens.
---@return { page: integer, serial: integer }[]
function Pages:find(tokens, limit)
  local found, parent = {}, 0
  if not self.keep then return found end
  for first = 1, limit - self.size + 1, self.size do
    local entry = self.known[name_of(parent, tokens, first, self.size)]
    if not entry then break end
    found[#found + 1], parent = entry, entry.serial
  end
  return found
end

--- A request reads the page of `entry`.
function Pages:share(entry)
  local page = entry.page
  if self.readers[page] == 0 then
    self.kept[entry.place] = false
    self.kept_count = self.kept_count - 1
  end
  self.readers[page] = self.readers[page] + 1
  self.hits = self.hits + 1
end

local function forget(self, entry)
  self.known[entry.name], self.entry_of[entry.page], self.readers[entry.page] = nil, nil, nil
  self.free[#self.free + 1] = entry.page
end

--- A page for one request; the caller has looked at available().
function Pages:take()
  while #self.free == 0 do
    local entry = self.kept[self.first_kept]
    self.kept[self.first_kept] = nil
    self.first_kept = self.first_kept + 1
    if entry then
      self.kept_count = self.kept_count - 1
      forget(self, entry)
    end
  end
  local page = table.remove(self.free)
  self.readers[page] = 1
  return page
end

--- Page number `index` (from 1) of a request is full of tokens: it may be found from now on.
--- `parent` is the serial of the page before it, 0 for the first. Returns its own.
function Pages:name(page, parent, tokens, index)
  if not self.keep or not parent then return nil end
  local name = name_of(parent, tokens, (index - 1) * self.size + 1, self.size)
  local known = self.known[name]
  if known then return known.serial end -- the same tokens, so the same bits, twice
  self.serial = self.serial + 1
  local entry = { page = page, serial = self.serial, name = name }
  self.known[name], self.entry_of[page] = entry, entry
  return entry.serial
end

--- Places that `share` has emptied go, before they are as many as pages: a prefix that is read
--- again and again, while free pages do not run out, takes one each time.
local function close_up(self)
  local kept, count = {}, 0
  for place = self.first_kept, self.last_kept do
    local entry = self.kept[place]
    if entry then
      count = count + 1
      kept[count], entry.place = entry, count
    end
  end
  self.kept, self.first_kept, self.last_kept = kept, 1, count
end

--- A request no longer reads the page.
function Pages:release(page)
  self.readers[page] = self.readers[page] - 1
  if self.readers[page] > 0 then return end
  local entry = self.entry_of[page]
  if not entry then
    self.readers[page] = nil
    self.free[#self.free + 1] = page
    return
  end
  if self.last_kept - self.first_kept - self.kept_count > self.count then close_up(self) end
  self.last_kept = self.last_kept + 1
  entry.place = self.last_kept
  self.kept[entry.place] = entry
  self.kept_count = self.kept_count + 1
end

return pages
