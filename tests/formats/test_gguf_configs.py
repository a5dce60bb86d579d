"""What GGUF files say of a model, in and out."""

from __future__ import annotations

import re

import pytest

from glassformer import families as recipes
from glassformer.core.config.scaling import Llama3Scaling
from glassformer.formats import gguf_configs as gguf
from mistakes import mistake


@pytest.mark.parametrize(
    "name", ["llama/stories260k", "llama/3.2-1b", "qwen2/0.5b", "qwen3/0.6b", "gpt2/124m"]
)
def test_a_model_comes_back_from_its_fields(name):
    model = recipes.find(name)
    fields, factors = gguf.write_fields(model)
    shapes = {"token_embd.weight": (model.embed.vocab, model.dim)}
    shapes |= {} if model.head is None or model.head.tied else {"output.weight": (1, 1)}
    back = gguf.read_config(fields, shapes, factors, "it")
    assert recipes.write_config(back) == recipes.write_config(model)


def test_factors_are_those_that_transformers_divides_by():
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": 5e5}
    cfg = transformers.LlamaConfig(hidden_size=128, num_attention_heads=1, rope_parameters=scaling)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](cfg, "cpu")
    plain = [5e5 ** (-pair / 64) for pair in range(64)]
    expected = [item / float(scaled) for item, scaled in zip(plain, frequencies, strict=True)]
    assert gguf.llama3_factors(Llama3Scaling(8.0), 128, 5e5) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"general.architecture": "falcon"}, 'architecture "falcon"; only llama, qwen2'),
        ({"general.architecture": 7}, 'architecture "7"'),
        ({"llama.embedding_length": None}, "lacks llama.embedding_length"),
        ({"llama.expert_count": 8}, "llama.expert_count is 8"),
        ({"llama.rope.scaling.factor": 4.0}, "llama.rope.scaling.factor is 4.0"),
        ({"llama.embedding_length": "wide"}, "hidden_size"),
        ({"llama.block_count": 1 << 40}, "num_hidden_layers"),
    ],
)
def test_fields_of_what_is_not_read_are_named(change, sentence):
    fields, _ = gguf.write_fields(recipes.find("llama/stories260k"))
    fields = {key: value for key, value in {**fields, **change}.items() if value is not None}
    with mistake(re.escape(sentence)):
        gguf.read_config(fields, {"token_embd.weight": (512, 64)}, None, "it")


def test_rotary_factors_of_another_family_are_refused():
    fields, _ = gguf.write_fields(recipes.find("llama/stories260k"))
    with mistake("factors of its own"):
        gguf.read_config(fields, {"token_embd.weight": (512, 64)}, [1.0, 2.0, 3.0, 4.0], "it")


@pytest.mark.parametrize("name", ["gemma/2b", "phi/2", "gpt2/nanogpt", "mixtral/8x7b"])
def test_models_that_the_format_does_not_hold_are_refused(name):
    with mistake(r"save it as hf|which this model has not"):
        gguf.write_fields(recipes.find(name))
