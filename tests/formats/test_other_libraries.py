"""Other libraries' files become models: logits equal a reference written here from their names; no
pickle is run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import glassformer
import tiny
from glassformer import UserError, cli
from glassformer.core.nn import build_model
from glassformer.formats import pretrained, store
from glassformer.formats import torch_files as torchfiles

V, C, H, L, N = 11, 12, 3, 2, 8  # vocabulary, model dim, heads, layers, context
D = C // H
IDS = torch.tensor([[1, 5, 3, 10, 0, 7]])
T = IDS.shape[1]
ORDER = torch.arange(T)
SEEN = ORDER[:, None] >= ORDER[None]


class Draw:
    """Tensors by name, each drawn once."""

    def __init__(self) -> None:
        self.made: dict[str, Tensor] = {}
        self.generator = torch.Generator().manual_seed(4)

    def __call__(self, name: str, *shape: int, around: float = 0.0) -> Tensor:
        if name not in self.made:
            self.made[name] = around + 0.4 * torch.randn(*shape, generator=self.generator)
        return self.made[name]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(T, heads, D) each, causal, a head at a time."""
    heads = []
    for h in range(q.shape[1]):
        group = h * k.shape[1] // q.shape[1]
        scores = (q[:, h] @ k[:, group].T / math.sqrt(q.shape[-1])).masked_fill(~SEEN, -math.inf)
        heads.append(scores.softmax(-1) @ v[:, group])
    return torch.stack(heads, 1)


def gpt(draw: Draw, bias: bool, act: str, tied: bool) -> Tensor:
    """nanoGPT's and minGPT's forward: logits (T, V)."""

    def maybe(name: str, size: int) -> Tensor | None:
        return draw(name, size) if bias else None

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(
            x, (C,), draw(f"{name}.weight", C, around=1.0), maybe(f"{name}.bias", C), 1e-5
        )

    def linear(x: Tensor, name: str, out: int) -> Tensor:
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


def nanochat(draw: Draw, kv: int, rows: int) -> Tensor:
    """nanochat's forward of 2025; ``rows`` of the tables, of which V count."""
    speed = 10_000.0 ** -(torch.arange(0, D, 2) / D)
    turn = torch.polar(torch.ones(T, D // 2), -ORDER[:, None] * speed)  # backwards

    def rms(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()

    def rotate(x: Tensor) -> Tensor:
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


def lens(draw: Draw, folded: bool, thinks: bool) -> Tensor:
    """TransformerLens' forward by its einsums; ``folded``: LayerNorms without weights."""

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x if folded else x * draw(f"{name}.w", C, around=1.0) + draw(f"{name}.b", C)

    x = draw("embed.W_E", V, C)[IDS[0]] + draw("pos_embed.W_pos", N, C)[:T]
    for i in range(L):
        at, y = f"blocks.{i}", norm(x, f"blocks.{i}.ln1")
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


ARGS = {"n_layer": L, "n_head": H, "n_embd": C, "block_size": N, "vocab_size": V, "dropout": 0.1}
CHAT = {"sequence_len": N, "vocab_size": V, "n_layer": L, "n_head": H, "n_kv_head": 1, "n_embd": C}


def written(name: str, folder: Path) -> tuple[list[str], Tensor]:
    """A file as ``name``'s library leaves it: the words for convert, and the logits that its model
    gives."""
    draw, folder = Draw(), folder / "theirs"
    folder.mkdir()
    kind = name.partition(",")[0]
    file = folder / "model.pt"
    with torch.no_grad():
        if kind == "nanogpt":
            bias = "no bias" not in name
            logits = gpt(draw, bias, "none", tied=True)
            weights = {**draw.made, "lm_head.weight": draw.made["transformer.wte.weight"]}
            weight = torch.nn.Parameter(torch.ones(3))
            optimizer = torch.optim.AdamW([weight])
            weight.grad = torch.ones(3)
            optimizer.step()
            prefix = "_orig_mod." if "compiled" in name else ""
            weights = {prefix + n: w for n, w in weights.items()}
            stored: Any = {
                "model": weights,
                "optimizer": optimizer.state_dict(),
                "model_args": {**ARGS, "bias": bias},
            }
            stored |= {
                "iter_num": 2000,
                "best_val_loss": torch.tensor(1.5),
                "config": {"dataset": "shakespeare", "lr": 1e-3},
            }
        elif kind == "mingpt":
            logits = gpt(draw, True, "tanh", tied=False)
            mask = torch.ones(N, N).tril().view(1, 1, N, N)
            stored = {**draw.made, **{f"transformer.h.{i}.attn.bias": mask for i in range(L)}}
            message = (
                {"model_type": "gpt", "n_head": H}
                if "named" not in name
                else {"model_type": "gpt-nano"}
            )
            (folder / "config.json").write_text(
                json.dumps({"system": {"seed": 3407}, "model": message})
            )
        elif kind == "nanochat":
            logits = nanochat(draw, 1, rows=16)
            stored, file = draw.made, folder / "model_000650.pt"
            stored["transformer.wte.weight"] = stored["transformer.wte.weight"].bfloat16().float()
            (folder / "meta_000650.json").write_text(
                json.dumps({"step": 650, "model_config": CHAT})
            )
            logits = nanochat(draw, 1, rows=16)
            stored = {
                **stored,
                "transformer.wte.weight": stored["transformer.wte.weight"].bfloat16(),
            }
            if "neutral" in name:
                stored |= {"resid_lambdas": torch.ones(L), "x0_lambdas": torch.zeros(L)}
        else:
            logits = lens(draw, "folded" in name, "attention" not in name)
            stored = {**draw.made, "blocks.0.attn.mask": torch.ones(N, N, dtype=torch.bool)}
            stored |= {"blocks.0.attn.IGNORE": torch.tensor(-math.inf)}
            message = {
                "act_fn": "relu",
                "normalization_type": "LNPre" if "folded" in name else "LN",
                "n_heads": H,
            }
            message |= {
                "attn_scale": math.sqrt(5),
                "positional_embedding_type": "standard",
                "n_key_value_heads": None,
            }
            (folder / "config.json").write_text(json.dumps(message))
            if "safetensors" in name:
                from safetensors.torch import save_file

                file = file.with_suffix(".safetensors")
                save_file(stored, file)
    if file.suffix == ".pt":
        torch.save(stored, file)
    return ["--from", kind, str(file), "--out", str(folder.parent / "ours")], logits


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
def test_logits_are_theirs(name, tmp_path):
    words, logits = written(name, tmp_path)
    assert cli.main(["convert", *words]) == 0
    model, _ = glassformer.load(tmp_path / "ours")
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits[0], logits, rtol=0, atol=1e-5)
    assert logits.std(0).min() > 0.03  # they say something of each place


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_a_pytorch_model_bin_beside_its_config(shape, tmp_path, capsys):
    from safetensors.torch import load_file

    model = build_model(tiny.DECODERS[shape], seed=1).eval()
    store.save(model, tmp_path / "m")
    torch.save(
        load_file(tmp_path / "m" / "model.safetensors"), tmp_path / "m" / "pytorch_model.bin"
    )
    (tmp_path / "m" / "model.safetensors").unlink()
    assert cli.main(["generate", str(tmp_path / "m")]) == 2
    line = (
        capsys.readouterr()
        .err.rpartition(": glassformer ")[2]
        .replace("NEW_FOLDER.", str(tmp_path / "new"))
    )
    assert cli.main(line.split()) == 0  # the hint is the working line
    back, _ = glassformer.load(tmp_path / "new")
    assert all(
        torch.equal(a, b) for a, b in zip(back.parameters(), model.parameters(), strict=True)
    )


def test_a_nanogpt_file_tells_its_line(tmp_path, capsys):
    words, _ = written("nanogpt", tmp_path)
    assert cli.main(["generate", words[2]]) == 2
    line = capsys.readouterr().err.rpartition(": glassformer ")[2].partition(" (or")[0]
    assert cli.main(line.replace("NEW_FOLDER", str(tmp_path / "new")).split()) == 0
    assert glassformer.load(tmp_path / "new")[0].config.context == N


@pytest.mark.parametrize(("kind", "other_name"), [("nanogpt", "mingpt"), ("mingpt", "nanogpt")])
def test_one_gpt_is_not_taken_for_the_other(kind, other_name, tmp_path):
    words, _ = written(f"{kind}, compiled" if kind == "nanogpt" else kind, tmp_path)
    with pytest.raises(
        UserError, match=f"this looks like a {kind[:-3]}GPT file; use --from {kind}"
    ):
        torchfiles.load(other_name, Path(words[2]))


def test_letters_of_the_text_are_its_tokenizer(tmp_path, capsys):
    words, _ = written("nanogpt", tmp_path)
    # eleven characters, as the model has rows
    (tmp_path / "input.txt").write_text("hello world\nab\n")
    assert cli.main(["convert", *words]) == 0
    stderr = capsys.readouterr().err
    assert stderr.startswith("This model has no tokenizer: ") and stderr.count("\n") == 1
    assert cli.main(["generate", words[-1], "he"]) == 2
    assert (
        f"glassformer convert {words[-1]} --tokenizer NAME --out NEW_FOLDER"
        in capsys.readouterr().err
    )
    program = stderr.partition('python -c "')[2].partition('"')[0]
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    letters = str(tmp_path / "letters")
    for number, line in enumerate((["convert", *words[:-1]], ["convert", words[-1], "--out"])):
        assert cli.main([*line, str(tmp_path / f"m{number}"), "--tokenizer", letters]) == 0
        _, tokenizer = glassformer.load(tmp_path / f"m{number}")
        assert tokenizer is not None and tokenizer.encode("\n ab") == [0, 1, 2, 3]
    capsys.readouterr()
    assert cli.main(["generate", str(tmp_path / "m0"), "he", "--max-new", "4"]) == 0
    # with a special token: one too many
    text = glassformer.core.tokenizer.train("char", ["hello world\nab\n"])
    text.save(tmp_path / "more")
    assert (
        cli.main(
            ["convert", *words[:-1], str(tmp_path / "m3"), "--tokenizer", str(tmp_path / "more")]
        )
        == 2
    )
    assert (
        "12 tokens, the model only 11; give the one it has, for a model of char"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "m3").exists()


@pytest.mark.parametrize("result", [True, False])
def test_gpt2s_tokenizer_goes_with_its_vocabulary(
    result,
    tmp_path,
    request,
    monkeypatch,
    capsys,
):
    home = request.getfixturevalue("shared_data") if result else tmp_path / "nothing"
    monkeypatch.setenv("GLASSFORMER_DATA", str(home))
    if not result:
        monkeypatch.setattr(
            pretrained,
            "_hub",
            lambda name, online=True: pytest.fail("no network") if online else None,
        )
    words, _ = written("nanogpt", tmp_path)
    loaded = torch.load(words[2], weights_only=True)
    table = torch.zeros(50304, C)
    loaded["model"] |= {"transformer.wte.weight": table, "lm_head.weight": table}
    torch.save({**loaded, "model_args": {**ARGS, "bias": True, "vocab_size": 50304}}, words[2])
    assert cli.main(["convert", *words]) == 0
    _, tokenizer = glassformer.load(words[-1])
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    if result:
        assert tokenizer is not None and tokenizer.size == 50257 and "GPT-2's" in stderr
    else:
        assert tokenizer is None and "--tokenizer gpt2 --out NEW_FOLDER" in stderr


CHANGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "value embeddings": (
        "nanochat",
        {"value_embeds.1.weight": torch.ones(16, D)},
        "value_embeds.1.weight, which no module",
    ),
    "lambdas": ("nanochat", {"resid_lambdas": torch.full((L,), 1.1)}, "resid_lambdas other than 1"),
    "smear": (
        "nanochat",
        {"smear_gate.weight": torch.ones(1, 24)},
        "smear_gate.weight, which no module",
    ),
    "left over": ("mingpt", {"nose.weight": torch.ones(1)}, "no place for nose.weight"),
    "shape": ("mingpt", {"lm_head.weight": torch.ones(V, C + 1)}, "lm_head.weight has shape"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_no_module_does_is_refused_by_name(name, tmp_path):
    kind, change, message = CHANGES[name]
    words, _ = written(kind, tmp_path)
    file = Path(words[2])
    torch.save({**torch.load(file, weights_only=True), **change}, file)
    with pytest.raises(UserError, match=message):
        torchfiles.load(kind, file)


@pytest.mark.parametrize(
    ("kind", "message", "match"),
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
    words, _ = written(kind, tmp_path)
    page = tmp_path / "said.json"
    page.write_text(json.dumps(message))
    with pytest.raises(UserError, match=match):
        torchfiles.load(kind, Path(words[2]), page)


# --------------------------------------------------------------------------------- nothing is run


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["BOMB"],)


@pytest.mark.parametrize(
    "place", ["config", "model", "key", "list", "state", "tensor", "number", "storage"]
)
def test_no_code_of_a_file_is_run(place, tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "ran"))
    words, _ = written("nanogpt", tmp_path)
    file, bomb = Path(words[2]), Bomb()
    loaded = torch.load(file, weights_only=True)
    weights, tensor = loaded["model"], torch.nn.Parameter(torch.ones(3))
    tensor.hook = bomb  # type: ignore[attr-defined]
    changed: dict[str, Any] = {
        "config": {**loaded, "config": bomb},
        "model": {"model": bomb},
        "key": {**loaded, (bomb,): 1},
        "list": [bomb],
        "state": {**loaded, "optimizer": {"state": {0: bomb}}},
        "tensor": {**loaded, "model": {**weights, "x": tensor}},
        "number": {**loaded, "iter_num": complex(1, 2)},
        "storage": {**loaded, "model": {**weights, "x": torch.ones(3).untyped_storage()}},
    }
    torch.save(changed[place], file)
    with pytest.raises(
        UserError,
        match=r"is code and not data, so it is not read; save the "
        r"weights alone: torch.save",
    ):
        torchfiles.load("nanogpt", file)
    assert not (tmp_path / "ran").exists()


def archive_of(path: Path, program: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """A file of torch.save with this program and one storage of 64 numbers."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("model/data.pkl", program)
        archive.writestr("model/byteorder", "little")
        archive.writestr("model/data/0", bytes(256))
        archive.writestr("model/version", "3\n")
    return path


def pickled_tensor(
    numbers: int = 64, shape: tuple[int, ...] = (8, 8), stride: tuple[int, ...] = (8, 1)
) -> bytes:
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


def with_key(key: bytes) -> bytes:
    return b"\x80\x02}(" + key + b"K\x01X\x01\0\0\0w" + pickled_tensor() + b"u."


def nested(count: int, before: bytes, after: bytes, first: bytes = b")") -> bytes:
    """A value inside of ``count`` others; # in ``after`` is the number by which the inner one is
    fetched again."""
    numbered = (after.replace(b"#", number.to_bytes(4, "little")) for number in range(count))
    return before * count + first + b"".join(numbered)


HUGE = 3_000_000_000
HARMLESS = {"sound": with_key(b"K\x02")}
HOSTILE: dict[str, bytes] = {
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
    paths.append(
        archive_of(tmp_path / "packed.pt", b"\x80\x02" + b"N" * 100_000_000, zipfile.ZIP_DEFLATED)
    )
    output = subprocess.run(
        [sys.executable, "-c", LOOK, *paths], capture_output=True, text=True, check=True
    ).stdout
    result = dict(
        zip([path.stem for path in paths], map(json.loads, output.splitlines()), strict=True)
    )
    assert [name for name, (message, _, _) in result.items() if message == "read"] == [
        "sound",
        "dicts shared",
    ]
    slow = {
        name: (message, seconds, mib)
        for name, (message, seconds, mib) in result.items()
        if seconds > 8 or mib > 200
    }
    assert not slow


def test_damaged_archives_are_one_sentence(tmp_path):
    words, _ = written("mingpt", tmp_path)
    full_content = Path(words[2]).read_bytes()
    with zipfile.ZipFile(words[2]) as archive:
        program = archive.read("model/data.pkl")
        pieces = {name: archive.read(name) for name in archive.namelist()}
    draw = torch.Generator().manual_seed(0)
    files = [full_content[:cut] for cut in range(0, len(full_content), len(full_content) // 20)]
    bad = tmp_path / "bad.pt"
    for number in range(300):
        at = torch.randint(len(program), (2,), generator=draw).tolist()
        changed = bytearray(program)
        changed[at[0]], changed[at[1]] = (int(x) for x in torch.randint(256, (2,), generator=draw))
        with zipfile.ZipFile(bad, "w") as archive:
            for name, content in pieces.items():
                archive.writestr(
                    name,
                    bytes(changed[: len(changed) - at[0] * (number % 9 == 0)])
                    if name.endswith(".pkl")
                    else content,
                )
        files.append(bad.read_bytes())
    refused = 0
    for content in files:
        bad.write_bytes(content)
        (tmp_path / "config.json").write_text('{"n_head": 3}')
        try:
            torchfiles.load("mingpt", bad)
        except UserError as error:
            refused += 1
            assert len(str(error)) <= 1500
    assert refused > 100
