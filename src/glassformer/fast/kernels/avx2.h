// What simd.h promises, in two registers of AVX2.

#pragma once
#include <immintrin.h>

typedef struct { __m256 a, b; } floats;
typedef struct { __m256i a, b; } ints;
enum { INT_ROWS = 2, FLOAT_ROWS = 6, QUERY_ROWS = 2, PANELS = 1 };  // 16 registers of half the width

#define BOTH(type, f, x) ((type){f((x).a), f((x).b)})
#define PAIR(type, f, x, y) ((type){f((x).a, (y).a), f((x).b, (y).b)})
INLINE floats all(float x) { return (floats){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE floats zeros(void) { return all(0); }
INLINE floats load(const float *p) { return (floats){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void store(float *p, floats x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
INLINE floats add(floats x, floats y) { return PAIR(floats, _mm256_add_ps, x, y); }
INLINE floats sub(floats x, floats y) { return PAIR(floats, _mm256_sub_ps, x, y); }
INLINE floats mul(floats x, floats y) { return PAIR(floats, _mm256_mul_ps, x, y); }
INLINE floats quotient(floats x, floats y) { return PAIR(floats, _mm256_div_ps, x, y); }
INLINE floats greater(floats x, floats y) { return PAIR(floats, _mm256_max_ps, x, y); }
INLINE floats mul_add(floats x, floats y, floats z) {
    return (floats){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE floats nearest(floats x) { return (floats){_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
INLINE floats float_of(ints x) { return BOTH(floats, _mm256_cvtepi32_ps, x); }
INLINE floats load_half(const uint16_t *p) {
    const __m128i *q = (const void *)p;
    return (floats){_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
INLINE __m256 eight_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
INLINE floats load_bf16(const uint16_t *p) { return (floats){eight_bf16(p), eight_bf16(p + 8)}; }
INLINE floats of_bits(ints x) { return BOTH(floats, _mm256_castsi256_ps, x); }
INLINE ints bits_of(floats x) { return BOTH(ints, _mm256_castps_si256, x); }
INLINE ints all_int(int32_t x) { return (ints){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INLINE ints load_ints(const void *p) {
    const __m256i *q = p;
    return (ints){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
INLINE void store_ints(void *p, ints x) {
    __m256i *q = p;
    _mm256_storeu_si256(q, x.a), _mm256_storeu_si256(q + 1, x.b);
}
INLINE ints add_int(ints x, ints y) { return PAIR(ints, _mm256_add_epi32, x, y); }
INLINE ints and_int(ints x, ints y) { return PAIR(ints, _mm256_and_si256, x, y); }
INLINE ints greater_int(ints x, ints y) { return PAIR(ints, _mm256_max_epi32, x, y); }
INLINE ints int_of(floats x) { return BOTH(ints, _mm256_cvtps_epi32, x); }
INLINE ints up23(ints x) { return (ints){_mm256_slli_epi32(x.a, 23), _mm256_slli_epi32(x.b, 23)}; }
INLINE ints up16(ints x) { return (ints){_mm256_slli_epi32(x.a, 16), _mm256_slli_epi32(x.b, 16)}; }
INLINE ints down16(ints x) { return (ints){_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16)}; }
INLINE ints sub_int(ints x, ints y) { return PAIR(ints, _mm256_sub_epi32, x, y); }
INLINE void store_halves(uint16_t *p, ints x) {
    __m256i mixed = _mm256_packus_epi32(x.a, x.b);  // its four quarters lie as a, b, a, b
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(mixed, 0xd8));
}
INLINE floats by_sign(floats x, floats a, floats b) {
    return (floats){_mm256_blendv_ps(b.a, a.a, x.a), _mm256_blendv_ps(b.b, a.b, x.b)};
}
INLINE ints down4(ints x) { return (ints){_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}; }
INLINE void store_bytes(int8_t *p, ints x) {
    int32_t lanes[16];
    _mm256_storeu_si256((void *)lanes, x.a), _mm256_storeu_si256((void *)(lanes + 8), x.b);
    for (int i = 0; i < 16; i++) p[i] = (int8_t)lanes[i];
}
INLINE int32_t sum_int(ints x) {
    int32_t lanes[16], sum = 0;
    _mm256_storeu_si256((void *)lanes, x.a), _mm256_storeu_si256((void *)(lanes + 8), x.b);
    for (int i = 0; i < 16; i++) sum += lanes[i];
    return sum;
}
INLINE int32_t greatest_int(ints x) {
    int32_t lanes[16], most = INT32_MIN;
    _mm256_storeu_si256((void *)lanes, x.a), _mm256_storeu_si256((void *)(lanes + 8), x.b);
    for (int i = 0; i < 16; i++) most = lanes[i] > most ? lanes[i] : most;
    return most;
}
INLINE __m256 eight_between(int first, int end, __m256 x, __m256 y) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i in = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane),
                                     _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(in));
}
INLINE floats between(int first, int end, floats x, floats y) {
    return (floats){eight_between(first, end, x.a, y.a), eight_between(first - 8, end - 8, x.b, y.b)};
}

// Without VNNI: two instructions, whose sums of two products must fit in 16 bits. For that, weights of 8 bits go in
// without their offset: their magnitude times x with their sign, at most 2 * 128 * 127.
enum { OFFSET8 = 0 };
INLINE __m256i four_sums(__m256i acc, __m256i weights, __m256i x) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), _mm256_set1_epi16(1)));
}
INLINE __m256i four_signed_sums(__m256i acc, __m256i weights, __m256i x) {
    __m256i w = _mm256_xor_si256(weights, _mm256_set1_epi8((char)0x80));
    return four_sums(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}
INLINE ints dot4(ints acc, ints w, ints x) {
    return (ints){four_signed_sums(acc.a, w.a, x.a), four_signed_sums(acc.b, w.b, x.b)};
}
INLINE ints dot4_small(ints acc, ints w, ints x) {  // of weights from 0 to 15
    return (ints){four_sums(acc.a, w.a, x.a), four_sums(acc.b, w.b, x.b)};
}

INLINE __m256 lower(floats x) { return x.a; }
INLINE __m256 upper(floats x) { return x.b; }
