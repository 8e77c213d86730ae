--- Whether this machine's devices can run a plan: told before anything is allocated.
--
--     recipes/llama_1b.lua:20: device: "cuda": GPU 0 (Tesla T4) is of architecture sm_75, and this
--       build has kernels for sm_90; a GPU of that kind would do, or device = "host", with the same
--       bits
--
-- What a device gives: f32 by fmaf on every one ("fma"); bf16 in k16 steps with 25 bits on compute
-- capability 9.0 and later ("sm_90"), in k8 steps with 24 bits before that ("sm_80").

local core = require "tidelock.core"
local problems = require "tidelock.text.problems"
local room = require "tidelock.machine.room"

local gpus = {}

--- Names of policy.arithmetic that a device computes itself.
---@param major integer
---@param minor integer
---@return string[]
function gpus.arithmetics(major, minor)
  if major >= 9 then return { "fma", "sm_90" } end
  if major * 10 + minor >= 75 then return { "fma", "sm_80" } end
  return { "fma" }
end

--- "sm_90"
function gpus.architecture(facts) return ("sm_%d%d"):format(facts.major, facts.minor) end

--- The architectures that this build has kernels for, ascending and without repetition.
---@param images table[] # of core.manifest.images
function gpus.built_for(images)
  local seen, list = {}, {}
  for _, image in ipairs(images) do
    if not seen[image.arch] then
      seen[image.arch] = true
      list[#list + 1] = image.arch
    end
  end
  table.sort(list)
  for i, arch in ipairs(list) do list[i] = "sm_" .. arch end
  return list
end

local function has(list, name)
  for _, item in ipairs(list) do
    if item == name then return true end
  end
  return false
end

--- What keeps a GPU from running a plan under `arithmetic`; nil when nothing does.
---@param facts table # of core.cuda_device
---@param built string[] # of gpus.built_for
---@param arithmetic string
---@return string|nil
function gpus.refusal(ordinal, facts, built, arithmetic)
  local name = ("GPU %d (%s)"):format(ordinal, facts.name)
  local own = gpus.arithmetics(facts.major, facts.minor)
  if not has(own, arithmetic) then
    return ("%s has the arithmetic %s, and this recipe is of %q; a GPU of compute capability 9.0 "
      .. "or later would do, or device = \"host\", which has all of them"):format(name,
      table.concat(own, ", "), arithmetic)
  end
  if not has(built, gpus.architecture(facts)) then
    return ("%s is of architecture %s, and this build has kernels for %s; a GPU of that kind would "
      .. "do, or device = \"host\", with the same bits"):format(name, gpus.architecture(facts),
      table.concat(built, ", "))
  end
end

--- Everything that is wrong with the devices of a plan on the GPU, as texts.
---@param spec table
---@param machine { count: integer, why: string?, facts: table[], built: string[] }
---@param here? integer # ranks of this machine, when others have more of them
---@return string[]
function gpus.complaints(spec, machine, here)
  local ranks = here or spec.layout.tp * spec.layout.dp * spec.layout.pp
  if #machine.built == 0 then
    return { "\"cuda\": this build has no GPU kernels; TL_CUDA=on ./tl builds them where nvcc is, "
      .. "or device = \"host\", with the same bits" }
  end
  if machine.count == 0 then
    return { "\"cuda\": " .. machine.why }
  end
  if machine.count < ranks then
    return { ("\"cuda\": the layout has %d ranks, one a GPU, and this machine has %d; a smaller "
      .. "layout gives the same bits, and so does device = \"host\""):format(ranks,
      machine.count) }
  end
  local texts = {}
  for ordinal = 0, ranks - 1 do
    texts[#texts + 1] = gpus.refusal(ordinal, machine.facts[ordinal + 1], machine.built,
      spec.policy.arithmetic)
  end
  return texts
end

--- Why experts' rows cannot travel between these GPUs; nil when they can.
function gpus.exchange_refusal(layout)
  if layout.ep == 1 then return nil end
  if layout.all_to_all ~= "auto" and layout.all_to_all ~= "flat" then
    return ("\"cuda\": layout.all_to_all = \"%s\": between GPUs rows go straight to their owners; "
      .. "\"flat\" does so, with the same bits"):format(layout.all_to_all)
  end
  if layout.all_to_all == "auto" and layout.island and layout.island < layout.ep then
    return ("\"cuda\": layout.island = %d: between GPUs rows go straight to their owners; without "
      .. "it they do, with the same bits"):format(layout.island)
  end
end

--- The GPUs of this machine and the kernels of this build.
function gpus.machine()
  local count, why = core.cuda_count()
  local machine = {
    count = count, why = why, facts = {}, built = gpus.built_for(core.manifest.images()),
  }
  for ordinal = 0, count - 1 do machine.facts[ordinal + 1] = core.cuda_device(ordinal) end
  return machine
end

--- Every image against the table of verified machine code: what is refused, and a note when another
-- compiler made the kernels than the verified ones.
---@param images table[] # of core.manifest.images
---@param texts { verified: string, own: string }? # unset: those of this program
---@return string[] complaints, string|nil note
function gpus.compare(images, texts)
  local complaints, note = {}, nil
  local verified, own = core.manifest.texts()
  if texts then verified, own = texts.verified, texts.own end
  for i, image in ipairs(images) do
    local good, other = pcall(core.manifest.check, image.name, image.arch,
      image.bytes or core.manifest.image(i), verified, own)
    if not good then
      complaints[#complaints + 1] = tostring(other):gsub("^[^ ]-:%d+: ", "")
    elseif other then
      note = ("nvcc %s made these kernels, and kernels/manifest.yaml has the code of nvcc %s: they "
        .. "are checked against this build's own record only"):format(image.compiler, other)
    end
  end
  return complaints, note
end

local function check_memory(plan, machine, here)
  local ranks = here or plan.summary.ranks
  for ordinal = 0, ranks - 1 do
    local facts = machine.facts[ordinal + 1]
    if plan.summary.ranks == 1 then
      room.check(plan, facts.memory, ("GPU %d (%s)"):format(ordinal, facts.name))
    elseif plan.summary.rank_bytes > facts.memory then
      local all = plan.summary.ranks
      room.check(plan, facts.memory * all, ("%d x %s"):format(all, facts.name))
    end
  end
end

--- Raises, with status 2, when the plan's device cannot run it.
---@param plan table # all stages, and its summary
---@param launched? tidelock.Launch # ranks are processes, on machines that are like this one
function gpus.check(plan, launched)
  local spec, here = plan.spec, launched and launched.here_world
  if spec.device ~= "cuda" then
    local bytes = room.bytes()
    return room.check(plan, launched and bytes and bytes * launched.world // here or bytes)
  end
  local machine, found = gpus.machine(), problems.new()
  local complaints, note = gpus.compare(core.manifest.images())
  local more = gpus.complaints(spec, machine, here)
  table.move(more, 1, #more, #complaints + 1, complaints)
  complaints[#complaints + 1] = gpus.exchange_refusal(spec.layout)
  for _, text in ipairs(complaints) do found:add(spec.site("device"), "device", text) end
  found:raise()
  check_memory(plan, machine, here)
  if note then table.insert(spec.notes, note) end
end

return gpus
