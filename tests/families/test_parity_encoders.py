"""BERT and its kin (nomic_bert, eurobert), T5 and the 2017 model against transformers, on tiny random
models: theirs loaded here, ours loaded there; so are the keys of their config.json."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import tiny
from families.parity import TOLERANCE, VOCAB, files, shaken, transformers
from folders import edit_json, read_json, write_json
from glassformer import config
from glassformer import families as recipes
from glassformer.core.checkpoints.headers import SINGLE
from glassformer.core.nn import build_model
from glassformer.core.nn.attention import ENGINES
from glassformer.families.disentangled import DisentangledAttention, RelativeEmbedding
from glassformer.families.modules.disentangled import RelativeEmbeddingModule
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.scale.cost import cost
from mistakes import mistake
from seeding import generator_from
from tiny import equal_tensors


def tokens(length=24, seed=1):
    return torch.randint(2, VOCAB, (3, length), generator=generator_from(seed))


def close(a, b):
    assert (a is None) == (b is None)
    if a is not None:
        assert_close(a, b, rtol=0.0, atol=TOLERANCE)


def real_positions(present):
    return (present.long().cumsum(1) - 1).masked_fill(~present, -1)


def equal_ends(actual, reference, side):
    """Hidden states, logits, labels of tokens and what is pooled, of padded rows with two segments
    where there are two."""
    present = padding(side)
    ids = tokens()
    segments = (torch.arange(24) > 7).long().expand(3, -1)
    segments = segments % (getattr(reference.config, "type_vocab_size", 1) or 1)
    pos = real_positions(present)
    cfg = actual.config
    inputs = {"input_ids": ids, "attention_mask": present.long()}
    inputs |= {"token_type_ids": segments} if cfg.embed.segments else {}
    # theirs counts what is not padding, and masked tokens wherever they are
    if getattr(cfg.encoder.position, "start", 0) or hasattr(cfg.embed, "mask"):
        pad = reference.config.pad_token_id
        ids = ids.masked_fill(ids == pad, pad + 1).masked_fill(~present, pad)
        inputs["input_ids"] = ids
    elif side == "left":  # theirs counts columns unless told
        inputs["position_ids"] = pos.clamp(min=0)
    choice = type(reference).__name__.endswith("MultipleChoice")
    if choice:  # one question, a row for each of its choices
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    out = reference(**inputs, output_hidden_states=True)
    local = actual(ids, pos=pos, segments=segments)
    close(local.hidden[present], out.hidden_states[-1][present])
    logits = out.get("logits")
    words = out.get("prediction_logits", logits) if cfg.head else None
    tagged = logits if cfg.token_head else None
    if "start_logits" in out:
        tagged = torch.stack((out.start_logits, out.end_logits), -1)
    assert (words is None) == (cfg.head is None)
    assert (tagged is None) == (local.tagged is None)
    if words is not None:
        close(local.logits[present], words[present])
    if tagged is not None:
        close(local.tagged[present], tagged.view(*local.tagged.shape)[present])
    pooled = out.get("seq_relationship_logits", out.get("sop_logits", out.get("pooler_output")))
    if pooled is None and words is tagged is None and logits is not None:
        pooled = logits.T if choice else logits
    # theirs takes the first column, which is padding on the left
    if side == "right":
        close(local.pooled, pooled)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def padding(side):
    """Which of 24 columns hold something, (3, 24)."""
    present = torch.arange(24) < torch.tensor([24, 17, 9])[:, None]
    return present if side == "right" else present.flip(1)


# ------------------------------------------------------------------------------------------- BERT

TABLES = read_json(Path(__file__).with_name("encoders.json"))


def bert(kind, **changes):
    settings = getattr(transformers, kind.partition("For")[0].removesuffix("Model") + "Config")
    sizes = {name: n for name, n in TABLES["sizes"].items() if name not in changes}
    if kind.startswith("DistilBert"):  # its words for the same
        sizes = {DISTILBERT.get(name, name): n for name, n in sizes.items()}
    return shaken(getattr(transformers, kind)(settings(**sizes | changes)))


DISTILBERT = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
}


@pytest.mark.parametrize("name", TABLES["bert"])
def test_bert_both_ways(name, tmp_path):
    kind, changes = TABLES["bert"][name]
    head = kind.replace("NextSentencePrediction", "SequenceClassification")
    head = head.replace("MultipleChoice", "SequenceClassification")  # the score of each choice
    # transformers writes the norms of an ESM under older names
    saved = "" if head == kind and not kind.startswith("Esm") else head
    # the untied bias that transformers writes twice and reads once is written once
    untied = not changes.get("tie_word_embeddings", True)
    unread = ("cls.predictions.bias", "lm_head.bias", "predictions.bias") if untied else ()
    # theirs takes no positions there, or makes the first column global, be it padding
    still = ("DistilBertForMultipleChoice", "LongformerForSequenceClassification")
    sides = ("right",) if kind in still else ("right", "left")
    both_ways(bert(kind, **changes), tmp_path, equal_ends, sides, saved, unread)


def test_a_deberta_whose_head_has_newer_names(tmp_path):
    """Theirs takes the same numbers under the older names."""
    changes = {**DEBERTA, **DEBERTA_V3, "position_buckets": 8}
    both_ways(
        bert("DebertaV2ForMaskedLM", legacy=False, **changes),
        tmp_path,
        equal_ends,
        saved="DebertaV2ForMaskedLM",
    )


def test_a_deberta_as_published_has_ends_that_theirs_ignores(tmp_path):
    """Microsoft's files name no architecture and hold what they were trained with."""
    reference = bert("DebertaV2Model", **DEBERTA, **DEBERTA_V3)
    reference.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", architectures=None)
    stored = {f"deberta.{name}": x for name, x in files(tmp_path).items()}
    heads = ("lm_predictions.lm_head", "mask_predictions")
    layers = [f"{end}.{name}" for end in heads for name in ("dense", "LayerNorm")]
    extra = {
        f"{layer}.{parameter}": torch.zeros(1)
        for layer in layers
        for parameter in ("weight", "bias")
    }
    extra |= {"deberta.embeddings.position_embeddings.weight": torch.zeros(512, 32)}
    extra |= {"mask_predictions.classifier.weight": torch.zeros(1, 32)}
    extra |= {
        name: torch.zeros(1) for name in ("mask_predictions.classifier.bias", f"{heads[0]}.bias")
    }
    save_file(stored | extra, tmp_path / "model.safetensors")
    equal_ends(store.load(tmp_path)[0], reference, "right")


@pytest.mark.parametrize("buckets, distance", [(256, 512), (8, 40), (5, 9), (2, 4)])
def test_distances_lie_in_the_buckets_of_theirs(buckets, distance):
    bucket_position = transformers.models.deberta_v2.modeling_deberta_v2.make_log_bucket_position
    pos = torch.arange(2 * distance)[None]
    away = pos[:, :, None] - pos[:, None]
    table = RelativeEmbeddingModule(RelativeEmbedding(buckets, distance), 4, 1, False)
    expected = (bucket_position(away, buckets, distance) + buckets).clamp(0, 2 * buckets - 1)
    assert torch.equal(table.rows(pos, pos), expected.long())


def test_disentangled_attention_stands_beside_a_table_of_distances():
    cfg = tiny.SINKS["deberta"]
    plain = replace(cfg, encoder=replace(cfg.encoder, position=config.NoPosition()))
    with mistake("give the stack a RelativeEmbedding"):
        tiny.model(plain)(tiny.tokens())
    with mistake("leave kv_heads and qk_norm out"):
        DisentangledAttention(4, 2, bias=True)
    with mistake("set content_to_position = true"):
        DisentangledAttention(4, bias=True, content_to_position=False, position_to_content=False)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"relative_attention": False}, '"relative_attention" is false, but a DeBERTa here'),
        ({"conv_kernel_size": 3}, '"conv_kernel_size" is 3, but no convolution'),
        ({"pos_att_type": "c2c"}, '"pos_att_type" is "c2c"; it must be c2p, p2c or both'),
        ({"pos_att_type": []}, '"pos_att_type" is []; it must be c2p, p2c or both'),
        ({"embedding_size": 16}, '"embedding_size" is 16, but a DeBERTa here has one width'),
        ({"max_relative_positions": 5, "position_buckets": 8}, "RelativeEmbedding.distance is 5"),
        ({"max_relative_positions": "all"}, '"max_relative_positions" is "all"; it must be'),
        ({"norm_rel_ebd": "rms"}, '"norm_rel_ebd" is "rms"; it must be one of none, layer_norm'),
    ],
)
def test_what_a_deberta_here_has_not_is_one_sentence(change, text, tmp_path):
    bert("DebertaV2Model", **DEBERTA, **DEBERTA_V3).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **change)
    with mistake(re.escape(text)):
        store.load(tmp_path)


# ------------------------------------------------------------------------------- labels for each
# token


@pytest.mark.parametrize(
    "size, shape",
    [
        ("small", (256, 12, 4, 1024, 128)),
        ("base", (768, 12, 12, 3072, 768)),
        ("large", (1024, 24, 16, 4096, 1024)),
    ],
)
def test_published_sizes_of_electra(size, shape):
    """Sizes of google/electra-*-discriminator, as transformers counts their shapes."""
    names = "hidden_size num_hidden_layers num_attention_heads intermediate_size embedding_size"
    with torch.device("meta"):
        sizes = transformers.ElectraConfig(**dict(zip(names.split(), shape, strict=True)))
        reference = transformers.ElectraForPreTraining(sizes)
    total = sum(weight.numel() for weight in reference.parameters())
    assert cost(recipes.find(f"electra/{size}")).total == total


# as their config.json on the hub: depth, width, heads, vocabulary, segments
PUBLISHED = {
    "distilbert/base": ("DistilBertForMaskedLM", 6, 768, 12, 30_522, 66_985_530),
    "distilbert/base-cased": ("DistilBertForMaskedLM", 6, 768, 12, 28_996, 65_812_036),
    "distilbert/multilingual": ("DistilBertForMaskedLM", 6, 768, 12, 119_547, 135_445_755),
    "roberta/base": ("RobertaForMaskedLM", 12, 768, 12, 50_265, 124_697_433),
    "roberta/large": ("RobertaForMaskedLM", 24, 1024, 16, 50_265, 355_412_057),
    "roberta/distil": ("RobertaForMaskedLM", 6, 768, 12, 50_265, 82_170_201),
    "camembert/base": ("CamembertForMaskedLM", 12, 768, 12, 32_005, 110_655_493),
    "camembert/large": ("CamembertForMaskedLM", 24, 1024, 16, 32_005, 336_695_557),
    "xlm-roberta/base": ("XLMRobertaForMaskedLM", 12, 768, 12, 250_002, 278_295_186),
    "xlm-roberta/large": ("XLMRobertaForMaskedLM", 24, 1024, 16, 250_002, 560_142_482),
    "nomic-bert/base": ("NomicBertForMaskedLM", 12, 768, 12, 30_528, 137_354_304),
    "deberta/base": ("DebertaForMaskedLM", 12, 768, 12, 50_265, 139_244_121),
    "deberta/large": ("DebertaForMaskedLM", 24, 1024, 16, 50_265, 406_264_921),
    "deberta-v2/v3-xsmall": ("DebertaV2ForMaskedLM", 12, 384, 6, 128_100, 70_958_820),
    "deberta-v2/v3-small": ("DebertaV2ForMaskedLM", 6, 768, 12, 128_100, 142_024_548),
    "deberta-v2/v3-base": ("DebertaV2ForMaskedLM", 12, 768, 12, 128_100, 184_551_780),
    "deberta-v2/v3-large": ("DebertaV2ForMaskedLM", 24, 1024, 16, 128_100, 435_191_908),
    "deberta-v2/mdeberta-v3-base": ("DebertaV2ForMaskedLM", 12, 768, 12, 251_000, 279_061_880),
    "xlm-roberta/bge-m3": ("XLMRobertaModel", 24, 1024, 16, 250_002, 566_705_152),
}


DEBERTA = {
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "max_position_embeddings": 512,
}
DEBERTA_V3 = {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_of_encoders(name):
    """As transformers counts the shapes of the hub's config.json."""
    kind, depth, dim, heads, vocab, total = PUBLISHED[name]
    sizes = {"hidden_size": dim, "num_hidden_layers": depth, "num_attention_heads": heads}
    shared_sizes = {"vocab_size": vocab, "intermediate_size": 4 * dim, "type_vocab_size": 1}
    shared_sizes |= {"type_vocab_size": 2} if kind.startswith("Nomic") else {}
    sizes |= {**shared_sizes, "max_position_embeddings": 514}
    if kind.startswith("DistilBert"):
        sizes = {DISTILBERT.get(key, key): n for key, n in sizes.items()}
        sizes |= {"max_position_embeddings": 512}
    sizes |= DEBERTA if kind.startswith("Deberta") else {}
    sizes |= DEBERTA_V3 if kind.startswith("DebertaV2") else {}
    bare = {} if "For" in kind else {"add_pooling_layer": False}
    sizes |= {"max_position_embeddings": 8194} if bare else {}
    with torch.device("meta"):
        settings = getattr(transformers, kind.partition("For")[0].removesuffix("Model") + "Config")
        reference = getattr(transformers, kind)(settings(**sizes), **bare)
    assert sum(weight.numel() for weight in reference.parameters()) == total
    assert cost(recipes.find(name)).total == total


@pytest.mark.parametrize("name", TABLES["published"])
def test_published_sizes_of_later_encoders(name):
    """As transformers counts the shapes of the hub's config.json, but for what predicts contacts of
    a protein."""
    kind, settings, total = TABLES["published"][name]
    with torch.device("meta"):
        shape = getattr(transformers, kind.partition("For")[0] + "Config")(**settings)
        reference = getattr(transformers, kind)(shape)
    weights = {n: x.numel() for n, x in reference.named_parameters() if "contact_head" not in n}
    stored = dict(reference.named_buffers()).get("esm.rotary_embeddings.inv_freq")
    assert sum(weights.values()) == total
    assert cost(recipes.find(name)).total == total + (0 if stored is None else stored.numel())


# --------------------------------------------------------------------------------------------- T5


def t5(**changes):
    tied = changes.get("tie_word_embeddings", True)
    twins = changes.pop("twins", tied)
    # logits of some units, scaled down or not
    factor = 1.5 if tied else 0.3
    config = transformers.T5Config(**TABLES["t5 sizes"] | {"initializer_factor": factor} | changes)
    model = transformers.T5ForConditionalGeneration(config)
    if not twins:  # transformers 5 ties all heads, and lets files untie them
        draw = generator_from(3)
        model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, 32, generator=draw))
    return shaken(model)


def equal_pairs(actual, reference, side="right"):
    """The logits of a decoder over a padded source."""
    present = padding(side)
    source = tokens()
    ids = tokens(11, seed=2)
    out = reference(input_ids=source, attention_mask=present.long(), decoder_input_ids=ids)
    local = actual(ids, source, source_pos=real_positions(present))
    assert local.logits.std() > 0.5
    close(local.logits, out.logits)


def both_ways(
    reference,
    folder,
    compare,
    sides=("right", "left"),
    saved="",
    unread=(),
):
    """Theirs here, ours there, the same numbers; the files come back bit for bit, but for what
    transformers writes and does not read. ``saved``: another class that says as much."""
    reference.save_pretrained(folder / "theirs")
    model, _ = store.load(folder / "theirs")
    for side in sides:
        compare(model, reference, side)
    store.save(model, folder / "ours", layout="hf")
    (name,) = read_json(folder / "ours" / "config.json")["architectures"]
    assert name == (saved or type(reference).__name__)
    again = getattr(transformers, name).from_pretrained(folder / "ours").eval()
    compare(model, again, "right")
    again.save_pretrained(folder / "again")
    back, _ = store.load(folder / "again")
    assert recipes.plain(back.config) == recipes.plain(model.config)
    assert equal_tensors(dict(back.named_parameters()), dict(model.named_parameters()))
    before = {name: x for name, x in files(folder / "theirs").items() if name not in unread}
    written = files(folder / "ours")
    other_names = bool(saved) and before.keys() != written.keys()
    assert other_names or equal_tensors(before, written)


@pytest.mark.parametrize("name", TABLES["t5"])
def test_t5_both_ways(name, tmp_path):
    both_ways(t5(**TABLES["t5"][name]), tmp_path, equal_pairs)


def test_t5_encoder_alone(tmp_path):
    def compare(actual, reference, side):
        present = padding(side)
        ids = tokens()
        hidden = reference(ids, present.long()).last_hidden_state
        close(actual(ids, pos=real_positions(present)).hidden[present], hidden[present])

    config = transformers.T5Config(**TABLES["t5 sizes"] | {"num_heads": 3})
    both_ways(shaken(transformers.T5EncoderModel(config)), tmp_path, compare)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_t5_head_and_scale_are_told_apart(tied, scaled, tmp_path):
    """All four ways a head can be: tied or not, scaled or not."""
    reference = t5(twins=tied)
    reference.config.scale_decoder_outputs = scaled
    reference.save_pretrained(tmp_path)
    model, _ = store.load(tmp_path)
    assert model.config.head.tied == tied
    assert (model.config.head.scale != 1.0) == scaled
    equal_pairs(model, reference)


def test_t5_as_transformers_4_wrote_it(tmp_path):
    """1.1 with its own words, T5 with the table three times over and the bias nobody reads."""
    model = t5(**TABLES["t5"]["1.1"])
    page = tmp_path / "config.json"
    model.save_pretrained(tmp_path)
    raw = edit_json(page, scale_decoder_outputs=None, tie_word_embeddings=False)
    equal_pairs(store.load(tmp_path)[0], model)
    model = t5()
    model.save_pretrained(tmp_path)
    stored = files(tmp_path)
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        stored[name] = stored["shared.weight"].clone()
    extra = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    save_file(stored | {extra: torch.zeros(32, 4)}, tmp_path / "model.safetensors")
    del raw["scale_decoder_outputs"]
    words = {**raw, **model.config.to_dict(), "architectures": ["T5WithLMHeadModel"]}
    write_json(page, words)
    equal_pairs(store.load(tmp_path)[0], model)


# ------------------------------------------------------------------------------------------- 2017


def marian(**changes):
    sides = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in SIDE.items()}
    ids = {
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "forced_eos_token_id": 1,
    }
    sizes = {
        "vocab_size": VOCAB,
        "d_model": 32,
        "max_position_embeddings": 40,
        "init_std": 0.3,
        **sides,
        **ids,
    }
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**sizes, **changes}))
    model.final_logits_bias.normal_(generator=generator_from(2))
    return shaken(model)


SIDE = {"layers": 3, "attention_heads": 4, "ffn_dim": 52}


@pytest.mark.parametrize("name", TABLES["marian"])
def test_marian_both_ways(name, tmp_path):
    # theirs counts columns, ours what is there
    both_ways(marian(**TABLES["marian"][name]), tmp_path, equal_pairs, ("right",))


def test_files_of_a_bare_marian(tmp_path):
    """Names without their prefix, and no bias of the logits."""
    reference = marian()
    reference.final_logits_bias.zero_()
    reference.model.save_pretrained(tmp_path)
    model, _ = store.load(tmp_path)
    assert not model.config.head.bias
    equal_pairs(model, reference)


def test_a_marian_beside_its_two_vocabularies(tmp_path):
    """Its pieces are cut by one file for each language, which is not a tokenizer here; the model
    loads without."""
    reference = marian()
    reference.save_pretrained(tmp_path)
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / name).write_text("{}")
    model, tokenizer = store.load(tmp_path)
    assert tokenizer is None
    equal_pairs(model, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_marian_with_other_positions_than_sines_is_refused(dtype, tmp_path):
    reference = marian()
    reference.save_pretrained(tmp_path)
    table = reference.model.encoder.embed_positions.weight.detach().to(dtype)
    weights = {key: weight.to(dtype) for key, weight in load_file(tmp_path / SINGLE).items()}
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        for change in (lambda x: x.flip(0), lambda x: x.roll(1, 1), lambda x: 0 * x):
            save_file({**weights, name: change(table).contiguous()}, tmp_path / SINGLE)
            with mistake(f"{name} holds other numbers than the model computes in its place"):
                store.load(tmp_path)
        save_file({**weights, name: table}, tmp_path / SINGLE)
        assert store.load(tmp_path)[0].config.context == 40
        weights.pop(name, None)
    save_file(weights, tmp_path / SINGLE)
    assert store.load(tmp_path)[0].config.context == 40


def test_our_2017_model_is_theirs_with_sines_first(tmp_path):
    """A size of ours, shrunk, is a Marian of theirs once its waves stand in halves; its head's bias
    is zeros there."""
    small = recipes.find("vaswani/tiny")
    small = replace(
        small, dim=32, context=40, embed=replace(small.embed, vocab=VOCAB, scale=32**0.5)
    )
    with mistake(r"encoder\.position\.halves = False"):
        store.save(build_model(small), tmp_path, layout="hf")
    frequencies = config.Sinusoidal(halves=True)
    small = replace(
        small,
        encoder=replace(small.encoder, position=frequencies),
        decoder=replace(small.decoder, position=frequencies),
    )
    actual = shaken(build_model(small, seed=1))
    store.save(actual, tmp_path, layout="hf")
    equal_pairs(actual, transformers.MarianMTModel.from_pretrained(tmp_path).eval())
    back, _ = store.load(tmp_path)
    assert recipes.plain(back.config) == recipes.plain(small)
    assert not back.config.head.bias
    assert equal_tensors(dict(back.named_parameters()), dict(actual.named_parameters()))


# ------------------------------------------------------------------------------ as the hub has them


def test_the_hub_s_first_bert(tmp_path):
    """Old names of norms, the positions among the weights, and both ends in a file that speaks of
    one."""
    reference = bert("BertForPreTraining")
    reference.save_pretrained(tmp_path)
    stored = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor
        for name, tensor in files(tmp_path).items()
    }
    words = stored["bert.embeddings.word_embeddings.weight"]
    stored["cls.predictions.decoder.weight"] = words.clone()
    stored["bert.embeddings.position_ids"] = torch.arange(40)[None]
    save_file(stored, tmp_path / "model.safetensors")
    edit_json(tmp_path / "config.json", architectures=["BertForMaskedLM"])
    model, _ = store.load(tmp_path)
    equal_ends(model, reference, "right")
    expected = replace(model.config, head=None, pool=config.Pool("first", "tanh", labels=3))
    # its pooler is kept
    new = Checkpoint.open(tmp_path).model_as(expected).new
    assert new == ("pool.proj.weight", "pool.proj.bias")


def test_a_nomic_bert_in_gpt2_s_words(tmp_path):
    """As the hub has its first files; a bare one may hold a pooler."""
    reference = bert("NomicBertModel", rope_parameters={"rope_type": "default", "rope_theta": 70.0})
    reference.save_pretrained(tmp_path)
    older = {
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_inner": 52,
        "n_positions": 40,
        "rotary_emb_base": 70,
        "activation_function": "swiglu",
        "vocab_size": 61,
        "type_vocab_size": 2,
        "layer_norm_epsilon": 1e-12,
        "architectures": ["NomicBertModel"],
    }
    write_json(tmp_path / "config.json", older)
    model, _ = store.load(tmp_path)
    equal_ends(model, reference, "right")
    reference = shaken(transformers.NomicBertModel(reference.config, add_pooling_layer=True))
    reference.save_pretrained(tmp_path)
    equal_ends(store.load(tmp_path)[0], reference, "right")


def test_a_modernbert_in_the_words_of_its_first_files(tmp_path):
    reference = bert("ModernBertForMaskedLM", pad_token_id=0, local_attention=8)
    reference.save_pretrained(tmp_path)
    later = ("layer_types", "rope_parameters", "dtype")
    raw = {key: x for key, x in reference.config.to_dict().items() if key not in later}
    older = {
        "architectures": ["ModernBertForMaskedLM"],
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "position_embedding_type": "absolute",
    }
    write_json(tmp_path / "config.json", raw | older)
    equal_ends(store.load(tmp_path)[0], reference, "left")


def test_an_esm_as_the_hub_has_it(tmp_path):
    """Frequencies in every block, in 16 bits, and a table of positions that nothing reads."""
    reference = bert("EsmForMaskedLM", pad_token_id=1, position_embedding_type="rotary")
    frequencies = reference.esm.rotary_embeddings.inv_freq
    frequencies.copy_(frequencies.half().float())
    reference.save_pretrained(tmp_path)
    stored = {name: x for name, x in files(tmp_path).items() if "rotary" not in name}
    for block in range(3):
        name = f"esm.encoder.layer.{block}.attention.self.rotary_embeddings.inv_freq"
        stored[name] = frequencies.clone()
    stored["esm.embeddings.position_embeddings.weight"] = torch.randn(40, 32)
    save_file(stored, tmp_path / "model.safetensors")
    model, _ = store.load(tmp_path)
    equal_ends(model, reference, "right")
    store.save(model, tmp_path / "ours", layout="hf")
    again = transformers.EsmForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    equal_ends(model, again, "right")
    half = store.load(tmp_path, dtype="bfloat16")[0]
    assert torch.equal(half.encoder.position.inv_freq, frequencies)


def test_masked_tokens_of_an_esm_are_counted_in_one_process():
    model = tiny.model("esm")
    model.engine = ENGINES["eager"]._replace(name="ring")
    with mistake("MaskedEmbed counts the masked tokens of a whole document"):
        model(tokens())


def test_a_bert_without_its_pooler(tmp_path):
    reference = bert("BertModel")
    reference.save_pretrained(tmp_path)
    stored = {name: x for name, x in files(tmp_path).items() if "pooler" not in name}
    save_file(stored, tmp_path / "model.safetensors")
    model, _ = store.load(tmp_path)
    assert model.config.pool is None
    assert model.config.head is None
    close(model(tokens()).hidden, reference(tokens()).last_hidden_state)


@pytest.mark.parametrize("kind, change, text", TABLES["refused"])
def test_what_is_not_built_is_one_sentence(kind, change, text, tmp_path):
    build = {"bert": lambda: bert("BertModel"), "t5": t5, "marian": marian}[kind]
    build().save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **change)
    with mistake(text):
        store.load(tmp_path)


def test_a_t5_with_its_tokenizer_begins_with_pad(tmp_path, shared_data):
    """The ids that transformers generates with are those that we do, and both write the same."""
    from glassformer import generate
    from glassformer.formats.tokenizer_files import open as open_tokenizer

    tokenizer = open_tokenizer(shared_data / "tok-t5")
    t5(vocab_size=tokenizer.size, initializer_factor=1.0).save_pretrained(tmp_path / "theirs")
    actual_model, _ = store.load(tmp_path / "theirs")
    store.save(actual_model, tmp_path / "ours", tokenizer, layout="hf")
    raw = read_json(tmp_path / "ours" / "config.json")
    assert (raw["pad_token_id"], raw["eos_token_id"], raw["decoder_start_token_id"]) == (0, 1, 0)
    again, opened = store.load(tmp_path / "ours")
    assert opened is not None
    assert opened.sentinels == tokenizer.sentinels
    source = opened.encode("Two dogs.", eos=True)
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "ours").eval()
    values = model.generate(torch.tensor([source]), max_new_tokens=8, do_sample=False)[0].tolist()
    steps = list(generate(again, opened, "Two dogs.", max_new=8, temperature=0.0))
    assert values[0] == 0
    assert values[1 : 1 + len(steps)] == [step.token for step in steps]
