#!/usr/bin/env bash
# one_file.sh FILE [ARGS] - runs one file of specs for ./tl test, which reads $OUT/*.last: the last
# lines of what busted said.
name=$(basename "$1" _spec.lua)
begin=${EPOCHREALTIME/./}
"$TIDELOCK" lua "$(command -v busted)" "${@:2}" "$1" >"$OUT/$name" 2>&1
status=$?
tenths=$(((${EPOCHREALTIME/./} - begin) / 100000))
last=$(tail -n 1 "$OUT/$name")
tail -n 2 "$OUT/$name" >"$OUT/$name.last"
# A program that fails after its last test, as one that leaks does, has not come to its end.
[[ $status == 0 || $last =~ [1-9][0-9]*\ failed$ ]] || : >"$OUT/$name.last"
exec 9>"$OUT/lock"
flock 9 # one file after the other
if [[ $status != 0 || ! $last =~ ^[0-9]+\ passed,\ 0\ failed$ ]] ||
  grep -q ' left out, see above$' "$OUT/$name.last"; then
  cat "$OUT/$name"
fi
printf '%5d.%d s  %s: %s\n' $((tenths / 10)) $((tenths % 10)) "$name" "$last"
