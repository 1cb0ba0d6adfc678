/* core/cpu.c: which instruction sets there are, which one is used, and how many threads. */
#define _GNU_SOURCE
#include "core/cpu.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/status.h"

static atomic_int thread_limit;    /* 0: OpenMP's maximum */
static atomic_int thread_share;    /* where nothing else is said; 0: OpenMP's maximum */
static atomic_int isa_in_use = -1; /* -1: not yet decided */
static atomic_int alone;           /* a child process that has not said how many threads it wants */

int shf_core_rounds_bf16;
static void __attribute__((constructor)) look_for_bf16(void)
{
#if defined(__x86_64__)
  __builtin_cpu_init();
  shf_core_rounds_bf16 = __builtin_cpu_supports("avx512bf16");
#endif
}

#if defined(__x86_64__)
static shf_cpu_kind detect_kind(void)
{
  enum { EXTENDED = 15, ZEN_5 = 0x1a };
  unsigned a, b, c, d;
  __builtin_cpu_init();
  if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &a, &b, &c, &d)) return SHF_CPU_OTHER;
  unsigned family = a >> 8 & 15;
  if (family == EXTENDED) family += a >> 20 & 255;
  return family < ZEN_5 ? SHF_CPU_ZEN4 : SHF_CPU_ZEN5;
}
#else
static shf_cpu_kind detect_kind(void) { return SHF_CPU_OTHER; }
#endif

/* Asking the CPU takes microseconds on a virtual machine, so it is asked once. */
shf_cpu_kind shf_core_cpu_kind(void)
{
  static atomic_int known = -1;
  int kind = atomic_load_explicit(&known, memory_order_relaxed);
  if (kind < 0) {
    static const char *const names[] = {[SHF_CPU_OTHER] = "other", [SHF_CPU_ZEN4] = "zen4", [SHF_CPU_ZEN5] = "zen5"};
    const char *wish = secure_getenv("SHEAF_TEST_CPU");
    kind = (int)detect_kind();
    for (int i = 0; wish && i < (int)(sizeof names / sizeof *names); i++)
      if (strcmp(wish, names[i]) == 0) kind = i;
    atomic_store_explicit(&known, kind, memory_order_relaxed);
  }
  return (shf_cpu_kind)kind;
}

static void after_fork_in_child(void) { atomic_store(&alone, 1); }
static void __attribute__((constructor)) watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

int shf_core_alone(void) { return atomic_load_explicit(&alone, memory_order_relaxed); }

static const char *const isa_names[] = {"scalar", "avx2", "avx512"};

const char *sheaf_isa_name(sheaf_isa isa)
{
  return isa >= SHEAF_ISA_SCALAR && isa <= SHEAF_ISA_AVX512 ? isa_names[isa] : "unknown";
}

static int is_built(int isa)
{
  static const char built[] = {1, SHF_HAVE_AVX2, SHF_HAVE_AVX512};
  return built[isa];
}

#if defined(__x86_64__)
static int has_f16c(void)
{
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static sheaf_isa detect_isa(void)
{
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return SHEAF_ISA_SCALAR;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return SHEAF_ISA_AVX512;
  return SHEAF_ISA_AVX2;
#else
  return SHEAF_ISA_SCALAR;
#endif
}

/* Asked once, too. */
sheaf_isa sheaf_isa_best(void)
{
  static atomic_int known = -1;
  int isa = atomic_load_explicit(&known, memory_order_relaxed);
  if (isa < 0) {
    for (isa = (int)detect_isa(); !is_built(isa);) isa--;
    atomic_store_explicit(&known, isa, memory_order_relaxed);
  }
  return (sheaf_isa)isa;
}

/* The environment's wish as far as the machine can follow it: an unknown or unavailable set falls back to the best. */
static sheaf_isa isa_from_environment(void)
{
  sheaf_isa best = sheaf_isa_best();
  const char *wish = secure_getenv("SHEAF_ISA");
  for (int isa = 0; wish && isa <= (int)best && isa < (int)(sizeof isa_names / sizeof *isa_names); isa++)
    if (strcmp(wish, isa_names[isa]) == 0 && is_built(isa)) return (sheaf_isa)isa;
  return best;
}

sheaf_isa sheaf_isa_current(void)
{
  int isa = atomic_load_explicit(&isa_in_use, memory_order_relaxed);
  if (isa >= 0) return (sheaf_isa)isa;
  sheaf_isa wanted = isa_from_environment();
  int undecided = -1;
  atomic_compare_exchange_strong(&isa_in_use, &undecided, (int)wanted);
  return (sheaf_isa)atomic_load(&isa_in_use);
}

sheaf_status sheaf_set_isa(sheaf_isa isa)
{
  SHF_REQUIRE(isa >= SHEAF_ISA_SCALAR && isa <= SHEAF_ISA_AVX512, INVALID_PROBLEM, "%d is not an instruction set",
              (int)isa);
  SHF_REQUIRE(is_built((int)isa), UNAVAILABLE, "this library was built without kernels for %s", isa_names[isa]);
  SHF_REQUIRE(isa <= sheaf_isa_best(), UNAVAILABLE, "this CPU has no %s; its best is %s", isa_names[isa],
              isa_names[sheaf_isa_best()]);
  atomic_store(&isa_in_use, (int)isa);
  return SHEAF_OK;
}

sheaf_status sheaf_set_threads(int threads)
{
  SHF_REQUIRE(threads >= 0, INVALID_PROBLEM, "%d threads: the limit must be 0 (default) or more", threads);
  atomic_store(&thread_limit, threads);
  if (threads > 0) atomic_store(&alone, 0);
  return SHEAF_OK;
}

int shf_core_cap_threads(int threads)
{
  int most = omp_get_thread_limit();
  if (most > SHF_MAX_THREADS) most = SHF_MAX_THREADS;
  return threads < most ? threads : most;
}

void shf_core_share_threads(int64_t processes)
{
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (processes < 2 || cores < 1 || secure_getenv("OMP_NUM_THREADS")) return;
  int share = cores > processes ? (int)(cores / processes) : 1, known = atomic_load(&thread_share);
  while ((!known || share < known) && !atomic_compare_exchange_weak(&thread_share, &known, share)) continue;
}

int sheaf_threads(void)
{
  int limit = atomic_load_explicit(&thread_limit, memory_order_relaxed);
  if (shf_core_alone()) return 1;
  if (limit) return shf_core_cap_threads(limit);
  int share = atomic_load_explicit(&thread_share, memory_order_relaxed), most = omp_get_max_threads();
  return shf_core_cap_threads(share && share < most ? share : most);
}

const char *sheaf_cpu_name(void)
{
#if defined(__x86_64__)
  static _Thread_local char name[52];
  unsigned words[13] = {0};
  for (unsigned leaf = 0; leaf < 3; leaf++) {
    unsigned *w = words + 4 * leaf;
    if (!__get_cpuid(0x80000002 + leaf, &w[0], &w[1], &w[2], &w[3])) return "";
  }
  memcpy(name, words, sizeof name);
  return name + strspn(name, " ");
#else
  return "";
#endif
}
