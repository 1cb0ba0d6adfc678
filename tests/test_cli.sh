#!/bin/sh
# tests/test_cli.sh: the command `sheaf` as a user meets it: help, exit codes, JSON, reference cases good and bad.
# Usage: test_cli.sh SHEAF VECTORS   (the command, the folder of reference cases)
set -u
LC_ALL=C
export LC_ALL

[ $# -eq 2 ] || { echo "usage: $0 SHEAF VECTORS" >&2; exit 2; }
sheaf=$1
vectors=$2
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
out=$scratch/stdout
err=$scratch/stderr
failures=0

note_failure() {
  failures=$((failures + 1))
  echo "FAILED: $1"
  sed 's/^/  stdout: /' "$out" | tail -n 5
  sed 's/^/  stderr: /' "$err" | tail -n 5
}

# expect NAME CODE ARGUMENTS...: runs the command and compares its exit code.
expect() {
  name=$1
  wanted=$2
  shift 2
  "$sheaf" "$@" >"$out" 2>"$err"
  code=$?
  [ "$code" -eq "$wanted" ] || note_failure "$name: exit code $code, expected $wanted"
}

stdout_has() { grep -q -e "$1" "$out" || note_failure "$name: no '$1' on stdout"; }
stderr_has() { grep -q -e "$1" "$err" || note_failure "$name: no '$1' on stderr"; }
stdout_ends() { [ "$(tail -n 1 "$out")" = "$1" ] || note_failure "$name: the last line is not '$1'"; }
stderr_is_one_line() { [ "$(wc -l <"$err")" -eq 1 ] || note_failure "$name: not one line on stderr"; }

valid_json() {
  if command -v python3 >/dev/null 2>&1; then
    python3 -m json.tool <"$out" >/dev/null 2>"$err" || note_failure "$name: not valid JSON"
  else
    echo "skipped: $name: is it valid JSON? (no python3 here)"
  fi
}

# ---- Help and misuse -------------------------------------------------------------------------------------------

expect "help" 0 --help
stdout_has "Usage: sheaf"
stdout_has "Exit codes"
expect "version" 0 --version
stdout_has "^sheaf [0-9]*\.[0-9]*\.[0-9]*$"
expect "-V" 0 -V
stdout_has "^sheaf [0-9]*\.[0-9]*\.[0-9]*$"
expect "help" 0 help
stdout_has "Usage: sheaf COMMAND"
expect "help of a command" 0 help nearest
stdout_has "Usage: sheaf nearest"
expect "help of a part" 0 help shard plan
stdout_has "Usage: sheaf shard plan"
expect "help of nothing" 2 help nearst
stderr_has "did you mean 'nearest'?"
stderr_is_one_line
expect "names on a terminal" 2 "$(printf 'a\033]0;b\007\nc\302\233\377')"
stderr_has "'a.x1b\]0;b.x07.x0ac.xc2.x9b.xff'"
stderr_is_one_line
for command in info kernels verify demo bench; do
  expect "$command --help" 0 $command --help
  stdout_has "Usage: sheaf $command"
  stdout_has "Exit codes"
  expect "$command with an unknown option" 2 $command --frobnicate
  stderr_has "'--frobnicate'"
  stderr_is_one_line
done
expect "no command" 2
stderr_has "Usage"
expect "unknown command" 2 frobnicate
stderr_has "'frobnicate'"
expect "unknown option" 2 --frobnicate
stderr_has "'--frobnicate'"
expect "info with a word too many" 2 info extra
expect "verify without a folder" 2 verify
expect "verify with two folders" 2 verify "$vectors" "$vectors"
expect "an option without its value" 2 verify "$vectors" --threads
expect "no threads" 2 verify "$vectors" --threads 0
expect "threads that are no number" 2 verify "$vectors" --threads=many
expect "unknown instruction set" 2 verify "$vectors" --isa sse9
stderr_has "'sse9'"
expect "a flag with a value" 2 info --json=yes
expect "no seconds" 2 demo --seconds 0

# ---- Exit codes: 1 where what was asked for cannot be had, 2 where it is not said what is wanted ------------------

for arguments in "show @" "nearest @ --row 1" "lookup @ 1" "bag @ 1 --offsets @" "segment @ 1" "quantize @" \
  "dequantize @ -o out.npy" "convert @ -o out.npy" "verify @" "shard verify @" "trace view @" \
  "bench small --compare @" "bench --json --from @" "shard plan --mesh 2 --table 9x9 --indices 3 --profile @"; do
  # shellcheck disable=SC2086
  expect "$arguments that is not there" 1 $(echo "$arguments" | sed "s|@|$scratch/missing.npy|g")
  stderr_has "missing.npy"
  stderr_is_one_line
done
for command in show nearest "lookup t.npy" "bag t.npy" "segment t.npy" quantize dequantize convert verify \
  "shard verify" "shard plan" "trace view" shard trace completion "bench nothing" "shard nothing" "trace nothing"; do
  # shellcheck disable=SC2086
  expect "$command without a word that is needed" 2 $command
  stderr_is_one_line
done

# ---- info and kernels ------------------------------------------------------------------------------------------

expect "info" 0 info
for fact in version: cpu: "instruction sets:" threads: pages: cuda: mpi:; do stdout_has "^$fact"; done
expect "info --json" 0 info --json
valid_json
name="info looks in SHEAF_PLUGIN_PATH"
SHEAF_PLUGIN_PATH=$scratch/one:$scratch/two "$sheaf" info >"$out" 2>"$err" || note_failure "$name: failed"
if grep -q ": not found" "$out"; then
  stdout_has "$scratch/two/libsheaf_"
else
  echo "skipped: $name (all plug-ins lie beside the library)"
fi
expect "kernels" 0 kernels
stdout_has "^lookup\.f32\.i64/cpu\.scalar "
stdout_has "^[1-9][0-9]* kernels, [1-9][0-9]* available here$"
expect "kernels with a filter" 0 kernels bag_sum.f16
stdout_has "bag_sum\.f16"
if grep -q "^lookup" "$out"; then note_failure "kernels with a filter: shows others"; fi
expect "kernels --json" 0 kernels --json
stdout_has '"guarantee"'
valid_json
expect "kernels --json of nothing" 0 kernels --json no_such_kernel
stdout_has '^\[\]$'

# ---- Reference cases -------------------------------------------------------------------------------------------

count=$(find "$vectors" -maxdepth 1 -name '*.safetensors' | wc -l | tr -d ' ')
expect "verify" 0 verify "$vectors"
stdout_ends "$count passed, 0 failed"
isas="scalar avx2 avx512" many="1 2 3 8"
[ "${SHEAF_TEST_QUICK:-0}" = 0 ] || isas="" many=3 # ctest runs `verify` on each of them by itself
for isa in $isas; do
  if "$sheaf" verify "$vectors" --isa $isa 2>&1 | grep -q "cannot be used here"; then
    echo "skipped: verify --isa $isa (not on this machine)"
    expect "verify --isa $isa, which is not here" 1 verify "$vectors" --isa $isa
    expect "bench --isa $isa, which is not here" 1 bench small --isa $isa
  else
    expect "verify --isa $isa" 0 verify "$vectors" --isa $isa
    stdout_ends "$count passed, 0 failed"
  fi
done
for threads in $many; do
  expect "verify --threads $threads" 0 verify "$vectors" --threads $threads
  stdout_ends "$count passed, 0 failed"
done

expect "verify --json" 0 verify "$vectors" --json
valid_json
stdout_has "\"passed\": $count,"

mkdir "$scratch/empty"
expect "verify of an empty folder" 1 verify "$scratch/empty"
stderr_has "no \*\.safetensors"
expect "verify of a missing folder" 1 verify "$scratch/missing"
stderr_has "missing"
expect "verify of a file" 1 verify "$vectors/000_embedding.safetensors"

# flip_answer FILE TENSOR: changes the first value of a tensor of f32 in FILE, by a bit of its exponent.
flip_answer() {
  header=$(od -An -tu8 -N8 "$1" | tr -d ' ')
  begin=$(dd if="$1" bs=1 skip=8 count="$header" 2>/dev/null | tr -d ' ' |
    sed "s/.*\"$2\":{[^}]*\"data_offsets\":\[\([0-9]*\),.*/\1/")
  place=$((8 + header + begin + 3))
  byte=$(od -An -tu1 -j "$place" -N1 "$1" | tr -d ' ')
  # Adding 32 to the byte that holds sign and exponent, within its 8 bits, makes another number of it.
  printf "\\$(printf %03o $(((byte + 32) % 256)))" | dd of="$1" bs=1 seek="$place" conv=notrunc 2>/dev/null
}

mkdir "$scratch/flipped"
cp "$vectors"/*.safetensors "$scratch/flipped/"
chmod u+w "$scratch"/flipped/*
flip_answer "$scratch/flipped/000_embedding.safetensors" out
expect "verify finds a wrong answer" 1 verify "$scratch/flipped"
stdout_ends "$((count - 1)) passed, 1 failed"
stdout_has "^FAIL 000_embedding\.safetensors: out\[0, 0\] (element 0): expected .*, got .*, tolerance .*kernel lookup"
[ "$(grep -c '^FAIL' "$out")" -eq 1 ] || note_failure "verify finds a wrong answer: not one FAIL line"
flip_answer "$scratch/flipped/000_embedding.safetensors" dweight
flip_answer "$scratch/flipped/128_segment_sum.safetensors" ddata
expect "verify finds wrong gradients" 1 verify "$scratch/flipped"
stdout_ends "$((count - 2)) passed, 2 failed"

# bad_case NAME PATTERN SED-SCRIPT: a case whose header is changed, not in length, must fail and say why.
bad_case() {
  rm -rf "$scratch/bad"
  mkdir "$scratch/bad"
  sed "$3" "$vectors/000_embedding.safetensors" >"$scratch/bad/case.safetensors"
  expect "$1" 1 verify "$scratch/bad"
  stdout_has "^FAIL case\.safetensors: .*$2"
  stdout_ends "0 passed, 1 failed"
}

bad_case "unknown op" "unknown op 'embeddinq'" 's/"op":"embedding"/"op":"embeddinq"/'
bad_case "unknown attribute" "unexpected attribute 'padding_forwarb'" 's/"padding_forward"/"padding_forwarb"/'
bad_case "unknown value" "'padding_forward' has the unknown value 'raw'" \
  's/"padding_forward":"row"/"padding_forward":"raw"/'
bad_case "unexpected tensor" "unexpected tensor 'dweighs'" 's/"dweight"/"dweighs"/'
bad_case "contradicting extent" "'num_embeddings' is 18, but the tensors say 17" \
  's/"num_embeddings":"17"/"num_embeddings":"18"/'
bad_case "padding that is no row" "'padding_idx' is 'x', not a number" 's/"padding_idx":"0"/"padding_idx":"x"/'
bad_case "tensors with each other's names" "tensor 'indices' has dtype f32" \
  's/"dweight"/"@@@@@@@"/;s/"indices"/"dweight"/;s/"@@@@@@@"/"indices"/'
bad_case "two tensors of one name" "case.safetensors" 's/"dweight"/"indices"/'
bad_case "shape beyond the data" "case.safetensors" 's/"shape":\[130\]/"shape":[131]/'

# Files that are no reference cases at all are failures too, one each.
head -c 100 "$vectors/000_embedding.safetensors" >"$scratch/bad/case.safetensors"
: >"$scratch/bad/nothing.safetensors"
echo "no such format" >"$scratch/bad/text.safetensors"
mkdir "$scratch/bad/folder.safetensors"
cp "$vectors/001_embedding.safetensors" "$scratch/bad/"
expect "unreadable files" 1 verify "$scratch/bad"
stdout_ends "1 passed, 4 failed"

# ---- demo ------------------------------------------------------------------------------------------------------

expect "demo" 0 demo --quick --seconds 0.2
stdout_has "^lookup .* ok "
stdout_has "^unsorted max backward .* ok "
stdout_has " checked, 0 failed$"
expect "demo on a device of no kind" 2 demo --device tpu
for arguments in "demo --quick" "bench" "verify $vectors" "lookup t.npy 1" "bag t.npy 1" "segment t.npy 1"; do
  # shellcheck disable=SC2086
  expect "$arguments on a device that is not there" 1 $arguments --device cuda:999
  stderr_has "CUDA devices need the plug-in .*; without --device\|no CUDA device.*; without --device\|no cuda:999 here, but"
  stderr_is_one_line
done
expect "demo on one thread" 0 demo --quick --seconds=0.2 --threads 1
stdout_has "1 thread$"
[ -s "$err" ] && note_failure "demo: progress goes to a file"
expect "demo --json" 0 demo --quick --seconds 0.1 --json
valid_json
stdout_has '"fraction":'

# ---- bench -----------------------------------------------------------------------------------------------------

expect "bench small" 0 bench small --seconds 0.01
stdout_has "^small  *select-refused .* ns "
expect "bench --json" 0 bench small --seconds 0.2 --json
valid_json
for field in machine ceilings results suite case dtype index threads ns gbps ceiling fraction sku; do
  stdout_has "\"$field\":"
done
[ -s "$err" ] && note_failure "bench: progress goes to a file"
expect "bench dispatch" 0 bench dispatch --seconds 0.01
stdout_has "^op, result given .* 150$"
stdout_has "^Tracer .* 200$"
expect "bench dispatch --json" 0 bench dispatch --seconds 0.01 --json
valid_json
stdout_has "\"extra_ns\":"
expect "bench --list" 0 bench --list
for case in "^lookup .*V10M-uniform$" "^bag .*-D256-L80-V10M-uniform$" "^backward .*-1.05$" "^segment .*-S62500-1.05$" \
  "^pathology .*-4KiB_pages$" "^small .*select$" "^dispatch .*Tracer$" "^shard .*backward, dispatch$"; do
  stdout_has "$case"
done
expect "bench --list with filters" 0 bench --list bag F16 d128
stdout_has "bag_sum-f16-D128"
if grep -q -e "-f32-" "$out"; then note_failure "bench --list with filters: shows others"; fi
expect "bench --list --quick with filters" 0 bench --list --quick bag f32
stdout_has "^bag .*bag_sum-f32-D64-"
[ "$(wc -l <"$out")" -lt "$("$sheaf" bench --list bag f32 | wc -l)" ] || note_failure "$name: not fewer than without --quick"
expect "bench of no case of --quick" 2 bench bag D256-L80-V10M --quick --list
stderr_has "no case of --quick"
for command in "bench" "bench shard --engine self"; do
  # shellcheck disable=SC2086
  expect "$command with a page that cannot be written" 1 $command --report "$scratch/missing/page.html"
  stderr_has "page.html' cannot be written"
  stderr_is_one_line
  [ -s "$out" ] && note_failure "$name: measures first"
done
expect "bench of an unknown suite" 2 bench frobnicate
stderr_has "unknown suite 'frobnicate'"
stderr_is_one_line
expect "bench of no case" 2 bench bag frobnicate
stderr_is_one_line
expect "bench with an unknown instruction set" 2 bench small --isa sse9
stderr_has "'sse9'"

# ---- shard -----------------------------------------------------------------------------------------------------

expect "shard without a part" 2 shard
stderr_is_one_line
expect "shard --help" 0 shard --help
stdout_has "Usage: sheaf shard"
expect "shard with an unknown part" 2 shard frobnicate
stderr_has "'frobnicate'"
for part in plan verify profile; do
  expect "shard $part --help" 0 shard $part --help
  stdout_has "Usage: sheaf shard $part"
  stdout_has "Exit codes"
  expect "shard $part with an unknown option" 2 shard $part --frobnicate
  stderr_is_one_line
done
expect "shard plan" 0 shard plan --mesh 2x4 --table 1e9x128:f16 --indices 8192x50 --in W=S0,R --in idx=R,S0
stdout_has "^\* *+* .*\[S(0), R\]"
stdout_has "^chosen (\*): least time of "
expect "shard plan --json" 0 shard plan --mesh 16x64 --table 1e8x64 --indices 4096x20 --op bag_sum --json --all
valid_json
stdout_has '"chosen": true'
expect "shard plan that fits nowhere" 1 shard plan --mesh 2 --table 1e9x128 --indices 100 --memory 1e6
stderr_has "fits 1e+06 bytes a rank"
expect "shard plan of segments" 0 shard plan --mesh 8 --table 1e6x64 --op segment_max --segments 1000 --in x=S0 --in ids=S0
stdout_has "P(max)"
expect "shard plan without a mesh" 2 shard plan --table 10x10 --indices 5
expect "shard plan with a wrong mesh" 2 shard plan --mesh 2x --table 10x10 --indices 5
expect "shard plan with wrong placements" 2 shard plan --mesh 2x2 --table 10x10 --indices 5 --in W=S0
stderr_has "'W=S0'"
expect "shard plan of a mesh without ranks" 2 shard plan --mesh 0x4 --table 10x10 --indices 5
expect "shard plan of hexadecimal" 2 shard plan --mesh 0x1p --table 10x10 --indices 5
expect "shard plan of an empty table" 0 shard plan --mesh 4 --table 0x0 --indices 0
expect "shard plan of packed rows" 0 shard plan --mesh 4 --table 100x16:int8 --indices 50x4 --op bag_sum --in W=S0
expect "shard plan of packed rows' gradient" 1 shard plan --mesh 4 --table 100x16:int4 --indices 50 --op lookup_backward
expect "shard plan of a table of indices" 2 shard plan --mesh 4 --table 10x4:i32 --indices 5
printf '{"cases": [5, null, {"mesh": [2]}, {"op": "aten.embedding.default", "mesh": [0], "shapes": [[4, 4], [2]]}]}' \
  >"$scratch/hostile.json"
expect "shard verify of cases that are none" 1 shard verify "$scratch/hostile.json"
printf '[1' >"$scratch/broken.json"
expect "shard verify of half a file" 1 shard verify "$scratch/broken.json"
expect "shard plan of an unknown op" 2 shard plan --mesh 2 --table 10x10 --indices 5 --op frobnicate
expect "shard verify without a file" 2 shard verify
expect "shard verify of no file" 1 shard verify "$scratch/nothing.json"
stderr_is_one_line
cat >"$scratch/cases.json" <<'EOF'
{"cases": [
{"op": "aten.embedding.default", "mesh": [2], "shapes": [[8, 4], [6]], "in": [["R"], ["R"]], "strategies": [
  {"out": ["R"], "in": [["R"], ["R"]], "cost": [[0.0], [0.0]]},
  {"out": ["S(1)"], "in": [["S(1)"], ["R"]], "cost": [[0.0], [0.0]]},
  {"out": ["MaskP"], "in": [["S(0)"], ["MaskP"]], "cost": [[0.0], [0.0]]},
  {"out": ["S(0)"], "in": [["R"], ["S(0)"]], "cost": [[0.0], [0.0]]}]},
{"op": "aten.embedding.default", "mesh": [2], "shapes": [[8, 4], [6]], "in": [["R"], ["R"]], "strategies": [
  {"out": ["R"], "in": [["R"], ["R"]], "cost": [[0.0], [0.0]]}]},
{"op": "aten.embedding.default", "mesh": [2], "shapes": [[8, 4], [6]], "in": [["S(0)"], ["R"]], "strategies": [
  {"out": ["R"], "in": [["R"], ["R"]], "cost": [[9.0], [0.0]]}]},
{"op": "aten.frobnicate", "mesh": [2]}]}
EOF
expect "shard verify of wrong cases" 1 shard verify "$scratch/cases.json"
stdout_has "^FAIL case 1: 4 strategies, expected 1"
stdout_has "^FAIL case 2: strategy 0: cost of input 0 is 9.3"
stdout_has "^FAIL case 3: 'aten.frobnicate'"
stdout_ends "1 passed, 3 failed"
expect "shard verify --json of wrong cases" 1 shard verify --json "$scratch/cases.json"
valid_json
stdout_has '"failed": 3'
stdout_has '"failure": "4 strategies, expected 1"'
{ printf '{"cases": [{"mesh": [2], "op": "x'; printf 'é%.0s' {1..40}; printf '"}]}'; } >"$scratch/wide.json"
expect "shard verify --json of a name cut short" 1 shard verify --json "$scratch/wide.json"
valid_json
if command -v python3 >/dev/null 2>&1; then # strategies and costs of cases that no file holds
  tests=$(dirname "$0")
  if python3 "$tests/scripts/strategy_cases.py" "$tests/dtensor_strategies.json" "$scratch/invented.json" 150 >"$out"; then
    expect "shard verify of cases at random" 0 shard verify "$scratch/invented.json"
    stdout_ends "150 passed, 0 failed"
  else
    note_failure "strategy_cases.py: $(cat "$out")"
  fi
else
  echo "skipped: shard verify of cases at random (no python3 here)"
fi
expect "shard profile --json" 0 shard profile --engine self --megabytes 1 --json --save "$scratch/profile.json"
valid_json
[[ $(<"$out") == "$(<"$scratch/profile.json")" ]] || note_failure "$name: --json and --save differ"
expect "bench shard --json" 0 bench shard --engine self --rows 64 --dim 8 --indices 64 --runs 1 --json
valid_json
stdout_has '"case": "backward, dispatch"'

# ---- Output that cannot be written -----------------------------------------------------------------------------

if [ -w /dev/full ]; then
  for arguments in --help --version info "info --json" kernels "kernels --json" "verify $vectors"; do
    # shellcheck disable=SC2086
    "$sheaf" $arguments >/dev/full 2>"$err"
    code=$?
    : >"$out"
    name="$arguments into a full device"
    [ $code -eq 1 ] || note_failure "$name: exit code $code, expected 1"
    stderr_has "could not be written"
  done
else
  echo "skipped: output into a full device (no /dev/full here)"
fi

if [ $failures -eq 0 ]; then
  echo "all checks passed"
  exit 0
fi
echo "$failures checks failed"
exit 1
