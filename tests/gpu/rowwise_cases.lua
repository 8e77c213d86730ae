--- rowwise_cases.lua - every operator outside gemm and attention, at the edges of its GPU kernel.
---
--- The edges: 8 elements of a thread, 32 lanes, 2,048 partials of the row rule, 64 rows of a block
--- of sum_tokens, 65,536 elements of a chunk of square_sum, 64 rows of an id and 256 that are read
--- at a time in embedding_grad; widths that are no multiple of 8.
local folder = arg[0]:match "^(.*)/[^/]*$" or "."
local cases = {}
for _, part in ipairs { "elementwise", "norm", "loss", "token", "tensor", "heads" } do
  for _, case in ipairs(dofile(folder .. "/rowwise_" .. part .. ".lua")) do
    cases[#cases + 1] = case
  end
end
return cases
