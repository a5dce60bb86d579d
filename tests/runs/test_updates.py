"""A weight's updates add up to it in the optimizer's own numbers, and a gradient is its sequences'."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import glassformer
from glassformer.cli import main
from glassformer.core.training.batches import Batch
from glassformer.formats import store
from mistakes import mistake
from runs.test_replay import corpus, saved_run, thinned, trained  # noqa: F401

ADDRESSES = {
    "muon": "decoder.blocks.1.ffn.up.weight[3,5]",
    "muon's rest": "embed.token.weight[4,9]",
    "adamw": "decoder.blocks.0.attn.q.weight[5,-7]",
}


@pytest.fixture(scope="module")
def by_adamw(corpus, tmp_path_factory):  # noqa: F811
    return trained(corpus, tmp_path_factory.mktemp("adamw") / "run", optimizer="AdamW", lr="0.01")


def run_of(case, saved_run, by_adamw):  # noqa: F811
    return by_adamw if case == "adamw" else saved_run


def value_in(checkpoint, address):
    name, _, index = address.rstrip("]").partition("[")
    weights = dict(store.load(checkpoint)[0].named_parameters())
    return weights[name].detach().numpy()[tuple(map(int, index.split(",")))]


@pytest.mark.parametrize("case", ADDRESSES)
def test_updates_add_up_to_the_bit(case, saved_run, by_adamw, tmp_path):  # noqa: F811
    out, address = run_of(case, saved_run, by_adamw), ADDRESSES[case]
    few = thinned(out, tmp_path / "few", 9)  # the others come from the replay
    history = glassformer.weight_history(few, address)
    assert [x.step for x in history.updates] == list(range(1, 10))
    value = np.float32(history.start)
    for x in history.updates:
        saved = value_in(out / f"step-{x.step:06d}", address)
        assert np.float32(x.before) == value
        value = np.float32(value + np.float32(x.decay))
        value = np.float32(np.float64(value) + x.move)
        assert value == np.float32(x.after) == saved
        assert (x.decay == 0) == (case == "muon's rest")
    exact = Fraction(history.start) + sum(
        Fraction(x.decay) + Fraction(x.move) for x in history.updates
    )
    assert exact == Fraction(float(saved))
    assert history.remainder == 0
    assert len({x.after for x in history.updates}) == 9


def test_decay_and_move_are_those_of_torchs_adamw(by_adamw):
    """The same number alone, moved by torch's optimizer from the gradients that are printed."""
    history = glassformer.weight_history(by_adamw, ADDRESSES["adamw"])
    number = nn.Parameter(torch.tensor([history.start]))
    rates = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW([number], lr=1.0, fused=True, **rates)
    for x in history.updates:
        optimizer.param_groups[0]["lr"] = x.lr
        assert x.decay == pytest.approx(-x.lr * 0.1 * x.before, abs=2**-23 * abs(x.before))
        number.grad = torch.tensor([x.gradient])
        optimizer.step()
        assert number.item() == x.after


@pytest.mark.parametrize("case", ADDRESSES)
def test_a_gradient_is_the_sum_of_its_sequences(case, saved_run, by_adamw, tmp_path):  # noqa: F811
    """With dropout and in two micro-batches: each sequence has the draws that it had."""
    out, address = run_of(case, saved_run, by_adamw), ADDRESSES[case]
    step = 6
    texts = glassformer.update_texts(thinned(out, tmp_path / "few", 3, 9), address, step)
    (update,) = (x for x in glassformer.weight_history(out, address).updates if x.step == step)
    assert texts.update == update
    assert [x.row for x in texts.sequences] == [0, 1, 2, 3]
    size = sum(abs(x.gradient) for x in texts.sequences)
    assert size > 0
    assert abs(texts.difference) < 1e-6 * size
    assert all(len(x.text) == 16 for x in texts.sequences)


def test_a_row_that_is_changed_changes_its_own_gradient(saved_run, tmp_path, monkeypatch):  # noqa: F811
    """Each line's gradient belongs to its own text."""
    address = ADDRESSES["muon"]
    before = {x.row: x.gradient for x in glassformer.update_texts(saved_run, address, 6).sequences}
    split = glassformer.runs.updates.split

    def changed(batch: Batch, pieces):
        batch.targets[2] = -1  # the first row of the second piece
        return split(batch, pieces)

    monkeypatch.setattr(glassformer.runs.updates, "split", changed)
    after = {x.row: x.gradient for x in glassformer.update_texts(saved_run, address, 6).sequences}
    assert after[2] == 0 != before[2]
    # the mean is over fewer targets
    scale = after[0] / before[0]
    assert scale > 1
    assert [after[row] for row in (1, 3)] == pytest.approx([scale * before[row] for row in (1, 3)])


def test_the_command(saved_run, tmp_path, capsys):  # noqa: F811
    few, address = thinned(saved_run, tmp_path / "few", 9), ADDRESSES["muon"]
    assert main(["why", str(few), address, "--time", "--terms", "3"]) == 0
    sums, largest = (block.splitlines() for block in capsys.readouterr().out.split("\n\n"))
    assert sums[0] == address
    assert sums[-1].split()[-1] == "+0"  # nothing is missing in the sum
    assert len(largest) == 4
    assert main(["why", str(few), address, "--time", "--json"]) == 0
    updates = json.loads(capsys.readouterr().out)["updates"]
    first = max(updates, key=lambda x: abs(x["after"] - x["before"]))
    assert [float(word) for word in largest[1].split()] == pytest.approx([*first.values()])
    assert main(["why", str(few), address, "--time", "--step", "4", "--terms", "2"]) == 0
    assert "2 more" in capsys.readouterr().out


def test_what_cannot_be_opened(saved_run, corpus, tmp_path, capsys):  # noqa: F811
    name = "decoder.blocks.1.ffn.up.weight"
    for address, sentence in (
        ("decoder.blocks.1.ffn.up.wait[3,5]", f'no parameter that trains .* Did you mean "{name}"'),
        (f"{name}[3]", r"is not one number: give an index inside of \[\d+, 16\]"),
        (f"{name}[3,500]", "is not one number"),
        (f"{name}[3,:]", "is not one number"),
        (name, "is not one number"),
    ):
        with mistake(sentence):
            glassformer.weight_history(saved_run, address)
    with mistake("no step 10 in"):
        glassformer.update_texts(saved_run, f"{name}[3,5]", 10)
    assert main(["why", str(saved_run), f"{name}[3,5]", "--step", "3"]) == 2
    assert "add --time" in capsys.readouterr().err
    assert main(["why", str(saved_run), "--time"]) == 2
    assert "Give the text" in capsys.readouterr().err
    for option, sentence in (
        (["--edit", 'scale("logits", 2)'], "open a run as it was"),
        (["--up", "2"], "open a run as it was"),
        (["--dtype", "float32"], "leave --device and --dtype out"),
        (["--influence", "3"], "leave one out"),
    ):
        assert main(["why", str(saved_run), f"{name}[3,5]", "--time", *option]) == 2
        assert sentence in capsys.readouterr().err
