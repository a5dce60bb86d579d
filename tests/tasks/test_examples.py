"""Examples: read from every kind of file, packed as if apart, each once an epoch, resumed
exactly."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.core.tokenizer.framing import question
from glassformer.core.training.batches import Batch
from glassformer.core.training.causal import Causal
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.runs import run_config
from glassformer.runs.run_plan import training_and_validation
from glassformer.tasks.encoded import encode
from glassformer.tasks.example_batches import ExampleBatches, each_once, in_order, pack
from glassformer.tasks.example_table import Example, ExampleTable
from glassformer.tasks.examples import read_examples
from glassformer.tasks.objectives import Chat, Classify, Contrast, Seq2Seq
from mistakes import mistake
from packed import alone as documents

WORDS = [f"w{number}" for number in range(30)]
FRAME = ("[PAD]", "<unk>", "[CLS]", "[SEP]", "[MASK]")
CONTEXT = 24


# ------------------------------------------------------------------------------------- the files


def first(table):
    return table.examples[0]


COUNTS = {
    "sst2/{}.tsv": {"train": 6920, "dev": 872, "test": 1821},
    "cola/{}.tsv": {"in_domain_train": 8551, "in_domain_dev": 527, "out_of_domain_dev": 516},
    "scitldr/{}.jsonl": {"train": 1992, "dev": 619, "test": 618},
    "scan/tasks_{}.txt": {
        "train_simple": 16728,
        "test_simple": 4182,
        "train_length": 16990,
        "test_length": 3920,
    },
}


@pytest.mark.parametrize("files", COUNTS)
def test_published_files_are_read_whole(files, shared_data):
    """The counts that their authors give."""
    objective = Classify() if files.endswith("tsv") else Seq2Seq()
    columns = {"text": "3", "label": "1"} if files.startswith("cola") else None
    for name, count in COUNTS[files].items():
        path = shared_data / files.format(name)
        table = read_examples(str(path), objective, columns=columns)
        assert len(table) == count
        assert not table.notes
        assert table.labels == (("0", "1") if files.endswith("tsv") else None)
        if files.endswith("jsonl"):
            assert all(item.second == item.references[0] for item in table)
            raw = json.loads(path.read_text().splitlines()[0])
            assert first(table).first == " ".join(raw["source"])
            assert list(first(table).references) == raw["target"]


def test_published_sides_are_read_whole(shared_data):
    folder = shared_data / "multi30k"
    sides = {"source": str(folder / "train.en"), "target": str(folder / "train.de")}
    assert len(read_examples(sides, Seq2Seq())) == 29000


def test_every_kind_of_file_says_the_same(tmp_path):
    rows = [('a "b c', "yes"), ("d, e\u2028f", "no"), ("g", "yes")]
    tsv, named, comma, lines = (tmp_path / name for name in ("a.tsv", "b.tsv", "c.csv", "d.jsonl"))
    tsv.write_text("".join(f"{item}\t{label}\n" for item, label in rows))
    named.write_bytes(
        b"\xef\xbb\xbfn\tlabel\tsentence\r\n"
        + b"".join(f"1\t{b}\t{a}\r\n".encode() for a, b in rows)
    )
    with comma.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    lines.write_text(
        "\n".join(json.dumps({"text": a.split(" "), "label": b}) for a, b in rows) + "\n\n"
    )
    sides = {name: str(tmp_path / name) for name in ("text", "label")}
    for side, column in zip(sides, zip(*rows, strict=True), strict=True):
        (tmp_path / side).write_text("\n".join(column))
    result = [read_examples(str(path), Classify()) for path in (tsv, comma, lines)]
    result += [
        read_examples(sides, Classify()),
        read_examples(str(named), Classify(), columns={"text": "sentence"}),
    ]
    for table in result:
        assert [(item.first, table.labels[int(item.label)]) for item in table] == rows
        assert table.labels == ("no", "yes")
        assert table.fingerprint == result[0].fingerprint
    assert [item.line for item in result[4]] == [2, 3, 4]
    second = read_examples(str(tsv), Classify(), labels=("yes", "no"), before="is: ")
    assert [item.label for item in second] == [0, 1, 0]
    assert first(second).first == 'is: a "b c'
    assert second.fingerprint != result[0].fingerprint


def test_pairs_numbers_and_lists(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\t-2.5\nc\td\t1e1\n")
    scores = read_examples(str(path), Classify(regression=True))
    assert [(score.first, score.second, score.label) for score in scores] == [
        ("a", "b", -2.5),
        ("c", "d", 10.0),
    ]
    assert scores.labels is None
    assert (
        first(read_examples(str(path), Contrast(), columns={"text": "1", "second": "0"})).second
        == "a"
    )
    (tmp_path / "b.jsonl").write_text(
        '{"text": "x", "second": "y", "label": 10}\n{"text": "", "second": "", "label": 9}\n'
    )
    pairs = read_examples(str(tmp_path / "b.jsonl"), Classify())
    assert first(pairs) == Example("x", "y", 1, 1) and pairs.labels == ("9", "10"), (
        "numbers in their own order"
    )
    assert len(pairs) == 1
    assert "left out for an empty text: 1" in pairs.notes[0]
    (tmp_path / "c.jsonl").write_text('{"source": ["a.", "b."], "target": [["c.", "d."], "e."]}')
    assert first(read_examples(str(tmp_path / "c.jsonl"), Seq2Seq())).references[-1] == "e."
    many = [{"text": f"{n}", "label": n % 3} for n in range(40)]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, many)))
    data = run_config.Examples(train=str(tmp_path / "d.jsonl"), valid=0.25)
    train, valid = training_and_validation(data, Classify())
    assert (len(train), len(valid)) == (30, 10)
    assert train.labels == valid.labels == ("0", "1", "2")
    assert sorted(int(item.first) for item in (*train, *valid)) == list(range(40))
    assert training_and_validation(data, Classify()) == (train, valid), "the same ones each time"
    second = replace(train, examples=(replace(train.examples[0], label=9), *train.examples[1:]))
    assert second.fingerprint != train.fingerprint
    assert [item.line for item in valid] == sorted(item.line for item in valid)
    full = replace(data, valid=str(path), labels=("0", "1", "2"), columns={"text": "text"})
    with mistake(
        r'a\.tsv has no column "text" for the text \(line 1 '
        r'holds "a", "b", "-2.5"\)'
    ):
        training_and_validation(full, Classify())
    with mistake(
        r"for train --data\.columns\.text NAME, for other commands --columns "
        r"text=NAME"
    ):
        training_and_validation(full, Classify())


BAD = {
    "a.tsv": (
        b"a\tyes\nb\n",
        Classify(),
        r"line 2 has 1 columns and number 1 \(from 0\) is needed",
    ),
    "b.tsv": (b"a\tb\tc\td\n", Classify(), 'no column "text" for the text'),
    "c.tsv": (b"text\tkind\na\tb\n", Classify(), 'no column "label" for the label'),
    "d.tsv": (b"a\tyes\n\nb \xff\tno\n", Classify(), "line 3 is not UTF-8"),
    "e.tsv": (b"a\t\n", Classify(), "line 1 has no label"),
    "f.tsv": (b"a\tmuch\n", Classify(regression=True), '"much", which is not a number'),
    "g.tsv": (b"a\tnan\n", Classify(regression=True), "is not a number"),
    "h.tsv": (b"\n \n", Classify(), "no column"),
    "i.tsv": (b" \tyes\n", Classify(), "holds no examples"),
    "j.bin": (b"a\tb\0\n", Classify(), "binary file"),
    "k.txt": (
        b"some text\n",
        Seq2Seq(),
        r"no columns to find source and target in.*source = "
        r"FILE, target = FILE",
    ),
    "l.txt": (b"IN: a OUT: B\nIN: a\n", Seq2Seq(), "line 2 is not of the form"),
    "m.csv": (b'a,"b\n', Classify(), "not valid CSV"),
    "mm.csv": (b"text,label\nWell, no,b\n", Classify(), "line 2 has 3 columns and the header 2"),
    "mn.csv": (b"text,text,label\na,b,c\n", Classify(), 'several columns "text"; rename one'),
    "n.jsonl": (b'{"source": "a"}\n', Seq2Seq(), 'no column "target" for the target'),
    "o.jsonl": (b"{'a': 1}\n", Seq2Seq(), "line 1 is not valid JSON"),
    "p.jsonl": (b'\n["a"]\n', Seq2Seq(), "line 2 is not a JSON object"),
    "q.jsonl": (
        b'{"source": 1, "target": "a"}\n',
        Seq2Seq(),
        "line 1 holds 1 where a text belongs",
    ),
    "r.tsv.gz": (b"no gzip", Classify(), "cannot be read"),
    "s.tsv": (b"a\tb\n", Causal(), "learns from running text"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_sentence(name, tmp_path):
    content, objective, sentence = BAD[name]
    (tmp_path / name).write_bytes(content)
    with mistake(sentence):
        read_examples(str(tmp_path / name), objective)


def test_what_does_not_fit_together_is_one_sentence(tmp_path):
    (tmp_path / "en").write_text("a\nb\nc\n")
    (tmp_path / "de").write_text("a\nb\n")
    sides = {"source": str(tmp_path / "en"), "target": str(tmp_path / "de")}
    with mistake(
        r"en has 3 lines, .*de has 2 lines; parallel files need "
        r"the same number"
    ):
        read_examples(sides, Seq2Seq())
    with mistake("source and target, and there is one for source"):
        read_examples({"source": sides["source"]}, Seq2Seq())
    with mistake(r'no part "sorce".*Did you mean "source"'):
        read_examples({"sorce": "a", "target": "b"}, Seq2Seq())
    with mistake(r'no part "text" in the examples of Seq2Seq'):  # it has one for another objective
        read_examples({**sides, "text": sides["source"]}, Seq2Seq())
    with mistake(r'is not a file.*Did you mean "en"'):
        read_examples({"source": str(tmp_path / "enn"), "target": sides["target"]}, Seq2Seq())
    (tmp_path / "a.tsv").write_text("a\tyes\nb\tnon\n")
    with mistake(r'a.tsv line 2 has the label "non".*Did you mean "no"'):
        read_examples(str(tmp_path / "a.tsv"), Classify(), labels=("yes", "no"))
    for objective in (Classify(regression=True), Chat()):
        with mistake("chooses from no labels with these settings; leave data.labels out"):
            read_examples(str(tmp_path / "a.tsv"), objective, labels=("yes", "no"))
    with mistake(r"too few to hold 0.9 of them out"):
        read_examples(str(tmp_path / "a.tsv"), Classify()).split(0.9)


# ------------------------------------------------------------------------------------- the ids


def sentences(count, longest=9, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, longest))) for _ in range(count)]


def table(kind, count=60):
    pairs = list(zip(sentences(count), sentences(count, 7, 1), strict=True))
    if kind == "classify":
        result = tuple(Example(a, b if n % 2 else None, n % 3, n) for n, (a, b) in enumerate(pairs))
        return ExampleTable(kind, result, ("0", "1", "2"))
    labels = [n / 7 if kind == "regression" else None for n in range(count)]
    return ExampleTable(
        kind, tuple(Example(a, b, labels[n], n, (b,)) for n, (a, b) in enumerate(pairs))
    )


TOKENIZERS = {
    "words": train_tokenizer("words", WORDS),
    "frame": train_tokenizer("words", WORDS, specials=FRAME),
}
VECTORS = replace(tiny.bert(), pool=c.Pool("mean", normalize=True))
KINDS = {
    "vaswani": ("seq2seq", "words", Seq2Seq(), tiny.vaswani()),
    "t5": ("seq2seq", "words", Seq2Seq(), tiny.t5()),
    "two first": ("seq2seq", "words", Seq2Seq(), replace(tiny.t5(), start=(2, 5))),
    "llama": ("seq2seq", "words", Seq2Seq(), tiny.DECODERS["llama"]),
    "prefix": ("seq2seq", "words", Seq2Seq(), tiny.DECODERS["gpt2"]),
    "bert": ("classify", "frame", Classify(), tiny.bert()),
    "last": ("classify", "words", Classify(), replace(tiny.gpt2(), pool=c.Pool("last", labels=3))),
    "number": (
        "regression",
        "frame",
        Classify(regression=True),
        replace(tiny.bert(), pool=c.Pool(labels=1)),
    ),
    "contrast": ("contrast", "frame", Contrast(), VECTORS),
}


def encoded(name, count=60, context=CONTEXT):
    kind, tokenizer, objective, model = KINDS[name]
    return encode(table(kind, count), TOKENIZERS[tokenizer], objective, model, context)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_packed_equals_apart(name):
    _, _, objective, config = KINDS[name]
    model = tiny.model(config)
    batch = next(ExampleBatches(encoded(name), 4, CONTEXT))
    pieces = documents(batch)
    assert len(pieces) > 6
    assert batch.document_ids.max() >= 1
    if name == "contrast":
        fields = {"document_ids": batch.document_ids, "segments": batch.segments}
        together = model(batch.tokens, pos=batch.pos, **fields).pooled
        alone = torch.cat([model(piece.tokens, segments=piece.segments).pooled for piece in pieces])
        assert_close(together, alone, rtol=0, atol=1e-5)
        return
    loss = objective.loss(model, batch)
    losses = [objective.loss(model, replace(piece, pos=None)) for piece in pieces]
    assert loss.count == sum(piece.count for piece in losses) > 6
    assert_close(loss.sum, sum(piece.sum for piece in losses), rtol=1e-5, atol=1e-4)


def test_what_each_decoder_is_asked():
    closing, opening = (
        train_tokenizer("byte", specials=names) for names in (("<|endoftext|>",), ("<s>", "</s>"))
    )
    # what closes a document is not a beginning of a source
    assert question(closing, [5, 6]) == [5, 6, closing.eos]
    assert question(opening, [5, 6]) == [opening.bos, 5, 6, opening.bos]


def test_what_each_shape_reads():
    table = ExampleTable("one", (Example("w0 w1", "w2 w3 w4", None, 1),))
    labelled = ExampleTable("both", (replace(table.examples[0], label=2),), ("a", "b", "c"))
    words = TOKENIZERS["words"]
    frame = TOKENIZERS["frame"]
    a, b, x, y, z = (words.id(f"w{n}") for n in range(5))
    start = words.bos
    end = words.eos

    def row_of(table, tokenizer, objective, model, context):
        """The one row of a table; None where a batch has no such part."""
        batch = next(each_once(encode(table, tokenizer, objective, model, context), 1, context))
        return {
            name: None if value is None else value.tolist()[0]
            for name, value in vars(batch).items()
        }

    batch = row_of(table, words, Seq2Seq(), tiny.t5(), 6)
    assert batch["source"] == [a, b, end, 0, 0, 0]
    assert batch["source_pos"] == [0, 1, 2, -1, -1, -1]
    assert batch["tokens"] == [start, x, y, z, 0, 0]
    assert batch["targets"] == [x, y, z, end, -1, -1]
    assert batch["document_ids"] == [0, 0, 0, 0, -1, -1]
    assert batch["source_document_ids"] == [0, 0, 0, -1, -1, -1]
    batch = row_of(table, words, Seq2Seq(), replace(tiny.t5(), start=(end, start)), 6)
    assert batch["tokens"] == [end, start, x, y, z, 0]
    assert batch["targets"] == [-1, x, y, z, end, -1], "what is forced is not learned"
    batch = row_of(table, words, Seq2Seq(), tiny.gpt2(), 8)
    assert batch["tokens"] == [start, a, b, start, x, y, z, 0]
    assert batch["source"] is None
    assert batch["targets"] == [-1, -1, -1, x, y, z, end, -1]
    assert batch["tokens"][:4] == question(words, [a, b]), "what generation gives it to read"
    batch = row_of(table, frame, Contrast(), VECTORS, 12)
    assert batch["document_ids"] == [0] * 4 + [1] * 5 + [-1] * 3
    assert batch["pos"] == [0, 1, 2, 3, 0, 1, 2, 3, 4, -1, -1, -1]
    batch = row_of(labelled, frame, Classify(), tiny.bert(), 8)
    assert batch["tokens"] == frame.encode_pair("w0 w1", "w2 w3 w4")[0]
    assert batch["segments"] == [0] * 4 + [1] * 4
    assert batch["labels"] == 2
    batch = row_of(labelled, words, Classify(), tiny.gpt2(), 8)
    assert batch["tokens"] == [start, a, b, end, x, y, z, end]
    assert batch["segments"] is None


def test_what_is_too_long_is_cut_or_refused():
    table = ExampleTable("long.tsv", (Example("w0 w1 w2 w3 w4 w5", "w6 w7", 0, 3),), ("a",))
    words, frame = TOKENIZERS.values()

    def tokens(cut, objective, model, context, tokenizer=words):
        side = encode(table, tokenizer, objective, model, context, cut).sides[-1]
        return tokenizer.decode(next(iter(side.columns.values())).tolist())

    with mistake(
        r"line 3 has a source of 7 tokens, and a row holds "
        r'5.*truncate = "end"'
    ):
        tokens("no", Seq2Seq(), tiny.t5(), 5)
    assert tokens("end", Seq2Seq(), tiny.t5(), 5) == "w0 w1 w2 w3"
    assert tokens("start", Seq2Seq(), tiny.t5(), 5) == "w2 w3 w4 w5"
    assert tokens("end", Seq2Seq(), tiny.gpt2(), 7) == "w0 w1 w2 w6 w7"
    assert tokens("start", Seq2Seq(), tiny.gpt2(), 7) == "w3 w4 w5 w6 w7"
    assert tokens("start", Classify(), tiny.bert(), 6, frame) == "w4 w5 w7"
    assert tokens("end", Contrast(), VECTORS, 8, frame) == "w0 w1 w6 w7"
    with mistake("a row holds 3"):
        tokens("end", Contrast(), VECTORS, 3, frame)
    for objective, model in (
        (Seq2Seq(), tiny.bert()),
        (Classify(), tiny.t5()),
        (Contrast(), tiny.t5()),
    ):
        with mistake("does not fit"):
            tokens("no", objective, model, 20)
    bare = train_tokenizer("char", ["w0123456789 "], specials=())
    for model in (tiny.t5(), tiny.gpt2()):
        with mistake("no end-of-text token"):
            tokens("no", Seq2Seq(), model, 20, bare)
    with mistake(r"no token to put between two texts|no token to end a text"):
        tokens("no", Classify(), tiny.gpt2(), 60, bare)
    with mistake("no token to put between two texts"):
        tokens("no", Classify(), tiny.bert(), 60, bare)
    table = ExampleTable("one.tsv", (Example("w0", None, 0, 3), Example("", None, 0, 4)), ("a",))
    with mistake(r"one.tsv line 4 has a text without a token"):
        tokens("no", Classify(), tiny.bert(), 60, bare)


# ---------------------------------------------------------------------------------- the batches


def countable(batch):
    """Countable form of each example."""
    return [
        tuple(
            document.tokens[0].tolist()
            + ([] if document.source is None else document.source[0].tolist())
        )
        for document in documents(batch)
    ]


@pytest.mark.parametrize("name", ["vaswani", "bert"])
def test_every_example_once_an_epoch(name):
    result = encoded(name, 300)
    batches = ExampleBatches(result, 1, CONTEXT, seed=3)
    everything = sorted(
        item for batch in each_once(result, 7, CONTEXT) for item in countable(batch)
    )
    assert len(everything) == 300
    orders = []
    for epoch in range(2):
        calls = []
        while batches.epoch < epoch + 1:
            calls += countable(next(batches))
        assert sorted(calls) == everything
        orders.append(calls)
    assert orders[0] != orders[1], "another order each epoch"
    in_file = [item for batch in each_once(result, 4, CONTEXT) for item in countable(batch)]
    for row, item in zip(in_file, documents_of(result), strict=True):
        assert row == item, "validation keeps the order"


def documents_of(result):
    """Each example's ids on both sides, in the order of the table."""
    sides = [next(iter(side.columns.values())) for side in result.sides]
    return [
        tuple(
            id
            for column, side in zip(sides, result.sides, strict=True)
            for id in column[side.starts[n] : side.starts[n + 1]]
        )
        for n in range(len(result))
    ]


def test_resumed_anywhere_the_batches_are_the_same():
    result = encoded("vaswani", 100)
    batches = ExampleBatches(result, 3, CONTEXT, seed=1)
    states = []
    expected = []
    for _ in range(15):
        states.append(json.loads(json.dumps(batches.state())))
        expected.append(next(batches))
    assert batches.epoch > 1, "across the border of an epoch"
    for state, batch in zip(states, expected, strict=True):
        again = ExampleBatches(result, 3, CONTEXT, seed=1)
        again.restore(state)
        assert again.state() == state
        actual_result = next(again)
        assert all(
            torch.equal(piece, getattr(actual_result, key))
            for key, piece in vars(batch).items()
            if piece is not None
        )
    for second in (
        ExampleBatches(result, 3, CONTEXT, seed=2),
        ExampleBatches(result, 3, CONTEXT + 1, seed=1),
        ExampleBatches(encoded("vaswani", 99), 3, CONTEXT, seed=1),
    ):
        with mistake(r"made with another (seed|context|content)"):
            second.restore(states[3])
    with mistake("batch is 0"):
        ExampleBatches(result, 0, CONTEXT)


def test_rows_hold_what_fits_and_little_air():
    draw = np.random.default_rng(0)
    for count, sides, room in ((1, 1, 9), (500, 2, 60), (20_000, 2, 128), (300, 1, 9)):
        sizes = draw.integers(1, min(room, 30) + 1, (count, sides))
        for rows in (pack(sizes, room, draw.permutation(count)), list(in_order(sizes, room))):
            assert sorted(itertools.chain.from_iterable(rows)) == list(range(count))
            assert all((sizes[row].sum(0) <= room).all() and len(row) for row in rows)
        packed = pack(sizes, room, draw.permutation(count))
        if count == 20_000:
            assert sizes.sum() / (len(packed) * room * sides) > 0.95
    assert np.concatenate(list(in_order(sizes, room))).tolist() == list(range(len(sizes)))


def test_a_side_is_no_wider_than_its_rows():
    long = tuple(Example(" ".join(WORDS), "w1 w2", None, n) for n in range(4))
    ids = encode(ExampleTable("long", long), TOKENIZERS["words"], Seq2Seq(), tiny.t5(), 40)
    batch = next(ExampleBatches(ids, 4, 40))
    assert batch.source.shape == (4, 32)
    assert (
        batch.tokens.shape
        == batch.document_ids.shape
        == (
            4,
            8,
        )
    )


def test_multi30k_fills_its_rows(shared_data):
    folder = shared_data / "multi30k-bpe-ende"
    sides = {
        piece: str(folder / f"valid.{end}") for piece, end in (("source", "en"), ("target", "de"))
    }
    result = read_examples(sides, Seq2Seq())
    tokenizer = train_tokenizer("words", result.texts())
    ids = encode(result, tokenizer, Seq2Seq(), tiny.t5(), 128)
    assert ExampleBatches(ids, 8, 128).fill > 0.94  # of its 29,000 training pairs 98 %
    pair = documents(next(each_once(ids, 1, 128)))[0]
    assert tokenizer.decode(pair.source[0].tolist()) == first(result).first
    assert tokenizer.decode(pair.targets[0].tolist()) == first(result).second


def test_rows_of_a_batch_take_their_labels_along():
    batch = next(ExampleBatches(encoded("bert"), 5, CONTEXT))
    cuts = [0, 2, 3, 5]
    pieces = [batch.rows(low, high) for low, high in itertools.pairwise(cuts)]
    for name, value in vars(batch).items():
        if value is not None:
            assert torch.equal(torch.cat([getattr(piece, name) for piece in pieces]), value), name
    assert [len(piece.labels) for piece in pieces] == [
        int((piece.pos == 0).sum()) for piece in pieces
    ]
    plain = Batch(torch.zeros(4, 3).long(), torch.zeros(4, 3).long(), labels=torch.arange(4))
    assert plain.rows(1, 3).labels.tolist() == [1, 2]
    moved = batch.to("meta")
    assert moved.host is batch  # what the host counts from
    values = [value for name, value in vars(moved).items() if name != "host"]
    assert all(value is None or value.device.type == "meta" for value in values)


# ------------------------------------------------------------------------------------- words


def test_a_word_tokenizer_opens_in_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer("words", ["a b@@ b\u00a0c a", "</s> a d"], size=7)
    assert list(tokenizer.vocabulary()) == ["a", "b", "b@@", "<pad>", "<unk>", "<s>", "</s>"], (
        "most frequent first"
    )
    ids = tokenizer.encode(" b@@  a <s> zzz\n")
    assert [tokenizer.token(id) for id in ids] == ["b@@", "a", "<unk>", "<unk>"]
    assert tokenizer.decode([tokenizer.bos, *ids[:2], tokenizer.eos, tokenizer.pad]) == "b@@ a"
    assert tokenizer.encode("a", bos=True, eos=True) == [tokenizer.bos, 0, tokenizer.eos]
    tokenizer.save(tmp_path)
    again = open_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.pad == tokenizer.pad
    reference = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert reference("b@@ a zzz", add_special_tokens=False)["input_ids"] == tokenizer.encode(
        "b@@ a zzz"
    )
    assert reference.decode(ids[:2]) == "b@@ a"
    assert reference.pad_token_id == tokenizer.pad
    with mistake("larger size"):
        train_tokenizer("words", ["a"], size=4)
    with mistake("does not know"):
        train_tokenizer("words", ["a"], specials=()).encode("b")
