"""Losses of pairs: those of the papers, written out; those of trl on the same model and pairs; and
the reference, which is the model at its start."""

from __future__ import annotations

import dataclasses
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import glassformer
import tiny
from folders import write_rows
from glassformer import runs
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.core.training.loss import forward
from glassformer.formats import store, tokenizer_files
from glassformer.formats.chat_template import CHATML
from glassformer.runs import run_file
from glassformer.tasks.encoded import encode
from glassformer.tasks.example_batches import each_once
from glassformer.tasks.examples import read_examples
from glassformer.tasks.objectives import Chat, Preference, Reward
from mistakes import mistake
from seeding import generator_from
from small_runs import run_and_resume

PAIRS = [
    {"prompt": "the cat", "chosen": "sat on the mat", "rejected": "dog"},
    {"prompt": "the dog sat on", "chosen": "the log", "rejected": "the cat and the mat"},
    {"prompt": "a", "chosen": "b c", "rejected": "d"},
]
# chatml, but nothing stands behind the end of an answer: trl counts that too
TEMPLATE = CHATML.replace("<|im_end|>\\n", "<|im_end|>")
METHODS = ("dpo", "ipo", "orpo", "simpo")


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["the cat sat on the mat and the dog sat on the log a b c d"] * 4
    tokenizer = train_tokenizer("bpe", texts, 300, Chat.specials)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write_rows(path, PAIRS)
    return str(path)


def shape(tokenizer, **changes):
    embed = dataclasses.replace(tiny.DECODERS["llama"].embed, vocab=tokenizer.size)
    return dataclasses.replace(tiny.DECODERS["llama"], embed=embed, context=128, **changes)


def moved(model):
    """The model a little trained, so that it differs from its reference."""
    copy = build_model(model.config, seed=0)
    copy.load_state_dict(model.state_dict())
    draw = generator_from(3)
    with torch.no_grad():
        for weight in copy.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=draw))
    return copy.eval()


def batch_of(objective, tokenizer, pairs, reference):
    """All pairs as one packed batch."""
    encoded = encode(read_examples(pairs, objective), tokenizer, objective, reference.config, 128)
    if getattr(objective, "needs_reference", False):
        encoded = objective.with_reference(reference, encoded, 2, 128)
    (batch,) = each_once(encoded, 8, 128)
    return batch


def log_probability(model, tokenizer, prompt, answer):
    """The log-probability of an answer behind its prompt, and its number of tokens, one by one."""
    opened = f"<|im_start|>user\n{prompt}<|im_end|><|im_start|>assistant\n"
    prefix = tokenizer.encode(opened, special=True)
    ids = tokenizer.encode(f"{opened}{answer}<|im_end|>", special=True)
    with torch.no_grad():
        logs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    places = range(len(prefix), len(ids))
    return sum(float(logs[at - 1, ids[at]]) for at in places), len(places)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_is_that_of_the_paper(method, tokenizer, pairs):
    reference = tiny.model(shape(tokenizer))
    model = moved(reference)
    objective = Preference(method, beta=0.3, margin=0.5 if method == "simpo" else 1.0)
    loss = objective.loss(model, batch_of(objective, tokenizer, pairs, reference))
    total = 0.0
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    for pair in PAIRS:
        (c, c_size), (r, r_size) = (
            log_probability(model, tokenizer, pair["prompt"], pair[side])
            for side in ("chosen", "rejected")
        )
        before = [
            log_probability(reference, tokenizer, pair["prompt"], pair[side])[0]
            for side in ("chosen", "rejected")
        ]
        if method == "dpo":
            total -= math.log(sigmoid(0.3 * ((c - before[0]) - (r - before[1]))))
        elif method == "ipo":
            h = (c - before[0]) / c_size - (r - before[1]) / r_size
            total += (h - 1 / (2 * 0.3)) ** 2
        elif method == "simpo":
            total -= math.log(sigmoid(0.3 * (c / c_size - r / r_size) - 0.5))
        else:
            c, r = c / c_size, r / r_size
            odds = [math.exp(x) / (1 - math.exp(x)) for x in (c, r)]
            total += -c - 0.3 * math.log(sigmoid(math.log(odds[0] / odds[1])))
    assert_close(loss.sum.double(), torch.tensor(total).double(), atol=1e-5, rtol=1e-5)
    assert loss.count == len(PAIRS)


def test_a_reference_is_the_model_at_its_start(tokenizer, pairs):
    model = tiny.model(shape(tokenizer))
    loss = Preference().loss(model, batch_of(Preference(), tokenizer, pairs, model))
    assert_close(loss.sum / loss.count, torch.tensor(math.log(2)))


# ---------------------------------------------------------------------------------- runs

SIZES = {
    "steps": 4,
    "batch": 4,
    "context": 96,
    "evaluate_every": 2,
    "save_every": 2,
    "tensorboard": False,
    "dtype": "float32",
    "data.type": "Examples",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small model that was trained on conversations, with its data beside it."""
    folder = tmp_path_factory.mktemp("base")
    numbers = [(f"{i} + 1?", f"{i + 1}", f"{i + 3}") for i in range(40)]
    for name, columns in (
        ("chat", ("prompt", "completion")),
        ("pairs", ("prompt", "chosen", "rejected")),
    ):
        rows = (dict(zip(columns, row, strict=False)) for row in numbers)
        write_rows(folder / f"{name}.jsonl", rows)
    chat = {"recipe": "glass/200k", "data.tokenizer": "byte", "objective": "Chat"}
    chat |= {"data.train": str(folder / "chat.jsonl"), "decoder.dropout": 0.1}
    runs.run(run_file.read_run(None, {**SIZES, **chat}), folder / "model")
    return folder


@pytest.mark.parametrize(
    "more",
    [
        {"objective": "Chat"},
        {"objective": "Preference"},
        {"objective": "Preference", "train.tune": '{type = "LoRA", rank = 2}'},
        {"objective": "Reward"},
    ],
    ids=["chat", "preference", "preference, lora", "reward"],
)
def test_a_resumed_run_is_the_undisturbed_one(more, base, tmp_path, monkeypatch):
    file = "chat" if more["objective"] == "Chat" else "pairs"
    more = {**more, "from": str(base / "model"), "data.train": str(base / f"{file}.jsonl")}
    settings = run_file.read_run(None, {**SIZES, **more})
    full_run, cut = run_and_resume(settings, tmp_path / "whole", tmp_path / "cut", monkeypatch)
    assert {**full_run, "state.json": b""} == {**cut, "state.json": b""}
    assert full_run["chat_template.jinja"].decode() == CHATML
    end_ids = [
        tokenizer_files.open(tmp_path / name / "step-000004").end_ids for name in ("whole", "cut")
    ]
    assert end_ids[0] == end_ids[1] > {tokenizer_files.open(base / "model" / "step-000004").eos}


def test_a_run_does_not_go_on_with_another_reference(base, tmp_path, monkeypatch):
    """The folder that it began from was trained anew meanwhile."""
    shutil.copytree(base / "model" / "step-000002", tmp_path / "start")
    more = {"objective": "Preference", "data.train": str(base / "pairs.jsonl")}
    settings = run_file.read_run(None, {**SIZES, **more, "from": str(tmp_path / "start")})
    runs.run(settings, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "step-000004")
    shutil.rmtree(tmp_path / "start")
    shutil.copytree(base / "model" / "step-000004", tmp_path / "start")
    with mistake("made with another content of the training data"):
        runs.run(settings, tmp_path / "run", resume=True)


def test_a_model_without_a_start_has_no_reference(base, tmp_path):
    more = {"recipe": "glass/200k", "data.tokenizer": "byte", "objective": "Preference"}
    settings = run_file.read_run(None, {**SIZES, **more, "data.train": str(base / "pairs.jsonl")})
    with mistake("Preference compares with the model that it begins from", "from"):
        runs.run(settings, tmp_path / "run")


# ---------------------------------------------------------------------------- beside trl


@pytest.fixture
def trl(tmp_path, monkeypatch):
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    return pytest.importorskip("trl")


def opened(kind, net, tokenizer, folder):
    """Our model as transformers opens it."""
    transformers = pytest.importorskip("transformers")
    glassformer.save(net, folder, tokenizer, layout="hf")
    return getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).eval()


def processing(tokenizer, folder):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(folder)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    reference.pad_token = "<|endoftext|>"
    return reference


def dataset(rows):
    """The same records as trl reads them."""
    from datasets import Dataset

    roles = {"prompt": "user"}
    return Dataset.from_list(
        [
            {
                name: [{"role": roles.get(name, "assistant"), "content": text}]
                for name, text in row.items()
            }
            for row in rows
        ]
    )


SETTINGS = {
    "report_to": "none",
    "per_device_train_batch_size": 3,
    "use_cpu": True,
    "bf16": False,
    "output_dir": ".",
}


@pytest.mark.parametrize("method", ["dpo", "ipo"])
def test_the_loss_with_a_reference_is_that_of_trl(method, tokenizer, pairs, tmp_path, trl):
    reference = tiny.model(shape(tokenizer))
    model = moved(reference)
    policy, before = (
        opened("AutoModelForCausalLM", net, tokenizer, tmp_path / name)
        for name, net in (("model", model), ("reference", reference))
    )
    kind = "sigmoid" if method == "dpo" else method
    trainer = trl.DPOTrainer(
        policy,
        before,
        args=trl.DPOConfig(**SETTINGS, loss_type=kind, beta=0.3),
        train_dataset=dataset(PAIRS),
        processing_class=processing(tokenizer, tmp_path / "tokenizer"),
    )
    inputs = next(iter(trainer.get_train_dataloader()))
    expected = trainer.compute_loss(policy.eval(), inputs)
    objective = Preference(method, beta=0.3)
    loss = objective.loss(model, batch_of(objective, tokenizer, pairs, reference))
    assert_close(loss.sum / loss.count, expected.float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["orpo", "simpo"])
def test_the_loss_without_a_reference_is_that_of_trl(method, tokenizer, pairs, tmp_path, trl):
    model = tiny.model(shape(tokenizer))
    sums = [
        [log_probability(model, tokenizer, pair["prompt"], pair[side]) for pair in PAIRS]
        for side in ("chosen", "rejected")
    ]
    means = [torch.tensor([total / size for total, size in side]) for side in sums]
    if method == "simpo":
        from trl.experimental.cpo import CPOTrainer

        trainer = SimpleNamespace(
            alpha=0.0,
            beta=0.3,
            simpo_gamma=0.5,
            label_smoothing=0.1,
            loss_type="simpo",
            accelerator=SimpleNamespace(device="cpu"),
        )
        expected = CPOTrainer.cpo_loss(trainer, *means)[0].sum()
    else:
        from trl.experimental.orpo import ORPOTrainer

        trainer = SimpleNamespace(beta=0.3, accelerator=SimpleNamespace(device="cpu"))
        expected = -(means[0] + ORPOTrainer.odds_ratio_loss(trainer, *means)[0]).sum()
    objective = Preference(method, beta=0.3, margin=0.5 if method == "simpo" else 1.0)
    batch = batch_of(objective, tokenizer, pairs, model)
    loss = objective.loss(model, batch, 0.1 if method == "simpo" else 0.0)
    assert_close(loss.sum, expected.float(), atol=1e-5, rtol=1e-6)


def test_the_loss_of_scores_is_that_of_trl(tokenizer, pairs, tmp_path, trl):
    config, _ = Reward().with_heads(shape(tokenizer), 0)
    model = tiny.model(config)
    plain = build_model(shape(tokenizer), seed=1)
    plain.load_state_dict(model.state_dict(), strict=False)
    scorer = opened("AutoModelForSequenceClassification", plain, tokenizer, tmp_path / "model")
    scorer.config.num_labels = scorer.num_labels = 1
    scorer.config.pad_token_id = tokenizer.specials["<|endoftext|>"]
    scorer.score = torch.nn.Linear(config.dim, 1, bias=False)
    scorer.score.weight = model.pool.proj.weight
    trainer = trl.RewardTrainer(
        scorer,
        args=trl.RewardConfig(**SETTINGS),
        train_dataset=dataset(PAIRS),
        processing_class=processing(tokenizer, tmp_path / "tokenizer"),
    )
    inputs = next(iter(trainer.get_train_dataloader()))
    expected = trainer.compute_loss(scorer.eval(), inputs)
    loss = Reward().loss(model, batch_of(Reward(), tokenizer, pairs, model))
    assert_close(loss.sum / loss.count, expected.float(), atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_reward_is_a_class_of_theirs(tokenizer, pairs, tmp_path):
    """The scores of conversations, and of a text as each side's tokenizer frames it."""
    transformers = pytest.importorskip("transformers")
    config, notes = Reward().with_heads(shape(tokenizer), 0)
    assert "head over tokens is left out" in notes[0]
    model = tiny.model(config)
    scorer = opened("AutoModelForSequenceClassification", model, tokenizer, tmp_path)
    assert type(scorer).__name__ == "LlamaForSequenceClassification"
    batch = batch_of(Reward(), tokenizer, pairs, model)
    scores = forward(model, batch).pooled
    starts = (batch.pos == 0).flatten().nonzero()[:, 0].tolist()
    ids, pos = batch.tokens.flatten(), batch.pos.flatten()
    for start, score in zip(starts, scores, strict=True):
        length = next(
            (n for n in range(1, len(pos) - start) if pos[start + n] <= 0), len(pos) - start
        )
        assert_close(scorer(ids[start : start + length][None]).logits[0], score, atol=1e-5, rtol=0)
    again, reopened = store.load(tmp_path)
    reads = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("the cat", "b c d"):
        expected = glassformer.classify(model, tokenizer, text).probabilities
        assert torch.equal(glassformer.classify(again, reopened, text).probabilities, expected)
        assert_close(scorer(**reads(text, return_tensors="pt")).logits, expected, atol=1e-5, rtol=0)


def test_the_loss_of_answers_is_that_of_trl(tokenizer, tmp_path, trl):
    model = tiny.model(shape(tokenizer))
    policy = opened("AutoModelForCausalLM", model, tokenizer, tmp_path / "model")
    rows = [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in PAIRS]
    trainer = trl.SFTTrainer(
        policy,
        args=trl.SFTConfig(**SETTINGS),
        train_dataset=dataset(rows),
        processing_class=processing(tokenizer, tmp_path / "tokenizer"),
    )
    inputs = next(iter(trainer.get_train_dataloader()))
    expected = trainer.compute_loss(policy.eval(), inputs)
    path = tmp_path / "chat.jsonl"
    write_rows(path, rows)
    loss = Chat().loss(model, batch_of(Chat(), tokenizer, str(path), model))
    assert_close(loss.sum / loss.count, expected.float(), atol=1e-5, rtol=0)


def test_a_margin_that_changes_nothing_is_refused():
    with mistake("margin is for simpo alone"):
        Preference("dpo", margin=0.5)


@pytest.mark.parametrize("setting", [{"beta": 1e300}, {"beta": 1e-300}, {"margin": 1e300}])
def test_what_fp32_cannot_hold_is_refused(setting):
    (name,) = setting
    with mistake(f"{name} is 1e.300; give a number from 1e-06 to 1e\\+06"):
        Preference("simpo", **setting)
