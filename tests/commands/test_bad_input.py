"""What a user can get wrong at the command line: one sentence that says what to do, exit code 2,
nothing lost."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from folders import edit_json, snapshot, sums
from glassformer.cli import main
from glassformer.core import files
from glassformer.core.checkpoints import tensors as tensorfiles
from glassformer.core.nn import build_model
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.runs.signals import lock
from mistakes import SENTENCES
from tiny import DECODERS

COMMAND = [sys.executable, "-m", "glassformer"]
# what may be said before a mistake is found
PROGRESS = ("Training a ", "Going on from ", "Checkpoint ")
RUN = """
[model]
dim = 16
context = 16
decoder = { depth = 1, pattern = { attention = { heads = 2 } } }
[data]
train = "corpus.txt"
tokenizer = "char"
[train]
steps = 2
batch = 2
dtype = "float32"
sample_every = 0
tensorboard = false
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a corpus, a run file and a model trained by it: corpus.txt, run.toml,
    model/."""
    home = tmp_path_factory.mktemp("trained")
    (home / "corpus.txt").write_text(sums(80))
    (home / "run.toml").write_text(RUN)
    local = Path.cwd()
    os.chdir(home)
    try:
        assert main(["train", "run.toml", "--out", "model"]) == 0
    finally:
        os.chdir(local)
    return home


@pytest.fixture
def home(trained, tmp_path, monkeypatch):
    """A copy of it to break, as the working folder."""
    copy = tmp_path / "home"
    shutil.copytree(trained, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def step(home):
    """The checkpoint of model/."""
    return next((home / "model").glob("step-*"))


@pytest.fixture
def refused(home, terminal):
    """Run a command that must fail: one sentence, nothing on standard output, every file as it
    was."""

    def run(message, line, *words, stdin=b""):
        before = snapshot(home)
        assert terminal(line, *words, code=2, stdin=stdin) == ""
        sentence = one_sentence(terminal.notes)
        assert message in sentence
        assert snapshot(home) == before
        return sentence

    return run


def one_sentence(notes):
    """The only line on standard error that is not progress; it names the program and ends like a
    sentence."""
    lines = [line for line in notes.splitlines() if line and not line.startswith(PROGRESS)]
    assert len(lines) == 1, notes
    assert lines[0].startswith("glassformer: ")
    assert lines[0].endswith((".", "?"))
    assert "Traceback" not in notes
    return lines[0]


# -------------------------------------------------------------------------------------- prompts


def test_standard_input_as_the_prompt(home, refused, capsys):
    refused("The prompt is empty", "generate model -", stdin=b"")
    refused(
        "Standard input is not utf-8 text (byte 1); convert it",
        "generate model -",
        stdin=b"1\xff and",
    )
    refused("has 54 tokens", "generate model -", stdin=b"1 and " * 9)


def test_spaces_are_a_prompt_and_no_prompt_is_the_beginning(home, terminal):
    assert len(terminal("generate model '  ' --max-new 3 --temperature 0")) <= 4
    assert len(terminal.json("generate model --max-new 3")["rows"]) == 1


def test_a_token_that_the_model_does_not_know(step, refused):
    """The tokenizer of another model: its ids are past the end of this one's table. Checksums would
    tell first."""
    from glassformer.core.tokenizer import train as train_tokenizer

    train_tokenizer("byte", []).save(step)
    (step / "SHA256SUMS").unlink()
    refused("Token id 49 is out of range: this model knows 0 to ", "generate model '1 and'")
    refused("Token id 49 is out of range: this model knows 0 to ", "look model '1 and' '*.q'")
    refused("The text has token ids above ", "eval model --data corpus.txt")


@pytest.mark.parametrize(
    "line",
    [
        *(
            f"generate NAME a --{name} -1"
            for name in ["max-new", "temperature", "top-k", "top-p", "samples"]
        ),
        *(f"translate NAME a --{name} 0" for name in ("beams", "best", "max-new", "batch")),
        "fill NAME 'a ___' --top 0",
        "embed NAME a --batch 0",
        "classify NAME a --batch 0",
    ],
)
def test_numbers_are_checked_before_a_model_is_loaded(refused, line):
    name = "no/such-model-anywhere"
    assert name not in refused("; give ", line.replace("NAME", name))


def test_a_decoder_that_never_learned_pairs_is_not_asked_to_translate(step, refused):
    refused("use `glassformer generate`", f"translate model/{step.name} '1 and'")


# ------------------------------------------------------------------------------ commands, names


@pytest.mark.parametrize(
    "line, message",
    SENTENCES["commands"].items(),
)
def test_commands_and_names(refused, line, message):
    refused(message, line)
    assert not Path("out").exists()


# ------------------------------------------------------------------------------------ run files


@pytest.mark.parametrize(
    "content, message",
    [
        (b'[model]\nrecipe = "glass/1m"\n[train\nsteps = 3\n', "line 3"),
        (b"\x00\x01\x02", "is not valid TOML"),
        (b"# \xe9\n", "is not valid TOML"),
        (b"[train]\nstpes = 3\n", 'Train has no setting "stpes". Did you mean "steps"?'),
        (b"[trian]\nsteps = 3\n", 'A run file has no table "trian". Did you mean "train"?'),
        (
            b'[model]\nrecpie = "glass/4m"\ndim = 16\n',
            'model: there is no setting "recpie". Did you mean "recipe"?',
        ),
        (
            b"[model]\ndim = 16\nnum_layers = 3\n",
            'Did you mean "decoder.depth" or "encoder.depth"?',
        ),
        (
            b"steps = 5\n[train]\nbatch = 3\n",
            '"steps" stands outside of any table; put it below [train]',
        ),
        (b"[model]\nsteps = 5\n", '"steps" stands in [model]; put it below [train]'),
        (
            b"[train]\noptimizer = { lr = 1e-3, momentun = 2 }\n",
            'Muon has no setting "momentun". Did you mean "momentum"?',
        ),
        (b"[model]\ndecoder.dpeth = 3\n", 'decoder has no setting "dpeth". Did you mean "depth"?'),
        (
            b'[model]\nrecipe = "glas/1m"\n',
            'There is no recipe "glas/1m". Did you mean "glass/1m"?',
        ),
        (
            b'[train]\noptimizer = "Adam"\n',
            'train.optimizer: there is no "Adam"; give one of AdamW, Muon',
        ),
    ],
)
def test_run_files(home, refused, content, message):
    (home / "broken.toml").write_bytes(content)
    refused(message, "train broken.toml --out out")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "bad.txt is empty; give a file with some text"),
        (bytes(range(256)) * 9, "bad.txt is a binary file (a zero byte at byte 0)"),
        (b"caf\xe9 " * 99, "bad.txt is not UTF-8 text (byte 3); convert it"),
        (b"too short", "too few for one context of 16"),
    ],
)
def test_corpora(home, refused, content, message):
    (home / "bad.txt").write_bytes(content)
    refused(message, "train run.toml --data.train bad.txt --out o")
    if message.startswith("bad.txt"):
        refused(message, "eval model --data bad.txt")


# ------------------------------------------------------------------------------- damaged models


@pytest.fixture
def published(home):
    """A Llama in Hugging Face layout, in three shards: llama/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorfiles, "SHARD", 40_000)
        _, tokenizer = store.load(home / "model")
        store.save(build_model(DECODERS["llama"], seed=1), home / "llama", tokenizer, layout="hf")
    return home / "llama"


@pytest.mark.parametrize(
    "harm, message",
    [
        (
            lambda path: path.write_bytes(path.read_bytes()[:-100]),
            "is damaged (incomplete metadata, file not",
        ),
        (lambda path: path.unlink(), "has no model.safetensors"),
    ],
)
def test_damaged_weights(step, refused, harm, message):
    harm(step / "model.safetensors")
    refused(message, "generate model '1 and'")
    refused("SHA256SUMS", "train run.toml --out model --resume")


def test_shards(published, refused):
    """All that can be wrong with them is in formats/test_weights.py."""
    refused("No value is called", "look llama 1 *.none")  # whole, it opens
    second = sorted(published.glob("model-*"))[1]
    second.unlink()
    refused(f"the shard {second.name} that the index names is missing", "generate llama 1")


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"vocab_size": 1 << 24, "hidden_size": 1 << 20, "intermediate_size": 1 << 20},
            "has shape",
        ),
        ({"num_hidden_layers": 3}, "the files lack model.layers.2."),
        ({"num_hidden_layers": 1}, "the model has no place for model.layers.1."),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not read here"),
    ],
)
def test_published_configs(published, refused, changes, message):
    edit_json(published / "config.json", **changes)
    refused(message, "generate llama '1 and'")
    if message != "has shape" and "layers." not in message:
        refused(message, "cost llama")


def test_models_in_pieces(step, published, refused):
    (published / "config.json").write_text("{")
    refused("config.json is not valid JSON (Expecting", "generate llama 1")
    (published / "config.json").unlink()
    refused("has no config.json", "generate llama 1")
    (step / "tokenizer.json").unlink()
    for line in ("generate model 1", "eval model --data corpus.txt", "look model 1 *"):
        refused("has no tokenizer, so text cannot be read", line)
    refused(
        "model has no tokenizer; name the one that it was trained with: data.tokenizer",
        "train --from model --data.train corpus.txt --out again",
    )
    (step / "tokenizer.json").write_text('{"model": 7}')
    refused("tokenizer.json", "generate model 1")


def test_pickled_weights_are_never_opened(home, published, refused):
    for path in published.glob("*safetensors*"):
        path.unlink()
    trap = home / "sprung"
    (published / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(trap).encode() + b"'\ntR."
    )
    refused("has only pickled weights (pytorch_model.bin)", "generate llama 1")
    assert not trap.exists()


# --------------------------------------------------------------------------------- run folders


def test_a_checkpoint_of_another_model(home, step, refused, terminal):
    """run.json agrees, but the checkpoint's folder was copied from elsewhere."""
    terminal("train run.toml --dim 32 --out other")
    shutil.rmtree(step)
    shutil.copytree(home / "other" / step.name, step)
    message = "is a checkpoint of another model: dim is 32 there and 16 here"
    refused(message, "train run.toml --out model --resume")


def test_hidden_files_of_the_users_own_survive(home, terminal):
    local = [home / ".bashrc.old", home / ".movie.part", home / ".step-notes.old"]
    for path in local:
        path.touch()
    remaining = home / ".step-000007.x1.part"
    remaining.mkdir()
    terminal("train run.toml --out .")
    assert all(path.exists() for path in local)
    assert not remaining.exists()


@pytest.mark.parametrize(
    "line, message",
    SENTENCES["written over"].items(),
)
def test_what_is_there_is_not_written_over(refused, home, line, message):
    for name, text in {
        "words.txt": "some words and more words\n" * 9,
        "v.txt": "2 2\na 1 0\nb 0 1\n",
        "three.tsv": "text\tb\tc\n" * 3,
        "empty.tsv": "",
        "empty.txt": "\n",
    }.items():
        (home / name).write_text(text)
    refused(message, line)


def test_a_tokenizer_by_its_name_and_a_runs_own(home, terminal, shared_data, monkeypatch):
    assert "model" in terminal("tokens hi --with model")
    monkeypatch.setenv("GLASSFORMER_DATA", str(shared_data))
    terminal("train run.toml --data.tokenizer gpt2 --steps 1 --out named")
    assert Checkpoint.open(home / "named" / "step-000001").tokenizer().size == 50257


def full(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_two_processes_in_one_folder(refused):
    message = "Another process is training in model; wait for it to end or choose another folder"
    with lock(Path("model"), "training"):
        refused(message, "train run.toml --out model --resume")


def test_a_folder_made_for_nothing_is_gone_and_others_stay(tmp_path):
    with lock(tmp_path / "new", "training"):
        assert (tmp_path / "new" / ".lock").exists()
    assert not (tmp_path / "new").exists()
    (tmp_path / "there").mkdir()
    with lock(tmp_path / "there", "training"):
        pass
    assert (tmp_path / "there").exists()


def test_a_full_disk(home, terminal, monkeypatch):
    """The disk fills up at the second checkpoint: the first one stands and still tells its
    story."""
    real = files.sync
    line = "train run.toml --save-every 1 --out out"
    with monkeypatch.context() as patch:
        patch.setattr(
            files, "sync", lambda path: (full if "step-000002" in str(path) else real)(path)
        )
        notes = terminal.refused(line).splitlines()
    assert [line for line in notes if line.startswith("glassformer: ")] == notes[-1:]
    assert "is full; free some space" in notes[-1]
    assert sorted(path.name for path in (home / "out").glob("*step-*")) == ["step-000001"]
    terminal("generate out '1 and' --max-new 2")
    terminal(f"{line} --resume")


def test_a_full_disk_while_converting(home, refused, monkeypatch):
    monkeypatch.setattr(files, "sync", full)
    refused("is full; free some space", "convert model copy --layout glassformer")
    assert not Path("copy").exists()


# ------------------------------------------------------------------------------ real processes


def minds_ctrl_c():
    """A shell's background job is born deaf to Ctrl-C, and so are its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def process(line, **kwargs):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": minds_ctrl_c}
    return subprocess.Popen([*COMMAND, *shlex.split(line)], **(pipes | kwargs))


def test_whoever_reads_may_stop_early(home):
    """Covers `| head -1`, a full disk behind standard output, and a closed standard output."""
    reader = process("generate model '1 and' '1 and' '1 and' --max-new 9")
    reader.stdout.close()
    assert b"Traceback" not in reader.stderr.read()
    reader.stderr.close()
    assert reader.wait() == 0
    if Path("/dev/full").exists():
        with Path("/dev/full").open("wb") as full:
            going = process("data", stdout=full)
            _, notes = going.communicate()
        assert going.returncode == 2
        assert "is full" in one_sentence(notes.decode())
    going = process("data", preexec_fn=lambda: os.close(1), stdout=None)
    _, notes = going.communicate()
    assert (going.returncode, notes) == (0, b"")


def test_a_terminal_that_cannot_show_the_text(home):
    """Locale C, and one without UTF-8 at all: another sign stands for the character."""
    plain = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    for line in ("generate model É --max-new 2", "data é"):
        going = process(line, env=plain)
        result, notes = going.communicate()
        assert (going.returncode, result) == (2, b"")
        one_sentence(notes.decode("ascii"))


def interrupted(going):
    """Lines of standard error of a process that Ctrl-C ends."""
    going.send_signal(signal.SIGINT)
    result, notes = going.communicate(timeout=60)
    assert (going.returncode, result) == (130, b"") and b"Traceback" not in notes, notes
    return [line.strip() for line in notes.decode().splitlines() if line.strip()]


def test_ctrl_c(home):
    """130 and no traceback, before the first step as while a prompt is awaited; nothing is left of
    the run."""
    (home / "long.txt").write_text((home / "corpus.txt").read_text() * 3000)
    going = process("train run.toml --data.train long.txt --out out")
    while not going.stderr.readline().startswith(b"Training a "):
        assert going.poll() is None
    assert interrupted(going)[-1] == "glassformer: stopped."
    assert not (home / "out").exists()
    going = process("generate model -", stdin=subprocess.PIPE)
    going.stdin.write(b"1 and " * 50_000)  # more than a pipe holds: whoever takes it is reading
    assert interrupted(going) == ["glassformer: stopped."]


def test_ctrl_c_while_training_saves_and_says_how_to_go_on(home, terminal):
    line = "train run.toml --steps 1000000 --save-every 0 --out out"
    going = process(line)
    log = home / "out" / "log.jsonl"
    while not (log.exists() and log.read_text()):
        assert going.poll() is None
        time.sleep(0.05)
    command, _, end = interrupted(going)[-1].partition(f" {line} --resume")
    assert command.endswith("-m glassformer")
    assert not end  # as it was started
    again = subprocess.run([*command.split(), "--version"], capture_output=True, check=True)
    assert again.stdout.startswith(b"glassformer ")
    terminal("generate out '1 and' --max-new 2")


# --------------------------------------------------------------------- what was read otherwise than
# meant


def test_a_mark_between_documents_is_said_and_read_when_asked(home, terminal):
    (home / "marked.txt").write_text("1 and 2 make 3.\n<|endoftext|>\n3 and 4 make 7.\n")
    assert terminal.json("data marked.txt")["documents"] == 1
    assert 'give --separator "<|endoftext|>"' in terminal.notes
    for separator in ("<|endoftext|>", "\\n<|endoftext|>\\n"):
        assert terminal.json("data marked.txt --separator", separator)["documents"] == 2
        assert terminal.notes == ""
    line = "eval model --data marked.txt --separator <|endoftext|>"
    assert terminal.json(line)["bytes"] == 30


def test_json_is_numbers(terminal):
    price = terminal.json("cost llama/3-8b")
    assert price["parameters"] == sum(price["parts"].values()) == 8_030_261_248
    assert price["cache_bytes_per_token"]["bf16"] == 128 * 1024


@pytest.mark.parametrize("line", ["serve no-model", "generate no-model O --out answers.jsonl"])
def test_the_engine_says_before_it_loads_a_model_that_a_device_is_not_there(
    line, terminal, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    notes = terminal.refused(f"{line} --device cuda:7")
    assert "This machine has no device cuda:7 that torch" in notes
    assert list(tmp_path.iterdir()) == []
