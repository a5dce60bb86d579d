// y = x W^T + b with weights of 4 bits, from -8 to 7, a scale for each 32; the products of int8.c.
//
//     low, high = byte & 15, byte >> 4                            8 more than the weights
//     sum = the 32 products of whole numbers                      in int32, exact
//     y += float(sum) * (scale * row_scale)                       in fp32, from the first group to the last
//
// A byte holds two weights that are 16 inputs apart: the low halves of 64 bytes are one load of int8.c, the high halves
// another. Few rows take them apart in registers; many rows once into the first cache.

#include "integers.h"

static void piece(const void *task, long at) { multiply(NIBBLES, task, at); }

// A row of y lies `stride` numbers after the other.
void JOIN(strided_int4, BUILD)(const void *x, const uint8_t *weight, const uint16_t *scales, const float *bias, void *y,
                           void *scratch, long rows, long inputs, long outputs, long stride, int bf16, int threads) {
    const Rows all = {x, bias, y, rows, inputs, outputs, stride, bf16, 0};
    compute(piece, all, weight, scales, scratch, 8, threads);
}

EXPORT(matmul_int4)(const void *x, const uint8_t *weight, const uint16_t *scales, const float *bias, void *y,
                    void *scratch, long rows, long inputs, long outputs, int bf16, int threads) {
    JOIN(strided_int4, BUILD)(x, weight, scales, bias, y, scratch, rows, inputs, outputs, outputs, bf16, threads);
}
