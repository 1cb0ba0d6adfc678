/* core/tables.h: the lists that kernels are stamped from and found by. A new element type or instruction set is one
 * line here, one vec_<isa>.h or ELEMENT_... of its own, and one small file per pair in kernels/cpu. */
#ifndef SHF_CORE_TABLES_H
#define SHF_CORE_TABLES_H

#include "core/kernel.h"
#include "core/nearest_kernel.h"

/* X(isa, element, rows): the row tables, one per kernel file. Best instruction set first. */
#define SHF_ELEMENTS(X, isa)                                          \
  X(isa, f32, 56) X(isa, f64, 56) X(isa, f16, 56) X(isa, bf16, 56)    \
  X(isa, int8, 8) X(isa, int4, 8)
#if SHF_HAVE_AVX512
#define SHF_AVX512_TABLES(X) SHF_ELEMENTS(X, avx512)
#else
#define SHF_AVX512_TABLES(X)
#endif
#if SHF_HAVE_AVX2
#define SHF_AVX2_TABLES(X) SHF_ELEMENTS(X, avx2)
#else
#define SHF_AVX2_TABLES(X)
#endif
#define SHF_ROW_TABLES(X) SHF_AVX512_TABLES(X) SHF_AVX2_TABLES(X) SHF_ELEMENTS(X, scalar)

#define SHF_X(isa, element, rows) extern const shf_kernel_row shf_kernels_##isa##_##element[rows];
SHF_ROW_TABLES(SHF_X)
#undef SHF_X

/* Nearest rows: one kernel per file. */
#define SHF_X(isa, element, rows) extern const shf_nearest_kernel shf_nearest_##isa##_##element;
SHF_ROW_TABLES(SHF_X)
#undef SHF_X

#endif
