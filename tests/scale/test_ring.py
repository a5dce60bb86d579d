"""Ring attention on several processes equals one process: logits and gradients of every family."""

from __future__ import annotations

import pytest
import torch

import tiny
from axes import FAMILIES, LENGTHS, along, check_near, differences, result, row, twins
from glassformer.core.errors import UserError
from glassformer.core.nn import Tape
from glassformer.scale import ring as rings
from glassformer.scale.collectives import summed
from mistakes import mistake
from seeding import generator_from
from tiny import ALL, DECODERS, tokens


def compare(mesh, names, scene, length, double):
    """Differences of each family with all processes on the context axis."""
    ring = rings.Ring(along(mesh, "context").group("context"))
    answers = {}
    for name in names:
        alone, shared = twins(FAMILIES[name], double)
        ring.attach(shared, training=False)
        args, saved = row(FAMILIES[name], scene, length)
        draw = generator_from(3)
        weigh = torch.randn(2, length, tiny.VOCAB, generator=draw, dtype=torch.float64) / length
        weigh = weigh.to(next(alone.parameters()).dtype)
        expected = result(alone, args, saved, weigh, args.numel())
        local = {key: ring.cut(value, rings.FILL.get(key, -1)) for key, value in saved.items()}
        count = int((ring.cut(args) >= 0).sum())
        logits, grads = result(shared, ring.cut(args, 0), local, ring.cut(weigh, 0), count)
        grads = {path: summed(grads[path], ring.group) for path in expected[1]}
        answers[name] = differences((ring.join(logits)[:, :length], grads), expected)
    return answers


# ESM counts the masked tokens of a whole text, so it is refused here.
RINGS = tuple(name for name in FAMILIES if name != "esm")


def near(processes, scene, length, double, names=RINGS):
    fields = {"names": names, "scene": scene, "length": length, "double": double}
    check_near(processes.call(compare, **fields), names, 1e-12 if double else 1e-5)


@pytest.mark.parametrize("scene", ["packed", "padded"])
def test_every_family_in_fp64(two, scene):
    near(two, scene, LENGTHS[0], double=True)


def test_every_kind_of_mask_and_bias_in_fp32_over_several_blocks(two):
    near(
        two,
        "prefix",
        LENGTHS[1],
        False,
        ["mixed", "gemma2", "t5", "alibi", "onward", "glass", "mixtral"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scene", ["plain", "packed", "padded", "prefix"])
def test_every_family_on_four_processes(four, scene, length, double):
    near(four, scene, length, double)


def test_columns_are_shared_out_once_and_put_together_again():
    for size in (1, 2, 3, 4):
        shards = []
        for rank in range(size):
            ring = rings.Ring.__new__(rings.Ring)
            ring.rank, ring.size = rank, size
            shards.append(ring.columns(24))
        assert sorted(torch.cat(shards).tolist()) == list(range(24))
        causal = [int((shard + 1).sum()) for shard in shards]
        assert max(causal) == min(causal), "all have as many pairs to compute"


@pytest.mark.parametrize(
    "cfg, word",
    [
        (DECODERS["gru"], "recurrent"),
        (ALL["bahdanau"], "recurrent"),
        (ALL["bert"], "pool"),
        (DECODERS["noisy"], "capacity"),
    ],
)
def test_what_reads_a_whole_row_is_refused(cfg, word):
    with mistake(word):
        rings.check(cfg)


def patterns(mesh):
    """Tape's values of attention patterns that no process has completely."""
    model = tiny.model("llama")
    rings.Ring(along(mesh, "context").group("context")).attach(model)
    try:
        model(tokens(1, 8), pos=torch.arange(8)[None], tape=Tape("*.pattern"))
    except UserError as error:
        return str(error)


def test_patterns_are_not_shown_of_a_shard(two):
    assert all("one process" in answer for answer in two.call(patterns))


def test_keys_come_from_the_process_before():
    ring = object.__new__(rings.Ring)
    ring.rank, ring.size = 1, 4
    assert [ring.shard_owner(step) for step in range(4)] == [1, 0, 3, 2]
