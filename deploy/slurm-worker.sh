#!/bin/bash
# A worker of a coordinator on several machines under SLURM: the first machine leads and takes rounds, the others follow.
# A template: read it, adapt the #SBATCH lines and the paths, then
#   export QUORATE_ENROLMENT_TOKEN="$(cat worker.token)"
#   sbatch --export=ALL,COORDINATOR=https://... slurm-worker.sh
# It was written from the documentation of SLURM and has not been run on a cluster.
#
# The file is made by `quorate authority token --worker --output worker.token`. The token stays in the environment: a
# command line is seen by all users of a machine. SHARED must be a folder that all machines see; the worker goes on from what is saved there.

#SBATCH --job-name=quorate-worker
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --requeue

set -euo pipefail

: "${COORDINATOR:?the URL of the coordinator}" "${QUORATE_ENROLMENT_TOKEN:?the token that quorate authority token --worker printed}"
DATA=${DATA:-mnist}
SHARED=${SHARED:-$SLURM_SUBMIT_DIR/quorate-worker}

# GPUs of a machine: SLURM writes 4, a100:4 or a100:2,v100:2, as the job requested them.
gpus=0
IFS=, read -ra kinds <<<"$SLURM_GPUS_PER_NODE"
for kind in "${kinds[@]}"; do
    gpus=$((gpus + ${kind##*:}))
done
threads=$((SLURM_CPUS_PER_TASK / gpus))

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
port=$((29500 + SLURM_JOB_ID % 1000))

# Since SLURM 22.05 srun does not take --cpus-per-task from sbatch: without this a task gets one core.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

common=(--folder "$SHARED" --data "$DATA" --nproc "$gpus" --threads "$((threads > 0 ? threads : 1))" --device cuda)
lead=(quorate datacenter join --coordinator "$COORDINATOR" --nnodes "$SLURM_JOB_NUM_NODES")
lead+=(--rdzv-endpoint "$head:$port" "${common[@]}")
follow=(quorate datacenter follow "${common[@]}" --node)

# An agent that is killed is started again on its machine: the others wait for it, and its round goes on from a saved
# step. An error, such as a token that is not valid, ends the job. At SLURM's SIGTERM an agent gives its round back.
# shellcheck disable=SC2016  # expanded on each machine
agent='
count=$1; shift
if [ "$SLURM_NODEID" = 0 ]; then command=("${@:1:count}"); else command=("${@:count+1}" "$SLURM_NODEID"); fi
while true; do
    "${command[@]}" && exit 0
    code=$?
    [ "$code" -gt 128 ] || exit "$code"
    sleep 5
done
'
srun --kill-on-bad-exit=1 bash -c "$agent" agent "${#lead[@]}" "${lead[@]}" "${follow[@]}"
