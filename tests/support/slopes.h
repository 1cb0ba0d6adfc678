/* slopes.h: gradients against finite differences. */
#ifndef SHEAF_TESTS_SLOPES_H
#define SHEAF_TESTS_SLOPES_H

#include "tensors.h"

enum { MOST_LEAVES = 3 };

/* A computation over leaves. */
typedef struct computation {
  const char *name;
  sheaf_tensor *leaf[MOST_LEAVES];
  sheaf_tensor *indices, *offsets;
  int choice; /* mode, reduction ... */
  int flags;
  sheaf_status (*run)(const struct computation *c, sheaf_tensor **out);
} computation;

/* The gradient that a leaf has, made dense; NULL when it has none. */
sheaf_tensor *dense_grad(sheaf_tensor *leaf);

/* Backward against slopes, for every leaf; the numbers are f64. */
void check_gradients(computation *c);

#endif
