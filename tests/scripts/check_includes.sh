#!/usr/bin/env bash
# Keeps the direction of includes between folders: check_includes.sh <source folder>
#
# The rules are the table below: a folder, then the folders of src/ it may include. Every folder may include itself, the
# public headers and the system's. Only tests/ sees everything; its oracles see none of src/, since they are there to
# disagree with it. A new folder needs a line here.
set -eu
cd "$1"

rules='
include/sheaf
src/core
src/kernels   core
src/plan      core
src/dispatch  core
src/layers    core dispatch plan
src/ops       core dispatch
src/comm      core
src/shard     core comm
src/io        core
cli
examples
bench
python
tests/oracle
'
# The one file that names the tables of kernels.
exceptions='src/plan/registry.c kernels'

find src cli examples bench python include tests/oracle -type f \
  \( -name '*.[ch]' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) 2>/dev/null | LC_ALL=C sort |
  xargs awk -v rules="$rules" -v exceptions="$exceptions" '
  BEGIN {
    count = split(rules, lines, "\n")
    for (i = 1; i <= count; i++) {
      words = split(lines[i], word, " ")
      if (words) known[word[1]] = 1
      for (w = 2; w <= words; w++) allowed[word[1], word[w]] = 1
    }
    split(exceptions, word, " ")
    allowed[word[1], word[2]] = 1
  }
  function report(reason) {
    printf "%s:%d: %s: %s\n", FILENAME, FNR, $0, reason
    failures++
  }
  function exists(path,    line, status) {
    status = (getline line < path)
    close(path)
    return status >= 0
  }
  FNR == 1 {
    files++
    folder = FILENAME
    sub(/\/[^\/]*$/, "", folder)
    here = folder # the file itself may be deeper, as in src/kernels/cpu
    while (!(folder in known) && sub(/\/[^\/]*$/, "", folder)) { }
    if (!(folder in known)) report("a folder without a rule in tests/scripts/check_includes.sh")
    own = folder
    sub(/^src\//, "", own)
  }
  /^[ \t]*#[ \t]*include[ \t]*["<]/ {
    includes++
    path = $0
    sub(/^[^"<]*["<]/, "", path)
    sub(/[">].*/, "", path)
    if (path ~ /\.\.\//) { report("a path upwards"); next }
    if (folder == "include/sheaf") {
      if (path !~ /^(stddef\.h|stdint\.h|dlpack\/dlpack\.h)$/ && !exists(here "/" path))
        report("public headers include each other, DLPack, stddef.h and stdint.h only")
      next
    }
    if (path ~ /^sheaf\//) {
      if (!exists("include/" path)) report("no such public header")
      next
    }
    if (exists("src/" path)) {
      target = path
      sub(/\/.*/, "", target)
      if (folder !~ /^src\// ) report(folder " includes public headers only")
      else if (target != own && !((folder, target) in allowed) && !((FILENAME, target) in allowed))
        report(folder " may not include " target)
      next
    }
    if ($0 ~ /"/ && !exists(here "/" path) && !exists("tests/" path)) report("not found beside the file, nor in src/")
  }
  END {
    printf "%d files, %d includes, %d against the rules\n", files, includes, failures
    exit failures > 0
  }'
