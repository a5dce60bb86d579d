// What simd.h promises, in four registers of ARM64's NEON. Products of bytes and of bf16 have instructions of their own on
// processors with dotprod, i8mm and bf16.

#pragma once
#include <arm_neon.h>

typedef struct { float32x4_t v[4]; } floats;
typedef struct { int32x4_t v[4]; } ints;
// What fits in 32 registers of a quarter: tiles of rows by panels.
enum { INT_ROWS = 4, FLOAT_ROWS = 6, QUERY_ROWS = 2, PANELS = 1 };

// A result of four registers; the expression says what number i is.
#define FOUR(type, expression)                                                                                         \
    ({                                                                                                                 \
        type four;                                                                                                     \
        UNROLL for (int i = 0; i < 4; i++) four.v[i] = (expression);                                                   \
        four;                                                                                                          \
    })
INLINE floats all(float x) { return FOUR(floats, vdupq_n_f32(x)); }
INLINE floats zeros(void) { return all(0); }
INLINE floats load(const float *p) { return FOUR(floats, vld1q_f32(p + 4 * i)); }
INLINE void store(float *p, floats x) { UNROLL for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]); }
INLINE floats add(floats x, floats y) { return FOUR(floats, vaddq_f32(x.v[i], y.v[i])); }
INLINE floats sub(floats x, floats y) { return FOUR(floats, vsubq_f32(x.v[i], y.v[i])); }
INLINE floats mul(floats x, floats y) { return FOUR(floats, vmulq_f32(x.v[i], y.v[i])); }
INLINE floats quotient(floats x, floats y) { return FOUR(floats, vdivq_f32(x.v[i], y.v[i])); }
INLINE floats mul_add(floats x, floats y, floats z) { return FOUR(floats, vfmaq_f32(z.v[i], x.v[i], y.v[i])); }
// Of zeros, and where one is no number, the second, as x86 has it: fmax would choose otherwise.
INLINE float32x4_t greater4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
INLINE floats greater(floats x, floats y) { return FOUR(floats, greater4(x.v[i], y.v[i])); }
INLINE floats nearest(floats x) { return FOUR(floats, vrndnq_f32(x.v[i])); }
INLINE floats float_of(ints x) { return FOUR(floats, vcvtq_f32_s32(x.v[i])); }
INLINE floats load_half(const uint16_t *p) {
    return FOUR(floats, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
INLINE floats load_bf16(const uint16_t *p) {
    return FOUR(floats, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
INLINE floats of_bits(ints x) { return FOUR(floats, vreinterpretq_f32_s32(x.v[i])); }
INLINE ints bits_of(floats x) { return FOUR(ints, vreinterpretq_s32_f32(x.v[i])); }
INLINE ints all_int(int32_t x) { return FOUR(ints, vdupq_n_s32(x)); }
INLINE ints load_ints(const void *p) { return FOUR(ints, vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p + 16 * i))); }
INLINE void store_ints(void *p, ints x) {
    UNROLL for (int i = 0; i < 4; i++) vst1q_u8((uint8_t *)p + 16 * i, vreinterpretq_u8_s32(x.v[i]));
}
INLINE ints add_int(ints x, ints y) { return FOUR(ints, vaddq_s32(x.v[i], y.v[i])); }
INLINE ints sub_int(ints x, ints y) { return FOUR(ints, vsubq_s32(x.v[i], y.v[i])); }
INLINE ints and_int(ints x, ints y) { return FOUR(ints, vandq_s32(x.v[i], y.v[i])); }
INLINE ints greater_int(ints x, ints y) { return FOUR(ints, vmaxq_s32(x.v[i], y.v[i])); }
INLINE ints int_of(floats x) { return FOUR(ints, vcvtnq_s32_f32(x.v[i])); }  // to the nearest, of two the even
INLINE ints up23(ints x) { return FOUR(ints, vshlq_n_s32(x.v[i], 23)); }
INLINE ints up16(ints x) { return FOUR(ints, vshlq_n_s32(x.v[i], 16)); }
INLINE ints down16(ints x) {
    return FOUR(ints, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x.v[i]), 16)));
}
INLINE ints down4(ints x) {
    return FOUR(ints, vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(x.v[i]), 4)));
}
INLINE void store_halves(uint16_t *p, ints x) {
    UNROLL for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vmovn_u32(vreinterpretq_u32_s32(x.v[i])));
}
INLINE void store_bytes(int8_t *p, ints x) {
    vst1_s8(p, vmovn_s16(vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]))));
    vst1_s8(p + 8, vmovn_s16(vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]))));
}
INLINE int32_t sum_int(ints x) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
}
INLINE int32_t greatest_int(ints x) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[1]), vmaxq_s32(x.v[2], x.v[3])));
}
// a where x has a minus sign, elsewhere b
INLINE floats by_sign(floats x, floats a, floats b) {
    return FOUR(floats, vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(x.v[i])), a.v[i], b.v[i]));
}
// lanes from `first` up to `end` of x, elsewhere of y
INLINE floats between(int first, int end, floats x, floats y) {
    const int32x4_t lane = {0, 1, 2, 3};
    return FOUR(floats, vbslq_f32(vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first - 4 * i)),
                                            vcltq_s32(lane, vdupq_n_s32(end - 4 * i))), x.v[i], y.v[i]));
}

INLINE float first(floats x) { return vgetq_lane_f32(x.v[0], 0); }

// One number of all lanes: of i and i + 8 first, then i + 4, i + 2, i + 1.
#define ACROSS(name, op)                                                                                               \
    INLINE float name(floats x) {                                                                                      \
        const float32x4_t four = op(op(x.v[0], x.v[2]), op(x.v[1], x.v[3]));                                           \
        const float32x4_t two = op(four, vextq_f32(four, four, 2));                                                    \
        return vgetq_lane_f32(op(two, vextq_f32(two, two, 1)), 0);                                                     \
    }
ACROSS(total, vaddq_f32)
ACROSS(greatest, greater4)

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define DOT2
// The two widening multiplications round as mul_add does, where bfdot would not.
INLINE floats dot2(floats acc, ints weights, ints x) {
#define BF16(a) vreinterpretq_bf16_s32(a.v[i])
    return FOUR(floats, vbfmlalbq_f32(vbfmlaltq_f32(acc.v[i], BF16(weights), BF16(x)), BF16(weights), BF16(x)));
}
#endif

// acc + the sum of four products of bytes, weights unsigned and x signed
#define U8(a) vreinterpretq_u8_s32(a)
#define S8(a) vreinterpretq_s8_s32(a)
#ifdef __ARM_FEATURE_MATMUL_INT8

enum { OFFSET8 = 128 };
INLINE ints dot4(ints acc, ints w, ints x) { return FOUR(ints, vusdotq_s32(acc.v[i], U8(w.v[i]), S8(x.v[i]))); }
INLINE ints dot4_small(ints acc, ints w, ints x) { return dot4(acc, w, x); }

// Eight inputs at a time of two rows: a register holds them of two outputs, and sums of two outputs by two rows.
#define ROW_PAIRS
typedef struct { int32x4_t v[8]; } pairs;
#define EIGHT(f, x, y) ((pairs){{f##1q_s32(x.v[0], y.v[0]), f##2q_s32(x.v[0], y.v[0]), f##1q_s32(x.v[1], y.v[1]),      \
    f##2q_s32(x.v[1], y.v[1]), f##1q_s32(x.v[2], y.v[2]), f##2q_s32(x.v[2], y.v[2]), f##1q_s32(x.v[3], y.v[3]),        \
    f##2q_s32(x.v[3], y.v[3])}})
INLINE pairs paired(ints x, ints y) { return EIGHT(vzip, x, y); }
INLINE ints first_of(pairs x) { return FOUR(ints, vuzp1q_s32(x.v[2 * i], x.v[2 * i + 1])); }
INLINE ints second_of(pairs x) { return FOUR(ints, vuzp2q_s32(x.v[2 * i], x.v[2 * i + 1])); }
INLINE pairs dot8(pairs acc, pairs weights, const int8_t *row, const int8_t *next_row) {
    const int8x16_t x = vcombine_s8(vld1_s8(row), vld1_s8(next_row));
    UNROLL for (int i = 0; i < 8; i++) acc.v[i] = vusmmlaq_s32(acc.v[i], U8(weights.v[i]), x);
    return acc;
}

#else

// Weights of 8 bits go in signed, without their offset.
enum { OFFSET8 = 0 };
INLINE int32x4_t four_sums(int32x4_t acc, int8x16_t w, int8x16_t x) {
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(acc, w, x);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
    return vpadalq_s16(acc, vpaddq_s16(low, high));  // two products are at most 2 * 128 * 127, which fits in 16 bits
#endif
}
INLINE ints dot4(ints acc, ints w, ints x) {
    return FOUR(ints, four_sums(acc.v[i], veorq_s8(S8(w.v[i]), vdupq_n_s8(-128)), S8(x.v[i])));
}
INLINE ints dot4_small(ints acc, ints w, ints x) { return FOUR(ints, four_sums(acc.v[i], S8(w.v[i]), S8(x.v[i]))); }

#endif
