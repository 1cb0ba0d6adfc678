/* cli/commands.c: the table of commands and options: the one place that says what each is called and does. Help, typo
 * suggestions, the manual page and completions are printed from it; cli_parse holds commands to it. */
#include <string.h>

#include "cli_impl.h"

#define WITH(list) list, CLI_LENGTH(list)

/* ---- Options that mean the same everywhere ------------------------------------------------------------------- */

#define OUTPUT(help)               \
  {                                \
    "--output", "-o", "FILE", help \
  }
#define RESULT OUTPUT("where the result goes, .npy or .safetensors; '-' is npy on stdout; default: printed")
#define QUIET                                            \
  {                                                      \
    "--quiet", "-q", NULL, "no progress on the terminal" \
  }
#define JSON                                                \
  {                                                         \
    "--json", NULL, NULL, "one JSON object instead of text" \
  }
#define THREADS                                                                            \
  {                                                                                        \
    "--threads", NULL, "N", "the most threads to use; default: as many as there are cores" \
  }
#define DEVICE                                                \
  {                                                           \
    "--device", NULL, "NAME", "cpu (default), cuda or cuda:N" \
  }
#define ISA(help)                             \
  {                                           \
    "--isa", NULL, "scalar|avx2|avx512", help \
  }
#define ENGINE                                        \
  {                                                   \
    "--engine", NULL, "NAME", "mpi (default) or self" \
  }
#define GRAD(of, whose)                                                                                    \
  {                                                                                                        \
    "--grad", NULL, "FILE", "backward: the result's gradient " of "; the output is the " whose " gradient" \
  }
#define BAD_INDEX(what, range)                                                                               \
  {                                                                                                          \
    "--bad-index", NULL, "skip|error", what " outside " range " are refused (error, the default) or skipped" \
  }
#define PACKED                                                                                                      \
  {"--as", NULL, "int8|int4", "TABLE holds packed rows of this type; files of 'sheaf quantize' say so themselves"}, \
  {                                                                                                                 \
    "--dim", NULL, "N", "columns of packed rows, where their number is odd"                                         \
  }

/* What every command on files has, what those have that read packed rows too, and what those have that run ops. */
#define WORK THREADS, QUIET, JSON
#define ON_ROWS PACKED, WORK
#define EMBED(padding_help) \
  {"--padding", NULL, "ROW", padding_help}, BAD_INDEX("indices", "the table"), PACKED, DEVICE, WORK

/* What every command has that gives results of measurements. */
#define RESULTS                                                                                                   \
  {"--json", NULL, NULL, "one object {machine, ceilings, results} instead of a table"},                           \
      {"--report", NULL, "FILE", "also write one HTML page with charts, which needs no network to be looked at"}, \
  {                                                                                                               \
    "--compare", NULL, "FILE", "show ratios to an earlier result of --json; in the page too"                      \
  }

/* ---- Files --------------------------------------------------------------------------------------------------- */

#define TABLE_TEXT                                                                                               \
  "\n\nTABLE is an .npy or .safetensors file, or '-' for npy on stdin; of several tensors one is named as in "   \
  "model.safetensors:wte.weight (also through model.safetensors.index.json). Files are mapped in windows of at " \
  "most 256 MiB, so a table may be larger than memory."

static const cli_described show_options[] = {{"--rows", NULL, "N", "rows to print from the beginning; default 3"},
                                             {"--blocks", NULL, "N", "blocks of columns to sum up; default 4"},
                                             ON_ROWS};

static const cli_described nearest_options[] = {
    {"--row", NULL, "ROW", "the row to start from: its number, or its name in --names"},
    {"--query", NULL, "FILE", "a vector to start from instead, of as many columns"},
    {"--count", "-k", "N", "how many rows to find; default 10"},
    {"--metric", NULL, "cosine|dot|l2", "what is near; default cosine. l2 is the squared distance, least first"},
    {"--names", NULL, "FILE", "names of rows: a line each; or a JSON vocabulary, such as vocab.json or tokenizer.json"},
    ON_ROWS};

static const cli_described quantize_options[] = {
    {"--to", NULL, "int8|int4", "the type of the packed rows; default int8"},
    OUTPUT("where the packed rows go, .npy or .safetensors; '-' is npy on stdout; default: only the report"),
    WORK};

static const cli_described dequantize_options[] = {
    {"--to", NULL, "f32|f64|f16|bf16", "the type of the result; default f32"},
    OUTPUT("where the rows go, .npy or .safetensors; '-' is npy on stdout. Must be given"),
    ON_ROWS};

static const cli_described convert_options[] = {
    {"--to", NULL, "f32|f64|f16|bf16|i32|i64", "the type of the result; default: as it is"},
    OUTPUT("where the tensor goes, .npy or .safetensors; '-' is npy on stdout. Must be given"),
    WORK};

static const cli_described lookup_options[] = {RESULT, GRAD("[N, D]", "table's [V, D]"),
                                               EMBED("an index that gives zeros, and gets no gradient")};

static const cli_described bag_options[] = {
    RESULT,
    {"--mode", NULL, "sum|mean|max", "what is done with the rows of a bag; default mean"},
    {"--offsets", NULL, "FILE", "where each bag begins in INDICES; default: INDICES is a matrix, a bag in each row"},
    {"--weights", NULL, "FILE", "a weight for every index (sum and mean)"},
    GRAD("[B, D]", "table's [V, D]"),
    EMBED("an index that is left out")};

static const cli_described segment_options[] = {
    RESULT,
    {"--mode", NULL, "sum|mean|max|min|prod", "what is done with the rows of a segment; default sum"},
    {"--segments", NULL, "N", "how many there are; default: the largest id and one"},
    GRAD("[S, D]", "data's [N, D]"),
    {"--empty", NULL, "neutral|identity",
     "what a segment without rows gives: 0, or for prod 1 (default); or the mode's own"},
    {"--ties", NULL, "first|split", "backward of max and min: who gets the gradient of equal rows; default first"},
    BAD_INDEX("ids", "the segments"),
    DEVICE,
    WORK};

/* ---- Machine ------------------------------------------------------------------------------------------------- */

static const cli_described info_options[] = {JSON};
static const cli_described kernels_options[] = {{"--json", NULL, NULL, "an array of objects instead of a table"}};

static const cli_described verify_options[] = {
    ISA("default: the best one here"),
    {"--threads", NULL, "N", "the most threads a run may use; above 1, small cases are split among them too"},
    DEVICE,
    {"--verbose", NULL, NULL, "name the cases that pass as well"},
    JSON};

static const cli_described demo_options[] = {
    DEVICE,
    {"--threads", NULL, "N", "threads of every run and of the measurement; default: the library's"},
    {"--seconds", NULL, "S", "how long to measure, about; default 12, with --quick 2"},
    {"--quick", NULL, NULL, "a small table"},
    JSON};

static const cli_described bench_options[] = {
    {"--threads", NULL, "N", "threads of cases and ceilings; default: one, then as many as the library takes"},
    ISA("default: the best one here. Ceilings always take the best"),
    {"--seconds", NULL, "S", "how long to measure each case, about; default 1, with --quick 0.2"},
    {"--quick", NULL, NULL, "the most telling cases only, in under a minute; with a FILTER, those of them"},
    {"--grid", NULL, NULL, "every width, length, spread, dtype and mode of bags (2100 cases)"},
    RESULTS,
    {"--from", NULL, "FILE", "take the results of an earlier --json instead of measuring, for --report and --compare"},
    {"--list", NULL, NULL, "name the cases and run none"},
    {"--device", NULL, "NAME",
     "cuda or cuda:N: cases of its own on that device, beside its copy bandwidth; all words are filters"}};

static const cli_described bench_shard_options[] = {
    ENGINE,
    {"--rows", NULL, "N", "rows of the table; default 131072"},
    {"--dim", NULL, "N", "columns; default 64"},
    {"--indices", NULL, "N", "indices of a batch, in bags of 16; default 131072"},
    {"--runs", NULL, "N", "runs of each, of which the median counts; default 11"},
    {"--threads", NULL, "N", "of each rank; default: OMP_NUM_THREADS, else its share of the machine's"},
    RESULTS};

static const cli_described shard_plan_options[] = {
    {"--mesh", NULL, "SIZES", "ranks along each mesh dimension, as 2x4"},
    {"--table", NULL, "SHAPE",
     "rows and columns, as 1e9x128, with :f32 (default) :f64 :f16 :bf16 :int8 or :int4; of segment ops, the data"},
    {"--indices", NULL, "SHAPE",
     "shape of the indices, as 8192x50, with :i64 (default) or :i32; of bags [bags, length], or "
     "their number"},
    {"--op", NULL, "NAME", "lookup (default), lookup_backward, bag_sum ... segment_max_backward"},
    {"--bags", NULL, "N", "bags given by offsets, with one number for --indices"},
    {"--segments", NULL, "N", "segments, for segment ops"},
    {"--in", NULL, "NAME=PLACES",
     "where an input lies now, as W=S0,R, one placement per mesh dimension; default: R everywhere. "
     "Names: W (the table), x (data), g (the output's gradient), idx (indices, ids), offsets, arg"},
    {"--out", NULL, "PLACES", "where the output shall lie; default: wherever it comes out, completed"},
    {"--memory", NULL, "BYTES", "what a rank may use, such as 80e9"},
    {"--profile", NULL, "FILE", "a measured profile (sheaf shard profile); default: assumed figures"},
    {"--all", NULL, NULL, "every candidate, not only the best 20"},
    JSON};

static const cli_described shard_verify_options[] = {JSON};

static const cli_described shard_profile_options[] = {
    {"--save", NULL, "FILE", "where to store the profile (rank 0 writes it)"},
    ENGINE,
    {"--megabytes", NULL, "N", "size of the large tensors, of each rank; default 32"},
    JSON};

static const cli_described trace_view_options[] = {
    {"--report", NULL, "FILE", "write one HTML page with the timeline and the table"}, JSON};

/* ---- The table ----------------------------------------------------------------------------------------------- */

const cli_command cli_commands[] = {
    {"show", "TABLE", "what is in a file: tensors, statistics, first rows",
     "Of a file with several tensors, lists them. Of one tensor: shape and type, least, greatest, mean and deviation "
     "of "
     "each block of columns, a histogram of the rows' norms, how many rows hold NaN or infinity or are zero, and the "
     "first "
     "rows." TABLE_TEXT,
     WITH(show_options), cmd_show},
    {"nearest", "TABLE", "the rows nearest to a row",
     "Compares one row with all others, exactly, and prints the nearest in order; equal scores by the lower row, NaN "
     "last, "
     "the row itself left out." TABLE_TEXT,
     WITH(nearest_options), cmd_nearest},
    {"lookup", "TABLE INDICES", "rows of a table by their numbers",
     "Writes or prints the rows that INDICES name (a file of i32 or i64, '-', or numbers as in 3,1,42). With --grad, "
     "the "
     "table's gradient." TABLE_TEXT,
     WITH(lookup_options), cmd_lookup},
    {"bag", "TABLE INDICES", "sums, means or maxima of bags of rows",
     "Reduces bags of rows, each to one row. With --grad, the table's gradient." TABLE_TEXT, WITH(bag_options),
     cmd_bag},
    {"segment", "DATA IDS", "sums, means, extremes or products of rows with the same id",
     "Reduces the rows of DATA that have the same id in IDS (i32 or i64, in any order, one for each row). With --grad, "
     "the "
     "data's gradient. DATA is a table as elsewhere: .npy, .safetensors or '-'; what does not fit memory is read in "
     "windows.",
     WITH(segment_options), cmd_segment},
    {"quantize", "TABLE", "pack rows as int8 or int4, and say what it costs",
     "Packs the rows of a table and reports the size and the error: that of reading the rows back." TABLE_TEXT,
     WITH(quantize_options), cmd_quantize},
    {"dequantize", "TABLE", "unpack int8 or int4 rows", "Writes packed rows as numbers again." TABLE_TEXT,
     WITH(dequantize_options), cmd_dequantize},
    {"convert", "TABLE", "another type or file format for a tensor",
     "Copies a tensor of any shape, rounding to nearest where the new type has fewer digits, and reports how many "
     "numbers "
     "changed." TABLE_TEXT,
     WITH(convert_options), cmd_convert},
    {"info", "", "what this machine and this build offer",
     "Says what this machine and this build offer: version, CPU and instruction sets, threads, memory pages, "
     "plug-ins.\n\n"
     "Environment: SHEAF_ISA (scalar, avx2 or avx512) sets the instruction set in use; SHEAF_PLUGIN_PATH holds more "
     "folders to look for plug-ins in, separated by colons.",
     WITH(info_options), cmd_info},
    {"kernels", "[FILTER]", "every kernel, whether it runs here, and what it guarantees",
     "Lists every kernel of this build: its name, whether this machine can run it, and what it guarantees. With "
     "FILTER, "
     "only kernels whose name contains it, such as 'bag_sum.f16' or 'avx512'.",
     WITH(kernels_options), cmd_kernels},
    {"verify", "DIR", "replay reference cases against the library",
     "Replays every *.safetensors reference case in DIR, forward and backward, and compares each result with the "
     "answer in "
     "the file. Prints each case that fails with its first differing element, and last how many passed and failed.",
     WITH(verify_options), cmd_verify},
    {"demo", "", "run the main operations, check them, and show their speed",
     "Makes a table and index batches, measures this machine's memory bandwidth, then runs lookups, bags and segment "
     "reductions, forward and backward. Each result is checked by plain code in double precision; each time is shown "
     "as "
     "GB/s of bytes that had to move and as a fraction of the measured bandwidth that fits: 'gather' (rows at random "
     "places), 'read' (sequential) or 'copy'. Needs about 1 GB of memory, less with --quick.",
     WITH(demo_options), cmd_demo},
    {"bench", "[SUITE] [FILTER ...]", "speed as a fraction of what this machine's memory can give",
     "Measures this machine's memory (reading, copying, rows gathered from and updated at random places, each in many "
     "ways "
     "of which the best counts), then runs cases, each in turn with the ceiling that fits it, on cold rows. Shows the "
     "median time with its spread, GB/s of bytes that had to move, and that as a fraction of the ceiling.\n\n"
     "SUITE is lookup, bag, backward, segment, small, pathology, dispatch (what ops and layers add to a small call), "
     "shard (ops over ranks; with a --help of its own, for mpirun), or all, the default, in which shard is one rank "
     "alone. Only cases whose name holds every FILTER are run: 'sheaf bench bag f16 D128'. The column 'quiet' is the "
     "fraction with both sides at their 90th percentile, which a busy machine disturbs least; runs that the kernel "
     "interrupts are repeated. 'target' is the fraction that is aimed at (of suite small: the time in ns), with a '!' "
     "where it is missed by more than 3 %. Lines fit the terminal: spreads, kernels and ceilings are shown in wide "
     "ones, in pipes and in --json. Needs up to 11 GB of memory; cases that want more than there is are passed over.",
     WITH(bench_options), cmd_bench},
    {"bench shard", "[FILTER ...]", "ops over ranks, beside the engine's own collectives",
     "Under mpirun. Runs lookups, bags and gradients by each strategy on a mesh of one dimension, f32 rows; with "
     "FILTER "
     "only those whose name holds every one. For each: the time of a call, bytes rank 0 sent, the part of the time "
     "that "
     "is a rank's own work (local: the same call with its sums left to be made; where rows are dispatched, one rank's "
     "share of the op by itself), the part in which the call was in the engine, waiting for other ranks too (inside), "
     "what Sheaf adds to these (rest), the cheapest loop that finds a rank's distinct indices (floor), the engine's "
     "own "
     "collective on as many bytes (engine), what is not local over that (ratio: 1 is the engine's own speed), and the "
     "whole time over local and engine together (of both).",
     WITH(bench_shard_options), NULL},
    {"shard", "PART", "plan, check and measure work that is spread over ranks",
     "Work that is spread over ranks. PART is plan, verify or profile; each has a --help of its own.", NULL, 0,
     cmd_shard},
    {"shard plan", "", "the ways to compute an op on a mesh, and the choice",
     "Lists the ways to compute an op on a mesh of ranks, best first: estimated time, bytes received and memory used "
     "by "
     "the busiest rank, and where output and inputs lie. Those that would move the table come last. No rank is needed, "
     "and "
     "no memory. --mesh and --table must be given.\n\n"
     "Placements: R replicated, S0 or S(0) cut along dimension 0, P(sum) terms of a sum, MaskP rows with zeros "
     "elsewhere, "
     "B the entries of the rank's bags. Candidates with '+' are Sheaf's own; 'dispatch' means that indices travel to "
     "the "
     "ranks that hold their rows, and the rows, or sums of them, travel back.",
     WITH(shard_plan_options), NULL},
    {"shard verify", "FILE", "compare strategies and compatible costs with a file of reference cases",
     "Enumerates the strategies of every case in FILE, without Sheaf's additions, and compares their number, order, "
     "placements and compatible costs with those in the file. Prints each case that differs with its first difference, "
     "and "
     "last how many passed and failed.",
     WITH(shard_verify_options), NULL},
    {"shard profile", "", "measure what moving costs between ranks, for the plan",
     "Under mpirun. Measures what a message between ranks costs and how fast a rank can receive, by redistributing "
     "tensors "
     "among all ranks, and how fast a rank's memory is while all others use theirs. Prints the figures and, with "
     "--save, "
     "stores them for 'sheaf shard plan --profile FILE'.",
     WITH(shard_profile_options), NULL},
    {"trace", "PART", "look at what the profiler recorded", "PART is view, which has a --help of its own.", NULL, 0,
     cmd_trace},
    {"trace view", "FILE", "a profile's timeline and a table of its ops",
     "Reads a Chrome trace, such as sheaf_profile_chrome writes, and prints for each op how often it was called, how "
     "long "
     "it took and how fast it moved its bytes. With --report, also draws the timeline.",
     WITH(trace_view_options), NULL},
    {"completion", "bash|zsh|fish", "print a shell's completion of this command",
     "Prints a script for the shell. 'cmake --install' puts all three where shells look for them, and the manual page "
     "beside them.",
     NULL, 0, cmd_completion},
};

const int cli_command_count = CLI_LENGTH(cli_commands);

const cli_command *cli_find_command(const char *name)
{
  for (int i = 0; i < cli_command_count; i++)
    if (strcmp(cli_commands[i].name, name) == 0) return &cli_commands[i];
  return NULL;
}
