"""Parts that Glassformer does not have, in a file of one's own: ``--use own_parts.py``; told in
docs/extending.md."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from glassformer import config
from glassformer.core.config.objective import Objective
from glassformer.core.config.serial import PositiveInt
from glassformer.core.errors import need
from glassformer.core.nn import Flow, TracedModule, builds
from glassformer.core.nn.cache import MixerState
from glassformer.core.nn.layers import linear
from glassformer.core.nn.model import Block
from glassformer.core.nn.position import Position
from glassformer.core.training.batches import Batch
from glassformer.core.training.loss import Loss, forward, token_loss


@config.member(config.FeedForward)
class ReluSquared:
    """Up, the square of what is above 0, down (So et al. 2021)."""

    hidden: PositiveInt  # width inside


@builds(ReluSquared)
class ReluSquaredModule(TracedModule):
    # it adds to the residual stream: how it starts is told by Init.residual
    writes = ("down.weight",)

    def __init__(self, cfg: ReluSquared, dim: int) -> None:
        super().__init__()
        self.up, self.down = linear(dim, cfg.hidden, bias=True), linear(cfg.hidden, dim, bias=True)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return self.down(self.up(x).relu().square())


@config.member(config.Norm)
class ScaleNorm:
    """One gain for a whole vector (Nguyen & Salazar 2019)."""

    eps: float = 1e-5  # added to the length


@builds(ScaleNorm)
class ScaleNormModule(nn.Module):
    def __init__(self, cfg: ScaleNorm, dim: int) -> None:
        super().__init__()
        self.eps, self.start = cfg.eps, dim**0.5
        self.gain = nn.Parameter(torch.empty(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain / (x.norm(dim=-1, keepdim=True) + self.eps)

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        nn.init.constant_(self.gain, self.start)


@config.member(config.FeedForward)
class Bilinear:
    """A product of two linear maps, and back (Shazeer 2020)."""

    hidden: PositiveInt  # width of both maps


@builds(Bilinear)
class BilinearModule(TracedModule):
    writes = ("w3.weight",)

    def __init__(self, cfg: Bilinear, dim: int) -> None:
        super().__init__()
        self.w1, self.w2 = linear(dim, cfg.hidden, bias=False), linear(dim, cfg.hidden, bias=False)
        self.w3 = linear(cfg.hidden, dim, bias=True)
        self.inner = nn.LayerNorm(cfg.hidden)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        x = flow.look(self, "in", x)
        hidden = flow.look(self, "hidden", self.inner(self.w1(x) * self.w2(x)))
        return flow.look(self, "write", self.w3(hidden))


@config.member(config.Mixer)
class MinGRU:
    """A gated mean of the tokens so far (Feng et al. 2024)."""

    hidden: PositiveInt  # width of the state

    def state_size(self, dim: int) -> int:
        return self.hidden

    def flops(self, dim: int, context: int) -> int:
        return 4 * self.hidden


@builds(MinGRU)
class MinGRUModule(TracedModule):
    writes = ("out.weight",)

    def __init__(self, cfg: MinGRU, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        need(causal, "MinGRU reads from left to right; give it a causal stack.")
        self.gate = linear(dim, cfg.hidden, bias=True)
        self.candidate = linear(dim, cfg.hidden, bias=True)
        self.out = linear(cfg.hidden, dim, bias=False)

    def forward(
        self, x: Tensor, flow: Flow, position: Position, state: MixerState | None = None
    ) -> Tensor:
        x = flow.look(self, "in", x)
        gate, candidate = self.gate(x).sigmoid(), self.candidate(x)
        starts, is_token = (flow.pos == 0)[..., None], (flow.pos >= 0)[..., None]
        hidden = state.tensors[0] if state and state.tensors else torch.zeros_like(gate[:, 0])
        outputs = []
        for t in range(x.shape[1]):
            before = torch.where(starts[:, t], 0.0, hidden)
            after = before + gate[:, t] * (candidate[:, t] - before)
            hidden = torch.where(is_token[:, t], after, hidden)
            outputs.append(hidden)
        if state is not None:
            state.tensors = (hidden,)
        return flow.look(self, "write", self.out(torch.stack(outputs, 1)))


@config.member(config.Position)
class Decay:
    """A trained penalty per head for each position of distance."""


@builds(Decay)
class DecayModule(Position):
    def __init__(self, cfg: config.Position, width: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, width, heads, causal)
        self.slope = nn.Parameter(torch.empty(heads))

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        away = (q_pos[:, None, :, None] - k_pos[:, None, None, :]).abs()  # (B, 1, T, S)
        return -away * self.slope[:, None, None]

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        nn.init.constant_(self.slope, 0.1)


@config.member(config.MaskRule)
class Parity(config.Rule):
    """Only keys whose distance is a multiple of ``step``, and the first ``sinks`` tokens."""

    step: PositiveInt = 2  # positions between the keys
    sinks: int = 1  # first tokens that all see


@builds(Parity)
def parity(cfg: Parity, causal: bool) -> object:
    return lambda q, k: ((q - k) % cfg.step == 0) | (k < cfg.sinks)


@config.member(config.RopeScaling)
class Halved:
    """Every frequency at half its size."""


@builds(Halved)
def halved(cfg: Halved) -> object:
    return lambda frequencies, theta: (frequencies / 2, 1.0)


@config.member(config.Block)
class DeepNorm(config.Block):
    """Norms after the sum, in which the residual stream weighs ``alpha`` times as much (Wang et al.
    2022, DeepNet)."""

    place: config.Place = "post"  # norms stand after the sum
    alpha: float = 1.5  # weight of the stream in each sum


@builds(DeepNorm)
class DeepNormBlock(Block):
    def __init__(self, cfg: DeepNorm, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        self.alpha = cfg.alpha

    def residual(self, x: Tensor, name: str, *args: object) -> Tensor:
        sublayer, norm = getattr(self, name), getattr(self, f"{name}_norm")
        return norm(self.alpha * x + self.drop(sublayer(x, *args)))


@config.member(config.Pool)
class Ends:
    """The sum of a row's first and last vectors, projected to ``labels``."""

    labels: int = 0  # logits to end in
    dropout: float = 0.0  # not used


@builds(Ends)
class EndsModule(TracedModule):
    def __init__(self, cfg: Ends, dim: int) -> None:
        super().__init__()
        self.proj = linear(dim, cfg.labels, bias=True)

    def forward(self, hidden: Tensor, flow: Flow) -> Tensor:
        return flow.look(self, "write", self.proj(hidden[:, 0] + hidden[:, -1]))


@config.member(Objective)
class LastTokens(Objective):
    """The next token of running text, asked of the last ``count`` tokens of each row alone."""

    count: PositiveInt = 8  # tokens of a row that are asked

    def prepare(self, batch: Batch, random: object, tokenizer: object) -> Batch:
        targets = batch.targets.clone()
        targets[:, : -self.count] = -1
        return replace(batch, targets=targets)

    def loss(self, model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        return token_loss(model, forward(model, batch), batch.targets, smoothing)
