"""The shapes of models: blocks, stacks and the three kinds of model, as frozen dataclasses.

Decoder                                   the model: what goes in, what happens, what comes out
+- embed    Embed(vocab, ...)             tokens -> vectors
+- decoder  Stack(depth, pattern, ...)    the residual stream; `pattern` tiles over `depth`
|           +- Block(attention, feedforward, norm, place, cross)
|           +- position                   one scheme for the stack
+- head     Head(tied, ...)               vectors -> logits
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from ..errors import UserError, need
from .layers import (
    Embed,
    FeedForward,
    Head,
    Init,
    Norm,
    RMSNorm,
    Shapes,
    indexed,
    join,
    linear,
    shapes_of,
)
from .mask import Full, MaskRule
from .pool import Pool, TokenHead
from .position import NoPosition, Position, RelativeBias, Rotary
from .recurrence import Recurrent
from .scaling import LongRopeScaling
from .serial import NonNegativeInt, PositiveFloat, PositiveInt, Share, frozen

MOST_HEADS = 1 << 14  # far beyond what anybody trains; more would only hang
MOST_PARTS = 100_000  # blocks times experts; the largest published model has some 15,000
Place: TypeAlias = Literal["pre", "post", "sandwich", "output", "parallel", "parallel_norms"]


@frozen
class Attention:
    """Multi-head attention. ``kv_heads`` as many as ``heads`` (None) is MHA, fewer GQA, 1 MQA."""

    heads: PositiveInt  # query heads
    kv_heads: PositiveInt | None = None  # none: as many as heads
    head_dim: PositiveInt | None = None  # width of a head; none: dim / heads
    bias: bool = False  # of queries, keys and values
    out_bias: bool | None = None  # of the output; none: as bias
    qk_norm: Norm | None = None  # norm of each head's queries and keys (Qwen 3)
    scale: PositiveFloat | None = None  # scores are multiplied by it; none: 1/sqrt(head_dim)
    # c bounds scores: c * tanh(scores / c) (Gemma 2); none: no bound
    softcap: PositiveFloat | None = None
    mask: MaskRule = Full()  # which keys a query may attend to
    qk_norm_whole: bool = False  # its qk_norm is of all heads at once (OLMo 2)

    def __post_init__(self) -> None:
        heads, kv = self.heads, self.kv_heads
        need(heads <= MOST_HEADS, f"Attention.heads is {heads}; give at most {MOST_HEADS:,}.")
        if kv is not None:
            need(kv <= self.heads, f"Attention.kv_heads is {kv}; give 1 to heads ({self.heads}).")
            need(
                self.heads % kv == 0,
                f"Attention.kv_heads {kv} does not divide heads {self.heads}; give a divisor.",
            )

    def width(self, dim: int) -> int:
        """The width of one head."""
        return self.head_dim or dim // self.heads

    def shapes(self, dim: int, *place: Any) -> Shapes:
        """Queries, keys, values and what goes out, and a norm for heads of queries and keys."""
        size = self.width(dim)
        q, kv = self.heads * size, (self.kv_heads or self.heads) * size
        out = linear(q, dim, self.bias if self.out_bias is None else self.out_bias)
        sizes = (q, kv) if self.qk_norm_whole else (size, size)
        q_norm, k_norm = (shapes_of(self.qk_norm, n) for n in sizes)
        queries, keys = linear(dim, q, self.bias), linear(dim, kv, self.bias)
        return join(q=queries, k=keys, v=keys, out=out, q_norm=q_norm, k_norm=k_norm)


# The token mixers of a block: attention, and the types that ``member(Mixer)`` adds.
Mixer: TypeAlias = Attention


@frozen
class Block:
    """Attention or another mixer, (cross-attention,) feed-forward (none where ``feedforward`` is None).

    ``place`` says where the norms stand: ``pre`` x + f(norm(x)); ``post`` norm(x + f(x));
    ``output`` x + norm(f(x)); ``sandwich`` x + norm(f(norm(x))); ``parallel`` x +
    attention(norm(x)) + ffn(norm(x)), one norm for both, ``parallel_norms`` one for each. ``norm``
    None is none. ``position`` is of this block's queries and keys alone.
    """

    attention: Mixer  # over the stack's own tokens
    feedforward: FeedForward | None  # the layer that works on each token alone; none: no such layer
    norm: Norm | None = RMSNorm()  # the type of all its norms; none: no norms
    # where norms stand: before, after or around sublayers; parallel: before both, side by side
    place: Place = "pre"
    cross: Attention | None = None  # attention to an encoder's output
    residual_scale: PositiveFloat = 1.0  # what is added to the stream is multiplied by it (Granite)
    # in place of the stack's; none: the stack's
    position: NoPosition | Rotary | RelativeBias | None = None

    def __post_init__(self) -> None:
        parallel = self.place.startswith("parallel")
        alone = f'Block.place "{self.place}" has no cross-attention'
        need(not (parallel and self.cross), f'{alone}; use "pre", "post" or "sandwich".')
        has_sublayer = self.feedforward is not None or not parallel
        beside = f'Block.place "{self.place}" needs a feedforward beside the attention'
        need(has_sublayer, f'{beside}; use "pre".')
        placed = self.norm is not None or self.place in ("pre", "parallel")
        stand = f'Block.place "{self.place}" says where norms stand and Block.norm is none'
        need(placed, f'{stand}; use "pre".')
        reads = self.cross is None or type(self.cross) is Attention
        need(
            reads, f"Block.cross is a {type(self.cross).__name__}; only Attention reads an encoder."
        )
        full = self.cross is None or self.cross.mask == Full()
        need(full, "Block.cross.mask has no meaning; leave it full.")
        short = getattr(self.position, "limit", None) is None
        need(short, "Block.position has a LongRopeScaling; give that to the stack's position.")

    @property
    def sublayers(self) -> dict[str, Attention | FeedForward]:
        """Sublayers that write to the residual stream, by the name of their slot in the module."""
        slots = {"attn": self.attention, "cross": self.cross, "ffn": self.feedforward}
        return {name: sublayer for name, sublayer in slots.items() if sublayer is not None}

    def shapes(self, dim: int, causal: bool, dropout: float) -> Shapes:
        """Shapes of the sublayers and their norms."""
        place = {"attn": (causal, dropout), "cross": (False, dropout), "ffn": ()}
        norm = shapes_of(self.norm, dim)
        heads = getattr(self.attention, "heads", 1)
        result = join(position=shapes_of(self.position, dim, heads, causal))
        for name, sublayer in self.sublayers.items():
            before = {} if name == "ffn" and self.place == "parallel" else norm
            result |= join(**{f"{name}_norm": before, name: shapes_of(sublayer, dim, *place[name])})
        after = norm if self.place == "sandwich" else {}
        return result | join(**{f"{name}_post_norm": after for name in self.sublayers})


@frozen
class Stack:
    """``depth`` blocks on one residual stream; ``pattern`` repeats over the depth."""

    depth: int  # number of blocks
    pattern: tuple[Block, ...]  # one block or several, repeated over the depth
    position: Position = NoPosition()  # how the order of tokens is told
    causal: bool = True  # a token sees what came before; false: everything
    first_norm: Norm | None = None  # over the embeddings
    last_norm: Norm | None = None  # over the last block's output
    # share dropped of the input, the attention weights and each write to the stream
    dropout: Share = 0.0

    def __post_init__(self) -> None:
        need(self.depth >= 0, f"Stack.depth is {self.depth}; give a number of blocks, or 0.")
        count = len(self.pattern)
        need(count > 0, "Stack.pattern is empty; give at least one Block.")
        sizes = f"Stack.depth {self.depth} is not a multiple of its pattern of {count} blocks"
        need(self.depth % count == 0, f"{sizes}; change one.")
        positions: list[Any] = [self.position, *(block.position for block in self.pattern)]
        for position in positions:
            if hasattr(position, "check_causal"):
                position.check_causal(self.causal)

    @property
    def blocks(self) -> list[Block]:
        return [*self.pattern] * (self.depth // len(self.pattern))

    @property
    def attentions(self) -> list[Attention]:
        """Self-attentions of the pattern; blocks with another mixer have none."""
        mixers = (block.attention for block in self.pattern)
        return [mixer for mixer in mixers if isinstance(mixer, Attention)]

    @property
    def heads(self) -> int:
        """Heads of the first attention, which a position scheme counts; 1 where there is none."""
        return next((attention.heads for attention in self.attentions), 1)

    def shapes(self, dim: int, width: int) -> Shapes:
        """Its blocks, position scheme and norms, a layer from embeddings of another ``width``."""
        position = shapes_of(self.position, width, self.heads, self.causal)
        project = {} if width == dim else linear(width, dim)
        block_shapes = [shapes_of(block, dim, self.causal, self.dropout) for block in self.pattern]
        blocks = indexed(
            "blocks", [block_shapes[index % len(block_shapes)] for index in range(self.depth)]
        )
        before = join(
            position=position, project=project, first_norm=shapes_of(self.first_norm, width)
        )
        return before | blocks | join(last_norm=shapes_of(self.last_norm, dim))


Body: TypeAlias = Stack | Recurrent


class Architecture:
    """The questions that every shape of model answers."""

    is_decoder = is_encoder = has_source = False  # has_source: another text is read beside
    main_body = "decoder"  # the body that the head reads
    dim: int
    embed: Embed
    pool: Pool | None
    source_embed: Embed | None = None

    @property
    def input_embed(self) -> Embed:
        """The embedding of the text that is read first: of a source where there is one."""
        return self.source_embed or self.embed

    def embed_dim(self, side: str = "") -> int:
        """The width of the embeddings; of the source's where ``side`` is the encoder."""
        return (self.input_embed if side == "encoder" else self.embed).dim or self.dim

    @property
    def labels(self) -> int:
        """The number of labels for a whole text, 0 for none."""
        return self.pool.labels if self.pool else 0

    @property
    def bodies(self) -> dict[str, Body]:
        """The stacks and recurrent layers between embedding and head, by the name of their slot."""
        return {name: getattr(self, name) for name in ("encoder", "decoder") if hasattr(self, name)}

    @property
    def stacks(self) -> dict[str, Stack]:
        return {name: body for name, body in self.bodies.items() if isinstance(body, Stack)}

    @property
    def recurrent(self) -> dict[str, Recurrent]:
        return {name: body for name, body in self.bodies.items() if isinstance(body, Recurrent)}

    @property
    def long_scalings(self) -> dict[str, LongRopeScaling]:
        """The scalings that differ for short texts and for long ones, by the name of their stack."""
        positions = [(name, stack.position) for name, stack in self.stacks.items()]
        scalings = [(name, getattr(position, "scaling", None)) for name, position in positions]
        return {name: scaling for name, scaling in scalings if isinstance(scaling, LongRopeScaling)}


@frozen
class Decoder(Architecture):
    """head(decoder(embed(tokens))): a token sees what came before (GPT-2); no head: vectors."""

    dim: PositiveInt  # width of the residual stream
    context: PositiveInt  # the most tokens it reads
    embed: Embed  # tokens to vectors
    decoder: Body  # the blocks
    head: Head | None = Head()  # vectors to logits; none ends in vectors
    init: Init = Init()  # how weights start
    pool: Pool | None = None  # one vector for a whole sequence
    token_head: TokenHead | None = None  # labels for each token
    is_decoder = True

    def __post_init__(self) -> None:
        _check(self)
        need(
            self.decoder.causal,
            "A Decoder's stack is causal; set decoder.causal = true or build an Encoder.",
        )


@frozen
class Encoder(Architecture):
    """head(encoder(embed(tokens))): every token sees every token (BERT); without head: vectors."""

    dim: PositiveInt  # width of the residual stream
    context: PositiveInt  # the most tokens it reads
    embed: Embed  # tokens to vectors
    encoder: Body  # the blocks
    head: Head | None = Head()  # vectors to logits; none ends in vectors
    init: Init = Init()  # how weights start
    pool: Pool | None = None  # one vector for a whole sequence
    token_head: TokenHead | None = None  # labels for each token
    is_encoder = True
    main_body = "encoder"

    def __post_init__(self) -> None:
        _check(self)


@frozen
class EncoderDecoder(Architecture):
    """head(decoder(embed(tokens), memory=encoder(embed(source)))), embeddings shared or not."""

    dim: PositiveInt  # width of the residual stream
    context: PositiveInt  # the most tokens each side reads
    embed: Embed  # tokens to vectors, both sides' or the target's
    encoder: Body  # the blocks that read the source
    decoder: Body  # the blocks that write
    head: Head | None = Head()  # vectors to logits; none ends in vectors
    init: Init = Init()  # how weights start
    pool: Pool | None = None  # one vector for a whole sequence
    # the source's own vocabulary and embeddings; none: both sides' are one
    source_embed: Embed | None = None
    # tokens that a target begins with (BART: </s> <s>); none: the tokenizer's bos or pad
    start: tuple[NonNegativeInt, ...] = ()
    token_head: TokenHead | None = None  # labels for each token of a text that both sides read
    has_source = True

    def __post_init__(self) -> None:
        _check(self)
        need(
            self.decoder.causal, "An EncoderDecoder's decoder is causal; set decoder.causal = true."
        )
        fits = all(id < self.embed.vocab for id in self.start) and len(self.start) <= self.context
        need(fits, f"EncoderDecoder.start is {list(self.start)}; give ids of the vocabulary.")


Model: TypeAlias = Decoder | Encoder | EncoderDecoder


def shapes(model: Model) -> Shapes:
    """Name and shape of each parameter, in the module's order; UserError for too many to count."""
    layers = 0
    for stack in model.stacks.values():
        times, more = divmod(stack.depth, len(stack.pattern))
        for place, block in enumerate(stack.pattern):
            layers += (times + (place < more)) * getattr(block.feedforward, "networks", 1)
    if layers > MOST_PARTS:
        raise UserError(
            f"The config describes {layers:,} blocks and experts; fix its depth or "
            "its number of experts."
        )
    inside = {}
    for name, body in model.bodies.items():
        width = [model.embed_dim(name)] if isinstance(body, Stack) else []
        inside[name] = shapes_of(body, model.dim, *width)
    return join(
        embed=shapes_of(model.embed, model.embed_dim()),
        source_embed=shapes_of(model.source_embed, model.embed_dim("encoder")),
        head=shapes_of(model.head, model.dim, model.embed.vocab),
        pool=shapes_of(model.pool, model.dim),
        token_head=shapes_of(model.token_head, model.dim),
        **inside,
    )


def _check(model: Model) -> None:
    """Checks what depends on the width, the context and the slot together; UserError."""
    width = model.embed_dim()
    head = model.head
    fits = head is None or not head.tied or width == (head.width or model.dim)
    tied = f"embed.dim is {width} and the model's dim {model.dim}, which a tied head shares"
    need(fits, f"{tied}; set dim = {width}, head.width = {width} or head.tied = false.")
    for name, body in model.bodies.items():
        taken = model.embed_dim(name)
        crosses = name == "decoder" and model.has_source
        if isinstance(body, Recurrent):
            need(
                taken == model.dim,
                f"embed.dim is {taken} and a recurrent {name} takes embeddings of dim {model.dim}; "
                "leave it out.",
            )
            _check_cross(name, body.cross, crosses, "give it a Summary or an Additive")
            need(
                body.causal or model.dim % 2 == 0,
                f"{name}: dim {model.dim} cannot be halved for two ways; make it even.",
            )
            continue
        for index, block in enumerate(body.pattern):
            path = f"{name}.pattern.{index}"
            _check_cross(path, block.cross, crosses, "give the decoder's blocks one")
            for attention in (block.attention, block.cross):
                if isinstance(attention, Attention) and attention.head_dim is None:
                    need(
                        model.dim % attention.heads == 0,
                        f"{path}: {attention.heads} heads do not divide dim {model.dim}; "
                        "change one or set head_dim.",
                    )
        schemes = [(body.position, body.pattern)]
        schemes += [(block.position, (block,)) for block in body.pattern if block.position]
        for position, pattern in schemes:
            if hasattr(position, "check"):
                position.check(name, pattern, model.dim, taken, model.context)


def _check_cross(path: str, cross: Any, crosses: bool, hint: str) -> None:
    """UserError where a part that meets an encoder has nothing for it, or the reverse."""
    need(cross is not None or not crosses, f"{path}.cross is missing; {hint}.")
    need(cross is None or crosses, f"{path}.cross is set, but there is no encoder; remove it.")
