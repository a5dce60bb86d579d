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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..core.checkpoints.headers import short
from ..core.config.layers import MLP, Activation, Embed, FeedForward, Head, LayerNorm, Norm, RMSNorm
from ..core.config.model import Attention, Block, Decoder, Model, Stack
from ..core.config.position import Learned, Rotary
from ..core.errors import UserError, need
from ..families import gpt2
from ..families.keys import MOST_BLOCKS, MOST_HEADS, MOST_HIDDEN, MOST_TOKENS
from ..families.names import NameRule, Table, rules
from ..families.recipe import ConfigReader

Tensors = dict[str, Any]  # a library's tensors by name
Settings = Mapping[str, Any]  # stated in the file, or on a page beside it
OURS = "decoder.blocks.{i}"


def _sizes(tensors: Tensors, **axes: tuple[str, int]) -> dict[str, Any]:
    """Sizes that a tensor's axis has, by the library's words for them."""
    return {key: tensors[name].shape[axis] for key, (name, axis) in axes.items() if name in tensors}


def _depth(tensors: Tensors, pattern: str) -> int:
    matches = (re.match(pattern, name) for name in tensors)
    return 1 + max((int(match[1]) for match in matches if match), default=-1)


def _with_sizes(
    stated: Settings, tensors: Tensors, depth: tuple[str, str], sizes: Settings, source: str
) -> dict[str, Any]:
    """The settings with what the weights say; UserError where they contradict each other.

    ``depth``: the word for the number of blocks, and the pattern of their names.
    """
    word, pattern = depth
    sizes = {word: _depth(tensors, pattern), **sizes}
    for key, size in sizes.items():
        value = stated.get(key)
        if type(value) is not int or value == size:
            continue
        matches = ((name, re.match(pattern, name)) for name in tensors if key == word)
        beyond = [name for name, match in matches if match and int(match[1]) >= value]
        extra = f": {short(beyond)} are more than that" if beyond else ""
        raise UserError(
            f"{source} (or the settings in the file) has {key} {value}, and the weights have "
            f"{size}{extra}; use weights and settings that belong together."
        )
    return {**stated, **sizes}


# ---------------------------------------------------------------------------- nanoGPT and minGPT

HEADS = {"openai-gpt": 12, "gpt2": 12, "gpt2-medium": 16, "gpt2-large": 20, "gpt2-xl": 25}
HEADS |= {"gopher-44m": 16, "gpt-mini": 6, "gpt-micro": 4, "gpt-nano": 3}  # of minGPT's names
LAYER = r"transformer\.h\.(\d+)\."
# GPT-2's names; their matrices are (out, in), as nn.Linear has them.
GPT = Table(
    tuple(replace(rule, transpose=False) for rule in gpt2.TABLE.rules),
    ignore=("transformer.h.{i}.attn.bias",),  # the causal mask
    copies=(("lm_head.weight", "transformer.wte.weight"),),
)


def _read_gpt(
    tensors: Tensors, stated: Settings, source: str, mini: bool
) -> tuple[Model, Table, Tensors]:
    sizes = _sizes(
        tensors,
        vocab_size=("transformer.wte.weight", 0),
        n_embd=("transformer.wte.weight", 1),
        block_size=("transformer.wpe.weight", 0),
    )
    settings = _with_sizes(stated, tensors, ("n_layer", LAYER), sizes, source)
    if mini:
        heads = HEADS.get(str(stated.get("model_type")))
        settings |= {"n_head": stated.get("n_head") or heads, "dropout": stated.get("resid_pdrop")}
    raw = ConfigReader(settings, source)
    heads, depth = raw.integer("n_head", most=MOST_HEADS), raw.integer("n_layer", most=MOST_BLOCKS)
    dim, vocab = raw.integer("n_embd"), raw.integer("vocab_size", most=MOST_TOKENS)
    model = gpt2.WORDS.model(
        n_embd=dim,
        n_layer=depth,
        n_head=heads,
        vocab_size=vocab,
        activation_function="gelu_new" if mini else "gelu",
        bias="transformer.ln_f.bias" in tensors,
    )
    length = raw.integer("block_size")
    dropout = raw.number("dropout", 0.0, most=0.99)
    stack = replace(model.stacks["decoder"], position=Learned(length), dropout=dropout)
    model = replace(model, context=length, decoder=stack, head=Head(tied=not mini))
    return model, GPT, tensors


# -------------------------------------------------------------------------------------- nanochat

LATER = re.compile(r"value_embeds\.|\.ve_gate\.|smear_gate\.|smear_lambda|backout_lambda")
EPS = 2.0**-23  # what PyTorch takes in fp32 where nothing is said
NANOCHAT = Table(
    (
        NameRule("transformer.wte.weight", "embed.token.weight"),
        NameRule("lm_head.weight", "head.proj.weight"),
        *rules(
            {
                **{f"attn.{x}": f"attn.c_{x}" for x in "qkv"},
                "attn.out": "attn.c_proj",
                "ffn.up": "mlp.c_fc",
                "ffn.down": "mlp.c_proj",
            },
            "transformer.h.{i}.",
            f"{OURS}.",
        ),
    )
)


def _read_nanochat(tensors: Tensors, stated: Settings, source: str) -> tuple[Model, Table, Tensors]:
    """Without the rows that round the vocabulary up; halves of queries and keys swapped: it turns
    them backwards."""
    later = next(filter(LATER.search, tensors), None)
    need(
        later is None,
        f"This nanochat has {later}, which no module here does; models of nanochat from before "
        "value embeddings (January 2026) are read.",
    )
    for name, value in (("resid_lambdas", 1.0), ("x0_lambdas", 0.0)):
        need(
            name not in tensors or bool((tensors.pop(name) == value).all()),
            f"This nanochat has {name} other than {value:g}, which no module here does; models of "
            "nanochat from before January 2026 are read.",
        )
    sizes = _sizes(tensors, n_embd=("transformer.wte.weight", 1))
    raw = ConfigReader(_with_sizes(stated, tensors, ("n_layer", LAYER), sizes, source), source)
    pattern = raw.value("window_pattern", "L")

    wide = '"L": how wide "S" is differs between versions'
    raw.must(set(str(pattern)) <= {"L"}, "window_pattern", wide)
    norm, dim = RMSNorm(EPS, gain=False), raw.integer("n_embd")
    heads = raw.integer("n_head", most=MOST_HEADS)
    attention = Attention(heads, raw.integer("n_kv_head", heads), qk_norm=norm)
    block = Block(attention, MLP(4 * dim, "relu2"), norm)
    depth = raw.integer("n_layer", most=MOST_BLOCKS)
    vocab = raw.integer("vocab_size", most=MOST_TOKENS)
    stack = Stack(depth, (block,), Rotary(), first_norm=norm, last_norm=norm)
    head = Head(tied=False, softcap=15.0)
    model = Decoder(dim, raw.integer("sequence_len"), Embed(vocab), stack, head)
    for name, tensor in tensors.items():
        if name in ("transformer.wte.weight", "lm_head.weight"):
            tensors[name] = tensor[:vocab]
        elif name.endswith(("c_q.weight", "c_k.weight")):
            count = heads if "c_q" in name else attention.kv_heads or heads
            if tensor.ndim == 2 and len(tensor) % (2 * count) == 0:
                tensors[name] = tensor.unflatten(0, (count, 2, -1)).flip(1).flatten(0, 2)
    return model, NANOCHAT, tensors


# -------------------------------------------------------------------------------- TransformerLens

ACTS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
}
# Pre: its gain is folded into the matrices after it
NORMS = ("LN", "LNPre", "RMS", "RMSPre", "none")
ONLY = (
    ("positional_embedding_type", "standard", "only learned positions are"),
    ("attention_dir", "causal", "only decoders are"),
    ("use_local_attn", False, "windows are not"),
    ("parallel_attn_mlp", False, "parallel blocks are not"),
    ("scale_attn_by_inverse_layer_idx", False, "scores divided by a layer's number are not"),
    ("use_normalization_before_and_after", False, "sandwiched norms are not"),
    ("n_key_value_heads", None, "grouped heads are not"),
    ("gated_mlp", False, "gated feed-forwards are not"),
    ("num_experts", None, "experts are not"),
    ("use_hook_tokens", False, "hooked embeddings are not"),
)


def _read_lens(tensors: Tensors, stated: Settings, source: str) -> tuple[Model, Table, Tensors]:
    thinks = "blocks.0.mlp.W_in" in tensors
    kind = "LN" if "ln_final.w" in tensors else None
    settings = {"eps": 1e-5, "normalization_type": kind, **stated}
    if stated.get("normalization_type", "") is None:
        settings["normalization_type"] = "none"
    settings["gated_mlp"] = "blocks.0.mlp.W_gate" in tensors
    sizes = _sizes(
        tensors,
        d_vocab=("embed.W_E", 0),
        d_model=("embed.W_E", 1),
        n_ctx=("pos_embed.W_pos", 0),
        n_heads=("blocks.0.attn.W_Q", 0),
        d_head=("blocks.0.attn.W_Q", 2),
        d_mlp=("blocks.0.mlp.W_in", 1),
    )
    settings = _with_sizes(settings, tensors, ("n_layers", r"blocks\.(\d+)\."), sizes, source)
    depth = settings["n_layers"]
    raw = ConfigReader(settings, source)
    for key, only, reason in ONLY:
        raw.only(key, only, f"{reason} read from TransformerLens here")
    kind = raw.value("normalization_type")
    raw.must(kind in NORMS, "normalization_type", f"one of {', '.join(NORMS)}")
    eps = raw.number("eps", most=1.0)
    norms: dict[str, Norm] = {
        "L": LayerNorm(eps, bias=kind == "LN"),
        "R": RMSNorm(eps, gain=kind == "RMS"),
    }
    norm = norms.get(str(kind)[0])
    scale = raw.number("attn_scale", None, least=1e-9) if raw.flag("use_attn_scale", True) else 1.0
    heads = raw.integer("n_heads", most=MOST_HEADS)
    attention = Attention(
        heads,
        head_dim=raw.integer("d_head", most=MOST_HEADS),
        bias=True,
        scale=None if scale is None else 1.0 / scale,
    )
    think: FeedForward | None = None
    if thinks or depth == 0:
        act = raw.choice("act_fn", ACTS, "none given")
        think = MLP(raw.integer("d_mlp", most=MOST_HIDDEN), act, bias=True)
    length, dim = raw.integer("n_ctx"), raw.integer("d_model")
    depth = raw.integer("n_layers", most=MOST_BLOCKS)
    stack = Stack(depth, (Block(attention, think, norm),), Learned(length), last_norm=norm)
    embed = Embed(raw.integer("d_vocab", most=MOST_TOKENS))
    model = Decoder(dim, length, embed, stack, Head(tied=False, bias=True))
    if kind == "LNPre":  # gains of 1 where they are folded away
        names = [f"blocks.{i}.ln{n}" for i in range(depth) for n in ((1, 2) if thinks else (1,))]
        ones = tensors["embed.W_E"].new_ones(dim)
        tensors = {**{f"{name}.w": ones for name in (*names, "ln_final")}, **tensors}
    return model, _lens_table(heads), tensors


def _lens_table(heads: int) -> Table:
    theirs, pieces = "blocks.{i}", [("W", "weight"), ("b", "bias")]
    norms = {f"{theirs}.ln1": f"{OURS}.attn_norm", f"{theirs}.ln2": f"{OURS}.ffn_norm"}
    norms["ln_final"] = "decoder.last_norm"
    axes = {"W": "h c d -> (h d) c", "b": "h d -> (h d)"}
    return Table(
        (
            NameRule("embed.W_E", "embed.token.weight"),
            NameRule("pos_embed.W_pos", "decoder.position.weight"),
            *(
                NameRule(
                    f"{theirs}.attn.{x}_{head}",
                    f"{OURS}.attn.{head.lower()}.{end}",
                    axes=axes[x],
                    heads=heads,
                )
                for head in "QKV"
                for x, end in pieces
            ),
            NameRule(
                f"{theirs}.attn.W_O",
                f"{OURS}.attn.out.weight",
                axes="h d c -> c (h d)",
                heads=heads,
            ),
            NameRule(f"{theirs}.attn.b_O", f"{OURS}.attn.out.bias"),
            *(
                NameRule(f"{a}.{end[0]}", f"{b}.{end}")
                for a, b in norms.items()
                for _, end in pieces
            ),
            *(
                NameRule(f"{theirs}.mlp.{x}_{a}", f"{OURS}.ffn.{b}.{end}", transpose=x == "W")
                for a, b in (("in", "up"), ("out", "down"))
                for x, end in pieces
            ),
            NameRule("unembed.W_U", "head.proj.weight", transpose=True),
            NameRule("unembed.b_U", "head.proj.bias"),
        ),
        ignore=(f"{theirs}.attn.mask", f"{theirs}.attn.IGNORE"),
    )


PEERS: dict[str, Callable[[Tensors, Settings, str], tuple[Model, Table, Tensors]]] = {
    "nanogpt": partial(_read_gpt, mini=False),
    "mingpt": partial(_read_gpt, mini=True),
    "nanochat": _read_nanochat,
    "transformerlens": _read_lens,
}
"""The reader of each library's file: of its tensors, its settings and the name of their page it
makes our config, the table of names and the tensors that this table names."""


def page_beside(kind: str, path: Path) -> Path:
    """The file in which a library lays the settings of the model in ``path``."""
    name = path.stem.replace("model_", "meta_") if kind == "nanochat" else "config"
    return path.with_name(f"{name}.json")
