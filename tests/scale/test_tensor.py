"""Matrices in parts on several processes equal one process: logits, loss and gradients of every
family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import Linear

import tiny
from axes import (
    FAMILIES,
    LENGTHS,
    along,
    check_near,
    cut,
    differences,
    gradients,
    result,
    row,
    twins,
    worst,
)
from glassformer import config as c
from glassformer.core.config.objective import LoRA
from glassformer.core.errors import UserError
from glassformer.core.nn import makers
from glassformer.core.training.loss import token_loss
from glassformer.families.disentangled import DisentangledAttention, RelativeEmbedding
from glassformer.families.gated_expert import GatedExpert
from glassformer.families.latent import LatentAttention
from glassformer.families.longformer import GlobalTokens, LongformerAttention, SideTable
from glassformer.families.mechanisms import (
    FirstBlock,
    LearnedWithBias,
    LoopedStack,
    MaskedEmbed,
    StoredRotary,
)
from glassformer.families.mixers import (
    ChannelMix,
    ChannelMix7,
    DifferentialAttention,
    GatedAttention,
    GatedDelta,
    Mamba2,
    ShortConv,
    TimeMix,
    TimeMix7,
    TunedAttention,
)
from glassformer.families.routed import RoutedMoE, ScaledInputMoE
from glassformer.families.sinks import ClampedMoE, SinkAttention
from glassformer.families.sparse_mixer import SparseMixerMoE
from glassformer.formats import tuning
from glassformer.scale import tensor
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.shard import cuts_of, shard
from mistakes import mistake
from seeding import generator_from
from tiny import ALL, DECODERS, tokens

EVERY = {**FAMILIES, **{name: cfg for name, cfg in ALL.items() if cfg.recurrent}}


def fits(cfg, pieces):
    try:
        tensor.check(cfg, pieces)
    except UserError:
        return False
    return True


def compare(mesh, names, scene, double):
    """Differences of logits and gradients, of the gradients put together again, and of the loss
    with its gradients, for each family."""
    group = along(mesh, "tensor").group("tensor")
    answers = {}
    length = LENGTHS[0]
    draw = generator_from(3)
    weigh = torch.randn(2, length, 60, generator=draw, dtype=torch.float64) / length
    for name in names:
        cfg = EVERY[name]
        alone, shared = models = twins(cfg, double)
        cuts = tensor.split_model(shared, group)
        args, saved = row(cfg, scene, length)
        weights = weigh[..., : cfg.embed.vocab].to(next(alone.parameters()).dtype)
        expected, (logits, pieces) = (
            result(model, args, saved, weights, args.numel()) for model in models
        )
        full = {
            path: cuts[path].gather(x, group) if path in cuts else x for path, x in pieces.items()
        }
        losses = []
        for model in models:
            model.zero_grad()
            out = model(args, **saved, logits="none")
            targets = tokens(2, length, seed=9).where(saved["pos"] > 2, -1)
            loss = token_loss(model, out, targets, 0.1)
            (loss.sum / loss.count).backward()
            losses.append((loss.sum.detach(), gradients(model)))
        losses[0] = losses[0][0], cut(losses[0][1], cuts)
        answers[name] = [
            *differences((logits, pieces), (expected[0], cut(expected[1], cuts))),
            *differences((logits, full), expected),
            *differences(losses[1], losses[0]),
        ]
    return answers


def near(processes, scene, double, pieces):
    names = [name for name, cfg in EVERY.items() if fits(cfg, pieces)]
    answers = processes.call(compare, names=names, scene=scene, double=double)
    check_near(answers, names, 1e-12 if double else 1e-5)
    assert len(names) > 15


def test_every_family_in_fp64(two):
    near(two, "packed", True, 2)


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("scene", ["plain", "padded", "prefix"])
def test_every_family(two, four, scene, double):
    near(two, scene, double, 2)
    near(four, scene, double, 4)


LAYERS = (".q", ".v", ".out", ".up", ".down")  # beside which a change stands, where there are any


def dropped(mesh, names, adapted):
    """Differences while a tenth of patterns and of the stream are dropped, with or without a change
    beside every layer that is cut, a tenth of whose input is dropped too."""
    group = along(mesh, "tensor").group("tensor")
    answers = {}
    for name in names:
        cfg = EVERY[name]
        results = []
        cfg = replace(cfg, **{n: replace(stack, dropout=0.1) for n, stack in cfg.stacks.items()})
        models = [model.train() for model in twins(cfg)]
        paths = [name for name, layer in models[0].named_modules() if isinstance(layer, Linear)]
        paths = tuple(name for name in paths if name.endswith(LAYERS))
        for model in models if adapted else ():
            tuning.tune(model, LoRA(rank=3, dropout=0.1, target_modules=paths))
            draw = generator_from(2)
            for layer in tuning.adapted(model).values():
                layer.up.data.normal_(generator=draw)
        cuts = tensor.split_model(models[1], group)
        args, saved = row(cfg, "packed", LENGTHS[not adapted])
        for model in models:
            torch.manual_seed(4)
            results.append(result(model, args, saved, 0.1, 1))
        (logits, grads), pieces = results
        assert not adapted or (
            len(grads) >= 16 and all(n.endswith((".down", ".up")) for n in grads)
        )
        answers[name] = differences(pieces, (logits, cut(grads, cuts)))
    return answers


@pytest.mark.parametrize(
    "adapted, names",
    [
        (False, ["gpt2", "llama", "gemma2", "t5", "alibi", "vaswani"]),
        (True, ["gpt2", "llama", "vaswani"]),
    ],
)
def test_each_head_drops_what_it_drops_on_one_process(two, adapted, names):
    """Causal blocks, groups, capped scores, biases, across: each by its engine; adapters are cut
    with their layers."""
    check_near(two.call(dropped, names=names, adapted=adapted), names)


WHOLE = {
    "norms work on the whole residual stream": (c.LayerNorm, c.RMSNorm),
    "functions of positions": (c.NoPosition, c.Sinusoidal, c.Learned, c.Rotary),
    "frequencies": (
        c.LinearScaling,
        c.Llama3Scaling,
        c.YarnScaling,
        c.LongRopeScaling,
    ),
    "rules over positions": (
        *(
            c.Full,
            c.Causal,
            c.Prefix,
            c.Window,
            c.Every,
            c.Chunk,
            c.Tail,
        ),
        *(c.Strided, c.Fixed, c.Both, c.Either),
    ),
    "made of others": (
        c.Block,
        c.Stack,
        c.Decoder,
        c.Encoder,
        c.EncoderDecoder,
        c.Init,
        FirstBlock,
        LearnedWithBias,
        LoopedStack,
    ),
    "a few rows": (c.Pool, c.TokenHead),
    "few families have it": (
        LatentAttention,
        DisentangledAttention,
        RelativeEmbedding,
        LongformerAttention,
        GlobalTokens,
        SideTable,
        RoutedMoE,
        ScaledInputMoE,
        SinkAttention,
        ClampedMoE,
        SparseMixerMoE,
        DifferentialAttention,
        GatedAttention,
        TunedAttention,
        GatedExpert,
        MaskedEmbed,
        StoredRotary,
    ),
    "a step needs all of the state": (
        ShortConv,
        Mamba2,
        GatedDelta,
        TimeMix,
        ChannelMix,
        TimeMix7,
        ChannelMix7,
        c.Recurrent,
        c.GRU,
        c.LSTM,
        c.Summary,
        c.Additive,
    ),
}
"""What every process has and computes as a whole, and why."""


def test_every_config_type_is_in_the_table_or_declared_whole():
    kinds = [kind for kinds in WHOLE.values() for kind in kinds]
    assert len(kinds) == len(set(kinds))
    assert not set(kinds) & tensor.TABLE.keys()
    assert {kind for kind in makers() if kind.__module__.startswith("glassformer.")} == set(
        kinds
    ) | tensor.TABLE.keys()


def own_part(mesh, output):
    """Parameters of a user's own feed-forward here, and the differences."""
    import own_parts

    module = own_parts.ReluSquaredModule
    module.columns, module.rows = (("up",), ("down",)) if output else ((), ())
    cfg = tiny.decoder(tiny.block(c.Attention(4), own_parts.ReluSquared(64)))
    models = twins(cfg)
    cuts = tensor.split_model(models[1], along(mesh, "tensor").group("tensor"))
    args, saved = row(cfg, "plain", LENGTHS[0])
    (logits, grads), pieces = (result(model, args, saved, 0.1, 1) for model in models)
    size = sum(weight.numel() for weight in models[1].decoder.blocks[0].ffn.parameters())
    return [size, *differences(pieces, (logits, cut(grads, cuts)))]


def test_a_part_of_ones_own_is_whole_or_says_how_it_is_cut(two):
    full = (2 * 64 * 32 + 64 + 32) * 1.0
    cut = 64 * 32 + 32 + 32
    for output, size in ((False, full), (True, cut)):
        assert all(
            item[0] == size and max(item[1:]) < 1e-12 for item in two.call(own_part, output=output)
        )


def with_data(mesh, names):
    """The largest difference of gradients where weights are cut and then sharded (FSDP2), rows
    shared out."""
    axes = Mesh(Parallel(data=2, tensor=2), mesh.rank)
    answers = {}
    for name in names:
        alone, shared = twins(EVERY[name])
        shard(shared, axes, exact=False)
        rows = [row(EVERY[name], "packed", LENGTHS[0] + number) for number in range(2)]
        changes = [result(alone, args, saved, 0.1, args.numel())[1] for args, saved in rows]
        expected = {path: changes[0].get(path, 0) + grad for path, grad in changes[1].items()}
        args, saved = rows[axes.row]
        _, pieces = result(shared, args, saved, 0.1, args.numel())
        pieces = {path: grad.full_tensor() for path, grad in pieces.items()}
        answers[name] = [worst(pieces, cut(expected, cuts_of(shared)))]
    return answers


@pytest.mark.slow
def test_data_and_tensor(four):
    names = ["gpt2", "llama", "gemma2", "mixtral", "t5", "vaswani", "alibi"]
    check_near(four.call(with_data, names=names), names)


def test_what_does_not_divide_is_refused_in_a_sentence():
    with mistake("4 heads over 1 of keys and values cannot be cut in"):
        tensor.check(DECODERS["starcoder2"], 2)
    with mistake("A block that is passed again is not cut"):
        tensor.check(ALL["albert"], 2)
    with mistake("A tied head is not cut where its table is in a MaskedEmbed"):
        tensor.check(replace(ALL["esm"], head=c.Head()), 2)
    with mistake("hidden 64 is below"):
        tensor.check(
            replace(
                DECODERS["nothing"], decoder=c.Stack(1, (tiny.block(c.Attention(128, head_dim=2)),))
            ),
            128,
        )
    assert fits(DECODERS["llama"], 2)
    assert not fits(DECODERS["llama"], 4)
    assert fits(DECODERS["gpt2"], 4)


def test_shares_differ_by_one_at_most():
    for size in range(4, 12):
        cuts = [tensor.bounds(size, 4, rank) for rank in range(4)]
        assert [low for low, _ in cuts[1:]] == [high for _, high in cuts[:-1]]
        assert cuts[0][0] == 0
        assert cuts[-1][1] == size
        assert max(high - low for low, high in cuts) - min(high - low for low, high in cuts) <= 1
