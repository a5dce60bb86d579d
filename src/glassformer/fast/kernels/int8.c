// y = x W^T + b with weights of 8 bits, a scale for each 32: (rows, inputs) times (outputs, inputs) -> (rows, outputs).
//
//     whole, row_scale = 32 numbers of a row as whole numbers up to 127, and what 1 stands for
//     sum = the 32 products of whole numbers                      in int32, exact
//     y += float(sum) * (scale * row_scale)                       in fp32, from the first group to the last
//
// W lies as (panel, group, 8, 16 outputs, 4 inputs): one load is what one vpdpbusd multiplies, four inputs of sixteen
// outputs, and a panel is read from its first byte to its last. So one row costs what it costs to read W; many rows
// share each load.

#include "integers.h"

static void piece(const void *task, long at) { multiply(BYTES, task, at); }

// A row of y lies `stride` numbers after the other.
void JOIN(strided_int8, BUILD)(const void *x, const uint8_t *weight, const uint16_t *scales, const float *bias, void *y,
                           void *scratch, long rows, long inputs, long outputs, long stride, int bf16, int threads) {
    const Rows all = {x, bias, y, rows, inputs, outputs, stride, bf16, 0};
    compute(piece, all, weight, scales, scratch, OFFSET8, threads);
}

EXPORT(matmul_int8)(const void *x, const uint8_t *weight, const uint16_t *scales, const float *bias, void *y,
                    void *scratch, long rows, long inputs, long outputs, int bf16, int threads) {
    JOIN(strided_int8, BUILD)(x, weight, scales, bias, y, scratch, rows, inputs, outputs, outputs, bf16, threads);
}
