"""A LoRA layer

To fine-tune a large model you need not move its matrices. LoRA (Hu et al. 2021) freezes W and
learns a change of low rank beside it, two thin matrices:

    y = W x + b + scale * B (A x)        A (rank, inputs), B (outputs, rank)

B begins at zero, so at first nothing changes; A begins with small random numbers, so that B has
something to learn from. Only A and B get gradients. What is learnt goes into the matrix, W + scale
* B A, and costs nothing more.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 8.3
HINTS = (
    "Nothing of the layer learns; A and B do, and their product is a change of its matrix.",
    "linear.weight.requires_grad_(False) freezes a matrix; do the same with the bias where there "
    "is one.",
    "self.a = nn.Parameter(torch.randn(rank, linear.in_features) * 0.02), self.b = "
    "nn.Parameter(torch.zeros(...)).",
    "x @ A.T @ B.T is B (A x) for rows; the change as a matrix is B @ A.",
)

# %% yours
import torch
from torch import Tensor, nn


class LoRA(nn.Module):
    """A frozen linear layer with a change of low rank beside it."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        # TODO: keep the layer, freeze it; A (rank, inputs) small and random, B (outputs, rank) zero
        self.linear, self.scale = linear, scale
        for weight in linear.parameters():
            weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) * 0.02)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))
        # END

    def forward(self, x: Tensor) -> Tensor:
        """x (..., inputs) -> (..., outputs)."""
        # TODO: the frozen layer's answer plus scale * B (A x)
        return self.linear(x) + self.scale * (x @ self.a.T @ self.b.T)
        # END

    def merged(self) -> Tensor:
        """The matrix (outputs, inputs) that does the same by itself."""
        # TODO: W with the change in it
        return self.linear.weight + self.scale * (self.b @ self.a)
        # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    plain = nn.Linear(6, 4)
    weight, bias = report.randn(4, 6), report.randn(4)
    plain.load_state_dict({"weight": weight, "bias": bias})
    rank, scale = 2, 0.5
    layer, x = learner.LoRA(plain, rank, scale), report.randn(3, 6)
    report.true(isinstance(layer, nn.Module), "LoRA has to be a torch.nn.Module.")
    report.equal(
        "LoRA(linear, 2, 0.5)(x) before training",
        layer(x),
        x @ weight.T + bias,
        look="B begins at zero",
    )
    learn = [weight for weight in layer.parameters() if weight.requires_grad]
    shapes = sorted(tuple(weight.shape) for weight in learn)
    look = "nn.Parameter for A and B; requires_grad_(False) for the weight and bias of the layer"
    report.true(
        shapes == [(rank, 6), (4, rank)],
        f"The shapes that learn are {shapes}; they should be {[(rank, 6), (4, rank)]}.",
        look,
    )
    up, down = sorted(learn, key=lambda weight: -len(weight))
    report.true(
        bool(down.detach().abs().sum() > 0),
        "A is zero: with B zero too no gradient ever comes.",
        "A begins at random",
    )
    change = report.randn(4, rank)
    with torch.no_grad():
        up.copy_(change)
    delta = change @ down.detach()
    slips = {
        "the scale: the change is multiplied by it": x @ (weight + delta).T + bias,
        "the bias: the frozen layer has one": x @ (weight + scale * delta).T,
        "the scale: once, not for A and B each": x @ (weight + scale * scale * delta).T + bias,
    }
    report.equal(
        "LoRA(x) with B filled", layer(x), x @ (weight + scale * delta).T + bias, slips=slips
    )
    slips = {
        "the scale: the change is multiplied by it": weight + delta,
        "what is asked for: W with the change": scale * delta,
    }
    report.equal("merged()", layer.merged(), weight + scale * delta, slips=slips)
    report.say("nothing changes at first, A and B alone learn, merged or beside it is the same")

    from glassformer.core.nn.layers import Linear

    model, tokenizer = real_model.real()
    model.requires_grad_(False)
    total = sum(weight.numel() for weight in model.parameters())
    layers = {
        path: learner.LoRA(module, 4, 2.0)
        for path, module in model.named_modules()
        if isinstance(module, Linear) and path.endswith(("attn.q", "attn.v"))
    }

    class Beside(Linear):  # as the model calls its layers
        def __init__(self, of: Any) -> None:
            nn.Module.__init__(self)
            self.of = of
            self.register_parameter("bias", None)

        def forward(self, x: Tensor) -> Tensor:
            return self.of(x)

    name = "the text with your layers before training"
    with report.same(name, lambda: real_model.greedy(model, tokenizer)):
        for path, layer in layers.items():
            model.set_submodule(path, Beside(layer))
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    ids = torch.tensor([tokenizer.encode(". ".join(real_model.texts()))])
    fell = real_model.optimise(trainable, lambda: real_model.next_token_loss(model, ids), 12, 0.02)
    report.true(
        fell[-1] < 0.9 * fell[0],
        f"12 steps on a few sentences: the loss goes from {fell[0]:.3f} to {fell[-1]:.3f}.",
    )
    few = sum(weight.numel() for weight in trainable)
    name = "the logits with your changes in the matrices"
    with report.same(name, lambda: real_model.logits(model, ids[:, :40]), tolerance=1e-3):
        for path, layer in layers.items():
            outputs, inputs = layer.merged().shape
            merged = Linear(inputs, outputs, bias=False)
            merged.weight = nn.Parameter(layer.merged().detach())
            model.set_submodule(path, merged)
    report.say(
        f"in the real model {few:,} numbers beside {total:,}: loss {fell[0]:.3f} to "
        f"{fell[-1]:.3f}; merged the same"
    )
