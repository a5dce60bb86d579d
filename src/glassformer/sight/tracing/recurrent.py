"""What GRUs and LSTMs compute, as operations (tasks/recurrence.py): each step reads the state of the
step before."""

from __future__ import annotations

from typing import Any

from ...core import config
from ...tasks import recurrence
from .plan import Builder, describes


@describes(config.Recurrent)
def recurrent_body(cfg: config.Recurrent, b: Builder, path: str, x: str, embed_path: str) -> str:
    """Layers of cells, one way or both; a decoder's first layer reads its context too, and
    ``merge`` ends it."""
    forward = recurrence.Recurrent.forward
    x = first = hidden = b.name(x, f"{path}.embed")
    T, dim = b.tokens, b.model.config.dim
    initial = context = None
    if cfg.cross is not None:
        end_code = (recurrence.EncoderStates.end_states, "torch.cat(")
        joined = b.add(
            f"{path}.cross.ends",
            "pool",
            (b.memory,),
            ("N", "2C"),
            (1, 2 * dim),
            end_code,
            of="ends",
        )
        start = (recurrence.Summary.initial, "torch.tanh(")
        product = b.linear(f"{path}.cross.whole_proj", joined, f"{path}.cross.whole", "C", start)
        initial = b.add_like(f"{path}.cross.initial", "act", product, code=start, act="tanh")
    for number in range(cfg.depth):
        place, state = f"{path}.cells.{number}", f"{path}.cells.{number}.state"
        if number == 0 and cfg.cross is not None:
            context = source_context(cfg.cross, b, path, state, initial)
            sizes = (dim, b.plan[context].shape[-1])
            sides = (("B", "T", "2C"), (1, T, 2 * dim))
            hidden = b.add(
                f"{place}.in",
                "concat",
                (hidden, context),
                *sides,
                (forward, "torch.cat((hidden, context)"),
                sizes=sizes,
            )
        if cfg.causal:
            hidden = cells(cfg.cell, b, place, state, hidden, initial, state, reverse=False)
            continue
        width, directions = dim // 2, []
        for name, reverse in (("cells", False), ("back", True)):
            direction = f"{path}.{name}.{number}"
            directions.append(
                cells(
                    cfg.cell,
                    b,
                    direction,
                    f"{direction}.{'backward' if reverse else 'forward'}",
                    hidden,
                    None,
                    state,
                    reverse,
                )
            )
        code = (forward, "again[order.mirror]")
        hidden = b.add(
            state,
            "concat",
            tuple(directions),
            ("B", "T", "C"),
            (1, T, 2 * width),
            code,
            sizes=(width, width),
        )
    if cfg.cross is not None and context is not None:
        code = (forward, "self.merge(")
        inputs, sides = (hidden, context, first), (("B", "T", "3C"), (1, T, 3 * dim))
        merged = b.add(f"{path}.merge_in", "concat", inputs, *sides, code, sizes=(dim, dim, dim))
        merged = b.linear(f"{path}.merge_proj", merged, f"{path}.merge", "C", code)
        return b.add_like(f"{path}.out", "act", merged, code=code, act="tanh")
    return b.name(hidden, f"{path}.out")


def cells(
    cfg: config.GRU | config.LSTM,
    b: Builder,
    module: str,
    id: str,
    x: str,
    initial: str | None,
    state: str,
    reverse: bool,
) -> str:
    """One layer in one direction; ``state`` (B, T, C) is what the tape records, both directions
    side by side."""
    T, width = b.tokens, b.parameters[f"{module}.state.weight"][1]
    kind = recurrence.LSTM if isinstance(cfg, config.LSTM) else recurrence.GRU
    projected = b.linear(
        f"{module}.given", x, f"{module}.input", "G", (recurrence.Cell.run, "self.input(x)")
    )
    sides = (("B", "T", "C"), (1, T, width))
    step = (recurrence.walk, "state = step(gate_input, state)")
    # A loop through time: the state is read from what was recorded, and so its operations may come
    # before it.
    before = own_half(b, module, state, width, reverse)
    inputs = (before,) if initial is None else (before, initial)
    previous = b.add(f"{module}.previous", "shift", inputs, *sides, step, reverse=reverse)
    code = (kind.step, "self.state(h)")
    carried = b.linear(f"{module}.carried", previous, f"{module}.state", "G", code)
    if isinstance(cfg, config.LSTM):
        code = (kind.step, "cell = torch.sigmoid(stay)")
        memory = f"{module}.memory"
        memory_id = b.add(
            memory, "memory", (projected, carried, memory), *sides, code, reverse=reverse
        )
        return b.add(
            id,
            "cell",
            (projected, carried, memory_id),
            *sides,
            (kind.step, "torch.sigmoid(show)"),
            type="lstm",
        )
    return b.add(
        id,
        "cell",
        (projected, carried, previous),
        *sides,
        (kind.step, "candidate + stay"),
        type="gru",
    )


def own_half(b: Builder, module: str, state: str, width: int, reverse: bool) -> str:
    """The columns of the recorded state that are this direction's."""
    total = b.model.config.dim
    if width == total:
        return state
    code = (recurrence.Recurrent.forward, "again[order.mirror]")
    start = width if reverse else 0
    return b.add(
        f"{module}.own",
        "split",
        (state,),
        ("B", "T", "C"),
        (1, b.tokens, width),
        code,
        begin=start,
        width=width,
    )


def source_context(
    cfg: config.Summary | config.Additive, b: Builder, path: str, state: str, initial: str | None
) -> str:
    """Source context that the decoder's first layer reads at each step."""
    T, dim = b.tokens, b.model.config.dim
    sides = (("B", "T", "C"), (1, T, dim))
    assert initial is not None
    if isinstance(cfg, config.Summary):
        code: Any = (recurrence.Recurrent.forward, "context = initial")
        return b.add(f"{path}.cross.write", "repeat", (initial,), *sides, code)
    S, pattern = b.plan[b.memory].shape[1], recurrence.Additive.pattern
    step = (recurrence.walk, "state = step(gate_input, state)")
    previous = b.add(
        f"{path}.cross.previous", "shift", (state, initial), *sides, step, reverse=False
    )
    q = b.linear(f"{path}.cross.q_proj", previous, f"{path}.cross.q", "A", (pattern, "self.q(h)"))
    k = b.linear(
        f"{path}.cross.k_proj",
        b.memory,
        f"{path}.cross.k",
        "A",
        (recurrence.Recurrent.source, "self.cross.k(source"),
    )
    score = {"weight": b.weight(f"{path}.cross.score.weight")}
    square = (("B", "H", "T", "S"), (1, 1, T, S))
    s = b.add(
        f"{path}.cross.scores", "additive", (q, k), *square, (pattern, "torch.tanh("), score, keys=1
    )
    p = b.add_like(f"{path}.cross.pattern", "softmax", s, code=(pattern, "softmax"))
    code = (recurrence.Recurrent.attend, "source.values[")
    return b.add(f"{path}.cross.write", "av", (p, b.memory), *sides, code, group=1, keys=1)
