"""The paper's figure: block, stack of blocks, decoder. The shapes with an encoder: encoders.py.

B batch, T tokens, C model dim, V vocabulary. ``norm(None, dim)`` is the identity, so
a block or stack without some norm needs no case of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor, nn

from .. import config as configs
from ..config.scaling import longer_hint
from ..errors import UserError
from .attention import AttentionEngine, engine_name
from .build import build, builds
from .cache import KV, Cache, CrossKV, MixerState
from .cross_attention import CrossAttention
from .dropout import Dropout
from .flow import Flow, Memory, TracedModule
from .hooks import Tape
from .layers import linear, norm
from .position import Position

Want: TypeAlias = Literal["all", "last", "none"] | Tensor
_FORGET: list[Callable[[nn.Module], None]] = []


def on_training(forget: Callable[[nn.Module], None]) -> None:
    """Register what drops copies derived from a model's weights; called before it trains."""
    _FORGET.append(forget)


@builds(configs.Block)
class Block(TracedModule):
    """One step of the residual stream; ``place`` says where norms stand."""

    def __init__(self, cfg: configs.Block, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.place, self.residual_scale, position = cfg.place, cfg.residual_scale, cfg.position
        heads = getattr(cfg.attention, "heads", 1)
        self.position: Any = build(position, dim, heads, causal) if position else None
        self.attn_norm = norm(cfg.norm, dim)
        self.attn = build(cfg.attention, dim, causal, dropout)
        if cfg.cross is not None:
            self.cross_norm = norm(cfg.norm, dim)
        self.cross = CrossAttention(cfg.cross, dim, dropout) if cfg.cross is not None else None
        if cfg.feedforward is not None and cfg.place != "parallel":
            self.ffn_norm = norm(cfg.norm, dim)
        self.ffn: Any = build(cfg.feedforward, dim) if cfg.feedforward is not None else None
        for name in cfg.sublayers if cfg.place == "sandwich" else ():
            setattr(self, f"{name}_post_norm", norm(cfg.norm, dim))
        self.drop = Dropout(dropout) if dropout else nn.Identity()

    def forward(
        self,
        x: Tensor,
        flow: Flow,
        position: Position,
        layer_cache: tuple[KV | MixerState, CrossKV] | None,
    ) -> Tensor:
        """The residual stream x (B, T, C) -> the same with what the sublayers add to it."""
        kv, cross_kv = layer_cache or (None, None)
        position = self.position or position
        if self.place.startswith("parallel"):
            h = self.attn_norm(x)
            h_ffn = h if self.place == "parallel" else self.ffn_norm(x)
            write = self.drop(self.attn(h, flow, position, kv))
            x = x + self.scaled(write) + self.scaled(self.drop(self.ffn(h_ffn, flow)))
        else:
            x = self.residual(x, "attn", flow, position, kv)
            if self.cross is not None:
                x = self.residual(flow.look(self, "mid", x), "cross", flow, position, cross_kv)
            if self.ffn is not None:
                x = self.residual(
                    flow.look(self, "mid_cross" if self.cross else "mid", x), "ffn", flow
                )
        return flow.look(self, "resid", x)

    def residual(self, x: Tensor, name: str, *args: object) -> Tensor:
        """x (B, T, C) plus the output of the sublayer ``name``; ``place`` says where norms stand."""
        sublayer, norm = getattr(self, name), getattr(self, f"{name}_norm")
        if self.place == "post":
            return norm(x + self.scaled(self.drop(sublayer(x, *args))))  # type: ignore[no-any-return]
        write = norm(sublayer(x, *args)) if self.place == "output" else sublayer(norm(x), *args)
        if self.place == "sandwich":
            write = getattr(self, f"{name}_post_norm")(write)
        return x + self.scaled(self.drop(write))

    def scaled(self, write: Tensor) -> Tensor:
        return write if self.residual_scale == 1.0 else write * self.residual_scale


@builds(configs.Stack)
class Stack(TracedModule):
    """Embeddings in, hidden states out: a decoder's if causal, else an encoder's."""

    def __init__(self, cfg: configs.Stack, dim: int, width: int) -> None:
        super().__init__()
        self.position: Position = build(cfg.position, width, cfg.heads, cfg.causal)
        self.first_norm = norm(cfg.first_norm, width)
        self.project = linear(width, dim, bias=True) if width != dim else nn.Identity()
        self.blocks = nn.ModuleList(
            build(block, dim, cfg.causal, cfg.dropout) for block in cfg.blocks
        )
        self.last_norm = norm(cfg.last_norm, dim)
        self.drop = Dropout(cfg.dropout) if cfg.dropout else nn.Identity()

    def forward(self, x: Tensor, flow: Flow, cache: Cache | None = None) -> Tensor:
        """x (B, T, C or the embeddings' width), embedded tokens -> (B, T, C)."""
        x = self.project_input(x, flow)
        for index, block in enumerate(self.blocks):
            x = block(x, flow, self.position, cache.layers[index] if cache is not None else None)
        return flow.look(self, "out", self.last_norm(x))

    def project_input(self, x: Tensor, flow: Flow) -> Tensor:
        """Embedded tokens (B, T, C or their width) as the first block takes them, (B, T, C)."""
        x = self.project(self.drop(self.first_norm(self.position.embed(x, flow))))
        return flow.look(self, "embed", x)


@dataclass
class Output:
    """logits (B, T, V), hidden (B, T, C) that they come from, auxiliary losses and metrics by name.

    ``logits`` is (B, 1, V) when only the last were asked for, of the columns that a tensor named,
    and empty when none were; ``pooled`` is what a Pool makes of each document, (D, C) or (D,
    labels); ``tagged`` what a TokenHead says of each token, (B, T, labels).
    """

    logits: Tensor
    hidden: Tensor
    aux: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    pooled: Tensor | None = None
    tagged: Tensor | None = None


class Model(TracedModule):
    """Base class of Encoder, Decoder and EncoderDecoder: embedding, Flow of a pass, head, pool."""

    config: configs.Model
    encode: Callable[..., Memory]  # of an encoder-decoder
    labels: tuple[str, ...] = ()  # names of what its pool or token head chooses from
    family: str = ""  # the published one that its files were of
    prompts: tuple[tuple[str, str], ...] = ()  # names and texts before what it embeds; "": default

    def __init__(self, cfg: configs.Model) -> None:
        super().__init__()
        self.config = cfg
        self._engine: str | AttentionEngine = "auto"
        self.embed = build(cfg.embed, cfg.embed_dim())
        self.head = build(cfg.head, cfg.dim, cfg.embed.vocab) if cfg.head is not None else None
        if cfg.pool is not None:
            self.pool = build(cfg.pool, cfg.dim)
        self.token_head = build(cfg.token_head, cfg.dim) if cfg.token_head is not None else None
        limits = (getattr(stack.position, "limit", None) for stack in cfg.stacks.values())
        # positions that every scheme of the model is defined or scaled for
        self.limit: int | float = min(filter(None, limits), default=float("inf"))
        self.context = int(min(cfg.context, self.limit))

    @property
    def engine(self) -> str | AttentionEngine:
        """Attention engine: "auto", one of ``attention.ENGINES`` by name, or an AttentionEngine."""
        return self._engine

    @engine.setter
    def engine(self, name: str | AttentionEngine) -> None:
        self._engine = engine_name(name)

    def train(self, mode: bool = True) -> Self:
        if mode:
            for forget in _FORGET:
                forget(self)
        return super().train(mode)

    def flow(
        self,
        tokens: Tensor,
        pos: Tensor | None,
        document_ids: Tensor | None = None,
        cache: Cache | None = None,
        tape: Tape | None = None,
        prefix: Tensor | None = None,
    ) -> Flow:
        """The flow of one forward pass over ``tokens`` (B, T)."""
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise UserError(
                f"tokens are {tuple(tokens.shape)} {tokens.dtype}; give integers (batch, length)."
            )
        reached = tokens.shape[1] + (cache.length if cache is not None and cache.contiguous else 0)
        if pos is None and reached > self.limit:  # padding has no position
            hint = longer_hint(self.config)
            raise UserError(
                f"{reached} tokens are past the {self.limit} positions this model "
                f"has; give fewer.{hint}"
            )
        contiguous, history = pos is None and document_ids is None, None
        if cache is not None:
            if document_ids is not None:
                raise UserError("a cache holds one document a row; leave document_ids out.")
            history = cache.history
            pos = cache.advance(tokens, pos)
            contiguous = cache.contiguous
        elif pos is None:
            pos = torch.arange(tokens.shape[1], device=tokens.device)[None]
        if tape is not None:
            tape.start_pass(pos, document_ids)
            dictionary: Any = self._modules.get("features")  # formats/dictionaries.py
            tape = tape if dictionary is None else dictionary.watched(tape)
        flow = Flow(pos, contiguous, document_ids, prefix, history, tape=tape, engine=self.engine)
        flow.tokens = tokens
        if cache is not None:
            cache.prepare(flow)
        return flow

    def finish(self, hidden: Tensor, flow: Flow, want: Want, cached: bool = False) -> Output:
        """Hidden states to the output that is wanted; nothing is pooled of a ``cached`` text."""
        pooled = self.pool(hidden, flow) if hasattr(self, "pool") and not cached else None
        tagged = None if self.token_head is None else self.token_head(hidden, flow)
        logits = hidden[:, :0]
        if isinstance(want, Tensor):
            head_input = hidden[:, want]
        else:
            head_input = {"all": hidden, "last": hidden[:, -1:], "none": logits}[want]
        if head_input.shape[1] and self.head is not None:
            logits = flow.look(self, "logits", self.head(head_input, self.embed))
        return Output(logits, hidden, flow.aux, flow.metrics, pooled, tagged)


def body(cfg: configs.Model, name: str) -> Any:
    """The encoder or decoder of a model; a stack is told the width of its embeddings."""
    width = [cfg.embed_dim(name)] if name in cfg.stacks else []
    return build(cfg.bodies[name], cfg.dim, *width)


@builds(configs.Decoder)
class Decoder(Model):
    """head(decoder(embed(tokens))): every token sees what came before it."""

    config: configs.Decoder

    def __init__(self, cfg: configs.Decoder) -> None:
        super().__init__(cfg)
        self.decoder = body(cfg, "decoder")

    def forward(
        self,
        tokens: Tensor,
        *,
        pos: Tensor | None = None,
        document_ids: Tensor | None = None,
        prefix: Tensor | None = None,
        cache: Cache | None = None,
        tape: Tape | None = None,
        logits: Want = "all",
    ) -> Output:
        """tokens (B, T) -> Output. ``pos`` (B, T) is -1 at padding, ``document_ids`` packed rows'.

        ``prefix`` (B, T) is true for tokens that all of their document see (with a cache: read in
        one go). Raises UserError for tokens of another shape or past a learned
        position table.
        """
        flow = self.flow(tokens, pos, document_ids, cache, tape, prefix)
        return self.finish(
            self.decoder(self.embed(tokens, flow), flow, cache), flow, logits, cache is not None
        )


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """No gradients and no dropout meanwhile, even in the middle of a training."""
    training = model.training
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if training:
            model.train()
