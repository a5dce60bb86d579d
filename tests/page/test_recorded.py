"""Models that are not ours on the page and in a notebook: sides, cards and mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("transformers")

import torch
from torch import nn

import glassformer
import recorded_models
import served
import tiny_transformers
from glassformer import UserError
from glassformer.cli import main
from glassformer.serve.page.models import RecordedEntry
from glassformer.sight.recording import ModuleTrace, outside

ATTENTIONS = {  # how many, and whose tokens they look at
    "Llama": (2, {()}),
    "GPT2": (2, {()}),
    "Bert": (2, {()}),
    "Mixtral": (2, {()}),
    "GptOss": (2, {()}),
    "DebertaV2": (2, {()}),
    "T5": (6, {(), ("S",), ("T", "S")}),
    "Bart": (6, {(), ("S",), ("T", "S")}),
    "ViT": (2, {()}),
    "Mamba": (0, set[tuple[str, ...]]()),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attentions_and_the_head_are_found_and_no_router_is_one(name):
    trace = ModuleTrace(tiny_transformers.build(name), (), tiny_transformers.inputs(name))
    attentions = [op for op in trace.plan if op.is_attention]
    count, looks = ATTENTIONS[name]
    assert len(attentions) == count and {op.of_source for op in attentions} == looks
    for op in attentions:
        rows = trace[op.id].sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows) * rows.max(), rtol=0, atol=1)
    assert (trace.plan.head is None) == (name == "ViT")
    if trace.plan.head is not None:
        assert trace.plan.head.value is trace.value("logits")
        assert trace.tokens.shape[1] == trace.plan.head.shape[-2]


def test_bookkeeping_is_hidden_and_every_operation_reads_what_is_on_the_map():
    trace = ModuleTrace(tiny_transformers.build("Llama"), (), tiny_transformers.inputs("Llama"))
    ids = [op.id for op in trace.plan]
    assert not [id for id in ids if re.search("position|mask|rotary", id)]
    assert all(set(op.inputs) <= set(ids) for op in trace.plan)
    assert {op.layer for op in trace.plan} == {None, 0, 1}
    assert len(ids) > 70


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    entry = RecordedEntry(
        "mine/T5", outside.from_transformers(str(recorded_models.saved("T5", folder)))
    )
    return served.client(served.page(entry))


def test_the_run_of_a_pair_says_whose_tokens_are_whose(client):
    run = client.ask("/api/runs", model="T5", text="the cat", source="a dog and a log")
    assert len(run["tokens"]) == 3 and len(run["source_tokens"]) == 5
    assert run["check"]["captured_vs_fast_max_abs"] is None and not run["abilities"]["edits"]
    address = "decoder.block.1.layer.1.EncDecAttention.pattern[0,1,2,4]"
    cell = client.answer(f"/api/runs/{run['run']}/cell", address=address)
    assert cell["source"] == "sight/recording/written_out.py:34" and cell["count"] == 5
    assert client.answer(f"/api/runs/{run['run']}/check") == {"captured_vs_fast_max_abs": 0.0}
    words = client.get("/api/vocab/T5").content
    assert words.startswith(len("[PAD]").to_bytes(4, "little") + b"[PAD]")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/api/runs", {"text": "the", "source": "a", "edits": ["mask_token(0)"]}, "own families"),
        ("/api/runs", {"text": "the"}, "two texts"),
        ("/api/generate", {"text": "the", "source": "a"}, "opened by its own code"),
        ("/api/contexts", {"word": "a", "texts": ["a", "a"]}, "own families"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(client, path, body, message):
    assert message in client.ask(path, model="T5", **body)["error"]


def test_a_folder_without_a_tokenizer_reads_ids(tmp_path):
    folder = recorded_models.saved("Bert", tmp_path, with_words=False)
    client = served.client(
        served.page(RecordedEntry("Bert", outside.from_transformers(str(folder))))
    )
    run = client.ask("/api/runs", model="Bert", text="5 6 7")
    assert [token["id"] for token in run["tokens"]] == [5, 6, 7]
    assert client.get("/api/vocab/Bert").content == b""
    assert "row of token ids" in client.ask("/api/runs", model="Bert", text="the cat")["error"]
    assert "IndexError" in client.ask("/api/runs", model="Bert", text="5 600")["error"]


def test_the_page_is_told_what_it_cannot_open(tmp_path, capsys):
    assert main(["page", "--from-transformers", str(tmp_path)]) != 0
    assert "holds no config.json" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert main(["page", "--from-transformers", str(tmp_path)]) != 0
    assert "transformers cannot load" in capsys.readouterr().err
    assert main(["page", "--model-file", "model.py"]) != 0
    assert "FILE.py:FUNCTION" in capsys.readouterr().err


class Tiny(nn.Module):
    """One layer of attention without heads of its own, over ids."""

    def __init__(self, draws: bool = False) -> None:
        super().__init__()
        self.embed, self.head, self.draws = nn.Embedding(20, 8), nn.Linear(8, 20), draws

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + torch.softmax(x @ x.transpose(-1, -2), -1) @ x
        return self.head(x + torch.rand_like(x) if self.draws else x)


def test_a_module_of_ones_own_is_drawn_with_its_ids_as_tokens(tmp_path):
    client = served.client(served.page(RecordedEntry("m.py:make", outside.Outside(Tiny()))))
    run = client.ask("/api/runs", model="m.py-make", text="5 3 8")
    (attention,) = [op for op in run["plan"] if op["kind"] == "softmax"]
    assert attention["axes"] == ["H", "T", "S"] and attention["shape"] == [1, 3, 3]
    (head,) = [op for op in run["plan"] if "logits" in op["names"]]
    assert head["axes"] == ["row", "T", "V"]
    drawn = served.client(served.page(RecordedEntry("m", outside.Outside(Tiny(draws=True)))))
    assert "random numbers" in drawn.ask("/api/runs", model="m", text="5 3 8")["error"]


def shows(trace: ModuleTrace, path: Path) -> Any:
    html = trace._repr_html_()
    assert html.startswith("<iframe") and "<details>" in html
    assert "glassformer-trace" in trace.save(path).read_text()
    return html


def test_a_notebook_shows_any_trace(tmp_path):
    reader = recorded_models.tokenizer()
    for name in ("Llama", "T5"):
        trace = glassformer.trace(tiny_transformers.build(name), reader, "the cat sat")
        html = shows(trace, tmp_path / f"{name}.html")
        assert "<td" in html.partition("<details>")[2]  # the likeliest words
        assert trace.tokens.shape == ((1, 1) if name == "T5" else (1, 3))
    shows(glassformer.trace(Tiny(), torch.tensor([[5, 3, 8]])), tmp_path / "tiny.html")
    vision = tiny_transformers.inputs("ViT")
    shows(glassformer.trace(tiny_transformers.build("ViT"), **vision), tmp_path / "vit.html")
    with pytest.raises(UserError, match=r"neither \.html"):
        trace.save(tmp_path / "it.txt")
