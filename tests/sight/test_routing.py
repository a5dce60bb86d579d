"""Which tokens go to which expert: the log says what the mixtures did, and watching changes
nothing."""

from __future__ import annotations

import collections
from dataclasses import replace

import pytest
import torch

import tiny
from folders import squares
from glassformer import config as c
from glassformer import runs
from glassformer.core.nn import Tape, build_model
from glassformer.runs import callbacks, run_file
from glassformer.runs.callbacks import read_log
from glassformer.sight.routing import Routes, count_routes

MOE = c.MoE(4, 2, c.MLP(32, "gelu"))


def pairs(tokens, chosen, local=None):
    """Counts of (token, expert), by hand."""
    rows = zip(tokens.flatten().tolist(), chosen.flatten(0, 1).tolist(), strict=True)
    saved = [True] * tokens.numel() if local is None else local.flatten().tolist()
    counter = collections.Counter()
    for keep, (token, experts) in zip(saved, rows, strict=True):
        if keep:
            counter.update((token, expert) for expert in experts)
    return dict(counter)


def counts_by_pair(routes):
    return {
        divmod(pair, routes.experts): n
        for pair, n in zip(routes.pair.tolist(), routes.times.tolist(), strict=True)
    }


def test_every_choice_is_counted_and_padding_is_not():
    model = tiny.model("mixtral", 0)
    first, second = tiny.tokens(), tiny.tokens().flip(1)
    pos = torch.arange(first.shape[1]).repeat(len(first), 1)
    pos[0, -5:] = -1
    path = "decoder.blocks.1.ffn"
    tape, second_tape = Tape("*.chosen"), Tape("*.chosen")
    plain = model(first, pos=pos, tape=tape).logits, model(second, tape=second_tape).logits
    with count_routes(model) as routes:
        watched = model(first, pos=pos).logits, model(second).logits
    assert all(torch.equal(*two) for two in zip(plain, watched, strict=True))
    assert len(routes) == len(model.decoder.blocks)
    counter = collections.Counter(pairs(first, tape[f"{path}.chosen"], pos >= 0))
    counter.update(pairs(second, second_tape[f"{path}.chosen"]))
    assert counts_by_pair(routes[path]) == dict(counter)
    model(first)
    assert counts_by_pair(routes[path]) == dict(counter)  # nothing is watched any more


def test_an_encoder_counts_its_own_tokens():
    body = tiny.vaswani()
    mixed = replace(body.encoder, pattern=(replace(body.encoder.pattern[0], feedforward=MOE),))
    model = tiny.model(replace(body, encoder=mixed), seed=0)
    source, target = tiny.tokens(), tiny.tokens()[:, :4].contiguous()
    source_pos = torch.arange(source.shape[1]).repeat(len(source), 1)
    source_pos[1, 6:] = -1
    tape = Tape("*.chosen")
    model(target, source=source, source_pos=source_pos, tape=tape)
    with count_routes(model) as routes:
        model(target, source=source, source_pos=source_pos)
    for path, route in routes.items():
        assert path.startswith("encoder.")
        assert counts_by_pair(route) == pairs(source, tape[f"{path}.chosen"], source_pos >= 0)


def test_nothing_is_watched_where_there_are_no_experts():
    model = build_model(tiny.gpt2(), seed=0)
    with count_routes(model) as routes:
        assert not model._forward_hooks and not model._forward_pre_hooks
        model(tiny.tokens())
    assert routes == {}


def test_an_experts_own_tokens_by_hand():
    """Token 7 is read at four places, 8 at two; each place chooses two experts."""
    # nothing to expert 3
    routes = Routes(4, 2, torch.tensor([28, 29, 30, 33, 34]), torch.tensor([4, 3, 1, 2, 2]))
    assert routes.top_tokens() == [
        {"share": 4 / 12, "tokens": [(7, 4, 1.0)]},  # 4 beyond 8 * 4 / 12
        # 2 beyond 4 * 5 / 12; 7's three are fewer than 8 * 5 / 12
        {"share": 5 / 12, "tokens": [(8, 2, 1.0)]},
        {"share": 3 / 12, "tokens": [(8, 2, 1.0)]},
        {"share": 0.0, "tokens": []},
    ]
    assert [len(top_token["tokens"]) for top_token in routes.top_tokens(limit=0)] == [0, 0, 0, 0]


SETTINGS = {
    "dim": "16",
    "decoder.depth": "2",
    "decoder.pattern.attention.heads": "2",
    "context": "16",
    "batch": "4",
    "steps": "6",
    "evaluate_every": "3",
    "save_every": "3",
    "evaluate_batches": "2",
    "data.tokenizer": "char",
    "tensorboard": "false",
}
EXPERTS = """
[model.decoder.pattern.feedforward]
type = "MoE"
experts = 4
top_k = 2
expert = { type = "GatedMLP", hidden = 32 }
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "squares.txt"
    path.write_text(squares(400))
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_logs_it_at_each_validation(corpus, tmp_path, dtype):
    (tmp_path / "moe.toml").write_text(EXPERTS)
    out, settings = tmp_path / "run", {**SETTINGS, "data.train": str(corpus), "dtype": dtype}
    runs.run(run_file.read_run(tmp_path / "moe.toml", settings), out)
    lines = read_log(out / "routing.jsonl")
    assert [(line["step"], line["mixture"]) for line in lines] == [
        (step, f"decoder.blocks.{block}.ffn") for step in (3, 6) for block in (0, 1)
    ]
    for line in lines:
        assert line["choices"] == 2 * 2 * 4 * 16  # top_k, evaluate_batches, batch, context
        assert len(line["experts"]) == 4 and sum(
            item["share"] for item in line["experts"]
        ) == pytest.approx(1, abs=1e-4)
        for item in line["experts"]:
            assert all(
                0 < share <= 1 and times <= line["choices"] / 2
                for _, times, share in item["tokens"]
            )
    letters = {token for line in lines for item in line["experts"] for token, *_ in item["tokens"]}
    assert letters <= set("0123456789 times.\n") and len(letters) > 5
    before = (out / "routing.jsonl").read_text()
    runs.run(run_file.read_run(tmp_path / "moe.toml", settings), out, resume=True)
    assert (out / "routing.jsonl").read_text() == before


def test_a_run_that_dies_while_it_saves_has_logged_its_routes(corpus, tmp_path, monkeypatch):
    """Saved routes were logged before: going on from them leaves no hole."""

    def die(self, step):
        raise RuntimeError("the machine died")

    (tmp_path / "moe.toml").write_text(EXPERTS)
    monkeypatch.setattr(callbacks.Save, "save", lambda self, step, best=False: die(self, step))
    with pytest.raises(RuntimeError, match="died"):
        runs.run(
            run_file.read_run(tmp_path / "moe.toml", {**SETTINGS, "data.train": str(corpus)}),
            tmp_path / "run",
        )
    assert [line["step"] for line in read_log(tmp_path / "run" / "routing.jsonl")] == [3, 3]


def test_a_run_without_experts_has_no_such_file(corpus, tmp_path):
    runs.run(run_file.read_run(None, {**SETTINGS, "data.train": str(corpus)}), tmp_path / "run")
    assert not (tmp_path / "run" / "routing.jsonl").exists()
