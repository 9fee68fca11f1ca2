/* How loops over arrays are compiled, in all of these files. */

#pragma once

#include <stddef.h>

/* Code for each width of vectors, of which the dynamic linker chooses when this is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define ANY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ANY_WIDTH
#endif

#define INLINE static inline __attribute__((always_inline))
/* In any order: no step reads what another has written. */
#define EACH(i, n) _Pragma("omp simd") for (size_t i = 0; i < (n); i++)
/* Where each also adds to ``odd``: only what is the same in any order. */
#define EACH_ADDING(i, n) _Pragma("omp simd reduction(+ : odd)") for (size_t i = 0; i < (n); i++)
