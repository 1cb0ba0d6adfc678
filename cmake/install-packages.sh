#!/usr/bin/env bash
# Makes sure that what a make target needs is on this machine: install-packages.sh build|test|lint ...
#
# Looks for the tools, headers and libraries themselves, not for packages, so that anything installed by other means
# counts. When nothing is missing it does nothing and uses no network. What is missing is installed when that is allowed
# (root or passwordless sudo, and apt-get; SHEAF_NO_INSTALL=1 forbids it), or named exactly and the exit status is 1.
set -u

CC=${CC:-cc}

have_command() { command -v "$1" >/dev/null 2>&1; }

have_header() {
  if have_command "$CC"; then
    echo "#include <$1>" | "$CC" -E -x c - >/dev/null 2>&1
  else
    [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]
  fi
}

have_cmake() {
  have_command cmake || return 1
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  [ "$(printf '3.22\n%s\n' "$version" | sort -V | head -n 1)" = 3.22 ]
}

# Whether clang can link a program with these flags: the only sure sign that a runtime library of its own is there.
have_clang_runtime() {
  have_command clang || return 1
  local folder status=0
  folder=$(mktemp -d) || return 1
  echo 'int LLVMFuzzerTestOneInput(const void *d, unsigned long n) { return !d && !n; }' >"$folder/f.c"
  [ "$1" = -fopenmp ] && printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' >"$folder/f.c"
  clang "$1" "$folder/f.c" -o "$folder/f" >/dev/null 2>&1 || status=1
  rm -rf "$folder"
  return $status
}

have_numpy() { python3 -c 'import numpy' >/dev/null 2>&1; }

have_chromium() { have_command chromium || have_command chromium-browser || have_command google-chrome; }

# Either may be there with any Python; the tests look for those from 3.11 on themselves.
have_python_header() {
  have_command python3 &&
    [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)/Python.h" ]
}
have_python_venv() { have_command python3 && python3 -c 'import venv, ensurepip' >/dev/null 2>&1; }

# need <Debian package> <Fedora package> <probe ...>: notes the package as missing when the probe fails.
debian=() fedora=()
need() {
  local deb=$1 rpm=$2
  shift 2
  "$@" || { debian+=("$deb"); fedora+=("$rpm"); }
}

probe() {
  debian=() fedora=()
  local group
  for group in "$@"; do
    case $group in
    build)
      need gcc gcc have_command "$CC"
      need libc6-dev glibc-devel have_header stdio.h
      need cmake cmake have_cmake
      need ninja-build ninja-build have_command ninja
      need libdlpack-dev dlpack-devel have_header dlpack/dlpack.h
      need libjansson-dev jansson-devel have_header jansson.h
      ;;
    test)
      need g++ gcc-c++ have_command g++
      need libcmocka-dev libcmocka-devel have_header cmocka.h
      need pkg-config pkgconf-pkg-config have_command pkg-config
      need libopenmpi-dev openmpi-devel have_command mpicc
      need openmpi-bin openmpi have_command mpirun
      need clang clang have_command clang
      need libclang-rt-dev compiler-rt have_clang_runtime -fsanitize=fuzzer,address,undefined
      need libomp-dev libomp-devel have_clang_runtime -fopenmp
      need python3-numpy python3-numpy have_numpy
      need zsh zsh have_command zsh
      need fish fish have_command fish
      need chromium chromium have_chromium
      need python3-dev python3-devel have_python_header
      need python3-venv python3 have_python_venv
      ;;
    lint)
      need clang-tidy clang-tools-extra have_command clang-tidy
      need clang-format clang-tools-extra have_command clang-format
      need cppcheck cppcheck have_command cppcheck
      ;;
    *)
      echo "install-packages.sh: unknown group '$group' (build, test, lint)" >&2
      exit 2
      ;;
    esac
  done
}

give_up() {
  {
    echo "$1"
    echo "  Debian, Ubuntu:  apt-get install ${debian[*]}"
    echo "  Fedora:          dnf install $(printf '%s\n' "${fedora[@]}" | sort -u | tr '\n' ' ')"
  } >&2
  exit 1
}

probe "$@"
[ ${#debian[@]} -eq 0 ] && exit 0

as_root=()
if [ "${SHEAF_NO_INSTALL:-0}" != 0 ]; then
  give_up "Packages are missing, and SHEAF_NO_INSTALL is set:"
elif ! have_command apt-get; then
  give_up "Packages are missing, and this system has no apt-get to install them with:"
elif [ "$(id -u)" -ne 0 ]; then
  if have_command sudo && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  else
    give_up "Packages are missing, and installing them needs root (or sudo without a password):"
  fi
fi

echo "Installing Debian packages: ${debian[*]}"
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1; }
if ! apt update || ! apt install -y --no-install-recommends "${debian[@]}"; then
  tail -n 15 "$log" >&2
  give_up "apt-get failed (its last lines are above). Needed:"
fi
probe "$@"
[ ${#debian[@]} -eq 0 ] || give_up "Installed, but still not found:"
