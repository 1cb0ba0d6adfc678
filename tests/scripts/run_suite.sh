#!/usr/bin/env bash
# The stages behind `make test`, `make test-all` and `make lint`: run_suite.sh quick|all|lint
#
# Every stage runs, whatever became of those before it; a table at the end says how each went, and the exit status is 1
# when one failed. Folders: $BUILD (gcc), $BUILD-clang, $BUILD-asan (clang, address and undefined-behaviour sanitizers,
# fuzzers), $BUILD-tsan (clang, thread sanitizer).
set -u
cd "$(dirname "$0")/../.." || exit 1
mode=${1:-quick}
build=${BUILD:-build}
jobs=${JOBS:-$(nproc)}

summary=()
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# stage <name> <function ...>: runs it, keeps the last line of its log that sums it up.
stage() {
  local name=$1 start=$SECONDS verdict text
  shift
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$log"
  if [ "${PIPESTATUS[0]}" -eq 0 ]; then verdict=ok; else verdict=FAILED failed=1; fi
  text=$(grep -E 'tests passed|^[0-9]+ fuzzers|warnings in|All checks passed' "$log" | tail -n 1)
  summary+=("$(printf '%-6s %-34s %5d s  %s' "$verdict" "$name" $((SECONDS - start)) "$text")")
}

# compile <folder> <cmake arguments ...>
compile() {
  local folder=$1
  shift
  mkdir -p "$folder"
  cmake -G Ninja -S . -B "$folder" -DSHEAF_WERROR=ON -DSHEAF_BUILD_TESTS=ON -DSHEAF_BUILD_CLI=ON \
    -DSHEAF_BUILD_EXAMPLES=ON -DSHEAF_TEST_TIMEOUT=900 "$@" >"$folder/configure.log" 2>&1 ||
    { cat "$folder/configure.log"; return 1; }
  cmake --build "$folder" --parallel "$jobs" -- --quiet || { echo "$folder: the build failed"; return 1; }
}

# run_tests <folder> <ctest arguments ...>
run_tests() {
  local folder=$1
  shift
  (cd "$folder" && ctest --output-on-failure --no-tests=error "$@")
}

clang=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++)

# SHEAF_TEST_CUDA: what to compile the CUDA plug-in for, where nvcc is, instead of all that is the default.
cuda=(${SHEAF_TEST_CUDA:+"-DSHEAF_CUDA_ARCHITECTURES=$SHEAF_TEST_CUDA"})

test_gcc() { compile "$build" "${cuda[@]}" && run_tests "$build" --parallel "$jobs"; }

# test_clang <ctest arguments ...>
test_clang() {
  compile "$build-clang" "${clang[@]}" -DSHEAF_CUDA=OFF &&
    SHEAF_TEST_QUICK=1 run_tests "$build-clang" --parallel "$jobs" "$@"
}

# -O1: the sanitizers' own checks cost most of the time, and the optimiser's work on them most of the build.
compile_asan() {
  compile "$build-asan" "${clang[@]}" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -g1" \
    -DSHEAF_SANITIZE=address,undefined -DSHEAF_FUZZ=ON
}

export UBSAN_OPTIONS=print_stacktrace=1
export LSAN_OPTIONS=suppressions=$PWD/tests/scripts/lsan_suppressions.txt:print_suppressions=0

# The leak checker of clang 14 takes a thread-local block that lies 16 bytes behind the start of a page (cmocka's, where
# chance puts it there) for one of an old libc and reads its size from what happens to lie before it, unless it is told
# not to follow __tls_get_addr. The blocks of what is loaded at the start are looked at all the same.
#   test_asan <ctest arguments ...>
test_asan() {
  compile_asan &&
    SHEAF_TEST_QUICK=1 ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:intercept_tls_get_addr=0 \
    run_tests "$build-asan" --parallel "$jobs" "$@"
}

# fuzz_one <program> <seconds>: from the seeds in tests/fuzz/corpus/<name>, and from what earlier runs here found.
fuzz_one() {
  local program=$1 seconds=$2 name found seeds=()
  name=$(basename "$program")
  found=$build-asan/fuzz/found/${name#fuzz_}
  mkdir -p "$found"
  [ -d "tests/fuzz/corpus/${name#fuzz_}" ] && seeds=("tests/fuzz/corpus/${name#fuzz_}")
  [ "$name" = fuzz_safetensors ] && seeds+=(tests/vectors)
  "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="$build-asan/fuzz/crash-$name-" "$found" "${seeds[@]}" >"$program.log" 2>&1
}

# fuzz <seconds per target>: `jobs` targets at a time.
fuzz() {
  local seconds=$1 program status=0 programs=() pids=() i
  compile_asan || return 1
  for program in "$build-asan"/fuzz/fuzz_*; do
    [ -x "$program" ] && [ ! -d "$program" ] && programs+=("$program")
  done
  [ ${#programs[@]} -gt 0 ] || { echo "no fuzzers were built"; return 1; }
  for i in "${!programs[@]}"; do
    [ "$i" -lt "$jobs" ] || wait "${pids[$((i - jobs))]}"
    fuzz_one "${programs[$i]}" "$seconds" &
    pids+=($!)
  done
  for i in "${!programs[@]}"; do
    if wait "${pids[$i]}"; then
      echo "$(basename "${programs[$i]}"): $(sed -n 's/^stat::number_of_executed_units: *//p' "${programs[$i]}.log") inputs, no finding"
    else
      echo "$(basename "${programs[$i]}"): FAILED"
      tail -n 60 "${programs[$i]}.log"
      status=1
    fi
  done
  echo "${#programs[@]} fuzzers, $seconds s each"
  return "$status"
}

# Where it is allowed, without address randomisation: on some kernels its range is wider than the thread sanitizer bears.
fixed_addresses() {
  if setarch -R true 2>/dev/null; then
    export -f run_tests
    setarch -R bash -c '"$@"' run_tests "$@"
  else
    "$@"
  fi
}

# libgomp's synchronisation is invisible to the sanitizer; libomp tells it through archer.
test_tsan() {
  local archer
  archer=$(realpath -m "$(clang -print-resource-dir)/../../libarcher.so")
  [ -e "$archer" ] || { echo "libarcher.so is not at $archer (Debian: libomp-dev)"; return 1; }
  compile "$build-tsan" "${clang[@]}" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -g1" -DSHEAF_SANITIZE=thread \
    -DSHEAF_TEST_TIMEOUT=3600 &&
    SHEAF_TEST_QUICK=1 OMP_TOOL_LIBRARIES=$archer TSAN_OPTIONS="ignore_noninstrumented_modules=1 die_after_fork=0" \
      fixed_addresses run_tests "$build-tsan" -LE 'check|ranks'
}

test_long() {
  compile "$build" -DSHEAF_TEST_TIMEOUT=7200 && SHEAF_TEST_LONG=1 SHEAF_TEST_HUGE=1 run_tests "$build" -L unit
}

# The wheel holds the libraries that the first stage built.
test_python() { BUILD="$build" python/tests/run_python.sh "$1"; }

# tidy <build folder> <folders of sources, as a|b>
tidy() {
  sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$1/compile_commands.json" | grep -E "^$PWD/($2)/" | sort -u |
    xargs -P "$jobs" -n 1 clang-tidy --quiet -p "$1" --warnings-as-errors='*' 2>&1 |
    grep -vE '^[0-9]+ warnings? generated|^$'
}

# The extension for Python is built apart.
lint_tidy() {
  compile "$build-clang" "${clang[@]}" -DSHEAF_CUDA=OFF || return 1
  cmake -G Ninja -S python -B "$build-clang/python" "${clang[@]}" -DSHEAF_WERROR=ON \
    -DSHEAF_PREBUILT="$(realpath "$build-clang")" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >"$log.tidy" 2>&1 ||
    { cat "$log.tidy"; return 1; }
  { tidy "$build-clang" 'src|cli|examples'; tidy "$build-clang/python" python/extension; } >"$log.tidy"
  cat "$log.tidy"
  local count
  count=$(grep -cE '(warning|error):' "$log.tidy")
  rm -f "$log.tidy"
  echo "clang-tidy: $count warnings in all"
  [ "$count" -eq 0 ]
}

lint_cppcheck() {
  cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 -j "$jobs" \
    --suppressions-list=cmake/cppcheck-suppressions.txt -I include -I src \
    '-DPy_BEGIN_ALLOW_THREADS={' '-DPy_END_ALLOW_THREADS=}' src cli examples python/extension
}

# ruff (its rules: pyproject.toml) in an environment of its own.
lint_ruff() {
  local venv=$build/venv-lint
  mkdir -p "$build"
  if [ ! -x "$venv/bin/ruff" ]; then
    python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check ruff || return 1
  fi
  "$venv/bin/ruff" check --no-cache python bench
}

case $mode in
quick) # what is labelled `once` or `script` (tests/CMakeLists.txt) gcc's build shows; under sanitizers, scripts run too
  stage "gcc, all tests and checks" test_gcc
  stage "Python package" test_python quick
  stage "clang, tests" test_clang -LE 'demo|once|script'
  stage "address and undefined sanitizers" test_asan -LE once
  stage "fuzzing, 12 s a target" fuzz 12
  ;;
all)
  stage "gcc, all tests and checks" test_gcc
  stage "Python package" test_python long
  stage "clang, tests" test_clang -LE demo
  stage "address and undefined sanitizers" test_asan
  stage "thread sanitizer" test_tsan
  stage "long tests, sizes past 2^31" test_long
  stage "fuzzing, 10 minutes a target" fuzz 600
  ;;
lint)
  stage "clang-tidy" lint_tidy
  stage "cppcheck" lint_cppcheck
  stage "ruff" lint_ruff
  ;;
*)
  echo "run_suite.sh: quick, all or lint, not '$mode'" >&2
  exit 2
  ;;
esac

printf '\n== summary\n'
printf '%s\n' "${summary[@]}"
exit $failed
