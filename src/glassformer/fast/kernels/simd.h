// Sixteen numbers at a time, in one register of AVX-512, two of AVX2 or four of NEON: what the kernels are written in.
//
// floats and ints are 16 lanes of 32 bits. Every operation rounds as IEEE 754 says (the build has -ffp-contract=off, so
// that a product and a sum are never joined unless it says mul_add), and gives the same bits in every build, with one
// exception: dot2 of the bf16 build of AVX-512 takes numbers below 2^-126 as zero.
//
// A file for each level (avx512.h, avx2.h, neon.h) has the operations that need its instructions, and says how many rows
// and panels of a tile its registers hold. Below is what follows from these operations.

#pragma once
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define JOIN2(name, build) name##_##build
#define JOIN(name, build) JOIN2(name, build)
#define EXPORT(name) __attribute__((visibility("default"))) void JOIN(name, BUILD)

enum { PANEL = 16, GROUP = 32 };  // outputs that lie together; inputs that share a scale

#if defined __AVX512F__
#include "avx512.h"
#elif defined __AVX2__
#include "avx2.h"
#else
#include "neon.h"
#endif

#ifndef DOT2
// acc + the two products of each lane's pair of bf16, the second pair's first, each rounded
INLINE floats dot2(floats acc, ints weights, ints x) {
    ints high = all_int((int32_t)0xffff0000);
    acc = mul_add(of_bits(and_int(weights, high)), of_bits(and_int(x, high)), acc);
    return mul_add(of_bits(up16(weights)), of_bits(up16(x)), acc);
}
#endif

#ifdef __AVX2__
INLINE float first(floats x) { return _mm256_cvtss_f32(lower(x)); }

// One number of all lanes: of i and i + 8 first, then i + 4, i + 2, i + 1.
#define ACROSS(name, op)                                                                                               \
    INLINE float name(floats x) {                                                                                      \
        __m256 eight = _mm256_##op##_ps(lower(x), upper(x));                                                           \
        __m128 four = _mm_##op##_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));                   \
        __m128 two = _mm_##op##_ps(four, _mm_movehl_ps(four, four));                                                   \
        return _mm_cvtss_f32(_mm_##op##_ss(two, _mm_shuffle_ps(two, two, 1)));                                         \
    }
ACROSS(total, add)
ACROSS(greatest, max)
#endif

INLINE void fetch(const void *p) { __builtin_prefetch(p); }  // into the first cache; any address will do

INLINE ints all_four(const void *p) {  // the same four bytes in every lane
    int32_t four;
    memcpy(&four, p, 4);
    return all_int(four);
}

INLINE uint16_t bf16_of(float x) {  // to the nearest, of two the even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// to the nearest bf16, of two the even; what is no number stays one
INLINE floats as_bf16(floats x) {
    ints bits = bits_of(x), odd = and_int(down16(bits), all_int(1));
    ints rounded = and_int(add_int(add_int(bits, all_int(0x7fff)), odd), all_int((int32_t)0xffff0000));
    ints over = sub_int(all_int(0x7f800000), and_int(bits, all_int(0x7fffffff)));  // below 0: no number
    return by_sign(of_bits(over), of_bits(all_int(0x7fc00000)), of_bits(rounded));
}

// exp(x) for x <= 0: 2^n times a polynomial of degree 7 in the rest; 0 below -88.
INLINE floats exponential(floats x) {
    x = greater(all(-88), x);
    floats n = nearest(mul(x, all(1.44269504f)));
    floats r = mul_add(n, all(-0.693145752f), x), y = all(1 / 5040.0f);
    r = mul_add(n, all(-1.42860677e-6f), r);
    const float terms[] = {1 / 720.0f, 1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 0.5f, 1, 1};
    UNROLL for (int i = 0; i < 7; i++) y = mul_add(y, r, all(terms[i]));
    return mul(y, of_bits(up23(add_int(int_of(n), all_int(127)))));
}
