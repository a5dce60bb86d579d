"""Experts on several processes, each with rows of its own, equal one process that accumulates their
gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from axes import LENGTHS, along, cut, differences, result, row, twins
from glassformer import config as c
from glassformer.core.errors import UserError
from glassformer.core.nn import Tape
from glassformer.families.routed import RoutedMoE, ScaledInputMoE
from glassformer.scale import expert_parallel
from glassformer.scale.collectives import summed
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from mistakes import mistake
from tiny import DECODERS, tokens


def mixture(**kwargs):
    return tiny.decoder(tiny.block(feedforward=c.MoE(4, 2, c.GatedMLP(32, bias=True), **kwargs)))


MIXTURES = {
    "mixtral": DECODERS["mixtral"],
    "shared": mixture(shared=c.MLP(24)),
    "capped": mixture(capacity_factor=1.0, balance_loss=0.01, z_loss=0.01),
    "lopsided": mixture(),
    "routed": tiny.decoder(
        tiny.block(feedforward=RoutedMoE(4, 2, c.GatedMLP(16), correction=False, scale=2.0)),
        tiny.block(
            feedforward=ScaledInputMoE(4, 1, c.GatedMLP(16), correction=False, normalize=False)
        ),
    ),
}


def compare(mesh, double, scene):
    """Differences of logits and gradients, and the share of dropped choices, for each mixture."""
    axes = Mesh(Parallel(data=mesh.size // 2, expert=2), mesh.rank)
    answers = {}
    rows = axes.group("data", "expert")
    copies = axes.group("data")
    for name, cfg in MIXTURES.items():
        alone, shared = models = [model.train() for model in twins(cfg, double)]
        if name == "lopsided":  # all rows go to the experts of the first process
            for block in (block for model in models for block in model.decoder.blocks):
                block.ffn.router.weight.data[2:] = 0
                block.ffn.router.weight.data[:2] *= 30
        cuts = expert_parallel.split_model(shared, axes.group("expert"))
        pieces = [row(cfg, scene, LENGTHS[0] + 2 * number) for number in range(mesh.size)]
        results = [result(alone, args, saved, 0.1, args.numel()) for args, saved in pieces]
        sums = {path: sum(grads[path] for _, grads in results) for path in results[0][1]}
        args, saved = pieces[axes.row]
        logits, totals = result(shared, args, saved, 0.1, args.numel())
        for path, grad in totals.items():
            group = copies if path in cuts else rows
            totals[path] = grad if group is None else summed(grad, group)
        answers[name] = [
            *differences((logits, totals), (results[axes.row][0], cut(sums, cuts))),
            float(shared(args, **saved).metrics["dropped"].max()),
        ]
    return answers


@pytest.mark.parametrize("double, scene", [(True, "plain"), (False, "padded")])
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
    alone, shared = models = twins(MIXTURES["shared"])
    expert_parallel.split_model(shared, along(mesh, "expert").group("expert"))
    far = []
    with torch.no_grad():
        for engine, length in (("eager", 9), ("auto", 1)):
            alone.engine = shared.engine = engine
            expected, logits = (model(tokens(1, length, seed=mesh.rank)).logits for model in models)
            far.append(float((expected - logits).abs().max()))
        try:
            shared(tokens(1, 9), tape=Tape("*.hidden"))
        except UserError as error:
            return [*far, str(error)]


def test_other_ways_through_a_mixture(two):
    for eager, decode, message in two.call(bare):
        assert max(eager, decode) < 1e-12
        assert "one process" in message


def test_what_does_not_fit_is_refused():
    with mistake("4 experts cannot be shared out"):
        expert_parallel.check(DECODERS["mixtral"], 3)
    with mistake("no mixture"):
        expert_parallel.check(DECODERS["llama"], 2)
    expert_parallel.check(replace(DECODERS["mixtral"], context=32), 2)
