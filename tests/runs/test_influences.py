"""What an influence estimates and what it measures, beside trainings of plain PyTorch and by hand."""

from __future__ import annotations

import json

import pytest
import torch

import glassformer
from glassformer import training
from glassformer.cli import main
from glassformer.runs.replay import Replay
from mistakes import mistake
from runs.test_replay import corpus, saved_run, thinned, trained  # noqa: F401

TEXT = "7 times 7 is 49.\n"


def test_left_out_is_trained_again_without_the_row(saved_run, tmp_path):  # noqa: F811
    """The measured rise is that of a training whose loop is run here, on batches changed by hand."""
    few = thinned(saved_run, tmp_path / "few", 4, 9)
    result = glassformer.influence(few, TEXT, count=2)
    model, tokenizer = glassformer.load(few / "step-000009")
    ids = torch.tensor([tokenizer.encode(TEXT)[:17]])

    def loss(model):
        model.eval()
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0]
        return torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item()

    assert result.loss == pytest.approx(loss(model), rel=1e-5)
    for x in (result.largest.sequences[0], result.random.sequences[1]):
        ready = Replay(saved_run).start(0)
        settings, state = ready.plan.settings.train, ready.state

        def batches(state=state, x=x):
            while True:
                batch = next(state.batches)
                if state.step + 1 == x.step:
                    text = tokenizer.decode(batch.tokens[x.row].tolist())
                    assert x.text == text
                    batch.targets[x.row] = -1
                yield batch

        steps = training.train(
            state.model,
            batches(),
            settings.objective,
            settings,
            state=state,
            execution=ready.execution,
        )
        assert len(list(steps)) == 9
        assert x.measured == pytest.approx(loss(state.model) - result.loss, abs=2e-6)
        assert abs(x.measured) > 1e-5


def test_of_plain_descent_the_estimate_is_the_derivative(corpus, tmp_path, monkeypatch):  # noqa: F811
    """One small step of plain descent: then first order is all there is."""
    changes = {"steps": "1", "decoder.dropout": "0", "accumulate": "1", "clip": "none", "keep": "1"}
    out = trained(
        corpus, tmp_path / "run", **changes, schedule="Constant", lr="1e-3", optimizer="AdamW"
    )

    def descend(self, factor):
        for parameter in self.parameters.values():
            parameter.data -= 1e-3 * parameter.grad

    monkeypatch.setattr(training.optimizer.Optimizer, "step", descend)
    # the checkpoint of the run is AdamW's: that of descent takes its place
    ready = Replay(out).start(0)
    assert len(list(ready.steps())) == 1
    weights = {name: p.detach().clone() for name, p in ready.state.model.named_parameters()}
    start = Replay.start

    def descended(self, step):
        ready = start(self, step)
        if step == 1:
            ready.state.model.load_state_dict(weights)
        return ready

    monkeypatch.setattr(Replay, "start", descended)
    result = glassformer.influence(out, TEXT, count=2)
    for x in (*result.largest.sequences, *result.random.sequences):
        assert x.estimate == pytest.approx(x.measured, rel=0.05, abs=2e-6)
        assert abs(x.estimate) > 1e-5
    assert result.largest.spearman == pytest.approx(1)


def test_the_command_and_what_it_refuses(saved_run, tmp_path, capsys):  # noqa: F811
    few = thinned(saved_run, tmp_path / "few", 9)
    assert main(["why", str(few), TEXT, "--influence", "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {len(record[name]["sequences"]) for name in ("largest", "random")} == {2}
    sizes = [abs(x["estimate"]) for x in record["largest"]["sequences"]]
    assert min(sizes) >= max(abs(x["estimate"]) for x in record["random"]["sequences"])
    text = "\n".join(glassformer.influence(few, TEXT, count=2).lines())
    assert "2 sequences" in text and "most influential" in text and "random" in text
    with mistake("fewer sequences than twice that"):
        glassformer.influence(few, TEXT, count=19)
    with mistake("fewer than two tokens"):
        glassformer.influence(few, "7")
