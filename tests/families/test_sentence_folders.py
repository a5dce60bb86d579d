"""Folders of sentence-transformers on tiny models: its vectors, prompts and scores against ours."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import glassformer
from families.parity import TOLERANCE, shaken, transformers
from folders import edit_json, read_json
from glassformer import config
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from mistakes import mistake

library = pytest.importorskip("sentence_transformers")
STEPS = pytest.importorskip("sentence_transformers.models")
TEXTS = ["two dogs run", "a cat", "the sun is warm and the sky is blue over the sea", "x"]
PAIRS = [(a, b) for a in TEXTS[:2] for b in TEXTS[1:]]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
    "initializer_range": 0.15,
}


def folder_of(kind, path, shared_data, **changes):
    """A tiny model of the kind with BERT's tokenizer, or RoBERTa's frame around its words."""
    vocab = (shared_data / "tok-bert-uncased" / "vocab.txt").read_text(encoding="utf-8")
    words = {word: id for id, word in enumerate(vocab.splitlines())}
    tokenizer = transformers.BertTokenizer(vocab=words, model_max_length=40)
    family = kind.partition("For")[0].removesuffix("Model")
    settings = getattr(transformers, f"{family}Config")
    sizes = {"vocab_size": len(words), **SIZES, **changes}
    if family == "Roberta":
        sizes |= {"pad_token_id": tokenizer.pad_token_id, "type_vocab_size": 2}
    model = shaken(getattr(transformers, kind)(settings(**sizes)))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def vectors_of(folder, texts=TEXTS, **options):
    """The vectors of our reading of a folder, and of theirs."""
    sentence_model = library.SentenceTransformer(str(folder), device="cpu")
    actual = glassformer.embed(*store.load(folder), texts, **options)
    return actual, torch.tensor(sentence_model.encode(texts, **options))


@pytest.mark.parametrize(
    "kind, mode, normalize",
    [
        ("RobertaModel", "cls", True),
        ("RobertaModel", "mean", False),
        ("BertModel", "max", False),
        ("DistilBertModel", "mean", True),
        ("ElectraModel", "lasttoken", True),
        ("NomicBertModel", "mean", True),
        ("RobertaForMaskedLM", "cls", False),  # as BGE and many others lie there
    ],
)
def test_vectors_both_ways(kind, mode, normalize, tmp_path, shared_data):
    base = folder_of(kind, tmp_path / "base", shared_data)
    steps = [STEPS.Transformer(str(base), max_seq_length=32)]
    steps += [STEPS.Pooling(32, pooling_mode=mode)]
    steps += [STEPS.Normalize()] * normalize
    prompts = {"query": "search: ", "passage": "found: "}
    sentence_model = library.SentenceTransformer(modules=steps, device="cpu", prompts=prompts)
    sentence_model.save_pretrained(str(tmp_path / "theirs"))
    model, tokenizer = store.load(tmp_path / "theirs")
    first = {"cls": "first", "lasttoken": "last"}.get(mode, mode)
    assert model.config.pool == config.Pool(first, normalize=normalize)
    assert model.config.context == 32
    for name in (None, "query", "passage"):
        actual, reference = vectors_of(tmp_path / "theirs", prompt_name=name)
        assert_close(actual, reference, rtol=0.0, atol=TOLERANCE)
    plain = glassformer.embed(model, tokenizer, TEXTS)
    assert (
        glassformer.embed(model, tokenizer, TEXTS, prompt_name="query") - plain
    ).abs().max() > 0.01
    with mistake('no prompt "question"; its prompts: document, passage, query'):
        glassformer.embed(model, tokenizer, TEXTS, prompt_name="question")
    for layout in ("hf", "glassformer"):
        store.save(model, tmp_path / layout, tokenizer, layout=layout)
        back, _ = store.load(tmp_path / layout)
        assert (back.config, back.prompts) == (model.config, model.prompts)
    actual, reference = vectors_of(tmp_path / "hf", prompt_name="query")
    assert_close(actual, reference, rtol=0.0, atol=TOLERANCE)


def test_a_default_prompt_stands_before_each_text(tmp_path, shared_data):
    base = folder_of("BertModel", tmp_path / "base", shared_data)
    steps = [STEPS.Transformer(str(base)), STEPS.Pooling(32)]
    options = {"prompts": {"query": "search: ", "none": ""}, "default_prompt_name": "query"}
    sentence_model = library.SentenceTransformer(modules=steps, device="cpu", **options)
    sentence_model.save_pretrained(str(tmp_path / "theirs"))
    model, tokenizer = store.load(tmp_path / "theirs")
    named = dict(model.prompts)
    assert named == {
        "query": "search: ",
        "none": "",
        "": "search: ",
        **dict.fromkeys(named, ""),
    } | {
        "query": "search: ",
        "": "search: ",
    }
    for name in (None, "query", "none"):
        actual, reference = vectors_of(tmp_path / "theirs", prompt_name=name)
        assert_close(actual, reference, rtol=0.0, atol=TOLERANCE)
    store.save(model, tmp_path / "ours", tokenizer, layout="hf")
    actual, reference = vectors_of(tmp_path / "ours")
    assert_close(actual, reference, rtol=0.0, atol=TOLERANCE)
    assert store.load(tmp_path / "ours")[0].prompts == model.prompts


@pytest.mark.parametrize(
    "page, change, text",
    [
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": 3}},
            '"prompts" must be a table',
        ),
        ("config_sentence_transformers.json", {"prompts": ["query"]}, '"prompts" must be a table'),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "question"},
            "not the name of a prompt",
        ),
        ("1_Pooling/config.json", {"include_prompt": False}, "leaves the prompt out"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, "pools by"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "asks for small letters"),
    ],
)
def test_settings_that_nothing_here_does_are_refused(page, change, text, tmp_path, shared_data):
    base = folder_of("BertModel", tmp_path / "base", shared_data)
    steps = [STEPS.Transformer(str(base)), STEPS.Pooling(32)]
    sentence_model = library.SentenceTransformer(
        modules=steps, device="cpu", prompts={"query": "search: "}
    )
    sentence_model.save_pretrained(str(tmp_path / "theirs"))
    edit_json(tmp_path / "theirs" / page, **change)
    with mistake(text):
        Checkpoint.open(tmp_path / "theirs")


# ------------------------------------------------------------------------------------ cross-encoders


def scores_of(folder, pairs=PAIRS):
    cross_encoder = library.CrossEncoder(str(folder), device="cpu")
    return torch.tensor(cross_encoder.predict(pairs))


def saved_by_version_4(folder, act):
    """How versions before 6 wrote a cross-encoder: one config.json, with the activation in it."""
    edit_json(
        folder / "config.json", sentence_transformers={"activation_fn": act, "version": "4.0.1"}
    )
    return folder


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "Electra"])
@pytest.mark.parametrize("act", ["linear.Identity", "activation.Sigmoid"])
@pytest.mark.parametrize("newest", [True, False])
def test_scores_of_a_cross_encoder(kind, act, newest, tmp_path, shared_data):
    folder = folder_of(
        f"{kind}ForSequenceClassification", tmp_path / "base", shared_data, num_labels=1
    )
    saved_by_version_4(folder, f"torch.nn.modules.{act}")
    if newest:
        cross_encoder = library.CrossEncoder(str(folder), device="cpu")
        folder = tmp_path / "theirs"
        cross_encoder.save_pretrained(str(folder))
    model, tokenizer = store.load(folder)
    assert model.config.pool.labels == 1
    assert model.config.pool.sigmoid == act.endswith("Sigmoid")
    scores = glassformer.classify(model, tokenizer, PAIRS).probabilities[:, 0]
    assert_close(scores, scores_of(folder).float(), rtol=0.0, atol=TOLERANCE)
    assert scores.std() > 1e-3
    store.save(model, tmp_path / "ours", tokenizer, layout="hf")
    assert store.load(tmp_path / "ours")[0].config == model.config
    assert_close(scores_of(tmp_path / "ours").float(), scores, rtol=0.0, atol=TOLERANCE)


def test_an_activation_that_nothing_here_does_is_refused(tmp_path, shared_data):
    folder = folder_of("BertForSequenceClassification", tmp_path, shared_data, num_labels=1)
    for act in ("torch.nn.modules.activation.Tanh", "torch.nn.modules.activation.Softmax"):
        saved_by_version_4(folder, act)
        with mistake(f"the score goes through {act.rpartition('.')[2]}"):
            Checkpoint.open(folder)


# ------------------------------------------------------------------------------ labels by name


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "Electra"])
@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
def test_labels_by_name_are_those_of_a_pipeline(kind, problem, tmp_path, shared_data):
    """Several labels at once have a probability each; the names go out and come back."""
    names = {0: "joy", 1: "anger", 2: "calm"}
    options = {"id2label": names, "label2id": {name: id for id, name in names.items()}}
    options |= {"problem_type": problem} if problem else {}
    kind = f"{kind}ForSequenceClassification"
    folder = folder_of(kind, tmp_path / "theirs", shared_data, **options)
    model, tokenizer = store.load(folder)
    store.save(model, tmp_path / "ours", tokenizer, layout="hf")
    for path in (folder, tmp_path / "ours"):
        pipeline = transformers.pipeline("text-classification", str(path), top_k=None)
        result = glassformer.classify(*store.load(path), TEXTS)
        assert result.names == tuple(names.values())
        for row, answers in zip(result.probabilities, pipeline(TEXTS), strict=True):
            reference = {answer["label"]: answer["score"] for answer in answers}
            assert_close(
                dict(zip(result.names, row.tolist(), strict=True)), reference, rtol=0.0, atol=1e-5
            )
        assert read_json(path / "config.json").get("problem_type") == problem


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "Electra"])
def test_a_number_for_a_text_stays_one(kind, tmp_path, shared_data):
    """Where nothing is said of one label, a pipeline takes its sigmoid."""
    kind = f"{kind}ForSequenceClassification"
    options = {"num_labels": 1, "problem_type": "regression"}
    folder = folder_of(kind, tmp_path / "theirs", shared_data, **options)
    model, tokenizer = store.load(folder)
    store.save(model, tmp_path / "ours", tokenizer, layout="hf")
    numbers = glassformer.classify(model, tokenizer, TEXTS).probabilities[:, 0].tolist()
    for path in (folder, tmp_path / "ours"):
        pipeline = transformers.pipeline("text-classification", str(path), top_k=None)
        reference = [answers[0]["score"] for answers in pipeline(TEXTS)]
        assert_close(numbers, reference, rtol=0.0, atol=1e-5)
    edit_json(folder / "config.json", id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1})
    with mistake('"problem_type" is "regression" with several numbers'):
        Checkpoint.open(folder)


def test_a_problem_that_tokens_do_not_have_is_refused(tmp_path, shared_data):
    folder = folder_of("BertForTokenClassification", tmp_path, shared_data)
    edit_json(folder / "config.json", problem_type="multi_label_classification")
    with mistake('"problem_type" is for labels of a text'):
        Checkpoint.open(folder)
    edit_json(folder / "config.json", problem_type="several")
    with mistake('"problem_type" is "several"; it must be one of'):
        Checkpoint.open(folder)
