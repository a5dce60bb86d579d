// What simd.h promises, in one register of AVX-512.

#pragma once
#include <immintrin.h>

typedef __m512 floats;
typedef __m512i ints;
enum { INT_ROWS = 6, FLOAT_ROWS = 12, QUERY_ROWS = 6, PANELS = 2 };  // what fits in 32 registers: tiles of rows by panels

INLINE floats zeros(void) { return _mm512_setzero_ps(); }
INLINE floats all(float x) { return _mm512_set1_ps(x); }
INLINE floats load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store(float *p, floats x) { _mm512_storeu_ps(p, x); }
INLINE floats add(floats a, floats b) { return _mm512_add_ps(a, b); }
INLINE floats sub(floats a, floats b) { return _mm512_sub_ps(a, b); }
INLINE floats mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
INLINE floats quotient(floats a, floats b) { return _mm512_div_ps(a, b); }
INLINE floats mul_add(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE floats greater(floats a, floats b) { return _mm512_max_ps(a, b); }
INLINE floats nearest(floats a) { return _mm512_roundscale_ps(a, 8); }
INLINE floats float_of(ints a) { return _mm512_cvtepi32_ps(a); }
INLINE floats load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
INLINE floats load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
INLINE floats of_bits(ints a) { return _mm512_castsi512_ps(a); }
INLINE ints bits_of(floats a) { return _mm512_castps_si512(a); }
INLINE ints all_int(int32_t x) { return _mm512_set1_epi32(x); }
INLINE ints load_ints(const void *p) { return _mm512_loadu_si512(p); }
INLINE void store_ints(void *p, ints a) { _mm512_storeu_si512(p, a); }
INLINE ints add_int(ints a, ints b) { return _mm512_add_epi32(a, b); }
INLINE ints and_int(ints a, ints b) { return _mm512_and_si512(a, b); }
INLINE ints greater_int(ints a, ints b) { return _mm512_max_epi32(a, b); }
INLINE ints int_of(floats a) { return _mm512_cvtps_epi32(a); }  // to the nearest, of two the even
INLINE ints up23(ints a) { return _mm512_slli_epi32(a, 23); }
INLINE ints up16(ints a) { return _mm512_slli_epi32(a, 16); }
INLINE ints down16(ints a) { return _mm512_srli_epi32(a, 16); }
INLINE ints sub_int(ints a, ints b) { return _mm512_sub_epi32(a, b); }
INLINE void store_halves(uint16_t *p, ints a) { _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(a)); }
// a where x has a minus sign, elsewhere b
INLINE floats by_sign(floats x, floats a, floats b) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), b, a);
}
INLINE ints down4(ints a) { return _mm512_srli_epi16(a, 4); }
INLINE void store_bytes(int8_t *p, ints a) { _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(a)); }
INLINE int32_t sum_int(ints a) { return _mm512_reduce_add_epi32(a); }
INLINE int32_t greatest_int(ints a) { return _mm512_reduce_max_epi32(a); }
// lanes from `first` up to `end` of a, elsewhere of b
INLINE floats between(int first, int end, floats a, floats b) {
    uint32_t below = end >= 16 ? 0xffff : end <= 0 ? 0 : (1u << end) - 1, from = first <= 0 ? 0 : (1u << first) - 1;
    return _mm512_mask_blend_ps((__mmask16)(below & ~from), b, a);
}

// acc + the sum of four products of bytes, weights unsigned and x signed
enum { OFFSET8 = 128 };
INLINE ints dot4(ints acc, ints weights, ints x) { return _mm512_dpbusd_epi32(acc, weights, x); }
INLINE ints dot4_small(ints acc, ints weights, ints x) { return dot4(acc, weights, x); }

#ifdef __AVX512BF16__
#define DOT2
INLINE floats dot2(floats acc, ints weights, ints x) { return _mm512_dpbf16_ps(acc, (__m512bh)weights, (__m512bh)x); }
#endif

INLINE __m256 lower(floats x) { return _mm512_castps512_ps256(x); }
INLINE __m256 upper(floats x) { return _mm512_extractf32x8_ps(x, 1); }
