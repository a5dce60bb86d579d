"""Head scores: patterns made by hand give the numbers that they must, and so do heads made by hand
of weights."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch

import glassformer
import tiny
from by_hand import made_by_hand
from glassformer.formats import store
from glassformer.sight import look
from glassformer.sight.heads import SCORES, measure
from mistakes import mistake
from seeding import generator_from

L = 12
T = 2 * L + 1


def row_on(targets, sink=0.0, causal=True):
    """(1, T, T): each query spends ``sink`` on the first key, the rest on its target, or evenly
    where it has none."""
    pattern = torch.zeros(1, T, T, dtype=torch.double)
    for query in range(T):
        observed = query + 1 if causal else T
        even = torch.full((observed,), 1 / observed, dtype=torch.double)
        if query in targets:
            even = torch.zeros(observed, dtype=torch.double)
            even[targets[query]] = 1.0
        even *= 1 - sink
        even[0] += sink
        pattern[0, query, :observed] = even
    return pattern


NEVER = row_on({})
PREVIOUS = row_on({q: q - 1 for q in range(1, T)})
SECOND = range(L + 1, T)


def scores(repeated, shuffled=None, kind="causal"):
    stacked = torch.stack((repeated, NEVER if shuffled is None else shuffled))
    return {name: float(value) for name, value in measure(stacked, L, kind).scores.items()}


def test_patterns_made_by_hand_score_what_they_are():
    result = scores(PREVIOUS)
    assert (
        result["previous"] == pytest.approx(1) and result["induction"] == result["duplicate"] == 0
    )
    assert result["first"] == 0 and result["entropy"] == pytest.approx(0, abs=1e-9)
    result = scores(row_on({q: q - L + 1 for q in SECOND}))
    assert (
        result["induction"] == pytest.approx(1)
        and result["duplicate"] == 0
        and result["previous"] < 0.1
    )
    result = scores(row_on({q: q - L for q in SECOND}))
    assert result["duplicate"] == pytest.approx(1) and result["induction"] == 0
    result = scores(row_on(dict.fromkeys(range(T), 0)))
    assert result["first"] == 1 and result["previous"] == result["induction"] == 0
    result = scores(row_on({q: q + 1 for q in range(T - 1)}, causal=False), kind="both")
    assert (
        result["next"] == pytest.approx(1)
        and result["previous"] < 0.1
        and "induction" not in result
    )


def test_what_lies_on_the_first_token_is_taken_away_first():
    result = scores(row_on({q: q - 1 for q in range(1, T)}, sink=0.75))
    assert result["first"] == pytest.approx(0.75) and result["previous"] == pytest.approx(1)
    assert result["entropy"] == pytest.approx(0, abs=1e-9)
    even = torch.zeros(1, T, T, dtype=torch.double)
    even[..., :9] = 1 / 9
    assert scores(even)["entropy"] == pytest.approx(3)  # 8 keys but the first


def test_baselines_are_of_the_other_distances_the_shuffled_text_and_other_tokens():
    induction = row_on({q: q - L + 1 for q in SECOND})
    stored = measure(torch.stack((induction, PREVIOUS)), L, "causal")
    assert float(stored.baselines["induction"]) == 0 and stored.baselines["induction"].shape == (
        1,
        1,
    )
    # by its place alone, whatever stands there
    place = measure(torch.stack((induction, induction)), L, "causal")
    assert float(place.baselines["induction"]) == pytest.approx(float(place.scores["induction"]))
    assert stored.baselines["previous"].shape == (T // 4 - 1, 1) and stored.baselines[
        "first"
    ].shape == (T // 2 - 1, 1)
    spread = measure(torch.stack((NEVER, NEVER)), L, "causal")
    for name, value in spread.even.items():
        assert float(spread.scores[name]) == pytest.approx(value), name


def test_a_size_of_nothing_moves_nothing():
    """A sink whose value is zero takes all of the weight and moves nothing."""
    stacked = torch.stack((row_on({q: q - 1 for q in range(1, T)}, sink=0.9), NEVER))
    size = torch.ones(2, 1, T, dtype=torch.double)
    size[..., 0] = 0
    scores = measure(stacked, L, "causal", size).scores
    assert float(scores["first_norm"]) == 0 and float(scores["first"]) == pytest.approx(0.9)
    # the first two see only the sink
    assert float(scores["norm"]) == pytest.approx(0.1 * (T - 2) / T)


def test_heads_made_by_hand_of_weights_are_found():
    item, two = glassformer.head_scores(made_by_hand(), length=12, draws=4).heads
    assert (item.path, item.head) == ("decoder.blocks.0.attn", 0)
    assert item.scores["previous"] > 0.999 and item.labels == ("previous",)
    assert two.scores["induction"] > 0.999 and two.labels == ("induction",)
    assert two.baseline["induction"] < 0.1 and two.scores["previous"] < 0.2


def test_the_shuffled_text_has_the_same_tokens_and_repeats_none_in_its_place():
    from glassformer.sight.heads import _texts

    for seed in range(20):
        draw = generator_from(seed)
        (repeated, shuffled), _ = _texts(tiny.VOCAB, None, L, draw)
        assert torch.equal(repeated[1 : L + 1], repeated[L + 1 :])
        assert torch.equal(repeated[: L + 1], shuffled[: L + 1])
        assert torch.equal(repeated.sort()[0], shuffled.sort()[0])
        assert not (repeated[L + 1 :] == shuffled[L + 1 :]).any()
        followed = set(pairwise(repeated[1 : L + 1].tolist()))
        again = set(pairwise(shuffled[L + 1 :].tolist()))
        assert not followed & again


# of each kind of attention, mask, position and shape
KINDS = "gpt2 llama gemma2 mixtral alibi prefix deepseek_v2 lfm2 qwen3_next bert modernbert t5"


@pytest.mark.parametrize("name", [*KINDS.split(), "two vocabularies"])
def test_every_family_with_heads_is_measured(name):
    model = tiny.model(name)
    head_scores = glassformer.head_scores(model, draws=2, length=8)
    attentions = {path for path, module in model.named_modules() if hasattr(module, "kv_heads")}
    assert {head.path for head in head_scores.heads} == attentions
    for head in head_scores.heads:
        assert set(head.scores) == set(SCORES)
        shares = {name: head.scores[name] for name in SCORES if name not in ("entropy", "norm")}
        assert all(value is None or -1e-9 <= value <= 1 + 1e-9 for value in shares.values())
        causal = head.path.startswith("decoder.") and ".cross" not in head.path
        across = ".cross" in head.path
        assert (head.scores["induction"] is not None) == (
            causal or (across and name != "two vocabularies")
        )
        assert (head.scores["next"] is not None) == (not causal and not across)
    assert json.loads(json.dumps(head_scores.to_dict()))["draws"] == 2
    if name == "llama":  # the same draws each time
        assert glassformer.head_scores(model, draws=2, length=8).to_dict() == head_scores.to_dict()


def test_norms_are_those_of_a_plain_calculation():
    model = tiny.model("llama")  # grouped heads
    head_scores = glassformer.head_scores(model, draws=2, length=8, seed=3)
    from glassformer.sight.heads import _texts

    draw, expected = generator_from(3), []
    for _ in range(2):
        (repeated, _), _ = _texts(tiny.VOCAB, None, 8, draw)
        observed = look(model, None, repeated, "decoder.blocks.1.attn.*")
        pattern, v = (
            observed["decoder.blocks.1.attn.pattern"][0],
            observed["decoder.blocks.1.attn.v"][0],
        )
        out = model.decoder.blocks[1].attn.out.weight.detach()
        head, width = 3, v.shape[-1]
        sizes = torch.stack(
            [(out[:, head * width : (head + 1) * width] @ value).norm() for value in v[head // 2]]
        )
        expected.append((pattern[head] @ sizes).mean())
    individual = next(
        head for head in head_scores.heads if (head.path, head.head) == ("decoder.blocks.1.attn", 3)
    )
    assert individual.scores["norm"] == pytest.approx(float(torch.stack(expected).mean()), rel=1e-4)


def test_a_trained_model_has_heads_that_look_one_back(shared_data):
    model, tokenizer = glassformer.load(shared_data / "stories260K")
    ordered = glassformer.head_scores(model, tokenizer).sorted("previous")
    assert ordered.heads[0].scores["previous"] > 0.75 and ordered.heads[0].labels[0] == "previous"
    assert not any(
        head.labels
        for head in ordered.heads
        if head.path == "decoder.blocks.0.attn" and head.head > 3
    )


def test_bad_input_gets_a_sentence():
    with mistake("no attention heads"):
        glassformer.head_scores(tiny.model("gru"))
    model = tiny.model("llama")
    for wrong, message in (({"draws": 1}, "draws is 1"), ({"length": 3}, "length is 3")):
        with mistake(message):
            glassformer.head_scores(model, **wrong)
    with mistake('no score "indction"'):
        glassformer.head_scores(model, draws=2, length=4).sorted("indction")


def test_the_command_sorts_and_tells_all(tmp_path, terminal):
    store.save(made_by_hand(), tmp_path / "m", layout="glassformer")
    header, first, *_ = terminal(f"heads {tmp_path}/m --sort induction --length 12").splitlines()
    assert header.split()[:3] == ["attention", "head", "previous"]
    assert first.startswith("decoder.blocks.1.attn") and "induction" in first
    assert "12 random tokens twice" in terminal.notes
    (only,) = terminal.json(f"heads {tmp_path}/m --length 12 --top 1")["heads"]
    assert only["labels"] == ["previous"] and only["baseline"]["previous"] < 0.1
