"""What a user can get wrong at the command line: one sentence that says what to do, exit code 2,
nothing lost."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.core import files
from glassformer.core.checkpoints import headers
from glassformer.core.checkpoints import tensors as tensorfiles
from glassformer.core.nn import build_model
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
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
    (home / "corpus.txt").write_text(
        "".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(80))
    )
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
def refused(home, capsys):
    """Run a command that must fail: one sentence, nothing on standard output, every file as it
    was."""

    def run(message: str, *arguments: object, code: int = 2, stdin: bytes | None = None) -> str:
        before = snapshot(home)
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            if stdin is not None:
                patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            status = main([str(argument) for argument in arguments])
        result, notes = capsys.readouterr()
        sentence = one_sentence(notes)
        assert message in sentence
        assert (status, result) == (code, "")
        assert snapshot(home) == before
        return sentence

    return run


def snapshot(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def one_sentence(notes: str) -> str:
    """The only line on standard error that is not progress; it names the program and ends like a
    sentence."""
    lines = [line for line in notes.splitlines() if line and not line.startswith(PROGRESS)]
    assert len(lines) == 1, notes
    assert lines[0].startswith("glassformer: ")
    assert lines[0].endswith((".", "?"))
    assert "Traceback" not in notes
    return lines[0]


# -------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "The prompt is empty; give some text"),
        ("1 and " * 9, "The prompt has 54 tokens and the model's context is 16; shorten it"),
        ("Ünknown", 'The tokenizer does not know the character "Ü"'),
    ],
)
def test_prompts(refused, prompt, message):
    refused(message, "generate", "model", prompt)


def test_standard_input_as_the_prompt(home, refused, capsys):
    refused("The prompt is empty", "generate", "model", "-", stdin=b"")
    refused(
        "Standard input is not utf-8 text (byte 1); convert it",
        "generate",
        "model",
        "-",
        stdin=b"1\xff and",
    )
    refused("has 54 tokens", "generate", "model", "-", stdin=b"1 and " * 9)


def test_spaces_are_a_prompt_and_no_prompt_is_the_beginning(home, capsys):
    assert main(["generate", "model", "  ", "--max-new", "3", "--temperature", "0"]) == 0
    assert len(capsys.readouterr().out) <= 4
    assert main(["generate", "model", "--max-new", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 1


def test_a_token_that_the_model_does_not_know(home, refused):
    """The tokenizer of another model: its ids are past the end of this one's table. Checksums would
    tell first."""
    step = next((home / "model").glob("step-*"))
    from glassformer.core.tokenizer import train as train_tokenizer

    train_tokenizer("byte", []).save(step)
    (step / "SHA256SUMS").unlink()
    refused("Token id 49 is out of range: this model knows 0 to ", "generate", "model", "1 and")
    refused("Token id 49 is out of range: this model knows 0 to ", "look", "model", "1 and", "*.q")
    refused("The text has token ids above ", "eval", "model", "--data", "corpus.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "abc"], "--temperature is 'abc'; give a number"),
        (["--temperature", "nan"], "temperature is nan; give 0 (greedy) or more"),
        (["--max-new", "1.5"], "--max-new is '1.5'; give an integer"),
        (["--max-new", "-3"], "max_new is -3; give 1 or more"),
        (["--max-new"], "--max-new: expected one argument; see glassformer generate --help"),
        (["--top-p", "2"], "top_p is 2.0; give a share above 0, at most 1"),
        (["--top-k", "0"], "top_k is 0; give 1 or more"),
        (["--min-p", "-1"], "min_p is -1.0; give a share"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0; give 1e-9 or more"),
        (["--samples", "0"], "samples is 0; give 1 to 1,000,000"),
        (["--samples", "100000000000"], "samples is 100000000000; give 1 to 1,000,000"),
        (["--stop", ""], "A stop string is empty"),
        (["--dtype", "float31"], 'There is no dtype "float31"'),
        (["--max-nwe", "3"], '--max-nwe is not understood. Did you mean "--max-new"?'),
        (["--max_new_tokens", "3"], 'Did you mean "--max-new"?'),
        (["--temp", "0.5"], 'Did you mean "--temperature"?'),
        (
            ["--threads", "2"],
            "--threads is not understood. Set OMP_NUM_THREADS before the command.",
        ),
    ],
)
def test_options_of_generate(refused, options, message):
    refused(message, "generate", "model", "1 and", *options)


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["generate", "a", f"--{name}", "-1"]
            for name in ("max-new", "temperature", "top-k", "top-p", "samples")
        ),
        *(["translate", "a", f"--{name}", "0"] for name in ("beams", "best", "max-new", "batch")),
        ["fill", "a ___", "--top", "0"],
        ["embed", "a", "--batch", "0"],
        ["classify", "a", "--batch", "0"],
    ],
    ids=" ".join,
)
def test_numbers_are_checked_before_a_model_is_loaded(refused, words):
    refused("; give ", words[0], "no/such-model-anywhere", *words[1:])
    assert "no/such" not in refused("; give ", words[0], "no/such-model-anywhere", *words[1:])


def test_a_decoder_that_never_learned_pairs_is_not_asked_to_translate(home, refused):
    refused("was trained with the objective Causal, not on pairs", "translate", "model", "1 and")
    step = next((home / "model").glob("step-*"))
    refused("use `glassformer generate`", "translate", f"model/{step.name}", "1 and")


# ------------------------------------------------------------------------------ commands, names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-x"], "-x is not understood here; see glassformer --help"),
        (["genrate"], 'There is no command "genrate". Did you mean "generate"?'),
        (["generate"], "arguments are required: MODEL;"),
        (["generate", "", "x"], "The model's name is empty"),
        (["generate", "glas/1m", "x"], 'Did you mean "glass/1m"?'),
        (["generate", "glass/2m", "x"], 'There is no recipe "glass/2m"; glass comes as glass/1m'),
        (["generate", "glass/1m", "x"], "glass/1m has no tokenizer"),
        (["generate", "./nowhere", "x"], "There is no folder ./nowhere"),
        (["generate", "./modle", "x"], 'or a recipe. Did you mean "model"?'),
        (
            ["embed", "model", "--prompts", "corpsu.txt"],
            'check the path. Did you mean "corpus.txt"?',
        ),
        (["words", "near", "corpsu.txt", "x"], 'Did you mean "corpus.txt"?'),
        (["generate", "corpus.txt", "x"], "corpus.txt is a file; give the folder"),
        (["generate", ".", "x"], "has no config.json; give the folder of a saved model"),
        (["look", "model", "1 and", "*.nonesuch"], 'No value is called "*.nonesuch"'),
        (["look", "model", "1 and", "*.atn.q"], 'Did you mean "'),
        (
            ["look", "model", "1", "--out", "p.png"],
            "give --draw as well, and a name that ends in .svg",
        ),
        (["look", "model", "", "*.q"], "The text is empty"),
        (["look", "model", "1 and " * 9, "*.q"], "model's context is 16; shorten it"),
        (["cost", "glass/2m"], 'There is no recipe "glass/2m"'),
        (["cost", "nowhere.toml"], "nowhere.toml cannot be read (No such file"),
        (["cost", "glass/1m", "--batch", "0"], "--batch is 0; give 1 or more"),
        (["cost", "glass/1m", "--context", "-5"], "--context is -5; give 1 or more"),
        (["data", "shakespear"], 'Did you mean "shakespeare"?'),
        (["data", "zzz"], "Named corpora: python-docs, shakespeare"),
        (["data", "/no/where"], "/no/where does not exist"),
        (["recipes", "glass"], "glass is not understood. See glassformer recipes --help"),
        (["eval", "model"], "Give --data FILE, or --tasks"),
        (
            ["eval", "model", "--data", "corpus.txt", "--context", "99"],
            "context is 99; give 1 to 16",
        ),
        (
            ["eval", "model", "--data", "corpus.txt", "--stride", "0"],
            "stride is 0; give 1 to the context",
        ),
        (["convert", "model", "out"], "No published layout holds this model"),
        (
            ["convert", "model", "corpus.txt", "--layout", "glassformer"],
            "corpus.txt cannot be made because a file",
        ),
        (["convert", "model", "out", "--layout", "hg"], "invalid choice: 'hg'"),
    ],
)
def test_commands_and_names(refused, words, message):
    refused(message, *words)


def test_a_name_that_only_the_hub_could_know(refused):
    refused(
        "the hub cannot be reached; go online once, or give a folder or a recipe",
        "cost",
        "nonsense",
    )


# ------------------------------------------------------------------------------------ run files


@pytest.mark.parametrize(
    ("content", "message"),
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
        (b"[train]\nsteps = 5\nstpes = 3\n", 'Train has no setting "stpes". Did you mean "steps"?'),
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
    refused(message, "train", "broken.toml", "--out", "out")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.toml"], "nowhere.toml cannot be read (No such file"),
        (["model"], "model cannot be read (Is a directory)"),
        (["run.toml", "again.toml"], "again.toml is not understood; give one run file"),
        (["run.toml", "-x"], "-x is not understood"),
        (["run.toml", "--steps"], "--steps needs a value; give it as --steps VALUE"),
        (["run.toml", "--steps", "many"], 'train.steps: "many" is not an integer'),
        (["run.toml", "--steps", "0"], "train.steps is 0; give a number above 0"),
        (["run.toml", "--stpes", "3"], 'There is no setting "stpes". Did you mean "steps"?'),
        (
            ["run.toml", "--decoder.dpeth", "3"],
            'decoder has no setting "dpeth". Did you mean "depth"?',
        ),
        (
            ["run.toml", "--decoder.n_layer", "3"],
            'decoder has no setting "n_layer". Did you mean "depth"?',
        ),
        (["run.toml", "--step", "3"], 'There is no setting "step". Did you mean "steps"?'),
        (
            ["run.toml", "--norm", "RMSNorm"],
            'Did you mean "decoder.pattern.norm" or "encoder.pattern.norm"?',
        ),
        (["run.toml", "--lr", "900"], "learning rate optimizer.lr is 900; give one"),
        (
            ["corpus.txt"],
            "not a run file (TOML); a text to train on is given as --data.train corpus.txt.",
        ),
        (["run.toml", "--depth", "3"], 'Did you mean "decoder.depth" or "encoder.depth"?'),
        (["run.toml", "--heads", "4"], 'Did you mean "decoder.pattern.attention.heads" or '),
        (
            ["run.toml", "--batch-size", "4"],
            'There is no setting "batch_size". Did you mean "batch"?',
        ),
        (["run.toml", "--learning_rate", "1e-3"], 'Did you mean "lr"?'),
        (["run.toml", "--epochs", "3"], 'Did you mean "steps"?'),
        (["run.toml", "--weight_decay", "0"], 'Did you mean "optimizer.weight_decay"?'),
        (["run.toml", "--max_iters", "3"], 'Did you mean "steps"?'),
        (["run.toml", "--threads", "3"], "Set OMP_NUM_THREADS before the command."),
        (
            ["run.toml", "--optimizer.lr", "1", "--optimizer.momentun", "2"],
            'Did you mean "momentum"?',
        ),
        (["run.toml", "--decoder.pattern.attention.heads", "5"], "5 heads do not divide dim 16"),
        (
            ["run.toml", "--decoder.pattern.attention.kv_heads", "4"],
            "kv_heads is 4; give 1 to heads (2)",
        ),
        (["run.toml", "--dim", "0"], "dim is 0; give a number above 0"),
        (["run.toml", "--dim", "100000000"], "are free; lower train.batch"),
        (["run.toml", "--decoder.depth", "1000000"], "The config describes 1,000,000 blocks"),
        (
            ["run.toml", "--train.context", "99"],
            "train.context 99 is more than the model's context 16; lower it, or raise the "
            "model's: --model.context 99.",
        ),
        (["run.toml", "--train.tune", "lora"], 'Did you mean "LoRA"?'),
        (["run.toml", "--optimizer.lr", "-1"], "lr is -1; give one above 0"),
        (
            ["run.toml", "--data.tokenizer", "bpee"],
            'not a file, folder, kind or name of a tokenizer. Did you mean "bpe"?',
        ),
        (["run.toml", "--data.train", "corpsu.txt"], 'Did you mean "corpus.txt"?'),
        (["run.toml", "--from", "./nowhere"], "There is no folder ./nowhere"),
    ],
)
def test_train(refused, words, message):
    refused(message, "train", *words, "--out", "out")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; give a file with some text"),
        (bytes(range(256)) * 9, "is a binary file (a zero byte at byte 0)"),
        ("café ".encode("latin-1") * 99, "is not UTF-8 text (byte 3); convert it"),
        (b"too short", "too few for one context of 16"),
    ],
)
def test_corpora(home, refused, content, message):
    (home / "bad.txt").write_bytes(content)
    refused(
        f"bad.txt {message}" if "too" not in message else message,
        "train",
        "run.toml",
        "--data.train",
        "bad.txt",
        "--out",
        "o",
    )
    if message.startswith("is"):
        refused(f"bad.txt {message}", "eval", "model", "--data", "bad.txt")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2 is not valid JSON"),
        ('{"words": "1"}', 'line 2 has no text field "text"'),
    ],
)
def test_jsonl(home, refused, line, message):
    (home / "bad.jsonl").write_text('{"text": "1 and 2"}\n' + line + "\n")
    refused(message, "train", "run.toml", "--data.train", "bad.jsonl", "--out", "out")


# ------------------------------------------------------------------------------- damaged models


@pytest.fixture
def published(home):
    """A Llama in Hugging Face layout, in three shards: llama/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorfiles, "SHARD", 40_000)
        _, tokenizer = store.load(home / "model")
        store.save(build_model(DECODERS["llama"], seed=1), home / "llama", tokenizer, layout="hf")
    return home / "llama"


def edit(path: Path, **changes: object) -> None:
    table = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (table | changes).items() if v is not None}))


def rewrite_header(path: Path, **changes: object) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header[next(name for name in header if name != "__metadata__")] |= changes
    ids = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(ids)) + ids + content[8 + length :])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda path: path.write_bytes(path.read_bytes()[:-100]),
            "is damaged (incomplete metadata, file not",
        ),
        (lambda path: path.write_bytes(b""), "is damaged (header too small)"),
        (lambda path: path.write_bytes(b"\xff" * 64), "is damaged (header too large)"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b'"F32"', b'"F23"')),
            "unknown variant `F23`",
        ),
        (lambda path: rewrite_header(path, data_offsets=[0, 1 << 40]), "is damaged"),
        (lambda path: rewrite_header(path, data_offsets=[-4, 0]), "is damaged"),
        (lambda path: path.unlink(), "has no model.safetensors"),
    ],
)
def test_damaged_weights(home, refused, harm, message):
    harm(next((home / "model").glob("step-*")) / "model.safetensors")
    refused(message, "generate", "model", "1 and")
    refused("SHA256SUMS", "train", "run.toml", "--out", "model", "--resume")


def test_shards(home, published, refused):
    refused("No value is called", "look", "llama", "1", "*.none")  # whole, it opens
    index, second = published / headers.INDEX, sorted(published.glob("model-*"))[1]
    content, table = second.read_bytes(), json.loads(index.read_text())
    second.unlink()
    refused(
        f"the shard {second.name} that the index names is missing; download it",
        "generate",
        "llama",
        "1",
    )
    second.symlink_to("/etc/passwd")
    refused("outside this folder", "generate", "llama", "1")
    second.unlink()
    second.write_bytes(content)
    for outside in ("../../secret.safetensors", "/etc/passwd"):
        moved = table["weight_map"] | {next(iter(table["weight_map"])): outside}
        index.write_text(json.dumps({"weight_map": moved}))
        refused(
            "outside this folder; use weights from a source you trust", "generate", "llama", "1"
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 10**12}, '"hidden_size" is 1000000000000; it must be an integer'),
        ({"num_hidden_layers": 10**9}, '"num_hidden_layers" is 1000000000'),
        ({"vocab_size": -1}, '"vocab_size" is -1'),
        (
            {"vocab_size": 1 << 24, "hidden_size": 1 << 20, "intermediate_size": 1 << 20},
            "has shape",
        ),
        ({"num_key_value_heads": 8}, "kv_heads is 8; give 1 to heads (4)"),
        ({"num_hidden_layers": 3}, "the files lack model.layers.2."),
        ({"num_hidden_layers": 1}, "the model has no place for model.layers.1."),
        (
            {"architectures": ["MambaForCausalLM"]},
            'the architecture "MambaForCausalLM" is not in the recipe book',
        ),
        ({"architectures": ["LlamaForCausalLN"]}, 'Did you mean "LlamaForCausalLM"?'),
        ({"architectures": None, "model_type": None}, "names no model"),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not read here"),
    ],
)
def test_published_configs(published, refused, changes, message):
    edit(published / "config.json", **changes)
    refused(message, "generate", "llama", "1 and")
    if message != "has shape" and "layers." not in message:
        refused(message, "cost", "llama")


def test_models_in_pieces(home, published, refused):
    (published / "config.json").write_text("{")
    refused("config.json is not valid JSON (Expecting", "generate", "llama", "1")
    (published / "config.json").unlink()
    refused("has no config.json", "generate", "llama", "1")
    step = next((home / "model").glob("step-*"))
    (step / "tokenizer.json").unlink()
    for words in (
        ["generate", "model", "1"],
        ["eval", "model", "--data", "corpus.txt"],
        ["look", "model", "1", "*"],
    ):
        refused("has no tokenizer, so text cannot be read", *words)
    again = ("train", "--from", "model", "--data.train", "corpus.txt", "--out", "again")
    refused("model has no tokenizer; name the one that it was trained with: data.tokenizer", *again)
    (step / "tokenizer.json").write_text('{"model": 7}')
    refused("tokenizer.json", "generate", "model", "1")
    for pointer in ("../../elsewhere", "step-999999", ""):
        (home / "model" / "best").write_text(pointer)
        refused("which is not a folder in model", "generate", "model", "1")


def test_pickled_weights_are_never_opened(home, published, refused):
    for path in published.glob("*safetensors*"):
        path.unlink()
    trap = home / "sprung"
    (published / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(trap).encode() + b"'\ntR."
    )
    refused("has only pickled weights (pytorch_model.bin)", "generate", "llama", "1")
    assert not trap.exists()


# --------------------------------------------------------------------------------- run folders


def test_a_run_is_not_overwritten_and_not_resumed_as_another(refused):
    refused("model holds a run already; add --resume", "train", "run.toml", "--out", "model")
    for option, message in (
        (["--dim", "32"], "model.dim is 16 there and 32 here"),
        (["--steps", "1"], "train.steps is 2 there and 1 here"),
        (["--seed", "9"], "train.seed is 0 there and 9 here"),
        (["--data.valid", "0.2"], "data.valid is 0.1 there and 0.2 here"),
    ):
        sentence = refused(message, "train", "run.toml", *option, "--out", "model", "--resume")
        assert "set it back or choose another --out" in sentence


def test_a_checkpoint_of_another_model(home, refused):
    """run.json agrees, but the checkpoint's folder was copied from elsewhere."""
    assert main(["train", "run.toml", "--dim", "32", "--out", "other"]) == 0
    step = next((home / "model").glob("step-*"))
    shutil.rmtree(step)
    shutil.copytree(home / "other" / step.name, step)
    message = "is a checkpoint of another model: dim is 32 there and 16 here"
    refused(message, "train", "run.toml", "--out", "model", "--resume")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (
            "corpus.txt",
            "corpus.txt cannot be made because a file stands in its way; choose another folder",
        ),
        ("corpus.txt/out", "cannot be made because a file stands in its way"),
        ("/proc/self/out", "cannot be"),
        ("", "--out is empty; name a folder"),
    ],
)
def test_out_folders(refused, out, message):
    refused(message, "train", "run.toml", "--out", out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_closed_out_folder(home, refused):
    (home / "closed").mkdir(mode=0o500)
    refused("cannot be written", "train", "run.toml", "--out", "closed/out")


def test_hidden_files_of_the_users_own_survive(home):
    local = [home / ".bashrc.old", home / ".movie.part", home / ".step-notes.old"]
    for path in local:
        path.write_text("mine")
    remaining = home / ".step-000007.x1.part"
    remaining.mkdir()
    assert main(["train", "run.toml", "--out", "."]) == 0
    assert all(path.read_text() == "mine" for path in local)
    assert not remaining.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["tokens", "train", "words.txt", "--out", "model"],
        ["words", "average", "v.txt", "--out", "model"],
        ["average", "model", "--out", "model"],
        ["convert", "model", "model", "--layout", "glassformer"],
    ],
)
def test_a_model_is_not_written_over(refused, home, words):
    (home / "words.txt").write_text("some words and more words\n" * 9)
    (home / "v.txt").write_text("2 2\na 1 0\nb 0 1\n")
    refused("model holds a run already; choose another folder", *words)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("would be written over", ["words", "train", "words.txt", "--out", "words.txt"]),
        ("--out model is a folder", ["words", "train", "words.txt", "--out", "model"]),
        ("--dim is -3", ["words", "train", "words.txt", "--out", "v.bin", "--dim", "-3"]),
        ("would be written over", ["eval", "model", "--data", "words.txt", "--out", "words.txt"]),
        ("is no .html", ["tokens", "hi", "--html", "words.txt"]),
        ("empty.tsv is empty", ["words", "score", "v.txt", "--similarity", "empty.tsv"]),
        (
            "nosuch.tsv is not a file",
            ["compare", "run.toml", "--test", "nosuch.tsv", "--out", "compared"],
        ),
        ("empty.txt is empty", ["words", "classify", "empty.txt", "words.txt"]),
        ("--columns label=NAME", ["words", "classify", "three.tsv", "words.txt"]),
    ],
)
def test_what_is_read_is_not_written_over(refused, home, message, words):
    (home / "words.txt").write_text("some words and more words\n" * 9)
    (home / "v.txt").write_text("2 2\na 1 0\nb 0 1\n")
    (home / "three.tsv").write_text("text\tb\tc\n" * 3)
    (home / "empty.tsv").write_text("")
    (home / "empty.txt").write_text("\n")
    refused(message, *words)


def test_a_tokenizer_by_its_name_and_a_runs_own(home, capsys, shared_data, monkeypatch):
    assert main(["tokens", "hi", "--with", "model"]) == 0
    assert "model" in capsys.readouterr().out
    monkeypatch.setenv("GLASSFORMER_DATA", str(shared_data))
    assert (
        main(["train", "run.toml", "--data.tokenizer", "gpt2", "--steps", "1", "--out", "named"])
        == 0
    )
    assert Checkpoint.open(home / "named" / "step-000001").tokenizer().size == 50257


def test_two_processes_in_one_folder(refused):
    message = "Another process is training in model; wait for it to end or choose another folder"
    with files.lock(Path("model"), "training"):
        refused(message, "train", "run.toml", "--out", "model", "--resume")


def test_a_folder_made_for_nothing_is_gone_and_others_stay(tmp_path):
    with files.lock(tmp_path / "new", "training"):
        assert (tmp_path / "new" / ".lock").exists()
    assert not (tmp_path / "new").exists()
    (tmp_path / "there").mkdir()
    with files.lock(tmp_path / "there", "training"):
        pass
    assert (tmp_path / "there").exists()


def test_a_full_disk(home, capsys, monkeypatch):
    """The disk fills up at the second checkpoint: the first one stands and still tells its
    story."""
    real = files.sync

    def full(path: Path) -> None:
        if "step-000002" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", full)
        assert main(["train", "run.toml", "--save-every", "1", "--out", "out"]) == 2
    notes = capsys.readouterr().err.splitlines()
    assert [line for line in notes if line.startswith("glassformer: ")] == notes[-1:]
    assert "is full; free some space" in notes[-1]
    assert sorted(path.name for path in (home / "out").glob("*step-*")) == ["step-000001"]
    assert main(["generate", "out", "1 and", "--max-new", "2"]) == 0
    assert main(["train", "run.toml", "--save-every", "1", "--out", "out", "--resume"]) == 0


def test_a_full_disk_while_converting(home, refused, monkeypatch):
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync", full)
    refused("is full; free some space", "convert", "model", "copy", "--layout", "glassformer")
    assert not Path("copy").exists()


# ------------------------------------------------------------------------------ real processes


def minds_ctrl_c() -> None:
    """A shell's background job is born deaf to Ctrl-C, and so are its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def process(*arguments: str, **kwargs: object) -> subprocess.Popen[bytes]:
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "preexec_fn": minds_ctrl_c,
    } | kwargs
    return subprocess.Popen([*COMMAND, *arguments], **pipes)  # type: ignore[call-overload, no-any-return]


def test_a_mistake_in_a_real_process(home):
    going = process("generate", "model", "")
    result, notes = going.communicate()
    assert (going.returncode, result) == (2, b"")
    assert "The prompt is empty" in one_sentence(notes.decode())


def test_whoever_reads_may_stop_early(home):
    """Covers `| head -1`, a full disk behind standard output, and a closed standard output."""
    reader = process("generate", "model", *["1 and"] * 3, "--max-new", "9")
    assert reader.stdout is not None and reader.stderr is not None
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
    for words in (["generate", "model", "É", "--max-new", "2"], ["data", "é"]):
        going = process(*words, env=plain)
        _, notes = going.communicate()
        assert going.returncode == 2
        one_sentence(notes.decode("ascii"))


def interrupt(going: subprocess.Popen[bytes], when: str) -> tuple[int, bytes, bytes]:
    """Ctrl-C as soon as ``when`` was said on standard error."""
    assert going.stderr is not None
    observed = b""
    while when.encode() not in observed:
        more = os.read(going.stderr.fileno(), 4096)
        assert more, observed
        observed += more
    going.send_signal(signal.SIGINT)
    result, remaining = going.communicate(timeout=60)
    return going.returncode, result, observed + remaining


def test_ctrl_c(home):
    """130 and no traceback, before the first step as while a prompt is awaited; nothing is left of
    the run."""
    (home / "long.txt").write_text((home / "corpus.txt").read_text() * 3000)
    going = process("train", "run.toml", "--data.train", "long.txt", "--out", "out")
    code, result, notes = interrupt(going, "Training a ")
    assert (code, result) == (130, b""), notes
    assert notes.decode().splitlines()[-1] == "glassformer: stopped."
    assert b"Traceback" not in notes
    assert not (home / "out").exists()
    going = process("generate", "model", "-", stdin=subprocess.PIPE)
    assert going.stdin is not None
    going.stdin.write(b"1 and " * 50_000)  # more than a pipe holds: whoever takes it is reading
    going.send_signal(signal.SIGINT)
    result, notes = going.communicate(timeout=60)
    assert (going.returncode, result) == (130, b""), notes
    assert notes.decode().strip() == "glassformer: stopped."


def test_ctrl_c_while_training_saves_and_says_how_to_go_on(home):
    going = process("train", "run.toml", "--steps", "1000000", "--save-every", "0", "--out", "out")
    log = home / "out" / "log.jsonl"
    while not (log.exists() and log.read_text()):
        assert going.poll() is None
        time.sleep(0.05)
    going.send_signal(signal.SIGINT)
    result, notes = going.communicate(timeout=60)
    lines = [line.strip() for line in notes.decode().splitlines()]
    assert (going.returncode, result) == (130, b""), notes
    words = lines[-1].removesuffix(
        " train run.toml --steps 1000000 --save-every 0 --out out --resume"
    )
    assert words != lines[-1] and words.endswith("-m glassformer")  # as it was started
    again = subprocess.run(
        [*words.split(), "--version"], cwd=home, capture_output=True, check=True, text=True
    )
    assert again.stdout.startswith("glassformer ")
    assert "Traceback" not in notes.decode()
    assert main(["generate", "out", "1 and", "--max-new", "2"]) == 0


# --------------------------------------------------------------------- what was read otherwise than
# meant


def test_a_mark_between_documents_is_said_and_read_when_asked(home, capsys):
    (home / "marked.txt").write_text("1 and 2 make 3.\n<|endoftext|>\n3 and 4 make 7.\n")
    assert main(["data", "marked.txt", "--json"]) == 0
    result, notes = capsys.readouterr()
    assert json.loads(result)["documents"] == 1
    assert 'give --separator "<|endoftext|>"' in notes
    for separator in ("<|endoftext|>", "\\n<|endoftext|>\\n"):
        assert main(["data", "marked.txt", "--separator", separator, "--json"]) == 0
        result, notes = capsys.readouterr()
        assert (json.loads(result)["documents"], notes) == (2, "")
    assert (
        main(["eval", "model", "--data", "marked.txt", "--separator", "<|endoftext|>", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["bytes"] == 30


def test_json_is_numbers(capsys):
    assert main(["cost", "llama/3-8b", "--json"]) == 0
    price = json.loads(capsys.readouterr().out)
    assert price["parameters"] == sum(price["parts"].values()) == 8_030_261_248
    assert price["cache_bytes_per_token"]["bf16"] == 128 * 1024


@pytest.mark.parametrize(
    "words", [["serve", "no-model"], ["generate", "no-model", "O", "--out", "answers.jsonl"]]
)
def test_the_engine_says_before_it_loads_a_model_that_a_device_is_not_there(
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--device", "cuda:7"]) == 2
    assert "This machine has no device cuda:7 that torch" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
