--- serving_hints.lua - what other servers and generators call their options, and what to write
--- here.
---
---     serving_hints.of("serve", "max-model-len")     "write serve.context=.. behind the model"
---
--- tests/spec/hints_spec.lua writes every answer down: what it says is accepted.
local serving_hints = {}

local function field(code)
  return { text = ("write %s behind the model"):format(code), code = code }
end

local function option(code) return { text = ("write %s"):format(code), code = code } end

local function none(reason) return { text = reason .. "; leave it out" } end

local both = {
  { field "layout.tp=..", "tensor_parallel_size tensor_parallel tp_size tp" },
  { field "layout.pp=..", "pipeline_parallel_size pp_size pp" },
  { field "serve.context=..", "max_model_len max_seq_len ctx_size context_length n_ctx "
    .. "max_length" },
  { field "serve.requests=..", "max_num_seqs max_batch_size max_running_requests parallel" },
  { field "serve.rows=..", "max_num_batched_tokens chunked_prefill_size max_prefill_tokens" },
  { field "serve.page=..", "block_size page_size" },
  { field "serve.pages=..", "num_gpu_blocks_override gpu_memory_utilization mem_fraction_static "
    .. "max_total_tokens swap_space" },
  { field "dtype=bf16", "dtype torch_dtype bf16" },
  { field "device=cuda", "device gpu gpus n_gpu_layers" },
  { option "--tokenizer FILE", "tokenizer_path tokenizer_dir" },
  { none "the model is the first word behind the command", "model model_path m" },
  { none "full pages of a prompt are kept and found again, and no bit depends on it",
    "enable_prefix_caching enable_chunked_prefill prompt_cache" },
  { none "every request has the same bits alone and in any crowd",
    "batch_invariant deterministic enable_deterministic_inference" },
  { none "a model is read from its own files, never run", "trust_remote_code" },
}

local by_command = {
  serve = {
    { option "--name TEXT", "served_model_name alias" },
    { option "--key-file FILE", "api_key" },
    { option "--queue N", "max_queue_size max_waiting_requests max_concurrent_requests" },
    { none "a request says it: \"seed\", \"temperature\", \"max_tokens\"",
      "seed temperature max_tokens max_new_tokens top_p top_k" },
  },
  generate = {
    { option "--tokens N", "max_tokens max_new_tokens n_predict length" },
    { option "--temperature X", "temp do_sample" },
    { none "the prompt is the second word behind the command", "prompt p file" },
  },
}

local known = {}
for command, own in pairs(by_command) do
  known[command] = {}
  for _, list in ipairs { both, own } do
    for _, row in ipairs(list) do
      for word in row[2]:gmatch "%S+" do known[command][word] = row[1] end
    end
  end
end

--- What to write for the option `word` of another program; nil where nothing is known.
---@param command string
---@param word string
---@return string?
function serving_hints.of(command, word)
  local hint = known[command] and known[command][(word:lower():gsub("-", "_"))]
  return hint and hint.text
end

--- Every command's words and pieces to write, for tests.
---@return table<string, table<string, { text: string, code: string? }>>
function serving_hints.all() return known end

return serving_hints
