--- What `./tl serve` is called, takes and does: its row of the table in init.lua.
return {
  name = "serve", recipe = false, words = { "MODEL" }, overrides = true,
  module = "tidelock.serve", about = "OpenAI's API over HTTP, for a run or a Hugging Face folder",
  example = "serve runs/quickstart-eaf6 --port 8000",
  options = {
    { name = "port", kind = "index", about = "where to listen, 0: one that is free; default 8000" },
    { name = "host", kind = "text", about = "an address; default 127.0.0.1, this machine only" },
    { name = "key-file", kind = "file", about = "its first line is the key that clients need" },
    { name = "no-key", about = "beyond this machine, too, clients need no key" },
    { name = "name", kind = "text", about = "of the model, for clients; default: its folder's" },
    { name = "queue", kind = "count", about = "requests that may wait, more get 429; default 64" },
    { name = "body", kind = "count", about = "most bytes of a request; default 4194304" },
    {
      name = "timeout", kind = "count",
      about = "seconds that a silent client is kept; default 30",
    },
    { name = "tokenizer", kind = "file",
      about = "tokenizer.json, its folder or bytes; default: the model's, of a run bytes" },
    { name = "threads", kind = "count", about = "workers of the pool; no bit depends on it" },
  },
}
