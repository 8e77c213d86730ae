--- panels.lua - which weights lie in panels (kernels/panels.h) when requests are served.
local panels = {}

--- The weights that a node multiplies with, or looks up in; and whether that is all it does.
local function matrices_of(node)
  local takes = node.op == "linear" and node.attrs.parts or node.op == "embedding" and 1 or 0
  local list, pure = {}, true
  for i, value in ipairs(node.inputs) do
    while value.alias do value = value.alias end
    local param = value.param
    if param then
      local matrix = i > 1 and i <= 1 + takes
      pure = pure and (not matrix or param.fields.dtype == "f32" and not param.expert)
      if matrix or takes == 0 then list[#list + 1] = param.name end
    end
  end
  return list, pure and takes > 0
end

--- Names of weights that lie in panels (kernels/panels.h), on the host in f32: those that nothing
--- reads but products and the embedding. A step of few rows reads all of them, from front to back.
function panels.find(plan, nodes)
  local found, other = {}, {}
  if plan.spec.device ~= "host" then return found end
  for _, node in ipairs(nodes) do
    local list, good = matrices_of(node)
    for _, name in ipairs(list) do (good and found or other)[name] = true end
  end
  local function spread() -- the parts of one product lie alike
    for _, node in ipairs(nodes) do
      local list = matrices_of(node)
      local bad
      for _, name in ipairs(list) do bad = bad or other[name] end
      for _, name in ipairs(bad and list or {}) do
        if not other[name] then
          other[name] = true
          return true
        end
      end
    end
  end
  repeat local more = spread() until not more
  for name in pairs(other) do found[name] = nil end
  return found
end

return panels
