"""Folders, run folders, hub names and recipes in; whole folders out, whatever goes wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from folders import edit_json, read_json, snapshot, write_json
from glassformer import UserError, config
from glassformer import families as recipes
from glassformer.core import files
from glassformer.core.config import serial
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import checkpoint, store, weights
from glassformer.formats.checkpoint import Checkpoint
from mistakes import mistake
from tiny import equal_tensors

TINY = serial.change(recipes.find("glass/1m"), {"decoder.depth": 2, "dim": 32})
LLAMA = serial.change(recipes.find("llama/stories260k"), {"decoder.depth": 2})


@pytest.fixture
def tiny():
    return build_model(TINY, seed=1)


@pytest.fixture
def llama():
    return build_model(LLAMA, seed=2)


def equal_weights(a, b):
    return equal_tensors(dict(a.named_parameters()), dict(b.named_parameters()))


def small(name, seed=4, **changes):
    """A recipe at a small size; dots of a setting's name are double underscores."""
    sizes = {"dim": 48, "embed.vocab": 100, "decoder.depth": 2}
    sizes |= {path.replace("__", "."): value for path, value in changes.items()}
    return build_model(serial.change(recipes.find(name), sizes), seed=seed)


def config_of(folder):
    return read_json(folder / "config.json")


def test_glassformer_layout_is_named(tmp_path, tiny):
    """That it holds every model is a law of all families (test_laws.py)."""
    store.save(tiny, tmp_path)
    back, tokenizer = store.load(tmp_path)
    assert tokenizer is None
    assert not back.training
    raw = config_of(tmp_path)
    assert raw["glassformer"] == 1
    assert raw["model"]["type"] == "Decoder"


# ------------------------------------------------------------------------------------ there and
# back


def test_a_source_tokenizer_is_saved_and_nothing_of_an_older_model_stays(tmp_path):
    reads, writes = (train_tokenizer("words", [text]) for text in ("eine katze sitzt", "a cat"))
    sizes = {"dim": 32, "encoder.depth": 1, "decoder.depth": 1, "embed.vocab": writes.size}
    cfg = serial.change(recipes.find("glass/pair-3m"), sizes)
    model = build_model(dataclasses.replace(cfg, source_embed=config.Embed(reads.size)), seed=1)
    store.save(model, tmp_path, writes, source_tokenizer=reads)
    assert Checkpoint.open(tmp_path).source_tokenizer().fingerprint == reads.fingerprint
    with mistake("layout"):
        store.save(model, tmp_path / "no", layout="hf")
    store.save(model, tmp_path, writes)
    assert Checkpoint.open(tmp_path).source_tokenizer() is None


@pytest.mark.parametrize(
    "layout", ["llama/stories260k", "gpt2/124m", "bert/tiny", "t5/small", "vaswani/base"]
)
@pytest.mark.parametrize("name", ["feedforward", "norm"])
def test_published_layouts_refuse_blocks_without_a_part(layout, name):
    model = recipes.find(layout)
    slot = "decoder" if hasattr(model, "decoder") else "encoder"
    missing = serial.change(model, {f"{slot}.pattern.place": "pre", f"{slot}.pattern.{name}": None})
    with mistake("layout"):
        recipes.write_config(missing)


def test_the_default_layout_is_the_published_one_where_there_is_one(tmp_path, llama, tiny):
    store.save(llama, tmp_path / "llama")
    assert config_of(tmp_path / "llama")["model_type"] == "llama"
    for layout, message in (("hf", r'cannot say .*layout "glassformer"'), ("onnx", "no layout")):
        with mistake(message):
            store.save(tiny, tmp_path / "no", layout=layout)
    assert not (tmp_path / "no").exists()


def test_a_models_init_and_dtype_survive(tmp_path, tiny):
    store.save(tiny.to(torch.bfloat16), tmp_path)
    for dtype, expected in ((None, torch.bfloat16), ("float32", torch.float32)):
        back, _ = store.load(tmp_path, dtype=dtype)
        assert {weight.dtype for weight in back.parameters()} == {expected}
        assert equal_weights(back.to(torch.bfloat16), tiny)
    with mistake('no dtype "int4"'):
        store.load(tmp_path, dtype="int4")


def test_a_loaded_model_does_not_depend_on_its_file(tmp_path, tiny):
    store.save(tiny, tmp_path)
    back, _ = store.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert equal_weights(back, tiny)
    back(torch.zeros(1, 2, dtype=torch.long)).logits.sum().backward()


def test_a_mapped_model_outlives_its_file(tmp_path, llama, monkeypatch):
    """Saved over, converted into its own folder, removed: what is mapped is the old file."""
    monkeypatch.setattr("glassformer.formats.mapped.SMALL", 0)
    store.save(llama, tmp_path, layout="hf")
    first, _ = store.load(tmp_path)
    model = build_model(LLAMA, seed=3)
    store.save(model, tmp_path, layout="hf")
    assert equal_weights(first, llama)
    second, _ = store.load(tmp_path)
    store.save(second, tmp_path, layout="glassformer")  # reads the file that it replaces
    third, _ = store.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    for actual, expected in ((second, model), (third, model), (first, llama)):
        assert equal_weights(actual, expected)


@pytest.mark.parametrize("name", ["gpt2/124m", "llama/stories260k"])
def test_a_mapped_model_can_be_trained(name, tmp_path, monkeypatch):
    """The same steps as a model that was read, bit for bit, and the file stays as it is."""
    monkeypatch.setattr("glassformer.formats.mapped.SMALL", 0)
    store.save(small(name), tmp_path, layout="hf")
    before = snapshot(tmp_path)
    tokens = torch.arange(20)[None]
    after = []
    for mapped in (True, False):
        model, _ = store.load(tmp_path, mapped=mapped)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(2):
            model(tokens).logits.logsumexp(-1).sum().backward()
            optimizer.step()
        after.append(model)
    assert equal_weights(*after)
    assert not equal_weights(after[0], store.load(tmp_path)[0])
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_the_first_use_leaves_the_collector_as_it_was(before):
    """Garbage is looked for again once torch is there; who had turned that off finds it off."""
    code = (
        f"import gc, glassformer; gc.{before}(); glassformer.load; "
        "print(gc.isenabled(), gc.get_freeze_count())"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.split() == [str(before == "enable"), "0"]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("layout", ["hf", "glassformer"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_every_dtype_from_every_file(dtype, layout, mapped, tmp_path, monkeypatch):
    """GPT-2: what is turned, what is split and what lies as it is, kept or converted."""
    monkeypatch.setattr("glassformer.formats.mapped.SMALL", 0)
    model = small("gpt2/124m", dim=36).half()
    store.save(model, tmp_path, layout=layout)
    back, _ = store.load(tmp_path, dtype=dtype, mapped=mapped)
    assert equal_weights(back, model.to(weights.MODEL_DTYPES[dtype]))
    assert all(weight.is_contiguous() for weight in back.parameters())


@pytest.mark.parametrize("layout", ["hf", "glassformer"])
def test_what_config_json_says_beside_the_model(layout, tmp_path):
    tokenizer = train_tokenizer("words", ["a b c"], None, ("<s>", "</s>", "<pad>", "<unk>"))
    tokenizer.bos = 0  # an id like any other
    model = build_model(serial.change(LLAMA, {"embed.vocab": 9}), seed=2).half()
    names = tuple(f"label {number}" for number in range(12))
    store.save(model, tmp_path, tokenizer, layout, labels=names)
    raw = config_of(tmp_path)
    assert (raw["bos_token_id"], raw["eos_token_id"]) == (0, tokenizer.eos)
    assert layout == "glassformer" or raw["torch_dtype"] == "float16"
    assert Checkpoint.open(tmp_path).labels == names, "by number, not by word"


def test_biases_that_a_model_lacks_are_zeros_in_its_files(tmp_path):
    model = small("gpt2/124m", decoder__depth=1)
    store.save(model, tmp_path, layout="hf")
    edit_json(tmp_path / "config.json", bias=False)
    without, _ = store.load(tmp_path)
    assert not [name for name, _ in without.named_parameters() if name.endswith("bias")]
    store.save(without, tmp_path, layout="hf")
    saved = load_file(tmp_path / "model.safetensors")
    biases = [bias for name, bias in saved.items() if name.endswith(".bias")]
    assert len(biases) > 4
    assert not any(bias.any() for bias in biases)
    with torch.no_grad():
        model.decoder.blocks[0].attn.out.bias[3] = 1e-3
    store.save(model, tmp_path, layout="hf")
    edit_json(tmp_path / "config.json", bias=False)
    with mistake(r'c_proj\.bias is not zero, but .* says "bias": false'):
        store.load(tmp_path)


@pytest.mark.parametrize(
    "specials, begins",
    [(("<pad>", "<s>", "</s>", "<unk>"), "<s>"), (("<pad>", "</s>", "<unk>"), "<pad>")],
)
def test_a_translator_begins_with_bos_where_there_is_one(specials, begins, tmp_path):
    sizes = {"embed__vocab": 9, "encoder__depth": 1, "head__scale": 48**-0.5}
    tokenizer = train_tokenizer("words", ["a b c"], None, specials)
    store.save(small("t5/small", **sizes), tmp_path, tokenizer, "hf")
    assert config_of(tmp_path)["decoder_start_token_id"] == tokenizer.id(begins)


def test_a_recipe_gives_a_new_model():
    model, tokenizer = store.load("glass/1m", dtype=torch.bfloat16)
    assert model.config == recipes.find("glass/1m")
    assert tokenizer is None
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_written_once_and_an_untied_one_twice(tied, tmp_path):
    store.save(build_model(serial.change(LLAMA, {"head.tied": tied})), tmp_path, layout="hf")
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) != tied


# ----------------------------------------------------------------------------------- what is loaded


def test_run_folders_follow_best_then_last(tmp_path):
    for step, name in ((2, "last"), (1, "best")):
        store.save(build_model(TINY, seed=step), tmp_path / f"step-{step}")
        (tmp_path / name).write_text(f"step-{step}\n")
        assert equal_weights(store.load(tmp_path)[0], build_model(TINY, seed=step))
    for wrong in ("step-9", "../elsewhere", ""):
        (tmp_path / "best").write_text(wrong)
        with mistake("which is not a folder in"):
            store.load(tmp_path)


@pytest.mark.parametrize(
    "name, message",
    [
        (Path("none"), "There is no folder"),
        ("./none", "There is no folder"),
        ("no such thing!", "There is no folder"),
        ("a/b/c", "There is no folder"),
        ("x" * 5000, "There is no folder"),
        ("./empty", "has no config.json"),
        ("./file", "is a file; give the folder"),
        ("llama/9b", "llama comes as llama/2-7b"),
        ("some-org/some-model", "not in the hub's cache"),
        ("lama/3-8b", 'Did you mean "llama/3-8b"'),
        ("llama/3-405b", r"The weights take 1\.48 TiB in float32 and cpu has .* free"),
    ],
)
def test_names_that_lead_nowhere(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    with mistake(message):
        store.load(name)


def test_weights_in_a_mapped_file_need_no_free_memory(tmp_path, llama, monkeypatch):
    """What must change on the way, as by another dtype, is refused where there is no room."""
    monkeypatch.setattr("glassformer.formats.mapped.SMALL", 0)
    monkeypatch.setattr("glassformer.core.memory.available_memory", lambda device="cpu": 1000)
    store.save(llama, tmp_path)
    assert equal_weights(store.load(tmp_path)[0], llama)
    store.Checkpoint.open(tmp_path).check()
    for options in ({"mapped": False}, {"dtype": "bfloat16"}, {"bits": 8}):
        with mistake("The weights take .* and cpu has 1,000 bytes free"):
            store.load(tmp_path, **options)


def test_a_hub_name_is_found_in_the_cache(tmp_path, llama, monkeypatch):
    """The hub's cache as huggingface_hub lays it out, read offline, its files links to blobs."""
    constants = pytest.importorskip("huggingface_hub").constants
    home = tmp_path / "models--someone--tiny"
    monkeypatch.setattr(store.tensorfiles, "SHARD", 200_000)
    store.save(llama, home / "made", layout="hf")
    commit = "0" * 40
    (home / "snapshots" / commit).mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs/main").write_text(commit)
    (home / "made").rename(home / "blobs")
    for path in (home / "blobs").iterdir():
        (home / "snapshots" / commit / path.name).symlink_to(Path("../../blobs") / path.name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    assert len(list((home / "blobs").glob("model-*"))) > 1
    assert equal_weights(store.load("someone/tiny")[0], llama)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff\xfe", "[" * 100_000, '"text"'])
def test_a_config_that_is_none(text, tmp_path):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with mistake(r"config\.json is not"):
        store.load(tmp_path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"glassformer": 2}, "format 2 and this version reads 1; upgrade"),
        ({"model": None}, r"config\.json: "),
        ({"model.type": "Decodr"}, r"config\.json: "),
        ({"model.dimm": 3}, 'no setting "dimm". Did you mean "dim"'),
        ({"model.dim": 1 << 40}, "larger than any machine could hold"),
        ({"model.dim": 1 << 20}, "has shape"),
        ({"model.decoder.depth": 10**9}, "1,000,000,000 blocks"),
    ],
)
def test_glassformer_configs_that_are_wrong(changes, message, tmp_path, tiny):
    store.save(tiny, tmp_path, layout="glassformer")
    raw = config_of(tmp_path)
    for path, value in changes.items():
        *tables, name = path.split(".")
        functools.reduce(dict.__getitem__, tables, raw)[name] = value
    write_json(tmp_path / "config.json", raw)
    with mistake(message):
        store.load(tmp_path)


def test_flipped_and_cut_bytes_of_a_saved_model_never_crash(tmp_path, llama):
    """Fuzz of the whole way in: the config's and the weights' bytes changed or cut."""
    store.save(llama, tmp_path, layout="hf")
    dice = random.Random(0)
    refused = 0
    for name in ("config.json", "model.safetensors"):
        path = tmp_path / name
        content = path.read_bytes()
        for trial in range(150):
            broken = bytearray(content)
            for _ in range(dice.randrange(1, 4)):
                broken[dice.randrange(min(len(content), 3000))] = dice.randrange(256)
            path.write_bytes(broken if trial % 3 else broken[: dice.randrange(len(content))])
            try:
                store.load(tmp_path)
            except UserError as error:
                assert "\n" not in str(error)
                refused += 1
        path.write_bytes(content)
    assert refused > 200
    assert equal_weights(store.load(tmp_path)[0], llama)


# ----------------------------------------------------------------------------------------- saving


def test_saving_leaves_other_files_alone_and_replaces_its_own(tmp_path, llama, tiny, monkeypatch):
    def save_in_shards():
        with monkeypatch.context() as patch:
            patch.setattr(store.tensorfiles, "SHARD", 200_000)
            store.save(llama, tmp_path)

    save_in_shards()
    assert len(list(tmp_path.glob("model-*"))) > 1
    other_files = ("notes.txt", "other.safetensors", "sub/model.safetensors")
    (tmp_path / "sub").mkdir()
    for name in other_files:
        (tmp_path / name).touch()
    store.save(tiny, tmp_path)
    assert set(snapshot(tmp_path)) == {"config.json", "model.safetensors", *other_files}
    assert equal_weights(store.load(tmp_path)[0], tiny)
    save_in_shards()
    assert not (tmp_path / "model.safetensors").exists()
    assert equal_weights(store.load(tmp_path)[0], llama)
    placed = []
    replace = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda item, to: (placed.append(Path(to).name), replace(item, to))[1]
    )
    store.save(tiny, tmp_path, train_tokenizer("byte"))
    # what says how to read the weights comes last
    assert len(placed) > 2
    assert placed[-1] == "config.json"


@pytest.mark.parametrize("fails", [1, 2])
@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_changes_nothing(existing, fails, tmp_path, llama, tiny, monkeypatch):
    """The disk is full at any of the writes: one sentence, and the folder as it was."""
    folder = tmp_path / "m"
    if existing:
        store.save(tiny, folder)
    before = snapshot(tmp_path)
    real = files.write
    writes = itertools.count(1)

    def full(path, content):
        if next(writes) == fails:
            raise files.explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path)
        real(path, content)

    monkeypatch.setattr(store.files, "write", full)
    with mistake("full"):
        store.save(llama, folder)
    assert next(writes) == fails + 1
    assert snapshot(tmp_path) == before


def test_a_really_full_disk(tmp_path):
    """A file size limit of the operating system stands in for the disk: the write itself fails."""
    code = f"""
import resource, signal, sys
from glassformer import UserError
from glassformer.formats import store
from glassformer.core.nn import build_model
from glassformer import families as recipes
model = build_model(recipes.find("llama/stories260k"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
try:
    store.save(model, {str(tmp_path / "m")!r})
except UserError as error:
    print(error)
    sys.exit(7)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert snapshot(tmp_path) == {}


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a folder that even root cannot write"
)
def test_a_folder_that_cannot_be_written(tiny):
    for folder in ("/proc/self/none/m", "/proc/self/task"):
        with mistake("cannot be written"):
            store.save(tiny, folder)


def test_a_file_in_the_way(tmp_path, tiny):
    (tmp_path / "m").write_text("a file")
    for variant in (tmp_path / "m", tmp_path / "m" / "below"):
        with mistake(r"cannot be made|cannot be written"):
            store.save(tiny, variant)
    assert (tmp_path / "m").read_text() == "a file"


def test_a_meta_model_has_nothing_to_save(tmp_path):
    with mistake("meta device"):
        store.save(build_model(TINY, device="meta"), tmp_path / "m")


# ----------------------------------------------------------------------------------------- memory


MEASURE = """
import re, sys
from pathlib import Path
from glassformer import families as recipes
from glassformer.formats import store
from glassformer.core.nn import build_model
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
folder = sys.argv[1]
store.save(build_model(recipes.find("glass/1m")), folder + "-warm")
store.load(folder + "-warm")
before = peak()
model, _ = store.load(folder)
loaded = peak()
store.save(model, folder + "-again", layout="hf")
weights = sum(w.numel() * w.element_size() for w in model.parameters())
print((loaded - before) / weights, (peak() - before) / weights)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_loading_and_saving_take_little_more_than_the_weights(tmp_path, monkeypatch):
    """At most 1.1 times the weights to load, 1.15 to save too: the peak of a process of its own,
    GPT-2's layout."""
    cfg = serial.change(recipes.find("gpt2/124m"), {"embed.vocab": 5000, "decoder.depth": 9})
    with monkeypatch.context() as patch:
        patch.setattr(store.files, "sync", lambda path: None)
        store.save(build_model(cfg), tmp_path / "m", layout="hf")
    run = [sys.executable, "-c", MEASURE, str(tmp_path / "m")]
    measured = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    load, save = map(float, measured.split())
    assert 0.8 < load <= 1.1 and save <= 1.15, measured
    assert snapshot(tmp_path / "m") == snapshot(tmp_path / "m-again")


def loaded_digest(folder):
    return store.digest(store.load(folder)[0])


def test_a_model_that_is_saved_over_while_it_is_read_is_never_a_mixture(tmp_path, monkeypatch):
    """Another process saves before, between and after each part that is read: the config, each
    tensor, the tokenizer. What loads is one of the two models, or a sentence says what happened."""
    first = small("llama/stories260k", 1)
    second = build_model(serial.change(first.config, {"decoder.position.theta": 77.0}), seed=2)
    tokenizer = train_tokenizer("byte")
    digests = set()
    for model in (first, second):
        store.save(model, tmp_path, tokenizer)
        digests.add(loaded_digest(tmp_path))
    real_open, real_read = Path.open, files.read_bytes

    def outcome(at):
        opened = itertools.count()

        def saved_between(read):
            def reading(path, *args, **kwargs):
                if Path(path).parent == tmp_path and next(opened) == at:
                    store.save(second, tmp_path, tokenizer)
                return read(path, *args, **kwargs)

            return reading

        store.save(first, tmp_path, tokenizer)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", saved_between(real_open))
            patch.setattr(files, "read_bytes", saved_between(real_read))
            try:
                return loaded_digest(tmp_path)
            except UserError as error:
                assert "saved anew or removed while it was read" in str(error)

    assert {outcome(at) for at in range(40)} == {*digests, None}


def test_a_checkpoint_that_a_training_removes_while_it_is_read_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "m"
    store.save(small("llama/stories260k"), folder, train_tokenizer("byte"))
    opened = Checkpoint.open(folder)
    folder.rename(tmp_path / ".m.old")
    for step in (opened.model, opened.tokenizer):
        with mistake("saved anew or removed while it was read"):
            step()


def test_a_save_that_is_killed_leaves_no_mixture(tmp_path, monkeypatch):
    """At each rename: the new model, or a sentence that says what happened."""
    first = small("llama/stories260k", 1)
    second = build_model(serial.change(first.config, {"decoder.position.theta": 77.0}), seed=2)
    tokenizer = train_tokenizer("byte")
    store.save(second, tmp_path, tokenizer)
    new = loaded_digest(tmp_path)
    real = Path.replace

    def outcome(at):
        replaced = itertools.count()

        def killed(path, target):
            if Path(target).parent == tmp_path and next(replaced) == at:
                raise KeyboardInterrupt
            return real(path, target)

        store.save(first, tmp_path, tokenizer)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed)
            patch.setattr(shutil, "rmtree", lambda path, **_: None)  # nobody tidies up after a kill
            with contextlib.suppress(KeyboardInterrupt):
                store.save(second, tmp_path, tokenizer)
        try:
            return loaded_digest(tmp_path)
        except UserError as error:
            assert "a save into it was ended before it was done" in str(error)

    assert [outcome(at) for at in range(5)] == [None, None, None, None, new]


def test_a_checkpoint_that_is_removed_while_it_is_verified_is_named(tmp_path, monkeypatch):
    """A training keeps its last ones alone."""
    folder = tmp_path / "step-000003"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    digest = files.sha256(folder / "config.json")
    (folder / "SHA256SUMS").write_text(f"{digest}  config.json\n")
    checkpoint.verify(folder)

    def remove(path):
        shutil.rmtree(folder)
        return digest

    monkeypatch.setattr(files, "sha256", remove)
    with mistake("step-000003"):
        checkpoint.verify(folder)
