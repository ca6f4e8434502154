/* What the kernels share: vectors of four numbers, and arrays of K classes in WIDTH(K) of them, with zeros behind.
 *
 * Registers hold four numbers on most machines; wider vectors would live in memory there. */
#ifndef REPRIOR_LANES_H
#define REPRIOR_LANES_H

#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* REPRIOR_PLAIN is for sanitizers, which start up later than the choice among clones is made */
#if !defined(REPRIOR_PLAIN) && defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#if __GNUC__ >= 12 /* older ones do not know the levels, which have fused products */
#define FUSED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("fp-contract=fast")))
#else
#define FUSED WIDEST
#endif
#else
#define WIDEST
#define FUSED
#endif
#define INLINE static inline __attribute__((always_inline))
#define WIDTH(k) (((k) + 7) / 8 * 8)

enum { LANES = 4 };
enum { DONE = -1, REFUSED = -2 };
typedef double lanes __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t lanes_i __attribute__((vector_size(32), aligned(8), may_alias));
typedef uint64_t lanes_u __attribute__((vector_size(32), aligned(8), may_alias));
#define LOAD(p) (*(const lanes *)(p))
#define STORE(p, x) (*(lanes *)(p) = (x))
#define SPLAT(x) ((lanes){0} + (x))
#define SELECT(mask, x, y) ((lanes)(((lanes_i)(x) & (mask)) | ((lanes_i)(y) & ~(mask))))

INLINE double total(lanes x) { return (x[0] + x[2]) + (x[1] + x[3]); }

#endif
