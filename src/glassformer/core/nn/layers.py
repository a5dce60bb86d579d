"""The layers that are not attention: norms, linear layers, feed-forwards, and both ends of the
model: tokens to vectors, vectors to logits. Mixtures of feed-forwards are in experts.py.

B batch, T tokens, C model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import config
from .build import build, builds
from .flow import Flow, TracedModule


def norm(cfg: config.Norm | None, dim: int) -> nn.Module:
    """The norm that a config asks for; None leaves vectors as they are."""
    module: nn.Module = nn.Identity() if cfg is None else build(cfg, dim)
    return module


@builds(config.LayerNorm)
class LayerNorm(nn.LayerNorm):
    """Subtract the mean, divide by the deviation, scale and shift (Ba et al. 2016)."""

    def __init__(self, cfg: config.LayerNorm, dim: int) -> None:
        super().__init__(dim, cfg.eps, bias=cfg.bias)


@builds(config.RMSNorm)
class RMSNorm(nn.Module):
    """Divide by the root mean square, times ``offset + weight`` (Zhang & Sennrich 2019)."""

    def __init__(self, cfg: config.RMSNorm, dim: int) -> None:
        super().__init__()
        self.eps, self.offset, self.shape = cfg.eps, cfg.offset, (dim,)
        self.weight = nn.Parameter(torch.full((dim,), 1.0 - cfg.offset)) if cfg.gain else None

    def forward(self, x: Tensor) -> Tensor:
        gain = self.weight
        if gain is not None and self.offset:
            gain = gain + self.offset  # type: ignore[assignment]
        if x.requires_grad and x.device.type == "cpu" and not torch.compiler.is_compiling():
            unit: Tensor = _Unit.apply(x, self.eps)  # type: ignore[no-untyped-call]
            return unit if gain is None else torch.mul(unit, gain.to(x.dtype))
        return F.rms_norm(x, self.shape, None if gain is None else gain.to(x.dtype), self.eps)

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, 1.0 - self.offset)


class _Unit(torch.autograd.Function):
    """x / rms(x) with its gradient by hand: PyTorch's on a CPU is a dozen small operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        # in x's precision: one pass over x
        scale = size.square_().div_(x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        unit: Tensor = x * scale
        ctx.save_for_backward(unit, scale)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        unit, scale = ctx.saved_tensors
        along = (grad * unit).mean(-1, keepdim=True)  # what would only change the length
        return torch.addcmul(grad, unit, along, value=-1).mul_(scale), None


class Linear(nn.Linear):
    """A dense layer y = x W^T (+ b); its weight is (outputs, inputs), and ``config.Init`` draws it.

    A class of its own, so that others can take its place: low-rank changes (lora.py), prepacked
    weights (fast/packed_layers.py).
    """

    products = ("weight",)

    def reset_parameters(self) -> None:
        """Nothing: drawing twice would take time."""

    @property
    def prepackable(self) -> bool:
        """True where the forward pass is nn.Linear's, so that a prepacked copy may replace it."""
        return type(self).forward is nn.Linear.forward

    def matrix(self) -> Tensor:
        """The effective weight (N, C), a low-rank change added: for kernels that take a matrix."""
        return self.weight

    def joint(self, x: Tensor, layers: Sequence[Linear]) -> Sequence[Tensor]:
        """The outputs of ``layers`` (this is the first) on one x; prepacked weights fuse them."""
        return [layer(x) for layer in layers]


def linear(inputs: int, outputs: int, bias: bool) -> Linear:
    return Linear(inputs, outputs, bias=bias)


def fused_linear(x: Tensor, *layers: Linear) -> Sequence[Tensor]:
    """[layer(x) for layer in layers], x (..., C) -> (..., N); one product where prepacked."""
    return layers[0].joint(x, layers)


def autocast(x: Tensor, *weights: Tensor | None) -> Any:
    """The tensors in the number format of autocast, where that is on."""
    device, tensors = x.device.type, (x, *weights)
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU (So et al. 2021)."""
    return F.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation (GPT-2)."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": relu2,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@builds(config.MLP)
class MLP(TracedModule):
    """down(act(up(x)))."""

    writes = ("down.weight",)

    def __init__(self, cfg: config.MLP, dim: int) -> None:
        super().__init__()
        self.act = ACTIVATIONS[cfg.act]
        self.up = linear(dim, cfg.hidden, cfg.bias)
        self.down = linear(cfg.hidden, dim, cfg.bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        x = flow.look(self, "in", x)
        hidden = flow.look(self, "hidden", self.act(flow.look(self, "pre", self.up(x))))
        return flow.look(self, "write", self.down(hidden))


@builds(config.GatedMLP)
class GatedMLP(TracedModule):
    """down(act(gate(x)) * up(x))."""

    fused_projections = ("gate", "up")  # of one and the same x
    writes = ("down.weight",)

    def __init__(self, cfg: config.GatedMLP, dim: int) -> None:
        super().__init__()
        self.act = ACTIVATIONS[cfg.act]
        self.gate = linear(dim, cfg.hidden, cfg.bias)
        self.up = linear(dim, cfg.hidden, cfg.bias)
        self.down = linear(cfg.hidden, dim, cfg.bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        x = flow.look(self, "in", x)
        gate, up = fused_linear(x, self.gate, self.up)
        gate = flow.look(self, "gate", self.act(flow.look(self, "pre", gate)))
        hidden = flow.look(self, "hidden", gate * flow.look(self, "up", up))
        return flow.look(self, "write", self.down(hidden))


@builds(config.Embed)
class Embed(TracedModule):
    """One vector a token, scaled, plus one a segment (BERT) and one for each token before it."""

    def __init__(self, cfg: config.Embed, dim: int) -> None:
        super().__init__()
        self.scale = cfg.scale
        self.token = make_table(cfg.vocab, dim)
        self.segment = make_table(cfg.segments, dim) if cfg.segments else None
        missing = cfg.vocab  # the last row of each table: there is no such token before
        self.lag = nn.ModuleList(
            make_table(missing + 1, dim) for _ in range(cfg.previous_token_embeddings)
        )
        # the further back, the more
        self.init_std_divisor = {f"lag.{back}.weight": back + 2 for back in range(len(self.lag))}
        self.products = ("token.weight", *self.init_std_divisor)

    def forward(self, tokens: Tensor, flow: Flow, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T) -> (B, T, C); ``segments`` (B, T) are 0 where not given."""
        x = flow.look(flow.embed_path, "token", self.token(tokens))
        for back, table in enumerate(self.lag, start=1):
            earlier = table(previous_tokens(tokens, flow, back, nothing=self.token.num_embeddings))
            x = x + flow.look(flow.embed_path, f"lag.{back - 1}", earlier)
        if self.scale != 1.0:
            # rounded to x's precision, as published models do
            x = x * torch.tensor(self.scale, dtype=x.dtype)
        if self.segment is not None:
            rows = torch.zeros_like(tokens) if segments is None else segments
            x = x + flow.look(flow.embed_path, "segment", self.segment(rows))
        return x


def make_table(rows: int, dim: int) -> nn.Embedding:
    """Vectors not drawn yet: PyTorch's own draw on the "meta" device imports its compiler."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))


def previous_tokens(tokens: Tensor, flow: Flow, back: int, nothing: int) -> Tensor:
    """The token ``back`` positions before each one in its document (B, T), or ``nothing``."""
    if flow.previous is not None:
        earlier = flow.previous[:, :, back - 1]
        return torch.where(earlier >= 0, earlier, nothing)
    pos, start = flow.pos.expand_as(tokens), 0
    context = (tokens, pos)
    if flow.history is not None:  # older ones before them
        start = flow.history[0].shape[1]
        context = (torch.cat((flow.history[0], tokens), 1), torch.cat((flow.history[1], pos), 1))
    end = start + tokens.shape[1]
    earlier, place = (F.pad(x, (back, 0), value=-1)[:, start:end] for x in context)
    return torch.where((place == pos - back) & (place >= 0), earlier, nothing)


class Projection(nn.Module):
    """Hidden states times a table (V, C), plus a bias; its own table unless it is tied."""

    products = ("weight",)

    def __init__(self, dim: int, vocab: int, tied: bool, bias: bool) -> None:
        super().__init__()
        self.vocab = vocab
        self.weight = None if tied else nn.Parameter(torch.empty(vocab, dim))
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return F.linear(x, table, self.bias)


@builds(config.Head)
class Head(TracedModule):
    """Hidden states to logits (B, T, V): (transform, activate, norm), scale, project, cap."""

    def __init__(self, cfg: config.Head, dim: int, vocab: int) -> None:
        super().__init__()
        self.scale, self.softcap = cfg.scale, cfg.softcap
        inner = cfg.width or dim
        self.transform = linear(dim, inner, cfg.transform_bias) if cfg.transform else None
        self.act = ACTIVATIONS[cfg.transform] if cfg.transform else None
        self.norm = norm(cfg.norm, inner)
        self.proj = Projection(inner, vocab, cfg.tied, cfg.bias)
        # where the vocabulary lies on several processes
        self.cross_entropy: Callable[..., Tensor] | None = None

    def forward(self, hidden: Tensor, embed: Embed) -> Tensor:
        logits: Tensor = self.proj(self.prepare(hidden), self.table(embed))
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def prepare(self, hidden: Tensor) -> Tensor:
        """Hidden states as the table is multiplied with them, (..., C)."""
        if self.transform is not None and self.act is not None:
            hidden = self.act(self.transform(hidden))
        hidden = self.norm(hidden)
        return hidden * self.scale if self.scale != 1.0 else hidden

    def table(self, embed: Embed) -> Tensor:
        """A vector for each token of the vocabulary, (V, C); the embedding's when tied."""
        return embed.token.weight if self.proj.weight is None else self.proj.weight
