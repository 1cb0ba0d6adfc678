#!/usr/bin/env bash
# Sheaf beside PyTorch and FBGEMM: sets up a virtual environment in the build folder, then runs compare.py.
# Usage: run_peers.sh [ARGUMENTS OF compare.py]   BUILD=dir: the build folder (build)
#        run_peers.sh functions [ARGUMENTS OF functions.py]   the Python package beside PyTorch's functions
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
venv=$build/venv-peers
torch=2.13.0
fbgemm=1.8.0 # the release made for that PyTorch

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import torch, numpy' 2>/dev/null; then
  echo "Setting up $venv: torch $torch, numpy, fbgemm-gpu-cpu $fbgemm" >&2
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet "torch==$torch" numpy >&2
  "$venv/bin/pip" install --quiet --no-deps "fbgemm-gpu-cpu==$fbgemm" >&2 || echo "fbgemm-gpu-cpu: not to be had" >&2
fi

export PYTHONDONTWRITEBYTECODE=1
if [ "${1:-}" = functions ]; then
  shift
  "$venv/bin/pip" install --quiet scikit-build-core matplotlib >&2
  PATH=$PWD/$venv/bin:$PATH "$venv/bin/pip" install --quiet --no-build-isolation --no-deps --force-reinstall \
    -C build-dir="$build/python" -C cmake.define.SHEAF_PREBUILT="$(realpath "$build")" . >&2
  exec "$venv/bin/python" bench/peers/functions.py "$@"
fi

# The ceilings are those of `sheaf bench`; without a compiler there are none, and only times are compared.
stream=
if cc -std=c17 -O3 -fopenmp -fPIC -shared cli/bench_stream.c -o "$venv/libstream.so"; then stream=$venv/libstream.so; fi

exec "$venv/bin/python" bench/peers/compare.py --library "$build/libsheaf.so" --stream "$stream" "$@"
