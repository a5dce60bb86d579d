"""Distillation: the loss written out by torch's own kl_div, from a teacher and from its saved logits;
runs that go on bit for bit."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import tiny
from folders import write_rows
from glassformer import runs
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store
from glassformer.runs import run_file
from glassformer.tasks.encoded import encode
from glassformer.tasks.example_batches import ExampleBatches
from glassformer.tasks.examples import read_examples
from glassformer.tasks.objectives import Chat, Distill, distill
from mistakes import mistake
from small_runs import run_and_resume

ROWS = [
    {"prompt": "the cat", "completion": "sat on the mat"},
    {"prompt": "the dog sat on", "completion": "the log"},
    {"prompt": "a", "completion": "b c d"},
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A teacher and its student with one tokenizer, and conversations."""
    path = tmp_path_factory.mktemp("distill")
    texts = ["the cat sat on the mat and the dog sat on the log a b c d"] * 4
    tokenizer = train_tokenizer("bpe", texts, 300, Chat.specials)
    Chat().prepare_tokenizer(tokenizer)
    embed = dataclasses.replace(tiny.DECODERS["llama"].embed, vocab=tokenizer.size)
    cfg = dataclasses.replace(tiny.DECODERS["llama"], embed=embed, context=128)
    for name, seed in (("teacher", 1), ("student", 2)):
        store.save(build_model(cfg, seed=seed), path / name, tokenizer)
    write_rows(path / "chat.jsonl", ROWS * 4)
    return path


def batch_of(objective, home):
    """A packed batch of all conversations, in an order of its own."""
    model, tokenizer = store.load(home / "student")
    table = read_examples(str(home / "chat.jsonl"), objective)
    encoded = encode(table, tokenizer, objective, model.config, 128)
    return model, next(ExampleBatches(encoded, 2, 128, seed=5))


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(("temperature", "alpha"), [(2.0, 0.3), (1.0, 1.0)])
def test_the_loss_is_that_of_kl_div(saved, temperature, alpha, home, tmp_path):
    teacher, _ = store.load(home / "teacher")
    more = {"logits": str(tmp_path / "l.npz"), "top": 7} if saved else {}
    settings = {"teacher": str(home / "teacher"), "temperature": temperature, "alpha": alpha}
    model, batch = batch_of(Distill(**settings, **more), home)
    if saved:  # the file is enough
        settings["teacher"] = ""
        model, batch = batch_of(Distill(**settings, **more), home)
    loss = Distill(**settings, **more).loss(model, batch)
    at = batch.targets >= 0
    q, p = (
        x(batch.tokens, pos=batch.pos, document_ids=batch.document_ids).logits[at].double()
        for x in (model, teacher)
    )
    hard = F.cross_entropy(q, batch.targets[at], reduction="sum")
    logs = (q / temperature).log_softmax(-1)
    if saved:
        best = p.topk(7)
        p, logs = best.values, logs.gather(1, best.indices)
    goal = (p / temperature).log_softmax(-1)
    soft = F.kl_div(logs, goal, reduction="sum", log_target=True)
    expected = alpha * temperature**2 * soft + (1 - alpha) * hard
    assert_close(loss.sum.double() / int(at.sum()), expected / at.sum(), atol=1e-5, rtol=1e-5)
    assert_close(loss.metrics["divergence"].double(), soft / at.sum(), atol=1e-5, rtol=1e-5)
    assert int(loss.count) == int(at.sum())
    (gradient,) = torch.autograd.grad(loss.sum, model.embed.token.weight)
    assert gradient.abs().max() > 0


def test_a_student_that_is_its_teacher_diverges_by_nothing(home):
    objective = Distill(teacher=str(home / "student"), alpha=1.0)
    model, batch = batch_of(objective, home)
    assert objective.loss(model, batch).sum.item() == pytest.approx(0, abs=1e-4)


def test_what_is_refused_says_so(home, tmp_path):
    with mistake("Distill.alpha is 0.0; give a share above 0"):
        Distill(teacher="any", alpha=0.0)
    with mistake("Distill learns from a teacher; name it"):
        batch_of(Distill(), home)
    with mistake("another tokenizer than the student"):
        batch_of(Distill(teacher="tiny"), home)
    with mistake("top is of saved logits alone", "train.objective.logits"):
        batch_of(Distill(teacher=str(home / "teacher"), top=3), home)
    with mistake("has no logits of", "teacher"):
        batch_of(Distill(logits=str(tmp_path / "none.npz")), home)
    for text in ("x", ""):
        (tmp_path / "bad.npz").write_text(text)
        with mistake("is no file of saved logits"):
            batch_of(Distill(logits=str(tmp_path / "bad.npz")), home)
    np.savez(tmp_path / "bad.npz", keys=["a"], sizes=[1, 2], ids=[[0]], logits=[[0.0]])
    with mistake("is no file of saved logits"):
        batch_of(Distill(logits=str(tmp_path / "bad.npz")), home)
    saved = {"teacher": str(home / "teacher"), "logits": str(tmp_path / "l.npz")}
    batch_of(Distill(**saved, top=3), home)
    with mistake("holds the 3 likeliest tokens of each place; set train.objective.top = 3"):
        batch_of(Distill(**saved), home)


def test_saved_logits_are_those_of_the_teacher_that_is_named(home, tmp_path):
    """A file that another teacher filled is added to; a vocabulary smaller than ``top`` is whole."""
    objectives = [
        Distill(teacher=str(home / name), logits=str(tmp_path / "l.npz"), top=10_000, alpha=1.0)
        for name in ("teacher", "student")
    ]
    losses = []
    for objective in (*objectives, dataclasses.replace(objectives[1], teacher="")):
        model, batch = batch_of(objective, home)
        losses.append(objective.loss(model, batch).sum.item())
    assert losses[0] > 1
    assert losses[1] == losses[2] == pytest.approx(0, abs=1e-4)


def test_a_run_does_not_go_on_with_another_teacher(home, tmp_path):
    shutil.copytree(home / "teacher", tmp_path / "teacher")
    more = {"from": str(home / "student"), "data.train": str(home / "chat.jsonl")}
    more |= {"objective": "Distill", "train.objective.teacher": str(tmp_path / "teacher")}
    runs.run(run_file.read_run(None, {**SIZES, **more, "steps": 2}), tmp_path / "run")
    shutil.copytree(home / "student", tmp_path / "teacher", dirs_exist_ok=True)
    distill._teacher.cache_clear()
    with mistake("another content of the training data"):
        runs.run(run_file.read_run(None, {**SIZES, **more}), tmp_path / "run", resume=True)


SIZES = {
    "steps": 4,
    "batch": 2,
    "context": 64,
    "evaluate_every": 2,
    "save_every": 2,
    "tensorboard": False,
    "dtype": "float32",
    "data.type": "Examples",
}


@pytest.mark.parametrize(
    "more",
    [{}, {"train.tune": '{type = "LoRA", rank = 2}', "train.objective.logits": "l.npz"}],
    ids=["full", "lora, saved"],
)
def test_a_resumed_run_is_the_undisturbed_one(more, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = {**more, "from": str(home / "student"), "data.train": str(home / "chat.jsonl")}
    more |= {"objective": "Distill", "train.objective.teacher": str(home / "teacher")}
    settings = run_file.read_run(None, {**SIZES, **more})
    full_run, cut = run_and_resume(settings, tmp_path / "whole", tmp_path / "cut", monkeypatch)
    assert {**full_run, "state.json": b""} == {**cut, "state.json": b""}
