"""A trace as one file that opens without a server: the page's own code, and the numbers, gzip and
base64 within it.

What does not fit within the bound is left out by a fixed order (attention and the stream first,
weights never), and the page says so. Nothing in the file asks any network.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from itertools import chain, product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from ..core import files
from ..core.errors import UserError, need
from ..core.files import JsonObject
from . import answers, wire
from .figures.charts import TableFigure
from .figures.shown import BOX, document
from .labels import display_texts, json_number
from .seen import Seen

MOST = 2_000_000  # bytes of a file of numbers
COMPUTING = 5_000_000  # bytes of a file that computes
CELLS = 400  # cells whose arithmetic is computed beforehand, at most
TERMS = 64
ASKED = 4096  # terms of a cell that the caller named
HELD = ("source", "attention", "experts", "pool")  # abilities that need no model
COMPUTED = ("generate", "fill", "lens", "edits")  # those of a file that computes
# of a file, at most, for the vocabulary; without it the tokens that are not in the text are numbers
WORDS = 0.15
UNQUOTED = "!'()*~"  # what a browser's encodeURIComponent leaves as it is
ROWS = (
    ("pattern", "logits"),
    ("resid", "embed", "out", "mid", "mid_cross", "state", "write", "vector"),
    ("q", "k", "v", "z", "scores", "router", "router_probs", "weight", "chosen"),
)
"""Last words of addresses in the order in which they are kept; whatever else there is comes
after."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def run_id(trace: Any) -> str:
    """The same trace has the same id."""
    named = [
        list(trace.plan.ops),
        trace.tokens.tolist(),
        None if trace.source is None else trace.source.tolist(),
    ]
    last = trace[list(trace.plan.ops)[-1]].detach().float().cpu().numpy()
    return f"r_{hashlib.sha256(repr(named).encode() + last.tobytes()).hexdigest()[:16]}"


def container(
    trace: Any,
    most: int,
    cells: Iterable[str] = (),
    name: str = "",
    text: str | None = None,
    computing: int = 0,
) -> bytes:
    """The trace as gzipped safetensors of at most ``most`` bytes: tensors by address, ``answers``
    and ``cells``; or, within ``computing`` bytes, weights and a program that computes any text.

    ``name`` is what the page calls the model; without one it says its kind.
    """
    ids = trace.tokens[0].tolist()
    text = _decoded(trace.tokenizer, ids) if text is None else text
    source = None
    if trace.source is not None:
        source = _decoded(trace.source_tokenizer, trace.source[0].tolist())
    run_record = answers.run(trace, answers.spans(trace.tokenizer, ids, text), source)
    id = run_id(trace)
    name = name or str(run_record["kind"])
    abilities = run_record["abilities"]
    program = trace.program(computing)
    held = HELD if program is None else (*HELD, *COMPUTED)
    able = {key: can and key in held for key, can in abilities.items()}
    if trace.source is not None:
        able["generate"] = False
    run_record |= {
        "run": id,
        "model": name,
        "digest": "",
        "edits": [],
        "abilities": able,
        "check": {"captured_vs_fast_max_abs": trace.check()},
    }
    card = {
        **trace.card(),
        "name": name,
        "title": name,
        "dtype": run_record["dtype"],
        "loaded": True,
        "abilities": able,
        "unsaved": [key for key, can in abilities.items() if can and not able[key]],
        "labels": [],
    }
    query = {"model": name, "text": text} | ({} if source is None else {"source": source})
    beside: JsonObject = {
        "GET api/models": [card],
        f"POST api/runs {canonical(query)}": run_record,
        f"GET api/runs/{id}": run_record,
    }
    room = most - 4096 - _size(run_record)
    if able["experts"]:
        beside[f"GET api/runs/{id}/experts"] = routed = answers.experts(trace)
        room -= _size(routed)
    if trace.tokenizer is not None:
        words = {"base64": base64.b64encode(answers.vocabulary(trace.tokenizer)).decode()}
        if _size(words) <= most * WORDS:
            beside[f"GET api/vocab/{quote(name, safe=UNQUOTED)}"] = words
            room -= _size(words)
    facts = {"answers": beside, "start": {"model": name, **query}, "run": id}
    if program is not None:
        written, weights = program
        packed = _gzipped(weights, {**facts, "program": written})
        fits = len(packed) <= computing
        return packed if fits else container(trace, most, cells, name, text)
    sizes = {op.id: math.prod(op.shape) for op in trace.plan}
    kind = "f32" if sum(sizes.values()) * 4 * 0.95 < room * 0.9 else "f16"
    tensors: dict[str, wire.Array] = {}
    kept_bytes = 0
    for address in order(trace):
        size = sizes[address] * wire.KINDS[kind]
        if kept_bytes + size * 0.95 <= room * 0.95:
            values = wire.TracePart(trace, address).to_array()
            tensors[address], _ = wire.coded(values, kind)
            kept_bytes += len(zlib.compress(tensors[address].tobytes(), 6))
    missing = len(sizes) - len(tensors)
    note = f"{missing} of {len(sizes)} values are left out" if missing else ""
    if kind == "f16":
        note += (" and the" if note else "The") + " numbers have 11 bits (f16)"
    run_record["cut"] = f"{note}; “glassformer page” has them all." if note else None
    run_record["saved"] = {"as": kind, "left_out": missing}
    explained: JsonObject = {}
    for address, terms in chain(product(cells, (ASKED,)), product(_pinned(trace), (TERMS,))):
        if len(explained) >= CELLS:
            break
        answer = answers.cell(trace, address, terms)
        explained.setdefault(answer["address"], answer)
    while True:
        packed = _gzipped(tensors, {**facts, "cells": explained})
        if len(packed) <= most:
            return packed
        need(
            bool(tensors) or bool(explained),
            f"This trace does not fit in {most:,} bytes; give a shorter text.",
        )
        if explained:  # what is least missed goes first
            explained = dict(list(explained.items())[: len(explained) // 2])
        else:
            tensors.popitem()


def _gzipped(tensors: dict[str, wire.Array], records: JsonObject) -> bytes:
    metadata = {key: dumped(record) for key, record in records.items()}
    return gzip.compress(wire.packed(tensors, metadata), 9, mtime=0)


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    """The text of ids; without a tokenizer the ids themselves."""
    if tokenizer is None:
        return " ".join(map(str, ids)) or "no text"
    return str(tokenizer.decode(ids))


def _size(record: Any) -> int:
    return len(gzip.compress(json.dumps(record).encode()))


def order(trace: Any) -> Iterator[str]:
    """Addresses of the plan, what is looked at most first."""
    ops = [op.id for op in trace.plan]
    ranks = {word: number for number, row in enumerate(ROWS) for word in row}

    def rank(address: str) -> int:
        names = (address, *trace.names.get(address, ()))
        is_input = trace.plan[address].kind == "leaf"  # ids and positions: small
        return (
            -1 if is_input else min(ranks.get(name.rpartition(".")[2], len(ROWS)) for name in names)
        )

    yield from sorted(ops, key=rank)


def _pinned(trace: Any) -> Iterator[str]:
    """Cells that are likely to be asked for: of the last token its likeliest word, and where each
    head looks most."""
    last = trace.tokens.shape[1] - 1
    for op in (trace.plan.get("probs"), trace.plan.head):
        if op is not None:
            yield op.at(last, int(trace[op.at(last)].argmax()))
    for op in _patterns(trace):
        row = min(last, op.shape[-2] - 1) % op.shape[-2]
        before = [
            x for x in map(trace.plan.get, op.inputs) if x is not None and x.shape == op.shape
        ]
        for head in range(op.shape[-3]):
            key = int(trace[op.at(head, row)].argmax())
            yield from (x.at(head, row, key) for x in (op, *before))


def _patterns(trace: Any) -> list[Any]:
    """The operations that say what heads look at, of heads, queries and keys."""
    return [op for op in trace.plan if op.is_attention]


def canonical(value: Any) -> str:
    """JSON with its keys in order, as the page writes it to find a saved answer."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def dumped(value: Any) -> str:
    """JSON without spaces; what is not finite stands by its name."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """A JSON value; numbers that are not finite become their names."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return json_number(value) if isinstance(value, float) else value


# ------------------------------------------------------------------------------------------- files


def page(trace: Any, title: str = "glassformer", most: int | None = None, **options: Any) -> str:
    """One HTML document with the page and the trace, ``most`` bytes at most; without ``most`` 5 MB
    where the page computes, 2 MB where it holds numbers. Raises UserError without the build."""
    sizes = [most or size for size in (MOST, COMPUTING)]
    frame_size = len(_with(title, "trace", "").encode())
    room, computing = ((size - frame_size) * 3 // 4 - 16 for size in sizes)
    need(
        room > 20_000,
        f"{sizes[0]:,} bytes are too few for the page and a trace; allow more.",
    )
    options.setdefault("computing", computing)
    return _with(title, "trace", base64.b64encode(container(trace, room, **options)).decode())


def live(start: Mapping[str, Any]) -> str:
    """The page as one document whose requests go to whoever holds its frame (serve/page/live.py), opened
    at ``start``."""
    return _with("glassformer", "live", dumped(start).replace("<", "\\u003c"))


def _with(title: str, kind: str, payload: str) -> str:
    """The page as one document, with what it holds in a script element."""
    script = built("inline.js").replace("</script", "<\\/script")
    style = built("app.css")
    head = f'<meta name="color-scheme" content="light dark"><style>{style}</style>'
    body = (
        '<div id="app"><noscript>This page is drawn by JavaScript, all of it in this '
        "file.</noscript></div>"
    )
    body += (
        '<script type="text/plain" '
        f'id="glassformer-{kind}">{payload}</script><script>{script}</script>'
    )
    return document(title, body, POLICY, head)


def built(name: str) -> str:
    """A file of the page's build. Raises UserError where it was not built."""
    try:
        return (resources.files("glassformer") / "static" / name).read_text(encoding="utf-8")
    except OSError:
        advice = "build it in web/ (npm ci, npm run build), or install the wheel"
        raise UserError(
            f"The page's build, glassformer/static/{name}, is missing here; {advice}."
        ) from None


def save(trace: Any, path: str | Path, **options: Any) -> Path:
    """Write the trace as one HTML file, or as safetensors (.safetensors) with every value of its
    plan."""
    target = Path(path).expanduser()
    if target.suffix.lower() in (".html", ".htm"):
        files.write(target, page(trace, target.stem, **options))
    elif target.suffix.lower() == ".safetensors":
        files.write(target, tensors_of(trace))
    else:
        raise UserError(
            f"{target} is neither .html nor .safetensors; give a name that ends in one of them."
        )
    return target


def tensors_of(trace: Any) -> bytes:
    """Every value of the plan in fp32 by its address, batch row left out, as safetensors."""
    arrays = {address: wire.TracePart(trace, address).to_array() for address in order(trace)}
    ids = trace.tokens[0].to(torch.int32).cpu().numpy()
    metadata = {"format": "glassformer.trace", "plan": dumped(answers.plan(trace))}
    return wire.packed({"tokens": ids, **arrays}, metadata)


def frame(trace: Any, **options: Any) -> str:
    """HTML for a notebook: the page in a frame of its own, and below it what a reader without
    scripts can read."""
    try:
        inside = page(trace, most=1_900_000, **options)
    except (
        UserError
    ) as error:  # no build of the page, or a text that is too long: what can be read is shown
        return f"{summary(trace)}<p>{html.escape(str(error))}</p>"
    quoted = inside.replace("&", "&amp;").replace('"', "&quot;")
    look = "width:100%;height:560px;border:1px solid #8888;border-radius:6px"
    markup = (
        f'<iframe sandbox="allow-scripts allow-downloads" style="{look}" '
        f'srcdoc="{quoted}"></iframe>'
    )
    return f"{markup}\n{summary(trace)}"


def summary(trace: Any) -> str:
    """The likeliest words after the last token as a table, and the last attention as a picture; no
    script."""
    ids = trace.tokens[0].tolist()
    tokenizer = trace.tokenizer
    lines = []
    if (head := trace.plan.head) is not None and tokenizer is not None:
        row = trace[head.at(len(ids) - 1)].float().softmax(-1)[: tokenizer.size]
        best = row.topk(min(5, len(row)))
        words = display_texts(tokenizer, best.indices.tolist())
        chances = [f"{chance:.4f}" for chance in best.values.tolist()]
        lines.append(TableFigure("", ("next", "p"), [*zip(words, chances, strict=True)]).html())
    if patterns := _patterns(trace):
        name = patterns[-1].id
        heads = torch.from_numpy(wire.TracePart(trace, name).to_array((64, 64)))
        texts = [display_texts(tokenizer, ids)]
        if trace.source is not None:
            texts.append(display_texts(trace.source_tokenizer, trace.source[0].tolist()))
        lines.append(next(Seen({name: heads[None]}, *texts).charts()).html())
    text = "" if tokenizer is None else f": {html.escape(tokenizer.decode(ids[:64]))}"
    inside = f'<div style="{BOX}">{"".join(lines)}</div>'
    return f"<details><summary>{len(ids)} tokens{text}</summary>{inside}</details>"
