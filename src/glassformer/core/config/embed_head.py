"""The ends of a model: tokens to vectors, vectors to logits over the vocabulary. No torch here."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from ..errors import need
from .feedforward import Activation
from .norm import Norm
from .serial import NonNegativeInt, PositiveFloat, PositiveInt, Range, frozen
from .shapes import Shapes, indexed, join, linear, shapes_of, table

# far beyond what anybody trains; more would only hang
EarlierTokens: TypeAlias = Annotated[int, Range(lambda x: 0 <= x <= 1024, "0 to 1,024")]


@frozen
class Embed:
    """Tokens to vectors; ``scale`` multiplies them (2017 and Gemma: sqrt(dim)); BERT adds
    ``segments``.

    ``previous_token_embeddings`` tokens before each add a vector, from tables of their own (Huang
    et al. 2025). Where ``dim`` is not the model's, embeddings with their positions and norm are
    that wide, then projected (Electra).
    """

    vocab: PositiveInt  # tokens that the model knows
    scale: PositiveFloat = 1.0  # the vectors are multiplied by it (2017 and Gemma: sqrt(dim))
    segments: NonNegativeInt = 0  # entries of the table of segments (BERT: 2); 0: none
    # earlier tokens that add a vector of their own tables; 0: none
    previous_token_embeddings: EarlierTokens = 0
    # width of the embeddings, projected to the model's; none: the model's (Electra)
    dim: PositiveInt | None = None

    def shapes(self, width: int) -> Shapes:
        """A table of tokens, one of segments, one for each token before (its last row: none)."""
        segments = table(self.segments, width) if self.segments else {}
        lags = [table(self.vocab + 1, width)] * self.previous_token_embeddings
        return join(token=table(self.vocab, width), segment=segments) | indexed("lag", lags)


@frozen
class Head:
    """Vectors to logits: (transform, activate, norm), scale, project, cap."""

    tied: bool = True  # use the embedding's table as the projection
    bias: bool = False  # add one number a token of the vocabulary
    # activation of a dense layer before the projection (BERT); none: no layer
    transform: Activation | None = None
    norm: Norm | None = None  # after that extra layer; none: no norm
    scale: PositiveFloat = 1.0  # the hidden state is multiplied by it (T5: dim ** -0.5)
    # c bounds logits: c * tanh(logits / c) (Gemma 2); none: no bound
    softcap: PositiveFloat | None = None
    transform_bias: bool = True  # the extra layer adds a bias (ModernBERT: no)
    # width that the extra layer ends in (ELECTRA, ALBERT: the embedding's); none: the model's
    width: PositiveInt | None = None

    def __post_init__(self) -> None:
        fits = self.width is None or self.transform is not None
        need(fits, f"Head.width is {self.width} and the head has no transform; give it one.")

    def shapes(self, dim: int, vocab: int) -> Shapes:
        """The transform, its norm, and the table where it is not the embedding's."""
        inner = self.width or dim
        proj = join(weight=() if self.tied else (vocab, inner), bias=(vocab,) if self.bias else ())
        return join(
            transform=linear(dim, inner, self.transform_bias) if self.transform else {},
            norm=shapes_of(self.norm, inner),
            proj=proj,
        )
