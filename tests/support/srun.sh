#!/bin/sh
# srun.sh - four ranks under srun, in a cluster of one machine that lives as long as this script.
#
# Prints a run of the quickstart that compares itself with one of a single rank, one without PMIx,
# and one whose rank 2 is killed. Exit status 77: not possible here, with the reason.
say_no() { echo "$1"; exit 77; }
for program in srun slurmctld slurmd munged mungekey; do
  PATH=$PATH:/usr/sbin command -v $program >/dev/null ||
    say_no "there is no $program (slurmctld, slurmd, slurm-client, munge)"
done
[ "$(id -u)" = 0 ] || say_no "daemons of Slurm need root"
PATH=$PATH:/usr/sbin
folder=$(mktemp -d) host=$(hostname -s)
chmod 755 "$folder"
cleanup() {
  for name in slurmd slurmctld munged; do
    [ ! -s "$folder/$name.pid" ] || kill "$(cat "$folder/$name.pid")" 2>/dev/null
  done
  sleep 0.5
  rm -rf "$folder"
}
trap cleanup EXIT
port=$((20000 + $$ % 20000))
mkdir "$folder/state" "$folder/spool"
cat >"$folder/slurm.conf" <<END
ClusterName=one
SlurmctldHost=$host
SlurmUser=root
AuthInfo=socket=$folder/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldPort=$port
SlurmdPort=$((port + 1))
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$host CPUs=8 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES State=UP
END
echo CgroupPlugin=autodetect >"$folder/cgroup.conf"
[ ! -d /sys/fs/cgroup/cpu ] || echo CgroupPlugin=cgroup/v1 >"$folder/cgroup.conf"
export SLURM_CONF=$folder/slurm.conf
mungekey --create --keyfile="$folder/key" && munged --force --key-file="$folder/key" \
  --socket="$folder/munge" --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" \
  --seed-file="$folder/seed" || say_no "munged does not start"
slurmctld && slurmd -N "$host" -f "$SLURM_CONF" || say_no "Slurm does not start"
for try in $(seq 50); do
  sinfo -h -o %t 2>/dev/null | grep -q idle && break
  sleep 0.2
done
timeout 10 srun -n 4 true || say_no "$(tail -n 1 "$folder/slurmd.log")"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
quickstart="run recipes/quickstart.lua --runs $folder/runs"
$TIDELOCK $quickstart --quiet --stop-at 2
timeout 60 srun --mpi=pmix -n 4 $TIDELOCK $quickstart layout.dp=4 --stop-at 2
echo "ended with $?"
timeout 60 srun -n 4 $TIDELOCK $quickstart layout.dp=4 --stop-at 2
echo "without PMIx $?"
timeout 60 srun --mpi=pmix -n 4 $TIDELOCK $quickstart layout.dp=4 train.steps=9000 \
  >"$folder/out" 2>&1 &
for try in $(seq 200); do
  grep -q '^ *[1-9]0*  [0-9][.]' "$folder/out" && break
  sleep 0.1
done
kill -KILL "$(awk '$1 == 2 && NF > 7 {print $3; exit}' "$folder/out")"
wait $!
grep -E 'lost|have ended|exit code' "$folder/out"
