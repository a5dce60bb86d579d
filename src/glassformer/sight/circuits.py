"""Circuits: the nodes that carry an answer, and which of them feeds which.

The answer is followed back through the linearised pass (recording/causes.py), from each node to
those that write to it, and each node collects what all its readers take from it. A head has two
nodes:

    z[head, token]        what it carries: its values, weighted by a pattern that is fixed
    scores[head, token]   where it looks: what its scores add beyond weighing all keys evenly

Edges into a node add up to it. Whether the nodes suffice is measured: the model runs with every
other head, MLP and expert held at its mean, or at its value for another text.

B batch, H heads, T tokens, S keys, D head dim.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import need
from ..core.files import JsonObject
from .attribution import KINDS, Question, ask, writers_of
from .figures.charts import Chart, Prose, TableFigure
from .figures.progress_bar import Progress, Report
from .figures.shown import Records, Shown
from .inputs import Text
from .recording.causes import Causes
from .recording.linearised import inner, numbers
from .recording.module_trace import ModuleTrace
from .recording.operations import Value
from .recording.rules import CASTS, MOVES, behind
from .recording.trace import Trace, record

STACKS = "(?:encoder|decoder)"
TABLES = {"token", "position", "segment", "lag", "embedding", "bias"}
"""Kinds of nodes that nothing writes to; a run of a circuit alone leaves them as they are."""
POINTS = 64  # of Gauss and Legendre, between even weights and the pattern
SMALL = 0.01  # of the least node: edges below it are summed
MOST_EDGES = 1 << 21  # a small share of many neurons has no end, and fills the memory
NOTE = (
    "Softmax weights, the scales of norms and the gates of activations are fixed at their values. Of "
    "a product of two values, as a query and a key, half is each one's."
)
Places: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class CircuitNode:
    """A head, MLP, expert, neuron, token or bias, and its ``value``: what it adds to the answer through
    the nodes that read it.

    ``kind`` is answer, head, scores, mlp, ..; ``text`` says what it is. ``sum`` is that of all edges
    into it, from nodes of the circuit or not; None where nothing writes to it. ``head`` is the node
    of the head that scores belong to. ``block`` and ``position`` say where it stands; None of a
    table's, and of what all tokens share.
    """

    address: str
    kind: str
    text: str
    value: float
    sum: float | None = None
    head: str | None = None
    block: int | None = None
    position: int | None = None


@dataclass(frozen=True)
class CircuitEdge:
    """The ``value`` that ``writer`` adds to ``reader``, by their addresses."""

    writer: str
    reader: str
    value: float


@dataclass(frozen=True)
class Faithfulness:
    """The answer of the ``model``; where everything outside of a ``circuit`` is held, of ``random``
    circuits of as many nodes, of ``nothing``; and where the circuit alone is held, ``without``."""

    nodes: int
    held_at: str
    random: list[float]
    model: float
    circuit: float
    without: float
    nothing: float

    def share(self, answer: float) -> float:
        """An answer on the way from that of nothing, 0, to the model's own, 1."""
        return (answer - self.nothing) / (self.model - self.nothing or math.nan)


@dataclass(frozen=True, repr=False)
class Circuit(Shown):
    """The nodes of a circuit, the answer first and each before what it reads, and the edges between
    them.

    ``least`` is the share of the answer that every node adds or takes at least; ``source_words`` are
    the tokens of an encoder-decoder's source.
    """

    answer: str
    words: list[str]
    source_words: list[str]
    nodes: list[CircuitNode]
    edges: list[CircuitEdge]
    least: float
    faithfulness: Faithfulness

    def __getitem__(self, address: str) -> CircuitNode:
        nodes = {node.address: node for node in self.nodes}
        need(address in nodes, f"{address} is no node of this circuit; it has {', '.join(nodes)}.")
        return nodes[address]

    @property
    def title(self) -> str:
        return f"Circuit of the {self.answer}"

    @property
    def difference(self) -> float:
        """The largest between a node and the sum of the edges into it: rounding."""
        return max(abs(node.sum - node.value) for node in self.nodes if node.sum is not None)

    def into(self, address: str) -> list[CircuitEdge]:
        """The edges into a node, the largest first."""
        edges = (edge for edge in self.edges if edge.reader == address)
        return sorted(edges, key=lambda edge: -abs(edge.value))

    def charts(self) -> Iterator[Chart]:
        """The circuit as a tree, how faithful it is, and what is fixed."""
        yield self._table()
        yield self._measured()
        yield Prose([NOTE])

    def records(self) -> Records:
        """A row for each edge."""
        rows = (tuple(vars(edge).values()) for edge in self.edges)
        return tuple(CircuitEdge.__dataclass_fields__), rows

    def _table(self, *_: Any) -> TableFigure:
        rows = self._branch(self.nodes[0], None, "", set())
        return TableFigure("", ("node", "what it is", "adds", "in all"), rows, (0, 1), "+.4f")

    def _branch(
        self, node: CircuitNode, adds: float | None, indent: str, printed: set[str]
    ) -> Iterator[Sequence[Any]]:
        """A node below its reader, and below it what writes to it; only once."""
        edges = self.into(node.address)
        again = " (above)" if edges and node.address in printed else ""
        yield indent + node.address, node.text + again, adds, node.value if edges else None
        if again:
            return
        printed.add(node.address)
        bound = self.least * abs(self.nodes[0].value)
        remainder = node.sum or 0.0
        for edge in edges:
            sizes = (abs(x.value) for x in self.edges if x.writer == edge.writer)
            if abs(edge.value) >= min(bound, max(sizes)):
                remainder -= edge.value
                yield from self._branch(self[edge.writer], edge.value, f"{indent}  ", printed)
        if edges:
            yield f"{indent}  ..", "", remainder, None
        for look in self.nodes:
            if look.head == node.address:
                yield from self._branch(look, None, f"{indent}  ", printed)

    def _measured(self) -> TableFigure:
        run = self.faithfulness
        answers = {"the model": run.model, f"{run.nodes} nodes alone": run.circuit}
        if run.random:
            name = f"{len(run.random)} random circuits of {run.nodes} nodes"
            answers[f"{name}, mean"] = float(np.mean(run.random))
            answers[f"{name}, best"] = max(run.random, key=run.share)
        answers |= {"no node": run.nothing, f"all but these {run.nodes} nodes": run.without}
        kept = "{:z.0%}" if run.model != run.nothing else "-"  # no way from one to the other
        rows = [(name, answer, kept.format(run.share(answer))) for name, answer in answers.items()]
        heading = (f"what is left out is held at {run.held_at}", "answer", "kept")
        return TableFigure("", heading, rows, (0,), "+.4f")

    def lines(self) -> list[str]:
        """The tree, and how faithful it is, for a terminal."""
        return [*self.table(), "", *self._measured().lines()]

    def to_dict(self) -> JsonObject:
        run = self.faithfulness
        shares = {name: run.share(getattr(run, name)) for name in ("circuit", "without")}
        return {**super().to_dict(), "shares": shares, "difference": self.difference}

    def __str__(self) -> str:
        return "\n".join([NOTE, *self.lines()])


# ------------------------------------------------------------------------------------------- nodes


@dataclass(frozen=True, eq=False)
class Site:
    """A value whose rows are nodes: of a head and a token, an MLP's token, an expert, a neuron.

    ``numbers`` (nodes.., dims..) are without the batch row, which ``lead`` writes in addresses;
    ``rows`` is how many sides number the nodes.
    """

    address: str
    value: Value
    kind: str
    numbers: Tensor
    rows: int
    lead: str

    @property
    def nodes(self) -> Places:
        """The sides of its nodes."""
        return tuple(self.numbers.shape[: self.rows])

    def name(self, place: Places, address: str = "") -> str:
        """The address of a row."""
        return f"{address or self.address}[{self.lead}{','.join(map(str, place))}]"

    def position(self, place: Places) -> int | None:
        """The token of a row; None of what all tokens share."""
        if self.kind == "bias":
            return None
        return place[-1 if "head" in self.kind else 0]

    def rows_along(self, gradient: Tensor, least: float) -> Iterator[tuple[Places, float]]:
        """The rows that add or take more than ``least`` along a gradient, and what they add."""
        products = gradient.reshape(self.numbers.shape) * self.numbers
        added = products.reshape(*self.nodes, -1).sum(-1)
        for place in map(tuple, (added.abs() > least).nonzero().tolist()):
            yield place, float(added[place])


def _sites(run: ModuleTrace, neurons: bool) -> list[Site]:
    """All that nodes are rows of, the latest of the pass first."""
    order = {x: at for at, op in enumerate(run.operations) for x in op.outputs}
    addresses = writers_of(run, ":", STACKS)
    tables = list[str]()
    sites = []
    if not isinstance(run, Trace):
        rows = (op.outputs[0] for op in run.operations if op.name == "embedding")
        tables = [f"{x.address}[0,:]" for x in rows if len(x.shape) == 3 == 2 + x.shape[0]]
    for address in addresses + tables:
        name, _, inside = address.rstrip("]").partition("[")
        kind = "embedding" if address in tables else "head" if "head" in inside else "write"
        if isinstance(run, Trace):
            *block, kind = re.split(r"\.blocks\.\d+\.", name)
            kind = KINDS[kind] if block else name.split(".")[1]
        inside = re.sub("[a-z]+", ":", inside)
        value, place = run.parse(f"{name}[{inside}]")
        sides = inside.count(":")
        lead = "0," * inside.startswith("0,")
        kind = "expert" if kind == "mlp" and sides > 1 else kind
        if neurons and kind in ("mlp", "expert", "shared expert"):
            sides, kind = sides + 1, kind.replace("mlp", "neuron")
        sites.append(Site(name, value, kind, numbers(value)[place], sides, lead))
    return sorted(sites, key=lambda site: -order.get(site.value, -1))


class _Look(NamedTuple):
    """An attention: ``scores`` (H, T, S or more), ``pattern`` (H, T, S) and ``values`` (H, S, D)."""

    address: str
    scores: Tensor
    pattern: Tensor
    values: Tensor

    def direction(self, place: Places, z: Tensor, gradient: Tensor) -> Tensor | None:
        """A direction (S) along which the scores of a row add up to what the pattern adds to the
        answer beyond even weights: integrated gradients from scores of 0. None where the head is not
        its pattern times its values."""
        worth = self.values[place[0]] @ gradient
        pattern = self.pattern[place]
        bound = 1e-4 * float(pattern @ worth.abs())
        if abs(float(pattern @ worth) - inner(z, gradient)) > bound:
            return None
        scores = self.scores[place]
        worth = nn.functional.pad(worth, (0, len(scores) - len(worth)))  # a sink is worth nothing
        points, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(POINTS))
        path = ((points[:, None] + 1) / 2 * scores).softmax(-1)  # (points, S)
        direction: Tensor = weights / 2 @ (path * (worth - path @ worth[:, None]))
        return direction


def _look(run: ModuleTrace, site: Site) -> _Look | None:
    """The attention whose heads are the rows of a site."""
    origins = [*behind(site.value, MOVES | CASTS)]
    for attention in run.structure.attentions if site.rows == 2 else ():
        *_, softmax = behind(attention.pattern, CASTS)
        if attention.mixed not in origins or softmax.operation is None:
            continue
        scores = softmax.operation.inputs[0]
        pattern = attention.weights()[0].double()
        x, values = (x.reshape(-1, *x.shape[-2:]) for x in map(numbers, (scores, attention.values)))
        if x.shape[:2] == site.nodes == pattern.shape[:2]:
            values = values.repeat_interleave(len(pattern) // len(values), 0)
            return _Look(scores.address, x, pattern, values[..., : site.numbers.shape[-1]])
    return None


# -------------------------------------------------------------------------------------------- edges


class _Flow:
    """Follows an answer back, from the last node to the first; ``keeps`` chooses nodes by their
    address and value, and what is below ``small`` is not looked at."""

    def __init__(
        self,
        question: Question,
        sites: Sequence[Site],
        keeps: Callable[[str, float], bool],
        small: float,
        report: Callable[[], None],
    ) -> None:
        self.run = question.run
        self.keeps = keeps
        self.small = small
        self.report = report
        self.sites = {site.address: site for site in sites}
        self.gradients: dict[str, Tensor] = {}
        self.leaves: dict[str, float] = defaultdict(float)  # what no site writes
        self.nodes: dict[str, CircuitNode] = {}
        self.edges: list[CircuitEdge] = []
        causes = self.run.attribute(question.target, [*self.sites], question.less)
        self._read(causes, "answer", question.answer, question.position)
        for site in sites:
            if site.address in self.gradients:
                self._open(site, self.gradients[site.address])
        for name, value in self.leaves.items():
            if keeps(name, value):
                self._add(name, "bias", "bias", None, value)

    def _add(
        self,
        name: str,
        kind: str,
        text: str,
        position: int | None,
        value: float,
        sum: float | None = None,
        head: str | None = None,
    ) -> None:
        """Adds a node."""
        block = re.search(r"\.(\d+)\.", name)
        at = None if block is None else int(block[1])
        self.nodes[name] = CircuitNode(name, kind, text, value, sum, head, at, position)

    def _read(
        self, causes: Causes, kind: str, text: str, position: int | None, head: str | None = None
    ) -> None:
        """Adds a node and the edges into it."""
        self.report()
        name = causes.target
        self._add(name, kind, text, position, causes.value, causes.sum, head)
        writers = [(x.address, x.value) for x in causes.causes if x.kind != "chosen"]
        for writer, value in writers:
            self.leaves[writer] += value
        for address, gradient in causes.gradients.items():
            self.gradients[address] = self.gradients.get(address, 0) + gradient
            site = self.sites[address]
            rows = site.rows_along(gradient, self.small)
            writers += [(site.name(place), value) for place, value in rows]
        self.edges += [CircuitEdge(writer, name, value) for writer, value in writers]
        message = f"The circuit has more than {MOST_EDGES:,} edges; give a larger least."
        need(len(self.edges) <= MOST_EDGES, message)

    def _open(self, site: Site, gradient: Tensor) -> None:
        """The nodes of a site, whose readers are all known, and what writes to them."""
        look, sites = _look(self.run, site), [*self.sites]
        for place, value in site.rows_along(gradient, self.small):
            name, position = site.name(place), site.position(place)
            if not self.keeps(name, value):
                continue
            text = _text(self.run, site, place)
            if site.kind in TABLES:
                self._add(name, site.kind, text, position, value)
                continue
            slope = gradient.reshape(site.numbers.shape)[place]
            self._read(self.run.edges(name, sites, slope), site.kind, text, position)
            direction = look and look.direction(place, site.numbers[place], slope)
            if look is None or direction is None:
                continue
            scores = site.name(place, look.address)
            if self.keeps(scores, inner(direction, look.scores[place])):
                text = _looks_at(self.run, site, place[1], look.pattern[place])
                self._read(self.run.edges(scores, sites, direction), "scores", text, position, name)


def _text(run: ModuleTrace, site: Site, place: Places) -> str:
    """Names a row: ``head 3 at 12:b``, ``token 4:n``."""
    *places, at = place if "head" in site.kind else place[::-1]
    if site.kind == "expert":
        chosen = f"{site.address.removesuffix('hidden')}chosen[{at},{place[1]}]"
        places[-1] = int(run[chosen])
    words = _words(run, site.address.startswith(("encoder.", "source_")))
    word = str(at) if site.kind == "bias" else f"{at}:{words[at]}"
    between = () if site.kind in TABLES else ("at",)
    return " ".join([site.kind, *map(str, places[::-1]), *between, word])


def _looks_at(run: ModuleTrace, site: Site, at: int, pattern: Tensor) -> str:
    """The key that a head weighs most, and what its place is to the query's."""
    key, of_self = int(pattern.argmax()), site.kind == "head"
    words = _words(run, not of_self or site.address.startswith("encoder."))
    text = f"looks at {key}:{words[key]}, {float(pattern[key]):.2f}"
    if of_self and key == at - 1:
        return f"{text}: the previous token"
    is_induction = of_self and 0 < key < at and words[key - 1] == words[at]
    return f"{text}: induction" if is_induction else text


def _words(run: ModuleTrace, of_source: bool) -> list[str]:
    return (run.source_words if of_source else None) or run.words


# ------------------------------------------------------------------------------------ faithfulness


class _Held:
    """Runs of a model in which the rows of sites are held, but for a circuit's: at what they are in
    another pass, or at their mean over the tokens. ``rows`` numbers all rows by their addresses."""

    def __init__(
        self,
        question: Question,
        sites: Sequence[Site],
        another: ModuleTrace | None,
        report: Callable[[], None],
    ) -> None:
        self.question, self.report = question, report
        names = (site.name(place) for site in sites for place in np.ndindex(site.nodes))
        self.rows = {name: number for number, name in enumerate(names)}
        self.fill = dict[Site, Tensor]()
        for site in sites:
            x = site.numbers
            if another is None:
                self.fill[site] = x.mean(int("head" in site.kind), keepdim=True)
                continue
            replacement = numbers(another.value(site.address))
            need(
                replacement.numel() == x.numel(),
                "The two texts have different numbers of tokens; give equally many; glassformer "
                "tokens shows them.",
            )
            self.fill[site] = replacement.reshape(x.shape)

    def answer(self, circuit: Iterable[str]) -> float:
        """The answer by a circuit alone."""
        self.report()
        run = self.question.run
        is_inside = torch.zeros(len(self.rows), dtype=torch.bool)
        is_inside[[self.rows[name] for name in circuit if name in self.rows]] = True
        masks = torch.split(is_inside, [math.prod(site.nodes) for site in self.fill])
        pairs = zip(self.fill, masks, strict=True)
        edits = {site.address: partial(self._hold, site, mask) for site, mask in pairs}
        if isinstance(run, Trace):
            inputs = (run.model, run.tokenizer, run.tokens, run.source)
            return self.question.number(Trace(*inputs, edits))
        return self.question.number(run.edit(edits))

    def _hold(self, site: Site, mask: Tensor, *value: Any) -> Tensor:
        """A value, which a tape passes behind its path, where the rows outside of a mask are held."""
        x: Tensor = value[-1]
        rows = x.reshape(site.numbers.shape)
        mask = mask.reshape(*site.nodes, *[1] * (rows.ndim - site.rows))
        return torch.where(mask.to(x.device), rows, self.fill[site].to(x)).reshape(x.shape)


def _prune(runs: _Held, flow: _Flow, bound: float) -> set[str]:
    """The addresses of the nodes without which the circuit's answer changes by more than a bound; the
    smallest are tried first."""
    names, nodes = set(flow.nodes), flow.nodes.values()
    total = runs.answer(names)
    for node in sorted(nodes, key=lambda node: abs(node.value)):
        without = names - {x.address for x in nodes if node.address in (x.address, x.head)}
        if node.address in runs.rows and abs(runs.answer(without) - total) < bound:
            names = without
    return names


# ------------------------------------------------------------------------------------- the circuit


def circuit(
    model: nn.Module,
    tokenizer: Any,
    text: Text,
    *,
    source: Text | tuple[Text, Text] | None = None,
    answer: str | int | None = None,
    instead: str | int | None = None,
    position: int | None = None,
    corrupted: Text | None = None,
    least: float = 0.05,
    greedy: bool = False,
    neurons: bool = False,
    draws: int = 20,
    seed: int = 0,
    progress: Report = True,
) -> Circuit:
    """Finds the nodes that carry a logit and the edges between them, and measures how much of it
    they keep alone.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it.
        text: A text, or token ids.
        source: What an encoder-decoder's encoder reads; a pair holds what is not in the circuit at its
            values for the second.
        answer: The token whose logit is followed back, or a label's number; None is the likeliest.
        instead: Follow the difference to the logit of this one.
        position: The position asked; None is an encoder's only mask token, else the last.
        corrupted: A text of as many tokens: what is not in the circuit is held at its values; None
            holds it at its mean over the text.
        least: The share of the answer that a node adds or takes at least.
        greedy: Take nodes out again, the smallest first, where the measured answer changes by less
            than this share.
        neurons: Split MLPs and experts into single neurons.
        draws: Random circuits to compare with.
        seed: The seed of their draws.
        progress: True shows a bar; a function is called with (done, 0) at each pass.

    Returns:
        Nodes, edges and their faithfulness; printing it shows a tree.

    Raises:
        UserError: The model has no such answer or no residual stream, or the texts differ in length.

    Example:
        >>> print(glassformer.circuit(model, tokenizer, "Once upon a"))
    """
    need(0 < least <= 1, f"least is {least}; give a share above 0, up to 1.")
    sources = source if isinstance(source, tuple) else (source, source)
    need(len(sources) == 2, f"source holds {len(sources)} texts; give one, or a pair with another.")
    other = text if corrupted is None else corrupted
    is_mean = corrupted is None and not isinstance(source, tuple)
    with Progress("passes for the circuit", progress) as bar:
        passes = count(1)

        def report() -> None:
            bar(next(passes), 0)

        question = ask(model, tokenizer, text, sources[0], (answer, instead), position)
        another = None if is_mean else record(model, tokenizer, other, sources[1])
        run, sites = question.run, _sites(question.run, neurons)
        components = [site for site in sites if site.kind not in TABLES]
        addresses = [site.address for site in components]
        total, slopes = run.slopes(question.target, addresses, question.less)
        need(total != 0, "The two logits are the same, so nothing decides between them.")
        bound = least * abs(total)
        flow = _Flow(question, sites, lambda _, value: abs(value) >= bound, SMALL * bound, report)
        runs = _Held(question, components, another, report)
        if greedy:
            names = _prune(runs, flow, bound)
            flow = _Flow(question, sites, lambda name, _: name in names, SMALL * bound, report)
        every = set(runs.rows)
        members = every & flow.nodes.keys()
        pool = [  # what the answer depends on at all
            site.name(place)
            for site in components
            if site.address in slopes
            for place in slopes[site.address].reshape(*site.nodes, -1).any(-1).nonzero().tolist()
        ]
        draw = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(len(pool), generator=draw).tolist() for _ in range(draws)]
        drawn = [runs.answer({pool[at] for at in order[: len(members)]}) for order in orders]
        answers = map(runs.answer, (every, members, every - members, ()))
        held_at = "their mean" if another is None else "the corrupted text's values"
        faithfulness = Faithfulness(len(members), held_at, drawn, *answers)
    edges = [edge for edge in flow.edges if edge.writer in flow.nodes]
    words = run.words, run.source_words or []
    return Circuit(question.answer, *words, [*flow.nodes.values()], edges, least, faithfulness)
