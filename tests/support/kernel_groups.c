/* kernel_groups.c: the kernels of the build by op, element and index type, and problems for them. */
#include "kernel_groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Kernels by group -------------------------------------------------------------------------------------------- */

static kernel_group *group_of(kernel_group *groups, int64_t *count, const sheaf_sku *sku)
{
  for (int64_t i = 0; i < *count; i++) {
    if (groups[i].category == sku->category && groups[i].kind == sku->kind && groups[i].element == sku->element &&
        groups[i].index_element == sku->index_element) {
      return &groups[i];
    }
  }
  kernel_group *group = &groups[*count];
  *group = (kernel_group){.category = sku->category, .kind = sku->kind, .element = sku->element};
  group->index_element = sku->index_element;
  group->number = (*count)++;
  const char *slash = strchr(sku->name, '/');
  snprintf(group->name, sizeof group->name, "%.*s", slash != NULL ? (int)(slash - sku->name) : 63, sku->name);
  return group;
}

/* Whether a name holds one of the words of a list with commas; an empty list is that of all names. */
static int holds_one_of(const char *name, const char *words)
{
  for (const char *word = words; *word != '\0';) {
    const size_t length = strcspn(word, ",");
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)length, word);
    if (strstr(name, text) != NULL) {
      return 1;
    }
    word += length + (word[length] == ',');
  }
  return *words == '\0';
}

int64_t kernel_groups_read(kernel_group *groups, const char *only)
{
  int64_t count = 0;
  for (int64_t i = 0; i < sheaf_kernel_count(); i++) {
    sheaf_sku sku;
    int available = 0;
    if (sheaf_kernel_at(i, &sku, &available) != SHEAF_OK || !available || sku.arch > SHEAF_ARCH_AVX512) {
      continue;
    }
    kernel_group *group = group_of(groups, &count, &sku);
    if (count >= MOST_GROUPS || group->kernels >= MOST_KERNELS) {
      fprintf(stderr, "more kernels than the tests have room for\n");
      exit(1);
    }
    memcpy(group->kernel[group->kernels], sku.name, sizeof sku.name);
    group->sku[group->kernels++] = sku;
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i++) { /* numbers stay as they are, so that a group's problems do too */
    if (only == NULL || holds_one_of(groups[i].name, only)) {
      groups[kept++] = groups[i];
    }
  }
  return kept;
}

/* ---- Specs ------------------------------------------------------------------------------------------------------- */

static bool is_quantised(sheaf_dtype dtype) { return dtype == SHEAF_INT8 || dtype == SHEAF_INT4; }

static bool is_prod(int kind)
{
  return kind == SHEAF_SEGMENT_PROD || kind == SHEAF_UNSORTED_SEGMENT_PROD || kind == SHEAF_SEGMENT_PROD_BACKWARD ||
         kind == SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD;
}

static bool is_extreme_backward(int kind)
{
  return kind == SHEAF_SEGMENT_MAX_BACKWARD || kind == SHEAF_SEGMENT_MIN_BACKWARD ||
         kind == SHEAF_UNSORTED_SEGMENT_MAX_BACKWARD || kind == SHEAF_UNSORTED_SEGMENT_MIN_BACKWARD;
}

static bool is_extreme(int kind)
{
  return is_extreme_backward(kind) || kind == SHEAF_SEGMENT_MAX || kind == SHEAF_SEGMENT_MIN ||
         kind == SHEAF_UNSORTED_SEGMENT_MAX || kind == SHEAF_UNSORTED_SEGMENT_MIN;
}

static void choose_embedding_options(problem_spec *spec, test_random *random)
{
  static const sheaf_dtype out_dtypes[] = {SHEAF_DTYPE_NONE, SHEAF_F32, SHEAF_F16, SHEAF_BF16};
  const bool bags = spec->kind >= SHEAF_BAG_SUM;
  const bool sums = spec->kind >= SHEAF_BAG_SUM && spec->kind <= SHEAF_BAG_MEAN_BACKWARD;
  const bool backward = problem_is_backward(spec->category, spec->kind);
  spec->bag_form = (sheaf_bag_form)random_below(random, 3);
  spec->offset_dtype = (sheaf_dtype[]){SHEAF_DTYPE_NONE, SHEAF_I32, SHEAF_I64}[random_below(random, 3)];
  spec->weighted = sums && random_chance(random, 0.6);
  spec->has_padding = random_chance(random, 0.4);
  spec->padding_share = 0.1;
  spec->padding_row = spec->kind == SHEAF_LOOKUP && spec->has_padding && random_chance(random, 0.5);
  spec->sharded = random_chance(random, 0.2);
  spec->want_arg = random_chance(random, 0.7);
  spec->grad_write = backward ? (sheaf_grad_write)random_below(random, 3) : SHEAF_GRAD_ACCUMULATE;
  spec->scale_grad_by_freq = backward && spec->kind != SHEAF_BAG_MAX_BACKWARD && random_chance(random, 0.3);
  spec->want_weights_grad = random_chance(random, 0.6);
  spec->want_table_grad = random_chance(random, 0.8);
  spec->high_rank = !bags && random_chance(random, 0.3);
  spec->positive_weights = random_chance(random, 0.5);
  spec->values = spec->kind == SHEAF_BAG_MAX && random_chance(random, 0.5) ? VALUES_TIES : VALUES_NORMAL;
  if (is_quantised(spec->dtype)) {
    spec->out_dtype = out_dtypes[random_below(random, 4)];
  }
  spec->far = random_chance(random, 0.5);
}

static void choose_segment_options(problem_spec *spec, test_random *random)
{
  spec->identity_empty = !problem_is_backward(spec->category, spec->kind) && random_chance(random, 0.5);
  if (is_extreme(spec->kind)) {
    spec->want_arg = random_chance(random, 0.7);
    spec->values = random_chance(random, 0.6) ? VALUES_TIES : VALUES_NORMAL;
  }
  if (is_extreme_backward(spec->kind)) {
    spec->split_ties = random_chance(random, 0.4);
    spec->arg_given = !spec->split_ties && random_chance(random, 0.5);
  }
  if (is_prod(spec->kind)) {
    spec->values = VALUES_NEAR_ONE;
    spec->zero_share = random_chance(random, 0.5) ? 1.0 / (double)(1 + spec->count / (spec->rows + 1)) : 0.0;
  }
}

void choose_options(const kernel_group *group, problem_spec *spec, int64_t case_number)
{
  test_random random = {(uint64_t)(group->number * 1000 + case_number) * 7919 + 13};
  spec->category = group->category;
  spec->kind = group->kind;
  spec->dtype = group->element;
  spec->index_dtype = group->index_element;
  spec->seed = random_bits(&random) % 1000000;
  spec->bad_share = random_chance(&random, 0.5) ? 0.1 : 0.0;
  spec->error_policy = spec->bad_share == 0.0 && random_chance(&random, 0.3);
  spec->special_share = random_chance(&random, 0.2) ? 0.01 : 0.0;
  spec->zero_share = random_chance(&random, 0.2) ? 0.2 : 0.0;
  spec->want_report = random_chance(&random, 0.8);
  spec->trust_shape = random_chance(&random, 0.3);
  spec->row_gap = random_chance(&random, 0.4) ? 1 + random_below(&random, 20) : 0;
  spec->shift = random_chance(&random, 0.4) ? 1 + random_below(&random, 15) : 0;
  spec->spread = (problem_spread)random_below(&random, 4);
  if (spec->count < 1000 && random_chance(&random, 0.3)) {
    spec->batch = spec->count < 100 && random_chance(&random, 0.2) ? 21 : 1 + random_below(&random, 3);
    spec->shared_inputs = random_chance(&random, 0.2);
    spec->shared_some = !spec->shared_inputs && random_chance(&random, 0.5);
  }
  if (spec->category == SHEAF_CATEGORY_EMBEDDING) {
    choose_embedding_options(spec, &random);
  } else {
    choose_segment_options(spec, &random);
  }
}

problem_spec length_problem(const kernel_group *group, int64_t case_number, int64_t n, int64_t dim)
{
  problem_spec spec = {.count = n + n / 8 + 40, .dim = dim, .rows = 40, .bags = 12};
  choose_options(group, &spec, case_number);
  const bool backward = problem_is_backward(spec.category, spec.kind);
  if (spec.kind == SHEAF_BAG_MAX_BACKWARD && spec.category == SHEAF_CATEGORY_EMBEDDING) {
    spec.bags = spec.count; /* its terms are bags */
  }
  if (problem_is_bag(&spec)) {
    spec.longest_bag = backward ? n / 2 : n;
    spec.bag_form = spec.bag_form == SHEAF_BAGS_MATRIX ? SHEAF_BAGS_OFFSETS : spec.bag_form;
  }
  spec.spread = SPREAD_UNIFORM;
  spec.hot_count = !problem_is_bag(&spec) || backward ? n : 0;
  spec.special_share = 0.0;
  return spec;
}

void choose_tame(problem_spec *spec)
{
  spec->special_share = 0.0;
  spec->positive_weights = true;
}
