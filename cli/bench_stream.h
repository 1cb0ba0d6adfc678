/* cli/bench_stream.h: plain code that moves memory as fast as the machine can: the yardstick of `demo` and `bench`. */
#ifndef SHEAF_CLI_BENCH_STREAM_H
#define SHEAF_CLI_BENCH_STREAM_H

#include <stdint.h>

typedef enum stream_kind {
  STREAM_READ,   /* reads memory from end to end */
  STREAM_COPY,   /* copies it; bytes read and bytes written both count */
  STREAM_FILL,   /* writes it */
  STREAM_GATHER, /* reads rows at the places an index array names; the indices count */
  STREAM_UPDATE, /* reads and writes such rows, which keep their content; both count, and the indices */
  STREAM_KINDS
} stream_kind;

typedef struct stream_job {
  stream_kind kind;
  int threads;
  char *memory;           /* what is read, filled, or holds the rows */
  char *target;           /* where a copy goes */
  int64_t bytes;          /* READ, COPY, FILL */
  int64_t row_bytes;      /* GATHER, UPDATE */
  int64_t stride;         /* from row to row, in bytes */
  const int64_t *indices; /* UPDATE: no row twice, where threads are several */
  int64_t count;
} stream_job;

/* "read", "copy", "fill", "gather", "update". */
const char *stream_kind_name(stream_kind kind);

/* The ways there are to do a job, which differ in prefetch, stores or number of streams. Which is best depends on the
 * machine, the row size and the page size: a low ceiling would flatter, so all have to be tried. */
int stream_variants(stream_kind kind);
enum { STREAM_MOST_VARIANTS = 48 }; /* of any kind */
const char *stream_variant_name(stream_kind kind, int variant);

/* Does the job once in one of these ways; returns the bytes that count. */
int64_t stream_run(const stream_job *job, int variant);

#endif
