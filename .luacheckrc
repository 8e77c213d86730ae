-- luacheck's settings.
std = "lua54"
max_line_length = false -- tests/support/tidy.lua counts columns
exclude_files = { "build*", "runs" }
ignore = { "212/_.*" } -- arguments that are named only for the reader start with _
files["tests"] = {
  std = "lua54+busted",
}
files["tests/errors/raises.lua"] = { ignore = { "113" } } -- its mistake
files["tests/errors/name_*.lua"] = { ignore = { "113", "211" } } -- theirs
files["recipes"] = { ignore = { "212" } } -- layer(i, n) shows what may be used
files[".busted"] = { std = "lua54" }
