"""Ring attention on several processes equals one process: logits and gradients of every family."""

from __future__ import annotations

import pytest
import torch

import tiny
from axes import FAMILIES, LENGTHS, result, row, worst
from glassformer.config.parallel import Parallel
from glassformer.errors import UserError
from glassformer.nn import Tape, build_model
from glassformer.parallel import ring as rings
from glassformer.parallel.collectives import summed
from glassformer.parallel.mesh import Mesh
from tiny import ALL, DECODERS, tokens


def compare(mesh, names, scene, length, double):
    """The largest difference of logits, and of gradients beside their size, for each family."""
    ring, found = rings.Ring(mesh.group("context")), {}
    torch.manual_seed(0)
    for name in names:
        cfg = FAMILIES[name]
        one, shared = (build_model(cfg, seed=1, dtype=torch.float64 if double else None).eval() for _ in range(2))
        ring.attach(shared, training=False)
        given, kept = row(cfg, scene, length)
        weigh = torch.randn(2, length, tiny.VOCAB, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        weigh = (weigh / length).to(next(one.parameters()).dtype)
        wanted, grads = result(one, given, kept, weigh, given.numel())
        mine = {k: ring.cut(v, rings.FILL.get(k, -1)) for k, v in kept.items()}
        local = ring.cut(given, 0)
        logits, own = result(shared, local, mine, ring.cut(weigh, 0), int((ring.cut(given) >= 0).sum()))
        whole = ring.join(logits)[:, :length]
        far = (whole - wanted).abs().max() / wanted.abs().max()
        found[name] = [float(far), worst({path: summed(own[path], ring.group) for path in grads}, grads)]
    return found


def run(mesh, **given):
    """``compare`` with all processes on the context axis."""
    return compare(Mesh(Parallel(data=1, context=mesh.size), mesh.rank), **given)


def near(processes, scene, length, double, names=tuple(FAMILIES)):
    bound = 1e-12 if double else 1e-5
    for answer in processes.call(run, names=names, scene=scene, length=length, double=double):
        assert len(answer) == len(names)
        assert not {name: far for name, far in answer.items() if not max(far) < bound}


@pytest.mark.parametrize("scene", ["packed", "padded"])
def test_every_family_in_fp64(two, scene):
    near(two, scene, LENGTHS[0], double=True)


def test_every_kind_of_mask_and_bias_in_fp32_over_several_blocks(two):
    near(two, "prefix", LENGTHS[1], False, ["mixed", "gemma2", "t5", "alibi", "onward", "glass", "mixtral"])


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
    ("cfg", "word"),
    [
        (DECODERS["gru"], "recurrent"),
        (ALL["bahdanau"], "recurrent"),
        (ALL["bert"], "pool"),
        (DECODERS["noisy"], "capacity"),
    ],
)
def test_what_reads_a_whole_row_is_refused(cfg, word):
    with pytest.raises(UserError, match=word):
        rings.check(cfg)


def patterns(mesh):
    """What a tape is told of attention patterns that no process has whole."""
    model = tiny.model(DECODERS["llama"])
    ring = rings.Ring(Mesh(Parallel(data=1, context=mesh.size), mesh.rank).group("context"))
    ring.attach(model)
    try:
        model(tokens(1, 8), pos=torch.arange(8)[None], tape=Tape("*.pattern"))
    except UserError as error:
        return str(error)


def test_patterns_are_not_shown_of_a_shard(two):
    assert all("one process" in answer for answer in two.call(patterns))
