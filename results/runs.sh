#!/usr/bin/env bash
# Run the studies of results/queue.toml, or resume them: from a clean checkout of the last commit with an environment of
# its own, so that uncommitted work cannot change a result; at the lowest priority, two cells at a time, one thread each.
#   results/runs.sh         run or resume; SIGTERM saves the running cells and stops
#   results/runs.sh status  show what is done, what is left and how long it will take
#   results/runs.sh stop    stop a queue that runs in the background, and wait until its cells are saved
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=.queue/checkout
python=$checkout/.venv/bin/python
command -v flock > /dev/null || { echo "runs.sh: flock is needed (util-linux): install it, or use muonlab queue" >&2; exit 2; }

case "${1:-run}" in
  status)
    exec .venv/bin/python -m muonlab queue results/queue.toml --out results/runs --status
    ;;
  stop)
    [ -e .queue/lock ] || exit 0
    exec 9> .queue/lock
    flock --nonblock 9 && exit 0 # no queue is running
    kill -TERM "$(cat .queue/pid)"
    exec flock 9 # the lock is free when the queue has ended
    ;;
esac

mkdir -p .queue results/runs
exec 9> .queue/lock
flock --nonblock 9 || { echo "runs.sh: the queue is running already: results/runs.sh status shows how far it is" >&2; exit 2; }
echo $$ > .queue/pid
commit=$(git rev-parse HEAD)
here=$(git rev-parse --path-format=absolute --git-common-dir)
there=$(git -C "$checkout" rev-parse --path-format=absolute --git-common-dir 2> /dev/null || true)
if [ "$(cat .queue/place 2> /dev/null)" = "$PWD" ] && [ "$there" = "$here" ] && [ -e "$checkout/.git" ]; then
  git -C "$checkout" checkout --quiet --force --detach "$commit"
else # the first time, or the repository was moved or copied, and its environment names the old place
  rm -rf "$checkout"
  git worktree prune
  git worktree add --quiet --force --detach "$checkout" "$commit"
  echo "$PWD" > .queue/place
fi
make --no-print-directory -C "$checkout" .venv/.ready
if [ -z "${MUONLAB_DATA:-}" ] && [ -d ../shared/data ]; then
  MUONLAB_DATA="$(cd ../shared/data && pwd)"
  export MUONLAB_DATA
fi
export OMP_NUM_THREADS=1
# glibc returns large blocks to the system after each batch and fetches them again: half of the CPU time of an update with
# a thousand images (docs/adr/0020). Keep them.
export MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456
batch=() # a process that only computes is interrupted less often
command -v chrt > /dev/null && batch=(chrt --batch 0)
exec "${batch[@]}" nice -n 19 "$python" -m muonlab queue "$checkout/results/queue.toml" --out results/runs --jobs "${JOBS:-2}"
