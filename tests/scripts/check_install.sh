#!/usr/bin/env bash
# Installs the build into a temporary folder and uses it as a stranger would: find_package, pkg-config, the command.
# check_install.sh <build folder> <consumer project> <C compiler>
set -eu
build=$1 consumer=$2 cc=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "check_install: $*" >&2
  [ ! -s "$work/log" ] || tail -n 30 "$work/log" >&2
  exit 1
}

cmake --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || fail "cmake --install failed"
mv "$work/first" "$work/prefix" # an installed tree can be moved
prefix=$work/prefix
pc=$(find "$prefix" -name sheaf.pc)
[ -n "$pc" ] || fail "sheaf.pc is not installed"
libdir=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH=$libdir/pkgconfig
version=$(pkg-config --modversion sheaf) || fail "pkg-config does not find sheaf"

# expect_version <what> <command ...>: runs it; its output must be the version.
expect_version() {
  local what=$1 got
  shift
  got=$("$@" 2>"$work/log") || fail "$what: exit status $?"
  [ "$got" = "$version" ] || fail "$what printed '$got', not '$version'"
  echo "$what: $got"
}

configure=(cmake -S "$consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc")
"${configure[@]}" -DSHEAF_WANTED="$version" >"$work/log" 2>&1 || fail "find_package(sheaf $version)"
cmake --build "$work/consumer" >"$work/log" 2>&1 || fail "a project with find_package(sheaf) does not build"
expect_version "find_package, sheaf::sheaf" "$work/consumer/shared"
expect_version "find_package, sheaf::static" "$work/consumer/static"

# shellcheck disable=SC2046 # pkg-config's answer is a list of words
"$cc" "$consumer/consumer.c" -o "$work/pc-shared" $(pkg-config --cflags --libs sheaf) 2>"$work/log" ||
  fail "pkg-config, shared"
expect_version "pkg-config, shared" env LD_LIBRARY_PATH="$libdir" "$work/pc-shared"
mkdir "$work/archive"
cp "$libdir/libsheaf.a" "$work/archive"
# shellcheck disable=SC2046
"$cc" "$consumer/consumer.c" -o "$work/pc-static" $(pkg-config --cflags sheaf) -L"$work/archive" \
  $(pkg-config --static --libs sheaf) 2>"$work/log" || fail "pkg-config --static"
expect_version "pkg-config --static" "$work/pc-static"

if [ -x "$build/sheaf" ]; then
  "$prefix/bin/sheaf" --help >"$work/log" 2>&1 || fail "the installed command does not start"
  for page in man/man1/sheaf.1 bash-completion/completions/sheaf zsh/site-functions/_sheaf \
    fish/vendor_completions.d/sheaf.fish; do
    [ -s "$prefix/share/$page" ] || fail "share/$page is not installed"
  done
  echo "sheaf --help: ok"
fi
