"""What each C file of fast/kernels computes, readable, in torch; slow. The compiled functions must
equal these bit for bit.

M rows, N outputs, C inputs.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from glassformer.fast.kernels.reference import integer_product, quantize_rows

__all__ = [
    "activated",
    "attention_row",
    "float_product",
    "fma",
    "integer_product",
    "normed",
    "quantize_rows",
]

LANES = 16


def fma(a, b, c):
    """a * b + c in fp32, rounded once, as the processor's instruction does it.

    The product of two fp32 is exact in fp64. Their sum with c is rounded there to odd, after which
    rounding it again to fp32 cannot go wrong (Boldo and Melquiond, 2008).
    """
    product, c = a.double() * b.double(), c.double()
    total = product + c
    addend = total - product
    error = (product - (total - addend)) + (
        c - addend
    )  # what the sum in fp64 lost (Knuth's two-sum)
    bits = total.view(torch.int64)
    nudge = torch.where((error > 0) == (total > 0), 1, -1)
    odd = torch.where((error != 0) & error.isfinite() & (bits % 2 == 0), bits + nudge, bits)
    return odd.view(torch.float64).float()


def float_product(x, weight, bias=None):
    """x (M, C) times weight (N, C), both fp32 or both bf16 -> (M, N) fp32: input by input, each a
    multiplication and addition rounded once. bf16 takes pairs of inputs, the second of each first,
    as vdpbf16ps does."""
    y = x.new_zeros(len(x), len(weight), dtype=torch.float32)
    last = x.shape[1] - 1
    swapped = x.dtype == torch.bfloat16
    for i in (min(i ^ 1, last) if swapped else i for i in range(last + 1)):
        y = fma(x[:, i, None].float(), weight[:, i].float(), y)
    return y if bias is None else y + bias.float()


def exponential(x):
    """exp(x) in fp32 for x <= 0: 2^n times a polynomial of degree 7 in the rest; 0 below -88."""
    x = x.clamp_min(-88.0)
    n = (x * 1.44269504).round()
    remainder = fma(n, torch.tensor(-1.42860677e-6), fma(n, torch.tensor(-0.693145752), x))
    y = torch.tensor(1 / 5040)
    for term in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1, 1):
        y = fma(y, remainder, torch.tensor(float(term)))
    return y * ((n.to(torch.int32) + 127) << 23).view(torch.float32)


def total(x):
    """The sum of 32 weights (..., 32), as registers are added: i and i + 16, then i + 8, i + 4, i +
    2, i + 1."""
    while x.shape[-1] > 1:
        low, high = x.chunk(2, -1)
        x = low + high
    return x[..., 0]


def normed(x, gain, shift, eps, centred):
    """x (M, C), less its mean where ``centred``, over its root mean square, times gain plus shift
    (C,) -> (M, C) fp32.

    Sums are sixteen: of every sixteenth number, from the first to the last, then as registers are
    added.
    """
    lanes = F.pad(x.float(), (0, -x.shape[1] % LANES)).view(len(x), -1, LANES)
    mean = torch.zeros(len(x), 1)
    sums = torch.zeros(len(x), LANES)
    if centred:
        for step in lanes.unbind(1):
            sums = sums + step
        mean = (total(sums) / x.shape[1])[:, None]
    away = x.float() - mean
    sums = torch.zeros(len(x), LANES)
    for step in F.pad(away, (0, -x.shape[1] % LANES)).view(len(x), -1, LANES).unbind(1):
        sums = fma(step, step, sums)
    # torch's own of fp32 is off by a last place
    size = (total(sums) / x.shape[1] + eps).double().sqrt().float()
    y = away * (1 / size)[:, None]
    y = y if gain is None else y * gain.float()
    return y if shift is None else y + shift.float()


def activated(name, x):
    """relu, relu2, silu or gelu_tanh of each number of x, in fp32: both of the latter by 1 / (1 +
    exp(-x))."""
    x = x.float()
    if name in ("relu", "relu2"):
        return x.clamp_min(0) if name == "relu" else x.clamp_min(0).square()
    inside = x if name == "silu" else (x + x * x * x * 0.044715) * 1.5957691216
    e = exponential(-inside.abs())
    return x * (torch.where(inside.signbit(), e, 1.0) / (1 + e))


def attention_row(
    q,
    k,
    v,
    scale,
    window,
    softcap,
    bias,
):
    """One token's softmax(q k^T) v: q (H, D), k and v (L, H, D), all seen -> (H, D) fp32.

    Pages of 32 keys one after the other, each with the greatest score so far; chunks of 512 keys
    apart, then together.
    """
    heads, dim, length = *q.shape, len(k)
    start = 0 if window is None else max(0, length - window)
    partials = []
    for chunk in range(start // 512, -(-length // 512)):
        most = torch.full((heads,), -torch.inf)
        sums = torch.zeros(heads)
        o = torch.zeros(heads, dim)
        for page in range(max(chunk * 512, start // 32 * 32), min(chunk * 512 + 512, length), 32):
            places = torch.arange(page, page + 32)
            visible = (places >= start) & (places < length)
            at = places.clamp(max=length - 1)
            scores = float_products(q, k[at].transpose(0, 1)) * scale
            if softcap is not None:
                e = exponential(-2 * (scores / softcap).abs())
                scores = torch.copysign((1 - e) / (1 + e) * softcap, scores)
            if bias is not None:
                scores = scores + bias[:, (length - 1 - at).clamp(max=bias.shape[1] - 1)]
            scores = scores.masked_fill(~visible, -torch.inf)
            greatest = torch.maximum(most, scores.amax(-1))
            pattern = exponential(scores - greatest[:, None])
            shrink = exponential(most - greatest)
            most, sums, o = greatest, sums * shrink + total(pattern), o * shrink[:, None]
            for j in visible.nonzero().flatten().tolist():
                o = fma(pattern[:, j, None], v[page + j].float(), o)
        partials.append((most, sums, o))
    if len(partials) == 1:
        return o / sums[:, None]
    greatest = torch.stack([most for most, _, _ in partials]).amax(0)
    denominator = torch.zeros(heads)
    y = torch.zeros(heads, dim)
    for most, sums, o in partials:
        weight = exponential(most - greatest)
        denominator, y = denominator + sums * weight, fma(o, weight[:, None], y)
    return y / denominator[:, None]


def float_products(q, k):
    """q (H, D) with k (H, n, D) -> (H, n): ``float_product`` for each head."""
    return torch.stack(
        [float_product(query[None], keys)[0] for query, keys in zip(q, k, strict=True)]
    )
