"""The ends of a model, its norms and how its weights start: tokens to vectors, vectors to logits. No torch here."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..errors import need
from .feedforward import Activation
from .old_names import renamed
from .serial import NonNegativeInt, PositiveFloat, PositiveInt, Share, frozen
from .shapes import Shapes, each, join, linear, of, table

MOST_LAGS = 1 << 10  # far beyond what anybody trains; more would only hang


@frozen
class LayerNorm:
    """Centre and scale each vector (Ba et al. 2016)."""

    eps: PositiveFloat = 1e-5  # added to the variance
    bias: bool = True  # shift as well as scale

    def shapes(self, dim: int) -> Shapes:
        """A gain and a shift for each dimension."""
        return join(weight=(dim,), bias=(dim,) if self.bias else ())


@frozen
class RMSNorm:
    """Scale each vector to unit root mean square (Zhang & Sennrich 2019).

    The gain is ``offset + weight``: 0 for Llama, 1 for Gemma. ``gain=False`` leaves the weight out.
    """

    eps: PositiveFloat = 1e-5  # added to the mean square
    offset: float = 0.0  # what the gain is beside the weight
    gain: bool = True  # scale by a weight as well

    def shapes(self, dim: int) -> Shapes:
        """A gain for each dimension."""
        return join(weight=(dim,) if self.gain else ())


Norm: TypeAlias = LayerNorm | RMSNorm


@renamed(lags="previous_token_embeddings")
@frozen
class Embed:
    """Tokens to vectors; ``scale`` multiplies them (2017 and Gemma: sqrt(dim)); BERT adds ``segments``.

    ``previous_token_embeddings`` tokens before each add a vector, from tables of their own (Huang et al. 2025).
    Where ``dim`` is not the model's, embeddings with their positions and norm are that wide, then projected (Electra).
    """

    vocab: PositiveInt  # tokens that the model knows
    scale: PositiveFloat = 1.0  # the vectors are multiplied by it (2017 and Gemma: sqrt(dim))
    segments: NonNegativeInt = 0  # entries of the table of segments (BERT: 2); 0: none
    previous_token_embeddings: int = 0  # earlier tokens that add a vector of their own tables; 0: none
    dim: PositiveInt | None = None  # width of the embeddings, projected to the model's; none: the model's (Electra)

    def __post_init__(self) -> None:
        need(
            0 <= self.previous_token_embeddings <= MOST_LAGS,
            f"Embed.previous_token_embeddings is {self.previous_token_embeddings}; give 0 to {MOST_LAGS:,}.",
        )

    def shapes(self, width: int) -> Shapes:
        """A table of tokens, one of segments, and one for each token before; its last row is for no token."""
        segments = table(self.segments, width) if self.segments else {}
        lags = [table(self.vocab + 1, width)] * self.previous_token_embeddings
        return join(token=table(self.vocab, width), segment=segments) | each("lag", lags)


@frozen
class Head:
    """Vectors to logits: (transform, activate, norm), scale, project, cap."""

    tied: bool = True  # use the embedding's table as the projection
    bias: bool = False  # add one number a token of the vocabulary
    transform: Activation | None = None  # activation of a dense layer before the projection (BERT); none: no layer
    norm: Norm | None = None  # after that extra layer; none: no norm
    scale: PositiveFloat = 1.0  # the hidden state is multiplied by it (T5: dim ** -0.5)
    softcap: PositiveFloat | None = None  # c bounds logits: c * tanh(logits / c) (Gemma 2); none: no bound

    def shapes(self, dim: int, vocab: int) -> Shapes:
        """The transform, its norm, and the table where it is not the embedding's."""
        proj = join(weight=() if self.tied else (vocab, dim), bias=(vocab,) if self.bias else ())
        return join(transform=linear(dim, dim) if self.transform else {}, norm=of(self.norm, dim), proj=proj)


@renamed(of="mode", unit="normalize")
@frozen
class Pool:
    """One vector for a whole sequence: of its ``first`` token (BERT), its ``last``, the ``mean`` or ``max`` of all.

    Then (``transform`` with that activation: BERT's pooler), dropout, and ``labels`` logits; 0 labels end in the
    vector, scaled to length 1 where ``normalize`` (sentence encoders).
    """

    mode: Literal["first", "last", "mean", "max"] = "first"  # which vectors become one
    transform: Activation | None = None  # activation of a dense layer over it (BERT's pooler)
    labels: NonNegativeInt = 0  # logits to end in; 0 ends in the vector
    dropout: Share = 0.0  # share of the vector dropped before the labels
    normalize: bool = False  # scale the vector to length 1 (sentence encoders)

    def shapes(self, dim: int) -> Shapes:
        """The transform and the labels' layer."""
        proj = linear(dim, self.labels) if self.labels else {}
        return join(transform=linear(dim, dim) if self.transform else {}, proj=proj)


@frozen
class TokenHead:
    """``labels`` logits for each token: (``transform`` with that activation), dropout, project."""

    labels: PositiveInt  # logits for each token
    transform: Activation | None = None  # activation of a dense layer before them (Electra's discriminator)
    dropout: Share = 0.0  # share of each vector dropped before the labels
    span: bool = False  # two labels are an answer's start and end, not what a token is

    def __post_init__(self) -> None:
        need(not self.span or self.labels == 2, f"TokenHead.labels is {self.labels} and a span has 2 ends; give 2.")

    def shapes(self, dim: int) -> Shapes:
        """The transform and the labels' layer."""
        return join(transform=linear(dim, dim) if self.transform else {}, proj=linear(dim, self.labels))


@frozen
class Init:
    """How weights start: normal with ``std`` (None: 1/sqrt(fan_in)), embeddings and an untied head with their own.

    ``residual`` is for the matrices that write to the stream: ``plain`` like the others, ``depth``
    divided by sqrt(writes) (GPT-2), ``zero`` (each block starts as the identity).
    """

    std: float | None = 0.02  # standard deviation of matrices; none: 1/sqrt(fan_in)
    embed_std: float = 0.02  # standard deviation of the embeddings
    residual: Literal["plain", "depth", "zero"] = "depth"  # what writes to the stream; depth: std / sqrt(writes)
    head_std: float | None = None  # standard deviation of an untied head; none: as std

    def __post_init__(self) -> None:
        for name in ("std", "embed_std", "head_std"):
            value = getattr(self, name)
            need(value is None or 0 <= value <= 1000, f"Init.{name} is {value}; give a deviation from 0 to 1000.")
