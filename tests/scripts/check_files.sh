#!/usr/bin/env bash
# What holds for every file of the tree: check_files.sh <source folder>
#   - sources stay readable in length, files small in bytes;
#   - no two sources have the same name;
#   - text has no tabs (Makefile apart), no trailing blanks, no carriage returns, and ends with a newline;
#   - nothing names a path outside the repository.
set -u
cd "$1" || exit 1

max_bytes=$((1024 * 1024)) # any file
max_lines=600              # code
max_table_lines=1500       # tests, headers that are the manual, lists

# Of a checkout, the files git would commit; of an archive, everything but build folders.
list() {
  git ls-files --cached --others --exclude-standard -z 2>/dev/null ||
    find . \( -name .git -o -name 'build*' \) -prune -o -type f -printf '%P\0'
}
mapfile -d '' -t files < <(list)

failures=0
complain() { echo "$*"; failures=$((failures + 1)); }

# Paths of the machine a change was written on have no meaning on another one. (Spelled so as not to find itself.)
foreign='(^|[^A-Za-z0-9_.-])(/wor''k/|\.\./shar''ed)'

# The files are taken by lists, since a process for each would take seconds.
present=() code=() text=() tabbed=()
for file in "${files[@]}"; do
  [ -f "$file" ] || continue
  present+=("$file")
  case $file in
  *.c | *.h | *.inc | *.cu | *.cuh | *.py | *.sh | *.cpp) code+=("$file") ;;
  *.safetensors | *.npy | *.png | tests/fuzz/corpus*) continue ;;
  esac
  [ -s "$file" ] || continue
  case $file in Makefile | LICENSE | *.svg) tabbed+=("$file") ;; *) text+=("$file") ;; esac
done

# Where nothing is looked at, nothing is found, which must not pass for good.
for kind in present code text; do
  declare -n list_of=$kind
  [ ${#list_of[@]} -gt 0 ] || { echo "$1: no files of the kind '$kind' to look at, of ${#files[@]} that are listed"; exit 1; }
done

while read -r bytes file; do
  [ "$bytes" -le $max_bytes ] || complain "$file: $bytes bytes; the limit is $max_bytes"
done < <(stat -c '%s %n' -- "${present[@]}")

while read -r lines file; do
  limit=$max_lines
  case $file in tests/* | include/*) limit=$max_table_lines ;; esac
  [ "$lines" -le $limit ] || complain "$file: $lines lines; the limit is $limit"
done < <(for file in "${code[@]}"; do mapfile -t all <"$file" && echo "${#all[@]} $file"; done)

for file in "${text[@]}" "${tabbed[@]}"; do
  [ -z "$(tail -c 1 "$file")" ] || complain "$file: no newline at the end"
done

# hits <what is wrong> <grep's arguments ...>: one complaint for each line that is found.
hits() {
  local hit
  [ "${*: -1}" != -- ] || return 0 # no files: grep would read from stdin
  while read -r hit; do complain "$hit: $1"; done < <(grep -m 3 -HnI "${@:2}")
}
hits "trailing blanks, tabs or carriage returns" -P '[[:blank:]]$|\t|\r' -- "${text[@]}"
hits "trailing blanks or carriage returns" -P '[[:blank:]]$|\r' -- "${tabbed[@]}"
hits "a path outside the repository" -E "$foreign" -- "${text[@]}" "${tabbed[@]}"

twice=$(printf '%s\n' "${code[@]##*/}" | sort | uniq -d | tr '\n' ' ')
[ -z "$twice" ] || complain "names used by more than one source: $twice"
echo "${#present[@]} files, $failures complaints"
[ $failures -eq 0 ]
