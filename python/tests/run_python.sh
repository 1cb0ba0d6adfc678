#!/usr/bin/env bash
# The Python package's tests: run_python.sh [quick|long]. BUILD=dir: a build folder of Sheaf whose libraries go into the
# wheel (build).
#
# Builds the wheel once, installs it into $BUILD/venv-python together with what the tests need, and runs them; then into
# a fresh environment of every CPython from 3.11 on that is found, with NumPy 1.26 and 2.x, for a smoke test; some of them
# again with the sanitizers in the extension. PyTorch, JAX and mpi4py are tested where they can be installed; a sentence
# says which are not there.
set -u
cd "$(dirname "$0")/../.." || exit 1
mode=${1:-quick}
build=$(realpath "${BUILD:-build}")
venv=$build/venv-python
torch=torch==2.13.0

# Interpreters from 3.11 on with headers to build against, each version once.
interpreters() {
  local candidate seen=' ' version
  for candidate in "$(command -v python3)" /usr/bin/python3.* /usr/local/bin/python3.* "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
    case $candidate in '' | *-config) continue ;; esac
    version=$("$candidate" -c 'import sys, venv, ensurepip, sysconfig, os
ok = sys.version_info >= (3, 11) and os.path.exists(sysconfig.get_path("include") + "/Python.h")
print("%d.%d" % sys.version_info[:2] if ok else "")' 2>/dev/null) || continue
    [ -z "$version" ] || [[ $seen == *" $version "* ]] || { echo "$candidate"; seen+="$version "; }
  done
}

install() { "$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}" >"$build/pip.log" 2>&1; }

# optional <module> <requirement> <more of pip's options ...>: installs what is wanted, or says that it is not to be had.
optional() {
  "$venv/bin/python" -c "import $1" >/dev/null 2>&1 || install "$venv" "$2" || { [ $# -gt 2 ] && install "$venv" "${@:2}"; } ||
    echo "$2 cannot be installed here: tests that need it are skipped"
}

mapfile -t found < <(interpreters)
[ ${#found[@]} -gt 0 ] || { echo "no CPython from 3.11 on with its headers and venv (Debian: python3-dev, python3-venv)"; exit 1; }

if ! "$venv/bin/python" -c 'import numpy, pytest, hypothesis, scikit_build_core' >/dev/null 2>&1; then
  "${found[0]}" -m venv --clear "$venv" || exit 1
  install "$venv" scikit-build-core numpy ml_dtypes pytest hypothesis ||
    { tail -n 5 "$build/pip.log"; echo "the tests' packages cannot be installed from PyPI"; exit 1; }
fi
optional torch "$torch+cpu" --index-url https://download.pytorch.org/whl/cpu
optional jax jax
optional mpi4py mpi4py

echo "Building the wheel"
rm -rf "$build/wheels"
PATH=$venv/bin:$PATH "$venv/bin/pip" wheel --quiet --no-build-isolation --no-deps --wheel-dir "$build/wheels" \
  -C build-dir="$build/python" -C cmake.define.SHEAF_PREBUILT="$build" -C cmake.define.SHEAF_WERROR=ON . \
  >"$build/pip.log" 2>&1 || { tail -n 40 "$build/pip.log"; exit 1; }
wheel=$(ls "$build"/wheels/sheaf-*-cp311-abi3-*.whl) || exit 1
install "$venv" --force-reinstall --no-deps "$wheel" || { cat "$build/pip.log"; exit 1; }

# Fresh environments: the wheel, NumPy, nothing else. (The first environment's pip serves them all.)
fresh_environments() {
  local python numpy fresh=$build/venv-fresh works=0 failed=0
  into() { "$venv/bin/pip" --python "$fresh/bin/python" install --quiet --disable-pip-version-check "$@" >"$build/pip-fresh.log" 2>&1; }
  for python in "${found[@]}"; do
    for numpy in 'numpy==1.26.*' 'numpy>=2'; do
      "$python" -m venv --clear --without-pip "$fresh" || { failed=1; continue; }
      if ! into --only-binary :all: "$numpy"; then
        echo "$("$python" --version), $numpy: there is no such NumPy for it here"
      elif into --no-deps "$wheel" && PYTHONDONTWRITEBYTECODE=1 "$fresh/bin/python" python/tests/smoke.py; then
        works=$((works + 1))
      else
        cat "$build/pip-fresh.log"
        failed=1
      fi
    done
  done
  rm -rf "$fresh"
  echo "$works fresh environments"
  [ $failed -eq 0 ] && [ $works -gt 0 ]
}

# The extension once more, with the address and undefined-behaviour sanitizers in it, under the tests of arrays and errors.
sanitized() {
  local asan ubsan folder=$build/python-asan log=$build/asan.log
  asan=$(cc -print-file-name=libasan.so) ubsan=$(cc -print-file-name=libubsan.so)
  if [ ! -e "$asan" ] || [ ! -e "$ubsan" ]; then
    echo "cc has no sanitizers of its own: the extension is not run under them"
    return 0
  fi
  { cmake -S python -B "$folder" -DCMAKE_BUILD_TYPE=Debug -DSHEAF_PREBUILT="$build" -DCMAKE_INSTALL_PREFIX="$folder/site" \
      -DPython_EXECUTABLE="$venv/bin/python" -DCMAKE_C_FLAGS="-fsanitize=address,undefined -fno-omit-frame-pointer -O1 -g1" &&
    cmake --build "$folder" --parallel && cmake --install "$folder"; } >"$log" 2>&1 || { tail -n 40 "$log"; return 1; }
  cp python/sheaf/*.py "$folder/site/sheaf/"
  LD_PRELOAD="$asan $ubsan" PYTHONPATH=$folder/site PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 "$venv/bin/python" -m pytest -q \
    -p no:cacheprovider -k 'not leaks and not lock_is' python/tests/test_arrays.py python/tests/test_extras.py \
    python/tests/test_numpy_ops.py >"$log" 2>&1 || { tail -n 60 "$log"; return 1; }
  echo "Under sanitizers: $(tail -n 1 "$log")"
}

failed=0
[ "$mode" = long ] && export SHEAF_TEST_LONG=1
fresh_environments >"$build/fresh.log" 2>&1 &
fresh=$!
PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive "$venv/bin/python" -m pytest -q -p no:cacheprovider -rs python/tests |
  tee "$build/pytest.log"
[ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
wait "$fresh" || failed=1
cat "$build/fresh.log"
sanitized || failed=1

# What a newcomer types: everything from source, in an environment of its own.
if [ "$mode" = long ]; then
  "${found[0]}" -m venv --clear "$build/venv-source" &&
    install "$build/venv-source" -C build-dir="$build/python-source" . &&
    "$build/venv-source/bin/python" python/tests/smoke.py || { tail -n 40 "$build/pip.log"; failed=1; }
  rm -rf "$build/venv-source"
fi

echo "Python: $(tail -n 1 "$build/pytest.log" | sed 's/ in .*//;s/=//g'); wheel tests passed in $(tail -n 1 "$build/fresh.log")"
exit $failed
