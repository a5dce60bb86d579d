"""Recurrent models: GRU and LSTM, one way or both ways, with attention to a source or its summary.

    x_t --+--> cell 0 --> cell 1 --> ... --> merge (the state, c_t and x_t) --> out_t
    c_t --+     | ^ state, from word to word
     ^          v |
     +-- the source: one vector (Summary), or a weighted sum of its states that the last state asks for (Additive)

Documents are read side by side, the longest first, so that those still alive at a step lie
together. Packed, padded and lonely rows thus become the same tokens in the same order, and no state
passes from one document to the next.

B batch, T tokens, S source tokens, C model dim, N tokens that are there, D documents, n of them
alive, G gates, A width of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core import config
from ..core.errors import UserError
from ..core.nn.build import build, builds, uncompiled
from ..core.nn.cache import Cache, CrossKV, MixerState
from ..core.nn.dropout import Dropout
from ..core.nn.flow import Flow, Memory, TracedModule, document_starts
from ..core.nn.hooks import Place
from ..core.nn.layers import linear

State: TypeAlias = tuple[Tensor, ...]  # (n, C) each; the first is what is seen from outside


@dataclass
class DocumentOrder:
    """Tokens sorted by step, within a step by document, the longest first: what PackedSequence
    holds."""

    shape: tuple[int, int]  # (B, T)
    index: Tensor  # (N,) their places among the B * T
    sizes: list[int]  # documents alive at each step
    rows: Tensor  # (D,) the row of each document
    document_ids: Tensor | None  # (D,) its number in the row, where there are numbers
    fresh: Tensor  # (D,) whether it begins here, rather than go on from a cache
    last: Tensor  # (D,) whether it is the last of its row
    aligned: bool  # every row is one document, in its place

    @classmethod
    def of(cls, flow: Flow, B: int, T: int) -> DocumentOrder:
        """The order of a pass over B rows of T tokens."""
        pos, document_ids = flow.pos.expand(B, T), flow.document_ids
        if flow.contiguous:
            rows = torch.arange(B, device=pos.device)
            index = torch.arange(B * T, device=pos.device).view(B, T).T.flatten()
            last = torch.ones_like(rows, dtype=torch.bool)
            return cls((B, T), index, [B] * T, rows, None, pos[:, 0] == 0, last, True)
        places = (pos.flatten() >= 0).nonzero()[:, 0]
        starts = document_starts(pos).flatten()[places].nonzero()[:, 0]
        stops = torch.cat((starts[1:], starts.new_tensor([len(places)])))
        lengths, longest = (stops - starts).sort(descending=True, stable=True)
        first = places[starts]  # of each document, as of the B * T
        row = first // T
        final = torch.cat((row[1:] != row[:-1], torch.ones_like(row[:1], dtype=torch.bool)))
        steps = torch.arange(int(lengths[:1].sum()), device=pos.device)[:, None]
        running = lengths > steps  # (steps, D)
        # as pack_sequence does it, without a tensor a document
        by_step = (starts[longest] + steps)[running]
        first = first[longest]
        return cls(
            (B, T),
            places[by_step],
            running.sum(1).tolist(),
            row[longest],
            None if document_ids is None else document_ids.flatten()[first],
            pos.flatten()[first] == 0,
            final[longest],
            False,
        )

    @cached_property
    def ranks(self) -> Tensor:
        """The document of each token (N,), counted from the longest."""
        everyone = torch.arange(len(self.rows))
        ranks = torch.cat([everyone[:size] for size in self.sizes]) if self.sizes else everyone
        return ranks.to(self.index.device, non_blocking=True)

    @cached_property
    def mirror(self) -> Tensor:
        """Index (N,) of each token's mirror image in its own document: it reverses documents, and
        reverses them back."""
        sizes = torch.tensor(self.sizes)  # counted by the host, which has them
        begins = sizes.cumsum(0) - sizes
        step = torch.arange(len(sizes)).repeat_interleave(sizes)
        rank = torch.arange(len(step)) - begins[step]
        lengths = torch.bincount(rank, minlength=len(self.rows))
        return (begins[lengths[rank] - 1 - step] + rank).to(self.index.device, non_blocking=True)

    def gather(self, x: Tensor) -> Tensor:
        """x (B, T, C) -> (N, C)."""
        return x.flatten(0, 1)[self.index]

    def scatter(self, x: Tensor) -> Tensor:
        """x (N, ...) -> (B, T, ...), 0 at padding."""
        B, T = self.shape
        rows = x.new_zeros(B * T, *x.shape[1:]).index_copy(0, self.index, x)
        return rows.view(B, T, *x.shape[1:])

    def look(self, flow: Flow, module: TracedModule, name: str, x: Tensor) -> Tensor:
        """x (N, C), seen by a tape as (B, T, C)."""
        if not flow.watches(module, name):
            return x
        return self.gather(flow.look(module, name, self.scatter(x)))


class CellModule(TracedModule):
    """A recurrent cell over all documents; ``step`` is written out, ``kernel`` is PyTorch's own and
    equal."""

    gates: int
    kernel: Any  # all steps at once, over packed sequences

    def __init__(self, cfg: config.Cell, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.input = linear(inputs, self.gates * width, bias=True)
        self.state = linear(width, self.gates * width, bias=True)

    def initial(self, hidden: Tensor) -> State:
        """The state (D, C) in which documents begin."""
        return (hidden,)

    def step(self, gate_input: Tensor, state: State) -> State:
        """The next states (n, C); ``given`` (n, G * C) is the product of the input with its
        weights."""
        raise NotImplementedError

    def run(
        self, x: Tensor, order: DocumentOrder, state: State, engine: str
    ) -> tuple[Tensor, State]:
        """x (N, inputs) from ``state`` (D, C) on -> what is seen of each state (N, C), and the last
        ones (D, C)."""
        if engine != "eager" and len(order.sizes) > 1:
            weights = [self.input.matrix(), self.state.matrix(), self.input.bias, self.state.bias]
            start = [tensor[None] for tensor in state]  # of one layer
            first, options = (
                start if len(start) > 1 else start[0],
                (True, 1, 0.0, self.training, False),
            )
            outputs, *last = self.kernel(x, torch.tensor(order.sizes), first, weights, *options)
            return outputs, tuple(tensor[0] for tensor in last)
        return walk(torch.split(self.input(x), order.sizes), state, self.step)


def walk(
    inputs: Iterable[Tensor], state: State, step: Callable[[Tensor, State], State]
) -> tuple[Tensor, State]:
    """``step`` by step over the inputs (n, ..) of the documents still alive, from ``state`` (D, C)
    on.

    Returns what is seen of each state (N, C), and each document's last one (D, C).
    """
    outputs, ended = list[Tensor](), list[State]()
    for gate_input in inputs:
        if len(gate_input) < len(state[0]):  # the last documents, the shortest, have ended
            ended.append(tuple(tensor[len(gate_input) :] for tensor in state))
            state = tuple(tensor[: len(gate_input)] for tensor in state)
        state = step(gate_input, state)
        outputs.append(state[0])
    return torch.cat(outputs), tuple(
        torch.cat(tensors) for tensors in zip(state, *reversed(ended), strict=True)
    )


@builds(config.GRU)
class GRU(CellModule):
    """One gate chooses what of the state a candidate is made of, one how much of the state
    stays."""

    gates, kernel = 3, staticmethod(torch.gru)

    def step(self, gate_input: Tensor, state: State) -> State:
        (h,) = state
        reset, update, new = gate_input.chunk(3, -1)
        h_reset, h_update, h_new = self.state(h).chunk(3, -1)
        stay = torch.sigmoid(update + h_update)
        candidate = torch.tanh(new + torch.sigmoid(reset + h_reset) * h_new)
        return (candidate + stay * (h - candidate),)


@builds(config.LSTM)
class LSTM(CellModule):
    """Three gates: what enters the cell, what stays in it, what of it is seen."""

    gates, kernel = 4, staticmethod(torch.lstm)

    def initial(self, hidden: Tensor) -> State:
        return hidden, torch.zeros_like(hidden)

    def step(self, gate_input: Tensor, state: State) -> State:
        h, cell = state
        enter, stay, new, show = (gate_input + self.state(h)).chunk(4, -1)
        cell = torch.sigmoid(stay) * cell + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(show) * torch.tanh(cell), cell


@dataclass
class EncoderStates:
    """The encoder's states that each document attends to (D, S, C), and which of them are not
    padding."""

    values: Tensor
    valid: Tensor | None  # (D, S); None: all
    columns: Tensor | None  # (D, S) the column of each in the memory; None: its own
    keys: Tensor  # (D, S, A)

    @classmethod
    def of(cls, memory: Memory, order: DocumentOrder) -> EncoderStates:
        """The memory by documents; packed pairs have the same number on both sides."""
        hidden, (B, S) = memory.hidden, memory.hidden.shape[:2]
        if order.aligned and memory.document_ids is None:
            return cls(
                hidden, None if memory.contiguous else memory.pos.expand(B, S) >= 0, None, hidden
            )
        valid = memory.pos.expand(B, S)[order.rows] >= 0
        if memory.document_ids is not None and order.document_ids is not None:
            valid = valid & (memory.document_ids[order.rows] == order.document_ids[:, None])
        columns = valid.int().argsort(dim=1, descending=True, stable=True)[
            :, : int(valid.sum(1).max())
        ]
        values = hidden.flatten(0, 1)[order.rows[:, None] * S + columns]
        return cls(values, valid.gather(1, columns), columns, values)

    def end_states(self) -> Tensor:
        """The first and the last state of each source, side by side (D, 2C)."""
        if self.valid is None:
            return torch.cat((self.values[:, 0], self.values[:, -1]), -1)
        first = self.valid.int().argmax(1)
        last = self.valid.shape[1] - 1 - self.valid.flip(1).int().argmax(1)
        row = torch.arange(len(self.values), device=self.values.device)
        return torch.cat((self.values[row, first], self.values[row, last]), -1)


@builds(config.Summary)
class Summary(TracedModule):
    """The source in one vector: the decoder's first state, and an input of every step."""

    attends = False

    def __init__(self, cfg: config.Summary | config.Additive, dim: int) -> None:
        super().__init__()
        self.whole = linear(2 * dim, dim, bias=True)

    def initial(self, source: EncoderStates) -> Tensor:
        """(D, C)."""
        return torch.tanh(self.whole(source.end_states()))


@builds(config.Additive)
class Additive(Summary):
    """Scores the source's states for the last state of the decoder, and sums them by their
    scores."""

    attends = True

    def __init__(self, cfg: config.Additive, dim: int) -> None:
        super().__init__(cfg, dim)
        self.q = linear(dim, cfg.width, bias=True)
        self.k = linear(dim, cfg.width, bias=False)
        self.score = linear(cfg.width, 1, bias=False)

    def pattern(self, h: Tensor, source: EncoderStates) -> Tensor:
        """h (n, C) -> the weight of each state of the source (n, S)."""
        n = len(h)
        scores: Tensor = self.score(torch.tanh(self.q(h)[:, None] + source.keys[:n]))[:, :, 0]
        if source.valid is not None:
            scores = scores.masked_fill(~source.valid[:n], torch.finfo(scores.dtype).min)
        return scores.softmax(-1)


Layers: TypeAlias = list[tuple[MixerState, CrossKV]] | None
"""A cache's layers: each one's state, and at the first the encoder's keys."""


def keep_last(kept: MixerState, state: State, order: DocumentOrder) -> None:
    """Keep the states (D, C) of each row's last document; a row without one keeps its earlier
    state."""
    if not order.aligned:
        old = kept.tensors or tuple(
            tensor.new_zeros(order.shape[0], tensor.shape[1]) for tensor in state
        )
        rows, last = order.rows[order.last], order.last
        state = tuple(a.index_copy(0, rows, b[last]) for a, b in zip(old, state, strict=True))
    kept.tensors = state


@builds(config.Recurrent)
class Recurrent(TracedModule):
    """Embeddings in, hidden states out, as a Stack does it; one way, or both ways with half of the
    width each."""

    # a state goes round and round: what is rounded adds up
    exact = ("cells", "back", "cross", "merge")

    def __init__(self, cfg: config.Recurrent, dim: int) -> None:
        super().__init__()
        width = dim if cfg.causal else dim // 2
        inputs = [dim if cfg.cross is None else 2 * dim] + [dim] * (cfg.depth - 1)
        self.cells: Any = nn.ModuleList(build(cfg.cell, size, width) for size in inputs)
        self.back: Any = nn.ModuleList(
            build(cfg.cell, size, width) for size in inputs if not cfg.causal
        )
        self.cross: Any = build(cfg.cross, dim) if cfg.cross is not None else None
        if cfg.cross is not None:
            self.merge = linear(3 * dim, dim, bias=True)
        self.drop = Dropout(cfg.dropout) if cfg.dropout else nn.Identity()

    @uncompiled  # how long documents are is not known before
    def forward(self, x: Tensor, flow: Flow, cache: Cache | None = None) -> Tensor:
        """x (B, T, C), embedded tokens -> (B, T, C)."""
        if flow.prefix is not None:
            raise UserError(
                "A recurrent model reads from left to right and cannot see a whole prefix at "
                "once; use a Stack."
            )
        x = flow.look(self, "embed", self.drop(x))
        order = DocumentOrder.of(flow, *x.shape[:2])
        if not order.sizes:  # nothing but padding
            return flow.look(self, "out", torch.zeros_like(x))
        layers: Layers = None if cache is None else cache.layers
        hidden = embedded = order.gather(x)  # (N, C)
        source, initial = self.source(flow, order, layers)
        context = embedded
        for number, cell in enumerate(self.cells):
            state = self.start(cell, order, initial, layers[number][0] if layers else None)
            if number == 0 and source is not None:
                if self.cross.attends:
                    hidden, context, state = self.attend(hidden, order, state, source, flow)
                else:
                    context = initial[order.ranks]
                    hidden, state = cell.run(
                        torch.cat((hidden, context), -1), order, state, flow.engine
                    )
                context = order.look(flow, self.cross, "write", context)
            else:
                outputs, state = cell.run(hidden, order, state, flow.engine)
                if len(self.back):
                    back_cell = self.back[number]
                    start = self.start(back_cell, order, initial, None)
                    again, _ = back_cell.run(hidden[order.mirror], order, start, flow.engine)
                    outputs = torch.cat((outputs, again[order.mirror]), -1)
                hidden = outputs
            if layers is not None:
                keep_last(layers[number][0], state, order)
            hidden = self.drop(order.look(flow, cell, "state", hidden))
        if self.cross is not None:
            hidden = torch.tanh(self.merge(torch.cat((hidden, context, embedded), -1)))
        return flow.look(self, "out", order.scatter(hidden))

    def source(
        self, flow: Flow, order: DocumentOrder, layers: Layers
    ) -> tuple[EncoderStates | None, Any]:
        """Encoder states that the documents attend to, and the vector in which they begin (D, C);
        the keys are computed once."""
        if self.cross is None:
            return None, None
        assert flow.memory is not None
        source = EncoderStates.of(flow.memory, order)
        if self.cross.attends:
            if layers is None:
                source.keys = self.cross.k(source.values)
            else:
                states = flow.memory.hidden
                keys, _ = layers[0][1].cached(lambda: (self.cross.k(states), states))
                source.keys = (
                    keys if source.columns is None else keys[order.rows[:, None], source.columns]
                )
        return source, self.cross.initial(source)

    def start(
        self,
        cell: CellModule,
        order: DocumentOrder,
        initial: Any,
        kept: MixerState | None,
    ) -> State:
        """The state in which each document goes on, (D, C)."""
        D, weight = len(order.rows), cell.state.weight
        fresh = cell.initial(weight.new_zeros(D, cell.width) if initial is None else initial)
        if kept is None or not kept.tensors:
            return fresh
        old = (tensor[order.rows] for tensor in kept.tensors)
        return tuple(
            torch.where(order.fresh[:, None], a, b) for a, b in zip(fresh, old, strict=True)
        )

    def attend(
        self,
        x: Tensor,
        order: DocumentOrder,
        state: State,
        source: EncoderStates,
        flow: Flow,
    ) -> tuple[Tensor, Tensor, State]:
        """The first layer, which looks at the source at each word: states, contexts (N, C), last
        states (D, C)."""
        cell: CellModule = self.cells[0]
        cross, (of_x, of_context) = self.cross, torch.split(cell.input.matrix(), x.shape[-1], dim=1)
        contexts, patterns = list[Tensor](), list[Tensor]()
        path = f"{cross.path}.pattern"
        tape, edited = flow.tape, flow.changes(cross, "pattern")
        places = self.places(order, source, flow) if edited else iter(())

        def step(gate_input: Tensor, state: State) -> State:
            pattern = cross.pattern(state[0], source)  # (n, S)
            if edited and tape is not None:  # step by step, (n, 1, 1, S)
                pattern = tape.edit(path, pattern[:, None, None], next(places))[:, 0, 0]
            context = (pattern[:, None] @ source.values[: len(gate_input)])[:, 0]
            contexts.append(context)
            patterns.append(pattern)
            return cell.step(gate_input + F.linear(context, of_context), state)

        outputs, last = walk(
            torch.split(F.linear(x, of_x, cell.input.bias), order.sizes), state, step
        )
        if tape is not None and flow.watches(cross, "pattern"):
            pattern = torch.cat(patterns)  # (N, S) of each document's own words
            # in the columns of the batch
            if source.columns is not None and flow.memory is not None:
                wide = pattern.new_zeros(len(pattern), flow.memory.hidden.shape[1])
                pattern = wide.scatter(1, source.columns[order.ranks], pattern)
            tape.record(path, order.scatter(pattern)[:, None])  # (B, 1, T, S)
        return outputs, torch.cat(contexts), last

    def places(self, order: DocumentOrder, source: EncoderStates, flow: Flow) -> Iterator[Place]:
        """Positions of each step's words (n, 1), and of their keys (n, S)."""
        assert flow.memory is not None and flow.tape is not None
        pos, tape = flow.pos.expand(order.shape).flatten()[order.index], flow.tape
        keys = flow.memory.pos.expand(flow.memory.hidden.shape[:2])[order.rows]
        keys = keys if source.columns is None else keys.gather(1, source.columns)
        rows = order.rows if tape.rows is None else tape.rows[order.rows]
        for step_pos in torch.split(pos, order.sizes):
            yield Place(step_pos[:, None], rows=rows[: len(step_pos)], keys=keys[: len(step_pos)])
