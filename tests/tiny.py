"""Every family of the house at a size that runs in a millisecond, as configs and as models."""

from __future__ import annotations

from dataclasses import replace

import torch

from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.core.nn.model import inference
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
from seeding import generator_from

VOCAB = 50
DIM = 32
CONTEXT = 64
# large weights: a wrong path shows in the logits
WIDE = c.Init(std=0.15, embed_std=0.3, residual="plain")


def block(attention=None, feedforward=None, **kwargs):
    return c.Block(attention or c.Attention(4), feedforward or c.MLP(64), **kwargs)


def decoder(
    *pattern,
    position=c.Rotary(),
    head=None,
    **stack,
):
    stack = {"depth": 2 * len(pattern), "last_norm": c.RMSNorm(), **stack}
    body = c.Stack(pattern=pattern, position=position, **stack)
    return c.Decoder(DIM, CONTEXT, c.Embed(VOCAB), body, head or c.Head(), WIDE)


# states stay between -1 and 1
LOUD = c.Init(std=0.4, embed_std=1.0, residual="plain", head_std=0.6)


def vaswani():
    plain = {"norm": c.LayerNorm(), "place": "post"}
    relu = c.MLP(64, "relu", bias=True)
    encoder = c.Stack(2, (block(feedforward=relu, **plain),), c.Sinusoidal(), causal=False)
    crossed = c.Stack(2, (block(feedforward=relu, cross=c.Attention(4), **plain),), c.Sinusoidal())
    return c.EncoderDecoder(
        DIM, CONTEXT, c.Embed(VOCAB, scale=DIM**0.5), encoder, crossed, c.Head(), WIDE
    )


def t5():
    attention = c.Attention(4, scale=1.0)
    think = c.GatedMLP(64, "gelu_tanh")
    bounds = {"position": c.RelativeBias(8, 16), "last_norm": c.RMSNorm()}
    encoder = c.Stack(2, (block(attention, think),), causal=False, **bounds)
    crossed = c.Stack(2, (block(attention, think, cross=attention),), **bounds)
    return c.EncoderDecoder(
        DIM, CONTEXT, c.Embed(VOCAB), encoder, crossed, c.Head(tied=False), WIDE
    )


def attention_pair():
    encoder = c.Stack(2, (c.Block(c.Attention(4), None),), c.Rotary(), causal=False)
    crossed = c.Stack(
        2, (c.Block(c.Attention(4), None, c.LayerNorm(), "post", c.Attention(4, 2)),), c.Rotary()
    )
    return c.EncoderDecoder(
        DIM, CONTEXT, c.Embed(VOCAB), encoder, crossed, c.Head(tied=False), WIDE
    )


def bert():
    item = block(
        c.Attention(4, bias=True),
        c.MLP(64, "gelu", bias=True),
        norm=c.LayerNorm(1e-12),
        place="post",
    )
    stack = c.Stack(2, (item,), c.Learned(CONTEXT), causal=False, first_norm=c.LayerNorm(1e-12))
    head = c.Head(bias=True, transform="gelu", norm=c.LayerNorm(1e-12))
    pool = c.Pool("first", "tanh", labels=3)
    return c.Encoder(DIM, CONTEXT, c.Embed(VOCAB, segments=2), stack, head, WIDE, pool)


def modernbert():
    norm = c.LayerNorm(bias=False)
    first = FirstBlock(c.Attention(4), c.GatedMLP(48, "gelu"), norm)
    slides = block(c.Attention(4, mask=c.Window(5)), norm=norm, position=c.Rotary(100.0))
    stack = c.Stack(2, (first, slides), c.Rotary(), False, norm, norm)
    layer = {"transform": "gelu", "norm": norm, "transform_bias": False}
    pool = c.Pool("mean", labels=3, **layer)
    return c.Encoder(DIM, CONTEXT, c.Embed(VOCAB), stack, c.Head(bias=True, **layer), WIDE, pool)


def albert():
    body, norm = bert(), c.LayerNorm()
    position = LearnedWithBias(CONTEXT, 2, c.RelativeBias(8, 16))
    stack = LoopedStack(**vars(body.encoder) | {"depth": 3, "position": position})
    head = c.Head(bias=True, transform="gelu", norm=norm, width=24)
    return replace(body, embed=c.Embed(VOCAB, segments=2, dim=24), encoder=stack, head=head)


def esm():
    stack = c.Stack(2, (block(norm=c.LayerNorm()),), StoredRotary(), False, last_norm=c.LayerNorm())
    embed = MaskedEmbed(VOCAB, mask=7)
    return c.Encoder(DIM, CONTEXT, embed, stack, c.Head(tied=False), WIDE)


def deberta():
    norm, kinds = c.LayerNorm(1e-7), {"bias": True, "scale": 0.2}
    apart = DisentangledAttention(4, **kinds, key_bias=False)
    shared = DisentangledAttention(4, **kinds, shared=True)
    pattern = tuple(block(kind, norm=norm, place="post") for kind in (apart, shared))
    position = RelativeEmbedding(6, 20, norm, c.Learned(CONTEXT))
    stack = c.Stack(2, pattern, position, causal=False, first_norm=norm)
    return c.Encoder(DIM, CONTEXT, c.Embed(VOCAB), stack, c.Head(), WIDE)


def led():
    norm = {"norm": c.LayerNorm(), "place": "post"}
    masks = (c.Window(4), c.Window(6) | GlobalTokens(2))
    pattern = tuple(block(LongformerAttention(4, mask=mask), **norm) for mask in masks)
    encoder = c.Stack(2, pattern, c.Learned(CONTEXT), causal=False)
    crossed = c.Stack(2, (block(cross=c.Attention(4), **norm),), SideTable(40))
    return c.EncoderDecoder(DIM, CONTEXT, c.Embed(VOCAB), encoder, crossed, c.Head(), WIDE)


def recurrent(body):
    return c.Decoder(DIM, CONTEXT, c.Embed(VOCAB), body, c.Head(), LOUD)


def translator(encoder, decoder):
    return c.EncoderDecoder(
        DIM, CONTEXT, c.Embed(VOCAB), encoder, decoder, c.Head(tied=False), LOUD
    )


def gpt2():
    item = block(c.Attention(4, bias=True), c.MLP(64, bias=True), norm=c.LayerNorm())
    return decoder(item, position=c.Learned(CONTEXT), last_norm=c.LayerNorm())


YARN = c.Rotary(1e6, scaling=c.YarnScaling(4.0, 16))
LLAMA = block(c.Attention(4, kv_heads=2), c.GatedMLP(64))
LATENT = {"content_dim": 6, "rope_dim": 4, "value_dim": 8}
DECODERS = {
    "gpt2": gpt2(),
    "llama": decoder(
        LLAMA,
        position=c.Rotary(scaling=c.Llama3Scaling(8.0, 1.0, 4.0, 32)),
        head=c.Head(tied=False),
    ),
    "qwen3": decoder(
        block(c.Attention(4, 2, 16, qk_norm=c.RMSNorm()), c.GatedMLP(64)), position=YARN
    ),
    "mixtral": decoder(
        block(c.Attention(4, 2), c.MoE(4, 2, c.GatedMLP(32), balance_loss=0.01, z_loss=0.001)),
        position=c.Rotary(),
    ),
    "longrope": decoder(
        block(c.Attention(4, 2, 16)),
        position=c.Rotary(
            scaling=c.LongRopeScaling(
                (1.0,) * 8, tuple(1.0 + wave for wave in range(8)), 8, 4.0, use_long=True
            )
        ),
    ),
    "phi2": decoder(
        block(
            c.Attention(4, bias=True), c.MLP(64, bias=True), norm=c.LayerNorm(), place="parallel"
        ),
        position=c.Rotary(fraction=0.5),
        head=c.Head(tied=False, bias=True),
    ),
    "starcoder2": decoder(
        block(c.Attention(4, 1, bias=True, mask=c.Window(7)), norm=c.LayerNorm()),
        position=c.Rotary(),
    ),
    "deepseek": decoder(
        block(feedforward=c.MoE(6, 3, c.GatedMLP(16), normalize=False, shared=c.GatedMLP(24))),
        position=c.Rotary(),
    ),
    "noisy": decoder(
        block(
            feedforward=c.MoE(
                4,
                2,
                c.MLP(32, "gelu", bias=True),
                balance_loss=0.01,
                capacity_factor=1.5,
                noise=True,
            )
        ),
        position=c.Rotary(),
    ),
    "nanomoe": decoder(
        block(feedforward=c.MoE(4, 2, c.MLP(32, "gelu"))), block(), position=c.Learned(CONTEXT)
    ),
    "gemma2": decoder(
        block(
            c.Attention(4, 2, softcap=5.0, mask=c.Window(6)),
            norm=c.RMSNorm(offset=1.0),
            place="sandwich",
        ),
        block(c.Attention(4, 2, softcap=5.0), norm=c.RMSNorm(offset=1.0), place="sandwich"),
        position=c.Rotary(),
        head=c.Head(softcap=30.0),
    ),
    "alibi": decoder(block(c.Attention(6, head_dim=8)), position=c.Alibi()),
    "relative": decoder(block(), position=c.RelativeBias(8, 16)),
    "glass": replace(
        decoder(
            block(c.Attention(4, qk_norm=c.RMSNorm()), c.MLP(64, "relu2")), position=c.Rotary()
        ),
        embed=c.Embed(VOCAB, previous_token_embeddings=3),
    ),
    "strided": decoder(block(c.Attention(4, 2, mask=c.Strided(4))), position=c.Rotary()),
    "fixed": decoder(block(c.Attention(4, mask=c.Fixed(6, 2))), position=c.Learned(CONTEXT)),
    "prefix": decoder(block(c.Attention(4, mask=c.Prefix(3))), position=c.Rotary()),
    "mixed": decoder(
        block(c.Attention(4, 2, mask=c.Window(9) & (c.Every(2) | c.Prefix(3)))),
        block(c.Attention(4, 2, mask=c.Chunk(4) | c.Tail(5, 2))),
        position=c.Rotary(),
    ),
    "gru": recurrent(c.Recurrent(2)),
    "lstm": recurrent(c.Recurrent(2, c.LSTM())),
    "attention-only": decoder(
        c.Block(c.Attention(4), None), c.Block(c.Attention(4, 2), None, place="sandwich")
    ),
    "normless": decoder(
        block(norm=None),
        block(norm=None, place="parallel"),
        c.Block(c.Attention(4), None, None),
        depth=3,
    ),
    "gptj": decoder(
        block(norm=c.LayerNorm(), place="parallel"),
        position=c.Rotary(fraction=0.5, interleaved=True),
    ),
    "gpt_neox": decoder(
        block(c.Attention(4, bias=True), norm=c.LayerNorm(), place="parallel_norms"),
        position=c.Rotary(fraction=0.25),
    ),
    "granite": decoder(
        block(residual_scale=0.4),
        block(residual_scale=0.4, place="parallel"),
        block(residual_scale=0.4, place="post"),
    ),
    "olmo2": decoder(
        block(c.Attention(4, 2, qk_norm=c.RMSNorm(), qk_norm_whole=True), place="output")
    ),
    "smollm3": decoder(
        block(c.Attention(4, 2, mask=c.Window(6)), position=c.Rotary(100.0)),
        block(position=c.NoPosition()),
        block(),
        block(position=c.RelativeBias(8, 16)),  # umT5: a table of its own
        depth=4,
    ),
    "lfm2": decoder(
        block(ShortConv()), block(c.Attention(4, 2, qk_norm=c.RMSNorm())), position=c.Rotary()
    ),
    "mamba2": decoder(c.Block(Mamba2(6, 16, 8, 2, least_step=0.02), None)),
    "qwen3_next": decoder(
        block(GatedDelta(2, 4, 16, 16, eps=0.05)),
        block(
            GatedAttention(4, 2, 16, qk_norm=c.RMSNorm(offset=1.0)),
            c.MoE(4, 2, c.GatedMLP(16), shared=GatedExpert(24)),
        ),
        position=c.Rotary(fraction=0.5),
    ),
    "deepseek_v3": decoder(
        block(LatentAttention(4, kv_rank=12, q_rank=10, **LATENT)),
        block(
            LatentAttention(4, kv_rank=12, **LATENT, mask=c.Window(7)),
            RoutedMoE(
                6, 2, c.GatedMLP(16), shared=c.GatedMLP(24), groups=3, top_groups=2, scale=2.5
            ),
        ),
        position=c.Rotary(interleaved=True),
    ),
    "deepseek_v2": decoder(
        block(
            LatentAttention(4, kv_rank=12, **LATENT),
            RoutedMoE(4, 2, c.GatedMLP(16), score="softmax", correction=False, normalize=False),
        ),
    ),
    "llama4": decoder(
        block(
            c.Attention(4, 2, qk_norm=c.RMSNorm(gain=False)),
            ScaledInputMoE(
                4, 1, c.GatedMLP(16), shared=c.GatedMLP(24), correction=False, normalize=False
            ),
        ),
        block(TunedAttention(4, 2, length=5, strength=0.6), position=c.NoPosition()),
        position=c.Rotary(interleaved=True),
    ),
    "rwkv": decoder(
        c.Block(TimeMix(24), None, c.LayerNorm()), c.Block(ChannelMix(48), None, c.LayerNorm())
    ),
    "rwkv7": decoder(
        c.Block(TimeMix7(3, 8, 5, 7), None, c.LayerNorm()),
        c.Block(ChannelMix7(48), None, c.LayerNorm()),
        c.Block(TimeMix7(3, 8, 5, 7, value_rank=4), None, c.LayerNorm()),
        c.Block(ChannelMix7(48), None, c.LayerNorm()),
        depth=4,
    ),
    "pooled": replace(decoder(LLAMA), pool=c.Pool("attention", labels=2)),
    "nothing": decoder(block(feedforward=c.MLP(64, "relu2")), position=c.NoPosition()),
}
# a look ahead
ONWARD = c.Stack(
    2, (block(c.Attention(4, mask=c.Causal() | c.Window(3))),), c.Rotary(), causal=False
)
OTHERS = {
    "vaswani": vaswani(),
    "t5": t5(),
    "bert": bert(),
    "attention-pair": attention_pair(),
    "two vocabularies": replace(vaswani(), source_embed=c.Embed(60, segments=0, dim=24)),
    "cho": translator(c.Recurrent(2), c.Recurrent(2, cross=c.Summary())),
    "bahdanau": translator(c.Recurrent(2, causal=False), c.Recurrent(2, cross=c.Additive(24))),
    "additive-lstm": translator(
        c.Stack(1, (block(),), c.Sinusoidal(), False, last_norm=c.RMSNorm()),
        c.Recurrent(1, c.LSTM(), c.Additive(24)),
    ),
    "reader": c.Encoder(
        DIM, CONTEXT, c.Embed(VOCAB), c.Recurrent(1, c.LSTM(), causal=False), c.Head(), LOUD
    ),
    "modernbert": modernbert(),
    "albert": albert(),
    "esm": esm(),
    "onward": c.Encoder(DIM, CONTEXT, c.Embed(VOCAB), ONWARD, c.Head(), WIDE),
}
ALL = {**DECODERS, **OTHERS}
SINKS = {
    "gpt_oss": decoder(
        block(
            SinkAttention(4, 2, 16, bias=True, mask=c.Window(7)),
            ClampedMoE(4, 2, c.GatedMLP(16, bias=True), limit=0.5),
        ),
        block(SinkAttention(4, 2, 16), SparseMixerMoE(4, 2, c.GatedMLP(16), tolerance=0.5)),
        position=c.Rotary(1e4, scaling=c.YarnScaling(4.0, 16, truncate=False)),
    ),
    "diffllama": decoder(
        block(DifferentialAttention(8, 4, lambda_std=0.5)),
        block(DifferentialAttention(8, 2, 10, qk_norm=c.RMSNorm(), mask=c.Window(7), eps=0.01)),
        position=c.Rotary(),
    ),
    "deberta": deberta(),
    "led": led(),
}
"""Attention of few families: no ring or kernel computes it, a linearised pass or browser seldom."""
STATES = {
    "lfm2",
    "mamba2",
    "qwen3_next",
    "rwkv",
    "rwkv7",
}  # decoders whose mixers keep a state beside attention
RECURRENT = {"gru", "lstm", "cho", "bahdanau", "additive-lstm"}  # decoders that keep a state


def model(config, seed=1):
    """A model of a config, or of the family of a name."""
    shape = (ALL | SINKS)[config] if isinstance(config, str) else config
    return build_model(shape, seed=seed).eval()


def with_dropout(config, dropout):
    return replace(config, decoder=replace(config.decoder, dropout=dropout))


def tokens(rows=3, length=20, seed=0):
    return torch.randint(0, VOCAB, (rows, length), generator=generator_from(seed))


def inputs_of(model):
    """One text, and a source where the model reads one."""
    pair = isinstance(model.config, c.EncoderDecoder)
    return {"text": tokens(1, 9), **({"source": tokens(1, 7, seed=1)} if pair else {})}


def equal_tensors(a, b):
    """The same names, and bit for bit the same numbers."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def logits(model, **options):
    """Of a text, and of a source where the model reads one."""
    sources = (tokens(3, 12, seed=5),) if isinstance(model.config, c.EncoderDecoder) else ()
    with inference(model):
        return model(tokens(), *sources, **options).logits
