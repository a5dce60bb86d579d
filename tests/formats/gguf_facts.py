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
}
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
    "XLMRoberta": {"pad_token_id": 1, "add_pooling_layer": False},
    "T5": {
        "tie_word_embeddings": False,
        "feed_forward_proj": "gated-gelu",
        "num_decoder_layers": 1,
    },
    "MT5": {"tie_word_embeddings": False},
    "UMT5": {"tie_word_embeddings": False, "scale_decoder_outputs": False},
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
}
FAMILIES = (
    "Llama Mistral Mixtral Qwen2 Qwen2Moe Qwen3 Qwen3Moe Gemma Gemma2 Gemma3 Phi Phi3 Phimoe GPT2 GPTBigCode "
    "Starcoder2 StableLm Olmo2 Olmo3 Olmoe Granite SmolLM3 Exaone4 Cohere2 GptOss GPTNeoX Falcon Bloom Mpt "
    "Glm4Moe MiniMaxM2 Lfm2 Mamba2 Bert XLMRoberta NomicBert ModernBert T5 T5Encoder MT5 MT5Encoder UMT5 UMT5Encoder"
)


def cases():
    """The config of each case, as we publish it, by its name."""
    transformers = import_module("transformers")
    older, newer, encoders = TABLES.values()
    five = {"num_hidden_layers": 5, "hidden_activation": "silu", "local_attention": 4}
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    for family in FAMILIES.split():
        known = older["settings"].get(family) or newer.get(family, {}).get("cases", {})
        known = known or encoders["t5"] | {"five blocks, silu": FITTING["ModernBert"] | five}
        sizes = older["gpt2 sizes" if family == "GPT2" else "sizes"]
        sizes = newer[family]["sizes"] if family in newer else sizes
        shape = family.removesuffix("Encoder")
        sizes = encoders["t5 sizes"] | {"decoder_start_token_id": 0} if shape in PAIRS else sizes
        first = FITTING[shape] if shape in FITTING else next(iter(known.values()))
        borrowed = newer["GPTBigCode"]["cases"] if family == "Falcon" else {}
        for name in ("", *MORE.get(family, ())):
            changes = (known | borrowed)[name] if name else first
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


def converted(folder, llama_cpp, family):
    """The file that the converter makes of a folder, without a vocabulary."""
    sys.path[:0] = [str(llama_cpp / "gguf-py"), str(llama_cpp)]
    conversion, base = import_module("conversion"), import_module("conversion.base")
    ModelBase, TextModel, theirs = base.ModelBase, base.TextModel, base.gguf
    hparams = ModelBase.load_hparams(folder, False) | EXTRA.get(family, {})
    kind = conversion.get_model_class(hparams["architectures"][0])

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
        kind(folder, theirs.LlamaFileType.ALL_F32, path, hparams=hparams).write()
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
