"""Adapters in PEFT's layout: out and back, read from PEFT, and what is refused."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import tiny
from changed import logits, moved
from folders import read_json, write_json
from glassformer import families as recipes
from glassformer.core.checkpoints import tensors as tensorfiles
from glassformer.core.config import objective as objectives
from glassformer.core.config import serial
from glassformer.core.errors import UserError
from glassformer.core.nn import build_model
from glassformer.formats import adapters, store, tuning
from glassformer.formats.checkpoint import Checkpoint
from mistakes import mistake


def near(actual, expected, tolerance=1e-5):
    assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def loaded(folder):
    return logits(store.load(folder)[0])


@pytest.fixture
def saved(tmp_path, request):
    """A model that was changed, its base in base/ and its adapter in a/."""
    name = getattr(request, "param", "llama")
    layout = None if name != "alibi" else "glassformer"
    store.save(build_model(tiny.ALL[name], seed=1), tmp_path / "base", layout=layout)
    model = moved(tiny.ALL[name])
    store.save(model, tmp_path / "a", base=str(tmp_path / "base"))
    return model


@pytest.mark.parametrize("saved", ["llama", "gpt2", "alibi", "bert"], indirect=True)
def test_an_adapter_goes_out_and_comes_back(saved, tmp_path):
    back, _ = store.load(tmp_path / "a")
    near(logits(back), logits(saved))
    assert all(weight.requires_grad for weight in back.parameters())
    again = tiny.model(saved.config)
    adapters.attach(again, tmp_path / "a")
    assert tiny.equal_tensors(*(dict(model.named_parameters()) for model in (saved, again)))
    (tmp_path / "a" / "config.json").unlink()  # as PEFT itself leaves it
    near(loaded(tmp_path / "a"), logits(saved))


def test_other_weights_under_the_name_of_the_base_are_refused(saved, tmp_path):
    """A folder that was written again, or a hub's name that has moved on."""
    near(loaded(tmp_path / "a"), logits(saved))
    base, _ = store.load(tmp_path / "base")
    with torch.no_grad():
        base.decoder.blocks[0].attn.k.weight.neg_()
    store.save(base, tmp_path / "base")
    with mistake("a change of .*/base, whose weights are no longer those that it was made with"):
        store.load(tmp_path / "a")


@pytest.mark.parametrize(
    "saved, expected",
    [
        (
            "llama",
            {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]}
            | {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none"}
            | {"fan_in_fan_out": False},
        ),
        ("gpt2", {"r": 6, "lora_alpha": 12, "target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ],
    indirect=["saved"],
)
def test_names_and_numbers_are_pefts(saved, expected, tmp_path):
    page = read_json(tmp_path / "a" / adapters.PAGE)
    assert page.items() >= {**expected, "base_model_name_or_path": f"{tmp_path}/base"}.items()
    tensors = load_file(tmp_path / "a" / adapters.TENSORS)
    if "q_proj" in expected["target_modules"]:
        half = "base_model.model.model.layers.1.self_attn.v_proj.lora_{}.weight"
        assert tensors[half.format("A")].shape == (3, 32)
        assert tensors[half.format("B")].shape == (16, 3)


def check_peft(model, folder):
    """PEFT's own model of the adapter in ``folder``; its logits are ours."""
    peft = pytest.importorskip("peft")
    import transformers

    reference = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    reference = peft.PeftModel.from_pretrained(reference, str(folder / "a")).eval()
    with torch.no_grad():
        near(reference(tiny.tokens()).logits, logits(model), 1e-4)
    return reference


@pytest.mark.parametrize("saved", ["llama", "gpt2"], indirect=True)
def test_peft_gives_the_same_logits(saved, tmp_path):
    reference = check_peft(saved, tmp_path)
    reference.save_pretrained(tmp_path / "back")
    near(loaded(tmp_path / "back"), logits(saved))


@pytest.fixture
def tied(tmp_path):
    """A model whose embedding is its head, trained with it; its base in base/, its adapter in a/."""
    llama = tiny.DECODERS["llama"]
    model = build_model(replace(llama, head=replace(llama.head, tied=True)), seed=1)
    store.save(model, tmp_path / "base", layout="hf")
    tuning.tune(model, objectives.LoRA(rank=3, modules_to_save=("embed.*",)))
    with torch.no_grad():
        model.embed.token.weight.mul_(-2)
    store.save(model, tmp_path / "a", base=str(tmp_path / "base"))
    return model.eval()


def test_an_embedding_that_is_the_head_too(tied, tmp_path):
    """PEFT trains a copy of its own and leaves what is tied to it as it was, so both are saved."""
    near(loaded(tmp_path / "a"), logits(tied))
    file, head = tmp_path / "a" / adapters.TENSORS, "base_model.model.lm_head.weight"
    page = read_json(tmp_path / "a" / adapters.PAGE)
    assert page["modules_to_save"] == ["lm_head", "model.embed_tokens"]
    tensors = load_file(file)
    (tmp_path / "a" / "config.json").unlink()
    save_file({**tensors, head: tensors[head] + 1}, file)
    with mistake("two different tables for model.embed_tokens.weight and lm_head.weight"):
        loaded(tmp_path / "a")
    save_file({name: tensor for name, tensor in tensors.items() if name != head}, file)
    with mistake("ties to lm_head.weight, which PEFT leaves as it was; name both"):
        loaded(tmp_path / "a")


def test_peft_ties_an_embedding_to_the_head(tied, tmp_path):
    check_peft(tied, tmp_path)


def test_an_adapter_of_another_base(peft):
    with mistake(r"changes nose.weight, which its base lacks or splits"):
        peft({}, {"base_model.model.nose.weight": torch.ones(1)})


def test_one_expert_of_a_weight_that_holds_all_is_refused(tmp_path):
    small = {"dim": 32, "context": 32, "embed.vocab": 40, "decoder.depth": 1}
    attention = {"attention.heads": 4, "attention.kv_heads": 2, "attention.head_dim": 8}
    small |= {f"decoder.pattern.{path}": n for path, n in attention.items()}
    small |= {"decoder.pattern.feedforward.expert.hidden": 24}
    model = build_model(serial.change(recipes.find("mixtral/8x7b"), small), seed=1)
    store.save(model, tmp_path / "base", layout="hf")
    page = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "base")}
    write_json(tmp_path / adapters.PAGE, page)
    name = "model.layers.0.block_sparse_moe.experts.{}.w1.weight"
    tensors = {f"base_model.model.{name.format(1)}": torch.ones(24, 32)}
    save_file(tensors, tmp_path / adapters.TENSORS)
    with mistake(f"a part of a weight that its base keeps whole; add {name.format(0)}"):
        store.load(tmp_path)


def test_an_adapter_without_its_base(saved, tmp_path):
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    with mistake(r"holds only what was changed in .*base.*There is no folder"):
        store.load(tmp_path / "a")


@pytest.fixture
def peft(saved, tmp_path):
    """The adapter as PEFT leaves it; changed(page, tensors) gives the logits with those changes."""
    (tmp_path / "a" / "config.json").unlink()
    page = tmp_path / "a" / adapters.PAGE
    file = tmp_path / "a" / adapters.TENSORS
    right = read_json(page)
    tensors = load_file(file)

    def changed(settings, more=None):
        write_json(page, {**right, **settings})
        save_file({**tensors, **(more or {})}, file)
        return loaded(tmp_path / "a")

    changed.tensors = tensors
    return changed


SETTINGS = {
    "use_dora": True,
    "peft_type": "IA3",
    "bias": "all",
    "lora_bias": True,
    "layer_replication": [[0, 2], [1, 2]],
    "use_qalora": True,
    "trainable_token_indices": [1, 2],
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "alora_invocation_tokens": [3],
    "init_lora_weights": "pissa",
    "revision": "a1b2c3",
    "use_rslora": "no",
    "alpha_pattern": "q_proj",
    "rank_pattern": {"q_proj": "three"},
    "lora_alpha": "6",
    "r": True,
    "some_setting_of_tomorrow": {"on": 1},
}


@pytest.mark.parametrize(
    "settings, message",
    [
        *(({key: value}, key) for key, value in SETTINGS.items()),
        ({"r": 8}, r"has rank 3 and adapter_config\.json says 8"),
        ({"alpha_pattern": {"(a+)+b": 1}}, "too involved"),
        ({"alpha_pattern": {".*.*.*.*": 1}}, "too involved"),
        ({"alpha_pattern": {"(": 1}}, "not a pattern"),
    ],
    ids=str,
)
def test_settings_that_are_not_done_are_refused_by_name(settings, message, peft):
    with mistake(message):
        peft(settings)


Q = "model.layers.{}.self_attn.q_proj"
# alpha_pattern, and the alpha of q in the first and in the second layer, as PEFT's get_pattern_key
# has it
PATTERNS = [
    ({}, 6, 6),
    ({"q_proj": 12}, 12, 12),
    ({"model.layers.1.self_attn.q_proj": 12, "q_proj": 3}, 3, 12),
    ({"q_proj": 3, "model.layers.1.self_attn.q_proj": 12}, 3, 3),
    ({r"layers\.(0|7)\..*q_proj": 12}, 12, 6),
    ({"[qk]_proj": 12}, 12, 12),
    ({"_proj": 12, "proj": 12, "q_pro": 12}, 6, 6),
]


@pytest.mark.parametrize("pattern, first, second", PATTERNS)
def test_patterns_of_alpha_match_as_in_peft(pattern, first, second, peft):
    actual = peft({"alpha_pattern": pattern})
    scaled = {}
    for layer, alpha in enumerate((first, second)):
        name = f"base_model.model.{Q.format(layer)}.lora_B.weight"
        scaled[name] = peft.tensors[name] * (alpha / 6)
    near(actual, peft({}, scaled))


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True, "lora_alpha": 6 / 3**0.5},
        {"layers_to_transform": [0, 1]},
        {"layers_to_transform": [1, 0], "layers_pattern": "layers"},
        {"target_modules": r".*\.[qv]_proj"},
        {"target_modules": "all-linear"},
        {"rank_pattern": {"[qv]_proj": 3}, "r": 8},
    ],
    ids=str,
)
def test_other_words_for_the_same_change(settings, peft):
    near(peft(settings), peft({}))


@pytest.mark.parametrize(
    "down, up",
    [
        ((0, 32), (32, 0)),
        ((3, 32), (32, 4)),
        ((96,), (32, 3)),
        ((3, 32), (96,)),
        ((3, 32), (16, 3)),
        ((3, 30), (32, 3)),
    ],
    ids=str,
)
def test_halves_that_do_not_fit(down, up, peft):
    name = f"base_model.model.{Q.format(0)}.lora_"
    with mistake(r"q_proj is \[.*|attn.q.down of the shape"):
        peft({}, {f"{name}A.weight": torch.ones(down), f"{name}B.weight": torch.ones(up)})


@pytest.mark.parametrize("half", "AB")
def test_a_missing_half_and_one_that_is_no_number(half, peft):
    name = f"base_model.model.{Q.format(0)}.lora_{half}.weight"
    broken = peft.tensors[name].clone()
    broken[0, 0] = float("nan")
    with mistake("holds NaN or infinite numbers"):
        peft({}, {name: broken})
    del peft.tensors[name]
    with mistake("has only one of lora_A and lora_B"):
        peft({})


@pytest.mark.parametrize("page", ["config.json", adapters.PAGE])
def test_a_change_of_itself_is_no_model(page, tmp_path):
    acts = (store.load,) if page == "config.json" else (store.load, Checkpoint.open)
    for name, base in ("ab", "bc", "cb", "dd"):
        store.save(moved(tiny.DECODERS["llama"]), tmp_path / name, base=str(tmp_path / base))
        if page != "config.json":
            (tmp_path / name / "config.json").unlink()
    for name in "abcd":
        for act in acts:
            with mistake(r"is itself a change of"):
                act(tmp_path / name)


def _changed(change):
    """Tensors of an adapter, the first change's halves among them."""

    def alter(folder):
        path = folder / adapters.TENSORS
        tensors = load_file(path)
        first = next(name for name in tensors if name.endswith(adapters.DOWN))
        change(tensors, first, first.replace(adapters.DOWN, adapters.UP))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)

    return alter


def _base_moves_on(folder):
    base, _ = store.load(folder.parent / "base")
    with torch.no_grad():
        base.decoder.blocks[0].attn.k.weight.neg_()
    store.save(base, folder.parent / "base")


DAMAGES = {
    "a half is missing": _changed(lambda t, down, up: t.pop(up)),
    "no such layer": _changed(
        lambda t, down, up: t.update({down.replace(".0.", ".99."): t[down] + 0})
    ),
    "inputs": _changed(lambda t, down, up: t.update({down: t[down][:, 1:]})),
    "outputs": _changed(lambda t, down, up: t.update({up: t[up][1:]})),
    "rank": _changed(lambda t, down, up: t.update({up: t[up][:, 1:], down: t[down][1:]})),
    "base": _base_moves_on,
    "no base": lambda folder: shutil.rmtree(folder.parent / "base"),
    "cut short": lambda folder: os.truncate(folder / adapters.TENSORS, 3000),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("saved", ["llama", "gpt2"], indirect=True)
def test_the_doctor_refuses_by_the_headers_what_loading_refuses(
    saved, damage, tmp_path, terminal, monkeypatch
):
    assert terminal.json(f"doctor {tmp_path}/a")["loads"]
    DAMAGES[damage](tmp_path / "a")
    with pytest.raises(UserError) as refused:
        store.load(tmp_path / "a")
    monkeypatch.setattr(tensorfiles.Files, "load", None)
    assert str(refused.value) in terminal.json(f"doctor {tmp_path}/a", code=1)["refused"]


def test_whole_weights_of_other_shapes_are_refused_by_the_doctor(tmp_path, terminal):
    store.save(build_model(tiny.ALL["llama"], seed=1), tmp_path / "base")
    model = build_model(tiny.ALL["llama"], seed=1)
    tuning.tune(model, objectives.Frozen(("*.blocks.1.*",)))
    store.save(model, tmp_path / "a", base=str(tmp_path / "base"))
    assert terminal.json(f"doctor {tmp_path}/a")["loads"]
    path = tmp_path / "a" / "model.safetensors"
    name, *_ = tensors = load_file(path)
    save_file(tensors | {name: torch.zeros(3, 5)}, path)
    assert (
        f"holds {name} of the shape [3, 5]"
        in terminal.json(f"doctor {tmp_path}/a", code=1)["refused"][0]
    )


@pytest.mark.parametrize("name", ["falcon/40b", "gpt_neox/pythia-70m", "bloom/560m"])
def test_a_layer_whose_rows_are_dealt_out_to_heads_takes_no_adapter(name):
    # a low-rank change of queries, keys and values one after the other is none of such rows
    published = next(adapters._namings(recipes.find(name), name.partition("/")[0]))
    names = [matrix.name for matrix in published.matrices()]
    assert any("dense" in matrix for matrix in names)
    assert not [matrix for matrix in names if matrix.endswith("query_key_value")]
