"""Gradients are those of the model's own answer, and integrated ones sum to what it changes by."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.core.nn import Tape, build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store
from glassformer.sight import saliency
from mistakes import mistake
from tiny import inputs_of


def answer(model, args, edits, of="logit"):
    with torch.no_grad():
        logits = model(*args.values(), tape=Tape(edits=edits)).logits[0, 4]
    return (logits.log_softmax(-1) if of == "logprob" else logits)[7].item()


def grown(path, at, by):
    def grow(_, x):
        x = x.clone()
        x[:, at] *= 1 + by
        return x

    return {path: grow}


@pytest.mark.parametrize("name", tiny.ALL)
def test_gradient_times_input_is_what_a_longer_vector_would_change(name):
    model = tiny.model(name).double()
    args = inputs_of(model)
    result = saliency(model, None, **args, token=7, position=4, steps=1)
    assert result.value == pytest.approx(answer(model, args, {}), abs=1e-10)
    h = 1e-5
    sides = {
        "embed": result.tokens,
        **({"source_embed": result.source} if "source" in args else {}),
    }
    for side, shares in sides.items():
        assert [share.token for share in shares] == args[
            "source" if side == "source_embed" else "text"
        ][0].tolist()
        for share in shares[::3]:
            paths = [(f"{side}.token", share.position)]
            paths += [
                (f"{side}.lag.{k}", share.position + k + 1)
                for k in range(model.config.embed.previous_token_embeddings)
            ]
            slope = sum(
                (answer(model, args, grown(path, at, h)) - answer(model, args, grown(path, at, -h)))
                / (2 * h)
                for path, at in paths
                if at < len(shares)
            )
            assert share.product == pytest.approx(slope, abs=1e-6)
    assert bool(result.source) == ("source" in args)


SMOOTH = (
    "gpt2",
    "llama",
    "qwen3",
    "gemma2",
    "glass",
    "phi2",
    "bert",
    "t5",
    "gru",
    "bahdanau",
    "pooled",
)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("of", ["logit", "logprob"])
def test_integrated_gradients_are_complete(name, of):
    model = tiny.model(name).double()
    args = inputs_of(model)
    result = saliency(model, None, **args, token=7, position=4, of=of, steps=100)

    def mean(path, x):
        side, kind, *index = path.split(".")
        embed = getattr(model, side, None) or model.embed
        table = embed.token if kind == "token" else embed.lag[int(index[0])]
        return table.weight.mean(0).expand_as(x)

    empty = answer(
        model, args, {"embed.token": mean, "embed.lag.*": mean, "source_embed.token": mean}, of
    )
    assert result.at_baseline == pytest.approx(empty, abs=1e-10)
    assert result.value == pytest.approx(answer(model, args, {}, of), abs=1e-10)
    assert result.gap == pytest.approx(result.value - result.at_baseline - result.sum, abs=1e-12)
    assert abs(result.gap) < 1e-3 * max(1.0, abs(result.value - result.at_baseline))
    lags = model.config.embed.previous_token_embeddings  # a row of none before the text is nobody's
    if not lags:
        total = sum(token.integrated for token in (*result.tokens, *result.source))
        assert total == pytest.approx(result.sum, abs=1e-10)


def test_norms_are_of_the_rows_of_the_table():
    """Each token once, an untied head: the gradient of its row is that of its vector."""
    model = tiny.model("llama").double()
    tokens = torch.arange(9)[None] * 3
    model(tokens).logits[0, 4, 7].backward()
    rows = model.embed.token.weight.grad[tokens[0]]
    model.zero_grad()
    result = saliency(model, None, tokens, token=7, position=4, steps=1)
    assert [token.norm for token in result.tokens] == pytest.approx(
        rows.norm(dim=-1).tolist(), abs=1e-12
    )
    assert all(token.norm == 0 for token in result.tokens[5:])  # after the answer
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


def test_a_label_of_a_classifier():
    model = tiny.model(tiny.OTHERS["bert"]).double()
    tokens = tiny.tokens(1, 7)
    result = saliency(model, None, tokens, of="label", label=2, steps=60)
    with torch.no_grad():
        pooled = model(tokens).pooled[0]
    assert (result.piece, result.position) == ("label 2", None)
    assert result.value == pytest.approx(pooled[2].item()) and abs(result.gap) < 1e-4
    assert saliency(model, None, tokens, of="label", steps=1).token == pooled.argmax().item()
    bare = build_model(replace(tiny.bert(), head=None), seed=1)
    assert saliency(bare, None, tokens, steps=1).of == "label"


def test_where_the_walk_begins():
    model = tiny.model("gpt2").double()
    fields = {"text": tiny.tokens(1, 7)}
    zero = saliency(model, None, **fields, token=7, position=4, baseline="zero", steps=1)
    assert zero.at_baseline == pytest.approx(
        answer(model, fields, {"embed.token": lambda _, x: x * 0}), abs=1e-10
    )
    tokenizer = train_tokenizer("byte", specials=("<pad>",))
    wide = build_model(replace(tiny.DECODERS["gpt2"], embed=c.Embed(260)), seed=1)
    padded = saliency(wide, tokenizer, "abc", token="d", baseline="pad", steps=1)
    assert tokenizer.pad is not None and padded.baseline == "<pad>"
    fields = {"text": torch.tensor([[tokenizer.pad] * 3])}
    with torch.no_grad():
        right = wide(fields["text"]).logits[0, -1, ord("d")].item()
    assert padded.at_baseline == pytest.approx(right, abs=1e-5)


def test_in_training_nothing_is_dropped_and_it_goes_on():
    cfg = tiny.with_dropout(tiny.DECODERS["gpt2"], 0.5)
    model = build_model(cfg, seed=1).train()
    item, two = (saliency(model, None, tiny.tokens(1, 7), token=7, steps=2).value for _ in range(2))
    assert (
        item == two
        and model.training
        and all(weight.requires_grad for weight in model.parameters())
    )


def test_one_clear_sentence():
    model = tiny.model("llama")
    bare = build_model(replace(tiny.DECODERS["llama"], head=None), seed=1)
    bert = tiny.model(tiny.OTHERS["bert"])
    for call, words in (
        (lambda: saliency(model, None, [1, 2], steps=0), "give 1 or more"),
        (lambda: saliency(model, None, [1, 2], of="label"), "has no labels"),
        (lambda: saliency(model, None, [1, 2], baseline="pad"), "has no pad or mask"),
        (lambda: saliency(model, None, [1, 2], baseline="odd"), 'no baseline "odd"'),
        (lambda: saliency(bare, None, [1, 2]), "no head over tokens"),
        (
            lambda: saliency(bert, None, [1, 2], of="label", label=3),
            'There is no label "3"; this model has 0 to 2',
        ),
    ):
        with mistake(words):
            call()


def test_the_command(tmp_path, terminal):
    wide = build_model(replace(tiny.DECODERS["gpt2"], embed=c.Embed(300)), seed=1)
    store.save(wide, tmp_path / "model", train_tokenizer("byte", []), layout="glassformer")
    line = f"saliency {tmp_path}/model 'The cat' --steps 20"
    data = terminal.json(line)
    assert len(data["tokens"]) == 7 and data["steps"] == 20
    output = terminal(f"{line} --token s")
    assert "The logit of s at position 6" in output and "of the change" in output
    assert "mean embedding" in terminal.notes
