--- nn.from_hf "DIR": a model from a Hugging Face folder, as an ordinary decoder.
--
--     DIR/config.json  -> facts (hf/config.lua)  -> nn.decoder { .. }
--     DIR/*.safetensors -> tensors (hf/files.lua) -> where weights start, instead of random numbers
--
-- While a recipe loads, only configuration and headers are read; a rank reads its slices when the
-- run starts (stored.lua). Weights get the names that the modules give them, so weight rules,
-- watch and keep work as for any model; a rule that sets init or from wins over the file.
local config = require "tidelock.hf.config"
local beside = require "tidelock.text.beside"
local core = require "tidelock.core"
local files = require "tidelock.hf.files"
local latent = require "tidelock.hf.latent"
local names = require "tidelock.hf.names"

local hf = {}

---@class tidelock.HfSource
---@field folder string
---@field family string
---@field bytes integer # of all tensors
---@field context? integer # positions that the model was trained for
---@field stored fun(name: string): table? # { file, name } of the tensor that a weight starts from
---@field config fun(): table # config.json as it was

local function attention_options(facts, i)
  local rope = facts.rope
  return {
    heads = facts.heads, kv_heads = facts.kv_heads, head_dim = facts.head_dim,
    bias = facts.attention_bias, window = facts.windows[i],
    qk_norm = facts.qk_norm and { eps = facts.eps },
    rope = { base = rope.base, scaling = rope.scaling },
  }
end

--- Modules are written where nn.from_hf is called.
local function placed(list, site)
  for _, module in ipairs(list) do
    module.site = site
    placed(module.children or {}, site)
  end
  return list
end

--- The modules of layer i, from 1.
local function layer_of(nn, facts, site, speed)
  local function norm() return nn.rms_norm { eps = facts.eps } end
  return function(i)
    local experts, ffn = facts.experts
    if facts.sparse[i] and facts.latent then
      ffn = nn.moe(latent.expert_options(facts, speed))
    elseif facts.sparse[i] then
      ffn = nn.moe {
        experts = experts.count, top_k = experts.top_k, hidden = experts.hidden,
        router = { "softmax", normalize = experts.normalize },
      }
    else
      ffn = nn.swiglu { hidden = facts.hidden, bias = facts.mlp_bias }
    end
    local mixer = facts.latent and nn.mla(latent.attention_options(facts))
      or nn.attention(attention_options(facts, i))
    return placed({
      nn.residual { norm(), mixer },
      nn.residual { norm(), ffn },
    }, site)
  end
end

--- Options of nn.decoder for these facts.
local function decoder_options(nn, facts, site, speed)
  local norm = placed({ nn.rms_norm { eps = facts.eps, name = "norm" } }, site)[1]
  return {
    vocab = facts.vocab, dim = facts.dim, layers = facts.layers, tied = facts.tied,
    layer = layer_of(nn, facts, site, speed), norm = norm, dropout = 0,
  }
end

--- What the recipe's model is made of, or nil when something was reported.
---@param nn table # the modules
---@param options { folder: string, ignore?: string[], bias_speed?: number }
---@param site? string # of the call
---@param report fun(text: string)
---@return table? options # of nn.decoder, with `hf`
function hf.open(nn, options, site, report)
  local folder = options.folder:match "^(.-)/*$"
  if not core.files.is_directory(folder) then
    report(("there is no folder %s%s"):format(folder, beside.hint(folder, true)))
    return nil
  end
  local path, ignore = folder .. "/config.json", {}
  site = site or path -- no recipe has written it: generation takes the folder itself
  for _, key in ipairs(options.ignore or {}) do ignore[key] = true end
  local values = files.json(path, report)
  local facts = values and config.read(values, {
    ignore = ignore, report = function(text) report(path .. ": " .. text) end,
  })
  if facts and options.bias_speed and options.bias_speed > 0 and not facts.latent then
    report(("%s: bias_speed = %g, and no bias chooses experts in %s; leave it out"):format(path,
      options.bias_speed, facts.family))
    return nil
  end
  if not facts then return nil end
  local list = names.of(facts)
  local tensors = files.open(folder, report)
  local bytes = tensors and files.check(tensors, list, facts, folder, function(text)
    report(folder .. ": " .. text)
  end)
  if not bytes then return nil end
  local by_name = {}
  for _, weight in ipairs(list) do
    by_name[weight.ours] = { file = tensors[weight.theirs], name = weight.theirs }
  end
  local made = decoder_options(nn, facts, site, options.bias_speed)
  made.hf = {
    folder = folder, family = facts.family, bytes = bytes, context = facts.context,
    stored = function(name) return by_name[name] end, config = function() return values end,
  }
  return made
end

return hf
