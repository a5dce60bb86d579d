"""Other libraries' files become models: logits equal a reference written here from their names; no
pickle is run."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.testing import assert_close

import glassformer
import tiny
from folders import write_json
from fuzzing import damaged
from glassformer import UserError
from glassformer.formats import pretrained, store
from glassformer.formats import torch_files as torchfiles
from mistakes import mistake
from seeding import generator_from

V = 11
C = 12
H = 3
L = 2
N = 8  # vocabulary, model dim, heads, layers, context
D = C // H
IDS = torch.tensor([[1, 5, 3, 10, 0, 7]])
T = IDS.shape[1]
ORDER = torch.arange(T)
SEEN = ORDER[:, None] >= ORDER[None]


class Draw:
    """Tensors by name, each drawn once."""

    def __init__(self):
        self.made = {}
        self.generator = generator_from(4)

    def __call__(self, name, *shape, around=0.0):
        if name not in self.made:
            self.made[name] = around + 0.4 * torch.randn(*shape, generator=self.generator)
        return self.made[name]


def attend(q, k, v):
    """(T, heads, D) each, causal, a head at a time."""
    heads = []
    for h in range(q.shape[1]):
        group = h * k.shape[1] // q.shape[1]
        scores = (q[:, h] @ k[:, group].T / math.sqrt(q.shape[-1])).masked_fill(~SEEN, -math.inf)
        heads.append(scores.softmax(-1) @ v[:, group])
    return torch.stack(heads, 1)


def gpt(draw, bias, act, tied):
    """nanoGPT's and minGPT's forward: logits (T, V)."""

    def maybe(name, size):
        return draw(name, size) if bias else None

    def norm(x, name):
        return F.layer_norm(
            x, (C,), draw(f"{name}.weight", C, around=1.0), maybe(f"{name}.bias", C), 1e-5
        )

    def linear(x, name, out):
        return F.linear(x, draw(f"{name}.weight", out, x.shape[-1]), maybe(f"{name}.bias", out))

    x = draw("transformer.wte.weight", V, C)[IDS[0]] + draw("transformer.wpe.weight", N, C)[:T]
    for i in range(L):
        at = f"transformer.h.{i}"
        q, k, v = (
            linear(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn", 3 * C).view(T, 3, H, D).unbind(1)
        )
        x = x + linear(attend(q, k, v).flatten(1), f"{at}.attn.c_proj", C)
        wide = linear(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc", 4 * C)
        x = x + linear(F.gelu(wide, approximate=act), f"{at}.mlp.c_proj", C)
    head = draw("transformer.wte.weight", V, C) if tied else draw("lm_head.weight", V, C)
    return norm(x, "transformer.ln_f") @ head.T


def nanochat(draw, kv, rows):
    """nanochat's forward of 2025; ``rows`` of the tables, of which V count."""
    speed = 10_000.0 ** -(torch.arange(0, D, 2) / D)
    turn = torch.polar(torch.ones(T, D // 2), -ORDER[:, None] * speed)  # backwards

    def rms(x):
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()

    def rotate(x):
        turned = torch.complex(*x.chunk(2, -1)) * turn[:, None]
        return torch.cat((turned.real, turned.imag), -1)

    x = rms(draw("transformer.wte.weight", rows, C)[IDS[0]])
    for i in range(L):
        at = f"transformer.h.{i}"
        y = rms(x)
        q = (y @ draw(f"{at}.attn.c_q.weight", C, C).T).view(T, H, D)
        k, v = ((y @ draw(f"{at}.attn.c_{n}.weight", kv * D, C).T).view(T, kv, D) for n in "kv")
        x = (
            x
            + attend(rms(rotate(q)), rms(rotate(k)), v).flatten(1)
            @ draw(f"{at}.attn.c_proj.weight", C, C).T
        )
        x = (
            x
            + F.relu(rms(x) @ draw(f"{at}.mlp.c_fc.weight", 4 * C, C).T) ** 2
            @ draw(f"{at}.mlp.c_proj.weight", C, 4 * C).T
        )
    return 15 * torch.tanh(rms(x) @ draw("lm_head.weight", rows, C)[:V].T / 15)


def lens(draw, folded, thinks):
    """TransformerLens' forward by its einsums; ``folded``: LayerNorms without weights."""

    def norm(x, name):
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x if folded else x * draw(f"{name}.w", C, around=1.0) + draw(f"{name}.b", C)

    x = draw("embed.W_E", V, C)[IDS[0]] + draw("pos_embed.W_pos", N, C)[:T]
    for i in range(L):
        at = f"blocks.{i}"
        y = norm(x, f"blocks.{i}.ln1")
        q, k, v = (
            torch.einsum("tc,hcd->thd", y, draw(f"{at}.attn.W_{n}", H, C, 5))
            + draw(f"{at}.attn.b_{n}", H, 5)
            for n in "QKV"
        )
        z = torch.einsum("thd,hdc->tc", attend(q, k, v), draw(f"{at}.attn.W_O", H, 5, C)) + draw(
            f"{at}.attn.b_O", C
        )
        x = x + z
        if thinks:
            wide = F.relu(
                norm(x, f"{at}.ln2") @ draw(f"{at}.mlp.W_in", C, 20) + draw(f"{at}.mlp.b_in", 20)
            )
            x = x + wide @ draw(f"{at}.mlp.W_out", 20, C) + draw(f"{at}.mlp.b_out", C)
    return norm(x, "ln_final") @ draw("unembed.W_U", C, V) + draw("unembed.b_U", V)


GROUPS = [{"lr": 0.1, "betas": (0.9, 0.95), "foreach": None, "fused": True, "params": [0]}]
ARGS = {"n_layer": L, "n_head": H, "n_embd": C, "block_size": N, "vocab_size": V, "dropout": 0.1}
CHAT = {"sequence_len": N, "vocab_size": V, "n_layer": L, "n_head": H, "n_kv_head": 1, "n_embd": C}


def written(name, folder):
    """A file as ``name``'s library leaves it: the line for convert, and the logits that its model
    gives."""
    draw, folder = Draw(), folder / "theirs"
    folder.mkdir()
    kind = name.partition(",")[0]
    file = folder / "model.pt"
    stored: Any
    with torch.no_grad():
        if kind == "nanogpt":
            bias = "no bias" not in name
            logits = gpt(draw, bias, "none", tied=True)
            weights = {**draw.made, "lm_head.weight": draw.made["transformer.wte.weight"]}
            prefix = "_orig_mod." if "compiled" in name else ""
            stored = {
                "model": {prefix + n: w for n, w in weights.items()},
                "optimizer": {"state": {0: {"step": torch.ones(1)}}, "param_groups": GROUPS},
                "model_args": {**ARGS, "bias": bias},
                "iter_num": 2000,
                "best_val_loss": torch.tensor(1.5),
                "config": {"dataset": "shakespeare", "lr": 1e-3},
            }
        elif kind == "mingpt":
            logits = gpt(draw, True, "tanh", tied=False)
            mask = torch.ones(N, N).tril().view(1, 1, N, N)
            stored = {**draw.made, **{f"transformer.h.{i}.attn.bias": mask for i in range(L)}}
            page = {"model_type": "gpt-nano"} if "named" in name else {"n_head": H}
            page = {"system": {"seed": 3407}, "model": {"model_type": "gpt", **page}}
            write_json(folder / "config.json", page)
        elif kind == "nanochat":
            nanochat(draw, 1, rows=16)
            table = draw.made["transformer.wte.weight"].bfloat16()
            draw.made["transformer.wte.weight"] = table.float()
            logits = nanochat(draw, 1, rows=16)
            stored = {**draw.made, "transformer.wte.weight": table}
            file = folder / "model_000650.pt"
            page = {"step": 650, "model_config": CHAT}
            write_json(folder / "meta_000650.json", page)
            if "neutral" in name:
                stored |= {"resid_lambdas": torch.ones(L), "x0_lambdas": torch.zeros(L)}
        else:
            logits = lens(draw, "folded" in name, "attention" not in name)
            stored = {**draw.made, "blocks.0.attn.mask": torch.ones(N, N, dtype=torch.bool)}
            stored["blocks.0.attn.IGNORE"] = torch.tensor(-math.inf)
            page = {
                "act_fn": "relu",
                "normalization_type": "LNPre" if "folded" in name else "LN",
                "n_heads": H,
                "attn_scale": math.sqrt(5),
                "positional_embedding_type": "standard",
                "n_key_value_heads": None,
            }
            write_json(folder / "config.json", page)
    if "safetensors" in name:
        file = file.with_suffix(".safetensors")
        save_file(stored, file)
    else:
        torch.save(stored, file)
    return f"convert --from {kind} {file} --out {folder.parent}/ours", logits


def file_of(line):
    return Path(line.split()[3])


NAMES = [
    "nanogpt",
    "nanogpt, no bias",
    "nanogpt, compiled",
    "mingpt",
    "mingpt, named",
    "nanochat",
    "nanochat, neutral",
]
NAMES += [
    f"transformerlens{more}"
    for more in ("", ", folded", ", attention only", ", attention only, folded")
]
NAMES += ["transformerlens, safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_theirs(name, tmp_path, terminal):
    line, logits = written(name, tmp_path)
    terminal(line)
    model, _ = glassformer.load(tmp_path / "ours")
    with torch.no_grad():
        assert_close(model(IDS).logits[0], logits, rtol=0, atol=1e-5)
    assert logits.std(0).min() > 0.03  # they say something of each place


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_a_pytorch_model_bin_beside_its_config(shape, tmp_path, terminal):
    model = tiny.model(shape)
    folder = tmp_path / "m"
    store.save(model, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    hint = terminal.refused(f"generate {folder}").rpartition(": glassformer ")[2]
    terminal(hint.replace("NEW_FOLDER.", f"{tmp_path}/new"))  # the hint is the working line
    back, _ = glassformer.load(tmp_path / "new")
    assert all(map(torch.equal, back.parameters(), model.parameters()))


def test_a_nanogpt_file_tells_its_line(tmp_path, terminal):
    line, _ = written("nanogpt", tmp_path)
    hint = terminal.refused(f"generate {file_of(line)}").rpartition(": glassformer ")[2]
    terminal(hint.partition(" (or")[0].replace("NEW_FOLDER", f"{tmp_path}/new"))
    assert glassformer.load(tmp_path / "new")[0].config.context == N


@pytest.mark.parametrize("kind, other_name", [("nanogpt", "mingpt"), ("mingpt", "nanogpt")])
def test_one_gpt_is_not_taken_for_the_other(kind, other_name, tmp_path):
    line, _ = written(f"{kind}, compiled" if kind == "nanogpt" else kind, tmp_path)
    message = f"this looks like a {kind[:-3]}GPT file; use --from {kind}"
    with mistake(message):
        torchfiles.load(other_name, file_of(line))


def test_letters_of_the_text_are_its_tokenizer(tmp_path, terminal):
    line, _ = written("nanogpt", tmp_path)
    # eleven characters, as the model has rows
    (tmp_path / "input.txt").write_text("hello world\nab\n")
    terminal(line)
    notes = terminal.notes
    folder = tmp_path / "ours"
    assert notes.startswith("This model has no tokenizer: ")
    assert notes.count("\n") == 1
    hint = f"glassformer convert {folder} --tokenizer NAME --out NEW_FOLDER"
    assert hint in terminal.refused(f"generate {folder} he")
    program = notes.partition('python -c "')[2].partition('"')[0]
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    for source in (line.removesuffix(f" --out {folder}"), f"convert {folder}"):
        out = tmp_path / f"of {len(source)}"
        terminal(f"{source} --tokenizer {tmp_path}/letters --out", out)
        _, tokenizer = glassformer.load(out)
        assert tokenizer.encode("\n ab") == [0, 1, 2, 3]
    terminal("generate", out, "he", "--max-new", 4)
    # with a special token: one too many
    glassformer.core.tokenizer.train("char", ["hello world\nab\n"]).save(tmp_path / "more")
    line = line.replace(str(folder), f"{tmp_path}/none")
    message = "12 tokens, the model only 11; give the model's own tokenizer, for a model of char"
    assert message in terminal.refused(f"{line} --tokenizer {tmp_path}/more")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("result", [True, False])
def test_gpt2s_tokenizer_goes_with_its_vocabulary(result, tmp_path, request, monkeypatch, terminal):
    home = request.getfixturevalue("shared_data") if result else tmp_path / "nothing"
    monkeypatch.setenv("GLASSFORMER_DATA", str(home))
    if not result:
        no_network = lambda name, online=True: pytest.fail("no network") if online else None  # noqa: E731
        monkeypatch.setattr(pretrained, "_hub", no_network)
    line, _ = written("nanogpt", tmp_path)
    loaded = torch.load(file_of(line), weights_only=True)
    table = torch.zeros(50304, C)
    loaded["model"] |= {"transformer.wte.weight": table, "lm_head.weight": table}
    loaded["model_args"]["vocab_size"] = 50304
    torch.save(loaded, file_of(line))
    terminal(line)
    _, tokenizer = glassformer.load(tmp_path / "ours")
    assert terminal.notes.count("\n") == 1
    if result:
        assert tokenizer.size == 50257
        assert "GPT-2's" in terminal.notes
    else:
        assert tokenizer is None
        assert "--tokenizer gpt2 --out NEW_FOLDER" in terminal.notes


CHANGES = [
    ("nanochat", "value_embeds.1.weight", torch.ones(16, D), "weight, which no module"),
    ("nanochat", "resid_lambdas", torch.full((L,), 1.1), "resid_lambdas other than 1"),
    ("nanochat", "smear_gate.weight", torch.ones(1, 24), "weight, which no module"),
    ("mingpt", "nose.weight", torch.ones(1), "no place for nose.weight"),
    ("mingpt", "lm_head.weight", torch.ones(V, C + 1), "lm_head.weight has shape"),
]


@pytest.mark.parametrize("kind, name, weight, message", CHANGES)
def test_what_no_module_does_is_refused_by_name(kind, name, weight, message, tmp_path):
    file = file_of(written(kind, tmp_path)[0])
    torch.save({**torch.load(file, weights_only=True), name: weight}, file)
    with mistake(message) as caught:
        torchfiles.load(kind, file)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    "kind, message, match",
    [
        ("mingpt", {}, '"n_head"'),
        ("nanochat", {**CHAT, "window_pattern": "SSSL"}, '"window_pattern" is "SSSL"'),
        ("transformerlens", {"act_fn": "solu_ln"}, '"act_fn" is "solu_ln"'),
        (
            "transformerlens",
            {"act_fn": "relu", "positional_embedding_type": "rotary"},
            "only learned positions",
        ),
        ("transformerlens", {}, '"act_fn"'),
    ],
)
def test_settings_that_are_missing_or_not_done(kind, message, match, tmp_path):
    line, _ = written(kind, tmp_path)
    page = tmp_path / "said.json"
    write_json(page, message)
    with mistake(match):
        torchfiles.load(kind, file_of(line), page)


@pytest.mark.parametrize(
    "word, value, match",
    [
        (
            "n_layer",
            L - 1,
            f"has n_layer {L - 1}, and the weights have {L}: transformer.h.{L - 1}.",
        ),
        ("n_layer", L + 1, f"has n_layer {L + 1}, and the weights have {L};"),
        ("n_embd", C + 4, "n_embd"),
        ("vocab_size", V + 1, "vocab_size"),
        ("block_size", N - 1, "block_size"),
    ],
)
def test_settings_that_contradict_the_weights_are_refused(word, value, match, tmp_path):
    file = file_of(written("nanogpt", tmp_path)[0])
    stored = torch.load(file, weights_only=True)
    stored["model_args"][word] = value
    torch.save(stored, file)
    with mistake(match):
        torchfiles.load("nanogpt", file)


def test_settings_of_a_nanogpt_are_its_models_and_not_those_of_its_last_run(tmp_path):
    """One that goes on from a checkpoint has its model_args; "config" says what the command did."""
    file = file_of(written("nanogpt", tmp_path)[0])
    stored = torch.load(file, weights_only=True)
    expected = torchfiles.load("nanogpt", file).config
    stored["config"] |= {"n_head": 1, "dropout": 0.5, "n_layer": L + 3}
    torch.save(stored, file)
    assert torchfiles.load("nanogpt", file).config == expected


# --------------------------------------------------------------------------------- nothing is run


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


@pytest.mark.parametrize(
    "place", ["config", "model", "key", "list", "state", "tensor", "number", "storage"]
)
def test_no_code_of_a_file_is_run(place, tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "ran"))
    file = file_of(written("nanogpt", tmp_path)[0])
    bomb = Bomb()
    loaded = torch.load(file, weights_only=True)
    tensor = torch.nn.Parameter(torch.ones(3))
    tensor.hook = bomb
    changed = {
        "config": {**loaded, "config": bomb},
        "model": {"model": bomb},
        "key": {**loaded, (bomb,): 1},
        "list": [bomb],
        "state": {**loaded, "optimizer": {"state": {0: bomb}}},
        "tensor": {**loaded, "model": {**loaded["model"], "x": tensor}},
        "number": {**loaded, "iter_num": complex(1, 2)},
        "storage": {**loaded, "model": {**loaded["model"], "x": tensor.untyped_storage()}},
    }
    torch.save(changed[place], file)
    message = r"is code and not data, so it is not read; save the weights alone: torch.save"
    with mistake(message):
        torchfiles.load("nanogpt", file)
    assert not (tmp_path / "ran").exists()


def archive_of(path, program, compression=zipfile.ZIP_STORED):
    """A file of torch.save with this program and one storage of 64 numbers."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("model/data.pkl", program)
        archive.writestr("model/byteorder", "little")
        archive.writestr("model/data/0", bytes(256))
        archive.writestr("model/version", "3\n")
    return path


def pickled_tensor(numbers=64, shape=(8, 8), stride=(8, 1)):
    """The pickle operations that make a tensor of the storage, of which the file says that it has
    ``numbers``."""
    full = lambda n: b"\x8a\x08" + n.to_bytes(8, "little", signed=True)  # noqa: E731
    row = lambda ns: b"(" + b"".join(map(full, ns)) + b"t"  # noqa: E731
    text = lambda t: b"X" + len(t).to_bytes(4, "little") + t  # noqa: E731
    place = (
        b"("
        + text(b"storage")
        + b"ctorch\nFloatStorage\n"
        + text(b"0")
        + text(b"cpu")
        + full(numbers)
        + b"tQ"
    )
    arguments = place + full(0) + row(shape) + row(stride) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def with_key(key):
    return b"\x80\x02}(" + key + b"K\x01X\x01\0\0\0w" + pickled_tensor() + b"u."


def nested(count, before, after, first=b")"):
    """A value inside of ``count`` others; # in ``after`` is the number by which the inner one is
    fetched again."""
    numbered = (after.replace(b"#", number.to_bytes(4, "little")) for number in range(count))
    return before * count + first + b"".join(numbered)


HUGE = 3_000_000_000
HARMLESS = {"sound": with_key(b"K\x02")}
HOSTILE = {
    "no stride": b"\x80\x02}X\x01\0\0\0w" + pickled_tensor(shape=(HUGE,), stride=(0,)) + b"s.",
    "a long storage": b"\x80\x02}X\x01\0\0\0w" + pickled_tensor(HUGE, (HUGE,), (1,)) + b"s.",
    "past the end": b"\x80\x02}X\x01\0\0\0w" + pickled_tensor(HUGE, (8,), (1000,)) + b"s.",
    "negative": b"\x80\x02}X\x01\0\0\0w" + pickled_tensor(-64, (8,), (1,)) + b"s.",
    "tuples shared as a key": with_key(nested(44, b"", b"r#j#\x86")),
    "tuples of many as a key": with_key(nested(5, b"(", b"r#" + b"j#" * 2000 + b"t")),
    "tuples deep as a key": with_key(b")" + b"\x85" * 900_000),
    "sizes shared as a key": with_key(nested(44, b"ctorch\nSize\n", b"r#j#\x86\x85R")),
    "a long bytearray": with_key(
        b"c__builtin__\nbytearray\n" + b"\x8a\x08" + (4 * HUGE).to_bytes(8, "little") + b"\x85R"
    ),
    "a storage made": with_key(
        b"ctorch\nFloatStorage\n\x8a\x08" + HUGE.to_bytes(8, "little") + b"\x85R"
    ),
    "an object made": with_key(
        b"ctorch\nFloatStorage\n\x8a\x08" + HUGE.to_bytes(8, "little") + b"\x85\x81"
    ),
    "a dict called": with_key(b"}\x85R"),
    "ten million values": b"\x80\x02" + b"N" * 10_000_000 + b".",
    "ten million marks": b"\x80\x02" + b"(" * 10_000_000 + b".",
    "a million values": b"\x80\x02" + b"N" * 1_000_000 + b".",
    "a million marks": b"\x80\x02" + b"(" * 1_000_000 + b".",
    "nothing": b"",
}
LOOK = """
import json, resource, sys, time
from pathlib import Path
from glassformer.formats import torch_files
from glassformer.core.errors import UserError
kib = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[1:]:
    began, before = time.process_time(), kib()
    try:
        torch_files._state(torch_files.read_archive(Path(name)), Path(name))
        said = "read"
    except UserError as error:
        said = str(error)
    print(json.dumps([said, time.process_time() - began, (kib() - before) / 1024]))
"""


def test_a_small_file_takes_little_memory_and_time(tmp_path):
    """Each by itself in a process without limits, which says how much it took."""
    # dicts of the same dict twice: nobody walks through them
    shared = nested(44, b"}(K\x00", b"r#K\x01j#u", b"}")
    cases = {**HARMLESS, "dicts shared": with_key(b"K\x02" + shared + b"K\x03"), **HOSTILE}
    paths = [archive_of(tmp_path / f"{name}.pt", program) for name, program in cases.items()]
    many = b"\x80\x02" + b"N" * 100_000_000
    paths.append(archive_of(tmp_path / "packed.pt", many, zipfile.ZIP_DEFLATED))
    output = subprocess.check_output([sys.executable, "-c", LOOK, *paths], text=True)
    readable = []
    for path, (message, seconds, mib) in zip(
        paths, map(json.loads, output.splitlines()), strict=True
    ):
        assert seconds <= 8 and mib <= 200, (path.stem, message)
        readable += [path.stem] * (message == "read")
    assert readable == ["sound", "dicts shared"]


def test_damaged_archives_are_one_sentence(tmp_path):
    file = file_of(written("mingpt", tmp_path)[0])
    content = file.read_bytes()
    bad = tmp_path / "bad.pt"
    refused = 0
    with zipfile.ZipFile(file) as archive:
        pieces = {name: archive.read(name) for name in archive.namelist()}
    (program,) = (name for name in pieces if name.endswith(".pkl"))
    (tmp_path / "config.json").write_text('{"n_head": 3}')
    chance = random.Random(0)
    step = len(content) // 20
    for number in range(320):
        if number < 20:
            bad.write_bytes(content[: number * step])
        else:
            with zipfile.ZipFile(bad, "w") as archive:
                for name, data in pieces.items():
                    archive.writestr(name, damaged(data, chance) if name == program else data)
        try:
            torchfiles.load("mingpt", bad)
        except UserError as error:
            refused += 1
            assert len(str(error)) <= 1500
    assert refused > 100
