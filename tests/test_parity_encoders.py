"""BERT, T5 and the 2017 model against transformers, on tiny random models: theirs loaded here, ours loaded there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer import UserError, config, recipes, store
from glassformer.nn import build_model

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TOLERANCE = 1e-5
VOCAB = 61


def shaken(model: Any, seed: int = 0) -> Any:
    """The model with every parameter random: published code starts biases at zero and norms at one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def tokens(length: int = 24, seed: int = 1) -> Tensor:
    return torch.randint(2, VOCAB, (3, length), generator=torch.Generator().manual_seed(seed))


def files(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0.0, atol=TOLERANCE)


def same_files(one: Path, other: Path, leftover: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    before, after = files(one), files(other)
    assert before.keys() - after.keys() == leftover and not after.keys() - before.keys()
    assert all(torch.equal(before[name], after[name]) for name in after)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


# ------------------------------------------------------------------------------------------- BERT

BERT: dict[str, tuple[str, dict[str, Any]]] = {
    "bare": ("BertModel", {}),
    "words": ("BertForMaskedLM", {}),
    "words, untied": ("BertForMaskedLM", {"tie_word_embeddings": False}),
    "pretraining": ("BertForPreTraining", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "pretraining, untied": ("BertForPreTraining", {"tie_word_embeddings": False}),
    "next sentence": ("BertForNextSentencePrediction", {}),
    "five labels": ("BertForSequenceClassification", {"num_labels": 5, "classifier_dropout": 0.3}),
    "one label": ("BertForSequenceClassification", {"num_labels": 1, "hidden_dropout_prob": 0.0}),
    "one segment, wide": ("BertForMaskedLM", {"type_vocab_size": 1, "intermediate_size": 80, "hidden_act": "relu"}),
    "one head": ("BertForPreTraining", {"num_attention_heads": 1, "num_hidden_layers": 1}),
    "odd heads": ("BertForPreTraining", {"hidden_size": 35, "num_attention_heads": 5}),
}


def bert(kind: str, **changes: Any) -> Any:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 40,
        "initializer_range": 0.15,
    }
    return shaken(getattr(transformers, kind)(transformers.BertConfig(**{**sizes, **changes})))


def padding(side: str) -> Tensor:
    """Which of 24 columns hold something, (3, 24)."""
    there = torch.arange(24) < torch.tensor([24, 17, 9])[:, None]
    return there if side == "right" else there.flip(1)


def equal_bert(ours: Any, theirs: Any, side: str = "right") -> None:
    """Hidden states, logits and what is pooled, of padded rows with two segments where there are two."""
    there, ids = padding(side), tokens()
    segments = (torch.arange(24) > 7).long().expand(3, -1) % theirs.config.type_vocab_size
    pos = there.long().cumsum(1) - 1
    told = pos.clamp(min=0) if side == "left" else None  # theirs counts columns unless told
    out = theirs(ids, there.long(), token_type_ids=segments, position_ids=told, output_hidden_states=True)
    mine = ours(ids, pos=pos.masked_fill(~there, -1), segments=segments)
    states = out.hidden_states[-1] if "hidden_states" in out else out.last_hidden_state
    close(mine.hidden[there], states[there])
    words = out.get("prediction_logits", out.get("logits") if ours.config.head else None)
    assert (words is None) == (ours.config.head is None)
    if words is not None:
        close(mine.logits[there], words[there])
    pooled = out.get(
        "seq_relationship_logits", out.get("pooler_output", None if ours.config.head else out.get("logits"))
    )
    assert (pooled is None) == (ours.config.pool is None)
    if pooled is not None and side == "right":  # theirs takes the first column, which is padding on the left
        close(mine.pooled, pooled)


@pytest.mark.parametrize("name", BERT)
def test_bert_both_ways(name: str, tmp_path: Path) -> None:
    kind, changes = BERT[name]
    theirs = bert(kind, **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, _ = store.load(tmp_path / "theirs")
    for side in ("right", "left"):
        equal_bert(ours, theirs, side)
    store.save(ours, tmp_path / "ours", layout="hf")
    saved = json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"][0]
    assert saved == ("BertForSequenceClassification" if kind == "BertForNextSentencePrediction" else kind)
    again = getattr(transformers, saved).from_pretrained(tmp_path / "ours").eval()
    equal_bert(ours, again)
    back, _ = store.load(tmp_path / "ours")
    assert recipes.plain(back.config) == recipes.plain(ours.config)
    assert all(map(torch.equal, back.parameters(), ours.parameters()))
    if saved == kind:  # the untied bias that transformers writes twice and reads once is written once
        untied = not changes.get("tie_word_embeddings", True)
        same_files(tmp_path / "theirs", tmp_path / "ours", {"cls.predictions.bias"} if untied else set())
