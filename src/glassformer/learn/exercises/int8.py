"""A matrix in 8 bits

A weight of 32 bits can be held as an integer from -127 to 127 and a scale that a whole row shares:

    scale = the row's largest size / 127            one number a row
    code = round(weight / scale)                    int8
    weight again = code * scale                     off by at most half a scale

A quarter of the memory, and the error is known. A row of zeros must not divide by zero.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 12.1
HINTS = (
    "One scale a row: its largest number becomes 127 or -127, the others fall between.",
    "w.abs().amax(-1) is the largest size of each row.",
    "Where a row is all zeros take any scale, such as 1: its codes are 0 anyway.",
    "(w / scale[:, None]).round().to(torch.int8): round first, .to(int8) alone cuts off.",
)

# %% yours
import torch
from torch import Tensor


def quantize(w: Tensor) -> tuple[Tensor, Tensor]:
    """w (N, C) -> codes (N, C) of torch.int8, and scales (N,)."""
    # TODO: the scale of each row; the codes, rounded to the nearest
    scales = w.abs().amax(-1) / 127
    scales = torch.where(scales == 0, 1.0, scales)
    return (w / scales[:, None]).round().to(torch.int8), scales
    # END


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """The numbers (N, C) that codes and scales stand for."""
    # TODO: each code times the scale of its row
    return codes * scales[:, None]
    # END


def largest_error(w: Tensor) -> float:
    """The largest distance of a number of w from what its code stands for, in scales of its row:
    0.5 or less."""
    # TODO: quantize, dequantize, the largest distance divided by the row's scale
    codes, scales = quantize(w)
    return float(((dequantize(codes, scales) - w).abs() / scales[:, None]).max())
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    w = report.randn(5, 9) * torch.tensor([1.0, 100.0, 0.01, 3.0, 1.0])[:, None]
    w[4] = 0
    result = learner.quantize(w)
    report.pair(result, "quantize gives back two things: the codes and the scales.")
    codes, scales = result
    want, right = quantize(w)
    right = right[:4]
    slips: Any = {
        "the row: each has a scale of its own; yours is one for all": (w.abs().max() / 127).expand(
            4
        ),
        "the size: the largest of the absolute values": w[:4].amax(-1) / 127,
        "127: codes go from -127 to 127, so that both signs reach the same": w[:4].abs().amax(-1)
        / 128,
        "the column: one scale for each row (the last dimension is what it shares)": w.abs().amax(
            0
        )[:4]
        / 127,
    }
    report.true(
        tuple(torch.as_tensor(scales).shape) == (5,),
        f"The scales have the shape {tuple(scales.shape)} and should have (5,).",
    )
    report.equal("scales[:4]", scales[:4], right, tolerance=1e-5, slips=slips)
    report.true(
        codes.dtype == torch.int8,
        f"The codes are {codes.dtype}; they should be torch.int8.",
        ".to(torch.int8)",
    )
    slips = {
        "the rounding: to the nearest; .to(torch.int8) alone cuts off": torch.cat(
            ((w[:4] / right[:, None]).trunc(), torch.zeros(1, 9))
        )
    }
    report.equal("the codes (row 4 is all zeros)", codes, want, slips=slips)
    example = report.randint(-127, 128, (3, 4)).to(torch.int8), report.rand(3) + 0.1
    report.call(learner.dequantize, dequantize, *example, look="code times scale")
    look = "the largest |difference| / scale; and a row of zeros, which must not become 0 / 0"
    report.call(learner.largest_error, largest_error, w, look=look)
    report.say(
        f"codes, scales and error are right; no number is further off than {largest_error(w):.3f} of "
        "its row's scale"
    )

    from glassformer.core.nn.layers import Linear

    model, tokenizer = real_model.real()
    ids = torch.tensor([tokenizer.encode(". ".join(real_model.texts()))])
    before = real_model.next_token_loss(model, ids).item()
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    for module in layers:
        weight = module.weight.detach()
        codes, scales = learner.quantize(weight)
        again = learner.dequantize(codes.clone(), scales.clone()).float()
        report.true(
            bool(((again - weight).abs() <= 0.51 * quantize(weight)[1][:, None]).all()),
            "A matrix of the real model is off by more than half a scale.",
        )
        weight.copy_(again)
    size = sum(module.weight.numel() for module in layers)
    after = real_model.next_token_loss(model, ids).item()
    report.true(
        after < before + 0.05,
        f"The loss of the real model goes from {before:.4f} to {after:.4f} with your codes.",
    )
    report.say(
        f"in the real model {len(layers)} matrices: {4 * size:,} bytes become {size:,}, loss "
        f"{before:.4f} becomes {after:.4f}"
    )
    report.say(f"it writes {real_model.greedy(model, tokenizer)!r}")
