"""A file of answers appears whole; a job that was stopped goes on, and gives the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from glassformer.engine import Engine, Request
from glassformer.engine.batch import answer_into
from glassformer.errors import UserError

REQUESTS = [Request([1 + number % 5, 2], n=2, seed=3, max_new=1 + number % 4) for number in range(12)]
JOB = {"samples": 2, "seed": 3}


def line(number: int, one: Any) -> dict[str, Any]:
    return {"number": number, "sample": one.index, "tokens": one.tokens}


def write(out: Path, job: dict[str, Any] = JOB, stop: int = 99) -> int:
    def progress(done: int) -> None:
        if done == stop:
            raise KeyboardInterrupt

    with Engine(tiny.model(tiny.DECODERS["gpt2"]), max_queue=3) as engine:
        return answer_into(out, engine, REQUESTS, job, line, progress)


def test_a_job_that_was_stopped_gives_the_same_file(tmp_path: Path) -> None:
    assert write(tmp_path / "whole.jsonl") == 0
    whole = (tmp_path / "whole.jsonl").read_bytes()
    assert [json.loads(one)["number"] for one in whole.splitlines()] == [number // 2 for number in range(24)]
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    for stop in (2, 5):
        with pytest.raises(KeyboardInterrupt):
            write(out, stop=stop)
        assert not out.exists() and len(part.read_bytes().splitlines()) == 1 + 2 * stop
        part.write_bytes(part.read_bytes()[:-9])  # the power went off: a line is torn, and a request half done
    assert write(out) == 4
    assert out.read_bytes() == whole and sorted(tmp_path.iterdir()) == [out, tmp_path / "whole.jsonl"]


def test_a_part_of_another_job_and_a_file_that_is_there_are_not_written_over(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write(out, stop=2)
    with pytest.raises(UserError, match="another job"):
        write(out, {**JOB, "seed": 4})
    write(out)
    with pytest.raises(UserError, match="there already"):
        write(out)
