"""What the doctor finds, and what he says to do."""

from __future__ import annotations

import shutil

import pytest
import torch

from folders import read_json, write_json
from glassformer.commands import doctor
from glassformer.core.errors import UserError
from glassformer.fast import kernels
from glassformer.formats import checkpoint, resolve
from glassformer.formats.resolve import MODELS


def test_what_there_is(terminal):
    data = terminal.json("doctor")
    assert data["torch"] == torch.__version__
    assert data["kernels"] == kernels.path()
    assert data["threads"] == torch.get_num_threads()
    assert data["memory_read_gb_per_s"] > 0
    assert kernels.reason() in terminal("doctor")


WELL = {
    "kernels": "avx2",
    "builds": ["avx2"],
    "features": ["avx2"],
    "cores": 2,
    "threads": 2,
    "thread_pool": "torch's",
    "system": "Linux-x86_64",
}


OLD = {"kernels": "torch", "builds": [], "features": [], "why": "This processor lacks avx2."}


@pytest.mark.parametrize(
    "changes, advice",
    [
        ({"kernels": "torch", "why": "libkernels.so is not there."}, "hatch_build.py"),
        (OLD, "This processor lacks avx2."),
        ({"threads": 1}, "1 of 2 cores compute"),
        ({"thread_pool": None}, "one core"),
    ],
)
def test_what_to_do(changes, advice):
    assert doctor.advice_for(WELL) == []
    (sentence,) = doctor.advice_for(WELL | changes)
    assert advice in sentence


def test_a_fault_that_stops_several_steps_is_said_once(terminal, tmp_path):
    folder = shutil.copytree(MODELS / "tiny-stories", tmp_path / "copy")
    (folder / "config.json").write_text("{broken")
    (sentence,) = terminal.json(f"doctor {folder}", code=1)["refused"]
    assert "config.json is not valid JSON" in sentence and sentence.endswith("restore the file.")


def test_faults_are_told_apart_where_nothing_says_how_to_mend_them(monkeypatch):
    def fails(sentence):
        def raising(*args):
            raise UserError(sentence)

        return raising

    monkeypatch.setattr(resolve, "resolve", lambda name: MODELS / "tiny-stories")
    monkeypatch.setattr(checkpoint.Checkpoint, "open", fails("One is broken."))
    monkeypatch.setattr(checkpoint, "open_tokenizer", fails("Another is broken."))
    refused = doctor.model_info("any")["refused"]
    assert refused == ["One is broken.", "Another is broken."]


def test_what_of_a_model_loads(terminal, tmp_path):
    data = terminal.json("doctor tiny-stories")
    assert data["loads"]
    assert (data["model_type"], data["parameters"]) == ("qwen3", 1_316_224)
    assert (data["dtypes"], data["tensors"]) == (["F16"], 47)
    assert data["tokenizer"] == "BPE, 2,048 tokens"
    gguf = tmp_path / "tiny.gguf"
    terminal(f"convert tiny-stories --layout gguf --numbers Q8_0 --out {gguf}")
    data = terminal.json(f"doctor {gguf}")
    assert data["loads"]
    assert data["dtypes"] == ["F16", "F32", "Q8_0"]
    gguf.write_bytes(gguf.read_bytes()[:-1000])
    assert "reaches over the end" in terminal.json(f"doctor {gguf}", code=1)["refused"][0]


@pytest.mark.parametrize(
    "changes, count, sentence",
    [
        ({"architectures": ["NonesuchForCausalLM"]}, 1, "--with-transformers"),
        ({"architectures": [None]}, 1, "names no model"),
        ({"attention_bias": True}, 1, "the files lack model.layers.0.self_attn.q_proj.bias"),
        ({"hidden_size": 64}, 1, "has shape"),
        ({"chat_template": 1}, 0, ""),
    ],
)
def test_what_is_refused_is_a_sentence_and_the_code_1(terminal, tmp_path, changes, count, sentence):
    folder = shutil.copytree(MODELS / "tiny-stories", tmp_path / "copy")
    raw = read_json(folder / "config.json")
    write_json(folder / "config.json", raw | changes)
    data = terminal.json(f"doctor {folder}", code=int(count > 0))
    assert len(data["refused"]) == count
    assert sentence in "".join(data["refused"])
    assert data["tensors"] == 47  # whatever the config says
    terminal(f"doctor {folder}", code=int(count > 0))
    assert sentence in terminal.notes.replace("\n", " ")
    if "architectures" in changes:
        assert len(data["refused"][0].replace(str(folder), "FOLDER")) <= 160
