#!/usr/bin/env bash
# A rank that dies ends the job, with a message and soon: check_killed_rank.sh <mpirun> <ranks> <ranks_faults>
set -u
start=$SECONDS
output=$(SHEAF_RANKS_TIMEOUT=60 bash "$(dirname "$0")/run_ranks.sh" "$1" "$2" "$3" die 2>&1)
status=$?
took=$((SECONDS - start))
tail -n 8 <<<"$output"
if [ $status -eq 0 ] || [ $took -ge 30 ] || ! grep -qi 'signal 9' <<<"$output"; then
  echo "expected the job to fail with a message about signal 9 within 30 s; status $status after $took s" >&2
  exit 1
fi
