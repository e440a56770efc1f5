#!/usr/bin/env bash
# A study of muonlab on several nodes, given back to the queue whenever its time is up:
#
#     sbatch docs/guides/slurm.sh run gpt-1.3b-fineweb --profile paper --device cuda --parallel fsdp --out runs/gpt-1.3b
#
# The run directory and MUONLAB_DATA must be on a disk that all nodes see. Change the lines below to your cluster.
#SBATCH --job-name=muonlab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=muonlab-%j.log

set -euo pipefail

: "${RANKS_PER_NODE:=${SLURM_GPUS_ON_NODE:-1}}"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
export CODE="$PWD/muonlab-$SLURM_JOB_ID.code"
rm -f "$CODE"

# torchrun has exit codes of its own, so the leader writes down muonlab's. SIGTERM reaches the shell of a rank together
# with the rank; the shell must outlive it.
rank='trap : TERM
code=0
python -m muonlab "$@" || code=$?
if [ "$RANK" = 0 ]; then echo "$code" > "$CODE"; fi
exit "$code"'

# one torchrun on each node; after SIGTERM it waits for its ranks to save (--shutdown-timeout needs torch 2.13)
srun --kill-on-bad-exit=0 torchrun \
    --nnodes="$SLURM_NNODES" --nproc-per-node="$RANKS_PER_NODE" \
    --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$SLURM_JOB_ID" \
    --max-restarts=0 --shutdown-timeout=540 \
    --no-python bash -c "$rank" rank "$@" || true

code=$(cat "$CODE" 2> /dev/null || echo 1)
rm -f "$CODE"
# stopped and saved, or a rank was lost: rerun the same command to resume, a limited number of times
if [ "$code" = 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${MOST_RESTARTS:-100}" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
