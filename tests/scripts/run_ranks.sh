#!/usr/bin/env bash
# Runs a program as several ranks on this machine: run_ranks.sh <mpirun> <ranks> <program ...>
# More ranks than cores are allowed, root too (containers), ranks that wait do not spin, and nothing is bound to a core.
set -u
mpirun=$1 ranks=$2
shift 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_hwloc_base_binding_policy=none
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
# MPI's own leaks are recognised by their whole stack.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}fast_unwind_on_malloc=0
exec timeout --kill-after=10 "${SHEAF_RANKS_TIMEOUT:-300}" "$mpirun" -n "$ranks" "$@"
