// y = x W^T + b in fp32: (rows, inputs) times (outputs, inputs) -> (rows, outputs).
//
//     for each input, from the first to the last:
//         y = fma(x, w, y)                                        rounded once
//
// W lies as (panel, inputs, 16 outputs): a step takes one number of each row and one register of outputs, so that no
// sum across a register is ever needed, and the order of sums is the same for any number of rows.

#include "simd.h"
#define STEP(sum, w, x) mul_add(of_bits(x), of_bits(w), sum)
#include "floats.h"

// A row of y lies `stride` numbers after the other.
void JOIN(strided_fp32, BUILD)(const void *x, const void *weight, const float *bias, void *y, void *scratch, long rows,
                           long inputs, long outputs, long stride, int threads) {
    const Rows all = {x, bias, y, rows, inputs, outputs, stride, 0, 0};
    compute(all, weight, scratch, inputs, threads);
}

EXPORT(matmul_fp32)(const void *x, const void *weight, const float *bias, void *y, void *scratch, long rows,
                    long inputs, long outputs, int threads) {
    JOIN(strided_fp32, BUILD)(x, weight, bias, y, scratch, rows, inputs, outputs, outputs, threads);
}
