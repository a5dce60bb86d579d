// What a block does to rows beside its products: norms, activations, rotary turns. Numbers are fp32, or bf16 that is
// computed in fp32.

#pragma once
#include "simd.h"

// Sixteen numbers from `at` on, zeros from `end` on.
INLINE floats take(const void *x, long at, long end, int bf16) {
    if (end - at >= 16) return bf16 ? load_bf16((const uint16_t *)x + at) : load((const float *)x + at);
    uint16_t halves[16] = {0};
    float whole[16] = {0};
    if (bf16) memcpy(halves, (const uint16_t *)x + at, 2 * (end - at));
    else memcpy(whole, (const float *)x + at, 4 * (end - at));
    return bf16 ? load_bf16(halves) : load(whole);
}

INLINE void put(void *y, long at, long end, int bf16, floats x) {
    uint16_t halves[16];
    float whole[16];
    const long count = end - at < 16 ? end - at : 16;
    if (bf16) x = as_bf16(x);
    if (bf16 && count == 16) store_halves((uint16_t *)y + at, down16(bits_of(x)));
    else if (bf16) store_halves(halves, down16(bits_of(x))), memcpy((uint16_t *)y + at, halves, 2 * count);
    else if (count == 16) store((float *)y + at, x);
    else store(whole, x), memcpy((float *)y + at, whole, 4 * count);
}

// Rounded as a result of its own would be.
INLINE floats rounded(floats x, int bf16) { return bf16 ? as_bf16(x) : x; }

typedef enum { NO_NORM, RMS, LAYER } NormKind;

typedef struct {
    const void *gain, *shift;  // (width) or null
    long kind;
    float eps;
} Norm;

// y (width) = x less its mean (LAYER), times 1 / sqrt(mean square + eps), times the gain, plus the shift; a sum over x
// is sixteen sums, of every sixteenth number, added as `total` does.
INLINE void norm_row(const Norm *norm, const void *x, void *y, long width, int bf16) {
    floats sum = zeros(), mean = zeros();
    if (norm->kind == LAYER) {
        for (long i = 0; i < width; i += 16) sum = add(sum, take(x, i, width, bf16));
        mean = all(total(sum) / (float)width), sum = zeros();
    }
    for (long i = 0; i < width; i += 16) {
        const floats away = sub(take(x, i, width, bf16), mean);
        const floats there = width - i < 16 ? between(0, (int)(width - i), away, zeros()) : away;
        sum = mul_add(there, there, sum);
    }
    const floats scale = all(1 / __builtin_sqrtf(total(sum) / (float)width + norm->eps));
    for (long i = 0; i < width; i += 16) {
        floats one = mul(sub(take(x, i, width, bf16), mean), scale);
        if (norm->gain) one = mul(one, take(norm->gain, i, width, bf16));
        if (norm->shift) one = add(one, take(norm->shift, i, width, bf16));
        put(y, i, width, bf16, one);
    }
}

typedef enum { RELU, RELU2, GELU_TANH, SILU } Activation;

// 1 / (1 + exp(-x)), of a negative x as exp(x) / (1 + exp(x))
INLINE floats logistic(floats x) {
    const floats size = of_bits(and_int(bits_of(x), all_int(0x7fffffff)));
    const floats e = exponential(sub(zeros(), size));
    return quotient(by_sign(x, e, all(1)), add(all(1), e));
}

INLINE floats activated(Activation kind, floats x) {
    const floats positive = greater(zeros(), x);
    switch (kind) {
        case RELU: return positive;
        case RELU2: return mul(positive, positive);
        case SILU: return mul(x, logistic(x));
        case GELU_TANH: break;
    }
    const floats cube = mul(mul(x, x), x);  // 0.5 x (1 + tanh u) is x logistic(2 u)
    return mul(x, logistic(mul(all(1.5957691216f), add(x, mul(all(0.044715f), cube)))));
}

// One head (dim): its first `turned` numbers turned by cos and sin (turned), the sines of each pair's first negated;
// pairs are (i, i + turned / 2), or neighbours. Rounded at each step, as published models are.
INLINE void turn(float *head, const float *cos, const float *sin, long turned, int neighbours, int bf16) {
    float other[turned + 16];
    const long half = turned / 2;
    if (neighbours) for (long i = 0; i < turned; i++) other[i] = head[i ^ 1];
    else memcpy(other, head + half, half * 4), memcpy(other + half, head, half * 4);
    for (long i = 0; i < turned; i += 16) {
        const floats a = rounded(mul(take(head, i, turned, 0), take(cos, i, turned, 0)), bf16);
        const floats b = rounded(mul(take(other, i, turned, 0), take(sin, i, turned, 0)), bf16);
        put(head, i, turned, 0, rounded(add(a, b), bf16));
    }
}
