"""Models that other libraries leave in a file of their own, without a config.json of Hugging
Face's: how each is read.

nanogpt          ckpt.pt: its weights, and model_args beside them (Karpathy 2022)
mingpt           model.pt: weights alone; config.json beside it says the heads (Karpathy 2020)
nanochat         model_000650.pt, and meta_000650.json beside it (Karpathy 2025, as it was until January 2026)
transformerlens  a HookedTransformer's state_dict; config.json beside it says what weights do not (Nanda 2022)
The weights' shapes say most of a config; the rest is in the file, or beside it. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.checkpoints.recipe import ConfigReader, NameRule, Table
from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import MLP, Activation, FeedForward
from ..core.config.model import Attention, Block, Decoder, Model, Stack, stacks
from ..core.config.norm import LayerNorm, Norm, RMSNorm
from ..core.config.position import Learned, Rotary
from ..core.errors import UserError
from ..families import gpt2

Shapes = Mapping[str, tuple[int, ...]]
Tensors = dict[str, Any]  # a library's tensors by name
STATES = ("model", "state_dict", "model_state_dict")  # where a file may keep its weights
# and where it, or a page beside it, says the rest
SETTINGS = ("model_args", "model_config", "model", "cfg", "config")


@dataclass(frozen=True)
class Peer:
    """A library's files: ``describe`` makes settings of the shapes and of what is said, ``parse`` a
    config of them.

    ``weights`` is the table of names, ``prepare`` changes tensors where it cannot say it,
    ``beside`` is the page of settings next to the weights.
    """

    describe: Callable[[Shapes, Mapping[str, Any]], Mapping[str, Any]]
    parse: Callable[[ConfigReader], Model]
    weights: Callable[[Model], Table]
    prepare: Callable[[Tensors, ConfigReader], Tensors] = lambda tensors, raw: tensors
    beside: Callable[[Path], Path] = lambda path: path.with_name("config.json")


def _sizes(shapes: Shapes, settings: Mapping[str, Any], **names: tuple[str, int]) -> dict[str, Any]:
    """Settings as stated, and the sizes that a tensor's axis has, which override them."""
    return {
        **settings,
        **{key: shapes[name][axis] for key, (name, axis) in names.items() if name in shapes},
    }


def _depth(shapes: Shapes, pattern: str) -> int:
    matches = (re.match(pattern, name) for name in shapes)
    return 1 + max((int(match[1]) for match in matches if match), default=-1)


# ---------------------------------------------------------------------------- nanoGPT and minGPT

TYPES = {
    "openai-gpt": 12,
    "gpt2": 12,
    "gpt2-medium": 16,
    "gpt2-large": 20,
    "gpt2-xl": 25,
    "gopher-44m": 16,
}
TYPES |= {"gpt-mini": 6, "gpt-micro": 4, "gpt-nano": 3}  # minGPT's names and their heads
LAYER = r"transformer\.h\.(\d+)\."


def _gpt(shapes: Shapes, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    depth = _depth(shapes, LAYER)
    width_axes = {
        "vocab_size": ("transformer.wte.weight", 0),
        "n_embd": ("transformer.wte.weight", 1),
    }
    sizes = _sizes(shapes, settings, block_size=("transformer.wpe.weight", 0), **width_axes)
    return {**sizes, "n_layer": depth, "bias": "transformer.ln_f.bias" in shapes}


def _mingpt(shapes: Shapes, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    heads = TYPES.get(str(settings.get("model_type")))
    return {
        **_gpt(shapes, settings),
        "n_head": settings.get("n_head") or heads,
        "dropout": settings.get("resid_pdrop"),
    }


def _read_gpt(raw: ConfigReader, act: Activation, tied: bool) -> Decoder:
    heads = raw.integer("n_head", most=1 << 14)
    depth, length = raw.integer("n_layer", most=2000), raw.integer("block_size")
    decoder = gpt2.gpt2(
        raw.integer("n_embd"),
        depth,
        heads,
        raw.integer("vocab_size", most=1 << 24),
        raw.flag("bias", True),
        act,
    )
    dropout = raw.number("dropout", 0.0, most=0.99)
    stack = replace(stacks(decoder)["decoder"], position=Learned(length), dropout=dropout)
    return replace(decoder, context=length, decoder=stack, head=Head(tied=tied))


# GPT-2's names; their matrices are (out, in), as nn.Linear has them.
GPT = Table(
    tuple(replace(rule, transpose=False) for rule in gpt2.RULES),
    ignore=("transformer.h.{i}.attn.bias",),  # the causal mask
    copies=(("lm_head.weight", "transformer.wte.weight"),),
)

# -------------------------------------------------------------------------------------- nanochat

LATER = ("value_embeds.", ".ve_gate.", "smear_gate.", "smear_lambda", "backout_lambda")
CHAT = {"attn.q": "attn.c_q", "attn.k": "attn.c_k", "attn.v": "attn.c_v", "attn.out": "attn.c_proj"}
CHAT |= {"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
EPS = 2.0**-23  # what PyTorch takes in fp32 where nothing is said


def _nanochat(shapes: Shapes, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in shapes:
        if any(marker in name for marker in LATER):
            raise UserError(
                f"This nanochat has {name}, which no module here does; models of nanochat from "
                "before value embeddings "
                "(January 2026) are read."
            )
    return {
        **_sizes(shapes, settings, n_embd=("transformer.wte.weight", 1)),
        "n_layer": _depth(shapes, LAYER),
    }


def _read_nanochat(raw: ConfigReader) -> Model:
    pattern = raw.value("window_pattern", "L")
    raw.must(
        set(str(pattern)) <= {"L"},
        "window_pattern",
        '"L": how wide "S" is differs between versions',
    )
    norm, dim = RMSNorm(EPS, gain=False), raw.integer("n_embd")
    heads = raw.integer("n_head", most=1 << 14)
    attention = Attention(heads, raw.integer("n_kv_head", heads), qk_norm=norm)
    block = Block(attention, MLP(4 * dim, "relu2"), norm)
    stack = Stack(
        raw.integer("n_layer", most=2000), (block,), Rotary(), first_norm=norm, last_norm=norm
    )
    embed = Embed(raw.integer("vocab_size", most=1 << 24))
    return Decoder(dim, raw.integer("sequence_len"), embed, stack, Head(tied=False, softcap=15.0))


def _prepare_nanochat(tensors: Tensors, raw: ConfigReader) -> Tensors:
    """Without the rows that round the vocabulary up; halves of queries and keys swapped: it turns
    them backwards."""
    for name, value in (("resid_lambdas", 1.0), ("x0_lambdas", 0.0)):
        if name in tensors and not bool((tensors.pop(name) == value).all()):
            raise UserError(
                f"This nanochat has {name} other than {value:g}, which no module here does; "
                "models of nanochat from "
                "before January 2026 are read."
            )
    for name, tensor in tensors.items():
        if name in ("transformer.wte.weight", "lm_head.weight"):
            tensors[name] = tensor[: raw.integer("vocab_size", most=1 << 24)]
        elif name.endswith(("c_q.weight", "c_k.weight")):
            heads = (
                raw.integer("n_head", most=1 << 14)
                if "c_q" in name
                else raw.integer("n_kv_head", raw.table["n_head"])
            )
            if tensor.ndim == 2 and tensor.shape[0] % (2 * heads) == 0:
                tensors[name] = tensor.unflatten(0, (heads, 2, -1)).flip(1).flatten(0, 2)
    return tensors


NANOCHAT = Table(
    (
        NameRule("transformer.wte.weight", "embed.token.weight"),
        NameRule("lm_head.weight", "head.proj.weight"),
        *(
            NameRule(f"transformer.h.{{i}}.{b}.weight", f"decoder.blocks.{{i}}.{a}.weight")
            for a, b in CHAT.items()
        ),
    )
)

# -------------------------------------------------------------------------------- TransformerLens

ACTS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
ACTS |= {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}
# Pre: its gain is folded into the matrices after it
NORMS = ("LN", "LNPre", "RMS", "RMSPre", "none")


def _lens(shapes: Shapes, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    first, depth = "blocks.0.", _depth(shapes, r"blocks\.(\d+)\.")
    unsaid = {key: "none" for key in ("normalization_type",) if settings.get(key, "") is None}
    sizes = _sizes(
        shapes,
        {
            "eps": 1e-5,
            "normalization_type": "LN" if "ln_final.w" in shapes else None,
            **settings,
            **unsaid,
        },
        d_vocab=("embed.W_E", 0),
        d_model=("embed.W_E", 1),
        n_ctx=("pos_embed.W_pos", 0),
        n_heads=(f"{first}attn.W_Q", 0),
        d_head=(f"{first}attn.W_Q", 2),
        d_mlp=(f"{first}mlp.W_in", 1),
    )
    gated, thinks = f"{first}mlp.W_gate" in shapes, f"{first}mlp.W_in" in shapes
    return {**sizes, "n_layers": depth, "gated_mlp": gated, "attn_only": depth > 0 and not thinks}


def _read_lens(raw: ConfigReader) -> Model:
    for key, only, reason in (
        (
            "positional_embedding_type",
            "standard",
            "only learned positions are read from TransformerLens here",
        ),
        ("attention_dir", "causal", "only decoders are read from TransformerLens here"),
        ("use_local_attn", False, "windows are not read from TransformerLens here"),
        ("parallel_attn_mlp", False, "parallel blocks are not read from TransformerLens here"),
        ("scale_attn_by_inverse_layer_idx", False, "no attention here scales by its layer"),
        (
            "use_normalization_before_and_after",
            False,
            "sandwiched norms are not read from TransformerLens here",
        ),
        ("n_key_value_heads", None, "grouped heads are not read from TransformerLens here"),
        ("gated_mlp", False, "gated feed-forwards are not read from TransformerLens here"),
        ("num_experts", None, "experts are not read from TransformerLens here"),
        ("use_hook_tokens", False, "no embedding here is hooked"),
    ):
        raw.only(key, only, reason)
    kind = raw.value("normalization_type")
    raw.must(kind in NORMS, "normalization_type", f"one of {', '.join(NORMS)}")
    eps = raw.number("eps", most=1.0)
    norm: Norm | None = (
        LayerNorm(eps, bias=kind == "LN") if "LN" in kind else RMSNorm(eps, gain=kind == "RMS")
    )
    norm = None if kind == "none" else norm
    scale = raw.number("attn_scale", None, least=1e-9) if raw.flag("use_attn_scale", True) else 1.0
    attention = Attention(
        raw.integer("n_heads", most=1 << 14),
        head_dim=raw.integer("d_head", most=1 << 14),
        bias=True,
        scale=None if scale is None else 1.0 / scale,
    )
    think: FeedForward | None = None
    if not raw.flag("attn_only", False):
        think = MLP(
            raw.integer("d_mlp", most=1 << 22), raw.choice("act_fn", ACTS, "none given"), bias=True
        )
    block = Block(attention, think, norm)
    length = raw.integer("n_ctx")
    stack = Stack(raw.integer("n_layers", most=2000), (block,), Learned(length), last_norm=norm)
    embed = Embed(raw.integer("d_vocab", most=1 << 24))
    return Decoder(raw.integer("d_model"), length, embed, stack, Head(tied=False, bias=True))


def _lens_table(model: Model) -> Table:
    heads = stacks(model)["decoder"].pattern[0].attention.heads
    param_prefix, file_prefix = "decoder.blocks.{i}", "blocks.{i}"
    folded = [
        rule
        for x in "QKV"
        for rule in (
            NameRule(
                f"{file_prefix}.attn.W_{x}",
                f"{param_prefix}.attn.{x.lower()}.weight",
                axes="h c d -> (h d) c",
                heads=heads,
            ),
            NameRule(
                f"{file_prefix}.attn.b_{x}",
                f"{param_prefix}.attn.{x.lower()}.bias",
                axes="h d -> (h d)",
                heads=heads,
            ),
        )
    ]
    norms = {
        f"{file_prefix}.ln1": f"{param_prefix}.attn_norm",
        f"{file_prefix}.ln2": f"{param_prefix}.ffn_norm",
        "ln_final": "decoder.last_norm",
    }
    think = {"in": "up", "out": "down"}
    return Table(
        (
            NameRule("embed.W_E", "embed.token.weight"),
            NameRule("pos_embed.W_pos", "decoder.position.weight"),
            *folded,
            NameRule(
                f"{file_prefix}.attn.W_O",
                f"{param_prefix}.attn.out.weight",
                axes="h d c -> c (h d)",
                heads=heads,
            ),
            NameRule(f"{file_prefix}.attn.b_O", f"{param_prefix}.attn.out.bias"),
            *(
                NameRule(f"{a}.{x[0]}", f"{b}.{x}")
                for a, b in norms.items()
                for x in ("weight", "bias")
            ),
            *(
                NameRule(
                    f"{file_prefix}.mlp.W_{a}", f"{param_prefix}.ffn.{b}.weight", transpose=True
                )
                for a, b in think.items()
            ),
            *(
                NameRule(f"{file_prefix}.mlp.b_{a}", f"{param_prefix}.ffn.{b}.bias")
                for a, b in think.items()
            ),
            NameRule("unembed.W_U", "head.proj.weight", transpose=True),
            NameRule("unembed.b_U", "head.proj.bias"),
        ),
        ignore=(f"{file_prefix}.attn.mask", f"{file_prefix}.attn.IGNORE"),
    )


def _prepare_lens(tensors: Tensors, raw: ConfigReader) -> Tensors:
    """Gains of 1 where a LayerNorm's are folded away."""
    if raw.table["normalization_type"] != "LNPre":
        return tensors
    depth = raw.integer("n_layers", most=2000)
    norms = [
        f"blocks.{i}.ln{n}"
        for i in range(depth)
        for n in ((1,) if raw.table["attn_only"] else (1, 2))
    ]
    ones = tensors["embed.W_E"].new_ones(raw.integer("d_model"))
    return {**{f"{name}.w": ones for name in (*norms, "ln_final")}, **tensors}


PEERS = {
    "nanogpt": Peer(_gpt, lambda raw: _read_gpt(raw, "gelu", tied=True), lambda model: GPT),
    "mingpt": Peer(_mingpt, lambda raw: _read_gpt(raw, "gelu_tanh", tied=False), lambda model: GPT),
    "nanochat": Peer(
        _nanochat,
        _read_nanochat,
        lambda model: NANOCHAT,
        _prepare_nanochat,
        lambda path: path.with_name(path.stem.replace("model_", "meta_") + ".json"),
    ),
    "transformerlens": Peer(_lens, _read_lens, _lens_table, _prepare_lens),
}
