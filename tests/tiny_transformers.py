"""Tiny random models of the library ``transformers``, by a word of ours for each class."""

from __future__ import annotations

from typing import Any

import torch

VOCAB = 96
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ABSENT = object()  # a size that the class refuses to be given
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
PAIR = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_start_token_id": 0,
}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0}
SSD = {"state_size": 4, "num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 2, "chunk_size": 4}
HYBRID = {"mamba_d_state": 4, "mamba_d_conv": 4, "mamba_expand": 2}
SSD_HYBRID = HYBRID | {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1}
SSD_HYBRID |= {"mamba_chunk_size": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
MLA |= {"v_head_dim": 8, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2}
MLA |= {"topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MLA |= {"first_k_dense_replace": 1}
IMAGE = {"image_size": 16, "patch_size": 4}
SPEECH = {"conv_dim": (16, 16), "conv_kernel": (4, 3), "conv_stride": (2, 2)}
SPEECH |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
HEAD = {"head_dim": 8}

CAUSAL = {
    "Llama": {},
    "GPT2": GPT,
    "Mixtral": {"num_local_experts": 4},
    "Gemma": HEAD,
    "Gemma2": HEAD,
    "Gemma3": HEAD,
    "Gemma3n": HEAD
    | {
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB,
        "laurel_rank": 4,
        "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention"],
        "activation_sparsity_pattern": [0.5, 0.0],
        "altup_num_inputs": 2,
        "intermediate_size": [48, 48],
    },
    "VaultGemma": HEAD,
    "RecurrentGemma": {"lru_width": 32, "conv1d_width": 3, "num_hidden_layers": 3},
    "Qwen2": {},
    "Qwen2Moe": EXPERTS | {"shared_expert_intermediate_size": 16},
    "Qwen3": HEAD,
    "Qwen3Moe": HEAD | EXPERTS,
    "Qwen3Next": HEAD
    | EXPERTS
    | {
        "shared_expert_intermediate_size": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "Mistral": {},
    "Ministral": HEAD,
    "Phi": {},
    "Phi3": {},
    "Phimoe": {"num_local_experts": 4},
    "GPTNeoX": {},
    "GPTNeoXJapanese": {},
    "GPTJ": GPT | {"rotary_dim": 4},
    "CodeGen": GPT | {"rotary_dim": 4, "n_ctx": 64},
    "GPTBigCode": GPT,
    "GPTNeo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "OpenAIGPT": GPT,
    "CTRL": GPT | {"dff": 48},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "XGLM": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "BioGpt": {},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "Falcon": {},
    "FalconH1": SSD_HYBRID | {"mamba_d_ssm": 64},
    "Mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "StableLm": {},
    "Olmo": {},
    "Olmo2": {},
    "Olmo3": {},
    "Olmoe": EXPERTS,
    "FlexOlmo": EXPERTS,
    "Granite": {},
    "GraniteMoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "GraniteMoeShared": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Cohere": {},
    "Cohere2": HEAD,
    "Starcoder2": {},
    "DeepseekV2": MLA | {"n_group": 1, "topk_group": 1},
    "DeepseekV3": MLA,
    "GptOss": HEAD | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Glm": HEAD,
    "Glm4": HEAD,
    "Glm4Moe": HEAD | EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    "Ernie4_5": HEAD,
    "Ernie4_5_Moe": HEAD | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    "Exaone4": HEAD,
    "SmolLM3": {},
    "SeedOss": HEAD,
    "Helium": HEAD,
    "HunYuanDenseV1": HEAD,
    "Arcee": HEAD,
    "Apertus": {},
    "Nemotron": {},
    "Persimmon": {},
    "DiffLlama": {},
    "Doge": HEAD,
    "BitNet": {},
    "NanoChat": {},
    "MiniMax": HEAD | {"num_local_experts": 4, "block_size": 4},
    "JetMoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 8},
    "Dots1": HEAD
    | {
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "Llama4": HEAD | {"num_local_experts": 4, "intermediate_size_mlp": 48},
    "Lfm2": {"layer_types": ["conv", "full_attention"], "full_attn_idxs": [1]},
    "Mamba": {"state_size": 4},
    "FalconMamba": {"state_size": 4},
    "Mamba2": SSD,
    "Jamba": HYBRID
    | {
        "num_experts": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "Bamba": SSD_HYBRID | {"attn_layer_indices": [1]},
    "Zamba": HYBRID
    | {
        "layers_block_type": ["mamba", "hybrid", "hybrid"],
        "num_hidden_layers": 3,
        "n_mamba_heads": 2,
        "use_mamba_kernels": False,
    },
    "Zamba2": HYBRID
    | {
        "layers_block_type": ["mamba", "hybrid"],
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "mamba_ngroups": 1,
        "chunk_size": 4,
        "use_mamba_kernels": False,
    },
    "GraniteMoeHybrid": SSD_HYBRID
    | {
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 16,
    },
    "Rwkv": {"attention_hidden_size": 32, "context_length": 64},
    "Bert": {"is_decoder": True},
    "TrOCR": {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4}
    | {"decoder_ffn_dim": 48},
    "ProphetNet": {
        "num_hidden_layers": ABSENT,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "encoder_ffn_dim": 48,
    }
    | {"decoder_ffn_dim": 48, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4},
}
MASKED = {
    "Bert": {},
    "Roberta": {},
    "RobertaPreLayerNorm": {},
    "XLMRoberta": {},
    "XLMRobertaXL": {},
    "Camembert": {},
    "Xmod": {"default_language": "en_XX"},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "Albert": {"embedding_size": 16},
    "Electra": {"embedding_size": 16},
    "MPNet": {},
    "Deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
    },
    "ModernBert": {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 8},
    "Ernie": {},
    "Esm": {"mask_token_id": 5, "position_embedding_type": "rotary"},
    "EuroBert": {},
    "FNet": {},
    "Funnel": {
        "num_hidden_layers": ABSENT,
        "block_sizes": [1, 1],
        "d_model": 32,
        "n_head": 4,
        "d_head": 8,
        "d_inner": 48,
        "num_decoder_layers": 1,
    },
    "Longformer": {"attention_window": 4},
    "BigBird": {"block_size": 2, "num_random_blocks": 1},
    "RoFormer": {},
    "RemBert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "ConvBert": {"embedding_size": 16, "conv_kernel_size": 3, "num_groups": 1, "head_ratio": 2},
    "MobileBert": {
        "embedding_size": 16,
        "intra_bottleneck_size": 16,
        "true_hidden_size": 16,
    },
    "SqueezeBert": {"embedding_size": 32},
    "MegatronBert": {},
    "IBert": {},
    "Nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 12},
    "Mra": {},
    "Yoso": {},
    "NomicBert": {},
    "Luke": {"entity_vocab_size": 8, "entity_emb_size": 16},
    "JinaEmbeddingsV3": {},
    "LayoutLM": {},
}
PAIRS = {
    "T5": T5,
    "MT5": T5,
    "UMT5": T5,
    "SwitchTransformers": T5 | {"num_experts": 4, "expert_capacity": 8},
    "LongT5": T5 | {"local_radius": 3, "global_block_size": 4},
    "Bart": PAIR,
    "MBart": PAIR,
    "Pegasus": PAIR,
    "PegasusX": PAIR | {"block_size": 4, "num_global_tokens": 2},
    "Blenderbot": PAIR,
    "BlenderbotSmall": PAIR,
    "Mvp": PAIR,
    "PLBart": PAIR,
    "M2M100": PAIR,
    "LED": PAIR
    | {"attention_window": 4, "max_encoder_position_embeddings": 64}
    | {"max_decoder_position_embeddings": 64},
    "BigBirdPegasus": PAIR | {"block_size": 2, "num_random_blocks": 1},
    "NllbMoe": PAIR | {"num_experts": 4, "expert_capacity": 8},
    "ProphetNet": {
        "num_hidden_layers": ABSENT,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "encoder_ffn_dim": 48,
    }
    | {"decoder_ffn_dim": 48, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4}
    | {"decoder_start_token_id": 0},
}
Names = tuple[str, str, dict[str, Any]]  # of the config, the class, and its sizes
OTHERS = {
    "XLNet": (
        "XLNetConfig",
        "XLNetLMHeadModel",
        {
            "d_model": 32,
            "n_layer": 2,
            "n_head": 4,
            "d_inner": 48,
            "max_position_embeddings": ABSENT,
        },
    ),
    "XLM": ("XLMConfig", "XLMWithLMHeadModel", {"emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    "Flaubert": (
        "FlaubertConfig",
        "FlaubertWithLMHeadModel",
        {"emb_dim": 32, "n_layers": 2, "n_heads": 4},
    ),
    "Marian": ("MarianConfig", "MarianMTModel", PAIR),
    "CLIPText": ("CLIPTextConfig", "CLIPTextModel", {}),
    "CLIPVision": ("CLIPVisionConfig", "CLIPVisionModel", IMAGE),
    "SiglipVision": ("SiglipVisionConfig", "SiglipVisionModel", IMAGE),
    "ViT": ("ViTConfig", "ViTForImageClassification", IMAGE | {"num_labels": 3}),
    "DeiT": ("DeiTConfig", "DeiTForImageClassification", IMAGE | {"num_labels": 3}),
    "Beit": ("BeitConfig", "BeitForImageClassification", IMAGE | {"num_labels": 3}),
    "Dinov2": ("Dinov2Config", "Dinov2ForImageClassification", IMAGE | {"num_labels": 3}),
    "ImageGPT": ("ImageGPTConfig", "ImageGPTForImageClassification", GPT | {"num_labels": 3}),
    "Swin": (
        "SwinConfig",
        "SwinForImageClassification",
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2]}
        | {"num_attention_heads": ABSENT, "num_hidden_layers": ABSENT}
        | {"window_size": 2, "num_labels": 3},
    ),
    "ConvNext": (
        "ConvNextConfig",
        "ConvNextForImageClassification",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_stages": 2,
            "num_labels": 3,
            "image_size": 16,
        },
    ),
    "ResNet": (
        "ResNetConfig",
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 3},
    ),
    "Segformer": (
        "SegformerConfig",
        "SegformerForImageClassification",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "num_attention_heads": [1, 2],
            "sr_ratios": [2, 1],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "mlp_ratios": [2, 2],
            "num_labels": 3,
        },
    ),
    "Wav2Vec2": ("Wav2Vec2Config", "Wav2Vec2ForCTC", SPEECH),
    "Hubert": ("HubertConfig", "HubertForCTC", SPEECH),
    "WavLM": ("WavLMConfig", "WavLMForCTC", SPEECH | {"num_buckets": 8}),
    "Wav2Vec2Conformer": (
        "Wav2Vec2ConformerConfig",
        "Wav2Vec2ConformerForCTC",
        SPEECH | {"conv_depthwise_kernel_size": 3},
    ),
    "Whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        PAIR | {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16},
    ),
    "PatchTST": (
        "PatchTSTConfig",
        "PatchTSTForPrediction",
        {
            "d_model": 32,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "num_input_channels": 2,
            "prediction_length": 4,
            "ffn_dim": 48,
        },
    ),
    "DecisionTransformer": (
        "DecisionTransformerConfig",
        "DecisionTransformerModel",
        GPT | {"state_dim": 3, "act_dim": 2},
    ),
}
CONFIGS = {
    "Gemma3": "Gemma3TextConfig",
    "Gemma3n": "Gemma3nTextConfig",
    "Llama4": "Llama4TextConfig",
}
LM_HEAD = ("GPT2", "OpenAIGPT", "CTRL", "Bert")


def names():
    """Every class, by the name of its kind."""
    rows = {}
    for name, sizes in CAUSAL.items():
        ending = "LMHeadModel" if name in LM_HEAD else "ForCausalLM"
        key = f"{name}Decoder" if name in MASKED or name in PAIRS else name
        rows[key] = (CONFIGS.get(name, f"{name}Config"), name + ending, sizes)
    rows |= {name: (f"{name}Config", f"{name}ForMaskedLM", sizes) for name, sizes in MASKED.items()}
    for name, sizes in PAIRS.items():
        rows[name] = (f"{name}Config", f"{name}ForConditionalGeneration", sizes)
    return rows | OTHERS


NAMES = names()


def build(name):
    """The model with weights that leave no part of it at zero."""
    import transformers

    config_name, model_name, extra = NAMES[name]
    sizes = {key: size for key, size in (SIZES | extra).items() if size is not ABSENT}
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**sizes)
    model = getattr(transformers, model_name)(config).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim():
            parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def inputs(name):
    """The arguments of one pass."""
    generator = torch.Generator().manual_seed(3)

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
