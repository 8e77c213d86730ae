-- The pattern language of weights and values: `*` is any run of characters.
local names = require "tidelock.language.names"

--- What a pattern means, said as a Lua pattern.
local function slow(pattern)
  local lua = "^" .. pattern:gsub("%p", "%%%0"):gsub("%%%*", ".*") .. "$"
  return function(name) return name:find(lua) ~= nil end
end

--- Words of up to `most` letters of a set, one after the other.
local function words_of(set, most)
  local state = 1
  local function below(n)
    state = state * 6364136223846793005 + 1442695040888963407
    return (state >> 33) % n
  end
  return function()
    local word = {}
    for i = 1, below(most + 1) do
      local at = below(#set) + 1
      word[i] = set:sub(at, at)
    end
    return table.concat(word)
  end
end

describe("a pattern of names", function()
  it("matches what its stars and letters say, whole", function()
    for _, row in ipairs {
      { "*", "", true }, { "*.q", "layers.0.q", true }, { "*.q", "layers.0.qx", false },
      { "a*a", "a", false }, { "a*a", "aa", true }, { "*ab*b", "abb", true },
      { "*ab*b", "ab", false }, { "q", "q", true }, { "q.", "qx", false }, { "a%w*", "abc", false },
    } do
      assert.equal(row[3], names.matcher(row[1])(row[2]), row[1] .. " on " .. row[2])
    end
  end)

  it("agrees with a Lua pattern on any word", function()
    local pattern_of, name_of, found = words_of("ab*.", 6), words_of("ab.", 9), 0
    for _ = 1, 2000 do
      local pattern, name = pattern_of(), name_of()
      local expected = slow(pattern)(name)
      assert.equal(expected, names.matcher(pattern)(name), pattern .. " on " .. name)
      if expected then found = found + 1 end
    end
    assert.is_true(found > 200, found .. " of 2000 words match")
  end)

  it("with many stars ends at once", function()
    local name = ("layers.0.attention."):rep(10)
    assert.is_false(names.matcher(("*"):rep(40) .. "z")(name))
    assert.is_false(names.matcher(("*a"):rep(20) .. "z")(name))
    assert.is_true(names.matcher(("*a"):rep(20) .. "*")(name))
  end)
end)
