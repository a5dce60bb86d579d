"""What llama.cpp's own converter writes of tiny models, for tests that have no converter:
``python -m formats.gguf_facts LLAMA_CPP`` beside a checkout writes gguf_facts.json anew.

    config of transformers -> our model, numbers drawn from names -> files in the published layout -> converter -> facts
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import zlib
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from glassformer import families as recipes
from glassformer.core.nn import build_model
from glassformer.formats import gguf, store

FACTS = Path(__file__).with_name("gguf_facts.json")
HARMLESS = ("general.", "tokenizer.", "split.")
EXTRA = {  # words that the converter wants and that transformers no longer writes
    "GPTNeoX": {"rotary_pct": 0.25},
    "Cohere2": {"rotary_pct": 1.0},
    "GPT2": {"n_ctx": 64},
    "Mpt": {"architectures": ["MPTForCausalLM"]},
    "NomicBert": {
        "head_dim": None,
        "n_positions": 8192,
        "activation_function": "swiglu",
        "rotary_emb_base": 1000.0,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_scale_base": None,
        **dict.fromkeys(("causal", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False),
        **dict.fromkeys(("prenorm", "rotary_emb_interleaved"), False),
    },
    "Phimoe": {"architectures": ["PhiMoEForCausalLM"], "original_max_position_embeddings": 64},
    "MiniMaxM2": {"rotary_dim": 4, "scoring_func": "sigmoid"},
    "ModernBert": {"layer_norm_eps": 1e-5, "global_attn_every_n_layers": 3},
    # it knows these by T5's name alone
    "MT5Encoder": {"architectures": ["T5EncoderModel"]},
    "UMT5Encoder": {"architectures": ["T5EncoderModel"]},
    "DeepseekV2": {"scoring_func": "softmax"},
    "DeepseekV3": {"scoring_func": "sigmoid"},
    "NemotronH": {"n_shared_experts": 1},
}
WITHOUT_LATER = {"Qwen3Next", "Qwen3_5"}  # blocks that predict later tokens, which it expects
LETTERS = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
TABLES = {
    name: json.loads((FACTS.parents[1] / "families" / f"{name}.json").read_text("utf-8"))
    for name in ("decoders", "more_decoders", "encoders")
}
OF_TEXT = {"Gemma3", "Qwen3_5", "Llama4"}  # whose configs are beside those of images
FITTING = {  # changes where the first case is one that llama.cpp has no words for
    "GPT2": {},
    "Mistral": {"sliding_window": None},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 3, "norm_topk_prob": True},
    "Gemma2": {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16},
    "Gemma3": {"query_pre_attn_scalar": 16},
    "Phi": {"num_key_value_heads": None, "intermediate_size": 128},
    "Olmoe": {"num_key_value_heads": 4},
    "Phimoe": {"lm_head_bias": True},
    "Bert": {"add_pooling_layer": False},
    "NomicBert": {"pad_token_id": 0, "head_dim": 8},
    "ModernBert": {"pad_token_id": 0, "local_attention": 8},
    "ModernBert five blocks, silu": {
        "pad_token_id": 0,
        "num_hidden_layers": 5,
        "hidden_activation": "silu",
        "local_attention": 4,
    },
    "XLMRoberta": {"pad_token_id": 1, "add_pooling_layer": False},
    "T5": {
        "tie_word_embeddings": False,
        "feed_forward_proj": "gated-gelu",
        "num_decoder_layers": 1,
    },
    "MT5": {"tie_word_embeddings": False},
    "UMT5": {"tie_word_embeddings": False, "scale_decoder_outputs": False},
    "DeepseekV2 greedy, yarn": {
        "topk_method": "greedy",
        "v_head_dim": 5,
        "n_shared_experts": 1,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    },
    "Qwen3Next": {"linear_value_head_dim": 16},
    "Qwen3Next listed": {
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "Qwen3_5": {
        "linear_value_head_dim": 16,
        "head_dim": 64,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1000.0,
            "partial_rotary_factor": 1.0,
        },
    },
    "Qwen3_5 as many key heads": {
        "linear_num_key_heads": 4,
        "linear_value_head_dim": 16,
        "tie_word_embeddings": True,
    },
    "GraniteMoeHybrid dense attention alone": {
        "num_local_experts": 0,
        "layer_types": ["full_attention"] * 3,
    },
    "GraniteMoeHybrid dense": {
        "num_local_experts": 0,
        "position_embedding_type": None,
        "tie_word_embeddings": True,
    },
    "NemotronH": {"layers_block_type": ["linear_attention", "moe", "full_attention"]},
    "NemotronH groups": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": False,
    },
    "NemotronH dense": {
        "layers_block_type": [
            "full_attention",
            "mlp",
            "linear_attention",
            "linear_attention",
            "mlp",
        ],
        "mlp_bias": True,
    },
    "Llama4": {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
    "Llama4 scaled, dense between": {
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "moe_layers": [1, 3],
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1000.0,
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 40,
        },
    },
}
ENCODERS = (
    "Bert",
    "XLMRoberta",
    "NomicBert",
    "ModernBert",
    "T5Encoder",
    "MT5Encoder",
    "UMT5Encoder",
)
PAIRS = ("T5", "MT5", "UMT5")
MORE = {  # further cases, by their names in the families' tables
    "Llama": ["tied", "linear stretch", "wide heads", "biases"],
    "Qwen2": ["yarn, all said"],
    "Phi3": ["longrope"],
    "StableLm": ["side by side"],
    "Falcon": ["two norms, groups"],
    "Granite": ["ones, biases"],
    "Exaone4": ["no window"],
    "Glm4Moe": ["normed queries, biases"],
    "ModernBert": ["five blocks, silu"],
    "T5": ["tied", "shallower decoder, odd heads"],
    "DeepseekV2": ["greedy, yarn"],
    "DeepseekV3": ["one group, two shared"],
    "Qwen3Next": ["listed"],
    "Qwen3_5": ["as many key heads"],
    "GraniteMoeHybrid": ["dense", "attention alone", "dense attention alone"],
    "NemotronH": ["dense", "groups"],
    "Llama4": ["scaled, dense between"],
}
FAMILIES = (
    "Llama Mistral Mixtral Qwen2 Qwen2Moe Qwen3 Qwen3Moe Gemma Gemma2 Gemma3 Phi Phi3 Phimoe GPT2 GPTBigCode "
    "Starcoder2 StableLm Olmo2 Olmo3 Olmoe Granite SmolLM3 Exaone4 Cohere2 GptOss GPTNeoX Falcon Bloom Mpt "
    "Glm4Moe MiniMaxM2 Lfm2 Mamba2 Bert XLMRoberta NomicBert ModernBert T5 T5Encoder MT5 MT5Encoder UMT5 UMT5Encoder "
    "DeepseekV2 DeepseekV3 Qwen3Next Qwen3_5 GraniteMoeHybrid NemotronH Llama4"
)


def cases():
    """The config of each case, as we publish it, by its name."""
    transformers = import_module("transformers")
    older, newer, encoders = TABLES.values()
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    for family in FAMILIES.split():
        family_cases = older["settings"].get(family) or newer.get(family, {}).get("cases", {})
        family_cases = family_cases or encoders["t5"]
        sizes = older["gpt2 sizes" if family == "GPT2" else "sizes"]
        sizes = newer[family]["sizes"] if family in newer else sizes
        shape = family.removesuffix("Encoder")
        sizes = encoders["t5 sizes"] | {"decoder_start_token_id": 0} if shape in PAIRS else sizes
        first = FITTING[shape] if shape in FITTING else next(iter(family_cases.values()))
        borrowed = newer["GPTBigCode"]["cases"] if family == "Falcon" else {}
        for name in ("", *MORE.get(family, ())):
            changes = first
            if name:
                changes = FITTING.get(f"{family} {name}") or (family_cases | borrowed)[name]
            settings = getattr(transformers, f"{shape}{'Text' * (family in OF_TEXT)}Config")
            settings = settings(**special | sizes | changes)
            raw = json.loads(settings.to_json_string(use_diff=False))
            head = "Model" if family in ENCODERS else "ForCausalLM"
            head = "LMHeadModel" if family == "GPT2" else head
            head = "ForConditionalGeneration" if family in PAIRS else head
            raw |= {"architectures": [family + head], "model_type": settings.model_type}
            # transformers writes that every T5 is tied, and leaves it to the files
            raw |= changes if shape in PAIRS else {}
            recipe, cfg = recipes.read_config(raw)
            yield f"{family} {name}".strip(), recipes.write_config(cfg, recipe.name)[1]


def drawn(name, param):
    """Numbers on a grid of 2**-16, which depend on the name alone; gains lie around one."""
    state = np.arange(param.numel(), dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()) << 20)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    numbers = (state >> np.uint64(48)).astype(np.float32) / 2**16 * 0.75 - 0.375
    numbers = numbers / 2 + 1 if "norm" in name and param.dim() == 1 else numbers
    return torch.from_numpy(numbers).reshape(param.shape)


def model_of(raw):
    """The model of a config.json, of drawn numbers."""
    recipe, cfg = recipes.read_config(raw)
    model = build_model(cfg).eval()
    model.family = recipe.name
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(drawn(name, param))
    return model


def facts_of(path):
    """The fields of an architecture and the tensors of a file: shape, and a digest of the numbers."""
    file = gguf.GGUF(path)
    fields = {key: value for key, value in file.fields.items() if not key.startswith(HARMLESS)} | {
        "general.architecture": file.fields["general.architecture"]
    }
    tensors = {}
    for name, place in sorted(file.places.items()):
        digest = hashlib.sha256(file.load(name).contiguous().numpy().tobytes()).hexdigest()
        tensors[name] = f"{'x'.join(map(str, place.shape))} {digest[:10]}"
    return {"fields": dict(sorted(fields.items())), "tensors": tensors}


def older(family, hparams):
    """The words that the converter knows, where transformers has others."""
    hparams = hparams | EXTRA.get(family, {})
    if family == "GraniteMoeHybrid":
        attends = [kind == "full_attention" for kind in hparams["layer_types"]]
        hparams["layer_types"] = ["attention" if attend else "mamba" for attend in attends]
        if not hparams["num_local_experts"]:
            hparams["num_experts_per_tok"] = 0
            hparams["intermediate_size"] = hparams["shared_intermediate_size"]
    if family == "NemotronH":
        kinds = hparams["layers_block_type"]
        hparams["hybrid_override_pattern"] = "".join(LETTERS[kind] for kind in kinds)
        hparams["rms_norm_eps"] = hparams["layer_norm_epsilon"]
        if "moe" not in kinds:
            for word in ("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"):
                del hparams[word]
    if family == "Llama4":
        hparams["interleave_moe_layer_step"] = hparams["moe_layers"][0] + 1
    return hparams


def converted(folder, llama_cpp, family):
    """The file that the converter makes of a folder, without a vocabulary."""
    sys.path[:0] = [str(llama_cpp / "gguf-py"), str(llama_cpp)]
    conversion, base = import_module("conversion"), import_module("conversion.base")
    ModelBase, TextModel, gguf = base.ModelBase, base.TextModel, base.gguf
    hparams = older(family, ModelBase.load_hparams(folder, False))
    kind = conversion.get_model_class(hparams["architectures"][0])
    kind.no_mtp = family in WITHOUT_LATER

    def set_vocab(self):
        self.gguf_writer.add_tokenizer_model("none")
        self.gguf_writer.add_vocab_size(hparams["vocab_size"])

    kind.set_vocab = TextModel.set_vocab = set_vocab
    vocabulary = {
        "model": {
            "type": "WordPiece",
            "vocab": dict.fromkeys(map(str, range(hparams["vocab_size"]))),
        }
    }
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary | {"added_tokens": []}))
    path = folder / "model.gguf"
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.ALL_F32, path, hparams=hparams).write()
    return path


def main(llama_cpp):
    facts = {}
    for name, raw in cases():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            store.save(model_of(raw), folder, layout="hf")
            path = converted(folder, llama_cpp, name.partition(" ")[0])
            facts[name] = {"config": raw, **facts_of(path)}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items())
    FACTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
