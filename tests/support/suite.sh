#!/usr/bin/env bash
# suite.sh [ARGS] - what ./tl test does: each file of tests/spec in a process of its own, as many at
# once as there are cores, up to four (their programs have threads, too). Of a file whose tests all
# pass one line is shown, of the others all that it said. The longest begin first, so that none of
# them is alone at the end.
set -euo pipefail
support=$(dirname -- "${BASH_SOURCE[0]}")
longest=(docs golden bits cases_gradients verify checkpoint engine processes ranks mixtures
  errors differentiate)
out=$(mktemp -d)
group=
end() {
  [[ -z $group ]] || kill -TERM -- "-$group" 2>"$out/none" || true # those that are still running
  [[ -z $group ]] || wait "$group" 2>"$out/none" || true
  rm -rf "$out"
}
trap end EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

jobs=$(nproc)
[[ $jobs -le 4 ]] || jobs=4
find tests/spec -name '*_spec.lua' | LC_ALL=C sort >"$out/all"
printf 'tests/spec/%s_spec.lua\n' "${longest[@]}" | grep -x -F -f "$out/all" >"$out/order" || true
grep -v -x -F -f "$out/order" "$out/all" >>"$out/order" || true
[[ $(wc -l <"$out/order") == "$(wc -l <"$out/all")" ]] || { echo "files were lost" >&2 && exit 2; }
[[ -s $out/order ]] || { echo "tests/spec has no specs" >&2 && exit 2; }
mapfile -t files <"$out/order"
printf '%s\0' "${files[@]}" >"$out/files"
# They are a group of processes of their own: whoever ends this one alone does not know them.
set -m
OUT=$out xargs -0 -P "$jobs" -I{} bash "$support/one_file.sh" {} "$@" <"$out/files" &
group=$!
set +m
wait "$group" || true
group=
awk -v files="${#files[@]}" '
  / passed, [0-9]+ failed$/ { n++; passed += $1; failed += $3 }
  / left out, see above$/ { left += $1 }
  END {
    if (left) print left " left out, see above"
    if (n < files) print files - n " files did not come to their end, see above"
    none = n == files && !passed && !failed && !left
    if (none) print "there is no such test"
    print passed + 0 " passed, " failed + 0 " failed"
    exit none || n < files || failed > 0
  }' "$out"/*.last
