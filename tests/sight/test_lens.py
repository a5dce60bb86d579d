"""The lens says what the model's own norm and head make of each depth; its last depth is the model
itself."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer import load
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.sight import attribute, edits, logit_lens, logits_by_depth, look, saliency
from mistakes import SENTENCES, mistake

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared/data"))
STORIES = DATA / "stories260K"


def texts(model, length=9):
    tokens = tiny.tokens(1, length)
    return tokens, tiny.tokens(1, 7, seed=1) if isinstance(model.config, c.EncoderDecoder) else None


def normed(norm, cfg, x):
    """A norm, written out."""
    if cfg is None:
        return x
    weight = 1.0 if norm.weight is None else norm.weight + getattr(cfg, "offset", 0.0)
    if isinstance(cfg, c.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + cfg.eps).sqrt() * weight
    return x if getattr(norm, "bias", None) is None else x + norm.bias


def by_hand(model, state):
    """Logits of a state (C), by the config alone."""
    body, head = getattr(model, model.config.main_body), model.config.head
    assert head is not None
    x = normed(
        getattr(body, "last_norm", None), getattr(body_config(model), "last_norm", None), state
    )
    if head.transform:
        bias = model.head.transform.bias
        x = model.head.transform.weight @ x + (0.0 if bias is None else bias)
        x = normed(model.head.norm, head.norm, x * 0.5 * (1 + torch.erf(x / math.sqrt(2))))
    table = model.embed.token.weight if head.tied else model.head.proj.weight
    x = table @ (x * head.scale)
    x = x + model.head.proj.bias if head.bias else x
    return head.softcap * torch.tanh(x / head.softcap) if head.softcap else x


def body_config(model):
    return getattr(model.config, model.config.main_body)


@pytest.mark.parametrize("name", tiny.ALL)
def test_the_last_depth_is_the_models_own_logits_and_the_others_are_read_by_its_norm_and_head(name):
    model = tiny.model(name).double()
    tokens, source = texts(model)
    result = logits_by_depth(model, tokens, source)
    with torch.no_grad():
        second_logits = model(*([tokens] if source is None else [tokens, source])).logits[0]
    assert torch.equal(list(result.values())[-1], second_logits)
    body = body_config(model)
    assert isinstance(body, c.Stack | c.Recurrent)
    # out is made of the last layer's
    assert len(result) == body.depth + (2 if getattr(body, "cross", None) else 1)
    with torch.no_grad():
        observed = look(model, None, tokens, *result, source=source)
        for path, logits in list(result.items())[:-1]:
            assert observed[path].shape == (1, 9, tiny.DIM)
            assert_close(logits[4], by_hand(model, observed[path][0, 4]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gemma2", "gru", "bert", "t5"])
def test_its_numbers_are_those_of_the_distributions(name):
    model = tiny.model(name).double()
    tokens, source = texts(model)
    args = None if source is None else source[0]
    lens = logit_lens(model, None, tokens, source=args, positions=[2, -1], track=[7, 31], top=4)
    logits = logits_by_depth(model, tokens, source, positions=[2, 8])
    assert (lens.positions, lens.depths, lens.length) == ([2, 8], list(logits), 9)
    assert lens.tokens == tokens[0, [2, 8]].tolist()
    individual = list(logits.values())[-1].softmax(-1)
    for depth, logit in enumerate(logits.values()):
        chance = logit.softmax(-1)
        for column in range(2):
            p, q = individual[column], chance[column]
            order = q.argsort(descending=True).tolist()
            assert lens.top[depth][column] == order[:4]
            assert lens.probability[depth][column] == pytest.approx(q[order[:4]].tolist())
            assert lens.entropy[depth][column] == pytest.approx(-(q * q.log()).sum().item())
            kl = (p * (p / q).log()).sum().item()
            assert lens.kl[depth][column] == pytest.approx(kl, abs=1e-12)
            for one_word, token in zip(lens.tracked, (7, 31), strict=True):
                assert one_word.probability[depth][column] == pytest.approx(q[token].item())
                assert one_word.rank[depth][column] == order.index(token) + 1
    assert lens.kl[-1] == [0.0, 0.0]


def test_only_the_asked_columns_are_computed(monkeypatch):
    model, rows = tiny.model("llama"), []
    forward = model.head.proj.forward
    monkeypatch.setattr(
        model.head.proj,
        "forward",
        lambda x, table: rows.append(x[..., 0].numel()) or forward(x, table),
    )
    assert logit_lens(model, None, tiny.tokens(1, 40)).positions == list(range(24, 40))
    assert sum(rows) == 16 * 3
    rows.clear()
    lens = logit_lens(model, None, tiny.tokens(1, 40), positions="0,3-5,-1")
    assert lens.positions == [0, 3, 4, 5, 39] and sum(rows) == 5 * 3
    assert logit_lens(model, None, tiny.tokens(1, 40), positions="all").positions == list(range(40))


@pytest.mark.parametrize("name, words", SENTENCES["lenses"])
def test_how_it_was_read_is_said(name, words):
    model = tiny.model(name)
    tokens, source = texts(model)
    notes = " ".join(logit_lens(model, None, tokens, source=source).notes)
    assert re.search(words, notes), notes


def test_edits_change_the_run():
    """A head off: the last depth is what look gives with the same edit; a token swapped is read as
    the other."""
    model = tiny.model("llama")
    off = [edits.head_off("decoder.blocks.0.attn", 1)]
    lens = logit_lens(model, None, [1, 2, 3], edits=off, track=[7])
    right = look(model, None, [1, 2, 3], "logits", edits=off)["logits"][0]
    assert lens.tracked[0].probability[-1] == pytest.approx(
        right.softmax(-1)[:, 7].tolist(), rel=1e-5
    )
    assert lens.probability != logit_lens(model, None, [1, 2, 3]).probability
    swapped = logit_lens(model, None, [1, 2, 3], edits=[edits.swap_token(1, 9)])
    assert swapped.tokens == [1, 9, 3] and swapped.top == logit_lens(model, None, [1, 9, 3]).top
    value = saliency(model, None, [1, 2, 3], token=7, steps=1, edits=off).value
    assert value == pytest.approx(right[-1, 7].item(), rel=1e-5)


def test_bert_reads_its_blank():
    tokenizer = train_tokenizer("byte", specials=("[CLS]", "[SEP]", "[MASK]"))
    model = build_model(replace(tiny.OTHERS["bert"], embed=c.Embed(260, segments=2)), seed=1)
    lens = logit_lens(model, tokenizer, "a ___ b")
    assert lens.tokens.count(tokenizer.mask) == 1


def test_one_clear_sentence():
    model = tiny.model("llama")
    tokenizer = train_tokenizer("byte")
    wide = build_model(replace(tiny.DECODERS["llama"], embed=c.Embed(300)), seed=1)
    bare = build_model(replace(tiny.DECODERS["llama"], head=None), seed=1)
    for query, words in (
        (lambda: logit_lens(bare, None, [1, 2]), "no head over tokens"),
        (
            lambda: logit_lens(model, None, [1, 2], positions=[2]),
            "Position 2 is not in the text; it has tokens 0 to 1",
        ),
        (lambda: logit_lens(model, None, [1, 2], positions="1-0"), "ends before it begins"),
        (lambda: logit_lens(model, None, [1, 2], positions="0-9"), "not all in the text"),
        (lambda: logit_lens(model, None, [1, 2], positions="x"), "is no position"),
        (lambda: logit_lens(model, None, [1, 2], positions=[]), "No position is named"),
        (
            lambda: logit_lens(model, None, [1, 2], track=[50]),
            "out of range: this model knows 0 to 49",
        ),
        (lambda: logit_lens(model, None, [1, 2], track=["a"]), "needs a tokenizer"),
        (lambda: logit_lens(wide, tokenizer, "ab", track=["the"]), '"the" is 3 tokens'),
        (lambda: logit_lens(model, None, [[1, 2], [3, 4]]), "2 texts"),
        (lambda: logit_lens(model, None, [1, 2], top=0), "give 1 or more"),
        (
            lambda: logit_lens(tiny.model(tiny.OTHERS["t5"]), None, [1, 2]),
            "give the encoder's as source",
        ),
        (lambda: logit_lens(model, None, [1, 2], source=[1]), "Only an encoder-decoder"),
    ):
        with mistake(words):
            query()


@pytest.mark.skipif(not STORIES.is_dir(), reason=f"{STORIES} is not there")
def test_a_trained_model_makes_up_its_mind_on_the_way(terminal):
    text = "Once upon a time, there was a little girl named Lily. She loved to"
    line = f"lens {STORIES} '{text}'"
    data = terminal.json(f"{line} --track play")
    model, tokenizer = load(str(STORIES))
    with torch.no_grad():
        chances = model(torch.tensor([tokenizer.encode(text, bos=True)])).logits[0, -1].softmax(-1)
    best = chances.argmax().item()
    assert data["top"][-1][-1][0] == best and tokenizer.decode([best]).strip() == "play"
    (play,) = data["tracked"]
    assert play["probability"][-1][-1] == pytest.approx(chances[best].item(), rel=1e-5)
    assert play["rank"][-1][-1] == 1 < play["rank"][0][-1]
    distances = [row[-1] for row in data["kl"]]
    assert distances == sorted(distances, reverse=True)
    assert "·play 0.59" in terminal(f"{line} --track play")
    assert "The last 16 of 20 positions" in terminal.notes
    assert terminal.json(f"{line} --positions -2,-1")["positions"] == [18, 19]
    off = 'head_off("decoder.blocks.4.attn", 2)'
    output = terminal(f"{line} --positions -3--1 --edit '{off}'")
    assert output.startswith(f"logit lens, with {off}: ")


def test_weights_that_are_not_numbers_are_named():
    model = tiny.model("llama")
    with torch.no_grad():
        model.head.proj.weight[7] = float("nan")
    for look_inside in (logit_lens, attribute, saliency):
        with mistake(r"head\.proj\.weight holds NaN"):
            look_inside(model, None, [1, 2])
