"""A trace as a page reads it: the tokens with their bytes, the plan with words, a cell with where
it goes from here."""

from __future__ import annotations

import base64
import dataclasses
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..core import config
from ..core.config.model import shapes
from ..core.files import JsonObject
from . import wording

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

ABILITIES = (
    "generate",
    "fill",
    "source",
    "experts",
    "pool",
    "lens",
    "attention",
    "attribution",
    "edits",
    "chat",
)
CONTEXT = 4096  # tokens that a model is given which does not say how many it reads


def card(cfg: config.Model) -> JsonObject:
    """Facts about a model that need no weights: its kind, sizes, and what can be asked
    of it."""
    nodes = list(_walk(cfg))
    recurrent = any(isinstance(node, config.Recurrent) for node in nodes)
    pair = cfg.has_source
    encoder = cfg.is_encoder
    kind = (
        "encoder-decoder"
        if pair
        else "encoder"
        if encoder
        else "recurrent"
        if recurrent
        else "decoder"
    )
    head = cfg.head is not None
    can = {
        "generate": head and not encoder,
        "fill": head and encoder,
        "source": pair,
        "experts": any(isinstance(node, config.MoE) for node in nodes),
        "pool": cfg.pool is not None,
        "lens": head,
        "attention": any(isinstance(node, config.Attention) for node in nodes),
        "attribution": head and not recurrent,
        "edits": True,
        "chat": False,  # who knows its tokenizer says more
    }
    sizes = {
        "parameters": sum(map(math.prod, shapes(cfg).values())),
        "context": cfg.context,
        "vocab": cfg.embed.vocab,
    }
    return {"kind": kind, **sizes, "abilities": can}


def module_card(module: Any, tokenizer: Tokenizer | None, **abilities: bool) -> JsonObject:
    """The same of a module that is not ours; what is not among ``abilities`` cannot be asked."""
    cfg = getattr(module, "config", None)
    generates = getattr(module, "can_generate", bool)()
    pair = getattr(cfg, "is_encoder_decoder", False)
    kind = "encoder-decoder" if pair else "decoder" if generates else "encoder"
    fills = kind == "encoder" and tokenizer is not None and tokenizer.mask is not None
    can = dict.fromkeys(ABILITIES, False) | abilities | {"fill": fills}
    return {
        "kind": "module" if cfg is None else kind,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "context": getattr(cfg, "max_position_embeddings", None) or CONTEXT,
        "vocab": getattr(cfg, "vocab_size", None) or 0,
        "abilities": can,
    }


def _walk(node: Any) -> Iterator[Any]:
    """A config and every part of it."""
    if dataclasses.is_dataclass(node):
        yield node
        for field in dataclasses.fields(node):
            yield from _walk(getattr(node, field.name))
    elif isinstance(node, tuple):
        for item in node:
            yield from _walk(item)


def tokens(
    tokenizer: Tokenizer | None,
    ids: Sequence[int],
    spans: Mapping[int, tuple[int, int]] | None = None,
) -> list[JsonObject]:
    """Each token's id, bytes (base64: it may be a part of a character), span in characters, whether
    special or unknown.

    ``spans``: of the places that stand for a piece of the text; the others stand for nothing of it.
    """
    entries = []
    for place, id in enumerate(ids):
        start, end = (spans or {}).get(place, (0, 0))
        raw = b"" if tokenizer is not None else str(id).encode()
        special = False
        unknown = False
        if tokenizer is not None and id < tokenizer.size:
            special = tokenizer.hides(id)
            unknown = id == tokenizer.unk
            raw = (
                tokenizer.token(id).encode()
                if special
                else tokenizer.bytes_of(id, start == 0 and end > 0)
            )
        entries.append(
            {
                "id": id,
                "bytes": base64.b64encode(raw).decode(),
                "start": start,
                "end": end,
                "special": special,
                "unk": unknown,
            }
        )
    return entries


def vocabulary(tokenizer: Tokenizer) -> bytes:
    """For each id its length as uint32, little-endian, and its bytes; special tokens by their
    name."""
    chunks = []
    for id in range(tokenizer.size):
        raw = tokenizer.token(id).encode() if tokenizer.hides(id) else tokenizer.bytes_of(id)
        chunks += [struct.pack("<I", len(raw)), raw]
    return b"".join(chunks)


def spans(
    tokenizer: Tokenizer | None, ids: Sequence[int], text: str | None
) -> dict[int, tuple[int, int]]:
    """Character range in ``text`` of each of ``ids``, by its position; what was put around the text
    has no place in it."""
    if tokenizer is None or not text:
        return {}
    for special in (False, True):
        inside = tokenizer.encode(text, special=special)
        offsets = tokenizer.offsets(text, special=special)
        for shift in range(len(ids) - len(inside) + 1):
            if inside and list(ids[shift : shift + len(inside)]) == inside:
                return {shift + at: span for at, span in enumerate(offsets)}
    short = tokenizer.encode(text)  # cut at the context
    lead = next(
        (at for at in range(min(3, len(ids))) if list(ids[at:]) == short[: len(ids) - at]), None
    )
    if lead is None:
        return {}
    return dict(enumerate(tokenizer.offsets(text)[: len(ids) - lead], lead))


def plan(trace: Any) -> list[JsonObject]:
    """The operations as JSON holds them, each with its words, its other names and whether it grows
    with the square."""
    return [
        {
            **op.to_dict(),
            "words": wording.of_value(op.id, op.kind),
            "quadratic": op.quadratic,
            "names": trace.names.get(op.id, []),
        }
        for op in trace.plan
    ]


def run(trace: Any, places: Mapping[int, tuple[int, int]], source: str | None) -> JsonObject:
    """Description of a pass for the page; ``places`` are where its tokens stand in the text, before
    edits."""
    ids = trace.tokens[0].tolist()
    model_card = trace.card()
    dtypes = (str(parameter.dtype) for parameter in trace.module.parameters())
    payload: JsonObject = {
        "task": {"encoder": "masked", "encoder-decoder": "seq2seq"}.get(
            model_card["kind"], "causal"
        ),
        "kind": model_card["kind"],
        "abilities": model_card["abilities"],
        "dtype": next(dtypes, "torch.float32").removeprefix("torch."),
        "streams": [
            {
                "name": "encoder" if model_card["kind"] == "encoder" else "decoder",
                "length": len(ids),
            }
        ],
        "tokens": tokens(trace.tokenizer, ids, places),
        "plan": plan(trace),
        "weights": {name: list(trace.shape(name)[0]) for name in trace.plan.weights},
        "kept": {"tier": trace.tier, "bytes": trace.kept_bytes},
        "ms": 1000 * trace.seconds,
    }
    if trace.source is not None:
        source_ids = trace.source[0].tolist()
        payload["streams"].insert(0, {"name": "encoder", "length": len(source_ids)})
        reads = trace.source_tokenizer
        payload["source_tokens"] = tokens(reads, source_ids, spans(reads, source_ids, source))
    return payload


def experts(
    trace: Any, pass_lock: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> JsonObject:
    """Each mixture's experts with their loads, and each token's choice with its weight; ``held``
    while one is read."""
    layers = []
    for path in [op.id.removesuffix(".router") for op in trace.plan if op.kind == "router"]:
        with pass_lock():
            chosen = trace[f"{path}.chosen"][0].long()
            weight = trace[f"{path}.weight"][0].float()
            chance = trace[f"{path}.router_probs"][0].float()
        count = chance.shape[-1]
        load = chosen.flatten().bincount(minlength=count)
        layers.append(
            {
                "address": path,
                "layer": trace.plan[f"{path}.router"].layer,
                "experts": count,
                "chosen": chosen.tolist(),
                "weight": weight.tolist(),
                "probabilities": chance.tolist() if chance.numel() <= 65_536 else None,
                "load": load.tolist(),
                "idle": int((load == 0).sum()),
            }
        )
    return {
        "layers": layers,
        "idle": sum(layer["idle"] for layer in layers),
        "of": sum(layer["experts"] for layer in layers),
    }


def cell(trace: Any, address: str, terms: int) -> JsonObject:
    """The arithmetic of a number, or of the largest of a row; ``next`` are the operations that read it,
    ``python`` the line that gives it."""
    if trace[address].numel() > 1:
        address = trace.largest(address)
    explanation = trace.explain(address)
    payload = explanation.to_dict(terms)
    if payload["kind"] in ("input", "constant", "created"):
        payload["kind"] = "leaf"
    name, _, index = payload["address"].partition("[")
    readers = [op.id for op in trace.plan if name in op.inputs]
    rows = "".join(f"[{axis}]" for axis in index.rstrip("]").split(",")) if index else ""
    op = trace.plan.get(name)
    row = "[0]" if op is not None and op.value.batch else ""
    summary = {
        "plain": payload["sentence"],
        "place": payload["place"],
        "value": "a weight" if op is None else wording.of_value(op.id, op.kind),
    }
    return {
        **payload,
        "words": summary,
        "next": readers,
        "weights": {},
        "python": f"trace[{name!r}]{row}{rows}",
    }
