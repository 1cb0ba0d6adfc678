/* shard/dispatch_bags.h: parts of bags travel to where rows are, and their sums back; their gradients go the same way.
 *
 * The other way of dispatch_rows.h: instead of fetching rows, a rank sends each owner the entries that name its rows,
 * bag by bag. It is the shorter one when bags are long or rows are wide and seldom shared. */
#ifndef SHF_SHARD_DISPATCH_BAGS_H
#define SHF_SHARD_DISPATCH_BAGS_H

#include "shard/embedding_call.h"

/* A rank's bags cut by the owners of the rows they name: a piece is the entries of one bag at one owner. */
typedef struct shf_pieces {
  int64_t *piece_at, *entry_at;   /* members + 1: those for each member */
  int32_t *owner;                 /* of each entry: the member that has its row; -1: none */
  int64_t *bag, *length;          /* of each piece */
  void *ids;                      /* of all entries, of type d->number */
  void *weights;                  /* of weight_type; NULL: none */
  sheaf_dtype weight_type;        /* none: there are none */
  struct {                        /* what members sent here, in their order */
    int64_t *piece_at, *entry_at; /* members + 1 */
    int64_t *offsets;             /* pieces + 1 */
    void *ids, *weights;
  } got;
} shf_pieces;

/* Whether pieces of bags travel rather than rows: that is less over all ranks (`d` is grouped already). Collective.
 * `back`: bytes of a piece's vector; `row`: of a row; `weights`: bytes of the weight that goes with an entry. `p`
 * begins here. */
int shf_pieces_are_less(shf_embedding_call *e, const shf_dispatch *d, int64_t back, int64_t row, int64_t weights,
                        shf_pieces *p);

/* Cuts this rank's bags and sends the pieces to the owners. `weights` (the CPU's) go with the entries, unless their
 * type is none. Collective. */
void shf_pieces_send(shf_embedding_call *e, const shf_dispatch *d, const void *weights, sheaf_dtype weight_type,
                     shf_pieces *p);

/* The bags this rank was sent, as what the local op works on. */
sheaf_status shf_pieces_bags(shf_embedding_call *e, const shf_dispatch *d, const shf_pieces *p, shf_bags *bags);

/* Sums over this rank's bags, [bags, columns] in acc: each owner sums what it has, and its sums are added in the order
 * of ranks. Collective. */
void shf_pieces_sum(shf_embedding_call *e, const shf_dispatch *d, shf_pieces *p, const sheaf_dtensor *table,
                    void *total);

/* One row of `row_bytes` for each piece, from those of this rank's bags, to the owners. Collective. */
void shf_pieces_bring(shf_embedding_call *e, const shf_dispatch *d, const shf_pieces *p, const void *rows,
                      int64_t row_bytes, void **got);

#endif
