"""What the head says, and how a model learns: pages 7 and 8 of the road."""

from __future__ import annotations

import math

import torch

from glassformer.core import config as c
from glassformer.core.nn import build_model
from glassformer.core.nn.hooks import Tape
from glassformer.families import find
from glassformer.learn import real_model

from .shipped import TEXT, cache_bytes, shipped_pass, value_of


def logits() -> str:
    u = shipped_pass().values["logits"][-1]
    best = int(u.argmax())
    return (
        f"After {TEXT!r} our model's largest of {len(u):,} is {float(u[best]):.3f}, for "
        f"{shipped_pass().word(best)}."
    )


STACK = c.Stack(2, (c.Block(c.Attention(2), c.MLP(64)),), c.Sinusoidal())


def weight_tying() -> str:
    untied, tied = (c.Head(tied=flag) for flag in (False, True))
    sizes = [
        sum(
            w.numel()
            for w in build_model(c.Decoder(16, 10, c.Embed(50), STACK, head), seed=0).parameters()
        )
        for head in (untied, tied)
    ]
    return (
        f"A decoder of width 16 with 50 tokens: {sizes[0]:,} parameters untied, {sizes[1]:,} "
        "tied; GPT-2 is "
        "tied, our model is not."
    )


def temperature() -> str:
    u = shipped_pass().values["logits"][-1]
    shares = [f"{float((u / t).softmax(-1).max()):.3f} at {t}" for t in (0.5, 1.0, 2.0)]
    return f"The likeliest next token of our model has {', '.join(shares)}."


def top_k() -> str:
    return (
        f"The 10 likeliest of {len(shipped_pass().chance):,} tokens hold "
        f"{float(shipped_pass().chance.topk(10).values.sum()):.3f} of what our model says next."
    )


def top_p() -> str:
    sums = shipped_pass().chance.sort(descending=True).values.cumsum(-1)
    return (
        f"0.9 of what our model says next lies on {int((sums < 0.9).sum()) + 1} of "
        f"{len(sums):,} tokens."
    )


def beam_search() -> str:
    from glassformer.core.generation.beam import beam

    p = shipped_pass()
    scores = [
        beam(p.model, p.tokenizer, TEXT, beams=n, length_penalty=0.0, max_new=6, eos=())[0][0].score
        for n in (1, 4)
    ]
    return (
        f"Six tokens of our model after {TEXT!r}: log-probability {scores[0]:.3f} greedily, "
        f"{scores[1]:.3f} with "
        "4 beams."
    )


def kv_cache() -> str:
    return (
        f"Our model keeps {cache_bytes(shipped_pass().model.config):,} bytes a token in bf16; "
        "Llama 3 8B "
        f"{cache_bytes(find('llama/3-8b')):,}."
    )


def masked_language_modelling() -> str:
    hidden = (torch.rand(10_000, generator=torch.Generator().manual_seed(0)) < 0.15).sum()
    return (
        f"Of 10,000 tokens a drawing at 15 % chose {int(hidden):,}; 80 % of those become the "
        "mask, 10 % another "
        "token, 10 % stay."
    )


def prefix_lm() -> str:
    p, T = shipped_pass(), len(shipped_pass().ids)
    prefix = torch.zeros(1, T, dtype=torch.bool)
    prefix[:, :4] = True
    tape = Tape("decoder.blocks.0.attn.scores")
    with torch.no_grad():
        p.model(torch.tensor([p.ids]), prefix=prefix, tape=tape)
    visible = int(torch.isfinite(tape["decoder.blocks.0.attn.scores"][0, 0]).sum())
    causal = int(torch.isfinite(value_of(0, "attn.scores")[0]).sum())
    return (
        f"With a prefix of 4 of {T} tokens a head of our model sees {visible} pairs, causally "
        f"{causal}."
    )


def span_corruption() -> str:
    import numpy as np

    from glassformer.tasks.objectives.span import cut_out

    source, target = cut_out(
        np.arange(100), np.random.default_rng(0), 0.15, 3.0, np.arange(1000, 1100)
    )
    return (
        f"100 tokens, 15 % of them in spans of 3: a source of {len(source)}, a target of "
        f"{len(target)}."
    )


def fine_tuning() -> str:
    p, ids = shipped_pass(), torch.tensor([shipped_pass().ids])
    model, _ = real_model.real()
    weights = [weight.requires_grad_() for weight in model.parameters()]
    losses = []
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:])
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                weight -= 0.05 * grad
        losses.append(float(loss.detach()))
    return (
        f"One step on {len(p.ids)} tokens takes our model's loss on them from {losses[0]:.3f} "
        f"to {losses[1]:.3f}."
    )


def lora() -> str:
    linear = shipped_pass().model.decoder.blocks[0].attn.q
    rank = 4
    few = rank * (linear.in_features + linear.out_features)
    return (
        f"Rank {rank} beside one {linear.out_features} x {linear.in_features} matrix of our model: "
        f"{few:,} numbers "
        f"learn instead of {linear.weight.numel():,}."
    )


def _nats() -> tuple[float, int]:
    p = shipped_pass()
    logprobs = p.values["logits"][:-1].log_softmax(-1)
    chosen = logprobs.gather(-1, torch.tensor(p.ids[1:])[:, None])
    return -float(chosen.sum()), len(chosen)


def perplexity() -> str:
    total, count = _nats()
    return (
        f"Our model on {TEXT!r}: a loss of {total / count:.3f} a token, so "
        f"{math.exp(total / count):.1f}; "
        f"guessing would be {shipped_pass().tokenizer.size:,}."
    )


def bits_per_byte() -> str:
    total, _ = _nats()
    size = len(shipped_pass().tokenizer.decode(shipped_pass().ids[1:]).encode())
    return f"Our model on {TEXT!r}: {total / math.log(2) / size:.3f} bits for each of {size} bytes."


def bleu() -> str:
    written, reference = (
        ["the", "cat", "sat", "on", "a", "mat"],
        ["the", "cat", "sat", "on", "the", "mat"],
    )
    shares = []
    for n in range(1, 5):
        runs, reference_runs = (
            [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
            for words in (written, reference)
        )
        shares.append(
            sum(min(runs.count(run), reference_runs.count(run)) for run in set(runs)) / len(runs)
        )
    score = 100 * math.exp(sum(math.log(share) for share in shares) / 4)
    return f"'{' '.join(written)}' against '{' '.join(reference)}': {score:.1f}."
