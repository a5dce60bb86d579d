"""A recorded pass as a program: its sizes are those of a pass of any length, and it says where it has none."""

from __future__ import annotations

import json

import pytest
import torch

import tiny
from glassformer.sight.recording.program import program
from glassformer.sight.recording.trace import Trace
from seeding import generator_from

RECURRENT = {*tiny.RECURRENT, "reader", "mamba2", "qwen3_next", "rwkv", "rwkv7"}


def traced(cfg, length=20, beside=14, seed=5, **options):
    luck = generator_from(seed)
    model = tiny.model(cfg)
    ids = [torch.randint(cfg.embed.vocab, (1, n), generator=luck) for n in (length, beside)]
    return Trace(model, None, ids[0], ids[1] if cfg.has_source else None, **options)


def sized(entry, lengths):
    """An argument of the program for texts of these lengths."""
    if isinstance(entry, list):
        return [sized(item, lengths) for item in entry]
    if isinstance(entry, dict) and "size" in entry:
        constant, *slopes = entry["size"]
        return constant + sum(a * b for a, b in zip(slopes, lengths, strict=True))
    return entry


@pytest.mark.parametrize("name", sorted({*tiny.ALL, "diffllama"} - RECURRENT))
def test_sizes_are_those_of_a_pass_of_another_length(name):
    cfg = (tiny.ALL | tiny.SINKS)[name]
    trace = traced(cfg)
    written, arrays = program(trace)
    lengths = (14, 20) if cfg.has_source else (20,)
    written = json.loads(json.dumps(written))  # as a file holds it
    assert [op["id"] for op in written["plan"]] == [*trace.plan.ops]
    for op in written["plan"]:
        shape = [sized({"size": n} if isinstance(n, list) else n, lengths) for n in op["shape"]]
        assert shape == list(trace.plan[op["id"]].shape), op["id"]
    kinds = {leaf["address"]: leaf["kind"] for leaf in written["leaves"]}
    assert set(arrays) == {address for address, kind in kinds.items() if kind != "input"}
    entries = {entry["outputs"][0][0]: entry for entry in written["operations"]}
    needed = [x for x in trace.operations if x.outputs[0].address in entries]
    assert len(needed) == len(entries) > 20
    for operation in needed:
        entry = entries[operation.outputs[0].address]
        leaves = [
            x
            for leaf in operation.leaves
            for x in ((leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else (leaf,))
        ]
        numbers = [x for x in leaves if type(x) is int]
        arguments = [entry["args"], *entry["kwargs"].values()]
        flat = [x for x in flattened(arguments, lengths) if type(x) is int]
        assert entry["name"] == operation.name and flat == numbers, operation.outputs[0].address


def flattened(entry, lengths):
    if isinstance(entry, dict) and "size" not in entry and "value" not in entry:
        entry = list(entry.values())
    if isinstance(entry, list):
        return [x for item in entry for x in flattened(item, lengths)]
    return [None if isinstance(entry, dict) and "value" in entry else sized(entry, lengths)]


def test_weights_are_exact_in_half_precision_or_whole():
    trace = traced(tiny.ALL["llama"])
    with torch.no_grad():
        trace.model.get_parameter("embed.token.weight").copy_(
            trace.model.get_parameter("embed.token.weight").half().float()
        )
    _, arrays = program(trace)
    assert arrays["embed.token.weight"].dtype == "float16"
    for address, array in arrays.items():
        if not address.startswith("constant"):
            tensor = trace.value(address).tensor
            assert torch.equal(torch.from_numpy(array).to(tensor.dtype), tensor), address


@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_steps_that_follow_the_text_have_none(name):
    assert program(traced(tiny.ALL[name], 12, 12)) is None


def test_half_precision_and_edits_have_none():
    cfg = tiny.ALL["gpt2"]
    model, ids = tiny.model(cfg), torch.arange(9)[None]
    assert program(Trace(model, None, ids)) is not None
    edit = {"decoder.blocks.0.resid": lambda path, x: x}
    assert program(Trace(model, None, ids, edits=edit)) is None
    assert program(Trace(model.bfloat16(), None, ids)) is None


def test_another_way_for_a_long_text_has_none(monkeypatch):
    """Only the longest pass shows it."""
    cfg = tiny.ALL["gpt2"]
    model, ids = tiny.model(cfg), torch.arange(9)[None]
    norm = model.decoder.last_norm
    before = type(norm).forward

    def forward(self, x):
        return before(self, x.neg().neg() if self is norm and x.shape[1] > 40 else x)

    monkeypatch.setattr(type(norm), "forward", forward)
    assert program(Trace(model, None, ids)) is None


def test_sizes_that_follow_the_numbers_have_none(monkeypatch):
    cfg = tiny.ALL["gpt2"]
    model, ids = tiny.model(cfg), torch.arange(9)[None]
    norm = model.decoder.last_norm
    before = type(norm).forward

    def forward(self, x):
        if self is not norm:
            return before(self, x)
        return before(self, x) + 0 * x[x > 0].nonzero().float().mean()

    monkeypatch.setattr(type(norm), "forward", forward)
    assert program(Trace(model, None, ids)) is None
