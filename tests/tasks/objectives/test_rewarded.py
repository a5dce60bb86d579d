"""Answers that a model draws itself: the loss beside the papers' formulas, runs that resume, what a
reward may do wrong, and a task that is learned by its reward alone."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from folders import read_rows, write_rows
from glassformer import cli, runs
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.runs import run_file
from glassformer.tasks import rewards
from glassformer.tasks.encoded import Fit
from glassformer.tasks.examples import read_examples
from glassformer.tasks.objectives import Rewarded
from glassformer.tasks.objectives.rewarded import Rollout
from mistakes import mistake
from seeding import generator_from
from small_runs import run_and_resume

SIZES = [3, 1, 4, 2, 2, 5]  # tokens of two groups of three answers
REWARDS = [1.0, 0.0, 0.5, 2.0, 2.0, -1.0]


def transcribed(logs, drawn, reference, settings):
    """The objective of GRPO (Shao et al. 2024, equations 3 and 4), DAPO (Yu et al. 2025, equation 8)
    and Dr. GRPO (Liu et al. 2025), token by token."""
    starts = np.cumsum([0, *SIZES])
    sums, total = [], 0
    for i, size in enumerate(SIZES):
        group = np.array(REWARDS[:3] if i < 3 else REWARDS[3:])
        advantage = REWARDS[i] - group.mean()
        if settings.scale:
            advantage /= group.std(ddof=1) + 1e-4
        value = 0.0
        for t in range(starts[i], starts[i] + size):
            ratio = math.exp(logs[t] - drawn[t])
            high = 1 + (settings.clip_high or settings.clip)
            bounded = min(max(ratio, 1 - settings.clip), high)
            kl = math.exp(reference[t] - logs[t]) - (reference[t] - logs[t]) - 1
            value -= min(ratio * advantage, bounded * advantage) - settings.beta * kl
        sums.append(value)
        total += size
    if settings.method == "dapo":
        return sum(sums) / total
    divisors = SIZES if settings.method == "grpo" else [settings.max_new] * len(SIZES)
    return sum(s / d for s, d in zip(sums, divisors, strict=True)) / len(SIZES)


@pytest.mark.parametrize(
    "settings",
    [
        Rewarded(),
        Rewarded(beta=0.1),
        Rewarded(method="dapo", clip=0.1, clip_high=0.28),
        Rewarded(method="dr_grpo", scale=False, max_new=7),
    ],
    ids=["grpo", "grpo, kl", "dapo", "dr_grpo"],
)
def test_the_loss_is_that_of_the_paper(settings):
    draw = generator_from(1)
    drawn, logs, reference = (-2 + 0.3 * torch.randn(sum(SIZES), generator=draw) for _ in range(3))
    advantages = settings.advantages(torch.tensor(REWARDS).view(2, 3)).flatten()
    answer = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    texts = [[0]] * len(SIZES)
    rollout = Rollout(texts, [], [], torch.tensor(REWARDS), advantages, drawn, answer)
    total, count, facts = settings.policy_loss(logs, rollout, reference if settings.beta else None)
    expected = transcribed(logs.tolist(), drawn.tolist(), reference.tolist(), settings)
    assert abs(float(total) / count - expected) < 1e-5
    assert 0 < facts["clipped"] < 1


def test_a_token_that_is_clipped_has_no_gradient():
    settings = Rewarded()
    logs = torch.tensor([0.5, -0.5, 0.1], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, 1.0])
    rollout = Rollout([[0]] * 3, [], [], advantages, advantages, torch.zeros(3), torch.arange(3))
    settings.policy_loss(logs, rollout)[0].backward()
    clipped = settings.is_clipped(logs.detach().exp(), advantages)
    assert clipped.tolist() == (logs.grad == 0).tolist() == [True, False, False]


# ---------------------------------------------------------------------------------- runs

RUN = {
    "steps": 4,
    "batch": 4,
    "context": 48,
    "evaluate_every": 2,
    "save_every": 2,
    "tensorboard": False,
    "dtype": "float32",
    "data.type": "Examples",
}


@rewards.reward
def digits(answer, record):
    return sum(letter.isdigit() for letter in answer) / 3


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return model_of_sums(tmp_path_factory.mktemp("base"), 30)


def model_of_sums(folder, steps):
    """A small model that answers sums, some of them rightly, and prompts beside it."""
    sums = [(f"{a}+{b}", str(a + b)) for a in range(10) for b in range(10)]
    for name, second in (("chat", "completion"), ("prompts", "answer")):
        rows = ({"prompt": prompt, second: answer} for prompt, answer in sums)
        write_rows(folder / f"{name}.jsonl", rows)
    chat = {"recipe": "glass/200k", "data.tokenizer": "byte", "objective": "Chat"}
    chat |= {"data.train": str(folder / "chat.jsonl"), "batch": 8, "context": 64}
    chat |= {"steps": steps}
    runs.run(run_file.read_run(None, {**RUN, **chat}), folder / "model")
    return folder


def settings(base, objective="", **more):
    chosen = objective if "reward =" in objective else f', reward = "digits", group = 4{objective}'
    table = f'{{type = "Rewarded", max_new = 3{chosen}}}'
    paths = {"from": str(base / "model"), "data.train": str(base / "prompts.jsonl")}
    every = {**RUN, **paths, "objective": table, **more}
    return run_file.read_run(
        None, {name: value for name, value in every.items() if value is not None}
    )


def steps_of(folder):
    return read_rows(folder / "log.jsonl")


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        ("", {}),
        (", beta = 0.1", {"train.tune": '{type = "LoRA", rank = 2}'}),
        ("", {"dtype": "bfloat16", "accumulate": 2}),
    ],
    ids=["full", "lora, kl", "bf16, pieces"],
)
def test_a_resumed_run_is_the_undisturbed_one(objective, more, base, tmp_path, monkeypatch):
    chosen = settings(base, objective, **more)
    full_run, cut = run_and_resume(chosen, tmp_path / "whole", tmp_path / "cut", monkeypatch)
    assert {**full_run, "state.json": b""} == {**cut, "state.json": b""}
    steps = steps_of(tmp_path / "whole")
    assert {step[name] for step in steps for name in ("ratio_low", "ratio_high")} == {1.0}
    assert any(step["grad_norm"] > 0 for step in steps)


@pytest.mark.slow
def test_sums_are_learned_by_their_reward_alone(tmp_path):
    base = model_of_sums(tmp_path, 150)
    chosen = settings(
        base,
        ', method = "dapo", reward = "exact", group = 8',
        **{"steps": 150, "batch": 16, "optimizer.lr": 0.002, "evaluate_every": 50},
        **{"data.valid": str(base / "prompts.jsonl")},
    )
    runs.run(chosen, tmp_path / "run")
    rewards = [step["reward"] for step in steps_of(tmp_path / "run")]
    assert np.mean(rewards[:10]) < 0.65
    assert np.mean(rewards[-10:]) > 0.85


def test_a_rollout_is_shown_token_by_token(base, capsys):
    arguments = ["data", str(base / "prompts.jsonl"), "--with", str(base / "model")]
    arguments += ["--reward", "digits", "--group", "2", "--max-new", "3", "--json"]
    assert cli.main(arguments) in (0, None)
    records = json.loads(capsys.readouterr().out)
    records = records if isinstance(records, list) else [records]
    assert len(records) == 2
    for answer in records:
        assert len(answer["tokens"]) == len(answer["ids"]) > 0
        for drawn, training, ratio, _, clipped in answer["tokens"]:
            assert drawn == training
            assert ratio == 1
            assert not clipped


def test_a_rollout_without_room_names_its_option(base, terminal):
    line = f"data {base / 'prompts.jsonl'} --with {base / 'model'} --reward digits --max-new 4096"
    assert "lower --max-new, or shorten the prompt" in terminal.refused(line)


# ---------------------------------------------------------------------------- what goes wrong


def prompts(tmp_path, *rows):
    path = tmp_path / "prompts.jsonl"
    write_rows(path, rows)
    return str(path)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": "2"}, 'has no "prompt"'),
        ({"prompt": "  "}, "has nothing to answer"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "has nothing to answer",
        ),
    ],
    ids=["no prompt", "empty", "answered"],
)
def test_a_record_without_a_question_is_named_by_its_line(row, words, tmp_path):
    with mistake("line 2", words):
        read_examples(prompts(tmp_path, {"prompt": "a"}, row), Rewarded())


def test_prompts_are_plain_text_without_a_template(tmp_path):
    tokenizer = train_tokenizer("bpe", ["1+1 2+2"] * 4, 260)
    objective = Rewarded(max_new=4)
    objective.prepare_tokenizer(tokenizer)
    table = read_examples(prompts(tmp_path, {"prompt": "1+1"}), objective)
    encoded = objective.encode(table, tokenizer, Fit("prompts", 16, "no"))
    assert tokenizer.decode(next(iter(objective.prompts.values())).ids) == "1+1"
    assert encoded.labels.tolist() == [0]


def test_a_divergence_from_no_model_is_refused(base, tmp_path):
    new = {"from": None, "recipe": "glass/200k", "data.tokenizer": "byte"}
    chosen = settings(base, ", beta = 0.1", **new)
    with mistake('from = "FOLDER", or set train.objective.beta = 0.'):
        runs.run(chosen, tmp_path / "run")


def test_a_group_of_one_is_refused(tmp_path):
    objective = Rewarded(group=1)
    with mistake("A group of 1"):
        objective.encode(read_examples(prompts(tmp_path, {"prompt": "a"}), objective), None, None)


def test_the_weights_before_a_failed_reward_are_kept(base, tmp_path):
    calls = []

    def fails(answer, record):
        calls.append(answer)
        return math.nan if len(calls) > 70 else len(answer)

    rewards.REWARDS["fails"] = fails
    try:
        with mistake("is nan, which is no finite number", "prompts.jsonl line", "step-00000"):
            runs.run(
                settings(base, **{"objective.reward": "fails", "save_every": 0}), tmp_path / "run"
            )
    finally:
        del rewards.REWARDS["fails"]
    assert (tmp_path / "run" / "last").exists()
