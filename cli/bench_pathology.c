/* cli/bench_pathology.c: the shapes on which such libraries fall behind, each against the ceiling of its own. */
#include "bench.h"

enum { K = 1000, M = 1000000 };

#define EMBEDDING(KIND, stream) .suite = "pathology", .kind = SHEAF_##KIND, .ceiling = STREAM_##stream
#define SEGMENT(KIND, stream) EMBEDDING(KIND, stream), .category = SHEAF_CATEGORY_SEGMENT

static const bench_case cases[] = {
  /* What the others are to be compared with. */
  {EMBEDDING(BAG_SUM, GATHER), .dim = 128, .length = 20, .rows = M, .note = "reference", .quick = true},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 128, .length = 100 * K, .entries = 100 * K, .rows = M, .note = "one_bag",
   .quick = true},
  {EMBEDDING(BAG_MEAN, GATHER), .dim = 128, .length = M, .entries = M, .rows = M, .note = "one_bag"},
  {EMBEDDING(BAG_MAX, GATHER), .dim = 128, .length = 100 * K, .entries = 100 * K, .rows = M, .note = "one_bag"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 128, .length = 20, .rows = M, .spread = BENCH_ONE_ROW, .reference_rows = M,
   .note = "same_row", .quick = true},
  {EMBEDDING(LOOKUP_BACKWARD, READ), .dim = 32, .entries = 10 * M, .rows = M, .spread = BENCH_ONE_ROW,
   .note = "same_row"},
  {EMBEDDING(BAG_SUM_BACKWARD, READ), .dim = 32, .length = 20, .entries = 10 * M, .rows = M, .spread = BENCH_ONE_ROW,
   .note = "same_row"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 64, .length = 1, .entries = M, .rows = M, .note = "million_bags_of_one",
   .quick = true},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 128, .length = 4096, .entries = 25 * 4096, .rows = M,
   .lengths = BENCH_ALTERNATING, .note = "alternating", .quick = true},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 128, .length = 20, .rows = 2, .reference_rows = M, .note = "two_rows"},
  {EMBEDDING(LOOKUP_BACKWARD, READ), .dim = 128, .entries = M, .rows = 2, .note = "two_rows"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 32, .length = 20, .rows = 50 * M, .note = "50M_rows"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 1, .length = 20, .rows = 50 * M, .note = "narrow"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 3, .length = 20, .rows = 20 * M, .note = "narrow"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 5, .length = 20, .rows = 20 * M, .note = "narrow"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 1024, .length = 20, .rows = 250 * K, .note = "wide"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 4096, .length = 20, .rows = 60 * K, .note = "wide"},
  {SEGMENT(UNSORTED_SEGMENT_SUM, READ), .dim = 1, .entries = 400 * K, .segments = 1, .note = "few_segments"},
  {SEGMENT(UNSORTED_SEGMENT_SUM, READ), .dim = 1, .entries = 400 * K, .segments = 2, .note = "few_segments"},
  {SEGMENT(UNSORTED_SEGMENT_SUM, READ), .dim = 1, .entries = 400 * K, .segments = 6, .note = "few_segments"},
  {SEGMENT(UNSORTED_SEGMENT_SUM, READ), .dim = 1, .entries = 400 * K, .segments = 12, .note = "few_segments"},
  {SEGMENT(UNSORTED_SEGMENT_SUM, READ), .dim = 1, .entries = 400 * K, .segments = 24, .note = "few_segments"},
  {SEGMENT(SEGMENT_SUM, READ), .dim = 1, .entries = 400 * K, .segments = 24, .note = "few_segments"},
  {SEGMENT(SEGMENT_SUM, READ), .dtype = SHEAF_F16, .index = SHEAF_I32, .dim = 1, .entries = 100 * M, .segments = M,
   .note = "narrow"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 128, .row_pad = 4, .length = 20, .rows = M, .note = "stride_528_bytes"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 64, .row_pad = 1, .length = 20, .rows = M, .note = "stride_260_bytes"},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 128, .length = 20, .rows = M, .small_pages = true, .note = "4KiB_pages",
   .quick = true},
  {EMBEDDING(BAG_SUM, GATHER), .dim = 128, .length = 20, .rows = 8 * M, .small_pages = true, .note = "4KiB_pages"},
  {EMBEDDING(LOOKUP, GATHER), .dim = 128, .entries = 131072, .rows = M, .small_pages = true, .note = "4KiB_pages"},
  {EMBEDDING(BAG_SUM_BACKWARD, GATHER), .dim = 128, .length = 20, .entries = 40960, .rows = M, .small_pages = true,
   .note = "4KiB_pages"},
};

void bench_list_pathologies(bench_cases *list)
{
  for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) bench_add_case(list, cases[i]);
}
