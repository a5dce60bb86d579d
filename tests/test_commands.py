"""The command line as a whole: help, examples, options anywhere, settings that are listed, completion."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib import import_module

import pytest

from glassformer import settings
from glassformer.cli import main, parser
from glassformer.commands import VERBS, completion
from glassformer.parsing import Parser

COMMAND = [sys.executable, "-m", "glassformer"]
EXAMPLES = [line for verb in VERBS for line in import_module(f"glassformer.commands.{verb}").EXAMPLES]


def understood(line: str) -> dict[str, object]:
    return vars(parser().understand(shlex.split(line)[1:]))


@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"], ["help", "train"], ["train", "--help"], ["words"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said, notes = capsys.readouterr()
    assert (ended.value.code, notes) == (0, "")
    assert said.startswith(
        f"usage: glassformer {'train' if 'train' in words else 'words' if words == ['words'] else ''}"
    )


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version(word: str) -> None:
    assert subprocess.run([*COMMAND, word], capture_output=True, check=True).stdout.startswith(b"glassformer ")


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_are_understood(line: str) -> None:
    if ">" not in line:
        assert understood(line)["run"]


def test_every_command_and_every_task_has_an_example() -> None:
    def every(made: Parser) -> list[Parser]:
        return [inner for one in made.verbs.values() for inner in every(one)] or [made]

    assert all(f"examples:\n  {one.prog} " in one.format_help() for one in every(parser()))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('glassformer generate S --max-new 5 "Once upon"', {"model": "S", "prompt": ["Once upon"], "max_new": 5}),
        ("glassformer generate S one --json two", {"prompt": ["one", "two"], "json": True}),
        ("glassformer generate --seed 1 S -- -5 --json", {"prompt": ["-5", "--json"], "seed": 1}),
        ("glassformer look M text --json '*.q'", {"text": "text", "pattern": ["*.q"], "json": True}),
        ("glassformer words near V --json king", {"vectors": "V", "word": "king", "task": "near"}),
        ("glassformer train run.toml --out o --steps 5", {"rest": ["run.toml", "--steps", "5"], "out": "o"}),
        ("glassformer train --steps 5 --out o run.toml", {"rest": ["--steps", "5", "run.toml"], "out": "o"}),
    ],
)
def test_options_stand_anywhere(line: str, found: dict[str, object]) -> None:
    assert found.items() <= understood(line).items()


def test_every_setting_is_listed_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert [s.path for s in settings.every() if not s.meaning] == []
    assert main(["train", "--settings"]) == 0
    said = capsys.readouterr().out
    for line in (
        "--steps (whole number = 1000): optimizer steps",
        "--decoder.pattern.attention.kv_heads (whole number",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["gen"], ["generate"]),
        (["words", "ne"], ["near"]),
        (["fill", "M", "--order", ""], ["apart", "left", "sure"]),
        (["generate", "M", "--max"], ["--max-new"]),
        (["train", "--decoder.dep"], ["--decoder.depth"]),
        (["generate", "M", "--seed", ""], []),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_completion(words: list[str], found: list[str]) -> None:
    assert completion.candidates(words) == found


def test_completion_in_bash() -> None:
    script = (
        completion.SHELLS["bash"]
        + "\nCOMP_WORDS=(glassformer generate M --max); COMP_CWORD=3; _glassformer; echo $COMPREPLY"
    )
    called = f'glassformer() {{ {shlex.join(COMMAND)} "$@"; }}\n{script}'
    done = subprocess.run(["bash", "-c", called], capture_output=True, text=True, check=True)
    assert done.stdout == "--max-new\n"


def test_an_argument_that_is_not_utf_8() -> None:
    done = subprocess.run([*COMMAND, "generate", "M", b"caf\xe9"], capture_output=True)
    assert done.returncode == 2
    assert b"is not UTF-8 text" in done.stderr and b"surrogate" not in done.stderr
