"""The logit lens: what the model would say if it stopped at each depth (nostalgebraist 2020).

The states after a block go through the model's own last norm and head, as those of the last block
do; or first through a translator that was fitted for that depth (tuned_lens.py).

D depths, P asked positions, T tokens, C model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core import config
from ..core.errors import need
from ..core.nn import Model
from ..core.nn.finite import must_be_finite
from ..core.nn.model import inference
from . import passes, streams
from .figures.charts import Chart, Curves, Heat, Prose, TableFigure
from .figures.drawing import Array
from .figures.shown import Records, Shown
from .inputs import Text
from .reading import Edits
from .streams import TokenLabel

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer
    from .tuned_lens import TunedLens

BESIDE = 12  # positions side by side in a picture
MOST = 16  # positions where none are asked for
# logits made at a time: twice as many are 4 % faster on a CPU and take several times the memory
NUMBERS = 1 << 21
NATS = "entropy and KL(own || depth) in nats"


@dataclass(frozen=True)
class Tracked:
    """One token through the depths: ``probability`` and ``rank`` are (D, P); rank 1 is the
    likeliest."""

    token: int
    piece: TokenLabel
    probability: list[list[float]]
    rank: list[list[int]]


@dataclass(frozen=True, repr=False)
class Lens(Shown):
    """Prediction of each depth at each requested position; the last depth is the model's own
    answer.

    ``top``, ``top_pieces`` and ``probability`` are (D, P, N): the N likeliest tokens. ``entropy``
    and ``kl`` are (D, P), in nats: of the depth's distribution, and from the model's own to it,
    KL(own || depth). ``notes`` say how it was read and what was left out.
    """

    lens: str  # "logit lens" or "tuned lens"
    depths: list[str]
    positions: list[int]
    tokens: list[int]
    pieces: list[TokenLabel]
    length: int
    top: list[list[list[int]]]
    top_pieces: list[list[list[TokenLabel]]]
    probability: list[list[list[float]]]
    entropy: list[list[float]]
    kl: list[list[float]]
    tracked: list[Tracked]
    notes: list[str]

    @property
    def title(self) -> str:
        """Which lens, and where in the text."""
        return f"{self.lens}: the likeliest token of each depth, coloured by its probability"

    def charts(self) -> Iterator[Chart]:
        """The likeliest tokens as a map of depths and positions; the tracked ones and KL as lines
        over the depths."""
        yield Prose(self.notes)
        whole = self._map()
        for low in range(0, len(self.positions), BESIDE):
            window = slice(low, low + BESIDE)
            ends = self.positions[low], self.positions[window][-1]
            yield replace(
                whole,
                title=f"positions {ends[0]} to {ends[1]} of {self.length}",
                values=whole.values[:, window],
                columns=whole.columns[window],
                words=[row[window] for row in whole.words or ()],
            )
        last = f"at {whole.columns[-1]}, by depth (0: {self.depths[0]})"
        if self.tracked:
            lines = {
                token.piece.display: [row[-1] for row in token.probability]
                for token in self.tracked
            }
            yield Curves.by_depth(f"probability {last}", lines)
        nats = {"KL to the answer": self.kl, "entropy": self.entropy}
        lines = {name: [row[-1] for row in rows] for name, rows in nats.items()}
        yield replace(Curves.by_depth(f"nats {last}", lines), dots=())

    def _map(self) -> Heat:
        chance = np.array(self.probability)[::-1, :, 0]
        words = [[word[0].display for word in row] for row in reversed(self.top_pieces)]
        pairs = zip(self.positions, self.pieces, strict=True)
        columns = [f"{position}:{piece.display}" for position, piece in pairs]
        return Heat("", chance, self.depths[::-1], columns, words, span=(0.0, 1.0))

    def records(self) -> Records:
        """A row for each depth, position and likely token; rank 0 are the tracked ones' own."""
        names = "depth position token rank likely likely_id probability entropy kl tracked"
        return names.split(), self._rows()

    def _rows(self) -> Iterator[Sequence[Any]]:
        for depth, name in enumerate(self.depths):
            for at, position in enumerate(self.positions):
                context = (name, position, self.pieces[at])
                facts = self.entropy[depth][at], self.kl[depth][at]
                best = zip(
                    self.top_pieces[depth][at],
                    self.top[depth][at],
                    self.probability[depth][at],
                    strict=True,
                )
                for rank, entry in enumerate(best, 1):
                    yield (*context, rank, *entry, *facts, "")
                for followed in self.tracked:
                    target = (
                        followed.rank[depth][at],
                        followed.piece,
                        followed.token,
                        followed.probability[depth][at],
                    )
                    yield (*context, *target, *facts, "tracked")

    def tensors(self) -> dict[str, Array]:
        """The facts as (D, P, ..), and of the tracked tokens (W, D, P)."""
        arrays = {
            name: np.array(getattr(self, name)) for name in ("top", "probability", "entropy", "kl")
        }
        if self.tracked:
            arrays["tracked_probability"] = np.array([token.probability for token in self.tracked])
            arrays["tracked_rank"] = np.array([token.rank for token in self.tracked])
        return arrays

    def facts(self) -> Mapping[str, Any]:
        names = ("lens", "depths", "positions", "tokens", "pieces", "notes")
        tracked = [token.piece for token in self.tracked]
        return {"tracked": tracked, **{name: vars(self)[name] for name in names}}

    def _table(self, column: int = -1) -> TableFigure:
        """One position's depths as lines, the answer first: the likeliest tokens, entropy, KL,
        tracked tokens."""
        rows = []
        for depth in reversed(range(len(self.depths))):
            words = self.top_pieces[depth][column]
            chances = self.probability[depth][column]
            likely = "  ".join(
                f"{word.display} {chance:.3f}" for word, chance in zip(words, chances, strict=True)
            )
            numbers = [f"{self.entropy[depth][column]:.3f}", f"{self.kl[depth][column]:.3f}"]
            for token in self.tracked:
                numbers += [
                    f"{token.probability[depth][column]:.4f}",
                    f"{token.rank[depth][column]:,}",
                ]
            rows.append((self.depths[depth], *numbers, likely))
        named = [name for token in self.tracked for name in (f"p({token.piece.display})", "rank")]
        heading = ("depth", "entropy", "KL", *named, "likeliest, with their probabilities")
        return TableFigure("", heading, rows, (0, len(heading) - 1))

    def text(self, width: int | None = None) -> str:
        """For a terminal: the likeliest token of every depth and position, as many columns side by
        side as fit."""
        chances = self._map()
        words = [
            [f"{word} {chance:.2f}" for word, chance in zip(*row, strict=True)]
            for row in zip(chances.words or (), chances.values.tolist(), strict=True)
        ]
        return replace(chances, words=words).text("depth", width, left=True)


def logit_lens(
    model: nn.Module,
    tokenizer: Any,
    text: Text,
    *,
    source: Text | None = None,
    positions: str | Sequence[int] | None = None,
    track: Sequence[str | int] = (),
    top: int = 5,
    tuned: TunedLens | None = None,
    edits: Edits = (),
) -> Lens:
    """Reads what each depth of a model would say, through its last norm and its head.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it.
        text: A text, or token ids; of an encoder-decoder what its decoder reads.
        source: What an encoder-decoder's encoder reads.
        positions: Positions to read, "all", or None for the last 16.
        track: Tokens to follow through the depths, by text, name or id.
        top: The likeliest tokens of each depth.
        tuned: A fitted translator in front of the head.
        edits: Changes to the run.

    Returns:
        The predictions of each depth; printing them shows a table.

    Raises:
        UserError: The model has no head, a position is not there, or a tracked word is several
            tokens.

    Example:
        >>> print(glassformer.logit_lens(model, tokenizer, "Once upon a"))
    """
    need(top >= 1, f"top is {top}; give 1 or more.")
    if tuned is not None:
        need(isinstance(model, Model), "A tuned lens needs a model of Glassformer; leave it out.")
    if not isinstance(model, Model):
        run = passes.record_foreign(model, tokenizer, text, source, edits)
        tokens = run.tokens
        words = run.tokenizer
        vocab = run.answer.shape[-1]
    else:
        streams.needs_head(model, "`glassformer contexts` compares its vectors layer by layer.")
        inputs = streams.prepare(model, tokenizer, text, source, edits)
        tokens, words, vocab = inputs.tokens, tokenizer, model.config.embed.vocab
    length = tokens.shape[1]
    columns = streams.places(positions, length, MOST)
    followed = [streams.word_id(vocab, words, word) for word in track]
    ids = tokens[0, columns].tolist()
    if isinstance(model, Model):
        if tuned is not None:
            tuned.must_fit(model)
        hidden = streams.states(model, inputs).at(columns)
        lens = lens_of_states(
            model, tokenizer, hidden, ids, columns, length, track=followed, top=top, tuned=tuned
        )
    else:
        states = run.structure.depths()
        decoded = (run.structure.decode(state)[0, columns] for state in [*states.values()][:-1])
        size = vocab if words is None else min(words.size, vocab)
        logits = chain([run.answer[0, columns]], decoded)
        stats = _statistics(model, logits, min(top, size), size, followed)
        layers = ", ".join(run.structure.head_layers())
        notes = [f"Each depth is read through {layers}; {NATS}."]
        named = "logit lens", list(states), columns, ids, words, length
        lens = _lens(*named, stats, followed, notes)
    if positions is None and length > MOST:
        lens.notes.append(
            f"The last {MOST} of {length} positions; --positions chooses others (all: every one)."
        )
    return lens


def lens_of_states(
    model: Model,
    tokenizer: Tokenizer | None,
    hidden: streams.States,
    ids: Sequence[int],
    columns: Sequence[int],
    length: int,
    *,
    track: Sequence[int] = (),
    top: int = 5,
    tuned: TunedLens | None = None,
) -> Lens:
    """The same of states that are there: ``seen`` (P, C) of the tokens ``ids`` at the positions
    ``asked`` of a text."""
    vocab = model.config.embed.vocab
    vocab_size = vocab if tokenizer is None else min(tokenizer.size, vocab)
    step = max(1, min(len(columns), NUMBERS // vocab))
    stretches = []
    with inference(model):
        for low in range(0, len(columns), step):
            stretch = range(low, min(low + step, len(columns)))
            logits = _logits(model, hidden, stretch, tuned)
            stretches.append(_statistics(model, logits, min(top, vocab_size), vocab_size, track))
    stats = {name: torch.cat([stretch[name] for stretch in stretches]) for name in stretches[0]}
    name = "logit lens" if tuned is None else "tuned lens"
    named = name, list(hidden.by_path), columns, ids, tokenizer, length
    return _lens(*named, stats, track, _notes(model, tuned))


def _lens(
    name: str,
    depths: list[str],
    columns: Sequence[int],
    ids: Sequence[int],
    tokenizer: Tokenizer | None,
    length: int,
    by_position: Mapping[str, Tensor],
    track: Sequence[int],
    notes: list[str],
) -> Lens:
    """A lens of the ``_statistics`` (P, D, ..) of its positions."""
    stats = {fact: numbers.transpose(0, 1) for fact, numbers in by_position.items()}
    likely = stats["top"].tolist()
    return Lens(
        name,
        depths,
        list(columns),
        list(ids),
        streams.pieces(tokenizer, ids),
        length,
        likely,
        [[streams.pieces(tokenizer, cell) for cell in row] for row in likely],
        stats["probability"].tolist(),
        stats["entropy"].tolist(),
        stats["kl"].tolist(),
        [
            Tracked(
                token,
                streams.pieces(tokenizer, [token])[0],
                stats["chance"][..., at].tolist(),
                stats["rank"][..., at].tolist(),
            )
            for at, token in enumerate(track)
        ],
        notes,
    )


def logits_by_depth(
    model: Model,
    tokens: Tensor,
    source: Tensor | None = None,
    *,
    positions: str | Sequence[int] = "all",
    tuned: TunedLens | None = None,
) -> dict[str, Tensor]:
    """The lens's logits (P, V) by the path of each depth, for one text (1, T); the last are the
    model's own bits.

    With fewer positions than the text has, the head's product has another shape, which may round
    otherwise.
    """
    streams.needs_head(model, "there is nothing to read its states with.")
    hidden = streams.states(model, streams.Read(tokens, source, {}))
    columns = streams.places(positions, tokens.shape[1])
    with inference(model):
        final, *earlier = _logits(model, hidden, columns, tuned)
    return dict(zip(hidden.by_path, [*earlier, final], strict=True))


def _logits(
    model: Model, hidden: streams.States, columns: Sequence[int], tuned: TunedLens | None
) -> Iterator[Tensor]:
    """The logits (P, V) of the last depth, which are the model's own, then of each depth before it
    in order."""
    head: Any = model.head
    last_norm = streams.last_norm(model)
    yield head(hidden.out[None, list(columns)], model.embed)[0]
    before = list(hidden.by_path.values())[:-1]
    # the head's table is read once for them all
    group = max(1, NUMBERS // (len(columns) * model.config.embed.vocab))
    for low in range(0, len(before), group):
        group_states = [states[list(columns)] for states in before[low : low + group]]
        if tuned is not None:
            group_states = [
                tuned.translate(low + number, states) for number, states in enumerate(group_states)
            ]
        yield from head(last_norm(torch.stack(group_states)), model.embed)


def _statistics(
    model: nn.Module, logits: Iterator[Tensor], top: int, vocab_size: int, track: Sequence[int]
) -> dict[str, Tensor]:
    """The ``top`` likeliest tokens, entropy, KL and the tracked tokens (P, D, ..) of a stretch of
    positions; the model's own logits come first, as ``_logits`` gives them."""
    must_be_finite(model, first := next(logits))
    final = _logprobs(first)
    final_probability = final.exp()
    rows = []
    for logprobs in chain(map(_logprobs, logits), [final]):  # (P, V)
        likely = logprobs[:, :vocab_size].topk(top)
        tracked = logprobs[:, list(track)]  # (P, W)
        ranks = [(logprobs > column[:, None]).sum(-1) + 1 for column in tracked.unbind(1)]
        row = {
            "top": likely.indices,
            "probability": likely.values.exp(),
            "entropy": -torch.linalg.vecdot(logprobs.exp(), logprobs),
            "kl": torch.linalg.vecdot(final_probability, final - logprobs),
            "chance": tracked.exp(),
            "rank": torch.stack(ranks or [tracked.long()], 1),
        }
        rows.append(row)
    return {name: torch.stack([row[name] for row in rows], 1).cpu() for name in rows[0]}


def _logprobs(logits: Tensor) -> Tensor:
    return streams.wide(logits).log_softmax(-1)


def _notes(model: Model, tuned: TunedLens | None) -> list[str]:
    """Notes on how each depth is decoded."""
    name = model.config.main_body
    body = getattr(model.config, name)
    head: Any = model.config.head
    through = ["the head's transform, norm and table" if head.transform else "the head"]
    notes = []
    if isinstance(body, config.Recurrent):
        notes.append(
            "A recurrent model has no residual stream: only the last layer's states "
            "were made for the head."
        )
    elif body.last_norm is not None:
        through.insert(0, f"{name}.last_norm ({type(body.last_norm).__name__})")
    elif all(block.place == "post" for block in body.pattern):
        notes.append(
            "Norms stand after each block here: every depth is normed already and no "
            "last norm is applied."
        )
    else:
        notes.append("This model has no last norm; none is applied.")
    first = "a translator fitted for the depth, " if tuned is not None else ""
    notes.insert(
        0,
        f"Each depth is read through {first}{' and '.join(through)}; {NATS}.",
    )
    if tuned is not None:
        notes.append(f"Tuned lens: {tuned.origin()}")
    if model.config.has_source:
        notes.append("These are the decoder's depths; the encoder has no head over tokens.")
    return notes
