/* core/cpu.h: threads, and the floating-point mode that every kernel runs in. */
#ifndef SHF_CORE_CPU_H
#define SHF_CORE_CPU_H

#include <sheaf/base.h>

enum { SHF_MAX_THREADS = 256 };

/* Loops that want instructions which the first x86-64 had not are written once, as SHF_ALWAYS_INLINE functions, and
 * compiled twice: within a plain function, and within one for SHF_WITH(...) that is called where sheaf_isa_best says
 * AVX2. */
#define SHF_ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__)
#define SHF_WITH(instructions) __attribute__((target(instructions)))
#else
#define SHF_WITH(instructions)
#endif

/* Whether the CPU has instructions that round to bf16 (AVX512_BF16). */
extern int shf_core_rounds_bf16;

/* CPUs that differ in how rows from memory had better be asked for (plan/asking.c). ZEN4 and ZEN5 stand for AMD's up to
 * family 19h and from 1Ah on. SHEAF_TEST_CPU=zen4, zen5 or other has tests see what is chosen elsewhere. */
typedef enum shf_cpu_kind { SHF_CPU_OTHER, SHF_CPU_ZEN4, SHF_CPU_ZEN5 } shf_cpu_kind;
shf_cpu_kind shf_core_cpu_kind(void);

/* As many of these threads as OpenMP would ever make, and no more than SHF_MAX_THREADS. */
int shf_core_cap_threads(int threads);

/* This process is one of so many on the machine that work together: by default each uses its share of the threads
 * there, unless OMP_NUM_THREADS says how many it is to use. */
void shf_core_share_threads(int64_t processes);

/* Whether this is a child process that must not use threads (see sheaf_set_threads). */
int shf_core_alone(void);

#if defined(__x86_64__)
#include <xmmintrin.h>

/* Round to nearest, denormals kept, exceptions masked. Returns the mode to restore. */
static inline unsigned shf_core_fp_enter(void)
{
  unsigned saved = _mm_getcsr();
  if ((saved & 0xffc0u) != 0x1f80u) _mm_setcsr(0x1f80);
  return saved;
}

static inline void shf_core_fp_leave(unsigned saved)
{
  if ((saved & 0xffc0u) != 0x1f80u) _mm_setcsr(saved);
}
#elif defined(__aarch64__)
/* FPCR: rounding mode (bits 22, 23), flush to zero (24, and 19 for 16 bits), traps (8 to 12, 15). */
static inline unsigned shf_core_fp_enter(void)
{
  uint64_t saved, mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
  mode = saved & ~(uint64_t)0x1c89f00;
  if (mode != saved) __asm__ volatile("msr fpcr, %0" : : "r"(mode));
  return (unsigned)saved;
}

static inline void shf_core_fp_leave(unsigned saved) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)saved)); }
#else
#include <fenv.h>

static inline unsigned shf_core_fp_enter(void)
{
  unsigned saved = (unsigned)fegetround();
  fesetround(FE_TONEAREST);
  return saved;
}

static inline void shf_core_fp_leave(unsigned saved) { fesetround((int)saved); }
#endif

#endif
