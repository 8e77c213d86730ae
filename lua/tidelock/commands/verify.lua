--- commands/verify.lua - the options of `./tl verify`, as init.lua has those of the others.
---@param ... table # options that several commands have
---@return table[]
return function(...)
  return {
    { name = "steps", kind = "count", about = "steps of each run; default 3" },
    { name = "all", about = "experts: the whole product of layouts, micros, waves and ways" },
    {
      name = "device", kind = "text", value = "DEVICE,..",
      about = "host, cuda, or host,cuda; default host",
      choices = { "host", "cuda", "host,cuda" },
    },
    {
      name = "dtype", kind = "text", value = "DTYPE,..",
      about = "f32, bf16, or f32,bf16; default both",
      choices = { "f32", "bf16", "f32,bf16" },
    },
    { name = "ranks", kind = "count", about = "all layouts of up to N ranks" },
    { name = "layouts", kind = "text", value = "LAYOUT;..",
      about = "these: \"tp=2,dp=2;pp=2,schedule=zb-h1\"" },
    { name = "repeat", kind = "count", about = "runs of the row \"again\"; default 1" },
    { name = "repeat-for", kind = "text", value = "TIME",
      about = "again and again for 10m, idle and busy" },
    { name = "every", kind = "text", value = "TIME",
      about = "with --repeat-for: a run every 30s; default: at once" },
    { name = "stress", about = "poisoned memory, delays, other threads, other processors" },
    { name = "jsonl", kind = "file", about = "a row a cell" },
    ...,
  }
end
