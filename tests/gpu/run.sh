#!/usr/bin/env bash
# Everything that needs a CUDA device: builds, proves the bits, replays the reference vectors, feeds bad input, runs the
# sanitizers, measures. On a machine with a device and nvcc:
#
#   tests/gpu/run.sh [step ...]      steps: build bits ops files large faults ranks verify jit sanitize demo bench peers
#                                           floors
#                                    default: build bits ops files faults ranks verify sanitize demo bench
#
# BUILD=dir (build-gpu), CMAKE_ARGS=..., JOBS=n, BENCH="words" for `sheaf bench --device cuda`, BENCH_RUNS=n (medians).
# Ends with a line for each step; the exit code is the number of steps that failed.
set -u
cd "$(dirname "$0")/../.."

BUILD=${BUILD:-build-gpu}
JOBS=${JOBS:-$(nproc)}
CMAKE_ARGS=${CMAKE_ARGS:-}
BENCH=${BENCH:-}
steps=${*:-build bits ops files faults ranks verify sanitize demo bench}
logs=$BUILD/gpu-logs
export SHEAF_PLUGIN_PATH=$PWD/$BUILD OMP_WAIT_POLICY=passive

build() {
  # shellcheck disable=SC2086 # CMAKE_ARGS holds several words
  cmake -G Ninja -S . -B "$BUILD" -DSHEAF_CUDA=ON -DSHEAF_BUILD_TESTS=ON -DSHEAF_WERROR=ON $CMAKE_ARGS &&
    ninja -C "$BUILD" -j "$JOBS" sheaf_cuda sheaf_cli gpu_{nccl,threads}_{embedding,segment,redistribute} $(cd tests/gpu && ls gpu_*.c | grep -v gpu_support | sed 's/\.c$//')
}

# Runs "name command ..." lines at the same time, each with its own log; shows those that fail.
together() {
  local failed=0 pids=() names=() name command i
  while read -r name command; do
    bash -c "$command" >"$logs/$name.log" 2>&1 &
    pids+=($!)
    names+=("$name")
  done
  for i in "${!pids[@]}"; do
    wait "${pids[$i]}" && continue
    failed=1
    echo "--- ${names[$i]} failed"
    grep -vE '^\[ (RUN|OK|  )' "$logs/${names[$i]}.log" | head -n 40
  done
  return $failed
}

types="f32 f64 f16 bf16 int8 int4"

bits() {
  for type in $types; do
    for index in i32 i64; do
      echo "bits.$type.$index SHEAF_TEST_ONLY=.$type.$index $BUILD/tests/gpu/gpu_bits"
    done
  done | together && grep -h "PASSED" "$logs"/bits.*.log
}

ops_programs="gpu_ops gpu_ops_layers gpu_ops_device"

ops() {
  local program failed=0
  for program in $ops_programs; do "$BUILD/tests/gpu/$program" || failed=1; done
  return $failed
}

# The command line on files: the same bytes as on the CPU.
files() { tests/scripts/check_device.sh "$BUILD/sheaf"; }

faults() { "$BUILD/tests/gpu/gpu_faults"; }

# Tables over ranks: NCCL with one rank, each of its collectives and every op; then several ranks on the one device, with
# messages that stay there and messages that go by way of the CPU. SHEAF_NCCL names libnccl.so.2 where it is not found.
ranks() {
  local name nccl="SHEAF_RANKS_ENGINE=nccl SHEAF_RANKS_DEVICE=cuda"
  {
    echo "nccl $BUILD/tests/gpu/gpu_nccl"
    for name in embedding segment redistribute; do
      echo "nccl.$name $nccl $BUILD/tests/gpu/gpu_nccl_$name"
      echo "threads.$name SHEAF_TEST_QUICK=1 $BUILD/tests/gpu/gpu_threads_$name 4"
      echo "threads3.$name SHEAF_TEST_QUICK=1 $BUILD/tests/gpu/gpu_threads_$name 3 cpu"
    done
  } | together && grep -hE "PASSED|cases on" "$logs"/nccl*.log "$logs"/threads*.log
}

large() { "$BUILD/tests/gpu/gpu_guess" && "$BUILD/tests/gpu/gpu_large"; }

verify() { "$BUILD/sheaf" verify tests/vectors --device cuda; }

# The PTX of sm_80, compiled by the driver for this device, each process its own type's: a plug-in that has nothing else.
jit() {
  local jit="CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_MAXSIZE=1073741824 SHEAF_PLUGIN_PATH=$PWD/$BUILD-jit"
  # shellcheck disable=SC2086
  cmake -G Ninja -S . -B "$BUILD-jit" -DSHEAF_CUDA=ON -DSHEAF_BUILD_TESTS=ON $CMAKE_ARGS \
    -DSHEAF_CUDA_ARCHITECTURES=80-virtual >"$logs/jit.log" 2>&1 &&
    ninja -C "$BUILD-jit" -j "$JOBS" sheaf_cuda sheaf_cli >>"$logs/jit.log" 2>&1 &&
    for type in $types; do
      echo "jit.$type $jit SHEAF_TEST_QUICK=1 SHEAF_TEST_ONLY=.$type.i64 $BUILD/tests/gpu/gpu_bits"
    done | together && grep -h "PASSED" "$logs"/jit.*.log &&
    env $jit "$BUILD-jit/sheaf" verify tests/vectors --device cuda
}

demo() { "$BUILD/sheaf" demo --device cuda; }

# Beside PyTorch, of the python3 that has it.
peers() { PYTHONDONTWRITEBYTECODE=1 python3 bench/peers/compare_gpu.py --library "$BUILD/libsheaf.so"; }

# memcheck over every op and type, the other tools over two types, all with few and small problems; each may take
# SANITIZE_SECONDS.
sanitize() {
  local type index program check tool="timeout ${SANITIZE_SECONDS:-1200} compute-sanitizer --error-exitcode 9 --print-limit 5"
  {
    for type in $types; do
      for index in i32 i64; do
        echo "memcheck.$type.$index SHEAF_GPU_SEPARATE=1 SHEAF_TEST_QUICK=1 SHEAF_TEST_ONLY=.$type.$index $tool --tool memcheck $BUILD/tests/gpu/gpu_bits"
      done
    done
    for program in $ops_programs; do
      echo "memcheck.$program $tool --tool memcheck $BUILD/tests/gpu/$program"
    done
    echo "memcheck.gpu_guess SHEAF_GPU_SEPARATE=1 SHEAF_TEST_QUICK=1 $tool --tool memcheck $BUILD/tests/gpu/gpu_guess"
    for check in racecheck synccheck initcheck; do
      echo "$check.gpu_guess SHEAF_GPU_SEPARATE=1 SHEAF_TEST_QUICK=1 $tool --tool $check $BUILD/tests/gpu/gpu_guess"
      for type in f32 f16; do
        echo "$check.$type SHEAF_GPU_SEPARATE=1 SHEAF_TEST_QUICK=1 SHEAF_TEST_ONLY=.$type.i32 $tool --tool $check $BUILD/tests/gpu/gpu_bits"
      done
    done
  } | together && grep -h "ERROR SUMMARY\|RACECHECK SUMMARY" "$logs"/*check.*.log | sort | uniq -c
}

# BENCH_RUNS times; of each case the line with the median time.
bench() {
  local run name runs=${BENCH_RUNS:-1}
  for run in $(seq "$runs"); do
    # shellcheck disable=SC2086
    "$BUILD/sheaf" bench --device cuda $BENCH >"$logs/bench.$run.log" || return 1
  done
  grep -h processors "$logs"/bench.[0-9]*.log
  sed -n 3p "$logs/bench.1.log"
  sed 1,3d "$logs/bench.1.log" | while read -r name _; do
    cat "$logs"/bench.[0-9]*.log | grep "^$name " | sort -k 2,2 -n | sed -n "$(((runs + 1) / 2))p"
  done
}

# What loops that only move the rows of those cases take.
floors() {
  "${CUDACXX:-nvcc}" -O3 -std=c++17 -arch=native --split-compile=0 bench/cuda/floors.cu -o "$BUILD/floors" && "$BUILD/floors"
}

mkdir -p "$logs"
failures=0
summary=
for step in $steps; do
  echo "=== $step"
  begun=$SECONDS
  if "$step"; then verdict=ok; else verdict=FAILED; failures=$((failures + 1)); fi
  summary="$summary$(printf '%-10s %-7s %4d s' "$step" $verdict $((SECONDS - begun)))"$'\n'
done
printf '\n%s' "$summary"
exit $failures
