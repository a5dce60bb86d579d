"""Experts on several processes, each with rows of its own, equal one process that accumulates their
gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from axes import LENGTHS, result, row, worst
from glassformer import config as c
from glassformer.core.errors import UserError
from glassformer.core.nn import Tape, build_model
from glassformer.scale import experts
from glassformer.scale.collectives import summed
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from tiny import DECODERS, tokens


def mixture(**kwargs):
    return tiny.decoder(tiny.block(feedforward=c.MoE(4, 2, c.GatedMLP(32, bias=True), **kwargs)))


MIXTURES = {
    "mixtral": DECODERS["mixtral"],
    "shared": mixture(shared=c.MLP(24)),
    "capped": mixture(capacity_factor=1.0, balance_loss=0.01, z_loss=0.01),
    "lopsided": mixture(),
}


def compare(mesh, double, scene):
    """The largest differences of logits, losses and gradients, and the share of dropped choices,
    for each mixture."""
    layout = Parallel(data=mesh.size // 2, expert=2)
    axes = Mesh(layout, mesh.rank)
    group, actual_result = axes.group("expert"), {}
    rows = axes.group("data", "expert")
    copies = axes.group("data")
    for name, cfg in MIXTURES.items():
        item, shared = (
            build_model(cfg, seed=1, dtype=torch.float64 if double else None).train()
            for _ in range(2)
        )
        if name == "lopsided":  # all rows go to the experts of the first process
            for model in (item, shared):
                for block in model.decoder.blocks:
                    block.ffn.router.weight.data[2:] = 0
                    block.ffn.router.weight.data[:2] *= 30
        cuts = experts.split_model(shared, group)
        pieces = [row(cfg, scene, LENGTHS[0] + 2 * number) for number in range(mesh.size)]
        sums, outs = {}, []
        for args, saved in pieces:
            logits, grads = result(item, args, saved, 0.1, args.numel())
            outs.append(logits)
            sums = {path: sums.get(path, 0) + grad for path, grad in grads.items()}
        args, saved = pieces[axes.row]
        logits, second_pieces = result(shared, args, saved, 0.1, args.numel())
        expected = outs[axes.row]
        totals = {
            path: summed(grad, rows) for path, grad in second_pieces.items() if path not in cuts
        }
        for path in cuts:
            totals[path] = (
                second_pieces[path] if copies is None else summed(second_pieces[path], copies)
            )
        sums = {path: cuts[path].of(grad) if path in cuts else grad for path, grad in sums.items()}
        dropped = float(shared(args, **saved).metrics["dropped"].max())
        actual_result[name] = [
            float((logits - expected).abs().max() / expected.abs().max()),
            worst(totals, sums),
            dropped,
        ]
    return actual_result


@pytest.mark.parametrize(("double", "scene"), [(True, "plain"), (False, "padded")])
def test_every_mixture(two, double, scene):
    check(two.call(compare, double=double, scene=scene), double)


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
def test_every_mixture_with_two_copies_of_the_experts(four, double):
    check(four.call(compare, double=double, scene="packed"), double)


def check(answers, double):
    for answer in answers:
        assert all(max(far[:2]) < (1e-12 if double else 1e-5) for far in answer.values()), answer
        assert answer["capped"][2] > 0 == answer["mixtral"][2], (
            "capacity drops some, the others none"
        )


def bare(mesh):
    """Results of the eager engine and a decode step beside one process, and the tape's values."""
    cfg, group = MIXTURES["shared"], Mesh(Parallel(expert=2).of(2), mesh.rank).group("expert")
    item, shared = (build_model(cfg, seed=1, dtype=torch.float64).eval() for _ in range(2))
    experts.split_model(shared, group)
    far = []
    with torch.no_grad():
        for engine, length in (("eager", 9), ("auto", 1)):
            item.engine = shared.engine = engine
            second_tokens = tokens(1, length, seed=mesh.rank)
            far.append(
                float((item(second_tokens).logits - shared(second_tokens).logits).abs().max())
            )
        try:
            shared(tokens(1, 9), tape=Tape("*.hidden"))
        except UserError as error:
            return [*far, str(error)]


def test_other_ways_through_a_mixture(two):
    for eager, decode, message in two.call(bare):
        assert max(eager, decode) < 1e-12 and "one process" in message


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="4 experts cannot be shared out"):
        experts.check(DECODERS["mixtral"], 3)
    with pytest.raises(UserError, match="no mixture"):
        experts.check(DECODERS["llama"], 2)
    experts.check(replace(DECODERS["mixtral"], context=32), 2)
