"""Batches lose and repeat no token, keep documents apart, and are a function of the seed alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from glassformer.core.tokenizer import Tokenizer
from glassformer.core.training.batches import Batches, CorpusRows
from glassformer.core.training.loss import split
from glassformer.core.training.shards import Shards
from glassformer.formats.data.corpus import Source
from glassformer.formats.data.splits import split_corpus
from glassformer.formats.data.tokenising import TokenizedCorpus
from glassformer.runs.prepared import Prepared
from glassformer.runs.validation import every_token_once
from glassformer.scale.prefetch import next_micro_batches
from glassformer.tasks.objectives import Prefix
from mistakes import mistake

EOS = 0


def corpus(
    lengths,
    eos=EOS,
    bos=None,
    name="tiny",
    first=1,
):
    """Documents of ``lengths`` tokens that count up from ``first``, each closed by ``eos`` (counted
    in its length)."""
    starts = np.cumsum([0, *lengths])
    tokens = np.arange(first, first + starts[-1]).astype(np.uint32)
    if eos is not None:
        tokens[starts[1:] - 1] = eos
    tokenizer = cast(Tokenizer, SimpleNamespace(eos=eos, bos=bos, size=1 << 30))
    marks = np.stack([starts, starts], axis=1)
    source = Source(name, Path(name), ())
    return Shards(tokens, 0, TokenizedCorpus(source, tokenizer, name, marks, starts))


def one_epoch(batches):
    """All batches of the epoch that begins now; the batch size must be 1."""
    epoch = int(batches.epoch)
    out = []
    while int(batches.epoch) == epoch:
        out.append(next(batches))
    return out


def counted(batch):
    return sorted(batch.targets[batch.targets != -1].tolist())


def equal(a, b):
    names = ("tokens", "targets", "pos", "document_ids")
    pairs = [(getattr(a, name), getattr(b, name)) for name in names]
    return all(x is y if x is None or y is None else torch.equal(x, y) for x, y in pairs)


# ------------------------------------------------------------------------------------ no token lost


@pytest.mark.parametrize("context", [1, 4, 7, 16, 99])
@pytest.mark.parametrize("length", [100, 101, 337])
def test_each_epoch_every_token_is_a_target_once(length, context):
    batches = Batches(corpus([length], eos=None), batch=1, context=context, seed=3)
    orders = set()
    for _ in range(5):
        rows = one_epoch(batches)
        targets = sorted(target for row in rows for target in counted(row))
        assert targets == list(range(2, length + 1))
        assert len(rows) <= (length - 1) / context + 2  # no waste: at most the two ends are short
        orders.add(tuple(row.tokens[0, 0].item() for row in rows))
        for row in rows:
            observed = row.targets != -1
            assert torch.equal(row.targets[observed], (row.tokens + 1)[observed])
            assert row.tokens.dtype == row.targets.dtype == torch.int64
            assert row.tokens.is_contiguous()
            assert row.targets.is_contiguous()
    assert len(rows) <= 8 or len(orders) == 5


@pytest.mark.parametrize(
    "eos, bos, targets, pos, document_ids",
    [
        (  # 1 2 . | 4 5 6 . | 8 9 . : a closing token is the last target and opens the next document
            EOS,
            None,
            [2, EOS, 4, 5, 6, EOS, 8, 9, EOS],
            [0, 1, 0, 1, 2, 3, 0, 1, 2],
            [0, 0, 1, 1, 1, 1, 2, 2, 2],
        ),
        # without a shared border no document predicts the next
        (
            None,
            None,
            [2, 3, -1, 5, 6, 7, -1, 9, 10],
            [0, 1, 2, 0, 1, 2, 3, 0, 1],
            [0, 0, 0, 1, 1, 1, 1, 2, 2],
        ),
        (
            EOS,
            5,
            [2, EOS, -1, 5, 6, EOS, -1, 9, EOS],
            [0, 1, 2, 0, 1, 2, 3, 0, 1],
            [0, 0, 0, 1, 1, 1, 1, 2, 2],
        ),
    ],
)
def test_documents_are_kept_apart(eos, bos, targets, pos, document_ids):
    (batch,) = every_token_once(corpus([3, 4, 3], eos=eos, bos=bos), batch=4, context=9)
    rows = (batch.targets, batch.pos, batch.document_ids)
    assert [row.tolist() for row in rows] == [[targets], [pos], [document_ids]]
    assert batch.tokens[0].tolist() == [1, *targets[:-1]] or -1 in targets


def test_epochs_run_through_batches():
    """A batch that spans two epochs ends the one and begins the other."""
    item = Batches(corpus([500], eos=None), batch=1, context=8, seed=5)
    many = Batches(corpus([500], eos=None), batch=7, context=8, seed=5)
    rows = torch.cat([next(item).targets for _ in range(7 * 30)])
    assert torch.equal(rows, torch.cat([next(many).targets for _ in range(30)]))
    assert item.epoch == many.epoch > 3


# -------------------------------------------------------------------------------- documents kept
# apart


def by_hand(shards, tokens, first):
    """Positions and documents of a row that begins at token ``first``, one token at a time."""
    opens = {int(start) - shards.shared_border for start in shards.starts[1:-1]}
    pos = []
    document_ids = []
    for at in range(first, first + len(tokens)):
        new = at in opens and at > first
        pos.append(0 if new or not pos else pos[-1] + 1)
        document_ids.append((document_ids[-1] if document_ids else 0) + new)
    return pos, document_ids


@pytest.mark.parametrize("eos", [EOS, None])
def test_positions_restart_and_documents_are_numbered(eos):
    shards = corpus(np.random.default_rng(0).integers(2, 30, 200).tolist(), eos=eos)
    stream = shards.tokens.astype(np.int64)
    group = 0
    for batch in every_token_once(shards, batch=5, context=24):
        for row in range(len(batch.tokens)):
            tokens = batch.tokens[row].tolist()
            windows = np.lib.stride_tricks.sliding_window_view(stream, len(tokens))
            (first,) = np.flatnonzero((windows == tokens).all(axis=1))[:1]
            pos, document_ids = by_hand(shards, tokens, int(first))
            if batch.pos is None or batch.document_ids is None:
                assert document_ids == [0] * len(document_ids)
                continue
            group += 1
            assert batch.pos[row].tolist() == pos
            assert batch.document_ids[row].tolist() == document_ids
    assert group > 50


def test_rows_inside_one_document_need_no_positions():
    shards = corpus([500, 503])  # the border is in the middle, where no two rows overlap
    batches = Batches(shards, batch=1, context=10)
    kinds = [(row.pos is None, row.document_ids is None) for row in one_epoch(batches)]
    assert kinds.count((False, False)) == 1
    assert kinds.count((True, True)) == len(kinds) - 1


def test_many_documents_lose_nothing_but_first_tokens():
    shards = corpus(np.random.default_rng(1).integers(1, 9, 400).tolist(), eos=None)
    first = set((shards.starts[:-1] + 1).tolist())
    everything = [token for token in range(1, len(shards) + 1) if token not in first]
    batches = Batches(shards, batch=1, context=13)
    for _ in range(3):
        assert sorted(target for row in one_epoch(batches) for target in counted(row)) == everything


# ----------------------------------------------------------------------------------------
# evaluation


@pytest.mark.parametrize("stride", [None, 1, 5, 16])
@pytest.mark.parametrize("length", [2, 9, 16, 17, 200])
def test_evaluation_counts_each_token_once_in_order(length, stride):
    targets = []
    for batch in every_token_once(corpus([length], eos=None), batch=3, context=16, stride=stride):
        for row in batch.targets:
            back = int((row == -1).int().argmin())
            row_targets = row[row != -1].tolist()
            targets += row_targets
            assert back >= min(16 - (stride or 16), row_targets[0] - 2)
    assert targets == list(range(2, length + 1))


def test_evaluation_of_a_split_counts_its_own_tokens():
    _, valid = split_corpus(corpus([60] * 30), 0.1)
    total = sum(int((batch.targets != -1).sum()) for batch in every_token_once(valid, 4, 32))
    assert total == len(valid) - 1 == 179


# ---------------------------------------------------------------------------------------------
# order


def test_rows_are_mixed_and_the_first_of_them_too():
    """A row's place is independent of its neighbour's."""
    batches = Batches(corpus([160_000], eos=None), batch=1, context=16)
    out = np.array([int(next(batches).tokens[0, 0]) for _ in range(9_000)]) / 16
    size = 10_000
    assert abs(np.corrcoef(out, np.arange(len(out)))[0, 1]) < 0.04
    assert abs(np.corrcoef(out[1:], out[:-1])[0, 1]) < 0.04
    assert abs(np.abs(np.diff(out)).mean() / size - 1 / 3) < 0.01


def test_order_is_a_function_of_the_seed():
    def take(seed):
        np.random.seed(seed + 9)
        torch.manual_seed(seed + 99)
        batches = Batches(corpus([5000]), batch=4, context=16, seed=seed)
        return torch.cat([next(batches).tokens for _ in range(20)])

    first = take(1)
    assert torch.equal(first, take(1))
    assert not torch.equal(first, take(2))


def test_the_order_does_not_change_with_versions():
    """A resumed run on a newer library must see the same rows: these numbers were drawn once and
    stay."""
    batches = Batches(corpus([5000], eos=None), batch=6, context=16, seed=0)
    assert next(batches).tokens[:, 0].tolist() == [33, 545, 2513, 3201, 4897, 3409]


# --------------------------------------------------------------------------------------------
# resume


@pytest.mark.parametrize("after", [0, 1, 7, 33, 120])
def test_resume_goes_on_exactly(after):
    def fresh():
        lengths = np.random.default_rng(2).integers(1, 90, 40).tolist()
        mixture = [(corpus(lengths), 3.0), (corpus([700], name="other", first=5000), 1.0)]
        return Batches(mixture, batch=3, context=16, seed=11)

    straight = fresh()
    for _ in range(after):
        next(straight)
    state = json.loads(json.dumps(straight.state()))
    resumed = fresh()
    resumed.restore(state)
    assert resumed.epoch == straight.epoch
    for _ in range(100):
        assert equal(next(resumed), next(straight))
    assert resumed.state() == straight.state()


@pytest.mark.parametrize("changed", ["seed", "context", "content", "weights"])
def test_resume_with_other_data_is_refused(changed):
    def batches(name="two", weight=1.0, batch=2, context=16, seed=1):
        mixture = [(corpus([400]), 1.0), (corpus([500], name=name), weight)]
        return Batches(mixture, batch, context, seed=seed)

    changes = {"seed": 2, "context": 17, "content": "three", "weights": 2.0}
    names = {"content": "name", "weights": "weight"}
    state = batches().state()
    with mistake(f"another {changed}"):
        batches(**{names.get(changed, changed): changes[changed]}).restore(state)
    batches(batch=4).restore(state)  # another batch size is no other data


def test_a_checkpoint_of_another_order_is_refused():
    """Other rows would repeat some of an epoch and leave some out."""
    batches = Batches(corpus([400]), 2, 16, seed=1)
    state = {name: value for name, value in batches.state().items() if name != "order"}
    with mistake(
        r"another version of Glassformer.*continue it with that "
        r"version"
    ):
        batches.restore(state)


# --------------------------------------------------------------------------------------------
# pieces


class Watched:
    """Windows over a corpus's tokens that note which of them are read."""

    def __init__(self, windows):
        self.windows, self.read = windows, list[int]()

    def __getitem__(self, first):
        self.read += first.tolist()
        return cast(np.ndarray, self.windows[first])


@pytest.mark.parametrize("eos", [EOS, None])
@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_piece_read_alone_is_that_piece_of_the_batch(count, long, eos):
    """Bit for bit, also whether it carries positions, which another piece may be the reason for;
    through epochs."""

    def fresh():
        lengths = [900, 40, 900] if long else [3, 7, 12, 2, 30] * 12
        mixture = [(corpus(lengths, eos), 2.0), (corpus([300], eos, name="other", first=5000), 1.0)]
        return Batches(mixture, batch=5, context=16, seed=2)

    full = fresh()
    packed = 0
    ranks = [fresh() for _ in range(count)]
    for _ in range(120):
        expected = split(next(full), count)
        for rank, batches in enumerate(ranks):
            (piece,) = next_micro_batches(batches, count, [rank])
            assert equal(piece, expected[rank])
            packed += piece.document_ids is not None and int(piece.document_ids.max()) == 0
        assert all(batches.state() == full.state() for batches in ranks)
    # the case that is hard occurs: another piece is packed
    assert packed > 0 or not long or count == 1


@pytest.mark.parametrize("eos", [EOS, None])
def test_rows_are_packed_where_a_document_opens_in_them(eos):
    """Told from the borders alone, at every place a row can have."""
    rows = CorpusRows(corpus([20, 9, 30], eos), 8)
    for high in range(8, rows.last + 1):
        bounds = np.array([high - 8]), np.array([high])
        assert rows.packed(*bounds) == rows.load(*bounds)[2].any(), high


def test_a_rank_reads_only_its_rows():
    batches, full = (
        Batches(corpus([5000], eos=None), batch=12, context=16, seed=2) for _ in range(2)
    )
    rows = batches._cursors[0].rows
    watched = rows.windows = Watched(rows.windows)
    pieces = next_micro_batches(batches, 4, [1, 3])
    assert [len(piece.tokens) for piece in pieces] == [3, 3]
    expected = next(full).tokens[[3, 4, 5, 9, 10, 11], 0] - 1
    assert sorted(watched.read) == sorted([*expected.tolist(), *(expected + 1).tolist()])


def test_pieces_of_what_is_prepared_are_cut_from_the_whole():
    def fresh():
        return Prepared(Batches(corpus([7, 30] * 30), 6, 16, seed=2), Prefix(), None, 5)

    item = fresh()
    two = fresh()
    for _ in range(5):
        expected = split(next(item), 3)
        for piece, number in zip(next_micro_batches(two, 3, [2, 0]), (2, 0), strict=True):
            assert equal(piece, expected[number])
            assert torch.equal(piece.prefix, expected[number].prefix)
    assert item.state() == two.state()


# --------------------------------------------------------------------------------------------
# mixing


def test_weights_hold_to_within_a_row():
    weights = [0.5, 0.3, 0.2]
    pieces = [
        corpus([900 + 100 * n], eos=None, name=str(n), first=1 + 10_000 * n) for n in range(3)
    ]
    batches = Batches(list(zip(pieces, weights, strict=True)), batch=7, context=16)
    drawn = np.zeros(3)
    for step in range(1, 200):
        origin = next(batches).tokens[:, 0] // 10_000
        drawn += np.bincount(origin.numpy(), minlength=3)
        assert np.abs(drawn - np.array(weights) * 7 * step).max() < 1.0
    assert batches.epoch > 9  # the smallest corpus for its weight has been repeated most


# -------------------------------------------------------------------------------------------
# mistakes


@pytest.mark.parametrize(
    "message, make",
    [
        ("16 tokens, too few for one context of 16", lambda: Batches(corpus([16]), 2, 16)),
        *(
            ("weight of tiny", lambda weight=weight: Batches([(corpus([100]), weight)], 2, 16))
            for weight in (0.0, -1.0, float("nan"))
        ),
        ("no corpus", lambda: Batches([], 2, 16)),
        ("batch is 0", lambda: Batches(corpus([100]), 0, 16)),
        ("fewer than two tokens", lambda: next(every_token_once(corpus([1]), 2, 16))),
    ],
)
def test_mistakes_are_told(message, make):
    next(Batches(corpus([17]), 2, 16))
    with mistake(message):
        make()


def test_a_batch_moves():
    batch = next(Batches(corpus([5] * 20), 2, 16))
    assert equal(batch.to("cpu"), batch)
    assert batch.to("meta").tokens.device.type == "meta"
