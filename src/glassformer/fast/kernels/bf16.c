// y = x W^T + b in bf16, sums in fp32: (rows, inputs) times (outputs, inputs) -> (rows, outputs).
//
//     for each pair of inputs, from the first to the last:
//         y = fma(second x, second w, y)                          in fp32, rounded once
//         y = fma(first x, first w, y)                            likewise: the order of vdpbf16ps
//
// W lies as (panel, inputs / 2, 16 outputs, 2 inputs): one load is what one vdpbf16ps multiplies, and a panel is read
// from its first byte to its last.

#include "simd.h"
#define STEP(sum, w, x) dot2(sum, w, x)
#include "floats.h"

// A row of y lies `stride` numbers after the other.
void JOIN(strided_bf16, BUILD)(const void *x, const void *weight, const float *bias, void *y, void *scratch, long rows,
                           long inputs, long outputs, long stride, int threads) {
    const Rows all = {x, bias, y, rows, inputs, outputs, stride, 1, 0};
    compute(all, weight, scratch, inputs / 2, threads);
}

EXPORT(matmul_bf16)(const void *x, const void *weight, const float *bias, void *y, void *scratch, long rows,
                    long inputs, long outputs, int threads) {
    JOIN(strided_bf16, BUILD)(x, weight, bias, y, scratch, rows, inputs, outputs, outputs, threads);
}
