"""Adapters in PEFT's layout: out and back, read from PEFT, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from changed import logits, moved
from glassformer.core.errors import UserError
from glassformer.core.nn import build_model
from glassformer.formats import adapters, store
from glassformer.formats.checkpoint import Checkpoint


@pytest.mark.parametrize("name", ["llama", "gpt2", "alibi", "bert"])
def test_an_adapter_goes_out_and_comes_back(name, tmp_path):
    shape = tiny.ALL[name]
    base = build_model(shape, seed=1)
    layout = None if name != "alibi" else "glassformer"
    store.save(base, tmp_path / "base", layout=layout)
    model = moved(shape)
    store.save(model, tmp_path / "adapter", base=str(tmp_path / "base"))
    loaded, _ = store.load(tmp_path / "adapter")
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-5, atol=1e-5)
    assert all(weight.requires_grad for weight in loaded.parameters())
    again = build_model(shape, seed=1).eval()
    adapters.attach(again, tmp_path / "adapter")
    local, reference = dict(model.named_parameters()), dict(again.named_parameters())
    assert local.keys() == reference.keys() and all(
        torch.equal(local[n], reference[n]) for n in local
    )
    (tmp_path / "adapter" / "config.json").unlink()  # as PEFT itself leaves it
    torch.testing.assert_close(
        logits(store.load(tmp_path / "adapter")[0]), logits(model), rtol=1e-5, atol=1e-5
    )


def test_names_and_numbers_are_pefts(tmp_path):
    store.save(moved(tiny.DECODERS["llama"]), tmp_path / "a", base="org/base")
    page = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    expected = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 3,
        "lora_alpha": 6,
        "bias": "none",
    }
    assert expected.items() <= page.items() and page["target_modules"] == ["q_proj", "v_proj"]
    assert page["base_model_name_or_path"] == "org/base" and page["fan_in_fan_out"] is False
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    item = "base_model.model.model.layers.1.self_attn.v_proj"
    assert tensors[f"{item}.lora_A.weight"].shape == (3, 32) and tensors[
        f"{item}.lora_B.weight"
    ].shape == (16, 3)
    store.save(moved(tiny.DECODERS["gpt2"]), tmp_path / "b", base="org/base")
    page = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    assert (
        page["target_modules"] == ["c_attn"]
        and page["fan_in_fan_out"]
        and (page["r"], page["lora_alpha"]) == (6, 12)
    )


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_peft_gives_the_same_logits(name, tmp_path):
    peft = pytest.importorskip("peft")
    import transformers

    store.save(build_model(tiny.DECODERS[name], seed=1), tmp_path / "base")
    model = moved(tiny.DECODERS[name])
    store.save(model, tmp_path / "adapter", base=str(tmp_path / "base"))
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    reference = peft.PeftModel.from_pretrained(reference, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        torch.testing.assert_close(
            reference(tiny.tokens()).logits, logits(model), rtol=1e-4, atol=1e-4
        )
    reference.save_pretrained(tmp_path / "back")
    torch.testing.assert_close(
        logits(store.load(tmp_path / "back")[0]), logits(model), rtol=1e-5, atol=1e-5
    )


def test_adapters_that_cannot_be_read(tmp_path):
    store.save(build_model(tiny.DECODERS["llama"], seed=1), tmp_path / "base")
    store.save(moved(tiny.DECODERS["llama"]), tmp_path / "a", base=str(tmp_path / "base"))
    page = tmp_path / "a" / "adapter_config.json"
    right = page.read_text()
    for key, value in (("use_dora", True), ("peft_type", "IA3"), ("bias", "all")):
        page.write_text(json.dumps({**json.loads(right), key: value}))
        with pytest.raises(UserError, match=f'says "{key}"'):
            store.load(tmp_path / "a")
    page.write_text(right)
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    save_file(
        {**tensors, "base_model.model.nose.weight": torch.ones(1)},
        tmp_path / "a" / "adapter_model.safetensors",
    )
    with pytest.raises(UserError, match=r"changes nose.weight, which its base does not have"):
        store.load(tmp_path / "a")
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    with pytest.raises(
        UserError, match=r"holds only what was changed in .*base.*There is no folder"
    ):
        store.load(tmp_path / "a")


@pytest.fixture
def peft(tmp_path):
    """A base and an adapter of rank 3 for it; changed(page, tensors) gives the logits with those
    changes."""
    store.save(build_model(tiny.DECODERS["llama"], seed=1), tmp_path / "base")
    store.save(moved(tiny.DECODERS["llama"]), tmp_path / "a", base=str(tmp_path / "base"))
    (tmp_path / "a" / "config.json").unlink()
    page, file = tmp_path / "a" / adapters.PAGE, tmp_path / "a" / adapters.TENSORS
    right, tensors = json.loads(page.read_text()), load_file(file)

    def changed(settings, remaining=None):
        page.write_text(json.dumps({**right, **settings}))
        save_file({**tensors, **(remaining or {})}, file)
        return logits(store.load(tmp_path / "a")[0])

    changed.tensors, changed.file = tensors, file
    return changed


SETTINGS = {
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


@pytest.mark.parametrize("key", SETTINGS)
def test_settings_that_are_not_done_are_refused_by_name(key, peft):
    with pytest.raises(UserError, match=key):
        peft({key: SETTINGS[key]})


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


@pytest.mark.parametrize(("pattern", "first", "second"), PATTERNS)
def test_patterns_of_alpha_match_as_in_peft(pattern, first, second, peft):
    actual = peft({"alpha_pattern": pattern})
    scaled = {}
    for layer, alpha in enumerate((first, second)):
        name = f"base_model.model.{Q.format(layer)}.lora_B.weight"
        scaled[name] = peft.tensors[name] * (alpha / 6)
    torch.testing.assert_close(actual, peft({}, scaled), rtol=1e-5, atol=1e-5)


def test_rank_stabilised_and_what_targets_the_layers(peft):
    plain = peft({})
    torch.testing.assert_close(
        peft({"use_rslora": True, "lora_alpha": 6 / 3**0.5}), plain, rtol=1e-5, atol=1e-5
    )
    for settings in (
        {"layers_to_transform": [0, 1]},
        {"layers_to_transform": [1, 0], "layers_pattern": "layers"},
        {"target_modules": r".*\.[qv]_proj"},
        {"target_modules": "all-linear"},
        {"rank_pattern": {"[qv]_proj": 3}, "r": 8},
    ):
        assert torch.equal(peft(settings), plain)
    with pytest.raises(UserError, match=r"has rank 3 and adapter_config\.json says 8"):
        peft({"r": 8})
    for pattern, message in (
        ("(a+)+b", "too involved"),
        (".*.*.*.*", "too involved"),
        ("(", "not a pattern"),
    ):
        with pytest.raises(UserError, match=message):
            peft({"alpha_pattern": {pattern: 1}})


@pytest.mark.parametrize(
    ("down", "up"),
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
    with pytest.raises(UserError, match=r"q_proj is \[.*|attn.q.down of the shape"):
        peft({}, {f"{name}A.weight": torch.ones(down), f"{name}B.weight": torch.ones(up)})


@pytest.mark.parametrize("half", "AB")
def test_a_missing_half_and_one_that_is_no_number(half, peft):
    name = f"base_model.model.{Q.format(0)}.lora_{half}.weight"
    broken = peft.tensors[name].clone()
    broken[0, 0] = float("nan")
    with pytest.raises(UserError, match="holds NaN or infinite numbers"):
        peft({}, {name: broken})
    del peft.tensors[name]
    with pytest.raises(UserError, match="has only one of lora_A and lora_B"):
        peft({})


@pytest.mark.parametrize("page", ["config.json", adapters.PAGE])
def test_a_change_of_itself_is_no_model(page, tmp_path):
    store.save(build_model(tiny.DECODERS["llama"], seed=1), tmp_path / "base")
    for name, base in (("a", "b"), ("b", "c"), ("c", "b"), ("d", "d")):
        store.save(moved(tiny.DECODERS["llama"]), tmp_path / name, base=str(tmp_path / base))
        if page != "config.json":
            (tmp_path / name / "config.json").unlink()
    for name in "abcd":
        for act in (store.load, Checkpoint.open):
            if act is store.load or page != "config.json":
                with pytest.raises(UserError, match=r"is itself a change of"):
                    act(tmp_path / name)
