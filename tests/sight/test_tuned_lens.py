"""A tuned lens starts as the logit lens, comes nearer to the model on texts it has not seen, and
says what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store, tuning
from glassformer.sight import TunedLens, fit_tuned_lens, logit_lens, logits_by_depth, streams
from glassformer.sight.tuned_lens import fingerprint
from mistakes import mistake
from seeding import generator_from

Pair = tuple[Tensor, Tensor | None]


def texts(model, count=20):
    pair = isinstance(model.config, c.EncoderDecoder)
    return [
        (tiny.tokens(1, 16, seed), tiny.tokens(1, 9, -seed - 1) if pair else None)
        for seed in range(count)
    ]


def divergence(model, group, tuned):
    """The mean KL(own || depth) of each depth but the last, by PyTorch's own function."""
    results = []
    for tokens, source in group:
        *remaining, individual = logits_by_depth(model, tokens, source, tuned=tuned).values()
        target = individual.double().softmax(-1)
        results.append(
            [
                F.kl_div(item.double().log_softmax(-1), target, reduction="batchmean").item()
                for item in remaining
            ]
        )
    return torch.tensor(results).mean(0).tolist()


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bert", "t5", "mixtral", "gru"])
def test_it_comes_nearer_on_texts_that_it_was_not_fitted_to(name, tmp_path):
    model = tiny.model(name)
    weights = {path: weight.clone() for path, weight in model.state_dict().items()}
    steps: list[int] = []
    lens = fit_tuned_lens(
        model,
        texts(model),
        steps=25,
        tokens=64,
        rate=3e-3,
        progress=lambda step, kl: steps.append(step),
    )
    fresh = [
        (tiny.tokens(1, 16, 1000 + n), source) for n, (_, source) in enumerate(texts(model, 4))
    ]
    before, after = divergence(model, fresh, None), divergence(model, fresh, lens)
    assert all(less < more for less, more in zip(after, before, strict=True)), (before, after)
    assert all(less < more for less, more in zip(lens.after, lens.before, strict=True))
    assert steps == list(range(1, 26)) and lens.tokens == 25 * 64
    assert all(torch.equal(weights[path], weight) for path, weight in model.state_dict().items())
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())

    path = tmp_path / "lens.safetensors"
    lens.save(path)
    again = TunedLens.load(path)
    assert torch.equal(again.weight, lens.weight) and again.to_dict() == lens.to_dict()
    tokens, source = fresh[0]
    observed = logit_lens(model, None, tokens, source=source, tuned=again)
    assert observed.lens == "tuned lens" and "Tuned lens: fitted on texts in 25 steps" in " ".join(
        observed.notes
    )
    plain = logit_lens(model, None, tokens, source=source)
    assert plain.lens == "logit lens" and plain.probability[-1] == observed.probability[-1]
    assert plain.probability[0] != observed.probability[0]


def test_untrained_it_is_the_logit_lens():
    model = tiny.model("llama")
    zeros = TunedLens(
        torch.zeros(2, 32, 32),
        torch.zeros(2, 32),
        ["a", "b"],
        fingerprint(model),
        "",
        1,
        1,
        [0.0],
        [0.0],
    )
    tokens = tiny.tokens(1, 8)
    for logit, second in zip(
        logits_by_depth(model, tokens).values(),
        logits_by_depth(model, tokens, tuned=zeros).values(),
        strict=True,
    ):
        assert torch.equal(logit, second)


def test_a_translator_is_affine():
    """h + W h + b before the norm, by hand."""
    model = tiny.model("llama").double()
    draw = generator_from(0)
    weight, bias = (
        torch.randn(shape, generator=draw).double() * 0.1 for shape in ((2, 32, 32), (2, 32))
    )
    lens = TunedLens(weight, bias, ["a", "b"], fingerprint(model), "", 1, 1, [0.0], [0.0])
    tokens = tiny.tokens(1, 8)
    from glassformer.sight import look

    h = look(model, None, tokens, "*.blocks.0.resid")["decoder.blocks.0.resid"][0, 3]
    with torch.no_grad():
        right = model.head(model.decoder.last_norm(h + weight[1] @ h + bias[1]), model.embed)
    result = logits_by_depth(model, tokens, tuned=lens)["decoder.blocks.0.resid"][3]
    assert_close(result, right, rtol=1e-10, atol=1e-10)


def test_the_fingerprint_is_the_models_in_another_dtype_and_with_its_change_merged():
    model, second_model = (
        tiny.model("llama"),
        tiny.model("llama", seed=2),
    )
    individual = fingerprint(model)
    assert fingerprint(second_model) != individual
    tuning.adapt(model, {"decoder.blocks.0.attn.q": (2, 1.0)})
    assert fingerprint(model) == individual  # no change yet
    with torch.no_grad():
        model.decoder.blocks[0].attn.q.down.normal_()
        model.decoder.blocks[0].attn.q.up.normal_()
    changed = fingerprint(model)
    assert changed != individual
    tuning.merge_and_unload(model)
    assert fingerprint(model) == changed and fingerprint(model.bfloat16()) == changed


def test_one_clear_sentence(tmp_path):
    model = tiny.model("llama")
    lens = fit_tuned_lens(model, texts(model), steps=1, tokens=16)
    second_model = tiny.model("llama", seed=2)
    with mistake("fitted to another model"):
        logit_lens(second_model, None, [1, 2], tuned=lens)
    with mistake("a held-out text"):
        fit_tuned_lens(model, texts(model)[:1])
    with mistake("give 1 or more"):
        fit_tuned_lens(model, texts(model), steps=0)
    (tmp_path / "text").write_text("no tensors")
    store.save(model, tmp_path / "model", layout="glassformer")
    for name, words in (
        ("none", "cannot be read"),
        ("text", "damaged"),
        ("model/model.safetensors", "no tuned lens"),
    ):
        with mistake(words):
            TunedLens.load(tmp_path / name)


def test_the_command(tmp_path, terminal):
    model = build_model(replace(tiny.DECODERS["llama"], embed=c.Embed(300)), seed=1)
    store.save(model, tmp_path / "model", train_tokenizer("byte", []), layout="glassformer")
    (tmp_path / "text.txt").write_text("The cat sat on the mat. " * 40)
    data, out = tmp_path / "text.txt", tmp_path / "lens.safetensors"
    line = f"lens {tmp_path}/model"
    options = "--steps 4 --tokens 64 --context 32 --rate 0.003"
    output = terminal.json(f"{line} --fit {data} --out {out} {options}")
    assert output["steps"] == 4
    assert all(a < b for a, b in zip(output["after"], output["before"], strict=True))
    assert "step 4 of 4" in terminal.notes and "holds the tuned lens" in terminal.notes
    observed = terminal.json(f"{line} 'The cat' --tuned {out}")
    assert observed["lens"] == "tuned lens"
    assert "fitted on text.txt in 4 steps" in " ".join(observed["notes"])
    assert terminal(f"{line} 'The cat' --tuned {out}").startswith("tuned lens")
    for words, sentence in (
        (f"--fit {data}", "--fit writes a file"),
        ("a b", "There are 2 texts; give one"),
        (f"a --out {out}", "--out needs --fit"),
        (f"a --fit {data} --out {out}", "--fit takes only DATA"),
    ):
        assert sentence in terminal.refused(f"{line} {words}")


def test_the_command_fits_an_encoder_decoder_on_pairs(tmp_path, terminal, monkeypatch):
    """On what its decoder reads beside its source: the same lens as in Python from the same
    pairs."""
    monkeypatch.chdir(tmp_path)
    tokenizer = train_tokenizer("byte", [])
    model = build_model(replace(tiny.ALL["t5"], embed=c.Embed(tokenizer.size)), seed=1)
    store.save(model, "model", tokenizer, layout="glassformer")
    pairs = [(f"one {n}", f"two words {n}") for n in range(12)]
    for name, lines in (
        ("a.txt", [a for a, _ in pairs]),
        ("b.txt", [b for _, b in pairs]),
        ("ab.tsv", ["first\tother", *map("\t".join, pairs)]),
    ):
        Path(name).write_text("\n".join(lines) + "\n")
    options = "--steps 3 --tokens 32"
    output = terminal.json(f"lens model --fit a.txt --target b.txt --out own.safetensors {options}")
    start = tokenizer.pad if tokenizer.bos is None else tokenizer.bos
    result = [
        (
            torch.tensor([[start, *tokenizer.encode(b)]]),
            torch.tensor([[*tokenizer.encode(a), tokenizer.eos]]),
        )
        for a, b in pairs
    ]
    right = fit_tuned_lens(model, result, steps=3, tokens=32)
    assert output["after"] == pytest.approx(right.after, rel=1e-5)
    assert output["after"][0] < output["before"][0]
    loaded = TunedLens.load("own.safetensors")
    assert torch.allclose(loaded.weight, right.weight, atol=1e-6)
    assert loaded.depths[0].startswith("decoder.")
    terminal(
        f"lens model --fit ab.tsv --columns source=first,target=other --out again.safetensors {options}"
    )
    assert torch.equal(TunedLens.load("again.safetensors").weight, loaded.weight)
    output = terminal("lens model two --source one --tuned own.safetensors")
    assert output.startswith("tuned lens")
    for words, sentence in (
        ("two --source one --target b.txt", "need --fit"),
        (
            "--fit a.txt --out again.safetensors --context 8",
            "--context is for models that read one text",
        ),
        ("--fit a.txt --target c.txt --out again.safetensors", "c.txt"),
    ):
        assert sentence in terminal.refused(f"lens model {words}")


def test_pairs_that_are_too_long_lose_their_end():
    tokenizer = train_tokenizer("byte", [])
    model = build_model(replace(tiny.ALL["vaswani"], embed=c.Embed(tokenizer.size)), seed=1)
    ((tokens, source),) = streams.pairs(model, tokenizer, [("s" * 500, "t" * 500)])
    assert tokens.shape[1] == source.shape[1] == model.config.context
    assert source[0, -1] == tokenizer.eos and tokens[0, -1] == tokenizer.encode("t")[0]
