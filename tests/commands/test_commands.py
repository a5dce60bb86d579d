"""The command line as a whole: help, examples, options anywhere, settings that are listed,
completion."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer import UserError
from glassformer import config as c
from glassformer.cli import main, overview, parser
from glassformer.commands import GROUPS, VERBS, common, completion, signature
from glassformer.commands import words as word_tasks
from glassformer.commands.parsing import Parser
from glassformer.runs import settings

COMMAND = [sys.executable, "-m", "glassformer"]
EXAMPLES = [
    line for verb in VERBS for line in import_module(f"glassformer.commands.{verb}").EXAMPLES
]


def understood(line: str) -> dict[str, object]:
    words = shlex.split(line)
    # torchrun may stand before it
    return vars(parser(VERBS).parse(words[words.index("glassformer") + 1 :]))


@pytest.mark.parametrize(
    "words", [[], ["help"], ["--help"], ["-h"], ["help", "train"], ["train", "--help"], ["words"]]
)
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words)
    except SystemExit as ended:  # argparse's way
        code = ended.code
    message, notes = capsys.readouterr()
    assert (code, notes) == (0, "")
    assert message.startswith(
        "usage: glassformer "
        f"{'train' if 'train' in words else 'words' if words == ['words'] else ''}"
    )


def test_the_overview_names_every_command_within_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for width in (60, 80, 200):
        monkeypatch.setattr(
            "os.get_terminal_size", lambda width=width: os.terminal_size((width, 24))
        )
        lines = overview().splitlines()
        assert max(map(len, lines)) <= max(width, 67)  # the closing sentence is not folded
        groups = dict(
            section.split(":\n", 1)
            for section in "\n".join(lines).split("\n\n")
            if ":\n" in section
        )
        listed = {
            title: dict(
                " ".join(entry.split()).split(" ", 1)
                for entry in re.split(r"^  (?=[a-z])", section, flags=re.MULTILINE)[1:]
            )
            for title, section in groups.items()
        }
        assert listed == GROUPS


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version(word: str) -> None:
    assert subprocess.run([*COMMAND, word], capture_output=True, check=True).stdout.startswith(
        b"glassformer "
    )


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_are_understood(line: str) -> None:
    if ">" not in line:
        assert understood(line)["run"]


def test_every_command_and_every_task_has_an_example() -> None:
    def every(result: Parser) -> list[Parser]:
        return [inner for verb in result.verbs.values() for inner in every(verb)] or [result]

    assert all(f"examples:\n  {item.prog} " in item.format_help() for item in every(parser(VERBS)))


@pytest.mark.parametrize(
    ("line", "result"),
    [
        (
            'glassformer generate S --max-new 5 "Once upon"',
            {"model": "S", "prompt": ["Once upon"], "max_new": 5},
        ),
        ("glassformer generate S one --json two", {"prompt": ["one", "two"], "json": True}),
        ("glassformer generate --seed 1 S -- -5 --json", {"prompt": ["-5", "--json"], "seed": 1}),
        (
            "glassformer look M text --json '*.q'",
            {"text": "text", "pattern": ["*.q"], "json": True},
        ),
        (
            "glassformer words near V --json king",
            {"vectors": "V", "word": "king", "run": word_tasks.near},
        ),
        (
            "glassformer train run.toml --out o --steps 5",
            {"extra": ["run.toml", "--steps", "5"], "out": "o"},
        ),
        (
            "glassformer train --steps 5 --out o run.toml",
            {"extra": ["--steps", "5", "run.toml"], "out": "o"},
        ),
    ],
)
def test_options_stand_anywhere(line: str, result: dict[str, object]) -> None:
    assert result.items() <= understood(line).items()


def test_a_signature_is_a_command_line() -> None:
    """Types, bounds and defaults of the function; the docstring's lines are the help."""

    def command(
        place: str, names: signature.Words = (), *, size: signature.Count = 3, dry_: bool = False
    ) -> tuple[object, ...]:
        """Does something.

        place PLACE: where
        names NAME: which
        a group
        size N: how large
        dry_: not really
        """
        return place, names, size, dry_

    parser = Parser(prog="command")
    signature.add_arguments(parser, command, "")
    text = parser.format_help()
    assert "a group:\n  --size N" in text and "how large (3)" in text and "--dry " in text
    assert signature.bound(command, parser.parse(["here"]))() == ("here", (), 3, False)
    words = ["--dry", "here", "--size", "2", "a", "b"]
    assert signature.bound(command, parser.parse(words))() == ("here", ["a", "b"], 2, True)
    with pytest.raises(UserError, match="--size is 0; give 1 or more"):
        signature.bound(command, parser.parse(["here", "--size", "0"]))


def test_every_setting_is_listed_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert [s.path for s in settings.all_settings() if not s.meaning] == []
    assert main(["train", "--settings"]) == 0
    output = capsys.readouterr().out
    for line in (
        "--steps (integer = 1000): optimizer steps",
        "--decoder.pattern.attention.kv_heads (integer",
    ):
        assert line in output


@pytest.mark.parametrize(
    ("words", "result"),
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
def test_completion(words: list[str], result: list[str]) -> None:
    assert completion.candidates(words) == result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny decoder with a tokenizer of bytes, as a folder."""
    from glassformer.core.nn import build_model
    from glassformer.core.tokenizer import train as train_tokenizer
    from glassformer.formats import store
    from tiny import DECODERS

    folder = tmp_path_factory.mktemp("model") / "tiny"
    result = dataclasses.replace(DECODERS["llama"], embed=c.Embed(300), context=32)
    store.save(
        build_model(result, seed=1), folder, train_tokenizer("byte", []), layout="glassformer"
    )
    return str(folder)


def answer(words: list[str], capsys: pytest.CaptureFixture[str], stdin: str = "") -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(words)
    message, notes = capsys.readouterr()
    assert code == 0, notes
    return message


def test_the_next_tokens_and_their_probabilities(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Probabilities of look and generate are the softmax of the model's own logits."""
    import torch

    from glassformer import load

    single_model, tokenizer = load(model)
    assert tokenizer is not None
    ids = tokenizer.encode("Once")
    with torch.no_grad():
        logprobs = (
            single_model(torch.tensor([ids])).logits[0].float().log_softmax(-1)[:, : tokenizer.size]
        )
    best = logprobs.topk(3)
    looked = json.loads(answer(["look", model, "Once", "--next", "3", "--json"], capsys))
    predicted = json.loads(answer(["look", model, "--logprobs", "3", "Once", "--json"], capsys))
    next = json.loads(answer(["generate", model, "Once", "--next", "3", "--json"], capsys))["rows"][
        0
    ]["next"]
    drawn = ["generate", model, "Once", "--logprobs", "3", "--max-new", "2", "--seed", "1"]
    row = json.loads(answer([*drawn, "--json"], capsys))["rows"][0]
    for output in (looked, predicted[-1]["next"], next, row["likely"][0]):
        assert [item["token"] for item in output] == best.indices[-1].tolist()
        assert [item["logprob"] for item in output] == pytest.approx(
            best.values[-1].tolist(), abs=1e-5
        )
        assert [item["piece"] for item in output] == [
            tokenizer.token(item["token"]) for item in output
        ]
    assert [item["token"] for item in predicted] == ids
    assert [item["logprob"] for item in predicted[1:]] == pytest.approx(
        [logprobs[at, id].item() for at, id in enumerate(ids[1:])], abs=1e-5
    )
    assert row["pieces"] == [tokenizer.token(id) for id in row["tokens"]] and len(
        row["likely"]
    ) == len(row["tokens"])
    assert f"{math.exp(best.values[-1, 0]):.4f}" in answer(
        ["look", model, "Once", "--next", "1"], capsys
    )
    assert f"{math.exp(best.values[-1, 0]):.4f}" in answer(
        ["generate", model, "Once", "--next", "1"], capsys
    )
    assert answer(drawn, capsys).count("0.") == 6


def test_many_prompts_into_a_file_say_what_they_say_at_once(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in ("Once", "Twice", "Once", "x"))
    )
    words = [
        "generate",
        model,
        "--prompts",
        str(prompts),
        "--seed",
        "4",
        "--max-new",
        "5",
        "--samples",
        "2",
    ]
    rows = json.loads(answer([*words, "--json"], capsys))["rows"]
    assert "4 prompts, 40 new tokens" in answer([*words, "--out", str(out)], capsys)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [row["tokens"] for row in rows]
    assert [line["text"] for line in lines] == [row["text"] for row in rows]
    assert [(line["number"], line["sample"]) for line in lines] == [
        (n, s) for n in range(4) for s in range(2)
    ]
    assert main([*words, "--out", str(out)]) == 2 and "there already" in capsys.readouterr().err


def test_prompts_come_from_a_file_and_from_standard_input(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, table = tmp_path / "lines.txt", tmp_path / "table.jsonl"
    lines.write_text("one\r\ntwo\u2028 and\n")
    table.write_text('{"text": "one"}\n{"prompt": "two\\u2028 and"}\n')
    short = ["--max-new", "2", "--temperature", "0", "--json"]
    data = json.loads(answer(["generate", model, "one", "two\u2028 and", *short], capsys))["rows"]
    for words, stdin in (
        (["--prompts", str(lines)], ""),
        (["--prompts", str(table)], ""),
        (["--prompts", "-"], lines.read_text()),
    ):
        got = json.loads(
            answer(["generate", model, *words, *short, "--batch", "1"], capsys, stdin)
        )["rows"]
        assert [{**row, "logprobs": None} for row in got] == [
            {**row, "logprobs": None} for row in data
        ]
    (row,) = json.loads(answer(["generate", model, "-", *short], capsys, "one\n"))["rows"]
    assert row["prompt"] == data[0]["prompt"]  # the end of the line is not a part of the text
    for verb in ("embed", "look"):
        assert answer(
            [verb, model, "-", "--json", *(["*.q"] if verb == "look" else [])], capsys, "one\n"
        )


def test_pictures_of_one_head_and_on_standard_output(
    model: str, tmp_path: Path, capfdbinary: Any
) -> None:
    def drawn(*words: str) -> bytes:
        assert main(["look", model, "Once", "--draw", *words]) == 0
        sys.stdout.flush()
        return bytes(capfdbinary.readouterr().out)

    def weights(*words: str) -> list[list[float]]:
        return [item["weights"] for item in json.loads(drawn("--json", "*.0.attn.pattern", *words))]

    heads = [np.array(weights("--head", str(head))) for head in range(4)]
    assert np.allclose(np.mean(heads, 0), weights(), atol=1e-6) and not np.allclose(
        heads[0], heads[1]
    )
    alignments = json.loads(drawn("--json"))
    # of each a map and the scale of its colours
    assert drawn("--out", "-").count(b"data:image/png") == 2 * len(alignments) == 4
    drawn("--out", str(tmp_path / "all.svg"))
    picture = (tmp_path / "all.svg").read_text(encoding="utf-8")
    assert all(f">{alignment['path']}</text>" in picture for alignment in alignments)
    assert main(["masks", "full", "--out", "-"]) == 0
    sys.stdout.flush()
    assert capfdbinary.readouterr().out.startswith(b"<svg")
    assert main(["look", model, "Once", "--draw", "--head", "4"]) == 2
    assert b"heads 0 to 3" in capfdbinary.readouterr().err


def test_a_space_looks_the_same_in_a_picture_and_in_the_lens(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["look", model, "Once upon a", "--draw", "--json", "*.0.attn.pattern"]) == 0
    rows = json.loads(capsys.readouterr().out)[0]["rows"]
    assert main(["lens", model, "Once upon a"]) == 0
    table = capsys.readouterr().out
    assert any("·" in row for row in rows) and all(f":{row}" in table for row in rows), (
        rows,
        table,
    )


def test_the_device_is_chosen_said_and_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from glassformer.core.nn import device as devices
    from glassformer.formats import store

    words = ["generate", model, "Once", "--max-new", "1", "--temperature", "0"]
    assert main(words) == 0
    assert capsys.readouterr().err == ""  # nothing to choose on a machine without a GPU
    assert main([*words, "--dtype", "bfloat16"]) == 0
    assert capsys.readouterr().err == f"{model} computes on cpu in bfloat16.\n"
    for name, message in (
        ("cuda", "no device cuda that torch"),
        ("cuda:3", "no device cuda:3"),
        ("gpu", 'no device "gpu"'),
    ):
        assert main([*words, "--device", name]) == 2
        assert message in capsys.readouterr().err
    requests = []
    real = store.load

    def load(name: str, **options: Any) -> Any:
        requests.append(str(options["device"]))
        return real(name, **(options | {"device": "cpu"}))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Pretended GPU")
    monkeypatch.setattr(store, "load", load)
    for verb in (
        ["generate", "Once"],
        ["look", "Once", "*.q"],
        ["embed", "Once"],
        ["eval", "--data", __file__],
    ):
        for device in ("cuda", "cuda:1"):
            assert (
                main(
                    [verb[0], model, *verb[1:], *(["--device", device] if device != "cuda" else [])]
                )
                == 0
            )
            assert f"computes on {device} (Pretended GPU) in float32." in capsys.readouterr().err
            assert requests.pop() == device
    assert (
        main(
            ["generate", model, "Once", "--max-new", "1", "--out", str(tmp_path / "answers.jsonl")]
        )
        == 0
    )
    assert "The engine computes on the CPU; --device cuda takes the GPU." in capsys.readouterr().err
    assert requests.pop() == "cpu"
    assert main([*words, "--device", "cuda:2"]) == 2
    assert "there is cpu, cuda:0 to cuda:1." in capsys.readouterr().err
    assert devices.find("mps" if torch.backends.mps.is_available() else "cpu")


def test_a_file_of_ones_own_is_used_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_use: list[str] = []
    monkeypatch.setattr("glassformer.core.config.extend.use", in_use.append)
    for words in (
        ["recipes", "--json"],
        ["cost", "glass/1m"],
        ["look", "glass/1m", "x"],
        ["masks"],
    ):
        assert main([*words, "--use", "one.py", "--use", "two.py"]) == 0
        assert in_use == ["one.py", "two.py"]
        in_use.clear()
    capsys.readouterr()
    for verb, result in parser(VERBS).verbs.items():
        takes = {"--use" in leaf.options for leaf in (result.verbs or {"": result}).values()}
        assert takes == (
            {False}
            if verb in ("data", "tokens", "completion", "docs", "doctor", "learn", "define")
            else {True, False}
            if verb == "words"
            else {True}
        )
    monkeypatch.undo()
    (tmp_path / "bad.py").write_text("import nonesuch\n")
    assert main(["recipes", "--use", str(tmp_path / "bad.py")]) == 2
    assert "bad.py, line 1: ModuleNotFoundError" in capsys.readouterr().err


def test_a_training_goes_on_on_another_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from glassformer.core.nn import device as devices

    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(f"{i} and {i + 1}.\n" for i in range(80)))
    size = [
        "--dim",
        "16",
        "--decoder.depth",
        "1",
        "--decoder.pattern.attention.heads",
        "2",
        "--context",
        "16",
    ]
    words = [
        "train",
        "--data.train",
        "text.txt",
        "--data.tokenizer",
        "char",
        *size,
        "--batch",
        "2",
        "--dtype",
        "float32",
    ]
    words += ["--steps", "2", "--sample_every", "0", "--tensorboard", "false", "--out", "out"]
    assert main([*words, "--device", "cuda"]) == 2
    assert "This machine has no device cuda" in capsys.readouterr().err and not Path("out").exists()
    assert main([*words, "--device", "cpu"]) == 0
    assert "Training on cpu." in capsys.readouterr().err
    monkeypatch.setattr(
        devices, "find", lambda name: torch.device("cpu") if name == "cuda:1" else None
    )
    assert main([*words, "--device", "cuda:1", "--resume"]) == 0


def test_a_name_alone_means_published_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "gpt2", "x"]) == 2
    assert (
        "gpt2 means openai-community/gpt2 on the hub, which is not a folder here"
        in capsys.readouterr().err
    )
    assert main(["generate", "glass/1m", "x"]) == 2
    assert "glass/1m has no tokenizer: it is an untrained shape" in capsys.readouterr().err
    assert main(["look", "glass/1m", "x"]) == 0
    assert "glass/1m is an untrained shape: its weights are random." in capsys.readouterr().err


def test_all_that_run_files_use_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from glassformer.core import files
    from glassformer.runs import run_file

    lines = answer(["data"], capsys).splitlines()
    for path in run_file.run_files().values():
        data = files.read_toml(path)["data"]
        for value in (data["train"], data.get("valid")):
            names = (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list)
                else [value]
            )
            for name in (
                name for name in names if isinstance(name, str) and not name.startswith("out/")
            ):
                folder, _, file = name.partition("/")
                assert any(line.startswith(folder) and file in line for line in lines), name


def test_perplexity_is_explained(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", model, "--data", __file__, "--context", "16"]
    assert main(words) == 0
    figures, notes = capsys.readouterr()
    assert figures.startswith("loss") and "in windows that move on by 8 (--stride)" in notes
    assert (
        json.loads(answer([*words, "--json"], capsys)).items()
        >= {"context": 16, "stride": 8}.items()
    )


def test_long_work_is_heard_of_outside_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(common.time, "monotonic", lambda: clock[0])
    report = common.progress_counter("texts")
    for done, now in ((1, 10.0), (2, 29.9), (3000, 30.0), (3001, 59.0), (4000, 61.0)):
        clock[0] = now
        report(done)
    assert capsys.readouterr().err == "3,000 texts so far\n4,000 texts so far\n"


def test_a_dash_is_standard_input_and_output(model: str, tmp_path: Path, capfdbinary: Any) -> None:
    from safetensors.numpy import load

    message = "Once upon a time there was a little girl. " * 3
    (tmp_path / "text.txt").write_text(message)

    def got(*words: str) -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO(message))
            assert main(list(words)) == 0
        sys.stdout.flush()
        return bytes(capfdbinary.readouterr().out)

    def figures(name: str) -> dict[str, object]:
        return json.loads(got("eval", model, "--data", name, "--json")) | {"seconds": 0}

    assert figures("-") == figures(str(tmp_path / "text.txt"))
    assert json.loads(got("data", "-", "--json"))["bytes"] == len(message)
    assert load(got("embed", model, "one", "--out", "-"))["vectors"].shape[0] == 1


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


def test_a_run_is_edited_by_the_line_that_python_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import glassformer
    from glassformer.core.nn import build_model
    from glassformer.core.tokenizer import train
    from glassformer.formats.data import find as find_corpus
    from glassformer.sight.edits import head_off, swap_token

    tokenizer = train("byte")
    block = c.Block(c.Attention(4), c.MLP(32))
    stack = c.Stack(2, (block,), c.Rotary())
    model = build_model(
        c.Decoder(16, 32, c.Embed(tokenizer.size), stack, init=c.Init(std=0.3)), seed=1
    )
    glassformer.save(model, tmp_path / "one", tokenizer)
    (tmp_path / "text.txt").write_text("some text to be read")
    edits = [head_off("decoder.blocks.0.attn", 1), swap_token(0, "x")]
    words = [word for edit in edits for word in ("--edit", str(edit))]
    message = str(tmp_path / "one")
    assert main(["look", message, "abc", "logits", "--json", *words]) == 0
    look = glassformer.look(model, tokenizer, "abc", "logits", edits=edits)["logits"]
    data = json.loads(capsys.readouterr().out)
    assert (
        np.allclose(data["logits"]["values"], look.numpy(), atol=1e-5)
        and data["tokens"]["pieces"][0] == "x"
    )
    assert (
        main(["generate", message, "abc", "--temperature", "0", "--max-new", "5", "--json", *words])
        == 0
    )
    output = glassformer.generate(
        model, tokenizer, "abc", temperature=0, max_new=5, edits=edits
    ).run()
    assert json.loads(capsys.readouterr().out)["rows"][0]["tokens"] == output.tokens[0]
    assert main(["eval", message, "--data", str(tmp_path / "text.txt"), "--json", *words[:2]]) == 0
    score = glassformer.tasks.evaluation.score(
        model, tokenizer, find_corpus(tmp_path / "text.txt"), edits=edits[:1]
    )
    assert math.isclose(json.loads(capsys.readouterr().out)["loss"], score.loss, rel_tol=1e-5)
    assert (
        main(["look", message, "abc", "logits", "--edit", "head_off('decoder.blocks.0.atn', 1)"])
        == 2
    )
    assert 'Did you mean "decoder.blocks.0.attn"' in capsys.readouterr().err


def test_edits_change_what_is_classified_embedded_and_translated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Edits act as in Python; an edit of a path that the model lacks is refused."""
    import glassformer
    from glassformer.core.nn import build_model
    from glassformer.core.tokenizer import train
    from glassformer.sight.edits import head_off, mlp_off
    from glassformer.tasks import predictions, translation

    tokenizer = train("byte")
    block, loud = c.Block(c.Attention(4), c.MLP(32)), c.Init(std=0.4)
    stack = c.Stack(2, (block,), c.Rotary(), causal=False)
    crossed = c.Stack(2, (dataclasses.replace(block, cross=c.Attention(4)),), c.Rotary())
    embed = c.Embed(tokenizer.size)
    label, texts = c.Pool("mean", labels=2), ["some text", "more"]
    classifier = build_model(c.Encoder(16, 32, embed, stack, None, loud, label), seed=1)
    pair = build_model(c.EncoderDecoder(16, 32, embed, stack, crossed, c.Head(), loud), seed=1)
    reads = build_model(c.Encoder(16, 32, embed, stack, None, loud, c.Pool("mean")), seed=2)
    for model, name in ((classifier, "labels"), (pair, "pair"), (reads, "vectors")):
        glassformer.save(model, tmp_path / name, tokenizer)
    edits = [head_off("encoder.blocks.0.attn", 1), mlp_off("encoder.blocks.1.ffn")]
    words = [word for edit in edits for word in ("--edit", str(edit))]
    labels, pairs = str(tmp_path / "labels"), str(tmp_path / "pair")

    assert main(["classify", labels, *texts, "--json", *words]) == 0
    rows = [list(json.loads(line).values())[1:] for line in capsys.readouterr().out.splitlines()]
    plain = predictions.classify(classifier, tokenizer, texts)
    logits = predictions.classify(classifier, tokenizer, texts, edits=edits)
    assert np.allclose(rows, logits, atol=1e-6) and not np.allclose(rows, plain, atol=1e-3)

    assert main(["embed", str(tmp_path / "vectors"), *texts, "--json", *words]) == 0
    rows = [json.loads(line)["vector"] for line in capsys.readouterr().out.splitlines()]
    logits, plain = (
        predictions.embed(reads, tokenizer, texts, edits=group) for group in (edits, ())
    )
    assert np.allclose(rows, logits, atol=1e-5) and not np.allclose(rows, plain, atol=1e-3)

    options = {"beams": 2, "max_new": 5}
    assert (
        main(["translate", pairs, *texts, "--beams", "2", "--max-new", "5", "--json", *words]) == 0
    )
    rows = [json.loads(line)["best"][0] for line in capsys.readouterr().out.splitlines()]
    for row, (best, *_) in zip(
        rows, translation.search(pair, tokenizer, texts, edits=edits, **options), strict=True
    ):
        assert row["tokens"] == best.tokens and math.isclose(row["score"], best.score, rel_tol=1e-4)
    scores = [best.score for best, *_ in translation.search(pair, tokenizer, texts, **options)]
    assert not np.allclose([row["score"] for row in rows], scores, atol=1e-3)

    for command, model in (
        ("classify", labels),
        ("embed", str(tmp_path / "vectors")),
        ("translate", pairs),
    ):
        assert main([command, model, "abc", "--edit", "head_off('encoder.blocks.9.attn', 1)"]) == 2
        assert 'Did you mean "encoder.blocks.' in capsys.readouterr().err

    assert main(["attribution", labels, "some text", "--json", *words]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["piece"].startswith("label") and data["difference"] < 1e-5
    assert math.isclose(data["sum"], data["logit"], abs_tol=1e-5)
    assert main(["attribution", labels, "some text"]) == 0
    assert "The logit of label" in capsys.readouterr().out
    glassformer.save(classifier, tmp_path / "named", tokenizer, labels=("bad", "good"))
    assert (
        main(
            [
                "attribution",
                str(tmp_path / "named"),
                "some text",
                "--token",
                "good",
                "--against",
                "bad",
            ]
        )
        == 0
    )
    by_name = capsys.readouterr().out
    assert by_name.startswith('The logit of label 1 ("good") less that of label 0 ("bad")')
    assert main(["attribution", labels, "some text", "--token", "1", "--against", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == by_name.splitlines()[1:]


def test_a_grid_of_patches_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import glassformer
    from glassformer.core.nn import build_model
    from glassformer.core.tokenizer import train

    tokenizer = train("byte")
    stack = c.Stack(2, (c.Block(c.Attention(4), c.MLP(32)),), c.Rotary())
    model = build_model(
        c.Decoder(16, 32, c.Embed(tokenizer.size), stack, init=c.Init(std=0.3)), seed=1
    )
    glassformer.save(model, tmp_path / "one", tokenizer)
    words = ["patch", str(tmp_path / "one"), "the cat", "the dog", "--answer", "x", "--wrong", "y"]
    grid = glassformer.patch_grid(model, tokenizer, "the cat", "the dog", answer="x", wrong="y")
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert np.allclose(data["parts"][1]["value"], grid["attn.write"].value, atol=1e-5)
    assert main([*words, "--parts", "z", "--positions", "4,6"]) == 0
    message, notes = capsys.readouterr()
    assert (
        "L1.h3" in message and "4:d<c" in message and "logit difference of x less y at 6" in notes
    )
    assert main([*words, "--positions", "4,x"]) == 2
    assert "such as 2,3" in capsys.readouterr().err
    assert main([*words[:3], "a dog", *words[4:]]) == 2
    assert "7 and 5 tokens" in capsys.readouterr().err
