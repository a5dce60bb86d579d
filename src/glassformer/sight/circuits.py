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
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import need
from ..core.files import JsonObject
from ..core.nn import Tape
from ..core.nn.model import inference
from .attribution import KINDS, Question, ask, writers_of
from .figures.charts import Chart, Prose, TableFigure
from .figures.shown import Records, Shown
from .looking import Text
from .recorded import record
from .recording.causes import Causes
from .recording.linearised import inner, numbers
from .recording.module_trace import ModuleTrace
from .recording.operations import Value
from .recording.rules import CASTS, MOVES, behind, read
from .recording.trace import Trace

STACKS = "(?:encoder|decoder)"
TABLES = {"token", "position", "segment", "lag", "embedding", "bias"}
"""Kinds of nodes that nothing writes to; a run with a circuit alone leaves them as they are."""
POINTS = 64  # of Gauss and Legendre, between even weights and the pattern
TOKENS = 2048  # computed at once: runs times their tokens
SMALL = 0.01  # of the least node: edges below it are summed
Places: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class CircuitNode:
    """What one head, MLP, expert, neuron, token or bias adds to the answer through the nodes that
    read it.

    ``outside`` is the part of it that comes from what is not in the circuit; edges are the rest.
    ``kind`` is answer, head, scores, mlp, ..; ``text`` says what it is; ``looks`` is the node of a
    head's scores.
    """

    address: str
    kind: str
    text: str
    value: float
    outside: float
    block: int | None = None
    index: int | None = None
    position: int | None = None
    looks: str | None = None


@dataclass(frozen=True)
class CircuitEdge:
    """What ``writer`` adds to ``reader``, by their addresses."""

    writer: str
    reader: str
    value: float


@dataclass(frozen=True)
class Faithfulness:
    """The answer of the ``model``; where everything outside of a ``circuit`` is held, of ``random``
    circuits of as many nodes of each kind, of ``nothing``; and where the circuit alone is held,
    ``without``."""

    model: float
    circuit: float
    without: float
    random: list[float]
    nothing: float
    nodes: int
    held_at: str

    def share(self, answer: float) -> float:
        """An answer on the way from that of nothing, 0, to the model's own, 1."""
        return (answer - self.nothing) / (self.model - self.nothing or math.nan)


@dataclass(frozen=True, repr=False)
class Circuit(Shown):
    """The nodes of a circuit, the answer first and then each before what it reads, and the edges
    between them.

    ``least`` is the share of the answer that every node adds or takes at least; ``difference`` the
    largest between a node and the sum of the edges into it: rounding.
    """

    answer: str
    words: list[str]
    nodes: list[CircuitNode]
    edges: list[CircuitEdge]
    least: float
    difference: float
    faithfulness: Faithfulness
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, address: str) -> CircuitNode:
        nodes = {node.address: node for node in self.nodes}
        need(address in nodes, f"{address} is no node of this circuit; it has {', '.join(nodes)}.")
        return nodes[address]

    @property
    def title(self) -> str:
        return f"Circuit of the {self.answer}"

    def into(self, address: str) -> list[CircuitEdge]:
        """The edges into a node, the largest first."""
        edges = (edge for edge in self.edges if edge.reader == address)
        return sorted(edges, key=lambda edge: -abs(edge.value))

    def charts(self) -> Iterator[Chart]:
        """The circuit as a tree, how faithful it is, and what is fixed."""
        yield self._table()
        yield self._measured()
        yield Prose(self.notes)

    def records(self) -> Records:
        """A row for each edge, and one for what each node has from outside."""
        rows: list[Sequence[Any]] = [tuple(vars(edge).values()) for edge in self.edges]
        rows += [("outside", node.address, node.outside) for node in self.nodes if node.outside]
        return ("writer", "reader", "value"), rows

    def _table(self, *_: Any) -> TableFigure:
        rows: list[Sequence[Any]] = []
        self._branch(rows, self.nodes[0], None, 0, set())
        return TableFigure("", ("node", "what it is", "adds", "in all"), rows, (0, 1), "+.4f")

    def _branch(
        self, rows: list[Any], node: CircuitNode, adds: float | None, depth: int, shown: set[str]
    ) -> None:
        """A node below its reader, and below it what writes to it; only once."""
        edges, indent = self.into(node.address), "  " * depth
        again = node.address in shown and bool(edges)
        text = f"{node.text} (above)" if again else node.text
        rows.append((indent + node.address, text, adds, node.value if edges else None))
        if again:
            return
        shown.add(node.address)
        bound = self.least * abs(self.nodes[0].value)
        small = [node.outside]
        for edge in edges:
            if abs(edge.value) >= bound or self._is_largest(edge):
                self._branch(rows, self[edge.writer], edge.value, depth + 1, shown)
            else:
                small.append(edge.value)
        if any(small) and edges:
            rows.append((f"{indent}  ..", "", math.fsum(small), None))
        if node.looks:
            self._branch(rows, self[node.looks], None, depth + 1, shown)

    def _is_largest(self, edge: CircuitEdge) -> bool:
        """True for the way by which a node reaches the answer most."""
        rivals = (abs(other.value) for other in self.edges if other.writer == edge.writer)
        return abs(edge.value) == max(rivals)

    def _measured(self) -> TableFigure:
        run = self.faithfulness
        answers = {"the model": run.model, f"{run.nodes} nodes alone": run.circuit}
        if run.random:
            count = f"{len(run.random)} random circuits of {run.nodes} nodes"
            answers[f"{count}, mean"] = float(np.mean(run.random))
            answers[f"{count}, best"] = max(run.random, key=run.share)
        answers |= {"no node": run.nothing, f"all but these {run.nodes} nodes": run.without}
        rows = [(name, answer, f"{run.share(answer):z.0%}") for name, answer in answers.items()]
        heading = (f"what is left out is held at {run.held_at}", "answer", "kept")
        return TableFigure("", heading, rows, (0,), "+.4f")

    def lines(self) -> list[str]:
        """The tree, and how faithful it is, for a terminal."""
        return [*self.table(), "", *self._measured().lines()]

    def to_dict(self) -> JsonObject:
        run = self.faithfulness
        shares = {"share": run.share(run.circuit), "random_shares": [*map(run.share, run.random)]}
        return {**super().to_dict(), "faithfulness": {**vars(run), **shares}}

    def __str__(self) -> str:
        return "\n".join([*self.notes, *self.lines()])


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
    block: int | None
    numbers: Tensor
    rows: int
    lead: str

    @property
    def is_held(self) -> bool:
        """True for what a run with a circuit alone changes."""
        return self.kind not in TABLES

    @property
    def nodes(self) -> Places:
        """The sides of its nodes."""
        return tuple(self.numbers.shape[: self.rows])

    @property
    def token_side(self) -> int:
        return int("head" in self.kind)

    def name(self, place: Places) -> str:
        return f"{self.address}[{self.lead}{','.join(map(str, place))}]"

    def by_node(self, x: Tensor) -> Tensor:
        """Numbers of the value's shape (nodes.., all others)."""
        return x.reshape(*self.nodes, -1)


def _sites(run: ModuleTrace, neurons: bool) -> list[Site]:
    """All that nodes are rows of, the latest of the pass first."""
    order = {x: at for at, op in enumerate(run.operations) for x in op.outputs}
    sites = []
    for address in writers_of(run, ":", STACKS):
        name, _, inside = address.rstrip("]").partition("[")
        value, sides = run.value(name), inside.split(",")
        kind, block = _kind(run, name)
        if neurons and kind == "write":
            value = _hidden(value)
            name, kind = value.address, "mlp"
        lead = "0," * (sides[0] == "0")
        rows = len(sides) - bool(lead)
        if neurons and kind in ("mlp", "shared expert"):
            rows += 1
        x = numbers(value)
        x = x[0] if lead or value.batch else x
        sites.append(Site(name, value, kind, block, x, rows, lead))
    if not isinstance(run, Trace):
        for value in (op.outputs[0] for op in run.operations if op.name == "embedding"):
            if len(value.shape) == 3 and value.shape[0] == 1:
                x = numbers(value)[0]
                sites.append(Site(value.address, value, "embedding", None, x, 1, "0,"))
    return sorted(sites, key=lambda site: -order.get(site.value, -1))


def _kind(run: ModuleTrace, path: str) -> tuple[str, int | None]:
    """What the rows of a value are, and their block."""
    block = re.search(r"\.(\d+)(?:\.|$)", path)
    number = int(block[1]) if block else None
    if not isinstance(run, Trace):
        is_head = any(path == x.mixed.address for x in run.structure.attentions)
        return ("head" if is_head else "write"), number
    if match := re.match(r"\w+\.blocks\.\d+\.(.+)", path):
        return KINDS[match[1]], number
    return path.split(".")[1], None


def _hidden(write: Value) -> Value:
    """The neurons of an MLP that is not ours: what its last matrix reads."""
    *_, last = behind(write, MOVES | CASTS)
    operation = last.operation
    if operation is None or operation.name not in ("linear", "addmm", "conv1d"):
        return write
    hidden = operation.inputs[operation.name == "addmm"]
    shapes = (x for x in behind(hidden, MOVES | CASTS) if len(x.shape) == len(write.shape))
    return next(shapes, write)


# ------------------------------------------------------------------------------- where a head looks


class _Look(NamedTuple):
    """An attention: ``scores`` (H, T, S or more), ``pattern`` (H, T, S) and ``values`` (H, S, D)."""

    address: str
    numbers: Tensor
    pattern: Tensor
    values: Tensor

    def direction(self, place: Places, z: Tensor, gradient: Tensor) -> Tensor | None:
        """A direction (S) along which the scores of a row add up to what the pattern adds to the
        answer beyond even weights: integrated gradients from scores of 0. None where the head is not
        its pattern times its values."""
        worth, pattern = self.values[place[0]] @ gradient, self.pattern[place]
        bound = 1e-4 * float(pattern @ worth.abs())
        if abs(float(pattern @ worth) - inner(z, gradient)) > bound:
            return None
        scores = self.numbers[place]
        worth = nn.functional.pad(worth, (0, len(scores) - len(worth)))  # a sink is worth nothing
        points, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(POINTS))
        path = ((points[:, None] + 1) / 2 * scores).softmax(-1)  # (points, S)
        change = path * (worth - path @ worth[:, None])
        return weights / 2 @ change


def _looks(run: ModuleTrace, sites: Iterable[Site]) -> dict[Site, _Look]:
    looks = {}
    attentions = run.structure.attentions
    for site in sites:
        origins = [*behind(site.value, MOVES | CASTS)]
        for attention in attentions:
            if attention.mixed not in origins or len(site.nodes) != 2:
                continue
            softmax = [*behind(attention.pattern, CASTS)][-1].operation
            assert softmax is not None
            scores = softmax.inputs[0]
            pattern, x = attention.weights()[0].double(), numbers(scores)
            values = read(attention.values).double()
            values = values.reshape(-1, *values.shape[-2:])
            x = x.reshape(-1, *x.shape[-2:])
            fits = x.shape[:2] == site.nodes == pattern.shape[:2]
            if fits and len(pattern) % len(values) == 0:
                values = values.repeat_interleave(len(pattern) // len(values), 0)
                looks[site] = _Look(scores.address, x, pattern, values)
    return looks


# -------------------------------------------------------------------------------------------- edges


Keeps: TypeAlias = Callable[[str, float], bool]


class _Flow:
    """Follows an answer back, from the last node to the first; ``keeps`` chooses nodes by their
    address and value, and what is below ``small`` is not looked at."""

    def __init__(self, question: Question, sites: list[Site], keeps: Keeps, small: float) -> None:
        self.question, self.run, self.keeps, self.small = question, question.run, keeps, small
        self.sites = {site.address: site for site in sites}
        self.looks = _looks(self.run, sites)
        self.gradients: dict[str, Tensor] = {}
        self.rows: dict[str, tuple[Site, Places]] = {}  # of a site, by address
        self.nodes: dict[str, tuple[str, float]] = {}  # kind, value
        self.causes: dict[str, Causes] = {}  # of the nodes that read others
        self.writers: dict[str, dict[str, float]] = {}
        self.looking: dict[str, str] = {}  # a head's node -> that of its scores
        self.fixed: dict[str, dict[str, None]] = {}  # sentences and functions
        causes = self.run.attribute(question.target, [*self.sites], question.less)
        self._read(causes.target, "answer", causes)
        for site in sites:
            if site.address in self.gradients:
                self._open(site, site.by_node(self.gradients[site.address]))
        leaves: dict[str, float] = defaultdict(float)
        for address, value in (pair for x in self.writers.values() for pair in x.items()):
            leaves[address] += value
        for address, value in leaves.items():
            if address not in self.rows and self.keeps(address, value):
                self.nodes[address] = "bias", value

    def members(self) -> dict[str, list[Places]]:
        """The nodes whose rows a run may hold, by site."""
        members: dict[str, list[Places]] = defaultdict(list)
        for address, (kind, _) in self.nodes.items():
            if address in self.rows and kind not in {*TABLES, "scores"}:
                site, place = self.rows[address]
                members[site.address].append(place)
        return members

    def _read(self, reader: str, kind: str, causes: Causes) -> None:
        """Adds a node with the edges into it."""
        self.nodes[reader], self.causes[reader] = (kind, causes.value), causes
        writers = self.writers[reader] = defaultdict(float)
        for cause in causes.causes:
            if cause.kind != "chosen":
                writers[cause.address] += cause.value
        for address, gradient in causes.gradients.items():
            site, before = self.sites[address], self.gradients.get(address)
            self.gradients[address] = gradient if before is None else before + gradient
            for name, _, value in self._above(site, site.by_node(gradient)):
                writers[name] = value
        for note in causes.notes:
            sentence, _, functions = note.partition(": ")
            if names := re.findall(r"(\w+) \(\d+\)", functions):
                self.fixed.setdefault(sentence, {}).update(dict.fromkeys(names))

    def _above(self, site: Site, gradient: Tensor) -> Iterator[tuple[str, Places, float]]:
        """The rows of a site that add or take more than ``small`` along a gradient."""
        sums = (gradient * site.by_node(site.numbers)).sum(-1)
        for place in map(tuple, (sums.abs() > self.small).nonzero().tolist()):
            name = site.name(place)
            self.rows[name] = site, place
            yield name, place, float(sums[place])

    def _open(self, site: Site, gradient: Tensor) -> None:
        """The nodes of a site, whose readers are all known, and what writes to them."""
        for name, place, value in [*self._above(site, gradient)]:
            if not self.keeps(name, value):
                continue
            self.nodes[name] = site.kind, value
            if site.kind not in TABLES:
                direction = gradient[place].reshape(site.numbers[place].shape)
                self._read(name, site.kind, self.run.edges(name, [*self.sites], direction))
                self._look(name, site, place, direction)

    def _look(self, head: str, site: Site, place: Places, gradient: Tensor) -> None:
        """The node of a head's scores."""
        look = self.looks.get(site)
        direction = look and look.direction(place, site.numbers[place], gradient)
        if look is None or direction is None:
            return
        name = f"{look.address}[{site.lead}{','.join(map(str, place))}]"
        if self.keeps(name, inner(direction, look.numbers[place])):
            self.rows[name], self.looking[head] = (site, place), name
            self._read(name, "scores", self.run.edges(name, [*self.sites], direction))

    # -------------------------------------------------------------------------------- as a result

    def result(self, least: float, faithfulness: Faithfulness) -> Circuit:
        edges = [
            CircuitEdge(writer, reader, value)
            for reader, writers in self.writers.items()
            for writer, value in writers.items()
            if writer in self.nodes and value
        ]
        inside: dict[str, list[float]] = defaultdict(list)
        for edge in edges:
            inside[edge.reader].append(edge.value)
        outside = {
            address: causes.sum - math.fsum(inside[address])
            for address, causes in self.causes.items()
        }
        nodes = [self._node(address, outside.get(address, 0.0)) for address in self.nodes]
        notes = [f"{sentence}: {', '.join(names)}." for sentence, names in self.fixed.items()]
        difference = max(causes.difference for causes in self.causes.values())
        answer = self.question.answer
        return Circuit(answer, self.run.words, nodes, edges, least, difference, faithfulness, notes)

    def _node(self, address: str, outside: float) -> CircuitNode:
        kind, value = self.nodes[address]
        if address not in self.rows:
            text = self.question.answer if kind == "answer" else kind
            return CircuitNode(address, kind, text, value, outside)
        site, place = self.rows[address]
        run, at = self.run, place[site.token_side]
        is_source = re.match(r"encoder\.|source_", address) and run.source_words
        word = f"{at}:{(is_source or run.words)[at]}"
        index = place[1 - site.token_side] if len(place) > 1 else None
        if kind == "expert":
            index = int(run[f"{site.address.removesuffix('hidden')}chosen[{at},{place[1]}]"])
        text = f"{kind} {word}" if kind in TABLES else f"{kind} at {word}"
        if kind == "scores":
            text = self._looks_at(site, place)
        elif index is not None:
            text = f"{kind} {index} at {word}"
        looks = self.looking.get(address)
        return CircuitNode(address, kind, text, value, outside, site.block, index, at, looks)

    def _looks_at(self, site: Site, place: Places) -> str:
        """The key that a head weighs most, and what its place is to the query's."""
        run, (_, at) = self.run, place
        pattern = self.looks[site].pattern[place]
        key = int(pattern.argmax())
        other = "cross" in site.kind
        words = run.source_words if other or site.address.startswith("encoder.") else run.words
        text = f"looks at {key}:{(words or run.words)[key]}, {float(pattern[key]):.2f}"
        if other or key == at:
            return text
        ids = (run.tokens if words is run.words or run.source is None else run.source)[0].tolist()
        if key == at - 1:
            role = "the previous token"
        elif key and ids[key - 1] == ids[at] and key - 1 != at:
            role = "induction"
        else:
            role = "a duplicate" if ids[key] == ids[at] else ""
        return f"{text}{role and ': '}{role}"


# ------------------------------------------------------------------------------------ faithfulness


Members: TypeAlias = Mapping[str, Collection[Places]]
"""Nodes that are rows of a site, by its address."""


class _Held:
    """Runs of a model in which the rows of its sites are held at ``fill``, but for a circuit's."""

    def __init__(self, question: Question, sites: list[Site], fill: Mapping[str, Tensor]) -> None:
        self.question, self.sites, self.fill = question, sites, fill

    def answers(self, circuits: Sequence[Members]) -> list[float]:
        """The answer by each circuit alone."""
        run = self.question.run
        if not isinstance(run, Trace):
            return [self._foreign(run, circuit) for circuit in circuits]
        count = max(1, TOKENS // run.tokens.shape[1])
        groups = (circuits[low : low + count] for low in range(0, len(circuits), count))
        return [answer for group in groups for answer in self._own(run, group)]

    def _edit(self, site: Site, circuits: Sequence[Members]) -> Callable[[Tensor], Tensor]:
        """Puts the fill in the place of all rows that are no nodes of the circuits, one a text."""
        sides = [1] * (site.numbers.ndim - site.rows)
        kept = torch.zeros(len(circuits), *site.nodes, *sides, dtype=torch.bool)
        for mask, circuit in zip(kept, circuits, strict=True):
            for place in circuit.get(site.address, ()):
                mask[place] = True

        def edit(x: Tensor) -> Tensor:
            rows = x.reshape(len(circuits), *site.numbers.shape)
            held = torch.where(kept.to(x.device), rows, self.fill[site.address].to(x))
            return held.reshape(x.shape)

        return edit

    def _own(self, run: Trace, circuits: Sequence[Members]) -> list[float]:
        edits = dict(run.edits)
        for site in self.sites:
            edit = self._edit(site, circuits)
            edits[site.address] = lambda _, x, edit=edit: edit(x)
        place = self.question.position
        logits: Any = "none" if place is None else torch.tensor([place], device=run.tokens.device)
        inputs = [ids.expand(len(circuits), -1) for ids in run.args]
        with inference(run.model):
            output = run.model(*inputs, tape=Tape(edits=edits), logits=logits)
        if place is None:
            return self._differences(output.pooled)
        head: Any = run.model.head
        scores, cap = output.logits[:, 0].double(), head.softcap
        return self._differences(cap * torch.atanh(scores / cap) if cap else scores)

    def _foreign(self, run: ModuleTrace, circuit: Members) -> float:
        edits = {site.address: self._edit(site, [circuit]) for site in self.sites}
        answer = run.edit(edits).outputs[run.structure.name]
        place = self.question.position
        return self._differences(answer if place is None else answer[:, place])[0]

    def _differences(self, scores: Tensor) -> list[float]:
        chosen = scores[:, self.question.ids].double()
        differences: list[float] = (chosen[:, 0] - chosen[:, 1:].sum(-1)).tolist()
        return differences


def _fill(question: Question, sites: list[Site], another: ModuleTrace | None) -> dict[str, Tensor]:
    """What the rows of each site are held at: their mean over the tokens, or what they are in
    another pass."""
    fill = {}
    for site in sites:
        x = site.numbers
        if another is None:
            fill[site.address] = x.mean(site.token_side, keepdim=True).expand_as(x)
            continue
        value = another.value(site.address)
        need(
            value.shape == site.value.shape,
            f"The texts have {question.run.tokens.shape[1]} and {another.tokens.shape[1]} tokens; "
            "give equally many; glassformer tokens shows them.",
        )
        fill[site.address] = numbers(value).reshape(x.shape)
    return fill


def _prune(runs: _Held, flow: _Flow, bound: float) -> set[str]:
    """The addresses of the nodes without which the circuit's answer changes by more than a bound; the
    smallest are tried first."""
    members = flow.members()
    (whole,) = runs.answers([members])
    chosen = set(flow.nodes)
    held = [(abs(value), name) for name, (_, value) in flow.nodes.items() if name in flow.rows]
    for _, name in sorted(held):
        site, place = flow.rows[name]
        if place not in members.get(site.address, ()) or flow.nodes[name][0] == "scores":
            continue
        others = [x for x in members[site.address] if x != place]
        trial = {**members, site.address: others}
        (answer,) = runs.answers([trial])
        if abs(answer - whole) < bound:
            members = trial
            chosen -= {name, flow.looking.get(name, name)}
    return chosen


def _draw(
    members: Members, reached: Mapping[str, Tensor], sites: list[Site], draw: torch.Generator
) -> Members:
    """As many nodes of each kind, of those that the answer depends on at all."""
    kinds = Counter[str]()
    pools: dict[str, list[tuple[str, Places]]] = defaultdict(list)
    for site in sites:
        kinds[site.kind] += len(members.get(site.address, ()))
        places = reached[site.address].nonzero().tolist() if site.address in reached else ()
        pools[site.kind] += [(site.address, tuple(place)) for place in places]
    drawn: dict[str, list[Places]] = defaultdict(list)
    for kind, pool in pools.items():
        for at in torch.randperm(len(pool), generator=draw)[: kinds[kind]].tolist():
            drawn[pool[at][0]].append(pool[at][1])
    return drawn


# ------------------------------------------------------------------------------------ the circuit


def circuit(
    model: nn.Module,
    tokenizer: Any,
    text: Text,
    *,
    source: Text | None = None,
    answer: str | int | None = None,
    instead: str | int | None = None,
    position: int | None = None,
    corrupted: Text | None = None,
    least: float = 0.05,
    greedy: bool = False,
    neurons: bool = False,
    draws: int = 20,
    seed: int = 0,
) -> Circuit:
    """Finds the nodes that carry a logit and the edges between them, and measures how much of it
    they keep alone.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it.
        text: A text, or token ids.
        source: What an encoder-decoder's encoder reads.
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

    Returns:
        Nodes, edges and their faithfulness; printing it shows a tree.

    Raises:
        UserError: The model has no such answer or no residual stream, or the texts differ in length.

    Example:
        >>> print(glassformer.circuit(model, tokenizer, "Once upon a"))
    """
    need(0 < least <= 1, f"least is {least}; give a share above 0, up to 1.")
    question = ask(model, tokenizer, text, source, (answer, instead), position)
    run = question.run
    sites = _sites(run, neurons)
    held = [site for site in sites if site.kind not in TABLES]
    whole, slopes = run.slopes(question.target, [site.address for site in held], question.less)
    need(whole != 0, "The two logits are the same, so nothing decides between them.")
    bound = least * abs(whole)
    flow = _Flow(question, sites, lambda _, value: abs(value) >= bound, SMALL * bound)
    another = None if corrupted is None else record(model, tokenizer, corrupted, source)
    runs = _Held(question, held, _fill(question, held, another))
    if greedy:
        chosen = _prune(runs, flow, bound)
        flow = _Flow(question, sites, lambda name, _: name in chosen, SMALL * bound)
    members = flow.members()
    reached = {
        site.address: site.by_node(slopes[site.address]).any(-1)
        for site in held
        if site.address in slopes
    }
    draw = torch.Generator().manual_seed(seed)
    random = [_draw(members, reached, held, draw) for _ in range(draws)]
    every = {site.address: {*np.ndindex(site.nodes)} for site in held}
    others = {name: places.difference(members.get(name, ())) for name, places in every.items()}
    full, alone, without, nothing, *drawn = runs.answers([every, members, others, {}, *random])
    count = sum(map(len, members.values()))
    held_at = "their mean" if corrupted is None else "the corrupted text's values"
    return flow.result(least, Faithfulness(full, alone, without, drawn, nothing, count, held_at))
