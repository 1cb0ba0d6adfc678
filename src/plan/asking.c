/* asking.c: how kernels ask for rows from memory: line by line, each beside a line that is worked on, and how far
 * ahead; or many rows at once, in bursts. The comment on `asking` in kernels/cpu/chunk.inc says what both are. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>

#include "core/cpu.h"
#include "plan/plan_impl.h"

/* What is chosen by CPU: how far ahead, and where rows repeat, so that many of them come from the caches. Measured with one thread,
 * sums of 256 bytes a row: on Zen 5 in bursts 2.1 ms, 4, 12 and 24 KiB ahead 1.37, 1.12 and 1.17; skewed 1.29, 1.00, 0.67 and 0.53.
 * On a Xeon with 16 threads 8 KiB are up to 7 % slower than 4, with one thread as much faster where rows repeat. */
typedef struct choice {
  shf_asking usually, often;
} choice;

enum { KIB = 1 << 10 };
static const choice otherwise = {{0, 0}, {0, 0}};
static const choice with_avx2 = {{4 * KIB, 0}, {10 * KIB, 0}};
static const choice with_avx512[] = {[SHF_CPU_ZEN4] = {{0, 0}, {0, 0}},
                                     [SHF_CPU_ZEN5] = {{12 * KIB, 0}, {24 * KIB, 0}},
                                     [SHF_CPU_OTHER] = {{4 * KIB, 0}, {4 * KIB, 0}}};

/* SHEAF_TEST_BESIDE=0: in bursts, n: n bytes ahead (and from 8 KiB on once more), wherever a kernel can do so. Thus any CPU shows
 * that all ways lead to the same bits. -1: not set. */
static int test_beside(void)
{
  static atomic_int known = -2;
  int wish = atomic_load_explicit(&known, memory_order_relaxed);
  if (wish > -2) return wish;
  const char *text = secure_getenv("SHEAF_TEST_BESIDE");
  wish = text && *text >= '0' && *text <= '9' ? atoi(text) : -1;
  atomic_store_explicit(&known, wish, memory_order_relaxed);
  return wish;
}

static int is_lookup(const sheaf_plan *plan)
{
  return plan->category == SHEAF_CATEGORY_EMBEDDING && plan->embedding.kind == SHEAF_LOOKUP;
}

static int is_bag_sum(const sheaf_plan *plan)
{
  return plan->category == SHEAF_CATEGORY_EMBEDDING &&
         (plan->embedding.kind == SHEAF_BAG_SUM || plan->embedding.kind == SHEAF_BAG_MEAN);
}

static int is_bag_max(const sheaf_plan *plan)
{
  return plan->category == SHEAF_CATEGORY_EMBEDDING && plan->embedding.kind == SHEAF_BAG_MAX;
}

/* What asks for rows that it does not reduce. */
static int is_gradient(const sheaf_plan *plan)
{
  if (plan->category == SHEAF_CATEGORY_SEGMENT)
    return plan->segment.kind == SHEAF_SEGMENT_SUM_BACKWARD || plan->segment.kind == SHEAF_UNSORTED_SEGMENT_SUM_BACKWARD;
  const sheaf_embedding_kind kind = plan->embedding.kind;
  return kind == SHEAF_LOOKUP_BACKWARD || kind == SHEAF_BAG_SUM_BACKWARD || kind == SHEAF_BAG_MEAN_BACKWARD;
}

/* What kernels of AVX-512 have no loops for that ask beside: products, sums whose weights are scaled, and gradients of
 * one column. */
static int has_bursts_only(const sheaf_plan *plan)
{
  if (plan->category == SHEAF_CATEGORY_EMBEDDING)
    return is_gradient(plan) && (plan->embedding.scale_grad_by_freq || plan->embedding.dim == 1);
  const sheaf_segment_kind kind = plan->segment.kind;
  return kind == SHEAF_SEGMENT_PROD || kind == SHEAF_SEGMENT_PROD_BACKWARD || kind == SHEAF_UNSORTED_SEGMENT_PROD ||
         kind == SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD;
}

/* What a Xeon is better off with in bursts. Lookups of 512 bytes a row take 8 % less so; bags of one row 4 to 11 %;
 * floats of 320 to 640 bytes a row that do not repeat, with more than four threads, 14 %, whereas 256 and 1024 bytes
 * take 15 and 6 % more. (Gradients take 1 to 8 % less beside with 16 threads, 11 to 21 % with one.) */
static choice on_other_cpus(const sheaf_plan *plan, choice c)
{
  enum { MANY_THREADS = 5, LEAST = 320, MOST = 640 };
  const sheaf_embedding_desc *desc = &plan->embedding;
  if (is_lookup(plan)) return otherwise;
  if (!is_bag_sum(plan)) return c;
  if (desc->indices / 2 <= desc->bags) return otherwise;
  const int widens = shf_core_dtype_acc(desc->dtype) != desc->dtype;
  const int in_bursts = !widens && plan->row_bytes >= LEAST && plan->row_bytes <= MOST;
  if (plan->threads >= MANY_THREADS && in_bursts) c.usually.beside = 0;
  if (plan->threads == 1) c.often.beside *= 2;
  return c;
}

/* Rows that go by wide tiles are asked for by those, of which many rows are ahead as it is: 80 rows of 1024 columns that
 * repeat take 2 to 4 % less 16 KiB ahead than 24.
 *
 * Some are asked for once more. What is widened or compared leaves the CPU's window room for fewer rows, and a line that has not come
 * when it is needed holds up more of the requests after it. In microseconds, 40 MB of rows in bags of 20 and 80, once and twice:
 * f16 of 100 columns 1780 and 1430, 128 1460 and 1240, 256 1620 and 1400, bf16 of 128 1250 and 1170; skewed, 128 columns of f16 570
 * and 575, 256 590 and 540, 1024 710 and 630; int8 of 128 1570 and 1400, skewed 970 and 1020; floats 2 to 5 % slower, but skewed 128
 * 510 and 470, 256 535 and 505. Lookups of 64, 128 and 256 floats take 7 to 12 % less so with one thread, 2 to 4 % with two, and
 * gradients of segments in any order 3 %. */
static choice on_zen5(const sheaf_plan *plan, choice c)
{
  enum { WIDE = KIB, OFTEN_WIDE = 16 * KIB, LEAST_WIDENED = 192, LEAST_PACKED = 96, LEAST_SKEWED_FLOATS = 384, LEAST_SKEWED = 512 };
  const int64_t bytes = plan->row_bytes;
  const sheaf_dtype dtype = plan->category == SHEAF_CATEGORY_EMBEDDING ? plan->embedding.dtype : plan->segment.dtype;
  if (bytes > WIDE) c.often.beside = OFTEN_WIDE;
  const int copies = is_lookup(plan) || (plan->category == SHEAF_CATEGORY_SEGMENT && is_gradient(plan));
  if (copies) {
    c.usually.again = 1;
  } else if (is_bag_max(plan)) {
    c.usually.again = c.often.again = 1;
  } else if (is_bag_sum(plan) && (dtype == SHEAF_INT8 || dtype == SHEAF_INT4)) {
    c.usually.again = bytes >= LEAST_PACKED;
  } else if (is_bag_sum(plan) && shf_core_dtype_acc(dtype) != dtype) {
    c.usually.again = bytes >= LEAST_WIDENED;
    c.often.again = bytes >= LEAST_SKEWED;
  } else if (is_bag_sum(plan)) {
    c.often.again = bytes >= LEAST_SKEWED_FLOATS && bytes <= WIDE;
  }
  return c;
}

/* Whether a run is to find out if rows repeat, which takes two microseconds: AVX-512 kernels ask for bags in bursts
 * otherwise then, too (bag_asking in kernels/cpu/bag.inc). */
static int looks_for_repeats(const sheaf_plan *plan, choice c)
{
  enum { LEAST_IN_BURSTS = 256 };
  if (!plan->ahead || !is_bag_sum(plan)) return 0;
  const int in_bursts = plan->row->arch == SHEAF_ARCH_AVX512 && c.usually.beside == 0;
  return c.usually.beside != c.often.beside || c.usually.again != c.often.again || (in_bursts && plan->row_bytes >= LEAST_IN_BURSTS);
}

static choice choose(const sheaf_plan *plan)
{
  const int test = test_beside();
  const shf_asking tested = {test, test >= 8 * KIB};
  const shf_cpu_kind cpu = shf_core_cpu_kind();
  if (plan->row->arch == SHEAF_ARCH_AVX2 && !is_gradient(plan)) return test > 0 ? (choice){tested, tested} : with_avx2;
  if (plan->row->arch != SHEAF_ARCH_AVX512 || !plan->ahead || has_bursts_only(plan)) return otherwise;
  if (test >= 0) return (choice){tested, tested};
  switch (cpu) {
  case SHF_CPU_ZEN5: return on_zen5(plan, with_avx512[cpu]);
  case SHF_CPU_OTHER: return on_other_cpus(plan, with_avx512[cpu]);
  default: return with_avx512[cpu];
  }
}

/* Sorted segments: on Zen 5 a row of 256 bytes takes 3 % less so than 2 KiB ahead into the second level, one of 128
 * bytes 16 %. (4 KiB: 4 and 9 %; 12: nothing and 17 %.) */
enum { IN_ORDER_BYTES = 8 * KIB };

void shf_plan_choose_asking(sheaf_plan *plan)
{
  const choice c = choose(plan);
  plan->asking = c.usually;
  plan->asking_often = c.often;
  plan->looks_for_repeats = looks_for_repeats(plan, c);
  plan->in_order = plan->row->arch == SHEAF_ARCH_AVX512 && shf_core_cpu_kind() == SHF_CPU_ZEN5 ? IN_ORDER_BYTES : 0;
}
