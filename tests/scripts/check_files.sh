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
[ ${#files[@]} -gt 0 ] || { echo "no files in $1"; exit 1; }

failures=0
complain() { echo "$*"; failures=$((failures + 1)); }

# Paths of the machine a change was written on have no meaning on another one. (Spelled so as not to find itself.)
foreign='(^|[^A-Za-z0-9_.-])(/wor''k/|\.\./shar''ed)'

names=$(mktemp)
trap 'rm -f "$names"' EXIT
for file in "${files[@]}"; do
  [ -f "$file" ] || continue
  bytes=$(stat -c %s "$file")
  [ "$bytes" -le $max_bytes ] || complain "$file: $bytes bytes; the limit is $max_bytes"
  case $file in
  *.c | *.h | *.inc | *.cu | *.cuh | *.py | *.sh | *.cpp)
    basename "$file" >>"$names"
    limit=$max_lines
    case $file in tests/* | include/*) limit=$max_table_lines ;; esac
    lines=$(wc -l <"$file")
    [ "$lines" -le $limit ] || complain "$file: $lines lines; the limit is $limit"
    ;;
  *.safetensors | *.npy | *.png | tests/fuzz/corpus*) continue ;;
  esac
  [ "$bytes" -gt 0 ] || continue
  [ -z "$(tail -c 1 "$file")" ] || complain "$file: no newline at the end"
  case $file in Makefile | LICENSE | *.svg) blanks='[[:blank:]]$' ;; *) blanks='[[:blank:]]$|\t' ;; esac
  hits=$(grep -m 3 -nIP "$blanks|\r" "$file") && complain "$file: trailing blanks, tabs or carriage returns: $hits"
  hits=$(grep -m 3 -nIE "$foreign" "$file") && complain "$file: names a path outside the repository: $hits"
done

twice=$(sort "$names" | uniq -d | tr '\n' ' ')
[ -z "$twice" ] || complain "names used by more than one source: $twice"
echo "${#files[@]} files, $failures complaints"
[ $failures -eq 0 ]
