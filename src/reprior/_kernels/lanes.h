/* What the kernels share: vectors of four numbers, and arrays of K classes in WIDTH(K) of them, with zeros behind.
 *
 * Registers hold four numbers on most machines; wider vectors would live in memory there. So only the kernel that
 * takes most time (ebls.h) has a second version with vectors of eight. */
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
#define LEVELS target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")
#define FUSED __attribute__((LEVELS, optimize("fp-contract=fast")))
#else
#define FUSED WIDEST
#endif
#define WIDE __attribute__((target("avx512f"))) /* whose registers hold eight numbers */
#define HAS_WIDE __builtin_cpu_supports("avx512f") /* tests define both themselves */
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
typedef double lanes_8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef int64_t lanes_8i __attribute__((vector_size(64), aligned(8), may_alias));
#define LOAD(p) (*(const lanes *)(p))
#define STORE(p, x) (*(lanes *)(p) = (x))
#define SPLAT(x) ((lanes){0} + (x))
#define SELECT(mask, x, y) ((lanes)(((lanes_i)(x) & (mask)) | ((lanes_i)(y) & ~(mask))))

INLINE double total(lanes x) { return (x[0] + x[2]) + (x[1] + x[3]); }

/* Logarithm and exponential without branches, so that compilers make vectors of a loop, as wide as the machine has. */
INLINE uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof x);
    return bits;
}

INLINE double from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* log x for normal x > 0: x = 2^e m, log m = 2 artanh((m - 1)/(m + 1)) */
INLINE double log_of(double x) {
    /* m lies in [√½, √2); e + 1024 is not negative, so that shift and conversion need no more than AVX2 has */
    const uint64_t bits = bits_of(x), e = (bits - 0x3fe6a09e667f3bcdULL + (1ULL << 62)) >> 52;
    const double n = from_bits(e | 0x4330000000000000ULL) - 4503599627371520.0;
    const double m = from_bits(bits - (e << 52) + (1ULL << 62)), f = (m - 1.0) / (m + 1.0), z = f * f;
    const double z2 = z * z, z4 = z2 * z2; /* sums of pairs need not wait for each other */
    const double s = (1.0 / 3 + 1.0 / 5 * z) + (1.0 / 7 + 1.0 / 9 * z) * z2 +
                     ((1.0 / 11 + 1.0 / 13 * z) + (1.0 / 15 + 1.0 / 17 * z) * z2 + (1.0 / 19 + 1.0 / 21 * z) * z4) * z4;
    return n * 6.93147180369123816490e-01 + (2.0 * f + (2.0 * f * z * s + n * 1.90821492927058770002e-10));
}

/* exp x, 0 where x < -690 */
INLINE double exp_of(double x) {
    const double y = x < -700.0 ? -700.0 : x;
    const double shifted = y * 1.44269504088896340736 + 6755399441055744.0; /* 1.5·2^52: rounds to whole */
    const uint64_t n = bits_of(shifted) - 0x4338000000000000ULL; /* unsigned: of what is no number it may be anything */
    const double whole = shifted - 6755399441055744.0;
    const double r = (y - whole * 6.93147180369123816490e-01) - whole * 1.90821492927058770002e-10;
    const double r2 = r * r, r4 = r2 * r2;
    const double low = (1.0 + r) + (0.5 + 1.0 / 6 * r) * r2;
    const double middle = (1.0 / 24 + 1.0 / 120 * r) + (1.0 / 720 + 1.0 / 5040 * r) * r2;
    const double high = (1.0 / 40320 + 1.0 / 362880 * r) + (1.0 / 3628800 + 1.0 / 39916800 * r) * r2 +
                        (1.0 / 479001600 + 1.0 / 6227020800 * r) * r4;
    const double s = low + (middle + high * r4) * r4;
    return from_bits((bits_of(s) + (n << 52)) & -(uint64_t)(x >= -690.0));
}

#endif
