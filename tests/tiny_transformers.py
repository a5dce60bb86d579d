"""Tiny random models of the library ``transformers``, by a word of ours for each class."""

from __future__ import annotations

from pathlib import Path

import torch

from folders import read_json
from seeding import generator_from

# for each class the groups of sizes that it takes, and its own; null is a size that it refuses
TABLES = read_json(Path(__file__).with_suffix(".json"))
SIZES = TABLES["sizes"]
VOCAB = SIZES["vocab_size"]
LM_HEAD = ("GPT2", "OpenAIGPT", "CTRL", "Bert")
OF_TEXT = ("Gemma3", "Gemma3n", "Llama4", "Qwen3_5")


def names():
    """The config, the class and the sizes of every class, by the name of its kind."""
    rows = {}
    for ending in ("ForCausalLM", "ForMaskedLM", "ForConditionalGeneration"):
        for name, sizes in TABLES[ending].items():
            key = name
            kind = name + ending
            if ending == "ForCausalLM":
                ambiguous = (
                    name in TABLES["ForMaskedLM"] or name in TABLES["ForConditionalGeneration"]
                )
                key = f"{name}Decoder" if ambiguous else name
                kind = f"{name}LMHeadModel" if name in LM_HEAD else kind
            rows[key] = (f"{name}{'Text' * (name in OF_TEXT)}Config", kind, sizes)
    return rows | {
        name: (f"{name}Config", kind, sizes) for name, (kind, *sizes) in TABLES["others"].items()
    }


NAMES = names()


def build(name):
    """The model with weights that leave no part of it at zero."""
    import transformers

    config_name, model_name, extra = NAMES[name]
    sizes = dict(SIZES)
    for group in extra:
        sizes |= TABLES["groups"][group] if isinstance(group, str) else group
    sizes = {key: size for key, size in sizes.items() if size is not None}
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**sizes)
    model = getattr(transformers, model_name)(config).eval()
    generator = generator_from(1)
    corrections = [b for name, b in model.named_buffers() if name.endswith("score_correction_bias")]
    for parameter in [*model.parameters(), *corrections]:
        if parameter.dim():
            parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def inputs(name):
    """The arguments of one pass."""
    generator = generator_from(3)

    def noise(*shape):
        return torch.randn(shape, generator=generator)

    ids = torch.randint(6, VOCAB - 1, (1, 12), generator=generator)
    kind = NAMES[name][1]
    if kind.endswith("ForCTC"):
        return {"input_values": noise(1, 64)}
    if name == "PatchTST":
        return {"past_values": noise(1, 16, 2)}
    if name == "DecisionTransformer":
        episode = {"states": 3, "actions": 2, "rewards": 1, "returns_to_go": 1}
        steps = {"timesteps": torch.arange(4)[None], "attention_mask": torch.ones(1, 4)}
        return {key: noise(1, 4, size) for key, size in episode.items()} | steps
    if name == "Whisper":
        return {"input_features": noise(1, 8, 32), "decoder_input_ids": ids[:, :7]}
    if kind.endswith(("ForImageClassification", "VisionModel")) and name != "ImageGPT":
        return {"pixel_values": noise(1, 3, 16, 16)}
    if kind.endswith(("ForConditionalGeneration", "MTModel")):
        return {"input_ids": ids, "decoder_input_ids": ids[:, :7]}
    return {"input_ids": ids}
