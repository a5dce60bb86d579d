"""Logits and weights against transformers, on tiny random models: theirs loaded here, ours loaded
there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer import families as recipes
from glassformer.core.config import LayerNorm, Learned, LinearScaling, Llama3Scaling, Rotary
from glassformer.core.nn import build_model
from glassformer.families.gpt2 import gpt2
from glassformer.formats import store

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TOLERANCE = 1e-5
STORY = (  # the data README's
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball. She wanted to play with it, but it was too high"
)
VOCAB = 61
STRETCH = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA: dict[str, dict[str, Any]] = {
    "mha": {"num_key_value_heads": 4},
    "gqa": {},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "llama3 stretch": {"rope_scaling": STRETCH, "rope_theta": 5e5},
    "linear stretch": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "wide heads": {"head_dim": 14},
    "narrow heads": {"head_dim": 6, "num_attention_heads": 8, "num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "gelu gate": {"hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-3},
}
GPT2: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "narrow mlp": {"n_inner": 40},
    "exact gelu": {"activation_function": "gelu", "layer_norm_epsilon": 1e-3},
    "one head": {"n_head": 1},
}


def llama(**changes: Any) -> Any:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.15,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes}))


def theirs_gpt2(**changes: Any) -> Any:
    sizes = {
        "vocab_size": VOCAB,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
        "initializer_range": 0.15,
    }
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**sizes, **changes}))


def shaken(model: Any, seed: int = 0) -> Any:
    """The model with every parameter random: published code starts biases at zero and norms at
    one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def tokens(length: int = 48) -> Tensor:
    return torch.randint(0, VOCAB, (3, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def difference(a: Any, b: Any, ids: Tensor) -> float:
    return float((a(ids).logits - b(ids).logits).abs().max())


def files(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return {
        name: tensor
        for path in folder.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }


CASES = [pytest.param(llama, change, id=f"llama {name}") for name, change in LLAMA.items()]
CASES += [pytest.param(theirs_gpt2, change, id=f"gpt2 {name}") for name, change in GPT2.items()]


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_both_ways(family: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    """Theirs -> ours, ours -> theirs: the same logits; and the files come back bit for bit."""
    reference = shaken(family(**changes))
    reference.save_pretrained(tmp_path / "theirs")
    model, tokenizer = store.load(tmp_path / "theirs")
    assert tokenizer is None and not model.training
    assert difference(model, reference, tokens()) <= TOLERANCE

    store.save(model, tmp_path / "ours", layout="hf")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert difference(again, model, tokens()) <= TOLERANCE
    before, after = files(tmp_path / "theirs"), files(tmp_path / "ours")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_logits_are_of_a_size_that_tells() -> None:
    """The tolerance means something: the tiny models' logits are far from zero and from each
    other."""
    with torch.no_grad():
        logits = shaken(llama())(tokens()).logits
    assert logits.std() > 0.5


def test_stretched_positions_matter(tmp_path: Path) -> None:
    """The stretched cases would fail with plain rotary positions."""
    reference = shaken(llama(rope_scaling=STRETCH))
    reference.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["rope_parameters"] = None
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert difference(store.load(tmp_path)[0], reference, tokens()) > 100 * TOLERANCE


@pytest.mark.parametrize(
    "name",
    ["gpt2/124m", "gpt2/nanogpt", "llama/2-70b", "llama/3-8b", "llama/3.1-8b", "llama/3.2-1b"],
)
def test_recipes_shrunk(name: str, tmp_path: Path) -> None:
    """Our own recipes, made tiny, are what transformers loads from our folder."""
    model = shaken(build_model(shrunk(name), seed=3))
    store.save(model, tmp_path, layout="hf")
    reference_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert difference(model, reference_model, tokens()) <= TOLERANCE
    back, _ = store.load(tmp_path)
    assert recipes.plain(back.config) == recipes.plain(model.config)
    assert all(
        torch.equal(a, b) for a, b in zip(back.parameters(), model.parameters(), strict=True)
    )


def shrunk(name: str) -> Any:
    from dataclasses import replace

    cfg: Any = recipes.find(name)
    block = cfg.decoder.pattern[0]
    attention = replace(block.attention, heads=4, kv_heads=2 if block.attention.kv_heads else None)
    block = replace(block, attention=attention, feedforward=replace(block.feedforward, hidden=44))
    position = Learned(64) if isinstance(cfg.decoder.position, Learned) else cfg.decoder.position
    stack = replace(cfg.decoder, depth=2, pattern=(block,), position=position)
    return replace(cfg, dim=32, context=64, decoder=stack, embed=replace(cfg.embed, vocab=VOCAB))


def test_nanogpt_has_no_biases_here_and_zeros_there(tmp_path: Path) -> None:
    model = build_model(shrunk("gpt2/nanogpt"))
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())
    store.save(model, tmp_path, layout="hf")
    biases = {name: tensor for name, tensor in files(tmp_path).items() if name.endswith("bias")}
    assert len(biases) == 2 * 6 + 1 and not any(bias.any() for bias in biases.values())


def test_original_gpt2_files(tmp_path: Path) -> None:
    """The hub's first GPT-2 files: names without "transformer.", the causal mask among the
    weights."""
    from safetensors.torch import save_file

    reference = shaken(theirs_gpt2())
    reference.save_pretrained(tmp_path)
    state = {name.removeprefix("transformer."): tensor for name, tensor in files(tmp_path).items()}
    state |= {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64).tril() for i in range(3)}
    state |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}
    save_file(state, tmp_path / "model.safetensors")
    assert difference(store.load(tmp_path)[0], reference, tokens()) <= TOLERANCE


def test_old_llama_files(tmp_path: Path) -> None:
    """Files with rotary_emb.inv_freq in every layer, and rope_theta and rope_scaling as
    transformers 4 writes them."""
    from safetensors.torch import save_file

    reference = shaken(llama(rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_theta=5e4))
    reference.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    del raw["rope_parameters"], raw["head_dim"]
    raw |= {
        "rope_theta": 5e4,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "torch_dtype": "float32",
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    state = files(tmp_path) | {
        f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(3)
    }
    save_file(state, tmp_path / "model.safetensors")
    assert difference(store.load(tmp_path)[0], reference, tokens()) <= TOLERANCE


def test_bf16_files(tmp_path: Path) -> None:
    """Half-precision files stay so unless asked; as fp32 they equal transformers in fp32."""
    shaken(llama()).to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    model, _ = store.load(tmp_path / "theirs")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    wide, _ = store.load(tmp_path / "theirs", dtype=torch.float32)
    reference_model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "theirs", dtype=torch.float32
    ).eval()
    assert difference(wide, reference_model, tokens()) <= TOLERANCE
    store.save(model, tmp_path / "ours")
    before, after = files(tmp_path / "theirs"), files(tmp_path / "ours")
    assert all(
        after[name].dtype == torch.bfloat16 and torch.equal(before[name], after[name])
        for name in before
    )


def test_shards_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = shaken(llama())
    reference.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("model-*.safetensors"))) > 2
    model, _ = store.load(tmp_path / "theirs")
    assert difference(model, reference, tokens()) <= TOLERANCE
    monkeypatch.setattr(store.tensorfiles, "SHARD", 20_000)
    store.save(model, tmp_path / "ours", layout="hf")
    assert len(list((tmp_path / "ours").glob("model-*.safetensors"))) > 2
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert difference(again, reference, tokens()) <= TOLERANCE


def test_vocabulary_of_the_layouts() -> None:
    """The recipes name exactly the layouts of the parity cases above."""
    scaling = recipes.find("llama/3.1-8b").decoder.position.scaling  # type: ignore[union-attr]
    assert scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert isinstance(gpt2(32, 2, 4).decoder.last_norm, LayerNorm)
    raw = recipes.ConfigReader({"rope_scaling": {"type": "linear", "factor": 4}, "rope_theta": 1e4})
    assert recipes.decoders.read_rotary(raw) == Rotary(1e4, scaling=LinearScaling(4.0))


def test_a_real_llama_tells_its_story(shared_data: Path) -> None:
    """stories260K, greedy from BOS, against the data README; and transformers tells the same."""
    folder = shared_data / "stories260K"
    model, tokenizer = store.load(folder)
    reference_model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([[1]])
    with torch.no_grad():
        for _ in range(70):
            ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), 1)
    assert difference(model, reference_model, ids) <= TOLERANCE
    output = reference_model.generate(torch.tensor([[1]]), max_new_tokens=70, do_sample=False)
    assert ids.tolist() == output.tolist()
    assert tokenizer is not None
    assert tokenizer.decode(ids[0].tolist()).strip().startswith(STORY)
