/* shard/row_set.h: the rows that a rank's entries name, each once: found, counted, listed and numbered, all in the
 * order of rows.
 *
 * Rows are taken by blocks of 64. A block has a bit for each of its rows that is named, and the number of those in the
 * blocks before it: so marking a row is one access to a block, and so is finding the number of one. Blocks are few and
 * small (a quarter of a byte for each row of the table), and what is done to one does not wait for another. Where a
 * table has many more blocks than there are entries, only those are kept that hold a row, found by hashing. */
#ifndef SHF_SHARD_ROW_SET_H
#define SHF_SHARD_ROW_SET_H

#include <sheaf/base.h>

typedef struct shf_row_block {
  uint64_t named;
  int64_t before;
} shf_row_block;

typedef struct shf_row_set {
  int64_t rows;          /* of the table */
  int64_t count;         /* blocks: all of the table's, or those in use */
  shf_row_block *blocks; /* and one more behind them, for entries that name none */
  int64_t *keys;         /* hashed: the block in each slot, -1: none. NULL: block b is in slot b */
  int64_t *order;        /* hashed: the slots in use; from shf_row_set_number on in the order of their blocks */
  int bits;              /* hashed: 2^bits slots */
} shf_row_set;

/* Rows lo .. hi - 1, of which `named` are in the set. */
typedef struct shf_row_range {
  int64_t lo, hi, named;
} shf_row_range;

/* The numbers of 8 bytes that a set of so many entries takes, and an empty set in as many. */
int64_t shf_row_set_room(int64_t rows, int64_t entries);
void shf_row_set_open(shf_row_set *set, int64_t rows, int64_t entries, void *memory);

/* Adds rows; -1 is none. No more entries than it was opened for. */
void shf_row_set_add(shf_row_set *set, const int64_t *rows, int64_t count);

/* When all are there: keeps the rows of these ranges, which increase and do not meet, counts each, and numbers all.
 * Returns how many there are. */
int64_t shf_row_set_number(shf_row_set *set, shf_row_range *ranges, int64_t count);

/* The rows of lo .. hi - 1 that are named, as I32 or I64. */
void shf_row_set_list(const shf_row_set *set, int64_t lo, int64_t hi, sheaf_dtype dtype, void *rows);

/* The number of each row among all that are named; -1 for one that is not, and for -1. */
void shf_row_set_find(const shf_row_set *set, const int64_t *rows, int64_t count, int64_t *numbers);

#endif
