#!/usr/bin/env bash
# Runs a program where this CPU has AVX-512: with_avx512.sh <program> [<argument> ...]
# Exit status 77 (skipped) where it has not.
set -u
flags=" $(grep -m 1 '^flags' /proc/cpuinfo) "
for flag in avx512f avx512bw avx512dq avx512vl; do
  case $flags in *" $flag "*) ;; *) echo "this CPU has no $flag" && exit 77 ;; esac
done
exec "$@"
