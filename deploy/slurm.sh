#!/bin/bash
# Trains a learner by synchronous SGD on several machines under SLURM: one torchrun a machine, one process a GPU.
# A template: read it, adapt the #SBATCH lines and the paths, then `sbatch slurm.sh`. It was written from the
# documentation of SLURM and torchrun and has not been run on a cluster.
#
# LEARNER, DATA, STEPS, BATCH and SHARED come from the environment: sbatch --export=ALL,LEARNER=... slurm.sh
# SHARED must be a folder that all machines see. Run again, the job goes on from the last step saved there.

#SBATCH --job-name=quorate
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --requeue

set -euo pipefail

LEARNER=${LEARNER:-quorate:mnist-cnn}
DATA=${DATA:-mnist}
STEPS=${STEPS:-10000}
BATCH=${BATCH:-2048}
SHARED=${SHARED:-$SLURM_SUBMIT_DIR/quorate-$SLURM_JOB_NAME}

# GPUs of a machine: SLURM writes 4, a100:4 or a100:2,v100:2, as the job requested them.
gpus=0
IFS=, read -ra kinds <<<"$SLURM_GPUS_PER_NODE"
for kind in "${kinds[@]}"; do
    gpus=$((gpus + ${kind##*:}))
done

# The first machine of the allocation is where the processes meet; the port is the job's own.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
port=$((29500 + SLURM_JOB_ID % 1000))

# Since SLURM 22.05 srun does not take --cpus-per-task from sbatch: without this a task gets one core.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
threads=$((SLURM_CPUS_PER_TASK / gpus))

# --kill-on-bad-exit: where one machine's torchrun gives up, the others would wait for it until the time limit.
srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" \
    --nproc-per-node "$gpus" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$head:$port" \
    --rdzv-id "$SLURM_JOB_ID" \
    --max-restarts 3 \
    -m client_sdk.cli datacenter train "$LEARNER" \
    --data "$DATA" \
    --device cuda \
    --threads "$((threads > 0 ? threads : 1))" \
    --steps "$STEPS" \
    --batch-size "$BATCH" \
    --linear-scaling \
    --warmup-steps 500 \
    --checkpoints "$SHARED/steps" \
    --resume \
    --out "$SHARED/model.safetensors"
