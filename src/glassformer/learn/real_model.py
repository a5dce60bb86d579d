"""The real model that a learner's part runs in, and the places in it where the part goes.

The model is the small one that comes with the package (4 blocks, 4 heads, Shakespeare and the
like). Where a part needs another kind of model, it is one of the family's at small size, its
weights drawn.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import config as c
from ..core import registry
from ..core.nn import Model, build_model
from ..core.nn.attention import Attention

PROMPT = "Once upon a time"
# large weights: a wrong part shows in the logits
WIDE = c.Init(std=0.15, embed_std=0.3, residual="plain")


def shipped() -> Path:
    """The folder of the small model that comes with the package."""
    return Path(str(resources.files("glassformer"))) / "models" / "tiny"


@functools.lru_cache(maxsize=1)
def _real() -> tuple[Any, Any]:
    (store,) = registry.load("stores")
    model, tokenizer = store.load(str(shipped()), dtype="float32")
    return model, tokenizer


def real() -> tuple[Any, Any]:
    """The small model and its tokenizer, as they were trained: each call gives a copy of the
    model."""
    model, tokenizer = _real()
    return copy.deepcopy(model).eval(), tokenizer


@torch.no_grad()
def greedy(model: Model, tokenizer: Any, prompt: str = PROMPT, count: int = 24) -> str:
    """The likeliest continuation, token by token, the whole text read again for each: the plainest
    loop."""
    ids = tokenizer.encode(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]), logits="last").logits[0, -1].argmax()))
    return str(tokenizer.decode(ids))


@torch.no_grad()
def logits(model: Model, *tokens: Tensor) -> Tensor:
    """The logits of one pass (B, T, V)."""
    output: Tensor = model(*tokens).logits
    return output


def next_token_loss(model: Model, ids: Tensor) -> Tensor:
    """The mean loss of a text's tokens (1, T), each after those before it."""
    return nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:])


def optimise(
    weights: Iterable[nn.Parameter], loss: Callable[[], Tensor], steps: int, lr: float
) -> list[float]:
    """Steps of Adam; the loss before each."""
    optimizer = torch.optim.Adam(weights, lr=lr)
    losses = list[float]()
    for _ in range(steps):
        value = loss()
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(value.item())
    return losses


def attentions(model: nn.Module) -> list[Any]:
    """Each block's attention."""
    return [module for module in model.modules() if isinstance(module, Attention)]


def attend_with(
    model: Model, attention: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
) -> Model:
    """The model with ``part(q, k, v, allowed)`` in the place of its attention.

    q is (H, T, D), k and v (K, S, D), allowed (T, S); what it gives is (H, T, D). One text at a
    time.
    """
    for module in attentions(model):

        def attend(
            flow: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, position: Any = None
        ) -> Tensor:
            return attention(q[0], k[0], v[0], mask.dense()[0, 0])[None]

        module.attend = attend
    return model


def replace(model: Model, kind: type[nn.Module], build: Callable[[Any], nn.Module]) -> int:
    """Put ``made(module)`` in the place of each module of that type; how many there were."""
    modules = [(path, module) for path, module in model.named_modules() if isinstance(module, kind)]
    for path, module in modules:
        model.set_submodule(path, build(module))
    return len(modules)


class FunctionModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        return self.function(x)


# ---------------------------------------------------------------------------------- small ones,
# their weights drawn


def decoder(
    feedforward: c.FeedForward | None = None, attention: c.Attention | None = None, seed: int = 0
) -> Any:
    """A Llama of 2 blocks, 32 wide."""
    block = c.Block(attention or c.Attention(4), feedforward or c.GatedMLP(64))
    stack = c.Stack(2, (block,), c.Rotary(), last_norm=c.RMSNorm())
    return build_model(c.Decoder(32, 64, c.Embed(50), stack, c.Head(), WIDE), seed=seed).eval()


def translator(seed: int = 0) -> Any:
    """The encoder-decoder of 2017, 32 wide: post-norm, sinusoidal positions."""
    relu = c.MLP(64, "relu", bias=True)
    attention = c.Attention(4)
    plain: Any = {"norm": c.LayerNorm(), "place": "post"}
    encoder = c.Stack(2, (c.Block(attention, relu, **plain),), c.Sinusoidal(), causal=False)
    crossed = c.Stack(2, (c.Block(attention, relu, cross=c.Attention(4), **plain),), c.Sinusoidal())
    model = c.EncoderDecoder(32, 64, c.Embed(50, scale=32**0.5), encoder, crossed, c.Head(), WIDE)
    return build_model(model, seed=seed).eval()


def recurrent(seed: int = 0) -> Any:
    """An encoder-decoder of 2015: GRUs, and attention from one to the other."""
    loud = c.Init(std=0.4, embed_std=1.0, residual="plain", head_std=0.6)
    encoder = c.Recurrent(1, c.GRU(), causal=False)
    crossed = c.Recurrent(1, c.GRU(), cross=c.Additive(16))
    return build_model(
        c.EncoderDecoder(32, 64, c.Embed(50), encoder, crossed, c.Head(), loud), seed=seed
    ).eval()


def encoder(vocab: int = 50, seed: int = 0) -> Any:
    """A small BERT without segments."""
    block = c.Block(c.Attention(4), c.MLP(64), c.LayerNorm())
    stack = c.Stack(2, (block,), c.Learned(64), causal=False, last_norm=c.LayerNorm())
    return build_model(c.Encoder(32, 64, c.Embed(vocab), stack, c.Head()), seed=seed)


def texts() -> Sequence[str]:
    """Lines that every learner may train on, in a moment."""
    return (
        "the cat sat on the mat because it was tired",
        "the dog chased the ball and the cat chased the dog",
        "the animal did not cross the street because it was too tired",
        "the keys to the cabinet are on the table",
        "the bird sat on the tree along the bank",
        "she loved to play outside in the park with the ball",
    )
