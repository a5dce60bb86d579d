"""A log that grows: nothing twice, nothing lost, a spike always seen."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np

from glassformer.serve.page.tail import LogTail


def line(step: int, **more: float) -> str:
    """A line of a log."""
    return json.dumps({"step": step, "loss": 5.0 / step, **more}) + "\n"


def write(path: Path, first: int, last: int, mode: str = "a", **more: float) -> None:
    """Lines of steps, as a training appends them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as opened:
        opened.writelines(line(step, **more) for step in range(first, last + 1))


def test_what_is_appended_is_read_once(tmp_path):
    path = tmp_path / "log.jsonl"
    tail = LogTail(path)
    assert tail.series(0, 100)["cursor"] == 0
    write(path, 1, 3)
    with path.open("a") as opened:
        opened.write(line(4)[:9])  # a line that is half written
    first = tail.series(0, 100)
    assert first["first"] == [1, 2, 3] and first["columns"]["loss"]["mean"] == [5.0, 2.5, 5 / 3]
    with path.open("a") as opened:
        opened.write(line(4)[9:] + "not json\n[1]\n")
    second = tail.series(first["cursor"], 100)
    assert second["first"] == [4] and not second["reset"] and second["cursor"] == 4


def test_a_column_that_comes_later_stands_at_its_steps(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, 1, 2)
    write(path, 3, 3, valid_loss=1.5)
    write(path, 4, 4, valid_loss=1.0)
    series = LogTail(path).series(0, 100)
    assert series["columns"]["valid_loss"]["mean"] == [None, None, 1.5, 1.0]


def test_a_training_that_goes_back_begins_anew(tmp_path):
    path = tmp_path / "log.jsonl"
    tail = LogTail(path)
    write(path, 1, 10)
    cursor = tail.series(0, 100)["cursor"]
    write(path, 1, 4, "w")  # resumed at step 4: what came after was dropped
    series = tail.series(cursor, 100)
    assert series["reset"] and series["first"] == [1, 2, 3, 4] and series["turn"] == 1


def test_a_longer_log_in_its_place_begins_anew(tmp_path):
    """Of a training that was removed and started again: its file often has the same inode."""
    path = tmp_path / "log.jsonl"
    tail = LogTail(path)
    write(path, 1, 10)
    tail.series(0, 100)
    write(path, 1, 40, "w", seconds=0.5)
    series = tail.series(0, 100)
    assert series["turn"] == 1 and series["last"] == [*range(1, 41)]
    assert series["columns"]["seconds"]["mean"] == [0.5] * 40


def test_a_large_log_is_read_in_pieces(tmp_path):
    """A line without an end, which is not kept, and 16 MiB of steps take a few MiB of memory."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b" " * (24 << 20) + b"\n" + (line(1) + " " * 8000 + "\n").encode() * 2000)
    tracemalloc.start()
    try:
        assert LogTail(path).series(0, 10)["cursor"] == 2000
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_a_spike_is_in_every_bucket_size(tmp_path):
    """100,000 steps in 1,000 points: least, greatest and mean are NumPy's, and buckets do not move
    as it grows."""
    path = tmp_path / "log.jsonl"
    values = np.sin(np.arange(100_000) / 1000)
    values[54_321] = 99.0
    path.write_text(
        "".join(json.dumps({"step": n + 1, "loss": value}) + "\n" for n, value in enumerate(values))
    )
    tail = LogTail(path)
    series = tail.series(0, 1000)
    size = series["bucket"]
    assert size == 128 and len(series["first"]) == math.ceil(100_000 / 128)
    cut = [values[at : at + size] for at in range(0, len(values), size)]
    assert series["columns"]["loss"]["max"] == [piece.max() for piece in cut]
    assert series["columns"]["loss"]["min"] == [piece.min() for piece in cut]
    np.testing.assert_allclose(series["columns"]["loss"]["mean"], [piece.mean() for piece in cut])
    assert max(series["columns"]["loss"]["max"]) == 99.0
    write(path, 100_001, 100_010)
    later = tail.series(0, 1000)
    assert (
        later["first"] == series["first"]
        and later["columns"]["loss"]["max"][:-1] == series["columns"]["loss"]["max"][:-1]
    )
    piece = tail.series(70_000, 100)
    assert piece["first"][0] == 70_001 and piece["first"][1] % piece["bucket"] == 1


def test_numbers_that_no_float_holds_are_left_out(tmp_path):
    """Of a damaged log, or of another program's."""
    path = tmp_path / "log.jsonl"
    huge = "1" + "0" * 400
    path.write_text(f'{{"step": {huge}}}\n{{"step": true}}\n{{"step": 1, "loss": {huge}}}\n')
    write(path, 2, 3)
    series = LogTail(path).series(0, 100)
    assert series["last"] == [1, 2, 3]
    assert series["columns"]["loss"]["mean"] == [None, 2.5, 5 / 3]


def test_a_line_of_many_columns_has_its_step(tmp_path):
    """Another program's log, whose step stands last."""
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({**{f"loss {n}": n for n in range(150)}, "step": 7}) + "\n")
    series = LogTail(path).series(0, 100)
    assert series["first"] == [7] and len(series["columns"]) == 99


def test_the_mean_of_numbers_whose_sum_is_no_float(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, 1, 200, grad_norm=1.5e308)
    means = LogTail(path).series(0, 100)["columns"]["grad_norm"]["mean"]
    assert len(means) == 100 and set(means) == {1.5e308}
