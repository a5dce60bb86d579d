"""Labels of texts and of tokens, and answers, of every family against transformers: its auto mappings say
which classes there are, and one without a reader or a reason here is a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from families.parity import TOLERANCE, VOCAB, files, shaken, transformers
from families.test_bart import KINDS, SIZES
from glassformer import config
from glassformer import families as recipes
from glassformer.formats import store
from tiny import equal_tensors

HERE = Path(__file__).parent
DECODERS, MORE, ENCODERS = (
    json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    for name in ("decoders", "more_decoders", "encoders")
)
KIND_WORDS = (
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "MULTIPLE_CHOICE",
)
MAPPINGS = [
    getattr(transformers.models.auto.modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
    for kind in KIND_WORDS
]
RECIPES = {recipe.model_type: recipe for recipe in recipes.all() if recipe.read_config}
TYPES = {(name, name.replace("-", "_")) for name in RECIPES}
CLASSES = sorted(
    {
        (name, table[key])
        for table in MAPPINGS
        for name, other in TYPES
        for key in {name, other} & {*table}
    }
)
# which read no such class, and why
REFUSED = {
    "LongformerForQuestionAnswering": "the question's tokens are global, which no word says",
    "LongformerForMultipleChoice": "the choice's tokens are global, which no word says",
}
BODIES = [
    (name, kind)
    for name, kind in CLASSES
    if not issubclass(type(RECIPES[name].words.template), config.Encoder)
]
QUICK = {
    "LlamaForSequenceClassification",
    "GPT2ForTokenClassification",
    "Qwen3ForQuestionAnswering",
}
QUICK |= {"BartForSequenceClassification", "T5ForTokenClassification", "MBartForQuestionAnswering"}
EOS, PAD = 2, 1


def sizes_of(family):
    """Settings of a tiny model."""
    if family == "GPT2":
        return DECODERS["gpt2 sizes"]
    if family in MORE:
        return MORE[family]["sizes"] | next(iter(MORE[family]["cases"].values()))
    if family in DECODERS["settings"]:
        return DECODERS["sizes"] | next(iter(DECODERS["settings"][family].values()))
    if family == "T5":
        return {**KINDS["UMT5"], "vocab_size": VOCAB, "decoder_start_token_id": 0}
    sizes = {"vocab_size": VOCAB} if family.endswith("T5") else SIZES
    # logits of LED of a few units, as the others' are
    return (
        {**sizes, **KINDS[family], "init_std": 0.15} if family == "LED" else sizes | KINDS[family]
    )


def reference_of(name, kind, **changes):
    torch.manual_seed(0)
    family = kind.partition("For")[0].removesuffix("Text")
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 0}
    labels = {} if kind.endswith("QuestionAnswering") else {"num_labels": 3}
    settings = transformers.CONFIG_MAPPING[name](**{**sizes_of(family), **ids, **labels, **changes})
    return shaken(getattr(transformers, kind)(settings))


def texts(ends=True):
    """Three texts of one EOS each, the last token of it, and which columns they fill."""
    lengths = torch.tensor([24, 17, 9])[:, None]
    ids = torch.randint(3, VOCAB, (3, 24), generator=torch.Generator().manual_seed(1))
    present = torch.arange(24) < lengths
    ids = ids.masked_fill(~present, PAD)
    return ids.scatter(1, lengths - 1, EOS) if ends else ids, present


def answer(reference, ids, present):
    """Logits of labels, or where an answer starts and ends."""
    out = reference(ids, attention_mask=present.long())
    if "start_logits" in out:
        return torch.stack((out.start_logits, out.end_logits), -1)
    return out.logits


@torch.no_grad()
def agree(model, reference, ids, present):
    """The same labels, of padded rows and of each alone."""
    pos = torch.arange(ids.shape[1]).masked_fill(~present, -1)
    output = model(ids, pos=pos)
    theirs = answer(reference, ids, present)
    if output.pooled is not None:
        assert_close(output.pooled, theirs, rtol=0.0, atol=TOLERANCE)
    else:
        assert_close(output.tagged[present], theirs[present], rtol=0.0, atol=TOLERANCE)
    for row, here in zip(ids, present, strict=True):
        alone = model(row[here][None])
        theirs = answer(reference, row[here][None], here[here][None])
        local = alone.tagged if alone.pooled is None else alone.pooled
        assert_close(local, theirs, rtol=0.0, atol=TOLERANCE)
    assert theirs.std() > 0.01


@pytest.mark.parametrize(
    "name, kind",
    [pytest.param(*c, marks=() if c[1] in QUICK else pytest.mark.slow, id=c[1]) for c in BODIES],
)
def test_both_ways(name, kind, tmp_path):
    """Theirs -> ours -> theirs: the same labels and files, bit for bit."""
    reference = reference_of(name, kind)
    reference.save_pretrained(tmp_path / "theirs")
    model, _ = store.load(tmp_path / "theirs")
    agree(model, reference, *texts())
    store.save(model, tmp_path / "ours", layout="hf")
    raw = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert raw["architectures"] == [kind]
    again = getattr(transformers, kind).from_pretrained(tmp_path / "ours").eval()
    agree(model, again, *texts())
    assert equal_tensors(files(tmp_path / "theirs"), files(tmp_path / "ours"))
    assert equal_tensors(reference.state_dict(), again.state_dict())
    back, _ = store.load(tmp_path / "ours")
    assert recipes.plain(back.config) == recipes.plain(model.config)


def test_each_class_of_theirs_has_a_reader_or_a_reason():
    readers = {kind for recipe in RECIPES.values() for kind in recipe.architectures}
    tested = {kind for _, kind in BODIES} | {kind for kind, _ in ENCODERS["bert"].values()}
    named = {kind for _, kind in CLASSES}
    assert len(named) > 140
    assert named - readers == REFUSED.keys()
    assert named - tested - REFUSED.keys() == set()
