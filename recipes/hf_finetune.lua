-- hf_finetune.lua - trains a model from a folder of Hugging Face further, on a text of one's own.
--
--     ./tl lua recipes/hf_tokens.lua models/llama book.txt book.bin
--     ./tl run recipes/hf_finetune.lua folder=models/llama tokens=book.bin
--     ./tl export runs/hf_finetune-5e1c finetuned --format hf
local tl = require "tidelock"
local p = tl.params { folder = "models/llama", tokens = "book.bin" }

return tl.recipe {
  model = tl.nn.from_hf(p.folder),
  data  = tl.data.tokens { p.tokens, dtype = "uint32" },
  batch = { samples = 8, micro = 1, length = 256 },
  train = {
    steps = 200, lr = { "cosine", peak = 2e-5, floor = 2e-6, warmup = 20 }, clip = 1.0,
    optimizer = { "adamw", decay = 0 }, save = { every = 100, keep = 2 },
  },
}
