"""Top activations of a neuron: the places of a corpus where it, or an expert's share of the router,
is greatest.

The corpus is streamed; of a pass only the asked neurons are kept, and of a neuron its best rows.

B rows, T tokens, F neurons, E experts, K experts chosen by a token.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.errors import UserError, need
from ..core.files import JsonObject
from ..core.nn import Model, Tape
from . import passes, streams, text_table
from .figures.progress_bar import Progress, Report
from .looking import matching
from .reading import Shapes, one_token
from .recording.outside import readable
from .streams import visible

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

TOKENS = 1 << 12  # of a pass
FORM = re.compile(r"(?P<path>[\w.]+)\[(?P<index>\d{1,9}(?:,\d{1,9})?)\]")


@dataclass(frozen=True)
class Hit:
    """One place: the ``value``, the ``row`` of the corpus, counted from 0, the token there and the
    text around it."""

    value: float
    row: int
    position: int
    token: int
    piece: str
    before: str
    after: str


@dataclass(frozen=True)
class Neuron:
    """The places with the greatest values of one neuron, the greatest first, at most one of a row.

    ``what`` is "activation" or "router probability"; ``mean`` and ``above_zero`` (a share) are of
    the ``tokens`` at which it has a value, of ``read`` that were read: an expert's own neurons have
    none where it was not chosen.
    """

    name: str
    what: str
    hits: list[Hit]
    tokens: int
    read: int
    mean: float
    above_zero: float

    def to_dict(self) -> JsonObject:
        return {**vars(self), "hits": [vars(hit) for hit in self.hits]}

    def table(self) -> list[str]:
        """The places as lines, values rounded to four places, each token between « and »."""
        rows = [(f"{hit.value:.4f}", f"{hit.row}:{hit.position}", _line(hit)) for hit in self.hits]
        return text_table.lines(rows, (self.what, "row:token", "text"), left_columns=(2,))


def _line(hit: Hit) -> str:
    before, after = (" ".join(map(visible, text.split(" "))) for text in (hit.before, hit.after))
    return f"{before}«{visible(hit.piece)}»{after}"


def top_activations(
    model: nn.Module,
    tokenizer: Any,
    texts: Iterable[str],
    neurons: Sequence[str],
    *,
    top: int = 10,
    context: int | None = None,
    around: int = 12,
    limit: int | None = None,
    lowest: bool = False,
    progress: Report = True,
) -> list[Neuron]:
    """Finds where in texts each of some neurons is greatest.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it.
        texts: The texts, read in rows of ``context`` tokens. Special tokens are not counted.
        neurons: Paths of values with a number, "decoder.blocks.3.ffn.hidden[42]". In a mixture the
            expert comes first, "hidden[2,42]"; "router[2]" is the probability of expert 2.
        top: Places that are kept.
        context: Tokens of a row; None is the model's context.
        around: Tokens that are kept on both sides.
        limit: The most tokens that are read.
        lowest: Find where they are least.
        progress: True shows a bar; a function is called with (tokens read, the limit or 0).

    Returns:
        The places of each neuron; printing one shows its texts.

    Raises:
        UserError: The model has no such path or number.

    Example:
        >>> (neuron,) = glassformer.top_activations(
        ...     model, tokenizer, ["Once upon a time"], ["decoder.blocks.0.ffn.hidden[3]"], top=2
        ... )
        >>> print(neuron)
    """
    need(top >= 1, f"top is {top}; give 1 or more.")
    need(limit is None or limit >= 1, f"limit is {limit}; give 1 or more.")
    need(around >= 0, f"around is {around}; give 0 or more.")
    need(bool(neurons), "No neuron is named; give one, such as decoder.blocks.0.ffn.hidden[0].")
    native = model if isinstance(model, Model) else None
    shapes = _shapes(model)
    requests = [
        _Neuron.of(shapes, name, top, -1.0 if lowest else 1.0) for name in dict.fromkeys(neurons)
    ]
    side = {request.path.split(".")[0] for request in requests}
    paired = native is not None and native.config.has_source
    sentence = (
        "The decoder of an encoder-decoder writes beside a source, and a corpus has none; "
        "ask for its encoder."
    )
    need(not paired or side == {"encoder"}, sentence)
    reads = tokenizer.for_source if paired else readable(tokenizer)
    need(reads is not None, "Reading texts needs the model's tokenizer; give it.")
    assert reads is not None
    specials = torch.tensor(sorted(reads.specials.values()), dtype=torch.long)
    tokens_read = 0
    number = 0
    with Progress("reading", progress) as report:
        windows: Any = passes.windows if native is None else streams.windows
        for rows in _batches(
            windows(model, tokenizer, texts, context), limit, 1 if native is None else TOKENS
        ):
            tokens, pos = streams.padded(rows)
            is_token = pos >= 0
            unpadded = bool(is_token.all())
            if native is None:
                trace = passes.record_foreign(model, None, tokens)
                records = {
                    x.name: x.column(trace[x.path].reshape(*tokens.shape, -1)) for x in requests
                }
            else:
                tape = _Columns(requests)
                records = streams.read_texts(native, tokens, None if unpadded else pos, tape)
            real = is_token & ~torch.isin(tokens, specials.to(tokens.device))
            for request in requests:
                request.see(records, rows, real, number)
            tokens_read = tokens_read + sum(map(len, rows))
            number = number + len(rows)
            report(tokens_read, limit or 0)
    need(tokens_read > 0, "The texts are empty; give texts with words.")
    return [request.result(tokens_read, around, reads) for request in requests]


@dataclass
class _Neuron:
    """One neuron while the corpus is read: its place, and the best (sign * value, -row, position,
    ids of the row)."""

    name: str
    path: str
    index: int
    expert: int | None
    top: int
    sign: float
    best: list[tuple[float, int, int, Tensor]] = field(default_factory=list)
    tokens: int = 0
    total: float = 0.0
    above: int = 0

    @classmethod
    def of(cls, shapes: Shapes, name: str, top: int, sign: float) -> _Neuron:
        """The neuron of that name; UserError where there is none."""
        form = FORM.fullmatch(name.replace(" ", ""))
        if form is None:
            raise UserError(
                f'"{name}" is no neuron; give a path and a number, such as '
                "decoder.blocks.0.ffn.hidden[0]."
            )
        path = form["path"]
        numbers = [int(number) for number in form["index"].split(",")]
        matching(path, list(shapes), "value of each token")
        sizes = shapes[path]
        have = f"{path} has numbers up to [{','.join(str(size - 1) for size in sizes)}]"
        fits = len(numbers) == len(sizes) and all(
            n < size for n, size in zip(numbers, sizes, strict=True)
        )
        need(fits, f'There is no "{name}": {have}{" (expert, neuron)" if len(sizes) == 2 else ""}.')
        return cls(name, path, numbers[-1], numbers[0] if len(numbers) == 2 else None, top, sign)

    @property
    def router(self) -> bool:
        """True for an expert's share of the router, false for a neuron."""
        return self.path.endswith(".router")

    def column(self, x: Tensor) -> Tensor:
        """Its values (B, T) of the path's (B, T, F); (B, T, K) of an expert's neuron."""
        if self.router:
            return x.softmax(-1)[..., self.index]
        return x[..., self.index]

    def see(
        self,
        recorded: dict[str, Tensor],
        rows: Sequence[Tensor],
        real: Tensor,
        number: int,
    ) -> None:
        """The values of some rows, the first of them ``number``; ``real`` (B, T) is true for tokens
        of the text."""
        values = streams.wide(recorded[self.name])
        if self.expert is not None:
            routed = recorded[f"{self.path.rpartition('.')[0]}.chosen"] == self.expert  # (B, T, K)
            values = torch.where(routed, values, 0.0).sum(-1)
            real = real & routed.any(-1)
        self.tokens += int(real.sum())
        self.total += streams.fp64(torch.where(real, values, 0.0)).sum().item()
        self.above += int((real & (values > 0)).sum())
        keys = torch.where(real, self.sign * values, -math.inf).max(-1)
        greatest = keys.values.tolist(), count(-number, -1), keys.indices.tolist(), rows
        entries = [entry for entry in zip(*greatest, strict=False) if entry[0] > -math.inf]
        self.best = heapq.nlargest(self.top, [*self.best, *entries])

    def result(self, tokens_read: int, around: int, tokenizer: Tokenizer) -> Neuron:
        """The result after so many tokens."""
        hits = []
        for key, row, at, ids in self.best:
            sides = ids[max(0, at - around) : at], ids[at : at + 1], ids[at + 1 : at + 1 + around]
            before, piece, after = (
                b"".join(map(tokenizer.bytes_of, side.tolist())).decode("utf-8", "replace")
                for side in sides
            )
            hits.append(Hit(self.sign * key, -row, at, int(ids[at]), piece, before, after))
        tokens = max(self.tokens, 1)
        return Neuron(
            self.name,
            "router probability" if self.router else "activation",
            hits,
            self.tokens,
            tokens_read,
            self.total / tokens,
            self.above / tokens,
        )


class _Columns(Tape):
    """Keeps of each path the asked neurons alone, by their names, and which experts were chosen."""

    def __init__(self, requests: Sequence[_Neuron]) -> None:
        experts = {
            f"{request.path.rpartition('.')[0]}.chosen"
            for request in requests
            if request.expert is not None
        }
        super().__init__(*dict.fromkeys(request.path for request in requests), *sorted(experts))
        self.asked = requests

    def record(self, path: str, x: Tensor) -> None:
        """Keep columns of ``x``, in memory of their own."""
        for request in self.asked:
            if request.path == path:
                self.records[request.name] = request.column(x.detach()).clone()
        if path.endswith(".chosen"):
            self.records[path] = x.detach()


def _shapes(model: nn.Module) -> Shapes:
    """Shape of each value for one token: (F), or (E, F) within a mixture's experts of native."""
    if not isinstance(model, Model):
        trace = passes.record_foreign(model, None, [0])
        return {
            name: x.shape[-1:]
            for name, x in {**trace.values, **trace.aliases}.items()
            if x.dtype.is_floating_point and x.operation and math.prod(x.shape[:-1]) == 1
        }
    values = one_token(model)
    shapes: Shapes = {}
    for path, value in values.items():
        router = values.get(f"{path.rpartition('.')[0]}.router")
        if value.ndim == 3 and value.is_floating_point() and path != "logits":
            shapes[path] = (value.shape[-1],)
        elif value.ndim == 4 and router is not None:
            shapes[path] = (router.shape[-1], value.shape[-1])
    return shapes


def _batches(
    rows: Iterator[Tensor], limit: int | None, at_once: int = TOKENS
) -> Iterator[list[Tensor]]:
    """Rows of ids together, about ``at_once`` tokens with their padding, until ``limit`` tokens
    were read."""
    batch: list[Tensor] = []
    remaining: float = math.inf if limit is None else limit
    for (row,) in rows:
        row = row[: int(min(remaining, len(row)))]
        remaining -= len(row)
        if batch and (len(batch) + 1) * max(map(len, [row, *batch])) > at_once:
            yield batch
            batch = []
        batch.append(row)
        if remaining <= 0:
            break
    if batch:
        yield batch
