#!/usr/bin/env bash
# Replays every reference case on one instruction set: check_verify.sh <sheaf> <folder of vectors> <isa> <threads>
# Exit status 77 (skipped) when this CPU does not have the instruction set, or the build has no kernels for it
# (SHEAF_KERNELS=native).
set -u
sheaf=$1 vectors=$2 isa=$3 threads=$4

output=$("$sheaf" verify "$vectors" --isa "$isa" --threads "$threads" 2>&1)
status=$?
tail -n 40 <<<"$output"
if [ $status -ne 0 ] && grep -qE 'this CPU has no|built without kernels' <<<"$output"; then exit 77; fi

cases=$(find "$vectors" -name '*.safetensors' | wc -l)
if [ $status -ne 0 ] || [ "$(tail -n 1 <<<"$output")" != "$cases passed, 0 failed" ]; then
  echo "expected the last line '$cases passed, 0 failed' and status 0; the status was $status" >&2
  exit 1
fi
