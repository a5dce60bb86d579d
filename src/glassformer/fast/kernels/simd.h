// Sixteen numbers at a time, in one register of AVX-512 or two of AVX2: what the kernels are written in.
//
// floats and ints are 16 lanes of 32 bits. Every operation rounds as IEEE 754 says (the build has -ffp-contract=off, so
// that a product and a sum are never joined unless it says mul_add), and gives the same bits in every build, with one
// exception: dot2 of the bf16 build takes numbers below 2^-126 as zero.

#pragma once
#include <immintrin.h>
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

#ifdef __AVX512F__

typedef __m512 floats;
typedef __m512i ints;
enum { INT_ROWS = 6, FLOAT_ROWS = 12, PANELS = 2 };  // what fits in 32 registers: a tile of rows by panels

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

#else

typedef struct { __m256 a, b; } floats;
typedef struct { __m256i a, b; } ints;
enum { INT_ROWS = 2, FLOAT_ROWS = 6, PANELS = 1 };  // 16 registers of half the width

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

#endif

// acc + the two products of each lane's pair of bf16, the second pair's first, each rounded
INLINE floats dot2(floats acc, ints weights, ints x) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(acc, (__m512bh)weights, (__m512bh)x);
#else
    ints high = all_int((int32_t)0xffff0000);
    acc = mul_add(of_bits(and_int(weights, high)), of_bits(and_int(x, high)), acc);
    return mul_add(of_bits(up16(weights)), of_bits(up16(x)), acc);
#endif
}

#ifdef __AVX512F__
INLINE __m256 lower(floats x) { return _mm512_castps512_ps256(x); }
INLINE __m256 upper(floats x) { return _mm512_extractf32x8_ps(x, 1); }
#else
INLINE __m256 lower(floats x) { return x.a; }
INLINE __m256 upper(floats x) { return x.b; }
#endif

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
