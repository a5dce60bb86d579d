"""``glassformer tokens``: published counts and ids, what is shown in a terminal, as HTML and as
JSON, and bad input."""

from __future__ import annotations

import html.parser
import json
import os
import subprocess
import sys

import pytest

from glassformer.cli import main
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import pretrained
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.sight.tokens import comparison
from mistakes import mistake

NASTY = '<script>alert("x")</script> & \t\t\n  🎵 鸟 \x1b[31m'
PUBLISHED = {
    "gpt2": (50_256, 1, 50_257),
    "bert-cased": (28_991, 5, 28_996),
    "bert-uncased": (30_517, 5, 30_522),
    "t5": (31_997, 103, 32_100),
    "starcoder": (49_114, 38, 49_152),
    "phi3": (31_997, 14, 32_011),
    "llama2": (31_997, 3, 32_000),
}


@pytest.fixture
def data(shared_data, monkeypatch):
    """The real tokenizers, by their names."""
    monkeypatch.setenv("GLASSFORMER_DATA", str(shared_data))
    return shared_data


@pytest.fixture
def tokenizer_folder(tmp_path):
    """A folder with a small tokenizer."""
    train_tokenizer("bpe", ["glass", " house of glass", " in"] * 9, 300).save(tmp_path / "own")
    return str(tmp_path / "own")


def output_of(capsys, *words):
    assert main(["tokens", *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    """The one sentence that a slip is answered with."""
    assert main(["tokens", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_come_out(data, name):
    base, special, entries = PUBLISHED[name]
    stored = comparison.count(pretrained.find(name))
    assert (stored.base, stored.special, stored.added, stored.entries) == (
        base,
        special,
        0,
        entries,
    )
    assert entries == pretrained.KNOWN[name].size == stored.ids


def test_rank_files_count_their_ranks(data):
    """GPT-4 and Llama 3 publish ranks; how many special tokens are added is the package's
    choice."""
    gpt4, llama3 = pretrained.find("cl100k"), pretrained.find("llama3")
    stored = comparison.count(gpt4)
    assert (stored.base, stored.special, stored.entries, stored.ids) == (
        100_256,
        5,
        100_261,
        100_277,
    )
    assert (
        stored.entries + len({"<|im_start|>", "<|im_end|>"})
        == pretrained.KNOWN["cl100k"].size
        == 100_263
    )
    assert comparison.count(llama3).entries == pretrained.KNOWN["llama3"].size == 128_256
    tokens = comparison.tokens(llama3, "This raw text will be tokenized")
    assert [token.id for token in tokens] == [2028, 7257, 1495, 690, 387, 4037, 1534]
    assert [token.shown for token in tokens] == [
        "This",
        " raw",
        " text",
        " will",
        " be",
        " token",
        "ized",
    ]
    assert comparison.habits(gpt4)["digits"] == "123|456|7"
    assert comparison.habits(gpt4)["tabs"] == "x|⇥y x|⇥|⇥y x|⇥⇥|⇥y"


def test_qwen_counts_its_ranks(data):
    ranks = (data / "tok-qwen" / "qwen.lf.tiktoken").read_bytes().count(b"\n")
    assert ranks == 151_643 and ranks + 14 == pretrained.KNOWN["qwen"].size == 151_657


@pytest.mark.slow
def test_qwen_is_opened_by_its_name(data):
    qwen = pretrained.find("qwen")
    stored = comparison.count(qwen)
    assert (stored.base, stored.special) == (151_643, 3)
    assert comparison.habits(qwen)["digits"] == "1|2|3|4|5|6|7"


def test_what_each_does_with_each_kind_of_text(data):
    names = ("gpt2", "bert-cased", "bert-uncased", "t5", "phi3", "starcoder")
    does = {name: comparison.habits(pretrained.find(name)) for name in names}
    assert all(list(item) == list(comparison.EXAMPLES) for item in does.values())
    assert does["bert-uncased"]["capitals"] == "london london london"
    assert does["bert-cased"]["tabs"] == "x|y x|y x|y"
    assert does["gpt2"]["tabs"] == "x|⇥|y x|⇥|⇥|y x|⇥|⇥|⇥|y"
    assert does["starcoder"]["tabs"].endswith("x|⇥⇥|⇥|y")
    assert does["starcoder"]["digits"] == "1|2|3|4|5|6|7"
    assert "<unk>" in does["t5"]["emoji"] and does["bert-cased"]["unknown"] == "[UNK]"
    assert does["phi3"]["emoji"].count("<0x") == 4 and does["gpt2"]["emoji"].count("<0x") == 3
    assert "|" not in does["starcoder"]["code"] and "el|if" in does["gpt2"]["code"]


def test_tokens_are_shown_with_what_they_are(data):
    sheets = {
        name: comparison.sheet(name, pretrained.find(name), comparison.SAMPLE)
        for name in ("gpt2", "bert-cased", "phi3")
    }
    for sheet in sheets.values():
        assert [token.id for token in sheet.tokens] == pretrained.find(sheet.name).encode(
            comparison.SAMPLE
        )
        assert sheet.characters_per_token == len(comparison.SAMPLE) / len(sheet.tokens)
    kinds = {name: {token.kind for token in sheet.tokens} for name, sheet in sheets.items()}
    assert kinds == {
        "gpt2": {"piece", "bytes"},
        "bert-cased": {"piece", "unknown"},
        "phi3": {"piece", "bytes"},
    }
    assert "".join(
        token.shown for token in sheets["gpt2"].tokens if token.kind == "piece"
    ).startswith("Glass and GLASS")
    assert "<0xF09F>" in [token.shown for token in sheets["gpt2"].tokens]
    assert "<0xF0>" in [token.shown for token in sheets["phi3"].tokens]
    assert sheets["bert-cased"].around == ("[CLS]", "[SEP]")


def test_the_terminal_is_readable_without_colour(tokenizer_folder, capsys):
    output = output_of(capsys, "glass house\n\tx", "--with", tokenizer_folder)
    assert "|glass|·" in output and "|↵|" in output and "\x1b" not in output
    assert (
        str(open_tokenizer(tokenizer_folder).size) in output
        and "byte-level BPE" in output
        and "<|endoftext|>" in output
        and "capitals" in output
    )
    ids = open_tokenizer(tokenizer_folder).encode("glass")
    below = output_of(capsys, "glass", "--with", tokenizer_folder, "--ids").splitlines()
    at = next(number for number, line in enumerate(below) if line.startswith("glass"))
    assert [int(id) for id in below[at + 1].split("|") if id.strip()] == ids


def test_the_terminal_alternates_two_grounds(tokenizer_folder):
    environment = {
        **os.environ,
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "glassformer", "tokens", "glass x", "--with", tokenizer_folder]
    colour = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "48;2;207;230;247" in colour and "48;2;255;227;176" in colour and "|glass|" not in colour
    plain = subprocess.run(
        command, env={**environment, "NO_COLOR": "1"}, capture_output=True, text=True, check=True
    )
    assert "48;2" not in plain.stdout and "|glass|" in plain.stdout


class Page(html.parser.HTMLParser):
    """The elements and the text of a page."""

    def __init__(self):
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_is_one_file_that_runs_nothing(tokenizer_folder, tmp_path, capsys):
    path = tmp_path / "deep" / "page.html"
    options = ("--with", tokenizer_folder, "--html", str(path), "--trace")
    tokenizer = open_tokenizer(tokenizer_folder)
    for ids in ((), ("--ids",)):
        output_of(capsys, NASTY, *options, *ids)
        raw = path.read_text(encoding="utf-8")
        page = Page()
        page.feed(raw)
        assert "script" not in page.tags and not page.links
        assert "http" not in raw and "@import" not in raw and "\x1b" not in raw
        displayed = "".join(page.words)
        assert "<0x" in displayed and "#cfe6f7" in raw and "begins as" in displayed
        assert ids or '<script>alert("x")</script>·&·⇥⇥↵' in displayed
        assert not ids or all(str(id) in displayed for id in tokenizer.encode(NASTY))


def test_json_says_everything(tokenizer_folder, capsys):
    data = json.loads(
        output_of(capsys, NASTY, "--with", tokenizer_folder, "--json", "--trace", "glass")
    )
    (item,), size = data["tokenizers"], open_tokenizer(tokenizer_folder).size
    assert data["text"] == NASTY and item["name"] == tokenizer_folder
    assert [token["id"] for token in item["tokens"]] == open_tokenizer(tokenizer_folder).encode(
        NASTY
    )
    assert item["vocabulary"] == {
        "base": size - 1,
        "special": 1,
        "added": 0,
        "entries": size,
        "ids": size,
    }
    assert set(item["habits"]) >= {"tabs", "emoji"} and item["trace"][0]["word"] == "glass"


def test_a_tokenizer_that_refuses_the_text_says_so_and_the_others_go_on(
    tmp_path, tokenizer_folder, capsys
):
    train_tokenizer("char", ["glas"]).save(tmp_path / "char")
    output = output_of(capsys, "glass é", "--with", str(tmp_path / "char"), tokenizer_folder)
    assert (
        'does not know the character " "' in output and "|glass|" in output and "refused" in output
    )


def test_the_words_of_the_command_itself(tokenizer_folder, capsys):
    assert "--text train" in refused(capsys, "train") and "--text sizes" in refused(capsys, "sizes")
    assert "|in|" in output_of(capsys, "--text", "train", "--with", tokenizer_folder)


def test_bad_input_is_one_sentence(tokenizer_folder, tmp_path, capsys):
    (tmp_path / "notes.md").write_text("no tokenizer\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert 'Did you mean "gpt2"?' in refused(capsys, "x", "--with", "gpt-2")
    assert "not a tokenizer of a known format" in refused(
        capsys, "x", "--with", str(tmp_path / "notes.md")
    )
    assert "no tokenizer" in refused(capsys, "x", "--with", str(tmp_path))
    assert "byte 3" in refused(
        capsys, "--file", str(tmp_path / "latin.txt"), "--with", tokenizer_folder
    )
    assert "is not UTF-8 text" in refused(capsys, "a\udcff", "--with", tokenizer_folder)
    assert "The text is empty" in refused(capsys, "", "--with", tokenizer_folder)
    assert "Give one text" in refused(capsys, "two", "texts", "--with", tokenizer_folder)
    assert "--size is not understood" in refused(capsys, "x", "--size", "5")
    assert "--ids is not understood" in refused(capsys, "train", tokenizer_folder, "--ids")


def test_a_named_tokenizer_that_is_not_here_says_what_to_set(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    monkeypatch.setattr(pretrained, "_hub", lambda name, online=True: None)
    assert "set GLASSFORMER_DATA to a folder that has tok-gpt2 in it" in refused(
        capsys, "x", "--with", "gpt2"
    )
    assert "not in the hub's cache" in refused(capsys, "x", "--with", "nobody/nothing")


def test_a_hub_folder_in_the_cache_is_found(tokenizer_folder, monkeypatch):
    import huggingface_hub

    requests = []

    def cached(name, **options):
        requests.append((name, options["local_files_only"]))
        return tokenizer_folder

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert pretrained.find("some/model").fingerprint == open_tokenizer(
        tokenizer_folder
    ).fingerprint and requests == [("some/model", True)]


def test_a_broken_gguf_vocabulary_is_refused(data, tmp_path):
    content = next((data / "tok-starcoder").glob("*.gguf")).read_bytes()
    for name, raw in {
        "cut": content[:100_000],
        "kind": content.replace(b"gpt2", b"bert", 1),
    }.items():
        (tmp_path / f"{name}.gguf").write_bytes(raw)
        with mistake(r"GGUF|kind"):
            open_tokenizer(tmp_path / f"{name}.gguf")


def test_what_a_tokenizer_refuses_is_a_habit_too():
    """One that knows "London" and no other letters is still shown."""
    habits = comparison.habits(train_tokenizer("char", ["London"]))
    assert habits["capitals"] == "(refused) L|o|n|d|o|n (refused)"
