"""LayerNorm and RMSNorm

After each sum on the residual stream numbers may have grown. A norm brings every token's vector to
a common size, by itself: no other token, no other text of the batch has a say.

    LayerNorm   (x - mu) / sqrt(sigma^2 + eps) * gamma + beta
    RMSNorm     x / sqrt(mean(x^2) + eps) * gamma                 no mean taken away, no beta: Llama's

mu and sigma^2 are mean and variance of the vector's own numbers; sigma^2 divides by the number of
entries n, not by n - 1. eps keeps a vector of zeros from becoming 0 / 0.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 5.2
HINTS = (
    "Every vector is normed by itself: mean and mean square run along the last dimension.",
    "x.mean(-1, keepdim=True) keeps the dimension, so that it can be subtracted.",
    "x.var(-1) divides by n - 1; x.var(-1, correction=0) by n.",
    "eps stands inside the root, beside the variance or the mean square.",
)

# %% yours
import torch
from torch import Tensor


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """x (..., C), gamma and beta (C,) -> (..., C)."""
    # TODO: take the mean away, divide by the root of variance plus eps, scale, shift
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * gamma + beta
    # END


def rms_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """x (..., C), gamma (C,) -> (..., C)."""
    # TODO: divide by the root of the mean square plus eps, scale
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * gamma
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    F = torch.nn.functional
    x, gamma, beta = report.randn(2, 3, 6) * 2 + 1, report.randn(6), report.randn(6)
    eps = 0.1  # large: whoever leaves it out is seen
    mean, var = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    centred = x - mean
    slips = {
        "eps: it is added to the variance, under the root": layer_norm(x, gamma, beta, 0),
        "eps: it stands under the root, not beside it": centred / (var.sqrt() + eps) * gamma + beta,
        "the variance: divide by n, not by n - 1 (torch's var has correction=1)": centred
        / (var * 6 / 5 + eps).sqrt()
        * gamma
        + beta,
        "the mean: it is taken away first": x / (var + eps).sqrt() * gamma + beta,
        "beta: it is added at the end": layer_norm(x, gamma, 0 * beta, eps),
        "gamma and beta: scale first, then shift": layer_norm(x, gamma, beta * gamma, eps),
        "the dimension: each vector by itself, along the last one; not the whole batch": F.layer_norm(
            x, x.shape, None, None, eps
        )
        * gamma
        + beta,
    }
    look = (
        "mean and variance of each vector by itself (the last dimension), variance by n; eps "
        "under the root"
    )
    report.call(learner.layer_norm, layer_norm, x, gamma, beta, eps, slips=slips, look=look)
    root = x.square().mean(-1, keepdim=True).sqrt()
    slips = {
        "eps: it is added to the mean square, under the root": rms_norm(x, gamma, 0),
        "eps: it stands under the root, not beside it": x / (root + eps) * gamma,
        "the mean: RMSNorm takes none away": layer_norm(x, gamma, 0 * beta, eps),
        "the size: the mean of the squares, not their sum": x
        / (root.square() * 6 + eps).sqrt()
        * gamma,
    }
    look = "the mean of the squares of each vector, not their sum; plus eps, under the root"
    report.call(learner.rms_norm, rms_norm, x, gamma, eps, slips=slips, look=look)
    args, look = (torch.zeros(1, 6), gamma, 1e-5), "eps under the root"
    report.call(learner.rms_norm, rms_norm, *args, name="rms_norm of zeros", look=look)
    report.say("both norms are right, with eps, and a vector of zeros stays one")

    from glassformer.core.nn.layers import LayerNorm, RMSNorm

    model, tokenizer = real_model.real()

    def rms(of: Any) -> Any:
        gain = torch.ones(of.shape) if of.weight is None else of.weight.detach()
        return real_model.FunctionModule(lambda x: learner.rms_norm(x, gain, of.eps))

    name = "the text that our model writes with your rms_norm"
    with report.same(name, lambda: real_model.greedy(model, tokenizer)) as text:
        count = real_model.replace(model, RMSNorm, rms)
    report.say(f"in the real model, all {count} norms by your function, the same text: {text!r}")
    model = real_model.translator()
    tokens = report.randint(0, 50, (2, 7))

    def layer(of: Any) -> Any:
        weights = of.weight.detach(), of.bias.detach()
        return real_model.FunctionModule(lambda x: learner.layer_norm(x, *weights, of.eps))

    name = "the logits of the 2017 model with your layer_norm"
    with report.same(name, lambda: real_model.logits(model, tokens, tokens)):
        count = real_model.replace(model, LayerNorm, layer)
    report.say(f"and the {count} LayerNorms of the 2017 encoder-decoder: the same logits")
