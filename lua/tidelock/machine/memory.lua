--- `tl.memory`: what large memory is taken, and one range of addresses over several GPUs.
--
--     tl.memory()               { arena = { current =, peak = }, .. } in bytes
--     tl.memory.span { .. }     a range whose parts lie in the memory of different GPUs:
--
--         local span <close> = tl.memory.span { gpus = { 0, 1 }, bytes = 1 << 30 }
--         span:write(at, tensor)
--         span:call(0, "binary", { a, b }, { y }, { kind = 0, broadcast = 0 })
--         span:read(at, tensor)
--
-- a, b and y are { at = byte, dtype = "f32", shape = { n } }, anywhere in the range, across the
-- border between two GPUs too; a kernel of any of them takes them through plain pointers. The GPUs
-- have to reach each other (`./tl doctor` lists links), and the range belongs to one process.

local core = require "tidelock.core"

---@class tidelock.Memory
local memory = {}

---@param options { gpus: integer[], bytes: integer } # GPUs from 0, in order; bytes of each
---@return tidelock.Span
function memory.span(options)
  for key in pairs(options) do -- any one will do
    if key ~= "gpus" and key ~= "bytes" then
      error(("memory.span: %s: no such key; it takes gpus and bytes"):format(key), 2)
    end
  end
  for _, name in ipairs { "gpus", "bytes" } do
    if options[name] == nil then
      error(("memory.span: %s is missing; memory.span { gpus = { 0, 1 }, bytes = 1 << 30 }"):format(
        name), 2)
    end
  end
  return core.span(options)
end

return setmetatable(memory, { __call = function(_, reset) return core.memory(reset) end })
