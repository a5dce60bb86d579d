"""A saved page computes as PyTorch does: any text, every number, its arithmetic, what it writes."""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
import torch

import glassformer
import served
import tiny
from glassformer.core.generation import generate
from glassformer.sight import answers
from glassformer.sight.lens import logit_lens
from glassformer.sight.recording.program import FUNCTIONS
from glassformer.sight.recording.trace import Trace
from seeding import generator_from

FOLDER = Path(glassformer.__file__).parent / "models/tiny"
OWN, OTHER = (
    "The animal didn't cross the street",
    "Once upon a time — a  cat\n\nsaw 23 naïve birds!",
)
RECURRENT = {*tiny.RECURRENT, "reader", "mamba2", "qwen3_next"}
VALUES = "ids => Promise.all(ids.map(id => __glassformer.values(id)))"
CELLS = "all => Promise.all(all.map(address => __glassformer.cell(address, 16)))"


@pytest.fixture(scope="module")
def shipped():
    model, tokenizer = glassformer.load(FOLDER)
    return model.float().eval(), tokenizer


@pytest.fixture(scope="module")
def saved(shipped, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "tiny.html"
    glassformer.trace(*shipped, OWN).save(path)
    return path


@pytest.fixture
def opened(tab):
    """opened(FILE, HASH): that file on the screen."""

    def show(path, place="", loaded=True):
        tab.goto("about:blank")
        tab.goto(f"{path.as_uri()}{place}")
        if loaded:
            until(tab, "!!globalThis.__glassformer?.run?.()")
        return tab

    yield show
    tab.goto("about:blank")


QUICK = {
    "gpt2",
    "gemma2",
    "mixtral",
    "bert",
    "t5",
    "mamba2",
}
"""One family of each kind; ``make test-all`` has them all."""


def until(tab, truth):
    """A saved page's policy lets nothing ask it again and again from inside."""
    deadline = time.monotonic() + 60
    while not tab.evaluate(truth):
        assert time.monotonic() < deadline, (truth, tab.inner_text("body")[:400])
        time.sleep(0.02)


def type_text(tab, text):
    before = tab.evaluate("__glassformer.run().run")
    tab.fill("#prompt", text)
    tab.press("#prompt", "Enter")
    until(tab, f"__glassformer.run().run !== {before!r}")


def compare(tab, trace):
    """Every value of the plan, as the page has it and as PyTorch gives it."""
    ids = [op.id for op in trace.plan]
    assert tab.evaluate("__glassformer.run().plan.map(op => op.id)") == ids
    for name, numbers in zip(ids, tab.evaluate(VALUES, ids), strict=True):
        expected = trace[name].double().flatten()
        actual = torch.tensor(list(map(float, numbers)), dtype=torch.float64)
        assert actual.shape == expected.shape, name
        finite = expected.isfinite()
        assert torch.equal(actual[~finite], expected[~finite]), name
        if finite.any():  # products may be far larger than what they add up to
            scale = 1.0 if name == "probs" else max(1.0, expected[finite].abs().max())
            assert (actual - expected)[finite].abs().max() < 1e-5 * scale, name


def test_the_shipped_model_reads_any_text(saved, shipped, opened):
    assert saved.stat().st_size <= 5_000_000
    tab = opened(saved)
    assert set(tab.evaluate("__glassformer.functions")) == FUNCTIONS
    compare(tab, glassformer.trace(*shipped, OWN))
    type_text(tab, OTHER)
    trace = glassformer.trace(*shipped, OTHER)
    run = tab.evaluate("__glassformer.run()")
    expected = answers.run(trace, answers.spans(shipped[1], trace.tokens[0].tolist(), OTHER), None)
    for op in expected["plan"]:
        op["params"].pop("arguments", None)
    for key in ("tokens", "plan", "streams", "weights", "task", "kind"):
        assert run[key] == expected[key], key
    compare(tab, trace)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in tiny.ALL
        if name not in {*RECURRENT, "rwkv", "rwkv7"}
    ],
)
def test_families(name, opened, tmp_path):
    cfg = tiny.ALL[name]
    model = tiny.model(cfg)
    luck = generator_from(3)
    source = torch.randint(cfg.embed.vocab, (1, 6), generator=luck) if cfg.has_source else None
    ids, changed_ids = (torch.randint(cfg.embed.vocab, (1, n), generator=luck) for n in (8, 13))
    path = Trace(model, None, ids, source).save(tmp_path / "it.html")
    tab = opened(path)
    compare(tab, Trace(model, None, ids, source))
    if source is None:
        tab = opened(path, f"#inside?i={'.'.join(map(str, changed_ids[0].tolist()))}")
        compare(tab, Trace(model, None, changed_ids))


@pytest.mark.parametrize("name", ["shipped", "gpt2", "mixtral", "gemma2", "t5"])
def test_cells(name, shipped, saved, opened, tmp_path):
    if name == "shipped":
        trace, path = glassformer.trace(*shipped, OWN), saved
    else:
        cfg = tiny.ALL[name]
        model, ids = tiny.model(cfg), torch.arange(9)[None]
        trace = Trace(model, None, ids, ids[:, :6] if cfg.has_source else None)
        path = trace.save(tmp_path / "it.html")
    luck = random.Random(4)
    addresses = []
    for op in trace.plan:
        for _ in range(2):
            index = [luck.randrange(size) for size in op.shape[op.value.batch :]]
            addresses.append(f"{op.id}[{','.join(map(str, index))}]" if index else op.id)
    names = [*trace.plan.weights][:20]
    addresses += [f"{weight}[{','.join('0' for _ in trace[weight].shape)}]" for weight in names]
    for address, cell in zip(addresses, opened(path).evaluate(CELLS, addresses), strict=True):
        expected = answers.cell(trace, address, 16)
        keys = ("address", "kind", "place", "equation", "count", "source", "next", "python")
        assert {key: cell[key] for key in keys} == {key: expected[key] for key in keys}
        for key in ("value", "recomputed"):
            assert float(cell[key]) == pytest.approx(float(expected[key]), rel=1e-5, abs=1e-5), (
                address
            )
        terms = {term["term"]: term for term in cell["terms"]}
        for term in expected["terms"][:8]:
            if term["term"] not in terms and abs(float(term["value"])) < 1e-4:
                continue  # of equal size: others may come first
            operands = [x["address"] for x in term["operands"]]
            assert [x["address"] for x in terms[term["term"]]["operands"]] == operands, address
            assert float(terms[term["term"]]["value"]) == pytest.approx(
                float(term["value"]), rel=1e-4, abs=1e-5
            )


def test_it_writes_what_the_command_line_writes(shipped, saved, opened):
    tab = opened(saved)
    type_text(tab, OTHER)
    tab.get_by_role("button", name="Playground", exact=True).click()
    tab.click("text=Generate")
    tab.wait_for_selector("text=ended: length")
    text = "".join(step.text for step in generate(*shipped, OTHER, max_new=48, seed=1337))
    strip = tab.locator('[aria-label^="what was written"] button')
    written = "".join(strip.all_inner_texts())
    assert written.replace("·", " ").replace("↵", "\n").strip() == text.strip()


def test_a_token_takes_less_than_a_tenth_of_a_second(saved, opened):
    tab = opened(saved)
    times = tab.evaluate(
        """async () => {
        const times = [], ids = __glassformer.run().tokens.map(one => one.id);
        await __glassformer.generate({ids, max_new: 60, seed: 1, settings: {temperature: 1, top_k: null, top_p: null,
            min_p: null, repetition_penalty: 1}}, token => token.ms && times.push(token.ms));
        return times;
    }"""
    )
    # other programs take their share of the cores
    assert len(times) == 60 and statistics.quantiles(times)[0] < 100, times


def test_lens(shipped, saved, opened):
    tab = opened(saved)
    lens = tab.evaluate("__glassformer.lens({positions: [2, 5, 6], track: [17], top: 5})")
    expected = logit_lens(*shipped, OWN, positions=[2, 5, 6], track=[17])
    assert lens["depths"] == expected.depths and lens["top"] == expected.top
    assert lens["tracked"][0]["rank"] == expected.tracked[0].rank
    for key in ("probability", "entropy", "kl"):
        torch.testing.assert_close(
            torch.tensor(lens[key]), torch.tensor(getattr(expected, key)), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    "edits",
    [
        ['head_off("decoder.blocks.1.attn", 2)'],
        ['head_off("decoder.blocks.2.attn", 0, "mean")', 'mlp_off("decoder.blocks.0.ffn")'],
        ['attn_off("decoder.blocks.3.attn")'],
    ],
)
def test_edits(edits, shipped, saved, opened):
    tab = opened(saved, f"#inside?e={quote(json.dumps(edits))}")
    expected = glassformer.trace(*shipped, OWN, edits=edits)["logits"].flatten()
    (logits,) = tab.evaluate(VALUES, ["logits"])
    torch.testing.assert_close(torch.tensor(logits), expected, rtol=0, atol=1e-4)
    assert not torch.allclose(expected, glassformer.trace(*shipped, OWN)["logits"].flatten())
    changed = {"head_off": "attn.z[2,0,0]", "attn_off": "attn.write[0,0]"}[edits[0][:8]]
    cell = tab.evaluate(f'__glassformer.cell("decoder.blocks.{edits[0][25]}.{changed}")')
    assert cell["edited"] or "mean" in edits[0]


def test_what_it_cannot_is_said(saved, opened, tmp_path):
    tab = opened(saved)
    tab.fill("#prompt", "")
    tab.press("#prompt", "Enter")
    tab.wait_for_selector("text=There is no text; type one.")
    edits = json.dumps(["mask_token(2)"])
    tab = opened(saved, f"#inside?e={quote(edits)}", loaded=False)
    tab.wait_for_selector("text=does not make the edit mask_token(2)")
    cfg = tiny.ALL["llama"]
    words = served.tokenizer("unigram")
    model = tiny.model(replace(cfg, embed=replace(cfg.embed, vocab=words.size)))
    tab = opened(glassformer.trace(model, words, "a cat").save(tmp_path / "it.html"))
    tab.fill("#prompt", "another text")
    tab.press("#prompt", "Enter")
    tab.wait_for_selector("text=does not have the model's tokenizer")


@pytest.mark.parametrize("name", ["gru", "cho", "rwkv", "rwkv7"])
def test_a_model_whose_steps_follow_the_text_is_saved_as_numbers(name, opened, tmp_path):
    cfg = tiny.ALL[name]
    model, ids = tiny.model(cfg), torch.arange(6)[None]
    tab = opened(
        Trace(model, None, ids, ids if cfg.has_source else None).save(tmp_path / "it.html")
    )
    assert tab.get_by_role("button", name="Run ⏎", exact=True).is_disabled()
