"""The command line as a whole: help, examples, options anywhere, settings that are listed,
completion."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import glassformer
from folders import read_rows
from glassformer import config as c
from glassformer import load
from glassformer.cli import main, overview, parser
from glassformer.commands import GROUPS, VERBS, common, completion, parsing
from glassformer.commands import words as word_tasks
from glassformer.commands.parsing import Parser
from glassformer.core import files
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train
from glassformer.fast import device as devices
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.formats.data import find as find_corpus
from glassformer.runs import run_file, settings
from glassformer.sight.edits import head_off, mlp_off, swap_token
from glassformer.tasks import predictions, translation
from mistakes import mistake
from terminal import Terminal
from tiny import DECODERS

COMMAND = [sys.executable, "-m", "glassformer"]
EXAMPLES = [
    line for verb in VERBS for line in import_module(f"glassformer.commands.{verb}").EXAMPLES
]


def understood(line: str) -> dict[str, object]:
    words = shlex.split(line)
    # torchrun may stand before it
    return vars(parser(VERBS).parse(words[words.index("glassformer") + 1 :]))


@pytest.mark.parametrize(
    "line", ["", "help", "--help", "-h", "help train", "train --help", "words"]
)
def test_help(line, capsys):
    try:
        code = main(line.split())
    except SystemExit as ended:  # argparse's way
        code = ended.code
    message, notes = capsys.readouterr()
    assert (code, notes) == (0, "")
    topic = next((word for word in ("train", "words") if word in line), "")
    assert message.startswith(f"usage: glassformer {topic}")


def test_the_overview_names_every_command_within_the_terminal(
    monkeypatch,
):
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
def test_version(word):
    assert subprocess.run([*COMMAND, word], capture_output=True, check=True).stdout.startswith(
        b"glassformer "
    )


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_are_understood(line):
    if ">" not in line:
        assert understood(line)["run"]


def test_every_command_and_every_task_has_an_example():
    def every(result):
        return [inner for verb in result.verbs.values() for inner in every(verb)] or [result]

    assert all(f"examples:\n  {item.prog} " in item.format_help() for item in every(parser(VERBS)))


@pytest.mark.parametrize(
    "line, result",
    [
        ('generate S --max-new 5 "Once upon"', {"prompt": ["Once upon"], "max_new": 5}),
        ("generate S one --json two", {"prompt": ["one", "two"], "json": True}),
        ("generate --seed 1 S -- -5 --json", {"prompt": ["-5", "--json"], "seed": 1}),
        ("look M text --json '*.q'", {"text": "text", "pattern": ["*.q"], "json": True}),
        ("words near V --json king", {"vectors": "V", "word": "king", "run": word_tasks.near}),
        ("train run.toml --out o --steps 5", {"extra": ["run.toml", "--steps", "5"], "out": "o"}),
        ("train --steps 5 --out o run.toml", {"extra": ["--steps", "5", "run.toml"], "out": "o"}),
    ],
)
def test_options_stand_anywhere(line, result):
    assert result.items() <= understood(f"glassformer {line}").items()


def test_a_signature_is_a_command_line():
    """Types, bounds and defaults of the function; the docstring's lines are the help."""

    def command(
        place: str, names: parsing.Words = (), *, size: parsing.Count = 3, dry_: bool = False
    ):
        """Does something.

        place PLACE: where
        names NAME: which
        a group
        size N: how large
        dry_: not really
        """
        return place, names, size, dry_

    parser = Parser(prog="command")
    parsing.add_arguments(parser, command, "")
    text = parser.format_help()
    assert "a group:\n  --size N" in text
    assert "how large (3)" in text
    assert "--dry " in text
    assert parsing.bound(command, parser.parse(["here"]))() == ("here", (), 3, False)
    words = ["--dry", "here", "--size", "2", "a", "b"]
    assert parsing.bound(command, parser.parse(words))() == ("here", ["a", "b"], 2, True)
    with mistake("--size is 0; give 1 or more"):
        parsing.bound(command, parser.parse(["here", "--size", "0"]))


def test_every_setting_is_listed_with_its_meaning(terminal):
    assert all(setting.meaning for setting in settings.all_settings())
    output = terminal("train --settings")
    assert "--steps (integer = 1000): optimizer steps" in output
    assert "--decoder.pattern.attention.kv_heads (integer" in output


@pytest.mark.parametrize(
    "line, result",
    [
        ("gen", "generate"),
        ("words ne", "near"),
        ("fill M --order ", "apart left sure"),
        ("generate M --max", "--max-new"),
        ("train --decoder.dep", "--decoder.depth"),
        ("generate M --seed ", ""),
        ("completion z", "zsh"),
    ],
)
def test_completion(line, result):
    assert completion.candidates(line.split(" ")) == result.split()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A tiny decoder with a tokenizer of bytes, as a folder."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    result = replace(DECODERS["llama"], embed=c.Embed(300), context=32)
    store.save(build_model(result, seed=1), folder, train("byte"), layout="glassformer")
    return str(folder)


def test_the_next_tokens_and_their_probabilities(model, terminal):
    """Probabilities of look and generate are the softmax of the model's own logits."""
    single_model, tokenizer = load(model)
    ids = tokenizer.encode("Once")
    with torch.no_grad():
        logits = single_model(torch.tensor([ids])).logits[0]
    logprobs = logits.log_softmax(-1)[:, : tokenizer.size]
    best = logprobs.topk(3)
    looked = terminal.json(f"look {model} Once --next 3")
    predicted = terminal.json(f"look {model} --logprobs 3 Once")
    (following,) = terminal.json(f"generate {model} Once --next 3")["rows"]
    drawn = f"generate {model} Once --logprobs 3 --max-new 2 --seed 1"
    (row,) = terminal.json(drawn)["rows"]
    for output in (looked, predicted[-1]["next"], following["next"], row["likely"][0]):
        tokens, values, pieces = zip(
            *((item["token"], item["logprob"], item["piece"]) for item in output), strict=True
        )
        assert list(tokens) == best.indices[-1].tolist()
        assert values == pytest.approx(best.values[-1].tolist(), abs=1e-5)
        assert list(pieces) == [tokenizer.token(id) for id in tokens]
    assert [item["token"] for item in predicted] == ids
    assert [item["logprob"] for item in predicted[1:]] == pytest.approx(
        [logprobs[at, id].item() for at, id in enumerate(ids[1:])], abs=1e-5
    )
    assert row["pieces"] == [tokenizer.token(id) for id in row["tokens"]]
    assert len(row["likely"]) == len(row["tokens"])
    for verb in ("look", "generate"):
        assert f"{best.values[-1, 0].exp():.4f}" in terminal(f"{verb} {model} Once --next 1")
    text = terminal("look tiny 'The cat' --logprobs 2")
    assert "·c" in text and "Ġ" not in text, "a space is shown as a sign"
    assert terminal(drawn).count("0.") == 6


def test_many_prompts_into_a_file_say_what_they_say_at_once(model, tmp_path, terminal):
    prompts = tmp_path / "prompts.jsonl"
    out = tmp_path / "out.jsonl"
    prompts.write_text("".join(f'{{"text": "{text}"}}\n' for text in ("Once", "Two", "Once", "x")))
    line = f"generate {model} --prompts {prompts} --seed 4 --max-new 5 --samples 2"
    rows = terminal.json(line)["rows"]
    assert "4 prompts, 40 new tokens" in terminal(f"{line} --out {out}")
    lines = read_rows(out)
    for name in ("tokens", "text"):
        assert [line[name] for line in lines] == [row[name] for row in rows]
    numbers = [(line["number"], line["sample"]) for line in lines]
    assert numbers == list(itertools.product(range(4), range(2)))
    assert "there already" in terminal.refused(f"{line} --out {out}")


def test_prompts_come_from_a_file_and_from_standard_input(model, tmp_path, terminal):
    lines = tmp_path / "lines.txt"
    table = tmp_path / "table.jsonl"
    # as Windows writes them; a lone return ends no line
    lines.write_bytes("\ufeffone\r\ntwo\u2028\r and\n".encode())
    table.write_text('\ufeff{"text": "one"}\n{"prompt": "two\\u2028\\r and"}\n')

    def rows(*words, stdin=b""):
        line = f"generate {model} --max-new 2 --temperature 0"
        rows = terminal.json(line, *words, stdin=stdin)["rows"]
        return [row | {"logprobs": None} for row in rows]

    data = rows("one", "two\u2028\r and")
    for name in (lines, table, "-"):
        assert rows("--prompts", name, "--batch", 1, stdin=lines.read_bytes()) == data
    (row,) = rows("-", stdin=b"one\n")
    assert row["prompt"] == data[0]["prompt"]  # the end of the line is not a part of the text
    for line in (f"embed {model} -", f"look {model} - *.q"):
        assert terminal.json(line, stdin=b"one\n")


def test_pictures_of_one_head_and_on_standard_output(model, tmp_path, capfdbinary):
    terminal = Terminal(capfdbinary)

    def weights(more=""):
        drawn = terminal.json(f"look {model} Once --draw *.0.attn.pattern {more}")
        return [item["weights"] for item in drawn]

    heads = [np.array(weights(f"--head {head}")) for head in range(4)]
    assert np.allclose(np.mean(heads, 0), weights(), atol=1e-6)
    assert not np.allclose(heads[0], heads[1])
    line = f"look {model} Once --draw"
    alignments = terminal.json(line)
    # of each a map and the scale of its colours
    assert terminal(f"{line} --out -").count(b"data:image/png") == 2 * len(alignments) == 4
    terminal(f"{line} --out {tmp_path}/all.svg")
    picture = (tmp_path / "all.svg").read_text(encoding="utf-8")
    assert all(f">{alignment['path']}</text>" in picture for alignment in alignments)
    assert terminal("masks full --out -").startswith(b"<svg")
    assert b"heads 0 to 3" in terminal.refused(f"{line} --head 4")


def test_a_space_looks_the_same_in_a_picture_and_in_the_lens(model, terminal):
    (picture,) = terminal.json(f"look {model} 'Once upon a' --draw *.0.attn.pattern")
    table = terminal(f"lens {model} 'Once upon a'")
    rows = picture["rows"]
    assert any("·" in row for row in rows) and all(f":{row}" in table for row in rows), table


def test_the_device_is_chosen_said_and_refused(model, tmp_path, terminal, monkeypatch):
    line = f"generate {model} Once --max-new 1 --temperature 0"
    terminal(line)
    assert terminal.notes == ""  # nothing to choose on a machine without a GPU
    terminal(f"{line} --dtype bfloat16")
    assert terminal.notes == f"{model} computes on cpu in bfloat16.\n"
    for name, message in (
        ("cuda", "no device cuda that torch"),
        ("cuda:3", "no device cuda:3"),
        ("gpu", 'no device "gpu"'),
    ):
        assert message in terminal.refused(f"{line} --device {name}")
    requests = []
    real = Checkpoint.model

    def load(checkpoint, **options):
        requests.append(str(options["device"]))
        return real(checkpoint, **(options | {"device": "cpu"}))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Pretended GPU")
    monkeypatch.setattr(Checkpoint, "model", load)
    for words in ("generate {} Once", "look {} Once *.q", "embed {} Once", "eval {} --data {}"):
        for device, option in (("cuda", ""), ("cuda:1", "--device cuda:1")):
            terminal(f"{words.format(model, __file__)} {option}")
            assert f"computes on {device} (Pretended GPU) in float32." in terminal.notes
            assert requests.pop() == device
    terminal(f"generate {model} Once --max-new 1 --out {tmp_path}/answers.jsonl")
    assert "The engine computes on the CPU; --device cuda selects the GPU." in terminal.notes
    assert requests.pop() == "cpu"
    assert "there is cpu, cuda:0 to cuda:1." in terminal.refused(f"{line} --device cuda:2")
    assert devices.find("mps" if torch.backends.mps.is_available() else "cpu")


def test_a_file_of_ones_own_is_used_before_anything_else(tmp_path, terminal, monkeypatch):
    in_use = []
    monkeypatch.setattr("glassformer.formats.extend.use", in_use.append)
    for line in ("recipes --json", "cost glass/1m", "look glass/1m x", "masks"):
        terminal(f"{line} --use one.py --use two.py")
        assert in_use == ["one.py", "two.py"]
        in_use.clear()
    without = ["data", "tokens", "completion", "docs", "doctor", "learn", "define"]
    for verb, result in parser(VERBS).verbs.items():
        takes = {"--use" in leaf.options for leaf in (result.verbs or {"": result}).values()}
        assert takes == ({True, False} if verb == "words" else {verb not in without})
    monkeypatch.undo()
    (tmp_path / "bad.py").write_text("import nonesuch\n")
    notes = terminal.refused(f"recipes --use {tmp_path}/bad.py")
    assert "bad.py, line 1: ModuleNotFoundError" in notes


def test_a_training_goes_on_on_another_device(tmp_path, terminal, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(f"{i} and {i + 1}.\n" for i in range(80)))
    line = (
        "train --data.train text.txt --data.tokenizer char --dim 16 --decoder.depth 1"
        " --decoder.pattern.attention.heads 2 --context 16 --batch 2 --dtype float32 --steps 2"
        " --sample_every 0 --tensorboard false --out out --device "
    )
    assert "This machine has no device cuda" in terminal.refused(f"{line}cuda")
    assert not Path("out").exists()
    terminal(f"{line}cpu")
    assert "Training on cpu." in terminal.notes
    monkeypatch.setattr(devices, "find", {"cuda:1": torch.device("cpu")}.get)
    terminal(f"{line}cuda:1 --resume")


def test_a_name_alone_means_published_weights(terminal):
    notes = terminal.refused("generate gpt2 x")
    assert "gpt2 means openai-community/gpt2 on the hub, which is not a folder here" in notes
    notes = terminal.refused("generate glass/1m x")
    assert "glass/1m has no tokenizer: it is an untrained shape" in notes
    terminal("look glass/1m x")
    assert "glass/1m is an untrained shape: its weights are random." in terminal.notes


def test_all_that_run_files_use_is_listed(terminal):
    lines = terminal("data").splitlines()
    for path in run_file.run_files().values():
        data = files.read_toml(path)["data"]
        for value in (data["train"], data.get("valid")):
            names = value.values() if isinstance(value, dict) else np.ravel(value)
            for name in (item for item in names if isinstance(item, str)):
                folder, _, file = name.partition("/")
                listed = any(line.startswith(folder) and file in line for line in lines)
                assert folder == "out" or listed, name


def test_perplexity_is_explained(model, terminal):
    line = f"eval {model} --data {__file__} --context 16"
    assert terminal(line).startswith("loss")
    assert "in windows that move on by 8 (--stride)" in terminal.notes
    data = terminal.json(line)
    assert (data["context"], data["stride"]) == (16, 8)


@pytest.mark.parametrize(
    "options",
    ["--out new.txt", "--beams 3", "--figures bleu", "--before x", "--lower", "--shots 2"],
)
def test_an_option_of_other_figures_is_refused(options, model, terminal):
    """A text's loss is no translation, and no task of a harness."""
    sentence = terminal.refused(f"eval {model} --data {__file__} {options}")
    assert options.split()[0] in sentence and "leave" in sentence


def test_long_work_is_heard_of_outside_a_terminal(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(common.time, "monotonic", lambda: clock[0])
    report = common.progress_counter("texts")
    for done, clock[0] in ((1, 10.0), (2, 29.9), (3000, 30.0), (3001, 59.0), (4000, 61.0)):
        report(done)
    assert capsys.readouterr().err == "3,000 texts so far\n4,000 texts so far\n"


def test_a_dash_is_standard_input_and_output(model, tmp_path, capfdbinary):
    from safetensors.numpy import load

    terminal = Terminal(capfdbinary)
    message = b"Once upon a time there was a little girl. " * 3
    (tmp_path / "text.txt").write_bytes(message)

    def figures(name):
        return terminal.json(f"eval {model} --data {name}", stdin=message) | {"seconds": 0}

    assert figures("-") == figures(tmp_path / "text.txt")
    assert terminal.json("data -", stdin=message)["bytes"] == len(message)
    assert load(terminal(f"embed {model} one --out -"))["vectors"].shape[0] == 1


@pytest.fixture(scope="module")
def loud(tmp_path_factory):
    """Models whose numbers an edit changes much, their tokenizer and folders by name."""
    tokenizer = train("byte")
    home = tmp_path_factory.mktemp("loud")
    block = c.Block(c.Attention(4), c.MLP(32))
    embed = c.Embed(tokenizer.size)
    init = c.Init(std=0.4)
    causal = c.Stack(2, (block,), c.Rotary())
    bidirectional = c.Stack(2, (block,), c.Rotary(), causal=False)
    crossed = c.Stack(2, (replace(block, cross=c.Attention(4)),), c.Rotary())
    configs = {
        "decoder": c.Decoder(16, 32, embed, causal, init=c.Init(std=0.3)),
        "labels": c.Encoder(16, 32, embed, bidirectional, None, init, c.Pool("mean", labels=2)),
        "pair": c.EncoderDecoder(16, 32, embed, bidirectional, crossed, c.Head(), init),
        "vectors": c.Encoder(16, 32, embed, bidirectional, None, init, c.Pool("mean")),
    }
    models = {name: build_model(cfg, seed=1) for name, cfg in configs.items()}
    for name, built in models.items():
        glassformer.save(built, home / name, tokenizer)
    return models, tokenizer, {name: str(home / name) for name in models}


def edit_words(edits):
    return [word for edit in edits for word in ("--edit", str(edit))]


def test_completion_in_bash():
    script = (
        completion.SHELLS["bash"]
        + "\nCOMP_WORDS=(glassformer generate M --max); COMP_CWORD=3; _glassformer; echo $COMPREPLY"
    )
    called = f'glassformer() {{ {shlex.join(COMMAND)} "$@"; }}\n{script}'
    done = subprocess.run(["bash", "-c", called], capture_output=True, text=True, check=True)
    assert done.stdout == "--max-new\n"


def test_an_argument_that_is_not_utf_8():
    done = subprocess.run([*COMMAND, "generate", "M", b"caf\xe9"], capture_output=True)
    assert done.returncode == 2
    assert b"is not UTF-8 text" in done.stderr
    assert b"surrogate" not in done.stderr


def test_a_run_is_edited_by_the_line_that_python_takes(loud, tmp_path, terminal):
    models, tokenizer, folders = loud
    model = models["decoder"]
    folder = folders["decoder"]
    (tmp_path / "text.txt").write_text("some text to be read")
    edits = [head_off("decoder.blocks.0.attn", 1), swap_token(0, "x")]
    words = edit_words(edits)
    data = terminal.json(f"look {folder} abc logits", *words)
    look = glassformer.look(model, tokenizer, "abc", "logits", edits=edits)["logits"]
    assert np.allclose(data["logits"]["values"], look.numpy(), atol=1e-5)
    assert data["tokens"]["pieces"][0] == "x"
    (row,) = terminal.json(f"generate {folder} abc --temperature 0 --max-new 5", *words)["rows"]
    output = glassformer.generate(model, tokenizer, "abc", temperature=0, max_new=5, edits=edits)
    assert row["tokens"] == output.run().tokens[0]
    loss = terminal.json(f"eval {folder} --data {tmp_path}/text.txt", *words[:2])["loss"]
    corpus = find_corpus(tmp_path / "text.txt")
    score = glassformer.tasks.evaluation.score(model, tokenizer, corpus, edits=edits[:1])
    assert loss == pytest.approx(score.loss, rel=1e-5)
    notes = terminal.refused(
        f"look {folder} abc logits --edit", "head_off('decoder.blocks.0.atn', 1)"
    )
    assert 'Did you mean "decoder.blocks.0.attn"' in notes


def test_edits_change_what_is_classified_embedded_and_translated(loud, tmp_path, terminal):
    """Edits act as in Python; an edit of a path that the model lacks is refused."""
    models, tokenizer, folders = loud
    texts = ["some text", "more"]
    edits = [head_off("encoder.blocks.0.attn", 1), mlp_off("encoder.blocks.1.ffn")]
    words = [*texts, "--json", *edit_words(edits)]

    def lines(line):
        return map(json.loads, terminal(line, *words).splitlines())

    def compare(values, run):
        edited = run(edits)
        plain = run(())
        assert np.allclose(values, edited, atol=1e-5)
        assert not np.allclose(values, plain, atol=1e-3)

    rows = [list(row.values())[1:] for row in lines(f"classify {folders['labels']}")]
    compare(
        rows,
        lambda e: predictions.classify(models["labels"], tokenizer, texts, edits=e).probabilities,
    )
    rows = [row["vector"] for row in lines(f"embed {folders['vectors']}")]
    compare(rows, lambda e: predictions.embed(models["vectors"], tokenizer, texts, edits=e))

    def best(edits):
        translations = translation.translate(
            models["pair"], tokenizer, texts, edits=edits, beams=2, max_new=5
        )
        return [hypotheses[0] for hypotheses in translations]

    rows = [row["best"][0] for row in lines(f"translate {folders['pair']} --beams 2 --max-new 5")]
    assert [row["tokens"] for row in rows] == [hypothesis.tokens for hypothesis in best(edits)]
    compare([row["score"] for row in rows], lambda e: [item.score for item in best(e)])

    for line in ("classify {labels}", "embed {vectors}", "translate {pair}"):
        wrong = "head_off('encoder.blocks.9.attn', 1)"
        notes = terminal.refused(f"{line.format(**folders)} abc --edit", wrong)
        assert 'Did you mean "encoder.blocks.' in notes


def test_the_logit_of_a_label_is_attributed(loud, tmp_path, terminal):
    models, tokenizer, folders = loud
    line = f"attribution {folders['labels']} 'some text'"
    data = terminal.json(line, *edit_words([head_off("encoder.blocks.0.attn", 1)]))
    assert data["piece"].startswith("label")
    assert data["difference"] < 1e-5
    assert data["sum"] == pytest.approx(data["logit"], abs=1e-5)
    assert "The logit of label" in terminal(line)
    glassformer.save(models["labels"], tmp_path, tokenizer, labels=("bad", "good"))
    by_name = terminal(f"attribution {tmp_path} 'some text' --token good --against bad")
    assert by_name.startswith('The logit of label 1 ("good") less that of label 0 ("bad")')
    assert terminal(f"{line} --token 1 --against 0").splitlines()[1:] == by_name.splitlines()[1:]


def test_a_grid_of_patches_is_printed(loud, terminal):
    models, tokenizer, folders = loud
    line = f"patch {folders['decoder']} 'the cat' 'the dog' --answer x --wrong y"
    grid = glassformer.patch_grid(
        models["decoder"], tokenizer, "the cat", "the dog", answer="x", wrong="y"
    )
    values = terminal.json(line)["parts"][1]["value"]
    assert np.allclose(values, grid["attn.write"].value, atol=1e-5)
    message = terminal(f"{line} --parts z --positions 4,6")
    assert "L1.h3" in message
    assert "4:d<c" in message
    assert "logit difference of x less y at 6" in terminal.notes
    assert "such as 2,3" in terminal.refused(f"{line} --positions 4,x")
    assert "7 and 5 tokens" in terminal.refused(line.replace("the dog", "a dog"))


def test_verbs_that_look_inside_stand_under_inspect_too(terminal):
    assert "lens" in terminal("inspect") and "train:" not in terminal("inspect --help")
    assert terminal("inspect masks causal") == terminal("masks causal")
    assert "There is no inspect train" in terminal.refused("inspect train")


def test_each_token_of_a_conversation_is_shown_behind_its_weight(tmp_path, terminal):
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    train("bpe", ["the cat sat"] * 4, 300, specials).save(tmp_path / "own")
    layouts = {"chat": ("prompt", "completion"), "pairs": ("prompt", "chosen", "rejected")}
    texts = {"prompt": "the cat", "completion": "sat", "chosen": "sat", "rejected": "cat"}
    for name, fields in layouts.items():
        line = json.dumps({field: texts[field] for field in fields})
        (tmp_path / f"{name}.jsonl").write_text(f"{line}\n{line}\n")
    output = terminal(f"data {tmp_path}/chat.jsonl --with {tmp_path}/own --show 1")
    rows = [line.split() for line in output.splitlines()]
    assert ["counted", "4"] in rows
    assert [row[2] for row in rows if len(row) == 3 and row[0] == "1"] == ["sat", "<|im_end|>"]
    assert output.count("line ") == 1
    output = terminal.json(f"data {tmp_path}/pairs.jsonl --with {tmp_path}/own --show 1")
    assert (output["conversations"], output["texts"], len(output["shown"])) == (2, 4, 2)
    assert "--with MODEL" in terminal.refused(f"data {tmp_path}/chat.jsonl --show 1")
    refused = terminal.refused(f"data {tmp_path}/chat.jsonl --with {tmp_path}/own --template none")
    assert "none cannot be read" in refused
