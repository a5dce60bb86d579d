"""Dictionaries of SAELens and Gemma Scope: features and outputs are SAELens' own (dictionaries.json holds what
sae-lens gave); what is not read is refused by its name; a tape's edits of features are those of a hook
that is written by hand."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

import glassformer
import tiny
from folders import read_json, write_json
from glassformer.core.nn import Tape
from glassformer.formats import dictionaries
from mistakes import mistake
from seeding import generator_from

CASES = read_json(Path(__file__).with_name("dictionaries.json"))["cases"]
BY_NAME = {case["name"]: case for case in CASES}
RESID = "decoder.blocks.0.resid"


def folder_of(case, folder, page=None, tensors=None):
    named = {**case["tensors"], **(tensors or {})}
    save_file(
        {name: torch.tensor(x) for name, x in named.items() if x is not None},
        folder / "sae_weights.safetensors",
    )
    write_json(folder / "cfg.json", {**case["page"], **(page or {})})
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_files_of_saelens(case, tmp_path):
    dictionary = dictionaries.load_dictionary(folder_of(case, tmp_path))
    x, features, output = (torch.tensor(case[name]) for name in ("x", "features", "output"))
    assert_close(dictionary.encode(x), features, atol=1e-5, rtol=0)
    assert_close(dictionary.decode(features), output, atol=1e-5, rtol=0)
    for name, content in dictionaries.contents(dictionary, "m").items():
        content(tmp_path / name) if callable(content) else (tmp_path / name).write_text(content)
    again = dictionaries.load_dictionary(tmp_path)
    assert_close(again.decode(again.encode(x)), output, atol=1e-5, rtol=0)
    assert (again.address, again.target) == (dictionary.address, dictionary.target)


def test_arrays_of_gemma_scope(tmp_path):
    case = BY_NAME["Gemma Scope"]
    np.savez(tmp_path / "params.npz", **{k: np.float32(x) for k, x in case["tensors"].items()})
    for path in (tmp_path, tmp_path / "params.npz"):
        dictionary = dictionaries.load_dictionary(path, RESID)
        features = dictionary.encode(torch.tensor(case["x"]))
        assert_close(features, torch.tensor(case["features"]), atol=1e-5, rtol=0)
    with mistake("does not say what it reads", "--at"):
        dictionaries.load_dictionary(tmp_path)
    content = (tmp_path / "params.npz").read_bytes()
    patched = content.replace(b"PK\x01\x02", b"PK\x01\x02\0\x5e", 1)  # a version that nobody reads
    one_array, text = io.BytesIO(), io.BytesIO()
    np.save(one_array, np.zeros(3))
    np.savez(text, W_enc=np.array(["x"]))
    for damaged in (b"PK", b"", patched, one_array.getvalue(), text.getvalue()):
        (tmp_path / "params.npz").write_bytes(damaged)
        with mistake("damaged"):
            dictionaries.load_dictionary(tmp_path, RESID)


@pytest.mark.parametrize(
    ("page", "tensors", "sentence"),
    [
        ({"normalize_activations": "layer_norm"}, {}, '"normalize_activations": "layer_norm"'),
        ({"finetuning_scaling_factor": True}, {}, '"finetuning_scaling_factor": true'),
        ({"architecture": "gated"}, {}, '"gated"'),
        ({"k": 0}, {}, "names no k"),
        ({"k": "4"}, {}, "names no k"),
        ({"k": 2.5}, {}, "names no k"),
        ({"k": None, "activation_fn_kwargs": "x"}, {}, '"activation_fn_kwargs" is "x"'),
        ({"metadata": ["x"]}, {}, '"metadata" is'),
        ({"architecture": ["topk"]}, {}, "of the architecture"),
        ({"rescale_acts_by_decoder_norm": True}, {"b_enc": [0.0] * 11}, "b_enc is not"),
        ({}, {"W_enc": 1.0}, "is damaged"),
        ({}, {"b_dec": 1.0}, "is damaged"),
        ({"noise": 0.5}, {}, '"noise": 0.5'),
        ({"metadata": {"hook_name": "blocks.1.hook_odd"}}, {}, "hook_odd"),
        ({}, {"b_enc": None}, "b_dec"),
        ({}, {"b_enc": [0.0] * 11}, "b_enc is not"),
        ({}, {"b_dec": [float("nan")] * 6}, "b_dec is not"),
    ],
)
def test_what_is_not_read_is_refused(page, tensors, sentence, tmp_path):
    with mistake(sentence):
        dictionaries.load_dictionary(folder_of(BY_NAME["topk"], tmp_path, page, tensors))


def test_a_folder_without_a_dictionary(tmp_path):
    with mistake("holds no dictionary", "cfg.json"):
        dictionaries.load_dictionary(tmp_path)


def drawn(inputs, outputs, address, target="", width=24, active=4):
    draw = generator_from(3)
    shapes = {"W_enc": (inputs, width), "b_enc": (width,), "W_dec": (width, outputs)}
    tensors = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    tensors["b_dec"] = torch.randn(outputs, generator=draw)
    places = (address, target, active, not target)
    return dictionaries.Dictionary(tensors, "topk", *places)


def test_features_are_values_that_edits_change():
    """Of a sparse autoencoder, of all heads at once, and of a transcoder; recording changes no bit."""
    cfg = tiny.ALL["gpt2"]
    tokens = torch.randint(0, cfg.embed.vocab, (2, 7), generator=generator_from(1))
    block = "decoder.blocks.0"
    for address, target in (
        (RESID, ""),
        (f"{block}.attn.z", ""),
        (f"{block}.ffn.in", f"{block}.ffn.write"),
    ):
        model = tiny.model(cfg)
        plain = model(tokens).logits
        tape = Tape(address, target or address)
        model(tokens, tape=tape)
        dictionary = drawn(cfg.dim, cfg.dim, address, target)
        dictionaries.attach(model, dictionary)
        feature_tape = Tape("features.*")
        assert torch.equal(model(tokens, tape=feature_tape).logits, plain)
        features = feature_tape["features.active"]
        expected = dictionary.encode(dictionaries.rows_of(tape[address]))
        assert torch.equal(features, expected)
        assert ((features > 0).sum(-1) <= 4).all()
        number = int(features[0, -1].argmax())

        def ablate(path, x, number=number):
            return x.index_fill(-1, torch.tensor([number]), 0.0)

        def by_hand(path, x, features=features, number=number, row=dictionary.W_dec[number]):
            away = features[..., number, None] * row
            if x.ndim == 4:
                away = away.view(2, 7, x.shape[1], -1).transpose(1, 2)
            return x - away

        edited = model(tokens, tape=Tape(edits={"features.active": ablate})).logits
        hooked = model(tokens, tape=Tape(edits={target or address: by_hand})).logits
        assert_close(edited, hooked, atol=1e-4, rtol=1e-4)
        assert (edited - plain).abs().max() > 1e-3
        only = Tape(target or address, edits={"features.error": lambda path, x: x * 0})
        model(tokens, tape=only)


def test_a_number_of_a_feature_opens_as_a_dot_product():
    cfg = tiny.ALL["gpt2"]
    model = tiny.model(cfg)
    dictionaries.attach(model, drawn(cfg.dim, cfg.dim, RESID))
    trace = glassformer.trace(model, None, [1, 2, 3])
    step = trace.explain("features.pre[2,5]")
    x = trace[RESID][0, 2] - model.features.b_dec
    dot = (x.double() * model.features.W_enc[:, 5].double()).sum() + model.features.b_enc[5]
    assert step.value == pytest.approx(float(dot), abs=1e-4)
    assert step.kind == "linear"
    assert len(step.terms) in (cfg.dim, cfg.dim + 1)  # the bias is a term or stands beside
    assert abs(step.difference) < 1e-4


def test_a_dictionary_of_another_model_is_refused():
    cfg = tiny.ALL["gpt2"]
    model = tiny.model(cfg)
    with mistake(f"values of {cfg.dim + 1} numbers", str(cfg.dim)):
        dictionaries.attach(model, drawn(cfg.dim + 1, cfg.dim + 1, RESID))
    with mistake("no value of each token", "blocks.90"):
        dictionaries.attach(model, drawn(cfg.dim, cfg.dim, "decoder.blocks.90.resid"))
    pair = tiny.model("t5")
    with mistake("decoder or an encoder alone"):
        dictionaries.attach(pair, drawn(cfg.dim, cfg.dim, RESID))
