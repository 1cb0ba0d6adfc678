#!/usr/bin/env bash
# tests/test_files.sh: the commands on files, compared with NumPy; files that are empty, cut short, hostile, or larger
# than memory; writes that are killed. The work is in tests/files/check_*.py, one for each idea.
# Usage: test_files.sh SHEAF VECTORS
set -u
python3 -c 'import numpy' 2>/dev/null || { echo "skipped: no NumPy here"; exit 0; }
failed=0
for idea in nearest embedding segments tables hostile limits; do
  python3 "$(dirname "$0")/files/check_$idea.py" "$1" || failed=1
done
exit $failed
