-- The machine code of kernels: read, hashed, written down, compared, refused by name.
local core = require "tidelock.core"
local cubin = require "support.cubin"
local folder = require "support.folder"
local gpus = require "tidelock.machine.gpus"
local machine = require "tidelock.machine.code"
local support = require "support"

local function kernels()
  return {
    { name = "first", text = "code of first", registers = 24, shared = 1056 },
    { name = "second", text = "code of second", registers = 40, ["local"] = 16 },
  }
end

local function make(list, compiler)
  return cubin.make { compiler = compiler or "13.0.88", kernels = list }
end

--- The table that the build would write of an image called "loss".
local function record(bytes)
  local compiler, flags, list = core.manifest.read(bytes)
  local lines = { "images:", ('- { image: loss, arch: 90, compiler: "%s", flags: "%s" }'):format(
    compiler, flags), "kernels:" }
  for _, k in ipairs(list) do
    lines[#lines + 1] = ("- { image: loss, arch: 90, kernel: %s, registers: %d, shared: %d, "
      .. "local: %d, sha256: %s }"):format(k.name, k.registers, k.shared, k["local"], k.sha256)
  end
  return table.concat(lines, "\n") .. "\n"
end

local function check(bytes, verified, own)
  return core.manifest.check("loss", 90, bytes, verified, own or "")
end

local function refusal(...)
  local good, problem = pcall(check, ...)
  assert.is_false(good)
  return problem
end

describe("a cubin", function()
  it("tells its compiler and what each kernel needs", function()
    local compiler, flags, list = core.manifest.read(make(kernels()))
    assert.equal("13.0.88", compiler)
    assert.equal("-arch sm_90a -m 64", flags)
    assert.same({ "first", 24, 1056, 0 }, { list[1].name, list[1].registers, list[1].shared,
      list[1]["local"] })
    assert.same({ "second", 40, 0, 16 }, { list[2].name, list[2].registers, list[2].shared,
      list[2]["local"] })
    assert.is_truthy(list[1].sha256:find "^%x+$" and #list[1].sha256 == 64)
  end)

  it("has hashes that depend on a kernel's own code, parameters and constants alone", function()
    local function hashes(list)
      local found = {}
      for _, k in ipairs(select(3, core.manifest.read(make(list)))) do found[k.name] = k.sha256 end
      return found
    end
    local before, more = hashes(kernels()), kernels()
    table.insert(more, 1, { name = "another", text = "x" }) -- every symbol has another number
    assert.equal(before.first, hashes(more).first)
    assert.equal(before.second, hashes(more).second)
    for _, field in ipairs { { "text", "code of First" }, { "constants", ("\1"):rep(32) },
      { "parameters", 0x2580220 } } do
      local changed = kernels()
      changed[1][field[1]] = field[2]
      assert.are_not.equal(before.first, hashes(changed).first, field[1])
      assert.equal(before.second, hashes(changed).second, field[1])
    end
  end)

  it("that is cut or damaged anywhere is a failure, never a crash", function()
    local bytes, seen = make(kernels()), 0
    for length = 0, #bytes - 1, 7 do
      if not pcall(core.manifest.read, bytes:sub(1, length)) then seen = seen + 1 end
    end
    assert.is_true(seen > 50)
    for at = 1, #bytes do
      for _, byte in ipairs { 0, 0x7f, 0xff } do
        pcall(core.manifest.read, bytes:sub(1, at - 1) .. string.char(byte) .. bytes:sub(at + 1))
      end
    end
    assert.matches("damaged", select(2, pcall(core.manifest.read, "no ELF file at all, but long "
      .. ("x"):rep(64))))
  end)
end)

describe("the manifest", function()
  local bytes = make(kernels())
  local verified = record(bytes)

  it("accepts the code that it was made of", function()
    assert.is_nil(check(bytes, verified))
  end)

  it("refuses one flipped byte of machine code, by name and with what to do", function()
    local at = bytes:find("code of second", 1, true)
    local flipped = bytes:sub(1, at - 1) .. string.char(bytes:byte(at) ~ 1) .. bytes:sub(at + 1)
    local text = refusal(flipped, verified)
    assert.matches("kernels of loss, sm_90, are not those of kernels/manifest.yaml: "
      .. "second %(other machine code%)", text)
    assert.matches("%./tl manifest %-%-update", text)
    assert.is_nil(text:find("first", 1, true))
  end)

  it("refuses kernels that are new, missing, or have other registers", function()
    local list = kernels()
    list[2].name, list[1].registers = "third", 25
    local text = refusal(make(list), verified)
    assert.matches("first %(other registers or memory%)", text)
    assert.matches("third %(new%)", text)
    assert.matches("second %(missing%)", text)
  end)

  it("refuses every kernel of an image that it does not have", function()
    assert.matches("first %(new%), second %(new%)", refusal(bytes, "images: []\nkernels: []\n"))
  end)

  it("compares another compiler's code with the build's own record, and says so", function()
    local list = kernels()
    list[1].text = "code of another compiler"
    local other = make(list, "12.9.41")
    assert.equal("13.0.88", check(other, verified, record(other)))
    assert.matches("are not those of the build's record", refusal(other, verified, ""))
    local complaints, note = gpus.compare({ { name = "loss", arch = 90, bytes = other,
      compiler = "12.9.41" } }, { verified = verified, own = record(other) })
    assert.same({}, complaints)
    assert.matches("nvcc 12.9.41 made these kernels, and .*manifest.yaml has .* 13.0.88", note)
  end)
end)

describe("the cubins of this build", function()
  local images = core.manifest.images()

  local function with_cubins(name, fn)
    if #images > 0 then it(name, fn) end
  end

  with_cubins("are those of kernels/manifest.yaml, byte for byte as the build writes it", function()
    local text, own = core.manifest.texts()
    assert.equal(core.files.read_all "kernels/manifest.yaml", text)
    assert.same({}, (gpus.compare(images)))
    if not select(2, gpus.compare(images)) then assert.equal(text, own) end
  end)

  with_cubins("are refused when one byte of any of them is flipped", function()
    local text, own = core.manifest.texts()
    for i, image in ipairs(images) do
      local whole = core.manifest.image(i)
      local at = #whole // 2
      local flipped = whole:sub(1, at - 1) .. string.char(whole:byte(at) ~ 1) .. whole:sub(at + 1)
      local complaints = gpus.compare({ { name = image.name, arch = image.arch, bytes = flipped } },
        { verified = text, own = own })
      assert.equal(1, #complaints, image.name)
      assert.matches("other machine code", complaints[1])
    end
  end)

  with_cubins("pass the scan of their machine code", function()
    assert.same({}, machine.scan(images, machine.folder()).complaints)
  end)
end)

describe("the scan", function()
  local ptx = [[
    .visible .entry good(.param .u64 p) { ex2.approx.ftz.f32 %f1, %f2; div.rn.f32 %f3, %f4, %f5; }
    .visible .entry plain(.param .u64 p) { fma.rn.f32 %f1, %f2, %f3, %f4; }
  ]]
  local function sass(name, instruction)
    return ("\t\tFunction : %s\n        /*0000*/                   %s   /* 0x00 */\n"):format(name,
      instruction)
  end

  it("takes ex2, and what exact divisions and roots are made of", function()
    local known, complaints = machine.scan_ptx(ptx)
    assert.same({}, complaints)
    assert.same({ RCP = true, RSQ = false }, known.good)
    for _, instruction in ipairs { "MUFU.EX2 R1, R2 ;", "@!P0 MUFU.RCP R1, R2 ;",
      "MUFU.RSQ R1, -QNAN  ;", "ATOMG.E.EXCH.STRONG.GPU PT, R5, R2 ;", "RED.E.ADD.S32 R1 ;" } do
      assert.same({}, machine.scan_sass(sass("good", instruction), known), instruction)
    end
  end)

  it("refuses approximations in PTX and float atomics in both texts", function()
    for word, what in pairs { ["rcp.approx.ftz.f32"] = "an approximation",
      ["tanh.approx.f32"] = "an approximation", ["div.full.f32"] = "an approximation",
      ["ex2.approx.f32"] = "an approximation", ["red.global.add.f32"] = "a float atomic",
      ["atom.global.add.noftz.bf16x2"] = "a float atomic" } do
      local _, complaints = machine.scan_ptx((".entry k(.param .u64 p) { %s %%f1, %%f2; }"):format(
        word))
      assert.same({ ("k: %s in its PTX: %s"):format(what, word) }, complaints)
    end
    assert.same({ "k: a float atomic: RED.E.ADD.F32.FTZ.RN.STRONG.GPU" },
      machine.scan_sass(sass("k", "@P0 RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R4 ;")))
    assert.same({ "k: an approximate unit: MUFU.LG2" }, machine.scan_sass(sass("k",
      "MUFU.LG2 R1, R2 ;")))
  end)

  it("refuses a reciprocal or a root that no exact operation explains", function()
    local known = machine.scan_ptx(ptx)
    assert.same({ "plain: MUFU.RCP without an exact division in its PTX" },
      machine.scan_sass(sass("plain", "MUFU.RCP R1, R2 ;"), known))
    assert.same({ "good: MUFU.RSQ without an exact root in its PTX" },
      machine.scan_sass(sass("good", "MUFU.RSQ R1, R2 ;"), known))
  end)
end)

describe("./tl manifest", function()
  local dir = folder()
  teardown(function() dir:remove() end)

  it("says what to do in a build without GPU kernels, or checks and exits with 0", function()
    local text, status = support.run "manifest"
    if #core.manifest.images() == 0 then
      assert.equal(2, status)
      assert.matches("TL_CUDA=on %./tl manifest", text)
    else
      assert.equal(0, status, text)
      assert.matches("are those of kernels/manifest.yaml", text)
    end
  end)

  it("shows how a kernel differs from an old one", function()
    local images = core.manifest.images()
    if #images == 0 then return end
    local kernel = images[1].kernels[1].name
    core.files.write_atomic(dir:path "old.cubin", core.manifest.image(1))
    local text, status = support.run(("manifest --diff %s %s"):format(kernel, dir:path "old.cubin"))
    assert.equal(0, status, text)
    assert.matches("the machine code is the same", text)
    text, status = support.run(("manifest --diff no_such_kernel %s"):format(dir:path "old.cubin"))
    assert.equal(2, status)
    assert.matches("this build has no kernel no_such_kernel", text)
  end)
end)
