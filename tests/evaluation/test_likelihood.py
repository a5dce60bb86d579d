"""Likelihoods of continuations, against one forward pass for each token; and lm-evaluation-harness
on top of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import tiny
from glassformer.core.errors import UserError
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.store import save
from glassformer.tasks.evaluation import likelihoods
from mistakes import mistake

PAIRS = [
    ([1, 2, 3], [4, 5]),
    ([7], [8]),
    ([9, 9], [1, 2, 3, 4, 5, 6]),
    ([3] * 60, [2] * 10),
    ([1], [5] * 64),
]


@torch.no_grad()
def naive(model, context, continuation):
    """A forward pass for each token; a row longer than the model's context loses its beginning."""
    full = [*context, *continuation]
    total = 0.0
    greedy = True
    cut = max(0, len(full) - 1 - model.config.context)
    for place in range(len(context), len(full)):
        logits = model(torch.tensor([full[cut:place]])).logits[0, -1].double()
        total += logits.log_softmax(-1)[full[place]].item()
        greedy &= int(logits.argmax()) == full[place]
    return total, greedy


@pytest.mark.parametrize("family", ["gpt2", "llama", "starcoder2", "alibi", "gru"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_continuation_is_as_likely_as_its_tokens(family, batch):
    model = tiny.model(family)
    best = int(model(torch.tensor([[1, 2, 3]])).logits[0, -1].argmax())
    pairs = [*PAIRS, ([1, 2, 3], [best])]
    result = likelihoods(model, pairs, batch=batch)
    for item, pair in zip(result, pairs, strict=True):
        total, greedy = naive(model, *pair)
        assert item.logprob == pytest.approx(total, abs=1e-4)
        assert item.greedy == greedy
    assert result[-1].greedy
    assert not all(item.greedy for item in result)
    assert not model.training


def test_dropout_sleeps_and_training_goes_on():
    cfg = tiny.DECODERS["gpt2"]
    model = tiny.model(replace(cfg, decoder=replace(cfg.decoder, dropout=0.5))).train()
    assert likelihoods(model, PAIRS) == likelihoods(model, PAIRS)
    assert model.training


def test_what_cannot_be_judged_is_said():
    model = tiny.model("gpt2")
    for pairs in ([([], [1])], [([1], [])], [([1], [tiny.VOCAB])], [([1], [2] * 65)]):
        with pytest.raises(UserError):
            likelihoods(model, pairs)
    with mistake("decoder"):
        likelihoods(tiny.model(tiny.OTHERS["bert"]), PAIRS[:1])
    with torch.no_grad():
        model.embed.token.weight.fill_(float("nan"))
    with mistake("not "):
        likelihoods(model, PAIRS[:1])


@pytest.fixture
def questions(tmp_path):
    """A model of bytes, and a task of one's own over a local file: which of two endings is written
    after "ab"."""
    from glassformer import config as c

    tokenizer = train_tokenizer("byte")
    model = tiny.model(replace(tiny.DECODERS["llama"], embed=c.Embed(tokenizer.size)))
    save(model, tmp_path / "model", tokenizer)
    (tmp_path / "q.jsonl").write_text(
        "".join(
            json.dumps({"q": f"ab{i}", "choices": [" x y", " zzz"], "answer": i % 2}) + "\n"
            for i in range(6)
        )
    )
    (tmp_path / "own.yaml").write_text(
        "task: own_choice\ndataset_path: json\ndataset_kwargs:\n  data_files: "
        f"{tmp_path}/q.jsonl\ntest_split: train\n"
        "output_type: multiple_choice\n"
        'doc_to_text: "{{q}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: "{{answer}}"\n'
        "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
    )
    return tmp_path / "model", tmp_path


def test_tasks_of_the_harness(questions, terminal, monkeypatch):
    pytest.importorskip(
        "lm_eval", reason="lm-evaluation-harness (744 MB with what it needs) is an extra"
    )
    monkeypatch.setenv("HF_DATASETS_CACHE", str(questions[1] / "cache"))
    model, folder = questions
    figures = terminal.json(f"eval {model} --tasks own_choice --task-files {folder}")
    from glassformer.formats.store import load

    loaded, tokenizer = load(model)
    right = 0
    for i in range(6):
        bounds = [
            naive(loaded, tokenizer.encode(f"ab{i}"), tokenizer.encode(end))[0]
            for end in (" x y", " zzz")
        ]
        right += int(max(range(2), key=bounds.__getitem__) == i % 2)
    assert figures["own_choice"]["acc"] == pytest.approx(right / 6)
    assert 'no task "no_such_task"' in terminal.refused(f"eval {model} --tasks no_such_task")


def test_tasks_without_the_harness_say_what_to_install(questions, terminal, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "lm_eval", None)
    for options, sentence in (
        ("--tasks hellaswag", "pip install lm_eval"),
        ("", "--tasks"),
        (f"--data {questions[1]}/q.jsonl --columns text=q", "--columns has no effect"),
    ):
        assert sentence in terminal.refused(f"eval {questions[0]} {options}")
