/* cli/bench_device_case.h: the cases of `sheaf bench --device cuda`. */
#ifndef SHEAF_CLI_BENCH_DEVICE_CASE_H
#define SHEAF_CLI_BENCH_DEVICE_CASE_H

#include <jansson.h>
#include <sheaf/sheaf.h>
#include <stdbool.h>

typedef struct device_case {
  sheaf_category category;
  int kind;
  int64_t dim, rows;    /* D; V or S */
  int64_t bags, length; /* B, L: N = B * L; segments: bags is 0 and length is N */
  double exponent;      /* of the power law of indices or segments; 0: uniform */
  sheaf_dtype dtype;    /* 0: f32 */
  bool weighted, fixed; /* fixed: bags are a matrix, not offsets */
  bool weights_only;    /* backward: only the gradient of weights */
  bool grouped;         /* the grouping is made once, outside of the time */
  bool touched;         /* rows of the table's gradient are stored, not added to */
  bool sparse;          /* the gradient is row-sparse, made by the op on tensors */
  bool quick;
  double target_us;       /* what is wanted, when > 0 ... */
  double target_fraction; /* ... or as a fraction of copy bandwidth */
} device_case;

extern const device_case device_cases[];
extern const int device_case_count;

/* "bag_sum-f32-D32-131072x64-uniform" */
void device_case_name(const device_case *c, char *name, size_t room);

static inline bool device_case_is_bag(const device_case *c)
{
  return c->category == SHEAF_CATEGORY_EMBEDDING && c->kind >= SHEAF_BAG_SUM && c->kind <= SHEAF_BAG_MAX;
}

static inline int64_t device_case_entries(const device_case *c) { return c->bags ? c->bags * c->length : c->length; }

bool device_case_is_backward(const device_case *c);

/* Bytes that have to move: rows read, rows written, indices; for a table's gradient of so many touched rows. */
double device_case_bytes(const device_case *c, int64_t touched);

/* A measured case with the keys that the other suites have; speeds in bytes per second. */
json_t *device_case_result(const device_case *c, const char *kernel, double seconds, double speed, double copy);

#endif
