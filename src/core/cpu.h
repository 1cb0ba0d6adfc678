/* core/cpu.h: threads, and the floating-point mode that every kernel runs in. */
#ifndef SHF_CORE_CPU_H
#define SHF_CORE_CPU_H

#include <sheaf/base.h>

enum { SHF_MAX_THREADS = 256 };

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
