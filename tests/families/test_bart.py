"""BART, mBART, M2M-100, PEGASUS, LED, mT5 and umT5 against transformers: weights both ways, and what is written
from the token that a target begins with."""

from __future__ import annotations

import re

import pytest
import torch

import tiny
from families.parity import VOCAB, shaken, transformers
from families.test_parity_encoders import both_ways, equal_pairs
from folders import edit_json, write_json
from glassformer import config, generate
from glassformer import families as recipes
from glassformer.core.generation.beam import beam
from glassformer.families.longformer import LongformerAttention, count_global
from glassformer.families.modules.longformer import LongformerAttentionModule
from glassformer.formats import store
from glassformer.scale.cost import cost
from mistakes import mistake
from seeding import generator_from

SIDES = {"layers": 2, "attention_heads": 4, "ffn_dim": 52}
SIZES = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in SIDES.items()}
SIZES |= {"d_model": 32, "max_position_embeddings": 40, "init_std": 0.3, "vocab_size": VOCAB}
T5_SIZES = {"d_model": 32, "d_kv": 8, "d_ff": 52, "num_layers": 2, "num_heads": 4}
KINDS = {
    "Bart": {},
    "MBart": {"scale_embedding": True, "decoder_layers": 1, "activation_function": "relu"},
    "M2M100": {},
    "Pegasus": {"scale_embedding": True},
    "LED": {"attention_window": [4, 8], "max_encoder_position_embeddings": 40, "decoder_layers": 1},
    "MT5": {**T5_SIZES, "initializer_factor": 0.3, "num_decoder_layers": 1},
    "UMT5": {**T5_SIZES, "initializer_factor": 1.0, "num_decoder_layers": 1},
}
# the first tokens of a target, as their config and their generation_config have them
STARTS = {
    "Bart": (2, 0),
    "MBart": (57, None),
    "M2M100": (2, 58),
    "Pegasus": (0, None),
    "LED": (2, None),
    "MT5": (0, None),
    "UMT5": (0, None),
}


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def build(name, **changes):
    sizes = {"vocab_size": VOCAB} if name.endswith("MT5") else SIZES
    config = getattr(transformers, f"{name}Config")(**{**sizes, **KINDS[name], **changes})
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(generator=generator_from(2))
    return shaken(model)


@pytest.mark.parametrize("name", KINDS)
def test_both_ways(name, tmp_path):
    # theirs counts columns, ours what is there
    both_ways(build(name), tmp_path, equal_pairs, ("right",))


def test_untied_mt5_is_not_scaled_either(tmp_path):
    reference = build("MT5")
    draw = torch.randn(VOCAB, 32, generator=generator_from(3))
    reference.lm_head.weight = torch.nn.Parameter(draw)
    both_ways(reference, tmp_path, equal_pairs)


def test_files_of_a_bare_bart(tmp_path):
    """As facebook/bart-base has them: names without their prefix, and no bias of the logits."""
    reference = build("Bart")
    reference.final_logits_bias.zero_()
    reference.model.save_pretrained(tmp_path)
    model, _ = store.load(tmp_path)
    assert not model.config.head.bias
    equal_pairs(model, reference)


def test_global_tokens_of_a_led(tmp_path):
    """Theirs has them from its caller, ours from a word of its config.json."""
    reference = build("LED")
    reference.save_pretrained(tmp_path / "theirs")
    edit_json(tmp_path / "theirs" / "config.json", global_tokens=2)
    model, _ = store.load(tmp_path / "theirs")
    store.save(model, tmp_path / "ours", layout="hf")
    generator = generator_from(4)
    source = torch.randint(3, VOCAB, (2, 20), generator=generator)
    present = torch.arange(20) < torch.tensor([20, 13])[:, None]
    target = source[:, :7].flip(1)
    global_mask = (torch.arange(20) < 2).long().expand(2, -1)
    inputs = {"attention_mask": present.long(), "decoder_input_ids": target}
    apart = reference(source, **inputs).logits
    expected = reference(source, **inputs, global_attention_mask=global_mask).logits
    pos = torch.arange(20).masked_fill(~present, -1)
    for folder in ("theirs", "ours"):
        actual = store.load(tmp_path / folder)[0](target, source, source_pos=pos).logits
        assert (actual - expected).abs().max() < 1e-5 < (actual - apart).abs().max()


def test_what_a_led_here_has_not_is_one_sentence():
    model = tiny.model("led")
    assert isinstance(model.encoder.blocks[0].attn, LongformerAttentionModule)
    assert [count_global(block.attn.mask) for block in model.encoder.blocks] == [0, 2]
    source = tiny.tokens(1, 50)
    with mistake("position 40 is past the 40 of its table; give 0 to 39"):
        model(tiny.tokens(1, 41), source)
    attention = LongformerAttention(4, mask=config.Window(3))
    with mistake("LongformerAttention reads both sides"):
        tiny.model(tiny.decoder(tiny.block(attention)))


@pytest.mark.parametrize("name", KINDS)
def test_targets_begin_as_theirs(name, tmp_path):
    """Greedy and with four beams, from their folder, ours in either layout, and in theirs again."""
    first, forced = STARTS[name]
    reference = build(name, decoder_start_token_id=first, forced_eos_token_id=None)
    reference.generation_config.forced_bos_token_id = forced
    reference.save_pretrained(tmp_path / "theirs")
    model, _ = store.load(tmp_path / "theirs")
    store.save(model, tmp_path / "ours", layout="hf")
    store.save(model, tmp_path / "own", layout="glassformer")
    kind = type(reference)
    again = kind.from_pretrained(tmp_path / "ours").eval()
    start = [id for id in (first, forced) if id is not None]
    source, count, end = [9, 33, 17, 25, 40, 2], 20, 2
    written = {"max_new_tokens": count + len(start) - 1, "do_sample": False, "eos_token_id": end}
    for candidate in (reference, again):
        ids = torch.tensor([source])
        greedy = candidate.generate(ids, **written)[0].tolist()
        options = {"num_beams": 4, "early_stopping": True, "length_penalty": 1.0}
        searched = candidate.generate(ids, **written, **options)[0].tolist()
        for folder in ("theirs", "ours", "own"):
            loaded, _ = store.load(tmp_path / folder)
            assert list(loaded.config.start) == start
            (tokens,) = (
                generate(loaded, None, source, max_new=count, temperature=0.0, eos=end).run().tokens
            )
            assert greedy[: len(start)] == start
            assert greedy[len(start) :] == tokens
            ((best,),) = beam(loaded, None, [source], beams=4, max_new=count, eos=end)
            assert searched[len(start) :][: len(best.tokens)] == best.tokens


# as transformers counts the shapes of the hub's config.json
PUBLISHED = {
    "bart/base": 139_420_416,
    "bart/large": 406_291_456,
    "bart/large-cnn": 406_290_432,
    "mbart/large-cc25": 610_851_840,
    "mbart/large-50": 610_879_488,
    "m2m-100/418m": 483_905_536,
    "m2m-100/nllb-600m": 615_073_792,
    "m2m-100/nllb-1.3b": 1_370_638_336,
    "pegasus/large": 568_699_904,
    "mt5/small": 300_176_768,
    "mt5/base": 582_401_280,
    "mt5/large": 1_229_581_312,
    "led/base-16384": 161_844_480,
    "led/large-16384": 459_801_600,
    "umt5/small": 306_601_984,
    "umt5/base": 592_043_520,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    assert cost(recipes.find(name)).total == PUBLISHED[name]


def test_a_file_that_is_silent_begins_as_theirs(tmp_path):
    """What transformers takes where config.json lacks the word, and () where it says null."""
    build("Bart").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    raw = edit_json(tmp_path / "config.json", decoder_start_token_id=None)  # without the word
    assert store.load(tmp_path)[0].config.start == (2,)
    write_json(tmp_path / "config.json", {**raw, "decoder_start_token_id": None})
    assert store.load(tmp_path)[0].config.start == ()


@pytest.mark.parametrize(
    "name, change, text",
    [
        ("Bart", {"tie_word_embeddings": False}, '"tie_word_embeddings" is false, but the head'),
        ("MBart", {"forced_bos_token_id": [1, 2]}, '"forced_bos_token_id" is [1, 2]; it must be'),
        ("M2M100", {"pad_token_id": -1}, '"pad_token_id" is -1; it must be the id of a token'),
        ("Pegasus", {"is_decoder": True}, '"is_decoder" is true, but'),
        ("LED", {"attention_window": 3}, '"attention_window" is 3; it must be an even number'),
        ("LED", {"attention_window": [4]}, '"attention_window" is [4]; it must be an even number'),
        ("LED", {"global_tokens": -1}, '"global_tokens" is -1; it must be 0 or more'),
        ("MT5", {"decoder_start_token_id": 61}, '"decoder_start_token_id" is 61; it must be'),
    ],
)
def test_what_is_not_built_is_one_sentence(name, change, text, tmp_path):
    build(name).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    edit_json(tmp_path / "config.json", **change)
    with mistake(re.escape(text)):
        store.load(tmp_path)
