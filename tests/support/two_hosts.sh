#!/bin/sh
# two_hosts.sh - four ranks on two "hosts": network namespaces with nothing but a wire between them.
#
# Prints a run of the quickstart that compares itself with one of a single rank. Exit status 77: not
# possible here, with the reason.
set -e
say_no() { echo "$1"; exit 77; }
[ "$(id -u)" = 0 ] || say_no "namespaces need root"
command -v ip >/dev/null || say_no "there is no ip (iproute2)"
folder=$(mktemp -d)
one=tl-one-$$ two=tl-two-$$
cleanup() {
  ip netns del $one 2>/dev/null || :
  ip netns del $two 2>/dev/null || :
  rm -rf "$folder"
}
trap cleanup EXIT
ip netns add $one 2>/dev/null && ip netns add $two || say_no "this machine allows no namespaces"
ip link add tl-a netns $one type veth peer name tl-b netns $two || say_no "no pair of interfaces"
ip -n $one addr add 10.77.0.1/24 dev tl-a
ip -n $two addr add 10.77.0.2/24 dev tl-b
for n in $one $two; do ip -n $n link set lo up; done
ip -n $one link set tl-a up
ip -n $two link set tl-b up
cat >"$folder/agent" <<A
#!/bin/sh
# reaches the second host: mpirun gives its address, then a command
shift
exec ip netns exec $two unshare --uts sh -c "hostname two; \$*"
A
chmod +x "$folder/agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run="run recipes/quickstart.lua --stop-at 2 --runs $folder/runs"
"$TIDELOCK" $run --quiet
net="--mca btl self,tcp --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24"
ip netns exec $one timeout 90 mpirun --oversubscribe --mca plm_rsh_agent "$folder/agent" $net \
  --host 10.77.0.1:2,10.77.0.2:2 -np 4 -x TIDELOCK_LUA "$TIDELOCK" $run layout.tp=2 layout.dp=2
