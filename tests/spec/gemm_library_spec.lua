-- Ways of cuBLASLt are proven before they are used, with a library that imitates it: it multiplies
-- in host memory and lies where it is told to (tests/support/libraries/cublaslt.c).
local new_folder = require "support.folder"
local support = require "support"

local libraries = support.program:gsub("[^/]*$", "support/libraries")

local script = [[
local core = require "tidelock.core"
local dtype = arg[1]
for _, p in ipairs {
  { product = "linear", rows = 19, columns = 36, depth = 70 },
  { product = "linear", rows = 9, columns = 12, depth = 40, parts = 3 },
  { product = "linear_grad_input", rows = 11, columns = 8, depth = 33 },
  { product = "linear_grad_weight", rows = 12, columns = 20, depth = 130 },
  { product = "linear_grad_weight", rows = 12, columns = 20, depth = 130, add = true },
} do
  p.dtype, p.out = dtype, p.product == "linear_grad_weight" and "f32" or dtype
  local found = core.doctor.product("host", p)
  print(found.id, found.offered, found.refused)
end
]]

--- What is chosen for each product when the library behaves so.
local function chosen(behaviour, dtype)
  local folder = new_folder()
  local path = folder:write("products.lua", script)
  local text, status = support.run(("lua %s %s"):format(path, dtype or "f32"), nil,
    ("IMITATION=%s LD_LIBRARY_PATH=%s "):format(behaviour, libraries))
  folder:remove()
  assert.is_nil(status ~= 0 and text or nil)
  return text
end

describe("products through cuBLASLt", function()
  it("take parts of one width at even distances as one, others part by part, or not at all",
    function()
      assert.equal("even: 1, 3 x 32 by 4096\n"
        .. "moved: 3, 1 x 32 by 0, 1 x 32 by 0, 1 x 32 by 0\n"
        .. "back: 3, 1 x 32 by 0, 1 x 32 by 0, 1 x 32 by 0\n"
        .. "two widths: 3, 1 x 32 by 0, 1 x 32 by 0, 1 x 16 by 0\n"
        .. "odd width: 0\n", (support.run("", "product_cut")))
    end)

  it("take the first way that is proven", function()
    assert.equal(("55\t2\t0\n"):rep(5), chosen "none")
  end)

  it("refuse a way that adds one element in another order, and take another one", function()
    assert.equal(("20\t2\t1\n"):rep(5), chosen "55")
  end)

  it("stay with our own kernel where no way is proven", function()
    assert.equal(("0\t2\t2\n"):rep(5), chosen "both")
  end)

  it("stay with our own kernel where no way is offered", function()
    assert.equal(("0\t0\t0\n"):rep(5), chosen("none", "bf16"))
  end)
end)
