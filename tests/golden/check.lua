--- Compares the first steps of the quickstart's model with tests/golden/quickstart.json, in f32 and
--- on the text that lies here: `./tl lua tests/golden/check.lua [STEPS]`. For machines where the suite
--- cannot run, as under emulation (.ci/aarch64).
package.path = "tests/?.lua;" .. package.path

local core = require "tidelock.core"
local golden = require "golden.make"

local steps = tonumber((...) or "2")
local known = core.json.decode(core.files.read_all(golden.file))["own text, f32"].steps
local got = golden.record("f32", steps, golden.with_own_text {}).steps
local equal = true
for i = 1, steps do
  local same = got[i].loss == known[i].loss and got[i].grad_norm == known[i].grad_norm
  equal = equal and same
  print(("step %d  loss %s  gradient norm %s  %s"):format(i, got[i].loss, got[i].grad_norm,
    same and "equal" or ("written down: %s %s"):format(known[i].loss, known[i].grad_norm)))
end
print(equal and "golden bits" or "other bits")
return equal
