"""The arithmetic of the reference beside exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

import kernel_reference as reference


def nearest(exact):
    """The fp32 nearest to a fraction, of two equally near ones the even: between its neighbours on
    either side."""
    guess = np.float32(float(exact))
    around = [
        np.nextafter(guess, np.float32(-np.inf)),
        guess,
        np.nextafter(guess, np.float32(np.inf)),
    ]
    return float(
        min(
            around,
            key=lambda item: (abs(Fraction(float(item)) - exact), int(item.view(np.int32)) % 2),
        )
    )


def test_fma_rounds_once():
    a, b, c = torch.randn(3, 3000)
    c = c * 2.0 ** torch.randint(-40, 40, (3000,))
    item = torch.tensor(1.0)
    # its square is 1 + 2^-11 + 2^-24: half a last place, which the least of c decides
    tie = 1 + 2.0**-12
    hard = [(tie, tie, s * 2.0**e) for s in (1, -1) for e in (-80, -60, -30)]
    # a product of half a last place of c, less or more by 2^-64 and 2^-60
    hard += [(2.0**-24 * (1 + 2.0**-20), 1 - 2.0**-20, 1 + 2.0**-23)]
    hard += [(2.0**-24 * tie, 1 - 2.0**-12 + 2.0**-24, 1.0)]
    a, b, c = (
        torch.cat([old, item * torch.tensor(new)])
        for old, new in zip((a, b, c), zip(*hard, strict=True), strict=True)
    )
    for x, y, z, got in zip(
        a.tolist(), b.tolist(), c.tolist(), reference.fma(a, b, c).tolist(), strict=True
    ):
        assert got == nearest(Fraction(x) * Fraction(y) + Fraction(z)), (x, y, z)


def test_quantized_rows_are_within_half_a_step():
    x = torch.randn(5, 70) * 10.0 ** torch.randint(-20, 20, (5, 1))
    x[3] = 0
    full, scale = reference.quantize_rows(x)
    assert full.abs().max() == 127
    assert torch.equal(full, full.round())
    back = (full * scale[..., None]).flatten(1)
    steps = scale.repeat_interleave(32, 1)
    assert ((back[:, :70] - x).abs() <= 0.5001 * steps[:, :70]).all()
    assert not back[:, 70:].any()


def test_float_product_is_near_the_truth():
    x = torch.randn(3, 50)
    weight = torch.randn(7, 50)
    bias = torch.randn(7)
    truth = x.double() @ weight.double().T + bias
    assert (reference.float_product(x, weight, bias) - truth).abs().max() < 1e-5
