"""What a model can be trained to do, and how much of it is trained, as frozen dataclasses. No torch here.

[train]
objective = { type = "Masked", rate = 0.15 }
tune = { type = "LoRA", rank = 8 }
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from ..errors import above_zero, need
from .serial import frozen, renamed


def _share(part: object, name: str) -> None:
    value = getattr(part, name)
    need(0 < value < 1, f"{type(part).__name__}.{name} is {value}; give a share between 0 and 1.")


# ------------------------------------------------------------------------------------ objectives


@frozen
class Causal:
    """The next token, of running text; what GPT learns."""


@frozen
class Masked:
    """The tokens that were hidden (Devlin et al. 2019): ``rate`` of them are chosen, 80 % become the mask,
    10 % another token, 10 % stay. ``whole_words`` chooses all pieces of a word together.
    """

    rate: float = 0.15
    whole_words: bool = False

    def __post_init__(self) -> None:
        _share(self, "rate")


@frozen
class Prefix:
    """The second part of each document, after a first part that is seen both ways (Raffel et al. 2020, 3.2.1).

    Where it is cut is drawn anew each time, between the shares ``least`` and ``most`` of the document.
    """

    least: float = 0.1
    most: float = 0.9

    def __post_init__(self) -> None:
        need(0 < self.least <= self.most < 1, "Prefix.least and most are shares between 0 and 1, least first.")


@frozen
class Span:
    """The spans that were cut out (Raffel et al. 2020, 3.1.4): ``rate`` of the tokens, ``length`` on average.

    Each is a sentinel in the source; the target is every sentinel and what it stands for.
    """

    rate: float = 0.15
    length: float = 3.0  # tokens of a span, on average

    def __post_init__(self) -> None:
        _share(self, "rate")
        above_zero(self, "length")


@frozen
class Seq2Seq:
    """The target text after the source text: translation, summarization. A decoder alone reads both as one."""


@renamed(agree="rdrop", push="adversarial")
@frozen
class Classify:
    """The label of one text or of two; ``regression`` learns a number instead.

    Where examples are few: ``rdrop`` reads each text twice, with other dropout, and weighs how far apart both answers
    are (R-Drop, Liang et al. 2021); ``adversarial`` reads it once more with its embedded tokens moved to where the
    loss grows fastest, all together by that many times the length of one (Miyato et al. 2017). 0 is neither.
    """

    regression: bool = False
    rdrop: float = 0.0
    adversarial: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rdrop", "adversarial"):
            value = getattr(self, name)
            need(0 <= value < math.inf, f"Classify.{name} is {value:g}; give 0 or more.")


@frozen
class Tag:
    """The label of each word, read at its first token; its other tokens are not counted (Devlin et al. 2019, 5.3)."""


@frozen
class Contrast:
    """Which of the batch's second texts belongs to each first one (in-batch negatives, Henderson et al. 2017).

    Cosines are divided by ``temperature`` before the softmax; both directions count.
    """

    temperature: float = 0.05

    def __post_init__(self) -> None:
        above_zero(self, "temperature")


Objective: TypeAlias = Causal | Masked | Prefix | Span | Seq2Seq | Classify | Tag | Contrast
RUNNING = (Causal, Masked, Prefix, Span)
"""Objectives on running text ([data] type = "Data"); the others need examples ([data] type = "Examples")."""


# ------------------------------------------------------------------------- how much is trained


@frozen
class Full:
    """Every weight."""


@frozen
class Frozen:
    """Only the weights whose path matches ``train`` (fnmatch); by default the heads, on a trunk that stays."""

    train: tuple[str, ...] = ("head.*", "pool.*", "token_head.*")


@frozen
class LoRA:
    """Low-rank changes beside frozen matrices (Hu et al. 2021): W + alpha / rank * up @ down.

    ``paths`` (fnmatch) names the linear layers; what matches ``train`` is trained whole.
    """

    rank: int = 8  # rows of each low-rank pair
    alpha: float = 16.0  # the change counts alpha / rank times
    dropout: float = 0.0  # on what the changes read
    paths: tuple[str, ...] = ("*.attn.q", "*.attn.v")
    train: tuple[str, ...] = ("pool.*", "token_head.*")

    def __post_init__(self) -> None:
        above_zero(self, "rank", "alpha")
        need(0 <= self.dropout < 1, f"LoRA.dropout is {self.dropout}; give a share from 0 to below 1.")


Tune: TypeAlias = Full | Frozen | LoRA
Part: TypeAlias = Literal["source", "target", "text", "second", "label", "tokens", "labels"]
