"""What a model says of a whole text: its vector, its label, the words for its blanks.

N texts, B of them at once, T tokens, C model dim, L labels, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core import config
from ..core.errors import UserError, need, note
from ..core.nn import Encoder, Flow, Model
from ..core.nn.edited import ModelEdit, edited
from ..core.nn.finite import must_be_finite
from ..core.nn.model import inference
from .example_table import encode_words
from .pool import Pool

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

Text: TypeAlias = str | tuple[str, str]
Progress = Callable[[int], None]  # texts done so far
Order: TypeAlias = Literal["apart", "left", "sure"]
# tokens of a CPU's pass: what a layer makes of more of them leaves the cache before the next reads
# it
AT_ONCE = 1024
BLANK = "___"  # stands for the mask token, whatever that is called


def embed(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    unit: bool | None = None,
    truncate: bool = False,
    batch: int = 32,
    progress: Progress | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> Tensor:
    """One vector for each text (N, C), as the model's own Pool makes it, or the mean of its last
    hidden states.

    ``unit`` scales them to length 1 (None: as the Pool says). Texts longer than the context lose
    their end where ``truncate`` allows it. ``edits`` (inspection.edits) change what the model
    computes, here and in ``classify`` and ``tag``. Raises UserError for a text that is too long,
    and for a model that ends in labels or reads two texts.
    """
    pool_config = model.config.pool
    if model.config.has_source:
        raise UserError("An encoder-decoder has no vector for a text; use an encoder or a decoder.")
    pool = (
        model.pool
        if pool_config is not None and not pool_config.labels
        else Pool(config.Pool("mean"), model.config.dim)
    )
    vectors = torch.stack(
        _map_rows(model, _rows(model, tokenizer, texts, truncate), pool, batch, progress, edits)
    )
    return torch.nn.functional.normalize(vectors, dim=-1) if unit else vectors


def classify(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    *,
    truncate: bool = False,
    batch: int = 32,
    progress: Progress | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> Tensor:
    """The probability of each label for each text or pair of texts, (N, L); with one label, its
    value (N, 1).

    ``truncate`` as in ``embed``. Raises UserError for a model that ends in no labels.
    """
    pool_config = model.config.pool
    if pool_config is None or not pool_config.labels:
        raise UserError(
            "This model has no labels to choose from; train it with the objective Classify first."
        )
    logits = torch.stack(
        _map_rows(
            model, _rows(model, tokenizer, texts, truncate), model.pool, batch, progress, edits
        )
    )
    return logits if pool_config.labels == 1 else logits.softmax(-1)


def tag(
    model: Model,
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    *,
    batch: int = 32,
    progress: Progress | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> list[Tensor]:
    """The probability of each label for each word (words, L) of each sentence, read at the word's
    first token.

    Raises UserError for a model without labels for tokens, and for a sentence longer than the
    context.
    """
    if not tags(model.config) or model.token_head is None:
        raise UserError(
            "This model has no labels for words; train it with the objective Tag first."
        )
    need(
        bool(sentences) and all(sentences),
        "A sentence is empty; give at least one, and words in each.",
    )
    rows, firsts = worded(tokenizer, sentences, int(min(model.config.context, model.limit)))
    row_logits = _map_rows(model, rows, model.token_head, batch, progress, edits)
    return [logits[first].softmax(-1) for logits, first in zip(row_logits, firsts, strict=True)]


def worded(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], most: int
) -> tuple[list[tuple[list[int], list[int]]], list[list[int]]]:
    """The ids and segments of sentences cut into words, and where each word's first token stands.

    UserError for a sentence of more than ``most`` tokens.
    """
    words = list(encode_words(tokenizer, sentences))
    rows = [tokenizer.framed([[*itertools.chain(*sentence)]]) for sentence in words]
    length, longest = max((len(ids), -place) for place, (ids, _) in enumerate(rows))
    need(
        length <= most,
        f"Sentence {1 - longest} has {length} tokens and the model reads {most}; cut it in two.",
    )
    opened = tokenizer.framed([[-1]])[0].index(-1)
    return rows, [
        list(itertools.accumulate(map(len, sentence), initial=opened))[:-1] for sentence in words
    ]


def tags(cfg: config.Model) -> bool:
    """True where a model of this config gives each word a label."""
    token_head = getattr(cfg, "token_head", None)
    return token_head is not None and not token_head.span


def _rows(
    model: Model, tokenizer: Tokenizer, texts: Sequence[Text], truncate: bool
) -> list[tuple[list[int], list[int]]]:
    """The ids of each text or pair and their segments; UserError where there are none, or more than
    the model reads."""
    need(bool(texts), "There is no text; give at least one.")
    pieces = [(text,) if isinstance(text, str) else text for text in texts]
    need(all(map(all, pieces)), "A text is empty; give some text.")
    most, rows = int(min(model.config.context, model.limit)), tokenizer.encode_pairs(texts)
    long = [place for place, (ids, _) in enumerate(rows) if len(ids) > most]
    if long:
        length = (
            f"Text {long[0] + 1} has {len(rows[long[0]][0]):,} tokens and the model reads {most:,}"
        )
        need(
            truncate,
            f"{length}; shorten it, or let texts lose their end: --truncate, for eval --cut end.",
        )
        for place in long:
            (rows[place],) = tokenizer.encode_pairs([texts[place]], most=most)
        note(
            f"{len(long):,} of {len(texts):,} texts lost their end; the model reads {most:,} "
            "tokens."
        )
    return rows


def _map_rows(
    model: Model,
    rows: Sequence[tuple[list[int], list[int]]],
    answer: Callable[[Tensor, Flow], Tensor],
    batch: int,
    progress: Progress | None,
    edits: Sequence[ModelEdit | str],
) -> list[Tensor]:
    """``answer`` of each row's hidden states, in fp32 on the host; short rows first, so that little
    is padded."""
    need(batch >= 1, f"batch is {batch}; give 1 or more.")
    tape, *_ = edited(edits, model)
    device, results = next(model.parameters()).device, dict[int, Tensor]()
    order = sorted(range(len(rows)), key=lambda place: len(rows[place][0]))
    for places in _groups(rows, order, batch, AT_ONCE if device.type == "cpu" else None):
        ids, kinds = zip(*(rows[place] for place in places), strict=True)
        tokens, segments, pos = (
            pad_sequence([*map(torch.tensor, values)], True, fill).to(device)
            for values, fill in ((ids, 0), (kinds, 0), ([range(len(row)) for row in ids], -1))
        )
        wrong = tokens.max() >= model.config.embed.vocab
        need(
            not wrong,
            "The tokenizer has tokens that the model does not know; use the one it "
            "was trained with.",
        )
        with inference(model):
            extras = (
                {"segments": segments}
                if isinstance(model, Encoder) and model.config.embed.segments
                else {}
            )
            hidden = model(tokens, pos=pos, tape=tape, logits="none", **extras).hidden
            answers = answer(hidden, model.flow(tokens, pos, tape=tape)).float()
        must_be_finite(model, answers)
        results.update(zip(places, answers.cpu(), strict=True))
        if progress is not None:
            progress(len(results))
    return [results[place] for place in range(len(rows))]


def _groups(
    rows: Sequence[tuple[list[int], list[int]]], order: Sequence[int], batch: int, most: int | None
) -> Iterator[list[int]]:
    """The places in ``order``, short rows first, cut into groups of ``batch``, or of ``most``
    tokens with padding."""
    group: list[int] = []
    for place in order:
        full = most is not None and (len(group) + 1) * len(rows[place][0]) > most
        if group and (full or len(group) == batch):
            yield group
            group = []
        group.append(place)
    yield group


@dataclass(frozen=True)
class Filled:
    """A way to fill the blanks: the token for each, and the whole text; ``probability`` is that of
    all of them."""

    tokens: list[int]
    words: list[str]
    probability: float
    text: str

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def fill(
    model: Model,
    tokenizer: Tokenizer,
    text: str,
    *,
    top: int = 5,
    order: Order = "apart",
) -> list[list[Filled]]:
    """Fills the blanks of a text, written as the encoder's mask token or as ``___``, the likeliest
    tokens first.

    ``apart``: the ``top`` tokens of each blank by itself, all read in one pass; a list for each
    blank. ``left`` and ``sure``: the ``top`` ways to fill all of them, one after the other, each
    seeing those before it, from the left or the blank first that the model is surest of; one list.
    Raises UserError for a text without blanks, a tokenizer without a mask and a model that fills
    none.
    """
    if not isinstance(model, Encoder) or model.head is None:
        problem = (
            "has no head over words"
            if isinstance(model, Encoder)
            else "writes texts, use `generate` or `translate`"
        )
        raise UserError(
            f"Blanks are filled by an encoder with a masked-language head; this model {problem}."
        )
    filling = Filling(tokenizer, text, int(min(model.config.context, model.limit)), top, order)
    while filling.rows:
        filling.update(_logits(model, filling))
    return filling.results


class Filling:
    """The blanks of one text as they are filled: ``rows`` go through the model, and ``update``
    takes its logits at ``blanks``.

    ``results`` is set once no rows remain. Each row is as long as ``segments``.
    """

    def __init__(self, tokenizer: Tokenizer, text: str, most: int, top: int, order: Order) -> None:
        if tokenizer.mask is None:
            raise UserError(
                "This tokenizer has no mask token, so a blank cannot be shown to the "
                "model; use another."
            )
        need(top >= 1, f"top is {top}; give 1 or more.")
        self.tokenizer, self.top, self.order = tokenizer, top, order
        self.mark = tokenizer.token(tokenizer.mask)
        self.text = text.replace(BLANK, self.mark)
        ids, self.segments = tokenizer.encode_pair(self.text, special=True)
        self.blanks = [place for place, token in enumerate(ids) if token == tokenizer.mask]
        need(
            bool(self.blanks), f"The text has no blank; write {BLANK} or {self.mark} where one is."
        )
        need(
            len(ids) <= most,
            f"The text has {len(ids)} tokens and the model reads {most}; shorten it.",
        )
        self.results: list[list[Filled]] = []
        # log-probability, ids, and the numbers of the blanks that are still open
        self._beams: list[tuple[float, list[int], tuple[int, ...]]] = [
            (0.0, ids, tuple(range(len(self.blanks))))
        ]

    @property
    def rows(self) -> list[list[int]]:
        """Rows for the next forward pass; none once every blank is filled."""
        return [] if self.results else [ids for _, ids, _ in self._beams]

    def update(self, logits: Tensor) -> None:
        """Logits (B, P, V) of the rows at the P blanks.

        Probabilities are over all rows of the model's vocabulary; a table rounded up has ids that
        nobody can write.
        """
        logprobs = logits.float().log_softmax(-1)[..., : self.tokenizer.size]
        count = min(self.top, logprobs.shape[-1])
        if self.order == "apart":
            for number, row in enumerate(logprobs[0]):
                pairs = zip(*(x.tolist() for x in row.topk(count)), strict=True)
                self.results.append(
                    [self._filled({number: token}, value) for value, token in pairs]
                )
            return
        grown = {}
        for (total, ids, open), row in zip(self._beams, logprobs, strict=True):
            number = open[0]
            if self.order == "sure":
                number = max(open, key=lambda blank: float(row[blank].max()))
            remaining = tuple(blank for blank in open if blank != number)
            for value, token in zip(*(x.tolist() for x in row[number].topk(count)), strict=True):
                longer = [*ids]
                longer[self.blanks[number]] = token
                grown[tuple(longer), remaining] = (total + value, longer, remaining)
        self._beams = sorted(grown.values(), key=lambda state: -state[0])[: self.top]
        if not self._beams[0][2]:
            self.results = [
                [
                    self._filled({n: ids[place] for n, place in enumerate(self.blanks)}, total)
                    for total, ids, _ in self._beams
                ]
            ]

    def _filled(self, chosen: dict[int, int], logprob: float) -> Filled:
        """The text with the tokens chosen, by the blank's number."""
        words = {
            number: self.tokenizer.decode([token], special=True).strip()
            for number, token in chosen.items()
        }
        first, *pieces = self.text.split(self.mark)
        text = first + "".join(
            words.get(number, BLANK) + piece for number, piece in enumerate(pieces)
        )
        return Filled(list(chosen.values()), list(words.values()), math.exp(logprob), text)


def _logits(model: Model, filling: Filling) -> Tensor:
    """Logits of the rows at the blanks (B, P, V)."""
    rows, device = filling.rows, next(model.parameters()).device
    extras = {}
    if model.config.embed.segments:
        extras["segments"] = torch.tensor([filling.segments] * len(rows), device=device)
    with inference(model):
        logits: Tensor = model(torch.tensor(rows, device=device), **extras).logits
    must_be_finite(model, logits)
    return logits[:, filling.blanks]
