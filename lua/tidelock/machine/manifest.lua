--- `./tl manifest`: the machine code of the GPU's kernels.
--
--   ./tl manifest                   every kernel against kernels/manifest.yaml, then the scan
--   ./tl manifest --update          writes kernels/manifest.yaml from this build
--   ./tl manifest --diff KERNEL OLD the kernel's code in OLD (a cubin, or a folder of cubins) and
--                                   here, as text, by diff
--   ./tl manifest --scan            the scan alone
--
-- What is hashed, and how a load refuses a kernel, stands in runtime/manifest.h; what the scan
-- looks for, in code.lua. A build without cubins has nothing to check, and says so.

local core = require "tidelock.core"
local gpus = require "tidelock.machine.gpus"
local machine = require "tidelock.machine.code"

local manifest = {}

local file = "kernels/manifest.yaml"

local function say(format, ...) io.stdout:write(format:format(...), "\n") end

local function fail(status, format, ...)
  error({ status = status, message = "tidelock: manifest: " .. format:format(...) }, 0)
end

local function count_kernels(images)
  local kernels = 0
  for _, image in ipairs(images) do kernels = kernels + #image.kernels end
  return kernels
end

local function check(images)
  local complaints, note = gpus.compare(images)
  for _, text in ipairs(complaints) do say("%s", text) end
  if note then say("%s", note) end
  if #complaints == 0 and not note then
    say("%d kernels in %d cubins are those of %s (nvcc %s)", count_kernels(images), #images, file,
      images[1].compiler)
  end
  return #complaints
end

local function scan(images)
  local report = machine.scan(images, machine.folder())
  for _, text in ipairs(report.complaints) do say("%s", text) end
  for _, text in ipairs(report.notes) do say("%s", text) end
  if #report.complaints == 0 then
    say("scan of %d kernels (%s): no float atomics, no approximation but ex2, no spills",
      count_kernels(images), table.concat(report.looked_at, ", "))
  end
  return #report.complaints
end

local function update()
  local _, own = core.manifest.texts()
  local root = machine.root()
  core.files.write_atomic(root .. "/" .. file, own)
  say("%s is this build's; read the diff, build again, and run the GPU tests", file)
  return 0
end

--- The cubins below `path` that have the kernel.
local function cubins_with(path, kernel)
  local paths = core.files.is_directory(path) and core.files.glob(path .. "/*.cubin") or { path }
  local found = {}
  for _, name in ipairs(paths) do
    local text = core.files.read_all(name)
    if not text then fail(2, "%s cannot be read", name) end
    local _, _, kernels = core.manifest.read(text)
    for _, k in ipairs(kernels) do
      if k.name == kernel then found[#found + 1] = { path = name, kernel = k } end
    end
  end
  return found
end

--- The image of this program that has the kernel, as { text, kernel, name }.
local function here(images, kernel)
  for i, image in ipairs(images) do
    for _, k in ipairs(image.kernels) do
      if k.name == kernel then
        return { text = core.manifest.image(i), kernel = k, name = image.name }
      end
    end
  end
  fail(2, "this build has no kernel %s; ./tl manifest lists none that is missing", kernel)
end

local function describe(k)
  return ("sha256 %s, registers %d, shared %d, local %d"):format(k.sha256:sub(1, 16), k.registers,
    k.shared, k["local"])
end

local function diff(images, kernel, old)
  if not old then fail(2, "--diff KERNEL OLD: OLD is a cubin, or a folder of cubins") end
  if not core.files.exists(old) then fail(2, "%s: there is no such file or folder", old) end
  local new, before = here(images, kernel), cubins_with(old, kernel)[1]
  if not before then fail(2, "no kernel %s in %s", kernel, old) end
  say("old  %s  %s", describe(before.kernel), before.path)
  say("new  %s  %s of this build", describe(new.kernel), new.name)
  if before.kernel.sha256 == new.kernel.sha256 then
    say("the machine code is the same")
    return 0
  end
  local text, reason = machine.diff(kernel, core.files.read_all(before.path), new.text)
  say("%s", text or "the code cannot be shown: " .. reason)
  return 1
end

--- The command.
---@param request tidelock.Request
---@return integer # exit status
function manifest.command(request)
  local options, images = request.options, core.manifest.images()
  if request.words[1] and not options.diff then
    fail(2, "%s is one word too many; --diff KERNEL OLD takes one", request.words[1])
  end
  if #images == 0 then
    fail(2, "this build has no GPU kernels; where nvcc is: TL_CUDA=on ./tl manifest")
  end
  if options.update then return update() end
  if options.diff then return diff(images, options.diff, request.words[1]) end
  local found = options.scan and 0 or check(images)
  return found + scan(images) == 0 and 0 or 1
end

return manifest
