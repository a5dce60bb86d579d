"""Labels of texts and of tokens, and answers, of every family against transformers: its auto mappings say
which classes there are, and one without a reader or a reason here is a failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

import glassformer
import tiny
from families.parity import TOLERANCE, VOCAB, files, shaken, transformers
from families.test_bart import KINDS, SIZES
from families.test_parity_encoders import bert, both_ways, equal_ends
from folders import edit_json, read_json
from glassformer import config
from glassformer import families as recipes
from glassformer.formats import store
from mistakes import mistake
from seeding import generator_from
from tiny import equal_tensors

HERE = Path(__file__).parent
DECODERS, MORE, ENCODERS = (
    read_json(HERE / f"{name}.json") for name in ("decoders", "more_decoders", "encoders")
)
KIND_WORDS = (
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "MULTIPLE_CHOICE",
)
MAPPINGS = [
    getattr(transformers.models.auto.modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
    for kind in KIND_WORDS
]
RECIPES = {recipe.model_type: recipe for recipe in recipes.all() if recipe.read_config}
TYPES = {(name, name.replace("-", "_")) for name in RECIPES}
CLASSES = sorted(
    {
        (name, table[key])
        for table in MAPPINGS
        for name, alias in TYPES
        for key in {name, alias} & {*table}
    }
)
BODIES = [
    (name, kind)
    for name, kind in CLASSES
    if not issubclass(type(RECIPES[name].words.template), config.Encoder)
]
QUICK = {
    "LlamaForSequenceClassification",
    "GPT2ForTokenClassification",
    "Qwen3ForQuestionAnswering",
}
QUICK |= {"BartForSequenceClassification", "T5ForTokenClassification", "MBartForQuestionAnswering"}
EOS, PAD = 2, 1


def sizes_of(family):
    """Settings of a tiny model."""
    if family == "GPT2":
        return DECODERS["gpt2 sizes"]
    if family in MORE:
        return MORE[family]["sizes"] | next(iter(MORE[family]["cases"].values()))
    if family in DECODERS["settings"]:
        return DECODERS["sizes"] | next(iter(DECODERS["settings"][family].values()))
    if family == "T5":
        return {**KINDS["UMT5"], "vocab_size": VOCAB, "decoder_start_token_id": 0}
    sizes = {"vocab_size": VOCAB} if family.endswith("T5") else SIZES
    # logits of LED of a few units, as the others' are
    return (
        {**sizes, **KINDS[family], "init_std": 0.15} if family == "LED" else sizes | KINDS[family]
    )


def reference_of(name, kind, **changes):
    torch.manual_seed(0)
    family = kind.partition("For")[0].removesuffix("Text").removesuffix("Model")
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 0}
    labels = {} if kind.endswith("QuestionAnswering") else {"num_labels": 3}
    settings = transformers.CONFIG_MAPPING[name](**{**sizes_of(family), **ids, **labels, **changes})
    return shaken(getattr(transformers, kind)(settings))


def texts():
    """Three texts of one EOS each, the last token of it, and which columns they fill."""
    lengths = torch.tensor([24, 17, 9])[:, None]
    ids = torch.randint(3, VOCAB, (3, 24), generator=generator_from(1))
    present = torch.arange(24) < lengths
    ids = ids.masked_fill(~present, PAD)
    return ids.scatter(1, lengths - 1, EOS), present


def answer(reference, ids, present):
    """Logits of labels, or where an answer starts and ends."""
    out = reference(ids, attention_mask=present.long())
    if "start_logits" in out:
        return torch.stack((out.start_logits, out.end_logits), -1)
    return out.logits


@torch.no_grad()
def agree(model, reference, ids, present):
    """The same labels, of padded rows and of each alone."""
    pos = torch.arange(ids.shape[1]).masked_fill(~present, -1)
    output = model(ids, pos=pos)
    expected = answer(reference, ids, present)
    if output.pooled is not None:
        assert_close(output.pooled, expected, rtol=0.0, atol=TOLERANCE)
    else:
        assert_close(output.tagged[present], expected[present], rtol=0.0, atol=TOLERANCE)
    for row, mask in zip(ids, present, strict=True):
        alone = model(row[mask][None])
        expected = answer(reference, row[mask][None], mask[mask][None])
        local = alone.tagged if alone.pooled is None else alone.pooled
        assert_close(local, expected, rtol=0.0, atol=TOLERANCE)
    assert expected.std() > 0.01


@pytest.mark.parametrize(
    "name, kind",
    [pytest.param(*c, marks=() if c[1] in QUICK else pytest.mark.slow, id=c[1]) for c in BODIES],
)
def test_both_ways(name, kind, tmp_path):
    """Theirs -> ours -> theirs: the same labels and files, bit for bit."""
    reference = reference_of(name, kind)
    reference.save_pretrained(tmp_path / "theirs")
    model, _ = store.load(tmp_path / "theirs")
    agree(model, reference, *texts())
    store.save(model, tmp_path / "ours", layout="hf")
    raw = read_json(tmp_path / "ours" / "config.json")
    assert raw["architectures"] == [kind]
    again = getattr(transformers, kind).from_pretrained(tmp_path / "ours").eval()
    agree(model, again, *texts())
    assert equal_tensors(files(tmp_path / "theirs"), files(tmp_path / "ours"))
    assert equal_tensors(reference.state_dict(), again.state_dict())
    assert again.config.id2label == reference.config.id2label
    assert again.config.label2id == reference.config.label2id
    assert again.config.tie_word_embeddings == type(reference.config)().tie_word_embeddings
    back, _ = store.load(tmp_path / "ours")
    assert recipes.plain(back.config) == recipes.plain(model.config)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Camembert", "XLMRoberta"])
def test_ends_of_roberta_s_kin(family, tmp_path):
    for head in (
        "SequenceClassification",
        "TokenClassification",
        "QuestionAnswering",
        "MultipleChoice",
    ):
        kind = f"{family}For{head}"
        # the score of a choice is written as that of a text
        saved = kind.replace("MultipleChoice", "SequenceClassification")
        both_ways(bert(kind), tmp_path / head, equal_ends, saved="" if saved == kind else saved)


def test_each_class_of_theirs_has_a_reader_and_a_test():
    readers = {kind for recipe in RECIPES.values() for kind in recipe.architectures}
    kin = {kind for kind in readers if kind.startswith(("Camembert", "XLMRoberta"))}
    tested = kin | {kind for _, kind in BODIES} | {kind for kind, _ in ENCODERS["bert"].values()}
    tested |= {f"LongformerFor{head}" for head in PARTS}
    named = {kind for _, kind in CLASSES}
    assert len(named) > 140
    assert named <= readers
    assert named <= tested


def loaded(reference, folder):
    reference.save_pretrained(folder)
    return store.load(folder)[0]


def test_padding_on_the_left(tmp_path):
    reference = reference_of("llama", "LlamaForSequenceClassification")
    model, (ids, present) = loaded(reference, tmp_path), texts()
    ids, present = ids.flip(1), present.flip(1)
    pos = (present.long().cumsum(1) - 1).masked_fill(~present, -1)
    with torch.no_grad():
        expected = reference(
            ids, attention_mask=present.long(), position_ids=pos.clamp(min=0)
        ).logits
        assert_close(model(ids, pos=pos).pooled, expected, rtol=0.0, atol=TOLERANCE)


def test_a_text_that_ends_in_the_id_of_padding(tmp_path):
    """Theirs passes such tokens over, as where padding is EOS too."""
    reference = reference_of("gpt2", "GPT2ForSequenceClassification", pad_token_id=EOS)
    model, (ids, present) = loaded(reference, tmp_path), texts()
    ids = ids.masked_fill(~present, EOS)
    agree(model, reference, ids, present)
    empty = torch.full((1, 3), EOS)  # of padding alone theirs takes the first
    assert_close(model(empty).pooled, reference(empty).logits, rtol=0.0, atol=TOLERANCE)
    last = model(ids[:1]).hidden[:, -1]
    assert not torch.allclose(model.pool.proj(last), model(ids[:1]).pooled, atol=0.01)


@pytest.mark.parametrize("name", ["bart", "mbart", "t5"])
def test_labels_are_read_at_the_last_eos(name, tmp_path):
    """An mBART's text ends in its language, from which its decoder begins as well."""
    family = {"bart": "Bart", "mbart": "MBart", "t5": "T5"}[name]
    reference = reference_of(name, f"{family}ForSequenceClassification")
    model, (ids, present) = loaded(reference, tmp_path), texts()
    lengths = present.sum(1, keepdim=True)
    ids = ids.scatter(1, lengths - 1, 9).scatter(1, lengths - 3, EOS)
    agree(model, reference, ids, present)


@pytest.mark.parametrize("end", ["SequenceClassification", "QuestionAnswering"])
def test_an_mbart_of_one_text_leaves_the_start_of_a_translation_out(end, tmp_path):
    """Whatever its config says of a target: theirs begins with the text's own last token."""
    reference = reference_of("mbart", f"MBartFor{end}", decoder_start_token_id=5)
    agree(loaded(reference, tmp_path), reference, *texts())


def test_packed_texts_of_a_pair_are_as_alone(tmp_path):
    for name, family in (("bart", "Bart"), ("mbart", "MBart")):
        model = loaded(reference_of(name, f"{family}ForSequenceClassification"), tmp_path / name)
        ids, present = texts()
        rows = [row[mask] for row, mask in zip(ids[1:], present[1:], strict=True)]
        pos = torch.cat([torch.arange(len(row)) for row in rows])[None]
        documents = torch.cat([torch.full((len(row),), n) for n, row in enumerate(rows)])[None]
        with torch.no_grad():
            packed = model(torch.cat(rows)[None], pos=pos, document_ids=documents).pooled
            apart = torch.cat([model(row[None]).pooled for row in rows])
        assert_close(packed, apart, rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_bare_decoders(name, tmp_path):
    """A model without a head over tokens ends in vectors, here and there."""
    kind = {"llama": "Llama", "gpt_neox": "GPTNeoX"}[name]
    reference = reference_of(name, f"{kind}Model")
    model, (ids, _) = loaded(reference, tmp_path / "theirs"), texts()
    assert model.config.head is None
    store.save(model, tmp_path / "ours", layout="hf")
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(reference)
    with torch.no_grad():
        assert_close(model(ids).hidden, reference(ids)[0], rtol=0.0, atol=TOLERANCE)
    assert equal_tensors(reference.state_dict(), again.state_dict())


@pytest.mark.parametrize(
    "change, text",
    [
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "a table of 2, where an answer starts"),
        ({"architectures": ["LlamaForMultipleChoice"]}, "is not in the recipe book"),
        ({"pad_token_id": "x"}, "pad"),
    ],
)
def test_what_is_not_built_is_one_sentence(change, text, tmp_path):
    head = "SequenceClassification" if "pad_token_id" in change else "QuestionAnswering"
    reference_of("llama", f"LlamaFor{head}").save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **change)
    with mistake(text):
        store.load(tmp_path)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "name, kind",
    [
        ("llama", "LlamaForSequenceClassification"),
        ("qwen3", "Qwen3ForQuestionAnswering"),
        ("gpt_neox", "GPTNeoXForTokenClassification"),
        ("t5", "T5ForSequenceClassification"),
    ],
)
def test_a_head_over_tokens_that_no_class_of_labels_reads(name, kind, tied, tmp_path):
    """As files have it that were trained from a whole model: theirs passes it over."""
    reference = reference_of(name, kind, tie_word_embeddings=tied)
    reference.save_pretrained(tmp_path)
    head = "embed_out.weight" if name == "gpt_neox" else "lm_head.weight"
    stored = files(tmp_path) | {head: torch.randn(VOCAB, 32)}
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    agree(store.load(tmp_path)[0], reference, *texts())


def tokenizer_folder(folder, opens, **roles):
    """A tokenizer of theirs that puts ``opens`` before a text and nothing behind it."""
    words = ["<unk>", "<s>", "</s>", "a", "b", "c"]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(words[:3])
    if opens:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{opens} $A", pair=f"{opens} $A {opens} $B", special_tokens=[(opens, 1)]
        )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **roles)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("opens", ["", "<s>"])
@torch.no_grad()
def test_texts_and_pairs_are_framed_as_by_their_tokenizer(opens, tmp_path):
    """GPT-2's puts nothing around them, Llama's what opens each."""
    reference = reference_of("llama", "LlamaForSequenceClassification")
    reference.save_pretrained(tmp_path)
    reference_tokenizer = tokenizer_folder(tmp_path, opens, bos_token="<s>", eos_token="</s>")
    model, tokenizer = store.load(tmp_path)
    for args in (("a b c a",), ("a b", "c a a")):
        ids = reference_tokenizer(*args, return_tensors="pt").input_ids
        assert tokenizer.encode_pair(*args)[0] == ids[0].tolist()
        text = args if args[1:] else args[0]
        local = glassformer.classify(model, tokenizer, [text]).probabilities
        assert_close(local, reference(ids).logits.softmax(-1), atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_a_token_that_closes_a_text_is_not_its_padding(tmp_path):
    """Where config.json ends a text otherwise than the tokenizer does, whose padding is its EOS."""
    tokenizer_folder(tmp_path / "base", "", eos_token="</s>", pad_token="</s>")
    reference_of("llama", "LlamaForCausalLM", eos_token_id=5).save_pretrained(tmp_path / "base")
    base, tokenizer = store.load(tmp_path / "base")
    labelled = replace(base.config, head=None, pool=config.Pool("last", None, 3, bias=False))
    model = tiny.model(labelled)
    store.save(model, tmp_path / "ours", tokenizer, layout="hf")
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    reads = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in ("a b c a", "b"):
        local = glassformer.classify(model, tokenizer, text).probabilities
        logits = classifier.eval()(reads(text, return_tensors="pt").input_ids).logits
        assert_close(local, logits.softmax(-1), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["bart", "mbart", "t5"])
@torch.no_grad()
def test_a_pass_over_the_one_text_of_a_pair_opens(name, tmp_path):
    """What is looked at has both sides, and labels are read where the text has its last EOS."""
    family = {"bart": "Bart", "mbart": "MBart", "t5": "T5"}[name]
    model = loaded(reference_of(name, f"{family}ForSequenceClassification"), tmp_path)
    ids = texts()[0][:1]
    trace = glassformer.trace(model, None, ids)
    assert torch.equal(trace.source, ids)
    assert torch.equal(trace.output.pooled, model(ids).pooled)
    assert torch.equal(
        glassformer.look(model, None, ids, "pool.write")["pool.write"], model(ids).pooled
    )


def test_files_of_the_first_bart_with_labels(tmp_path):
    """As facebook/bart-large-mnli has them: a table for each side, and versions that none reads."""
    reference = reference_of("bart", "BartForSequenceClassification")
    reference.save_pretrained(tmp_path)
    stored = files(tmp_path)
    for side in ("encoder", "decoder"):
        stored[f"model.{side}.embed_tokens.weight"] = stored["model.shared.weight"].clone()
        stored[f"model.{side}.version"] = torch.tensor([2.0])
    save_file(stored, tmp_path / "model.safetensors")
    agree(store.load(tmp_path)[0], reference, *texts())


def pairs():
    """Three pairs of texts as RoBERTa frames them: questions and passages of several lengths."""
    ids, present = texts()
    for row, question in enumerate((5, 9, 2)):
        ids[row, [question, question + 1]] = EOS
    return ids, present


PARTS = ("QuestionAnswering", "MultipleChoice")


@pytest.mark.parametrize("head", PARTS)
def test_the_global_part_of_a_longformer(head, tmp_path):
    """Every token of the question is global, or of the choice behind it."""
    kind = f"LongformerFor{head}"
    sizes = {"attention_window": [4, 6], "sep_token_id": EOS, "num_hidden_layers": 2}
    reference = bert(kind, **sizes)
    reference.save_pretrained(tmp_path / "theirs")
    model, _ = store.load(tmp_path / "theirs")
    store.save(model, tmp_path / "ours", layout="hf")
    raw = read_json(tmp_path / "ours" / "config.json")
    assert raw["architectures"] == [kind] and raw["sep_token_id"] == EOS
    again = getattr(transformers, kind).from_pretrained(tmp_path / "ours").eval()
    assert equal_tensors(reference.state_dict(), again.state_dict())
    ids, present = pairs()
    with torch.no_grad():
        output = model(ids, pos=torch.arange(24).masked_fill(~present, -1))
        if head == "MultipleChoice":
            reference_logits = reference(ids[None], attention_mask=present[None].long()).logits[0]
            actual = output.pooled[:, 0]
        else:
            reference_logits = answer(reference, ids, present)[present]
            actual = output.tagged[present]
        assert_close(actual, reference_logits, rtol=0.0, atol=TOLERANCE)
        assert reference_logits.std() > 0.01
        for row, mask in zip(ids, present, strict=True):
            alone = model(row[mask][None])
            rows = alone.pooled if head == "MultipleChoice" else alone.tagged[0]
            batched = output.pooled if head == "MultipleChoice" else output.tagged
            index = int((ids == row).all(1).nonzero())
            expected = batched[index][None] if head == "MultipleChoice" else batched[index][mask]
            assert_close(rows, expected, rtol=0.0, atol=TOLERANCE)
