--- commands/verify.lua - the options of `./tl verify`, as init.lua has those of the others.
---@param ... table # options that several commands have
---@return table[]
return function(...)
  return {
    { name = "steps", kind = "count", about = "steps of each run; 3 unless given" },
    { name = "all", about = "experts: the whole product of layouts, micros, waves and ways" },
    { name = "device", kind = "text", about = "host (the default), cuda, or host,cuda" },
    { name = "dtype", kind = "text", about = "f32, bf16, or f32,bf16 (the default)" },
    { name = "ranks", kind = "count", about = "all layouts of up to N ranks" },
    { name = "layouts", kind = "text", about = "these: \"tp=2,dp=2;pp=2,schedule=zb-h1\"" },
    { name = "repeat", kind = "count", about = "runs of the row \"again\"; 1" },
    { name = "repeat-for", kind = "text", about = "again and again for 10m, idle and busy" },
    { name = "every", kind = "text", about = "with --repeat-for: a run every 30s" },
    { name = "stress", about = "poisoned memory, delays, other threads, other processors" },
    { name = "jsonl", kind = "file", about = "a row a cell" },
    ...,
  }
end
