"""Predictions about a whole text: its vector, its label, the words for its blanks.

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
from ..core.nn import Flow, Model
from ..core.nn.finite import must_be_finite
from ..core.nn.hooks import ModelEdit, edited
from ..core.nn.model import inference
from .example_table import encode_words
from .pool import Pool, probabilities

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
    texts: str | Sequence[str],
    *,
    unit: bool | None = None,
    prompt_name: str | None = None,
    truncate: bool = False,
    batch: int = 32,
    progress: Progress | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> Tensor:
    """Computes one vector for each text, as the model's Pool makes it, or the mean of its last
    hidden states.

    Args:
        model: A decoder or an encoder.
        tokenizer: The tokenizer that came with it.
        texts: One text or several.
        unit: Scale each vector to length 1. None does as the model's Pool does.
        prompt_name: The name of a prompt of the model's that stands before each text, such as
            "query". None is its default prompt, where it has one.
        truncate: Cut texts that are longer than the context; they are refused otherwise.
        batch: Texts in one forward pass.
        progress: Called with the number of texts done.
        edits: Changes to what the model computes (``glassformer.sight.edits``).

    Returns:
        The vectors, (N, C) in fp32 on the CPU.

    Raises:
        UserError: A text is empty or too long, the model reads two texts, or it has no such prompt.

    Example:
        >>> vectors = glassformer.embed(model, tokenizer, ["a cat", "a dog"], unit=True)
        >>> print(vectors @ vectors.T)  # their cosines
    """
    pool_config = model.config.pool
    if model.config.has_source:
        raise UserError("An encoder-decoder has no vector for a text; use an encoder or a decoder.")
    pool = (
        model.pool
        if pool_config is not None and not pool_config.labels
        else Pool(config.Pool("mean"), model.config.dim)
    )
    texts = [texts] if isinstance(texts, str) else texts
    need(all(texts), "A text is empty; give some text.")
    before = prompt(model.prompts, prompt_name)
    prompted, as_file = [before + text for text in texts], is_framed_as_file(model.config)
    rows = _rows(model, tokenizer, prompted, truncate, as_file)
    vectors = torch.stack(_map_rows(model, rows, pool, batch, progress, edits))
    return torch.nn.functional.normalize(vectors, dim=-1) if unit else vectors


def prompt(prompts: Sequence[tuple[str, str]], name: str | None = None) -> str:
    """The text of a prompt by its name; without a name the default, which may be no text.

    Raises UserError for a name that is not there.
    """
    texts = dict(prompts)
    names = ", ".join(name for name in texts if name) or "none"
    need(
        name is None or (name in texts and name != ""),
        f'The model has no prompt "{name}"; its prompts: {names}.',
    )
    return texts.get(name or "", "")


@dataclass(frozen=True)
class Labels:
    """The probability of each label for each of N texts or words. It prints as a table.

    Attributes:
        texts: What was labelled: texts, pairs of texts, or the words of a sentence.
        names: The L names of the labels, or their numbers where the model has no names.
        probabilities: (N, L) in fp32. A model with a single label gives its value instead, (N, 1).
    """

    texts: Sequence[Text]
    names: tuple[str, ...]
    probabilities: Tensor

    @property
    def best(self) -> list[str]:
        """The likeliest label of each text."""
        return [self.names[index] for index in self.probabilities.argmax(1).tolist()]

    def lines(self) -> list[str]:
        """A line for each text: its likeliest label, how likely that is, and the text."""
        single = self.probabilities.shape[1] == 1
        lines = []
        for text, label, value in zip(
            self.texts, self.best, self.probabilities.amax(1).tolist(), strict=True
        ):
            figure = f"{value:10.4f}" if single else f"{label:12} {value:.4f}"
            lines.append(f"{figure}  {text if isinstance(text, str) else ' | '.join(text)}")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def label_names(model: Model) -> tuple[str, ...]:
    """The names of the labels that a model chooses from, or their numbers."""
    head: Any = model.config.token_head if tags(model.config) else model.config.pool
    return model.labels or tuple(map(str, range(head.labels if head else 0)))


def classify(
    model: Model,
    tokenizer: Tokenizer,
    texts: str | Sequence[Text],
    *,
    truncate: bool = False,
    batch: int = 32,
    progress: Progress | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> Labels:
    """Gives each text, or pair of texts, the probability of each label.

    Args:
        model: A model trained with the objective Classify.
        tokenizer: The tokenizer that came with it.
        texts: One text or several; a pair of texts is a tuple.
        truncate: Cut texts that are longer than the context; they are refused otherwise.
        batch: Texts in one forward pass.
        progress: Called with the number of texts done.
        edits: Changes to what the model computes (``glassformer.sight.edits``).

    Returns:
        The labels of the texts, in their order.

    Raises:
        UserError: A text is empty or too long, or the model has no labels.

    Example:
        >>> labels = glassformer.classify(model, tokenizer, ["a film to see twice", "dull"])
        >>> print(labels.best, labels.probabilities)
    """
    pool_config = model.config.pool
    if pool_config is None or not pool_config.labels:
        raise UserError(
            "This model has no labels to choose from; train it with the objective Classify first."
        )
    texts = [texts] if isinstance(texts, str) else texts
    rows = _rows(model, tokenizer, texts, truncate)
    logits = torch.stack(_map_rows(model, rows, model.pool, batch, progress, edits))
    return Labels(texts, label_names(model), probabilities(logits, pool_config))


def tag(
    model: Model,
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    *,
    batch: int = 32,
    progress: Progress | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> list[Labels]:
    """Gives each word of each sentence the probability of each label, read at its first token.

    Args:
        model: A model trained with the objective Tag.
        tokenizer: The tokenizer that came with it.
        sentences: Sentences, each a sequence of words.
        batch: Sentences in one forward pass.
        progress: Called with the number of sentences done.
        edits: Changes to what the model computes (``glassformer.sight.edits``).

    Returns:
        The labels of each sentence's words.

    Raises:
        UserError: A sentence is empty or too long, or the model has no labels for words.

    Example:
        >>> (labels,) = glassformer.tag(model, tokenizer, ["Ann saw Rome .".split()])
        >>> print(labels)
    """
    if not tags(model.config) or model.token_head is None:
        raise UserError(
            "This model has no labels for words; train it with the objective Tag first."
        )
    need(
        bool(sentences) and all(sentences),
        "A sentence is empty; give at least one, and words in each.",
    )
    rows, firsts = worded(tokenizer, sentences, model.context)
    row_logits = _map_rows(model, rows, model.token_head, batch, progress, edits)
    names = label_names(model)
    return [
        Labels(words, names, logits[first].softmax(-1))
        for words, logits, first in zip(sentences, row_logits, firsts, strict=True)
    ]


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
    token_head = cfg.token_head
    return token_head is not None and not token_head.span


def is_framed_as_file(cfg: config.Model) -> bool:
    """True for a decoder that never learned to end in a vector: its text has the tokens around it that
    the tokenizer's file says, as in transformers. An end of text would change a mean."""
    return cfg.pool is None and cfg.is_decoder


def _rows(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    truncate: bool,
    as_file: bool = False,
) -> list[tuple[list[int], list[int]]]:
    """The ids of each text or pair and their segments; UserError where there are none, or more than
    the model reads."""
    need(bool(texts), "There is no text; give at least one.")
    pieces = [(text,) if isinstance(text, str) else text for text in texts]
    need(all(map(all, pieces)), "A text is empty; give some text.")
    most = model.context
    rows = tokenizer.encode_pairs(texts, as_file=as_file)
    need(all(ids for ids, _ in rows), "A text has no token; give some text.")
    long = [place for place, (ids, _) in enumerate(rows) if len(ids) > most]
    if long:
        length = (
            f"Text {long[0] + 1} has {len(rows[long[0]][0]):,} tokens and the model reads {most:,}"
        )
        need(
            truncate,
            f"{length}; shorten it, or truncate long texts with --truncate (for eval, --cut end).",
        )
        for place in long:
            (rows[place],) = tokenizer.encode_pairs([texts[place]], most=most, as_file=as_file)
        note(
            f"{len(long):,} of {len(texts):,} texts were truncated; the model reads {most:,} "
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
    device = next(model.parameters()).device
    results = dict[int, Tensor]()
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
                if model.config.is_encoder and model.config.embed.segments > 1
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
    """Fills the blanks of a text, the likeliest tokens first.

    Args:
        model: An encoder with a masked-language head.
        tokenizer: The tokenizer that came with it.
        text: The text; a blank is ``___`` or the tokenizer's mask token.
        top: Ways to fill that are returned.
        order: ``apart`` fills each blank by itself, all in one pass. ``left`` and ``sure`` fill one
            after the other, each seeing those before it: from the left, or the blank first that
            the model is surest of.

    Returns:
        For ``apart`` a list for each blank, otherwise one list of ways to fill all of them.

    Raises:
        UserError: The text has no blank or is too long, the tokenizer has no mask token, or the
            model fills none.

    Example:
        >>> ((best, *others),) = glassformer.fill(model, tokenizer, "Paris is in ___.")
        >>> print(best.text, best.probability)
    """
    if not model.config.is_encoder or model.head is None:
        problem = (
            "has no head over words"
            if model.config.is_encoder
            else "writes texts, use `generate` or `translate`"
        )
        raise UserError(
            f"Blanks are filled by an encoder with a masked-language head; this model {problem}."
        )
    filling = Filling(tokenizer, text, model.context, top, order)
    while filling.rows:
        rows = filling.rows[: max(1, AT_ONCE // len(filling.segments))]
        filling.update(_logits(model, filling, rows))
    return filling.results


class Filling:
    """The blanks of one text as they are filled: ``rows`` go through the model, all at once or some
    after others, and ``update`` takes its logits at ``blanks``.

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
        # the same with one blank less, from the first ``_updated`` of the beams
        self._grown: dict[Any, tuple[float, list[int], tuple[int, ...]]] = {}
        self._updated = 0

    @property
    def rows(self) -> list[list[int]]:
        """Rows for the next forward pass; none once every blank is filled."""
        if self.results:
            return []
        return [ids for _, ids, _ in self._beams[self._updated :]]

    def update(self, logits: Tensor) -> None:
        """Logits (B, P, V) of the first B rows at the P blanks.

        Probabilities are over all rows of the model's vocabulary; a table rounded up has ids that
        nobody can write.
        """
        if self.order == "apart":
            for number, blank in enumerate(logits[0]):
                row, count = self._logprobs(blank)
                pairs = zip(*(x.tolist() for x in row.topk(count)), strict=True)
                self.results.append(
                    [self._filled({number: token}, value) for value, token in pairs]
                )
            return
        beams = self._beams[self._updated : self._updated + len(logits)]
        for (total, ids, open), blanks in zip(beams, logits, strict=True):
            row, count = self._logprobs(blanks)
            number = open[0]
            if self.order == "sure":
                number = max(open, key=lambda blank: float(row[blank].max()))
            remaining = tuple(blank for blank in open if blank != number)
            for value, token in zip(*(x.tolist() for x in row[number].topk(count)), strict=True):
                longer = [*ids]
                longer[self.blanks[number]] = token
                self._grown[tuple(longer), remaining] = (total + value, longer, remaining)
        self._updated += len(beams)
        if self._updated < len(self._beams):
            return
        self._beams = sorted(self._grown.values(), key=lambda state: -state[0])[: self.top]
        self._grown = {}
        self._updated = 0
        if not self._beams[0][2]:
            self.results = [
                [
                    self._filled({n: ids[place] for n, place in enumerate(self.blanks)}, total)
                    for total, ids, _ in self._beams
                ]
            ]

    def _logprobs(self, logits: Tensor) -> tuple[Tensor, int]:
        """Log-probabilities of the tokens that can be written, and the number of the likeliest to
        keep."""
        logprobs = logits.float().log_softmax(-1)[..., : self.tokenizer.size]
        return logprobs, min(self.top, logprobs.shape[-1])

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


def _logits(model: Model, filling: Filling, rows: Sequence[Sequence[int]]) -> Tensor:
    """Logits of rows at the blanks (B, P, V)."""
    device = next(model.parameters()).device
    extras = {}
    if model.config.embed.segments > 1:
        extras["segments"] = torch.tensor([filling.segments] * len(rows), device=device)
    with inference(model):
        logits: Tensor = model(torch.tensor(rows, device=device), **extras).logits
    must_be_finite(model, logits)
    return logits[:, filling.blanks]
