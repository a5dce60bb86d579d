"""A label for each word: read, encoded at each word's first token, trained, counted, told, saved
for transformers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import tiny
from folders import read_json
from glassformer import config, runs
from glassformer.cli import main
from glassformer.core.config import run
from glassformer.core.config.objective import Frozen, LoRA
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.core.training.batches import Batch
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.runs import run_config
from glassformer.runs.callbacks import Evaluate, read_log
from glassformer.runs.run_plan import training_and_validation
from glassformer.tasks import evaluation, predictions
from glassformer.tasks.encoded import encode
from glassformer.tasks.entities import agreement, are_bio, entities
from glassformer.tasks.example_batches import each_once
from glassformer.tasks.example_table import Example, ExampleTable, encode_words
from glassformer.tasks.examples import read_examples
from glassformer.tasks.objectives import Classify, Tag
from mistakes import SENTENCES as TABLE
from mistakes import mistake

LABELS = ("B-PER", "B-PLACE", "I-PER", "I-PLACE", "O")
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{c}" for c in "abcdefghij"),
]
PIECES += [
    "ann",
    "rome",
    "paris",
    "##s",
    "##on",
    "##t",
    "##y",
    "walk",
    "went",
    "in",
    "to",
    "saw",
    "the",
    ".",
]
PIECES += [f"##{c}" for c in "klmnopqruvwxz"]


NAMES = {
    "PER": (["ann", "anny"], ["bell", "jackson"]),
    "PLACE": (["rome", "paris"], ["city", "hill"]),
    "O": (["walks", "saw", "in"],),
}


def sentence(draw):
    """Words that are people, places or neither by their names; some of two words."""
    words = []
    labels = []
    for _ in range(draw.integers(2, 6)):
        kind = str(draw.choice(["PER", "PLACE", "O", "O"]))
        count = draw.integers(1, 3)
        words += [str(draw.choice(name)) for name in NAMES[kind][:count]]
        labels += [f"B-{kind}", f"I-{kind}"][:count] if kind != "O" else ["O"]
    return words, labels


SENTENCES = [sentence(np.random.default_rng(n)) for n in range(120)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A corpus in both forms, and a BERT folder that transformers wrote."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tags")
    pairs = [
        "\n".join(f"{w}\t{t}" for w, t in zip(*sentence, strict=True)) for sentence in SENTENCES
    ]
    (folder / "train.conll").write_text("\n\n".join(pairs) + "\n")
    lines = [json.dumps({"tokens": words, "labels": labels}) for words, labels in SENTENCES]
    (folder / "train.jsonl").write_text("\n".join(lines))
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    shape = transformers.BertConfig(vocab_size=len(PIECES), max_position_embeddings=32, **sizes)
    torch.manual_seed(0)
    transformers.BertModel(shape).save_pretrained(folder / "bert")
    (folder / "bert" / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "bert" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "do_lower_case": true}'
    )
    return folder


# -------------------------------------------------------------------------------------- the files


def test_both_forms_say_the_same(home, tmp_path):
    columns, lines = (
        read_examples(str(home / f"train.{kind}"), Tag()) for kind in ("conll", "jsonl")
    )
    assert columns.labels == lines.labels == LABELS
    assert columns.fingerprint == lines.fingerprint
    output = [(list(column.words), [LABELS[tag] for tag in column.tags]) for column in columns]
    assert output == SENTENCES
    assert [line.line for line in lines] == list(range(1, 121))
    assert columns.examples[1].line == len(SENTENCES[0][0]) + 2
    second = read_examples(str(home / "train.conll"), Tag(), labels=LABELS[::-1])
    assert second.labels == LABELS[::-1]
    assert second.fingerprint != columns.fingerprint
    turned = tuple(replace(column, tags=column.tags[::-1]) for column in columns)
    assert replace(columns, examples=turned).fingerprint != columns.fingerprint
    # CoNLL 2003's four columns with spaces, documents and two empty lines; other names and numbers
    # in JSONL
    (tmp_path / "a.txt").write_text(
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\r\nPeter NNP B-NP "
        "B-PER\r\n"
    )
    table = read_examples(str(tmp_path / "a.txt"), Tag(), columns={"tokens": "0", "labels": "3"})
    assert [(item.words, item.line) for item in table] == [(("EU", "rejects"), 3), (("Peter",), 7)]
    assert table.labels == ("B-ORG", "B-PER", "O")
    assert [item.tags for item in table] == [
        (0, 2),
        (1,),
    ]
    (tmp_path / "b.tsv").write_text("word\tkind\nEU\tB-ORG\n\n# \tO\n")
    headed = read_examples(
        str(tmp_path / "b.tsv"), Tag(), columns={"tokens": "word", "labels": "kind"}
    )
    assert [item.words for item in headed] == [("EU",), ("# ",)]
    (tmp_path / "c.jsonl").write_text('{"words": ["New York", "is"], "ner_tags": [11, 2]}\n')
    numbered = read_examples(
        str(tmp_path / "c.jsonl"), Tag(), columns={"tokens": "words", "labels": "ner_tags"}
    )
    assert numbered.labels == ("2", "11")
    assert numbered.examples[0].tags == (1, 0)


@pytest.mark.parametrize("name, content, sentence", TABLE["tagged sentences"])
def test_bad_files_are_one_sentence(name, content, sentence, tmp_path):
    (tmp_path / name).write_text(content)
    with mistake(sentence):
        read_examples(str(tmp_path / name), Tag())


def test_a_label_that_training_does_not_have(home, tmp_path):
    (tmp_path / "valid.conll").write_text("ann\tB-PER\n\nrome\tB-PLAC\n")
    data = run_config.Examples(str(home / "train.conll"), str(tmp_path / "valid.conll"))
    with mistake(
        r'line 3 has the label "B-PLAC", which is not one of the '
        r"set.*B-PLACE"
    ):
        training_and_validation(data, Tag())
    with mistake("have no text before them"):
        training_and_validation(replace(data, prefix="tag: "), Tag())


# ------------------------------------------------------------------------------------- as tokens


def test_words_are_encoded_one_by_one_as_transformers_does(home):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(home / "bert")
    tokenizer = Checkpoint.open(home / "bert").tokenizer()
    cfg = replace(tiny.bert(), head=None, embed=config.Embed(len(PIECES), segments=2))
    table = read_examples(str(home / "train.jsonl"), Tag())
    (side,) = encode(table, tokenizer, Tag(), cfg, 32).sides
    for number, item in enumerate(table):
        right = reference(list(item.words), is_split_into_words=True)
        words = right.word_ids()
        firsts = [
            -1 if w is None or w == words[at - 1] else item.tags[w] for at, w in enumerate(words)
        ]
        inside = slice(side.starts[number], side.starts[number + 1])
        assert side.columns["tokens"][inside].tolist() == right["input_ids"]
        assert side.columns["targets"][inside].tolist() == firsts


@pytest.mark.parametrize("kind", ["bpe", "char", "words"])
def test_words_apart_are_the_sentence(kind):
    joined = [" ".join(words) for words, _ in SENTENCES]
    tokenizer = train_tokenizer(kind, joined, 300 if kind == "bpe" else None)
    apart = list(encode_words(tokenizer, [words for words, _ in SENTENCES]))
    assert [[id for word in item for id in word] for item in apart] == tokenizer.encode_batch(
        joined
    )
    assert [len(item) for item in apart] == [len(words) for words, _ in SENTENCES]


@pytest.mark.parametrize("name", ["gpt2", "llama2", "t5", "bert-cased"])
def test_words_apart_are_the_sentence_in_published_tokenizers(name, shared_data):
    words = ["Ann", "saw", "the", "1,234", "Zürich-based", "ex-soldiers", ",", "didn't", "she", "?"]
    tokenizer = open_tokenizer(shared_data / f"tok-{name}")
    (apart,) = encode_words(tokenizer, [words])
    assert [id for word in apart for id in word] == tokenizer.encode(" ".join(words))


def test_what_does_not_fit_is_one_sentence(home):
    tokenizer = Checkpoint.open(home / "bert").tokenizer()
    cfg = replace(tiny.bert(), embed=config.Embed(len(PIECES), segments=2))
    long = ExampleTable(
        "t",
        (Example("ann ann ann", words=("ann", "annson", "rome"), tags=(0, 1, 2), line=7),),
        LABELS,
    )
    with mistake(
        r"t line 7 has a sentence of 7 tokens, and a row holds "
        r"5.*data\.truncate"
    ):
        encode(long, tokenizer, Tag(), cfg, 5)
    for cut, tokens, tags in (
        ("end", ["ann", "ann", "##s"], [0, 1, -1]),
        ("start", ["##s", "##on", "rome"], [-1, -1, 2]),
    ):
        (side,) = encode(long, tokenizer, Tag(), cfg, 5, cut=cut).sides
        expected = [PIECES.index(piece) for piece in ("[CLS]", *tokens, "[SEP]")]
        assert side.columns["tokens"].tolist() == expected
        assert side.columns["targets"].tolist() == [
            -1,
            *tags,
            -1,
        ]
    with mistake(r'makes no token of the word "\\u200b"; fix it'):
        encode(
            ExampleTable("t", (Example("x", words=("ann", "\u200b"), tags=(0, 1)),)),
            tokenizer,
            Tag(),
            cfg,
            9,
        )
    with mistake("Tag does not fit EncoderDecoder"):
        encode(long, tokenizer, Tag(), tiny.vaswani(), 32)


def shaped(cfg):
    return replace(
        cfg,
        embed=replace(cfg.embed, vocab=len(PIECES)),
        pool=None,
        token_head=config.TokenHead(len(LABELS)),
    )


SHAPES = {"encoder": shaped(replace(tiny.bert(), head=None)), "decoder": shaped(tiny.gpt2())}


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_packed_padded_and_pieces_are_as_alone(shape, home):
    """The loss of packed rows, of a padded batch and of each sentence by itself; what is told of
    words is the same."""
    model = tiny.model(SHAPES[shape])
    tokenizer = Checkpoint.open(home / "bert").tokenizer()
    table = read_examples(str(home / "train.conll"), Tag())
    ids = encode(table, tokenizer, Tag(), model.config, 32)
    objective = Tag()
    alone = []
    for item in table:
        (side,) = encode(replace(table, examples=(item,)), tokenizer, Tag(), model.config, 32).sides
        columns = {
            name: torch.from_numpy(c.astype(np.int64))[None]
            for name, c in side.columns.items()
            if name != "pos"
        }
        alone.append(objective.loss(model, Batch(**columns)))
    packed = [objective.loss(model, batch) for batch in each_once(ids, 4, 32)]
    assert (
        sum(loss.count for loss in packed)
        == sum(loss.count for loss in alone)
        == sum(len(item.words) for item in table)
    )
    assert_close(sum(p.sum for p in packed), sum(a.sum for a in alone), rtol=1e-5, atol=1e-4)
    batch = next(iter(each_once(ids, 4, 32)))
    assert int(batch.document_ids.max()) >= 1
    assert int((batch.pos < 0).sum()) > 0
    # what is told of each word, in padded batches: the packed batches' choices, in the same order
    tags = [
        labels.probabilities
        for labels in predictions.tag(model, tokenizer, [item.words for item in table], batch=7)
    ]
    chosen = torch.cat([loss.predictions for loss in packed])
    assert torch.equal(torch.cat([tag.argmax(1) for tag in tags]), chosen)
    # sentences stay apart when entities are counted, packed or one row each
    tensors = [
        torch.cat(piece)
        for piece in zip(*((loss.predictions, loss.labels) for loss in packed), strict=True)
    ]
    single = [
        torch.cat(piece)
        for piece in zip(*((loss.predictions, loss.labels) for loss in alone), strict=True)
    ]
    assert torch.equal(tensors[1], single[1])
    assert int(tensors[1][:, 1].sum()) == len(table)
    names = [[LABELS[best] for best in tag.argmax(1).tolist()] for tag in tags]
    right = evaluation.of_tags(names, [labels for _, labels in SENTENCES])
    assert {n: 100 * v for n, v in objective.metrics(*tensors, LABELS).items()} == pytest.approx(
        {n: right[n] for n in ("precision", "recall", "f1")}
    )


def test_the_loss_is_that_of_transformers(home, tmp_path):
    import transformers

    cfg = replace(
        Checkpoint.open(home / "bert").config, pool=None, token_head=config.TokenHead(len(LABELS))
    )
    model = tiny.model(cfg, seed=3)
    tokenizer = Checkpoint.open(home / "bert").tokenizer()
    store.save(model, tmp_path / "out", tokenizer, "hf", labels=LABELS)
    reference_model = transformers.BertForTokenClassification.from_pretrained(
        tmp_path / "out"
    ).eval()
    assert reference_model.config.id2label == dict(enumerate(LABELS))
    table = read_examples(str(home / "train.conll"), Tag())
    group = replace(table, examples=(max(table, key=lambda item: len(item.words)),))
    batch = next(each_once(encode(group, tokenizer, Tag(), cfg, 32), 1, 32))
    present = batch.pos >= 0
    labels = torch.where(batch.targets < 0, -100, batch.targets)
    with torch.no_grad():
        right = reference_model(
            batch.tokens,
            attention_mask=present.long(),
            token_type_ids=batch.segments,
            labels=labels,
        ).loss
        loss = Tag().loss(model, batch)
    assert float(loss.sum / loss.count) == pytest.approx(float(right), abs=1e-5)


# -------------------------------------------------------------------------------------- entities


CASES = {
    "O O": [],
    "B-X I-X O": [(0, 2, "X")],
    "B-X B-X": [(0, 1, "X"), (1, 2, "X")],
    "B-X I-Y": [(0, 1, "X"), (1, 2, "Y")],  # another kind begins another
    "O I-X I-X B-Y": [(1, 3, "X"), (3, 4, "Y")],  # an I after nothing begins one
    "I-X O I-X": [(0, 1, "X"), (2, 3, "X")],
    "B-a-b I-a-b I-a": [(0, 2, "a-b"), (2, 3, "a")],
    "B I O I": [(0, 2, ""), (3, 4, "")],
}


@pytest.mark.parametrize("labels", CASES)
def test_entities_by_hand(labels):
    assert entities(labels.split()) == CASES[labels]


def test_figures_by_hand():
    right = [["B-PER", "I-PER", "O", "B-PLACE"], ["I-PLACE", "O"]]
    outputs = [["B-PER", "O", "O", "B-PLACE"], ["I-PLACE", "I-PLACE"]]
    # wanted PER 0-2, PLACE 3-4, PLACE 0-1; told PER 0-1, PLACE 3-4, PLACE 0-2: one of three
    assert agreement(outputs, right) == pytest.approx(
        {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3}
    )
    assert evaluation.of_tags(outputs, right)["accuracy"] == pytest.approx(100 * 4 / 6)
    assert agreement([["O", "O", "O", "B-PLACE"]], right[:1]) == pytest.approx(
        {"precision": 1, "recall": 0.5, "f1": 2 / 3}
    )
    assert agreement([["O"]], [["O"]]) == {"precision": 0, "recall": 0, "f1": 0}
    assert evaluation.of_tags([["noun"]], [["verb"]]) == {"accuracy": 0.0}
    assert not any(map(are_bio, (["O"], ["B-X"], ["O", "S-X"], ["O", "noun"])))
    assert are_bio(LABELS)
    assert are_bio(["O", "B"])


def test_sentences_in_batches_of_one_stay_apart():
    """Two sentences, I-X at the end of one and at the beginning of the next, are two entities."""
    labels = ("I-X", "O")

    class Says(torch.nn.Module):
        def forward(self, tokens, **kwargs):
            from glassformer.core.nn import Output

            tagged = torch.nn.functional.one_hot(tokens, 2).float()
            return Output(tagged, tagged, tagged=tagged)

    model = Says()
    model.weight = torch.nn.Parameter(torch.zeros(1))
    rows = [Batch(torch.tensor([row]), torch.tensor([row])) for row in ([1, 0], [0, 0])]
    _, facts = Evaluate(lambda: rows, Tag(), 1, labels).measure(model)
    assert facts["f1"] == 1.0
    assert facts["accuracy"] == 1.0
    # told: 1-2, then 1-2; right: 1-2, then 0-2
    rows[1] = replace(rows[1], tokens=torch.tensor([[1, 0]]))
    _, facts = Evaluate(lambda: rows, Tag(), 1, labels).measure(model)
    assert facts["f1"] == 0.5
    assert facts["accuracy"] == 0.75


# -------------------------------------------------------------------------------- the whole way


@pytest.fixture(scope="module")
def trained(home):
    """A BERT folder, fine-tuned by the command."""
    line = (
        f"train --from {home}/bert --data.type Examples --data.train {home}/train.conll"
        f" --out {home}/out --objective Tag --steps 150 --batch 8 --train.context 32"
        " --evaluate-every 30 --dtype float32 --tensorboard false"
    )
    assert main([*line.split(), "--optimizer", '{type = "AdamW", lr = 5e-3}']) == 0
    return home / "out"


def test_fine_tuning_learns_names(trained):
    last = read_log(trained / "log.jsonl")[-1]
    facts = {**last, **last.get("facts", {})}
    assert facts["valid_f1"] > 0.95 and facts["valid_accuracy"] > 0.97, facts
    assert Checkpoint.open(trained).labels == LABELS
    model, _ = store.load(trained)
    assert model.config.token_head == config.TokenHead(5, dropout=0.1)
    assert model.config.pool is None


def test_commands(trained, home, terminal):
    output = terminal(f"classify {trained} 'ann jackson saw rome' walks")
    assert output == "ann\tB-PER\njackson\tI-PER\nsaw\tO\nrome\tB-PLACE\n\nwalks\tO\n\n"
    (home / "told.conll").write_text(output)
    figures = terminal.json(f"eval {trained} --data {home}/told.conll")
    shares = dict.fromkeys(("accuracy", "precision", "recall", "f1"), 100.0)
    assert figures == {"sentences": 2, "words": 5, **shares}
    output = terminal.json(f"classify {trained} 'ann saw rome'")
    assert output["labels"] == ["B-PER", "O", "B-PLACE"]
    assert all(0.5 < p <= 1 for p in output["probabilities"])
    for words, message in (
        (["--second", "b", "a"], "leave --second out"),
        (["in", "ann " * 40], "Sentence 2 has 42 tokens and the model reads 32"),
        ([" "], "A sentence is empty"),
    ):
        assert message in terminal.refused(f"classify {trained}", *words)


def test_a_checkpoint_opens_in_transformers(trained, home):
    from transformers import pipeline

    assert main(["convert", str(trained), "--out", str(home / "hf")]) == 0
    raw = read_json(home / "hf" / "config.json")
    assert raw["architectures"] == ["BertForTokenClassification"]
    assert [raw["id2label"][str(n)] for n in range(5)] == list(LABELS)
    reference = pipeline("token-classification", model=str(home / "hf"))
    model, tokenizer = store.load(trained)
    for words, _ in SENTENCES[:10]:
        (tags,) = predictions.tag(model, tokenizer, [words])
        marked = {
            item["start"]: item["entity"] for item in reference(" ".join(words), ignore_labels=[])
        }
        starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
        assert [marked[start] for start in starts] == tags.best


@pytest.mark.parametrize("tune", [Frozen(), LoRA(rank=2)])
def test_from_a_tagger_to_other_labels(tune, trained, tmp_path):
    """A head with other labels is drawn anew, the trunk stays or changes little; Classify leaves
    the head out."""
    (tmp_path / "b.jsonl").write_text(
        "\n".join(
            json.dumps({"tokens": w, "labels": [len(x) % 2 for x in w]}) for w, _ in SENTENCES
        )
    )
    options = run.Train(Tag(), tune, steps=2, batch=4, dtype="float32", tensorboard=False)
    runs.run(
        run_config.Run(
            {"from": str(trained)}, run_config.Examples(str(tmp_path / "b.jsonl")), options
        ),
        tmp_path / "out",
    )
    model, tokenizer = store.load(tmp_path / "out")
    before = dict(store.load(trained)[0].named_parameters())
    assert Checkpoint.open(tmp_path / "out").labels == ("0", "1")
    assert model.config.token_head.labels == 2
    repeated = {
        name: torch.equal(weight, before[name])
        for name, weight in model.named_parameters()
        if "token_head" not in name
    }
    moved = {name for name, value in repeated.items() if not value}
    assert len(repeated) > 20
    assert all(".attn." in name for name in moved)
    assert bool(moved) == isinstance(tune, LoRA)
    assert predictions.tag(model, tokenizer, [["ann", "saw"]])[0].probabilities.shape == (2, 2)
    result, _ = Classify().with_heads(model.config, 3)
    assert result.token_head is None
    assert result.pool.labels == 3
    spans = replace(model.config, token_head=config.TokenHead(2, span=True))
    assert Tag().with_heads(spans, 4)[0].token_head == config.TokenHead(4)
