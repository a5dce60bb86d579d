"""Tokenizer files made to harm: panics, endless work, blown-up texts. One sentence each, and Ctrl-C
is heard."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from folders import read_json, write_json
from glassformer import UserError
from glassformer.core.tokenizer import tokenizer as library
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import pretrained
from glassformer.formats import tokenizer_files as formats
from glassformer.formats.data import find as find_corpus
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.formats.tokenizer_forms import from_json
from mistakes import mistake
from tokenizer.test_bad import MODEL, field, piece, spec
from tokenizer.test_tokenizer import NASTY

SLOW = {"type": "Split", "pattern": {"Regex": r"\s+$"}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def changed(**kwargs):
    """A byte tokenizer with these parts in its file."""
    return from_json(spec(lambda raw: raw.update(kwargs)).decode())


def hostile():
    """One whose pattern looks at every later space from every space."""
    return changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [SLOW, BYTES]})


def replacing(*steps):
    return {
        "type": "Sequence",
        "normalizers": [
            {"type": "Replace", "pattern": {kind: old}, "content": new} for kind, old, new in steps
        ],
    }


# ------------------------------------------------------------------------ budget and signals


def test_work_without_end_is_ended_and_said(monkeypatch):
    monkeypatch.setattr(library, "SECONDS", 0.2)
    tokenizer = hostile()
    spaces = " " * (library.UNWATCHED + 1) + "a"
    for act in (tokenizer.encode, tokenizer.offsets):
        with mistake("needs over 1 seconds for 16,386 characters"):
            act(spaces)
    assert tokenizer.encode("  a") == [32, 32, 97]


def test_errors_and_results_come_through_a_thread_with_a_budget():
    tokenizer = train_tokenizer("char", ["ab"], specials=())
    assert tokenizer.encode("ab" * library.UNWATCHED) == [0, 1] * library.UNWATCHED
    with mistake(f"number {2 * library.UNWATCHED} of the text"):
        tokenizer.encode("ab" * library.UNWATCHED + "c")


@pytest.mark.parametrize("kind", ["encode", "tokenise"])
def test_ctrl_c_is_heard_while_a_text_is_encoded(kind, tmp_path):
    (tmp_path / "tokenizer.json").write_text(hostile().to_json())
    (tmp_path / "corpus.txt").write_text(" " * 120_000 + "a")
    act = {
        "encode": "tokenizer.encode(open(folder / 'corpus.txt').read())",
        "tokenise": "tokenise(find_corpus(folder / 'corpus.txt'), tokenizer, cache=folder / "
        "'cache')",
    }[kind]
    code = (
        # in case a shell ignores it
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from glassformer.formats.data import tokenise, find as find_corpus\n"
        "import pathlib, sys; from glassformer.formats import tokenizer_files as t; folder = "
        f"pathlib.Path({str(tmp_path)!r})\n"
        "tokenizer = t.open(folder / 'tokenizer.json'); tokenizer.encode('a'); print('ready', "
        f"flush=True)\n{act}"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    time.sleep(1.0)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    sent = time.monotonic()
    _, output = running.communicate(timeout=60)
    assert "KeyboardInterrupt" in output
    assert running.returncode in (1, -signal.SIGINT, 130)
    assert time.monotonic() - sent < 8  # the whole text takes minutes


# ------------------------------------------------------------------------- tables and replacements


def charsmap(shared_data):
    """T5's table of character replacements."""
    raw = read_json(shared_data / "tok-t5" / "tokenizer.json")
    return base64.b64decode(raw["normalizer"]["precompiled_charsmap"])


@pytest.mark.parametrize("turns", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_a_damaged_table_of_characters_is_refused_or_used(shared_data, turns):
    """Damaged tables: the file or the text is refused in a sentence, or it encodes everything."""
    full = charsmap(shared_data)
    chance = np.random.default_rng(0)
    refused = 0
    for turn in range(turns):
        table = np.frombuffer(full, np.uint8).copy()
        size = int.from_bytes(full[:4], "little")
        if turn % 4:
            at = chance.integers(
                4, 4 + size if turn % 4 < 3 else len(table), chance.integers(1, 400)
            )
            table[at] = chance.integers(0, 256, len(at))
        data = table.tobytes()[: None if turn % 4 else int(chance.integers(1, len(table)))]
        encoded = base64.b64encode(data).decode()
        try:
            result = changed(normalizer={"type": "Precompiled", "precompiled_charsmap": encoded})
            result.encode_batch(NASTY)
            result.offsets(NASTY[7])
        except UserError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > turns / 3


def test_a_table_that_blows_a_text_up_is_refused(shared_data):
    long = base64.b64encode(charsmap(shared_data)[:-1] + b"a" * 300 + b"\0").decode()
    with mistake("make over 256 characters of one"):
        changed(normalizer={"type": "Precompiled", "precompiled_charsmap": long})


@pytest.mark.parametrize("name", ["normalizer", "decoder"])
def test_replacements_that_blow_a_text_up_are_refused(name):
    for steps in (replacing(*[("String", "a", "aa")] * 40), replacing(*[("Regex", "", "a")] * 40)):
        steps = (
            steps
            if name == "normalizer"
            else {"type": "Sequence", "decoders": steps["normalizers"]}
        )
        with mistake(f"replacements of its {name} make over 256"):
            changed(**{name: steps})
    growing = changed(normalizer=replacing(("String", "a", "aa"), ("Regex", "b+", "c")))
    assert growing.encode("abbb") == list(b"aac")


def test_a_decoder_uses_the_librarys_regular_expressions():
    def decoder(pattern):
        steps = [BYTES, {"type": "Fuse"}]
        replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "-"}
        return changed(decoder={"type": "Sequence", "decoders": [replace, *steps]})

    assert decoder(r"\p{L}").decode(list(b"a1b")) == "-1-"
    with mistake("no tokenizer that can be used"):
        decoder("(")
    raw = json.loads(spec(lambda raw: None))
    raw["model"]["vocab"]["a" * 60 + "b"] = 900
    raw["decoder"] = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "-"}
    tokenizer = from_json(json.dumps(raw))
    start = time.monotonic()
    with mistake("cannot decode"):
        tokenizer.decode([900])
    assert time.monotonic() - start < 10


def test_a_panic_while_encoding_is_a_sentence():
    split = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    tokenizer = changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, BYTES]})
    for act in (tokenizer.encode, tokenizer.offsets):
        with mistake("cannot encode this text"):
            act("a" * 40 + "b")


def test_strip_of_a_billion_and_ids_of_four():
    strip = {"type": "Strip", "content": " ", "start": 10**9, "stop": 0}
    tokenizer = changed(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}, strip]})
    start = time.monotonic()
    assert tokenizer.decode([97, 98]) == "ab"
    assert time.monotonic() - start < 1
    for id in (2**32 - 1, 1 << 22):
        with mistake("more than any vocabulary needs"):
            from_json(spec(lambda raw, id=id: raw["model"]["vocab"].update(zz=id)).decode())
        with mistake("more than any vocabulary needs"):
            from_json(spec(lambda raw, id=id: raw["added_tokens"][0].update(id=id)).decode())


# ------------------------------------------------------------------------------ names, paths, ids


def test_ids_that_are_none():
    tokenizer = train_tokenizer("byte")
    for wrong in ([None], ["a"], [1.5], "ab", 5, None, [[1]]):
        with mistake(r"[Ii]ds are integers"):
            tokenizer.decode(wrong)
    with mistake("Ids are integers"):
        tokenizer.stream().push(None)
    assert tokenizer.decode(np.array([97, 98])) == "ab"


@pytest.mark.parametrize(
    "act", [open_tokenizer, pretrained.find, find_corpus], ids=["open", "find", "corpus"]
)
def test_names_that_are_no_paths(act):
    for name in ("x" * 5000, "a\0b", "x" * 5000 + "/y", "a/\0"):
        with pytest.raises(UserError) as caught:
            act(name)
        assert len(str(caught.value)) < 700
        assert "\0" not in str(caught.value)


def test_a_link_a_device_and_a_locked_folder(tmp_path, monkeypatch):
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    for act in (open_tokenizer, pretrained.find, find_corpus):
        with mistake("is a broken link"):
            act(tmp_path / "lost")
    for path in ("/dev/null", "/dev/zero"):
        with mistake("not a file that holds a tokenizer"):
            open_tokenizer(path)
    os.mkfifo(tmp_path / "pipe")
    with mistake("not a file that holds a tokenizer"):
        pretrained.find(tmp_path / "pipe")

    def locked(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", locked)
    for act in (open_tokenizer, pretrained.find, find_corpus):
        with mistake("locked"):
            act(tmp_path / "inside")


def test_keys_that_only_look_like_numbers(tmp_path):
    (tmp_path / "x.model").write_bytes(MODEL)
    for key in ("²", "٣", "9" * 5000):
        decoder = {key: {"content": "<far>"}, "5": {"content": "<next>", "special": True}}
        write_json(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": decoder})
        assert open_tokenizer(tmp_path).id("<next>") == 5


@pytest.mark.parametrize("size", [1000, pytest.param(8000, marks=pytest.mark.slow)])
def test_a_hostile_model_of_megabytes_is_soon_refused_or_read(tmp_path, size):
    trainer = field(2, b"\x18\x02") + field(3, b"")
    long = b"".join(piece(b"%05d" % number + b"ab" * 509, 1) for number in range(size))
    endless = piece(b"ab" * 2000, 1)
    letters = b"".join(piece(bytes([letter]), 1) for letter in range(97, 123))
    (tmp_path / "x.model").write_bytes(piece(b"<unk>", 2) + letters + endless + trainer)
    with mistake("endless"):
        open_tokenizer(tmp_path)
    (tmp_path / "x.model").write_bytes(piece(b"<unk>", 2) + letters + long + trainer)
    start = time.process_time()
    assert open_tokenizer(tmp_path).size == size + 27
    assert time.process_time() - start < 10


def test_a_file_is_looked_at_once_for_its_kind(tmp_path):
    """A missing file is still said as such, and a short one is read."""
    with mistake("cannot be read"):
        open_tokenizer(tmp_path / "none.json")
    (tmp_path / "vocab.txt").write_bytes(b"ab")
    with mistake(r"lacks \[UNK\]"):
        formats.open(tmp_path / "vocab.txt")
