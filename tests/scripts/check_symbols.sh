#!/usr/bin/env bash
# The shared library exports exactly the symbols of a checked-in list: check_symbols.sh <libsheaf.so> <list>
set -eu
library=$1 list=$2

if difference=$(diff -u --label expected --label exported "$list" \
  <(nm -D --defined-only "$library" | awk '{ sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort)); then
  echo "$(wc -l <"$list") exported symbols, as listed"
else
  echo "$difference"
  echo "The exported symbols are not those of tests/exported_symbols.txt ('-' not exported, '+' not listed)." >&2
  echo "If the public headers changed on purpose, change the list in the same commit." >&2
  exit 1
fi
