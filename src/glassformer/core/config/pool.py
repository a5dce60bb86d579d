"""Heads of an encoder: one vector or some logits for a whole sequence, or for each token."""

from __future__ import annotations

from typing import Literal

from ..errors import need
from .layers import Activation, Norm, Shapes, join, linear, shapes_of
from .serial import NonNegativeInt, PositiveInt, Share, frozen


@frozen
class Pool:
    """One vector for a sequence: of its ``first`` token (BERT), its ``last``, ``mean`` or ``max``.

    ``attention`` is a mean weighed by a softmax of how well each token fits a learned query (Lin et
    al. 2017). Then (``transform`` with that activation: BERT's pooler), dropout, and ``labels``
    logits; 0 labels end in the vector, scaled to length 1 where ``normalize`` (sentence encoders).
    """

    mode: Literal["first", "last", "mean", "max", "attention"] = "first"  # which vectors become one
    transform: Activation | None = None  # activation of a dense layer over it (BERT's pooler)
    labels: NonNegativeInt = 0  # logits to end in; 0 ends in the vector
    dropout: Share = 0.0  # share of the vector dropped before the labels
    normalize: bool = False  # scale the vector to length 1 (sentence encoders)
    sigmoid: bool = False  # labels do not exclude each other: each has a probability of its own
    transform_bias: bool = True  # the dense layer adds a bias (ModernBERT: no)
    norm: Norm | None = None  # after the dense layer (ModernBERT); none: no norm
    late: bool = False  # the dense layer reads each token, before they become one (EuroBERT)
    bias: bool = True  # the labels' layer adds a bias (a decoder's score: no)
    # the "last" token is the last of these (BART's </s>); none: of any
    eos: NonNegativeInt | None = None
    pad: NonNegativeInt | None = None  # these at the end of a text are passed over for "last"

    def shapes(self, dim: int) -> Shapes:
        """The query of ``attention``, the transform and the labels' layer."""
        query = linear(dim, 1, bias=False) if self.mode == "attention" else {}
        return _layers(self, dim) | join(query=query)


@frozen
class TokenHead:
    """``labels`` logits for each token: (``transform`` with that activation), dropout, project."""

    labels: PositiveInt  # logits for each token
    # activation of a dense layer before them (Electra's discriminator)
    transform: Activation | None = None
    dropout: Share = 0.0  # share of each vector dropped before the labels
    span: bool = False  # two labels are an answer's start and end, not what a token is
    transform_bias: bool = True  # the dense layer adds a bias (ModernBERT: no)
    norm: Norm | None = None  # after the dense layer (ModernBERT); none: no norm
    bias: bool = True  # the labels' layer adds a bias

    def __post_init__(self) -> None:
        fits = not self.span or self.labels == 2
        need(fits, f"TokenHead.labels is {self.labels} and a span has 2 ends; give 2.")

    def shapes(self, dim: int) -> Shapes:
        """The transform and the labels' layer."""
        return _layers(self, dim)


def _layers(cfg: Pool | TokenHead, dim: int) -> Shapes:
    transform = linear(dim, dim, cfg.transform_bias) if cfg.transform else {}
    proj = linear(dim, cfg.labels, cfg.bias) if cfg.labels else {}
    return join(transform=transform, norm=shapes_of(cfg.norm, dim), proj=proj)
