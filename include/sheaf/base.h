/* sheaf/base.h: version, status codes and errors, element types, memory, threads, CPU features.
 *
 * Conventions of the whole API:
 *   - A function that can fail returns `sheaf_status`. On failure a sentence that names the values at fault is kept for
 *     the calling thread (`sheaf_last_error`), with the numbers in machine-readable form (`sheaf_last_error_info`).
 *   - All extents, positions and byte counts are 64-bit.
 *   - A struct that may grow starts with `struct_size`; initialise it with its SHEAF_..._INIT macro. Zero in every
 *     other field is a sensible default unless the field's comment says otherwise.
 *   - Every function may be called from any thread. Setters of global state say so.
 */
#ifndef SHEAF_BASE_H
#define SHEAF_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Initialises a struct that starts with struct_size: everything else is zero. */
#ifdef __cplusplus
#define SHEAF_INIT(type) {sizeof(type)}
#else
#define SHEAF_INIT(type) {.struct_size = sizeof(type)}
#endif

/* ---- Version ------------------------------------------------------------------------------------------------- */

#define SHEAF_VERSION_MAJOR 0
#define SHEAF_VERSION_MINOR 1
#define SHEAF_VERSION_PATCH 0
#define SHEAF_VERSION_STRING "0.1.0"

#if defined(__GNUC__) && !defined(SHEAF_API)
#define SHEAF_API __attribute__((visibility("default")))
#elif !defined(SHEAF_API)
#define SHEAF_API
#endif

/* The version of the library that is loaded, as "major.minor.patch". Compare with SHEAF_VERSION_STRING to find a
 * header that does not belong to it. */
SHEAF_API const char *sheaf_version(void);

/* ---- Status and errors --------------------------------------------------------------------------------------- */

/* X(name, value, text). The values are part of the ABI and never change. */
#define SHEAF_STATUS_LIST(X)                                                      \
  X(OK, 0, "success")                                                             \
  X(MISALIGNED, 1, "data is not aligned to its element size")                     \
  X(INVALID_PROBLEM, 2, "the call contradicts itself or its operands")            \
  X(UNSUPPORTED, 3, "no kernel computes this")                                    \
  X(WORKSPACE_TOO_SMALL, 4, "the workspace is smaller than the plan needs")       \
  X(DEVICE, 5, "a device call failed")                                            \
  X(BUFFER_TOO_SMALL, 6, "an operand's memory is shorter than its shape")         \
  X(INDEX_OUT_OF_RANGE, 7, "an index or segment id is outside its range")         \
  X(UNAVAILABLE, 8, "a plug-in, driver or feature is not on this machine")        \
  X(OUT_OF_MEMORY, 9, "memory could not be allocated")                            \
  X(IO, 10, "a file could not be read or written")                                \
  X(COMM, 11, "communication between ranks failed")                               \
  X(INTERNAL, 12, "a defect in Sheaf; please report it")

typedef enum sheaf_status {
#define SHEAF_X(name, value, text) SHEAF_##name = value,
  SHEAF_STATUS_LIST(SHEAF_X)
#undef SHEAF_X
} sheaf_status;

/* The status's name without its prefix ("INVALID_PROBLEM"), and its general meaning. Never NULL. */
SHEAF_API const char *sheaf_status_name(sheaf_status status);
SHEAF_API const char *sheaf_status_text(sheaf_status status);

/* What the last failing call on this thread found, in numbers. Fields that do not apply are 0 (operand: NULL;
 * position: -1). */
typedef struct sheaf_error_info {
  sheaf_status status;
  int64_t needed;      /* bytes: BUFFER_TOO_SMALL, WORKSPACE_TOO_SMALL */
  int64_t got;         /* bytes that were there instead */
  const char *operand; /* name of the operand at fault, as spelled in the args struct */
  int64_t position;    /* where: entry of an index, id or offset operand; -1 when there is none */
  int64_t value;       /* the offending index, id or offset */
  int64_t count;       /* how many entries are at fault */
} sheaf_error_info;

/* The sentence of the last failure on this thread; "" before any. Valid until the next failing call on the thread.
 * A call that succeeds leaves it as it was. */
SHEAF_API const char *sheaf_last_error(void);
SHEAF_API sheaf_error_info sheaf_last_error_info(void);

/* ---- Element types ------------------------------------------------------------------------------------------- */

/* X(NAME, value, "name", bytes of an element; 0: packed rows) */
#define SHEAF_DTYPE_LIST(X) \
  X(F32, 1, "f32", 4)       \
  X(F64, 2, "f64", 8)       \
  X(F16, 3, "f16", 2)       \
  X(BF16, 4, "bf16", 2)     \
  X(I32, 5, "i32", 4)       \
  X(I64, 6, "i64", 8)       \
  X(U8, 7, "u8", 1)         \
  X(INT8, 8, "int8", 0)     \
  X(INT4, 9, "int4", 0)

/* INT8 and INT4 are quantised rows, held in u8 tensors of [rows, bytes of a packed row]:
 *   INT8: D bytes q, then f32 scale, f32 bias;
 *   INT4: ceil(D / 2) bytes (low nibble first), then f16 scale, f16 bias.
 * An element reads as fma(q, scale, bias) in f32. */
typedef enum sheaf_dtype {
  SHEAF_DTYPE_NONE = 0,
#define SHEAF_X(name, value, text, bytes) SHEAF_##name = value,
  SHEAF_DTYPE_LIST(SHEAF_X)
#undef SHEAF_X
} sheaf_dtype;

/* "f32" ...; "none" for anything else. */
SHEAF_API const char *sheaf_dtype_name(sheaf_dtype dtype);

/* Bytes of one row of `dim` elements; for INT8 and INT4 the packed row with its scale and bias. -1 when dtype or dim is
 * not valid or the product overflows. */
SHEAF_API int64_t sheaf_dtype_row_bytes(sheaf_dtype dtype, int64_t dim);

/* Conversions used by every kernel: exact to f32, to nearest (ties to even) from it, denormals kept, any NaN stays
 * one. */
SHEAF_API float sheaf_f16_to_f32(uint16_t bits);
SHEAF_API uint16_t sheaf_f32_to_f16(float value);
SHEAF_API float sheaf_bf16_to_f32(uint16_t bits);
SHEAF_API uint16_t sheaf_f32_to_bf16(float value);

/* ---- Memory -------------------------------------------------------------------------------------------------- */

/* Where Sheaf's own allocations come from. `allocate` returns memory aligned to `alignment` (a power of two) or NULL;
 * `release` gets what `allocate` gave. `context` is handed through. */
typedef struct sheaf_allocator {
  void *(*allocate)(void *context, size_t bytes, size_t alignment);
  void (*release)(void *context, void *memory, size_t bytes);
  void *context;
} sheaf_allocator;

/* Sets the allocator of the whole process; NULL restores the default (aligned_alloc and free). Call it before anything
 * is allocated, or while nothing of Sheaf's is alive: memory returns to the allocator that is set at that time. */
SHEAF_API sheaf_status sheaf_set_allocator(const sheaf_allocator *allocator);

/* Memory for a large table: aligned to 2 MiB, huge pages advised, zero on first read. `*memory` is NULL for 0 bytes.
 * Free it with the same byte count. Any memory will do for a table; huge pages make rows at random places cheaper to
 * reach. */
SHEAF_API sheaf_status sheaf_table_alloc(size_t bytes, void **memory);
SHEAF_API void sheaf_table_free(void *memory, size_t bytes);

/* ---- Threads and CPU features -------------------------------------------------------------------------------- */

/* The most threads any call may use; 0 restores the default: OpenMP's maximum, or, when ranks of a communicator are on
 * one machine and OMP_NUM_THREADS is not set, a rank's share of its cores. Affects the whole process. A plan's own
 * `threads` preference overrides it. Results never depend on it.
 *
 * Threads are OpenMP's, made at the first large call; OpenMP ends the process when the system refuses to make them.
 * A child process (fork) inherits the runtime's memory but not its threads, and using them again could wait for
 * ever, so a child works with one thread until it calls sheaf_set_threads with a number, which it may do when its
 * parent had not yet used OpenMP, in Sheaf or elsewhere. */
SHEAF_API sheaf_status sheaf_set_threads(int threads);
SHEAF_API int sheaf_threads(void);

/* Instruction sets with kernels of their own, weakest first. */
typedef enum sheaf_isa { SHEAF_ISA_SCALAR = 0, SHEAF_ISA_AVX2 = 1, SHEAF_ISA_AVX512 = 2 } sheaf_isa;

/* "scalar", "avx2", "avx512". */
SHEAF_API const char *sheaf_isa_name(sheaf_isa isa);

/* The best set this CPU and this build have: AVX2 means AVX2, FMA and F16C; AVX512 means F, BW, DQ, VL on top. */
SHEAF_API sheaf_isa sheaf_isa_best(void);

/* The set that `select` takes by default: the best one, or the environment's SHEAF_ISA=scalar|avx2|avx512 read at
 * first use (a name that is unknown or not to be had is passed over), or what `sheaf_set_isa` said last. Asking for
 * a set that is not there is UNAVAILABLE. Affects the whole process; plans made before keep theirs. */
SHEAF_API sheaf_isa sheaf_isa_current(void);
SHEAF_API sheaf_status sheaf_set_isa(sheaf_isa isa);

/* The CPU's own name for itself, "" when unknown. */
SHEAF_API const char *sheaf_cpu_name(void);

#ifdef __cplusplus
}
#endif
#endif
