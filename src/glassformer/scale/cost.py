"""The cost of a model, from its config alone: parameters by part, FLOPs, memory, key-value cache.
No weights are made.

B batch, T tokens of context, H heads, K key-value heads, D head dim, C model dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..core import config
from ..core.config.layers import Shape, Unmultiplied, shapes_of
from ..core.config.model import shapes
from ..core.memory import gibibytes

BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
GROUP = 64  # quantized weights that share one two-byte scale
FP32 = 4  # bytes a number
LOGITS = 1 << 26  # that a loss holds at once (core/training/loss.py)
SQUARES = 1 << 20  # numbers that a norm, or Muon, takes at once (core/training/optimizer.py)
BLOCK = 128  # queries whose pattern a CPU keeps together (fast/cpu_blocks.py)
BASE = 330 << 20
"""Bytes that Python, PyTorch and the code of its kernels take by themselves after a first step on a
CPU, as measured; about 100 MiB of them are files, which processes of one machine share."""
# bytes a parameter while training: weight, gradient and AdamW's two moments, fp32 each
TRAIN = 4 * FP32
PARTS = ("embedding", "attention", "feedforward", "norms", "head")
SLOTS = {  # a model's slots by their names in a path -> the part that they belong to
    "attn": "attention",
    "cross": "attention",
    "ffn": "feedforward",
    **dict.fromkeys(("cells", "back", "merge"), "recurrence"),
    **dict.fromkeys(("head", "token_head", "pool"), "head"),
    **dict.fromkeys(("norm", "first_norm", "last_norm", "q_norm", "k_norm"), "norms"),
    **dict.fromkeys(
        (f"{name}{place}_norm" for name in ("attn", "cross", "ffn") for place in ("", "_post")),
        "norms",
    ),
}


def cost(model: config.Model, batch: int = 1, context: int | None = None) -> Cost:
    """The cost of a config at a batch and context (None: the model's own)."""
    return Cost(model, batch, context or model.context)


@dataclass(frozen=True)
class Cost:
    """Parameters, FLOPs and memory of a model at ``batch`` rows of ``context`` tokens; memory in
    bytes.

    ``muon``: matrices train with one moment; ``accumulated``: a step has several micro-batches.
    """

    model: config.Model
    batch: int
    context: int
    muon: bool = False
    accumulated: bool = False

    # -------------------------------------------------------------------------- parameters

    @cached_property
    def sizes(self) -> dict[str, tuple[bool, int]]:
        """Every parameter of the model: whether tokens are multiplied with it, and how many numbers
        it has."""
        return {
            name: (_is_matrix(name, shape), math.prod(shape))
            for name, shape in shapes(self.model).items()
        }

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Number of parameters of each part."""
        count = dict.fromkeys(PARTS, 0)
        for name, (_, size) in self.sizes.items():
            count[_part(name)] = count.get(_part(name), 0) + size
        return count

    @property
    def total(self) -> int:
        """All parameters; a tied table is counted once."""
        return sum(self.parameters.values())

    def idle(self, matrices: bool = False) -> int:
        """Parameters of the experts that a token does not visit, all or the matrices alone."""
        idle = 0
        for name, stack in self.model.stacks.items():
            for index, block in enumerate(stack.blocks):
                feedforward: Any = block.feedforward
                if hasattr(feedforward, "idle"):
                    inside = f"{name}.blocks.{index}.ffn."
                    for path, (multiplied, size) in self.sizes.items():
                        if path.startswith(inside) and (multiplied or not matrices):
                            idle += feedforward.idle(path.removeprefix(inside), size)
        return idle

    @property
    def active(self) -> int:
        """Parameters that one token meets: all but the experts it does not visit."""
        return self.total - self.idle()

    # ------------------------------------------------------------------------------- FLOPs

    @cached_property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied with: matrices, not the tables it is looked up
        in."""
        stacks = self.model.stacks
        passes = {f"{name}.blocks": getattr(stack, "passes", 1) for name, stack in stacks.items()}
        matrices = sum(
            size * passes.get(".".join(path.split(".")[:2]), 1)
            for path, (multiplied, size) in self.sizes.items()
            if multiplied
        )
        head = self.model.head
        tied = self.model.embed.vocab * self.model.embed_dim() if head and head.tied else 0
        return matrices - self.idle(matrices=True) + tied

    @cached_property
    def attention_flops(self) -> float:
        """Forward FLOPs a token for scores and weighted sums, each key counted that may be looked
        at."""
        flops = 0.0
        for stack, attention, crosses in _attention_layers(self.model):
            width = attention.heads * attention.width(self.model.dim)
            width *= getattr(attention, "value_heads", 1)
            flops += 4 * width * self._keys(attention, stack.causal and not crosses)
        mixers: list[Any] = [*self.model.recurrent.values()]
        mixers += [mixer for _, mixer in _other_mixers(self.model) if hasattr(mixer, "flops")]
        return sum((mixer.flops(self.model.dim, self.context) for mixer in mixers), flops)

    def _keys(self, attention: config.Attention, causal: bool) -> float:
        """Number of keys that a query attends to, the mean over the context's positions."""
        T, mask_rule = self.context, attention.mask
        # counted, in long rows by a thousand of its queries
        if not isinstance(mask_rule, config.Full | config.Window):
            import numpy as np

            rows = np.linspace(0, T - 1, min(T, 1024)).astype(int)
            return count_pairs(mask_rule, T, causal, rows) / len(rows)
        lookback = min(mask_rule.size, T) if isinstance(mask_rule, config.Window) else T
        if causal:
            return (lookback * (lookback + 1) / 2 + (T - lookback) * lookback) / T
        if lookback == T:
            return T
        # both ways, cut at the two ends
        return (T * (2 * lookback - 1) - lookback * (lookback - 1)) / T

    @property
    def forward_flops(self) -> float:
        """FLOPs a token to run."""
        return 2 * self.multiplied + self.attention_flops

    @property
    def flops_unit(self) -> str:
        """Unit that the FLOPs are per: a token, or in an encoder-decoder a token on each side."""
        return "token on each side" if len(self.model.bodies) == 2 else "token"

    @property
    def training_flops(self) -> float:
        """FLOPs a token to train: forward, and twice that backward."""
        return 3 * self.forward_flops

    # ------------------------------------------------------------------------------ memory

    def weights(self, dtype: str) -> int:
        """Bytes of the weights in fp32, bf16, or with the matrices in int8 or int4 and the rest in
        bf16."""
        if dtype in ("fp32", "bf16"):
            return int(self.total * BYTES[dtype])
        matrices = sum(size for multiplied, size in self.sizes.values() if multiplied)
        return math.ceil(matrices * (BYTES[dtype] + 2 / GROUP)) + (self.total - matrices) * 2

    def cache_per_token(self, dtype: str = "bf16") -> int:
        """Bytes of keys and values that one more token adds, before any window is full."""
        return int(
            sum(self._kept(a) for _, a, crosses in _attention_layers(self.model, cached=True))
            * BYTES[dtype]
        )

    @property
    def kv_per_token(self) -> int:
        """Numbers of keys and values that all attentions make of a token."""
        return sum(self._kv_width(attention) for _, attention, _ in _attention_layers(self.model))

    def cache(self, dtype: str = "bf16") -> int:
        """Bytes of keys, values and mixers' states of the whole batch at the full context; a window
        holds no more than its size."""
        numbers = 0
        for _, attention, _ in _attention_layers(self.model, cached=True):
            length = min(attention.mask.lookback or self.context, self.context)
            numbers += length * self._kept(attention)
        for stack, mixer in _other_mixers(self.model):
            if stack.causal and hasattr(mixer, "state_size"):
                numbers += mixer.state_size(self.model.dim)
        return int(self.batch * numbers * BYTES[dtype])

    def _kv_width(self, attention: config.Attention) -> int:
        return 2 * (attention.kv_heads or attention.heads) * attention.width(self.model.dim)

    def _kept(self, attention: Any) -> int:
        """Numbers of a token that an attention's cache keeps."""
        if hasattr(attention, "kept_width"):
            return int(attention.kept_width(self.model.dim))
        return self._kv_width(attention)

    def activations(self, dtype: str = "fp32") -> int:
        """Bytes that the forward pass keeps for the backward pass on a CPU, logits aside."""
        width = int(BYTES[dtype])
        stacks = self.model.stacks.values()
        numbers = sum(
            self._saved_activations(stack, block, width)
            for stack in stacks
            for block in stack.blocks
        )
        numbers += sum(
            recurrent.saved_activations(self.model.dim, self.context)
            for recurrent in self.model.recurrent.values()
        )
        return int(self.batch * self.context * (numbers + 2 * self.model.dim) * width)

    def _saved_activations(self, stack: config.Stack, block: config.Block, width: int) -> float:
        """Numbers a token that one block keeps: what each of its operations needs to go back."""
        C = self.model.dim
        normed = 2 * C if block.norm else 0  # at unit size or as it was, and with the gain
        looks = sum(
            normed + self._mixer_activations(stack, mixer, width)
            for mixer in (block.attention, block.cross)
            if mixer is not None
        )
        thought = 0.0
        if block.feedforward is not None:
            dropped = C / width if stack.dropout else 0  # a byte each
            thought = normed + _saved_activations(block.feedforward, C) + dropped
        return looks + thought

    def _mixer_activations(self, stack: config.Stack, attention: Any, width: int) -> float:
        """Numbers a token that a token mixer keeps."""
        C, T = self.model.dim, self.context
        if not isinstance(attention, config.Attention):
            return _saved_activations(attention, C, stack.causal, stack.dropout)
        q = attention.heads * attention.width(C)
        wide: int = getattr(attention, "value_heads", 1)
        kv = self._kv_width(attention)
        # queries, keys, values and what came of them; of wide ones their narrow form as well
        attended: float = wide * (4 * q + kv) - 2 * q
        if attention.qk_norm is not None:
            attended += q + kv // 2
        if stack.dropout:
            attended += C / width
        # with dropout or in bf16 the patterns too, and a byte for what dropout left of each: in
        # blocks of queries up to 1,024 keys, beyond with dropout as autograd keeps it
        if T <= 1024 and (stack.dropout or width < FP32):
            keys = (T + min(T, BLOCK)) / 2 if stack.causal else T
            attended += 2 * q - kv  # each head has keys and values of its own there
            attended += attention.heads * keys * (1 + bool(stack.dropout) / width)
        elif stack.dropout:
            attended += attention.heads * T * 3
        return attended

    def logits(self, dtype: str = "fp32") -> int:
        """Bytes of the logits, which become their gradient in place, and of the gradients that they
        give the hidden states and the head's table."""
        head = self.model.head
        if head is None:
            return 0
        tokens, vocab = self.batch * self.context, self.model.embed.vocab
        width = head.width or self.model.dim
        numbers = min(tokens * vocab, LOGITS) + (tokens + vocab) * width
        return int(numbers * BYTES[dtype])

    def pattern_block(self, dtype: str) -> int:
        """Bytes of the patterns of one block of queries, whose gradient goes through them."""
        heads = [
            attention.heads
            for stack, attention, _ in _attention_layers(self.model)
            if self.context <= 1024 and (stack.dropout or dtype != "fp32")
        ]
        queries = min(self.context, BLOCK)
        return int(self.batch * max(heads, default=0) * queries * self.context * BYTES[dtype])

    def train(self, dtype: str = "fp32", frozen: int = 0) -> int:
        """Bytes to train at this batch and context, beside ``BASE``: fp32 weights, gradients and
        moments, activations in ``dtype``; ``frozen`` weights have no gradient and no moments.

        The gradient takes the place of the activations as the backward pass frees them, so that a
        step holds the most where this pass begins or where it ends.
        """
        gradient, ahead, stack = FP32 * (self.total - frozen), 0, 0
        if self.muon and not frozen:
            # it has one moment of a block's matrices, looks one gradient ahead, and works on a
            # stack of matrices of a size in bf16, four copies of it
            matrices = [n for path, (m, n) in self.sizes.items() if m and ".blocks." in path]
            ahead = FP32 * sum(matrices)
            stack = max((min(n * matrices.count(n), max(n, SQUARES)) for n in matrices), default=0)
        copy = 0 if dtype == "fp32" else int(self.total * BYTES[dtype])  # that both passes use
        begins = self.activations(dtype) + gradient * self.accumulated
        begins += max(self.logits(dtype), 2 * self.pattern_block(dtype))
        # numbers whose norm is taken are in fp64, and so are their squares
        squares = min(SQUARES, max(n for _, n in self.sizes.values()), gradient // FP32)
        state = FP32 * self.total + copy + 2 * gradient - ahead
        return state + max(begins, gradient + max(ahead + 8 * stack, 16 * squares))

    def run(self, dtype: str = "bf16") -> int:
        """Bytes to generate at this batch and context: weights in ``dtype``, the cache in fp32 or
        bf16."""
        return self.weights(dtype) + self.cache("fp32" if dtype == "fp32" else "bf16")

    # ------------------------------------------------------------------------------- words

    def to_dict(self) -> dict[str, Any]:
        """Everything in numbers, as JSON holds it; memory in bytes."""
        return {
            "parameters": self.total,
            "active": self.active,
            "parts": self.parameters,
            "batch": self.batch,
            "context": self.context,
            "training_flops_per_token": self.training_flops,
            "train_bytes": {dtype: self.train(dtype) for dtype in ("fp32", "bf16")},
            "weights_bytes": {dtype: self.weights(dtype) for dtype in BYTES},
            "cache_bytes_per_token": {
                dtype: self.cache_per_token(dtype) for dtype in ("fp32", "bf16")
            },
            "cache_bytes": {dtype: self.cache(dtype) for dtype in ("fp32", "bf16")},
        }

    def table(self) -> list[tuple[str, str]]:
        """Everything as (what, how much), ready to print."""
        rows = [(name, f"{count:,}") for name, count in self.parameters.items()]
        rows.append(("parameters", f"{self.total:,}"))
        if self.active != self.total:
            rows.append(("active per token", f"{self.active:,}"))
        rows.append(
            (
                f"training FLOPs per {self.flops_unit} (context {self.context:,})",
                f"{self.training_flops:,.0f}",
            )
        )
        at = f"(batch {self.batch:,} x context {self.context:,})"
        rows += [
            (f"memory to train, {dtype} {at}", gibibytes(self.train(dtype)))
            for dtype in ("fp32", "bf16")
        ]
        rows += [(f"weights to run, {dtype}", gibibytes(self.weights(dtype))) for dtype in BYTES]
        per_token = self.cache_per_token()
        if per_token:
            rows.append(("cache per token, bf16", f"{per_token / 1024:,g} KiB"))
            rows.append((f"cache, bf16 {at}", gibibytes(self.cache())))
        return rows


def _part(name: str) -> str:
    """The part of the model that a parameter belongs to, by the slots on its path."""
    part_name = "embedding"  # tables of tokens, segments and positions
    for step in name.split("."):
        part_name = SLOTS.get(step, part_name)
        if part_name == "feedforward":
            break  # what lies inside is its own
    return part_name


def _is_matrix(name: str, shape: Shape) -> bool:
    """Each token is multiplied with the parameter; a pool reads one vector a document, so its
    weights are none."""
    return len(shape) >= 2 and not isinstance(shape, Unmultiplied) and not name.startswith("pool.")


def _attention_layers(
    model: config.Model, cached: bool = False
) -> list[tuple[config.Stack, config.Attention, bool]]:
    """Every attention of the model: its stack, itself, whether it looks across; ``cached``: those
    that keep a cache."""
    attentions = []
    for stack in model.stacks.values():
        if cached and not stack.causal:
            continue
        for block in stack.blocks:
            if isinstance(block.attention, config.Attention):
                attentions.append((stack, block.attention, False))
            # its keys are the source's: they do not grow
            if block.cross is not None and not cached:
                attentions.append((stack, block.cross, True))
    return attentions


def count_pairs(rule: config.MaskRule, length: int, causal: bool, rows: Any = None) -> int:
    """Counts the pairs that a rule allows in a row of ``length`` tokens, or only those of the
    queries ``rows``; exact."""
    import numpy as np

    from ..core.config.mask import PAIRS_AT_ONCE, TokenInfo, dense_mask

    keys = np.arange(length)
    several = max(1, PAIRS_AT_ONCE // length)
    queries = keys if rows is None else rows
    chunks = (queries[start : start + several] for start in range(0, len(queries), several))
    return sum(
        int(dense_mask(rule, TokenInfo(chunk), TokenInfo(keys), causal).sum()) for chunk in chunks
    )


def _other_mixers(model: config.Model) -> list[tuple[config.Stack, Any]]:
    """The stack and config of every block's token mixer that is no attention."""
    return [
        (stack, mixer)
        for stack in model.stacks.values()
        for mixer in (block.attention for block in stack.blocks)
        if not isinstance(mixer, config.Attention)
    ]


def _saved_activations(sublayer: Any, dim: int, *place: Any) -> int:
    """Numbers a token that a sublayer keeps for the backward pass; unless its config tells, twice
    its matrices' outputs."""
    if hasattr(sublayer, "saved_activations"):
        return int(sublayer.saved_activations(dim))
    sizes = shapes_of(sublayer, dim, *place).items()
    return 2 * sum(shape[-2] for name, shape in sizes if _is_matrix(name, shape))
