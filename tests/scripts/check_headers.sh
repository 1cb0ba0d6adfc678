#!/usr/bin/env bash
# Every public header compiles on its own, as C99, C17, C++11 and C++20, without a warning:
# check_headers.sh <source folder> <dlpack's include folder> <C compiler> [<C++ compiler>]
set -u
source=$1 dlpack=$2 cc=$3 cxx=${4:-}

failures=0
count=0
compile() { # <compiler> <language> <standard> <header>
  count=$((count + 1))
  "$1" -x "$2" "-std=$3" -pedantic-errors -Wall -Wextra -Wconversion -Wundef -Werror -fsyntax-only \
    -I"$source/include" -isystem "$dlpack" -include "sheaf/$(basename "$4")" /dev/null && return
  echo "$(basename "$4"): not accepted as $3"
  failures=$((failures + 1))
}

for header in "$source"/include/sheaf/*.h; do
  for standard in c99 c17; do compile "$cc" c $standard "$header"; done
  [ -z "$cxx" ] || for standard in c++11 c++20; do compile "$cxx" c++ $standard "$header"; done
done
echo "$count compilations, $failures failed"
[ $failures -eq 0 ]
