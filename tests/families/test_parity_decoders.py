"""Logits and weights of the decoders after Llama (gemma, gpt2, mixtral, phi, qwen, starcoder2) against
transformers: theirs loaded here, ours loaded there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from families.parity import (
    TOLERANCE,
    VOCAB,
    check_both_ways,
    check_defaults,
    difference,
    files,
    round_trip,
    shaken,
    tokens,
    transformers,
)
from folders import edit_json, read_json, write_json
from glassformer import config
from glassformer import families as recipes
from glassformer.core.config import serial
from glassformer.core.nn import Cache, Tape, build_model
from glassformer.families.latent import LatentAttention
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.scale.cost import cost
from mistakes import mistake
from tiny import equal_tensors

TABLES = read_json(Path(__file__).with_name("decoders.json"))
FAMILIES = TABLES["settings"]
CASES = [
    pytest.param(f, c, id=f"{f} {name}")
    for f, cases in FAMILIES.items()
    for name, c in cases.items()
]


def theirs_of(family, **changes):
    torch.manual_seed(0)
    sizes, kind = ("gpt2 sizes", "LMHeadModel") if family == "GPT2" else ("sizes", "ForCausalLM")
    settings = getattr(transformers, f"{family}Config")(**TABLES[sizes] | changes)
    return shaken(getattr(transformers, f"{family}{kind}")(settings))


@pytest.mark.parametrize("family, changes", CASES)
def test_both_ways(family, changes, tmp_path):
    check_both_ways(theirs_of(family, **changes), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_of_a_size_that_tells(family):
    """The tolerance means something: no family's logits are near zero or near each other."""
    reference = theirs_of(family, **next(iter(FAMILIES[family].values())))
    with torch.no_grad():
        assert reference(tokens()).logits.std() > 0.5


# Settings of the file that a wrong reading would ignore: each must be seen in the logits.
TELLING = TABLES["telling"]


@pytest.mark.parametrize("family", TELLING)
def test_the_settings_matter(family, tmp_path):
    """The same weights read with another setting are another model."""
    reference = theirs_of(family, **next(iter(FAMILIES[family].values())))
    reference.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    raw = read_json(path)
    if {"rope_scaling", "partial_rotary_factor"} & TELLING[family].keys():
        raw |= {"rope_parameters": None, "rope_theta": 1e4}
    write_json(path, raw | TELLING[family])
    assert difference(store.load(tmp_path)[0], reference, tokens()) > 100 * TOLERANCE


# ------------------------------------------------------------------------------------- the recipes

DECODERS = [  # all but glass
    recipe
    for recipe in recipes.all()
    if recipe.name != "glass" and isinstance(next(iter(recipe.sizes.values())), config.Decoder)
]
NAMES = [
    f"{recipe.name}/{size}"
    for recipe in DECODERS[2:]
    if recipe.read_config
    for size in recipe.sizes
]


def test_every_size_has_the_published_count():
    totals = {name: cost(recipes.find(name)).total for name in NAMES}
    assert totals == TABLES["parameters"]  # the models' own counts, as the hub shows them


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_transformers(family):
    """A config.json that says only the sizes means what transformers takes it to mean."""
    settings = getattr(transformers, f"{family}Config")
    # what the defaults for key-value heads divide
    sizes = {"hidden_size": 128, "num_attention_heads": 32, "intermediate_size": 44}
    sizes |= {"num_hidden_layers": 3, "vocab_size": VOCAB}
    if family == "GPT2":
        sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": VOCAB}
    check_defaults(settings, sizes)


@pytest.mark.parametrize("name", TABLES["published"])
def test_files_of_transformers_4(name):
    """In the words of the files on the hub."""
    config = recipes.read_config(TABLES["published"][name])[1]
    assert recipes.plain(config) == recipes.plain(recipes.find(name))


MIXERS = {
    "ShortConv": {},
    "Mamba2": {"state_heads": 4, "head_dim": 16, "state": 8, "groups": 2},
    "TimeMix": {"inner": 32},
    "ChannelMix": {"hidden": 20},
    "GatedDelta": {"key_heads": 2, "value_heads": 4, "key_dim": 8, "value_dim": 8},
}
"""Sizes of a tiny model's mixers beside attention."""


def shrunk(name):
    """A recipe made tiny, all its peculiarities kept."""
    cfg = recipes.find(name)
    pattern = []
    turns = getattr(cfg.decoder.position, "fraction", 1.0)
    blocks = cfg.decoder.pattern
    for block in blocks if len(blocks) <= 12 else blocks[:6]:  # dense blocks first, then mixtures
        args = block.attention
        think = block.feedforward
        if isinstance(args, config.Attention):
            few = (args.kv_heads or args.heads) < args.heads
            attention = replace(
                args,
                heads=4,
                kv_heads=min(args.kv_heads, 2) if few else None,
                head_dim=args.head_dim and (10 if turns == 1 else 12),
                mask=config.Window(7) if isinstance(args.mask, config.Window) else args.mask,
            )
        if isinstance(args, LatentAttention):
            attention = replace(attention, kv_rank=12, q_rank=args.q_rank and 10, value_dim=8)
        elif not isinstance(args, config.Attention):
            attention = replace(args, **MIXERS[type(args).__name__])
        if isinstance(think, config.MoE):
            wide = think.shared and think.shared.hidden > think.expert.hidden
            shared = think.shared and replace(think.shared, hidden=40 if wide else 20)
            expert = replace(think.expert, hidden=20)
            experts = max(4, 2 * getattr(think, "groups", 1))
            top_k = min(think.top_k, 2)
            think = replace(think, experts=experts, top_k=top_k, expert=expert, shared=shared)
        elif think is not None:
            # BLOOM and MPT have no word for it
            fixed = isinstance(cfg.decoder.position, config.Alibi)
            think = replace(think, hidden=128 if fixed else 20)
        pattern.append(replace(block, attention=attention, feedforward=think))
    position = cfg.decoder.position
    if isinstance(position, config.Learned):
        position = replace(position, length=64)
    elif getattr(position, "fraction", 1.0) < 1:
        position = replace(position, fraction=0.5)
    depth = 4 if 4 % len(pattern) == 0 else len(pattern)
    stack = replace(cfg.decoder, depth=depth, pattern=tuple(pattern), position=position)
    if name.startswith("rwkv"):  # its last norm is of all its blocks
        stack = replace(stack, last_norm=stack.first_norm)
    embed = replace(cfg.embed, vocab=VOCAB, scale=32**0.5 if cfg.embed.scale > 1 else 1.0)
    context = 64 if stack.attentions else cfg.context  # Mamba has no word for it
    cfg = replace(cfg, dim=32, context=context, decoder=stack, embed=embed)
    # at 1e-6 a delta rule of random weights errs by some 2e-4 in float32, here as there
    text = serial.dumps(cfg)
    return serial.loads(
        config.Model, text.replace("1e-06", "0.05") if "GatedDelta" in text else text
    )


ONE_EACH = [f"{recipe.name}/{next(iter(recipe.sizes))}" for recipe in DECODERS]
ONE_EACH += ["gpt2/nanogpt", "llama/2-70b", "llama/3-8b", "llama/3.1-8b", "llama/3.2-1b"]


@pytest.mark.parametrize("name", ONE_EACH)
def test_recipes_shrunk(name, tmp_path):
    """Our own recipes, made tiny: a cache and the readable engine give the same, and transformers
    loads what we save of them. The laws of their parts: test_laws.py."""
    model = shaken(build_model(shrunk(name), seed=3))
    with torch.no_grad():
        cache = Cache(model.config)
        logits = model(tokens()).logits
        pieces = [
            model(piece, cache=cache).logits for piece in tokens().split([11, 1, 1, 30, 5], 1)
        ]
        model.engine = "eager"
        for result in (torch.cat(pieces, 1), model(tokens()).logits):
            assert_close(result, logits, rtol=0.0, atol=TOLERANCE)
        model.engine = "auto"
    store.save(model, tmp_path)
    back, _ = store.load(tmp_path)
    assert recipes.plain(back.config) == recipes.plain(model.config)
    assert equal_tensors(back.state_dict(), model.state_dict())
    if recipes.RECIPES[name.partition("/")[0]].read_config is not None:
        reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        assert difference(model, reference, tokens()) <= TOLERANCE


def test_nanomoe_is_as_its_author_trained_it():
    """A mixture in the first of every two blocks, no biases, and as many parameters as its code
    makes."""
    model = recipes.find("nanomoe/openwebtext")
    mixed = [isinstance(model.decoder.blocks[i].feedforward, config.MoE) for i in range(6)]
    assert mixed == [True, False] * 3
    block = 2 * 384 + 4 * 384 * 384  # norms, attention
    mlp = 8 * 384 * 384
    mixture = 8 * 8 * 384 * 384 + 8 * 384
    assert cost(model).total == 3 * (2 * block + mlp + mixture) + 384 + (50_304 + 1024) * 384
    assert not any(
        name.endswith("bias") for name, _ in build_model(model, device="meta").named_parameters()
    )


def test_a_longrope_model_for_long_texts(tmp_path, terminal):
    """Loaded for more than was learnt first, it takes the long waves, as transformers does once a
    text is so long."""
    reference = theirs_of(
        "Phi3", **FAMILIES["Phi3"]["longrope"] | {"original_max_position_embeddings": 20}
    )
    folder = tmp_path / "theirs"
    ids = tokens()
    reference.save_pretrained(folder)
    short, far = (store.load(folder, context=context)[0] for context in (None, 64))
    assert (short.config.context, far.config.context) == (20, 64)
    for model, length in ((short, 20), (far, 48), (far, 21)):
        assert difference(model, reference, ids[:, :length]) <= TOLERANCE
    # it has the long waves for short texts too
    assert difference(far, reference, ids[:, :20]) > 100 * TOLERANCE
    message = r"48 tokens are past the 20 positions .* convert MODEL FOLDER --context N"
    with mistake(message):
        short(ids)
    for context, message in (
        (0, "context is 0"),
        (1.5, "context is 1.5"),
        ("9", "context is '9'"),
        (321, "made for 320"),
    ):
        with mistake(message):
            store.load(folder, context=context)
    with mistake("No published layout is for long texts alone"):
        store.save(far, tmp_path / "hf", layout="hf")
    store.save(far, tmp_path / "far")
    back, _ = store.load(tmp_path / "far")
    assert back.config == far.config
    assert difference(back, far, ids) == 0
    line = f"convert {folder} {tmp_path}/new"
    terminal.refused(f"{line} --context 64")
    terminal.refused(f"{line} --layout glassformer --context 0")
    terminal(f"{line} --layout glassformer --context 64")
    assert Checkpoint.open(tmp_path / "new").config == far.config


def test_a_phi3_without_a_window_stays_one(tmp_path):
    """A Llama has the same config; what was loaded as a Phi-3 is saved as one."""
    reference = theirs_of("Phi3", hidden_size=40, num_key_value_heads=2)
    model, again = round_trip(reference, tmp_path)
    assert isinstance(again, transformers.Phi3ForCausalLM)
    assert recipes.write_config(model.config)[0].name == "llama"


def test_gemma_embeds_in_bf16_to_the_bit(tmp_path):
    """sqrt(dim) is rounded to the weights' precision before it multiplies."""
    reference = theirs_of("Gemma2", hidden_size=44, head_dim=8).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    tape = Tape("decoder.embed")
    store.load(tmp_path)[0](tokens(), tape=tape)
    assert torch.equal(tape["decoder.embed"], reference.model.embed_tokens(tokens()))


def test_the_page_shown_to_contributors_is_the_page():
    """CONTRIBUTING.md shows a family as it really is."""
    root = Path(__file__).parents[2]
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (path,) = (root / "src" / "glassformer" / "families").glob("starcoder2.py")
    displayed = text.partition("```python\n")[2].partition("```")[0]
    assert "src/glassformer/families/starcoder2.py" in text
    assert displayed.startswith('page(\n    "starcoder2"')
    assert displayed in path.read_text(encoding="utf-8")


def test_nanogpt_has_no_biases_here_and_zeros_there(tmp_path):
    model = build_model(shrunk("gpt2/nanogpt"))
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())
    store.save(model, tmp_path, layout="hf")
    biases = {name: tensor for name, tensor in files(tmp_path).items() if name.endswith("bias")}
    assert len(biases) == 4 * 6 + 1
    assert not any(bias.any() for bias in biases.values())


def test_original_gpt2_files(tmp_path):
    """The hub's first GPT-2 files: names without "transformer.", the causal mask among the
    weights."""
    reference = theirs_of("GPT2")
    reference.save_pretrained(tmp_path)
    state = {name.removeprefix("transformer."): tensor for name, tensor in files(tmp_path).items()}
    for i in range(3):
        state[f"h.{i}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
        state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, tmp_path / "model.safetensors")
    assert difference(store.load(tmp_path)[0], reference, tokens()) <= TOLERANCE


def test_old_llama_files(tmp_path):
    """Files with rotary_emb.inv_freq in every layer, and rope_theta and rope_scaling as
    transformers 4 writes them."""
    scaling = {"rope_type": "linear", "factor": 2.0}
    reference = theirs_of("Llama", rope_scaling=scaling, rope_theta=5e4)
    reference.save_pretrained(tmp_path)
    edit_json(
        tmp_path / "config.json",
        rope_parameters=None,
        head_dim=None,
        rope_theta=5e4,
        rope_scaling={"type": "linear", "factor": 2.0},
        torch_dtype="float32",
    )
    extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(3)}
    save_file(files(tmp_path) | extra, tmp_path / "model.safetensors")
    assert difference(store.load(tmp_path)[0], reference, tokens()) <= TOLERANCE


def test_shards_both_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(store.tensorfiles, "SHARD", 20_000)
    round_trip(theirs_of("Llama"), tmp_path, max_shard_size="20KB")
    for name in ("theirs", "ours"):
        assert len(list((tmp_path / name).glob("model-*.safetensors"))) > 2
