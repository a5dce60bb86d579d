"""A file of answers appears whole; a job that was stopped goes on, and gives the same file."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest

import tiny
from glassformer import config
from glassformer.core.errors import UserError
from glassformer.core.tokenizer import train
from glassformer.fast.quantized import QuantizedLayout, quantize_weights
from glassformer.formats import store
from glassformer.serve.engine import Engine, Request, batch
from glassformer.serve.engine.batch import answer_into
from mistakes import mistake

REQUESTS = [
    Request([1 + number % 5, 2], n=2, seed=3, max_new=1 + number % 4) for number in range(12)
]
JOB = {"samples": 2, "seed": 3}


def line(number, item):
    return {"number": number, "sample": item.index, "tokens": item.tokens}


def write(out, job=JOB, stop=99):
    def progress(done):
        if done == stop:
            raise KeyboardInterrupt

    with Engine(tiny.model("gpt2"), max_queue=3) as engine:
        return answer_into(out, engine, REQUESTS, job, line, progress)


def test_a_job_that_was_stopped_gives_the_same_file(tmp_path):
    assert write(tmp_path / "whole.jsonl") == 0
    content = (tmp_path / "whole.jsonl").read_bytes()
    assert [json.loads(line)["number"] for line in content.splitlines()] == [
        number // 2 for number in range(24)
    ]
    out = tmp_path / "out.jsonl"
    piece = tmp_path / "out.jsonl.part"
    for stop in (2, 5):
        with pytest.raises(KeyboardInterrupt):
            write(out, stop=stop)
        assert not out.exists()
        assert len(piece.read_bytes().splitlines()) == 1 + 2 * stop
        # the power went off: a line is torn, and a request half done
        piece.write_bytes(piece.read_bytes()[:-9])
    assert write(out) == 4
    assert out.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == [
        out,
        tmp_path / "whole.jsonl",
    ]


def test_a_part_of_another_job_and_a_file_that_is_there_are_not_written_over(tmp_path):
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write(out, stop=2)
    with mistake(
        r"out.jsonl.part is of another job \(other seed\); "
        r"remove it"
    ):
        write(out, {**JOB, "seed": 4})
    write(out)
    with mistake("there already"):
        write(out)


def test_a_damaged_part_is_refused_or_gives_the_same_file(tmp_path):
    write(tmp_path / "whole.jsonl")
    full_content = (tmp_path / "whole.jsonl").read_bytes()
    out = tmp_path / "out.jsonl"
    piece = tmp_path / "out.jsonl.part"
    with pytest.raises(KeyboardInterrupt):
        write(out, stop=4)
    second_content = piece.read_bytes()
    draw = random.Random(1)
    refused = 0
    lines = second_content.splitlines(keepends=True)
    harmed = [
        b"".join((*lines[:2], *lines[4:])),
        b"".join((*lines[:3], *lines[2:])),
        second_content.replace(b"tokens", b"Tokens"),
    ]
    for _ in range(40):
        group = bytearray(second_content)
        group[draw.randrange(len(group))] ^= 1 << draw.randrange(8)
        harmed.append(bytes(group))
    for number, content in enumerate(harmed):
        piece.write_bytes(content)
        try:
            write(out)
            assert out.read_bytes() == full_content
            assert number > 2
            out.unlink()
        except UserError as error:
            assert "remove it" in str(error)
            assert "damaged in line" in str(error) or "another job" in str(error)
            refused += 1
    assert refused > 35


def test_two_processes_do_not_write_one_file(tmp_path):
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write(out, stop=2)
    content = (tmp_path / "out.jsonl.part").read_bytes()
    second = (
        "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print(flush=True); input()"
    )
    words = [sys.executable, "-c", second, str(tmp_path / "out.jsonl.part")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with mistake("Another process is writing"):
            write(out)
        process.communicate(b"\n")
    assert (tmp_path / "out.jsonl.part").read_bytes() == content
    assert write(out) == 2


def test_a_job_is_of_one_model_whatever_its_folder_is_called(tmp_path, terminal):
    tokenizer = train("char", ["the cat sat on the mat"], None)
    cfg = replace(tiny.DECODERS["gpt2"], embed=config.Embed(tokenizer.size))
    folder, out, partial = (tmp_path / name for name in ("model", "out.jsonl", "out.jsonl.part"))
    (tmp_path / "prompts.txt").write_text("the cat\nthe mat\n")
    line = f"generate {folder} --prompts {tmp_path}/prompts.txt --out {out} --max-new 3"
    finish = batch._finish

    def torn():
        """A job of which the first answer is there."""
        saved = list[bytes]()

        def copying(file, to):
            file.seek(0)
            saved.extend(file.readlines()[:2])
            finish(file, to)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch, "_finish", copying)
            store.save(tiny.model(cfg, seed=1), folder, tokenizer)
            terminal(line)
        partial.write_bytes(b"".join(saved))
        out.unlink()

    torn()
    terminal(line)
    assert "1 were done before" in terminal.notes
    assert [json.loads(row)["number"] for row in out.read_bytes().splitlines()] == [0, 1]
    for change, names in (
        ("weights", "weights"),
        ("dtype", "weights, dtype"),
        ("bits", "weights, bits"),
    ):
        out.unlink()
        torn()
        model = tiny.model(cfg, seed=2 if change == "weights" else 1)
        if change == "bits":
            quantize_weights(model, QuantizedLayout(8))
        store.save(model, folder, tokenizer)
        changed = line + " --dtype bfloat16" * (change == "dtype")
        assert f"is of another job (other {names})" in terminal.refused(changed)
        partial.unlink()
        terminal(changed)
