"""Ring attention on several processes equals one process: logits and gradients of every family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.config.parallel import Parallel
from glassformer.errors import UserError
from glassformer.nn import EncoderDecoder, Tape, build_model
from glassformer.parallel import ring as rings
from glassformer.parallel.mesh import Mesh
from tiny import ALL, DECODERS, tokens

LENGTHS = 22, 150  # one fills no shard, the other is several blocks of the engine


def longer(cfg):
    """The same for rows of 150, without a pool."""
    table = c.Learned(LENGTHS[1])
    stacks = {n: replace(s, position=table) for n, s in c.stacks(cfg).items() if isinstance(s.position, c.Learned)}
    return replace(cfg, pool=None, **stacks)


FAMILIES = {name: longer(cfg) for name, cfg in ALL.items() if not c.recurrent(cfg)}


def row(cfg, scene, length):
    """Tokens and what else a model is given of a row; and that of its source."""
    given = tokens(2, length)
    pos = torch.arange(length).expand(2, -1).clone()
    kept = {"pos": pos}
    if scene == "packed":
        border = torch.tensor([[length // 3], [length // 2]])
        kept["document_ids"] = (pos >= border).long()
        kept["pos"] = torch.where(pos >= border, pos - border, pos)
    if scene == "padded":
        kept["pos"] = torch.stack((pos[0], torch.cat((torch.full((5,), -1), pos[1, :-5]))))
    if scene == "prefix" and isinstance(cfg, c.Decoder):
        kept["prefix"] = pos < torch.tensor([[4], [length // 2]])
    if isinstance(cfg, c.EncoderDecoder):
        kept["source"] = tokens(2, 13, seed=5)
        kept["source_pos"] = torch.arange(13).expand(2, -1).clone()
        if scene == "padded":
            kept["source_pos"][0, 9:] = -1
        if scene == "packed":
            kept["source_document_ids"] = (kept["source_pos"] > 6).long()
    if getattr(cfg.embed, "segments", 0):
        kept["segments"] = (pos > 7).long()
    return given, kept


def result(model, given, kept, weigh, count):
    """Logits, and the gradients of a weighted sum of them and of the auxiliary losses."""
    model.zero_grad()
    source = (kept["source"],) if isinstance(model, EncoderDecoder) else ()
    out = model(given, *source, **{name: x for name, x in kept.items() if name != "source"})
    real = (kept["pos"] >= 0)[..., None]
    loss = (out.logits * weigh * real).sum() + sum(out.aux.values()) * count
    loss.backward()
    return (out.logits * real).detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


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
        loudest = max(float(grad.abs().max()) for grad in grads.values())
        worst = 0.0
        for path, grad in grads.items():
            got = own[path].clone()
            torch.distributed.all_reduce(got, group=ring.group)
            size = max(float(grad.abs().max()), loudest / 100)  # the bias of keys has none: what is there is rounding
            worst = max(worst, float((got - grad).abs().max()) / size)
        found[name] = [float(far), worst]
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
