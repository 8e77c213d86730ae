#!/bin/sh
# eight_gpus.sh - every layout of eight_gpus.lua, a fault drill, one table. It ends within 9 minutes.
#
#   recipes/sweeps/eight_gpus.sh                        the GPUs of this host, 8, 4 or 2 of them
#   WORLD=2 EACH=8 recipes/sweeps/eight_gpus.sh         two of them, 8 samples for each
#   DEVICE=host recipes/sweeps/eight_gpus.sh            small models on a laptop, ranks are threads
#
#   WORLD    ranks: 2, 4, 8         EACH   samples of a step, for each rank
#   DEVICE   cuda or host           LIMIT  seconds for all, 520
#   PARTS    what to do: drill and BASE:PROMISE, as llama_1b:layout
#   TL       the program, ./tl      RUNS   where files go, runs/eight_gpus
#
# The drill starts a process for each rank (torchrun's variables; mpirun on the host), then kills
# one, stops one, and starts a layout of another size: all others must end within 10 s, with status
# 75 or 2, and rank 0 must name rank, instruction and line. Exit status 1: it did not, or bits differ.
TL=${TL:-./tl} RUNS=${RUNS:-runs/eight_gpus} LIMIT=${LIMIT:-520}
gpus=$($TL lua recipes/sweeps/eight_gpus_table.lua gpus) || exit 1
[ -n "$DEVICE" ] || { DEVICE=host; [ "$gpus" -lt 2 ] || DEVICE=cuda; }
[ -n "$WORLD" ] || { WORLD=8; [ $DEVICE = host ] || while [ $WORLD -gt "$gpus" ]; do WORLD=$((WORLD / 2)); done; }
if [ $DEVICE = cuda ]; then
  EACH=${EACH:-32} silence=3
  PARTS=${PARTS:-drill llama_1b:layout llama_1b:batch moe_1b:layout moe_1b:batch}
else
  EACH=${EACH:-2} silence=6
  PARTS=${PARTS:-drill quickstart:layout quickstart:batch moe_small:layout moe_small:batch}
fi
start=$(date +%s) bad=0 files=
mkdir -p "$RUNS"
left() { echo $((LIMIT - $(date +%s) + start)); }
say() { echo "[$(($(date +%s) - start)) s] $*"; }

# sweep BASE PROMISE: the points that there is time for
sweep() {
  file=$RUNS/$1-$2-$WORLD.jsonl
  [ $DEVICE = host ] || more=eval=nil
  timeout -k 10 "$(left)" $TL sweep recipes/sweeps/eight_gpus.lua world=$WORLD base=$1 promise=$2 \
    each=$EACH tokens="$RUNS/tokens.bin" device=$DEVICE $more --timeout 100 \
    --budget "$(awk "BEGIN { print ($(left) - 20) / 60 }")" --jsonl "$file" >"$file.txt" 2>&1
  say "$1 $2: $(grep -E ' ran, |error' "$file.txt" | tail -1)"
  [ ! -s "$file" ] || files="$files $file"
}

# one RANK COMMAND ..: runs it and leaves its number, its words and its status
one() {
  rank=$1; shift
  "$@" >"$d/$rank.txt" 2>&1 &
  echo $! >"$d/$rank.pid"
  wait $!
  echo $? >"$d/$rank.status"
}

# processes COMMAND ..: one for each rank, in the background
processes() {
  rm -rf "$d"; mkdir -p "$d"
  if [ $DEVICE = cuda ]; then
    port=$((20000 + ($$ + count * 37) % 20000)) count=$((count + 1)) r=0
    while [ $r -lt $WORLD ]; do
      RANK=$r LOCAL_RANK=$r WORLD_SIZE=$WORLD LOCAL_WORLD_SIZE=$WORLD MASTER_ADDR=127.0.0.1 \
        MASTER_PORT=$port one $r timeout -k 1 100 "$@" &
      r=$((r + 1))
    done
  else # mpirun hears of a loss when it is over: it would end the others by itself
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 d=$d timeout -k 1 130 \
      mpirun --oversubscribe -np $WORLD sh -c 'trap "" TERM; r=$OMPI_COMM_WORLD_RANK
        "$@" >$d/$r.txt 2>&1 & echo $! >$d/$r.pid; wait $!; echo $? >$d/$r.status
        sleep 12' sh "$@" >/dev/null 2>&1 &
  fi
  launcher=$!
}

# ended RANK ..: waits until all of them have, at most 20 s; prints the seconds
ended() {
  since=$(date +%s)
  for try in $(seq 200); do
    missing=
    for r in "$@"; do [ -s "$d/$r.status" ] || missing=$r; done
    [ -n "$missing" ] || break
    sleep 0.1
  done
  echo $(($(date +%s) - since))
}

# judge NAME STATUS SECONDS PATTERN RANK ..: of the ranks that must have noticed
judge() {
  name=$1 status=$2 seconds=$3 pattern=$4 good=1 found=; shift 4
  for r in "$@"; do
    s=$(cat "$d/$r.status" 2>/dev/null || echo none)
    found="$found $s"
    [ "$s" = "$status" ] || good=0
  done
  [ "$seconds" -le 10 ] && grep -Eq "$pattern" "$d/0.txt" || good=0
  [ $good = 1 ] || bad=1
  [ $good = 1 ] && word=good || word=BAD
  say "drill, $name: $word; after $seconds s, status$found: $(grep -E "$pattern|rank .* lost" "$d/0.txt" | tail -1 | cut -c1-200)"
}

# lose SIGNAL NAME PATTERN: rank 1 gets the signal in the middle of a run
lose() {
  processes $TL run recipes/quickstart.lua device=$DEVICE layout.dp=$WORLD batch.micro=2 \
    train.steps=1000000 --timeout $silence --runs "$d/runs"
  for try in $(seq 900); do
    sleep 0.1
    grep -Eq '^ *[1-9][0-9]*  [0-9]+[.]' "$d/0.txt" 2>/dev/null && break
    [ ! -s "$d/0.status" ] || break
  done
  victim=$(cat "$d/1.pid")
  [ $DEVICE = host ] || victim=$(pgrep -P "$victim")
  kill -$1 "$victim"
  rest=0 r=2
  while [ $r -lt $WORLD ]; do rest="$rest $r" r=$((r + 1)); done
  judge "$2" 75 "$(ended $rest)" "$3" $rest
  kill -KILL "$victim" 2>/dev/null
  kill $launcher 2>/dev/null
  wait $launcher 2>/dev/null
}

drill() {
  d=$(cd "$RUNS" && pwd)/drill count=0
  if [ $DEVICE = host ] && ! command -v mpirun >/dev/null; then
    say "drill: skipped, there is no mpirun (openmpi-bin) to start processes on the host"
    return
  fi
  place='instruction [0-9]+ .*\(.*lua:[0-9]+\), step [0-9]+'
  lose KILL "a rank is killed" "rank 1 is lost: the connection ended: .* $place"
  lose STOP "a rank is stopped" "rank 1( is lost: no sign of life|: silent) for $silence s.* $place"
  all=0 r=1
  while [ $r -lt $WORLD ]; do all="$all $r" r=$((r + 1)); done
  processes $TL run recipes/quickstart.lua device=$DEVICE layout.dp=$((WORLD / 2)) --runs "$d/runs"
  judge "a layout of another size" 2 "$(ended $all)" "the world has $WORLD ranks" $all
  kill $launcher 2>/dev/null
  wait $launcher 2>/dev/null
}

say "$WORLD ranks, device $DEVICE, $EACH samples each: $PARTS"
case $PARTS in *_1b*) [ -s "$RUNS/tokens.bin" ] ||
  $TL lua recipes/sweeps/eight_gpus_table.lua tokens "$RUNS/tokens.bin" || exit 1 ;; esac
for part in $PARTS; do
  if [ "$(left)" -lt 30 ]; then say "$part: skipped, no time is left"; continue; fi
  [ $part = drill ] && drill || [ $part = drill ] || sweep "${part%:*}" "${part#*:}"
done
[ -z "$files" ] || $TL lua recipes/sweeps/eight_gpus_table.lua table $files || bad=1
say "ended"
exit $bad
