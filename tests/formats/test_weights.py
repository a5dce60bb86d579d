"""The two-way table of names, and safetensors files whole, cut, corrupt and lying."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glassformer import UserError
from glassformer import config as c
from glassformer.core.checkpoints import headers
from glassformer.core.checkpoints import tensors as tensorfiles
from glassformer.core.checkpoints.names import NameRule, Table
from glassformer.core.nn import build
from glassformer.formats import weights

B = "blocks.{i}"


def there_and_back(table: Table, actual: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Saved tensors of the parameters; loading them must restore the parameters."""
    shapes = {name: tuple(tensor.shape) for name, tensor in actual.items()}
    for name, content in tensorfiles.contents(weights.pieces(table, actual, shapes)).items():
        assert callable(content)
        content(folder / name)
    back = {name: torch.full_like(tensor, float("nan")) for name, tensor in actual.items()}
    published = tensorfiles.open_files(folder)
    weights.fill(weights.check(table, shapes, published), published, back, shapes)
    assert all(torch.equal(back[name], actual[name]) for name in actual)
    return load_file(folder / "model.safetensors")


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


# ------------------------------------------------------------------------------------- the table


def test_a_letter_on_both_sides_repeats(tmp_path):
    actual = {f"blocks.{i}.up": numbers(3, 2 + i) for i in (0, 1, 10)}
    reference = there_and_back(Table((NameRule("h.{i}.fc", f"{B}.up"),)), actual, tmp_path)
    assert {name: tuple(t.shape) for name, t in reference.items()} == {
        "h.0.fc": (3, 2),
        "h.1.fc": (3, 3),
        "h.10.fc": (3, 12),
    }


def test_one_of_theirs_splits_into_several_of_ours_of_unequal_width(tmp_path):
    """Phi-3's fused queries, keys and values with fewer key-value heads."""
    actual = {"blocks.0.q": numbers(8, 4), "blocks.0.k": numbers(2, 4), "blocks.0.v": numbers(2, 4)}
    reference = there_and_back(
        Table((NameRule("h.{i}.qkv", (f"{B}.q", f"{B}.k", f"{B}.v")),)), actual, tmp_path
    )
    assert torch.equal(reference["h.0.qkv"], torch.cat([*actual.values()]))


def test_transpose(tmp_path):
    """GPT-2's Conv1D: (in, out), its three parts side by side."""
    actual = {
        "blocks.0.q": numbers(4, 5),
        "blocks.0.k": numbers(4, 5) + 1,
        "blocks.0.v": numbers(4, 5) + 2,
    }
    reference = there_and_back(
        Table((NameRule("h.{i}.c", (f"{B}.q", f"{B}.k", f"{B}.v"), transpose=True),)),
        actual,
        tmp_path,
    )
    assert torch.equal(reference["h.0.c"], torch.cat([t.T for t in actual.values()], dim=1))


def test_a_letter_of_theirs_alone_stacks(tmp_path):
    """Mixtral's experts, one file entry each."""
    actual = {f"blocks.{i}.gate": numbers(4, 3, 2) + i for i in range(2)}
    reference = there_and_back(
        Table((NameRule("h.{i}.experts.{e}.w1", f"{B}.gate"),)), actual, tmp_path
    )
    assert len(reference) == 8
    assert torch.equal(reference["h.1.experts.3.w1"], actual["blocks.1.gate"][3])


H, D, C = 3, 4, 5  # heads, their width, the model's


@pytest.mark.parametrize(
    ("axes", "actual", "reference", "place"),
    [  # their number at h, d, c is ours at row h * D + d, column c
        # TransformerLens W_Q
        ("h c d -> (h d) c", (H * D, C), (H, C, D), lambda t, h, d, c: t[h, c, d]),
        ("h d c -> c (h d)", (C, H * D), (H, D, C), lambda t, h, d, c: t[h, d, c]),  # W_O
        ("h d -> (h d)", (H * D,), (H, D), lambda t, h, d, c: t[h, d]),  # b_Q
        ("c h d -> (h d) c", (H * D, C), (C, H, D), lambda t, h, d, c: t[c, h, d]),  # Flax
    ],
    ids=["W_Q", "W_O", "b_Q", "Flax"],
)
def test_a_heads_axis_is_folded(axes, actual, reference, place, tmp_path):
    local = numbers(*actual)
    written = there_and_back(
        Table((NameRule("h.{i}.W", f"{B}.q", axes=axes, heads=H),)), {"blocks.0.q": local}, tmp_path
    )
    assert tuple(written["h.0.W"].shape) == reference
    for h, d, column in itertools.product(range(H), range(D), range(C)):
        row = h * D + d
        second_local = (
            local[row]
            if local.ndim == 1
            else local[column, row]
            if axes.startswith("h d c")
            else local[row, column]
        )
        assert place(written["h.0.W"], h, d, column) == second_local


def test_rotary_pairs_of_neighbours_become_halves(tmp_path):
    """Their dimension 2 i and 2 i + 1 of a head are ours i and i + D/2; what they say about angles
    is the same."""
    local = numbers(H * D, C)
    rule = NameRule("h.{i}.wq", f"{B}.q", axes="(h d 2) c -> (h 2 d) c", heads=H)
    reference = there_and_back(Table((rule,)), {"blocks.0.q": local}, tmp_path)["h.0.wq"]
    for h, i, p in itertools.product(range(H), range(D // 2), range(2)):
        assert torch.equal(reference[h * D + 2 * i + p], local[h * D + p * (D // 2) + i])
    x, pos = numbers(C), 7.0
    # as the original files' code turns them
    pairs = torch.view_as_complex((reference @ x).view(H, D // 2, 2))
    speed = 10_000.0 ** -(torch.arange(0, D, 2) / D)
    turned = torch.view_as_real(pairs * torch.polar(torch.ones(D // 2), pos * speed)).flatten(1)
    rotary = build(c.Rotary(), C, H, True)
    cos, sin = rotary.table(torch.tensor([[pos]]), D, torch.float32)
    actual = rotary.turn((local @ x).view(1, H, 1, D), cos, sin).view(H, D)
    torch.testing.assert_close(
        actual.view(H, 2, D // 2).transpose(1, 2).flatten(1), turned, rtol=1e-5, atol=1e-5
    )


def test_transpose_and_fold_and_split_at_once(tmp_path):
    """Queries, keys and values of each head side by side, transposed (GPT-NeoX, as Conv1D)."""
    actual = {f"blocks.0.{name}": numbers(H * D, C) + at for at, name in enumerate("qkv")}
    rule = NameRule(
        "h.{i}.W",
        (f"{B}.q", f"{B}.k", f"{B}.v"),
        transpose=True,
        axes="(h 3 d) c -> (3 h d) c",
        heads=H,
    )
    reference = there_and_back(Table((rule,)), actual, tmp_path)["h.0.W"]
    assert reference.shape == (C, 3 * H * D)
    assert torch.equal(reference.T.view(H, 3, D, C)[:, 1], actual["blocks.0.k"].view(H, D, C))


def test_a_parameter_without_a_rule_is_an_error():
    with pytest.raises(UserError, match=r"no rule for blocks\.0\.extra"):
        weights.links(Table((NameRule("h.{i}.up", f"{B}.up"),)), {"blocks.0.extra": (1,)})


TABLE = Table(
    (NameRule("h.{i}.up", f"{B}.up"), NameRule("h.{i}.down", f"{B}.down")),
    ignore=("h.{i}.mask",),
    prefix="model.",
)


def check(
    folder: Path,
    reference: Mapping[str, Tensor],
    actual: Mapping[str, tuple[int, ...]],
    table: Table = TABLE,
) -> Any:
    save_file(dict(reference), folder / "model.safetensors")
    return weights.check(table, actual, tensorfiles.open_files(folder))


def test_missing_and_left_over_are_named_on_both_sides(tmp_path):
    with pytest.raises(UserError) as caught:
        check(
            tmp_path,
            {"h.0.up": numbers(2), "h.0.left": numbers(2)},
            {"blocks.0.up": (2,), "blocks.0.down": (2,)},
        )
    text = str(caught.value)
    assert (
        "lack h.0.down (for blocks.0.down)" in text
        and "no place for h.0.left" in text
        and "\n" not in text
    )


def test_what_is_left_over_alone_is_told(tmp_path):
    with pytest.raises(UserError, match=r"the model has no place for more; fix"):
        check(tmp_path, {"h.0.up": numbers(2), "more": numbers(5)}, {"blocks.0.up": (2,)})


def test_long_lists_are_cut_short(tmp_path):
    with pytest.raises(UserError, match=r"and 6 more.* and 16 more") as caught:
        reference = {f"x.{i}": numbers(1) for i in range(20)}
        check(tmp_path, reference, {f"blocks.{i}.up": (2,) for i in range(10)})
    assert len(str(caught.value)) < 600


def test_a_shape_that_differs_is_told_on_both_sides(tmp_path):
    with pytest.raises(
        UserError,
        match=r"h\.0\.up has shape \(3, 2\), but blocks\.0\.up of the "
        r"model needs \(2, 3\)",
    ):
        check(tmp_path, {"h.0.up": numbers(3, 2)}, {"blocks.0.up": (2, 3)})


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn], ids=str
)
def test_quantised_numbers_are_not_weights(dtype, tmp_path):
    with pytest.raises(UserError, match="not quantised"):
        check(tmp_path, {"h.0.up": torch.ones(2).to(dtype)}, {"blocks.0.up": (2,)})


def test_declared_constants_may_remain(tmp_path):
    assert (
        len(check(tmp_path, {"h.0.up": numbers(2), "h.0.mask": numbers(5)}, {"blocks.0.up": (2,)}))
        == 1
    )


def test_a_tied_copy_may_remain_when_it_is_one(tmp_path):
    table = Table((NameRule("embed", "embed"),), copies=(("head", "embed"),))
    assert check(tmp_path, {"embed": numbers(3), "head": numbers(3)}, {"embed": (3,)}, table)
    for second in (numbers(3) + 1, numbers(3).double(), numbers(4)):
        with pytest.raises(UserError, match="two different tables"):
            check(tmp_path, {"embed": numbers(3), "head": second}, {"embed": (3,)}, table)


def test_a_tied_copy_is_compared_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(headers, "CHUNK", 8)
    for changed in (0, 4):
        second = numbers(5)
        second[changed] += 1
        save_file({"a": numbers(5), "b": second, "c": numbers(5)}, tmp_path / "model.safetensors")
        published = tensorfiles.open_files(tmp_path)
        assert published.equal("a", "c") and not published.equal("a", "b")


def test_the_format_of_most_numbers_is_the_files_own(tmp_path):
    save_file(
        {"a": numbers(100), **{f"b{i}": numbers(2).bfloat16() for i in range(3)}},
        tmp_path / "model.safetensors",
    )
    assert tensorfiles.open_files(tmp_path).dtype == torch.float32


# ------------------------------------------------------------------------------ whole good files


@pytest.mark.parametrize("dtype", tensorfiles.NAMES, ids=str)
def test_files_are_those_of_the_safetensors_library(dtype, tmp_path):
    state = {
        "b": (numbers(3, 5) * 9).to(dtype),
        "a.scalar": torch.tensor(1).to(dtype),
        "none": torch.zeros(0, 4, dtype=dtype),
    }
    content = tensorfiles.contents(tensorfiles.plain(state))["model.safetensors"]
    assert callable(content)
    content(tmp_path / "model.safetensors")
    reference = load_file(tmp_path / "model.safetensors")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    open_files = tensorfiles.open_files(tmp_path)
    for name, tensor in state.items():
        for got in (reference[name], open_files.load(name)):
            assert got.dtype == dtype and torch.equal(got.float(), tensor.float())


def test_tensors_that_share_memory_or_are_not_contiguous(tmp_path):
    base = numbers(4, 6)
    state = {"a": base.T, "b": base[:, ::2], "c": base[1]}
    content = tensorfiles.contents(tensorfiles.plain(state))["model.safetensors"]
    assert callable(content)
    content(tmp_path / "model.safetensors")
    assert all(
        torch.equal(tensor, state[name])
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    )


# ------------------------------------------------------------------------------- files that are not


def raw_file(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


LIES: dict[str, tuple[Any, bytes, str]] = {
    "not json": (b"hello", b"", "invalid JSON"),
    "not a table": ([1], b"", "invalid JSON"),
    "not utf-8": (b'{"\xff": 1}', b"", "invalid UTF-8"),
    "deep": (b"[" * 100_000, b"", "invalid JSON"),
    "huge number": (b'{"a": ' + b"9" * 10_000 + b"}", b"", "number out of range"),
    "entry is not a table": ({"a": 7}, b"", "integer `7`"),
    "no shape": ({"a": {"dtype": "F32"}}, b"", "missing field `shape`"),
    "negative shape": ({"a": entry(shape=(-2, -1))}, bytes(8), "integer `-2`"),
    "shape of truths": ({"a": entry(shape=(True, 2))}, bytes(8), "boolean `true`"),
    "shape of fractions": ({"a": entry(shape=(2.0,))}, bytes(8), "floating point `2.0`"),
    "endless shape": ({"a": entry(shape=[2] * 10_000)}, bytes(8), "overflow"),
    "overflowing shape": ({"a": entry(shape=(1 << 33, 1 << 31, 4))}, bytes(8), "overflow"),
    "one offset": ({"a": entry(offsets=(0,))}, bytes(8), "invalid length 1"),
    "negative offset": ({"a": entry(offsets=(-8, 0))}, bytes(8), "integer `-8`"),
    "offsets turned round": (
        {"a": entry(offsets=(8, 0))},
        bytes(8),
        "invalid offset for tensor `a`",
    ),
    "too few bytes": (
        {"a": entry(offsets=(0, 4))},
        bytes(4),
        "invalid shape, data type, or offset",
    ),
    "past the end": ({"a": entry(offsets=(8, 16))}, bytes(8), "invalid offset for tensor `a`"),
    "cut short": ({"a": entry()}, bytes(7), "not fully covered"),
    "too long": ({"a": entry()}, bytes(9), "not fully covered"),
    "overlap": (
        {"a": entry(), "b": entry(offsets=(4, 12))},
        bytes(12),
        "invalid offset for tensor",
    ),
    "hole": ({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20), "invalid offset for tensor"),
    "same bytes twice": ({"a": entry(), "b": entry()}, bytes(8), "invalid offset for tensor"),
    "named twice": (
        b'{"a": {"dtype": "F32"}, "a": {"dtype": "F32"}}',
        b"",
        "missing field `shape`",
    ),
    "unknown dtype": ({"a": entry("F7")}, bytes(8), "unknown variant `F7`"),
    "dtype no text": ({"a": entry(["F32"])}, bytes(8), "expected string"),
    "not ours": ({"a": entry("F8_E8M0", offsets=(0, 2))}, bytes(2), "has the dtype F8_E8M0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(lie, tmp_path):
    header, data, output = LIES[lie]
    raw_file(tmp_path / "model.safetensors", header, data)
    with pytest.raises(UserError, match=re.escape(output)) as caught:
        tensorfiles.open_files(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (1 << 63, "header too large"),
        (100_000_001, "header too large"),
        (50, "invalid header length"),
    ],
)
def test_a_header_longer_than_the_file(length, text, tmp_path):
    raw_file(tmp_path / "model.safetensors", b"{}", length=length)
    with pytest.raises(UserError, match=text):
        tensorfiles.open_files(tmp_path)


def test_empty_and_pointer_files(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(UserError, match="header too small"):
        tensorfiles.open_files(tmp_path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(UserError, match="git lfs pull"):
        tensorfiles.open_files(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        tensorfiles.open_files(tmp_path)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": numbers(3, 4), "b.c": numbers(5)}, path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError):
            tensorfiles.open_files(tmp_path)


def test_flipped_bytes_never_crash_and_never_fool_us_alone(tmp_path):
    """Bytes of a header changed, one or two: an error of ours, or a file that the library reads the
    same."""
    path = tmp_path / "model.safetensors"
    save_file({"a": numbers(3, 4), "b.c": numbers(5)}, path)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    dice = random.Random(0)
    trials = [[at] for at in range(header) for _ in range(6)] + [
        [dice.randrange(header) for _ in "ab"] for _ in range(500)
    ]
    accepted = 0
    for places in trials:
        broken = bytearray(content)
        for at in places:
            broken[at] ^= dice.randrange(1, 256)
        path.write_bytes(broken)
        try:
            published = tensorfiles.open_files(tmp_path)
        except UserError:
            continue
        accepted += 1
        with safetensors.safe_open(path, "pt") as reference:
            assert set(reference.keys()) == set(published.entries)
            for name in published.entries:
                assert torch.equal(
                    published.load(name).view(torch.uint8),
                    reference.get_tensor(name).view(torch.uint8),
                )
    assert 0 < accepted < len(trials)  # a letter of a name changed is still a good file


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": numbers(100)}, path)
    published = tensorfiles.open_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="ended while it was read"):
        published.load("a")
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        published.load("a")


# ------------------------------------------------------------------------------------------ mapped


def mapped(folder: Path) -> tensorfiles.Files:
    return tensorfiles.open_files(folder, mapped=True)


def address(tensor: Tensor, path: Path) -> bool:
    """True where a tensor lies in a mapping of the file, as the system sees it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return line.endswith(str(path))
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system as Linux answers")
def test_a_large_file_is_mapped_and_stays_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    reference = {"a": numbers(40, 30), "none": torch.empty(0, 4), "b": numbers(50).bfloat16()}
    save_file(reference, path)
    before = path.read_bytes()
    assert not address(mapped(tmp_path).take("a"), path)  # small
    monkeypatch.setattr(tensorfiles, "SMALL", 0)
    published = mapped(tmp_path)
    actual = {name: published.take(name) for name in reference}
    assert all(
        torch.equal(actual[name], reference[name]) and actual[name].dtype == reference[name].dtype
        for name in reference
    )
    assert (
        address(actual["a"], path)
        and address(actual["b"], path)
        and not address(published.load("a"), path)
    )
    published.release(reference)
    assert torch.equal(actual["a"], reference["a"])
    actual["a"] += 1
    assert torch.equal(actual["a"], reference["a"] + 1) and path.read_bytes() == before
    del published
    path.unlink()
    assert torch.equal(actual["b"], reference["b"])


def test_what_cannot_be_mapped_is_read(tmp_path, monkeypatch):
    """A tensor that begins at an odd byte, a disk far away, a system that refuses."""
    path = tmp_path / "model.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * ((8 - len(header)) % 8 + 1)
    numbers = torch.tensor([1.5, -2.0])
    path.write_bytes(len(header).to_bytes(8, "little") + header + numbers.numpy().tobytes())
    monkeypatch.setattr(tensorfiles, "SMALL", 0)
    odd = mapped(tmp_path).take("a")
    assert torch.equal(odd, numbers) and odd.data_ptr() % 4 == 0
    save_file({"a": numbers}, path)
    for name, answer in (("_is_mappable", lambda device: False), ("mmap.mmap", refuse)):
        with monkeypatch.context() as patch:
            patch.setattr(f"glassformer.core.checkpoints.tensors.{name}", answer)
            assert torch.equal(mapped(tmp_path).take("a"), numbers)


def refuse(*args: Any, **named: Any) -> Any:
    raise OSError(12, "Cannot allocate memory")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a disk is")
@pytest.mark.parametrize(
    ("kind", "stays"),
    [("ext4", True), ("tmpfs", True), ("nfs4", False), ("fuse.sshfs", False), ("9p", False)],
)
def test_files_that_others_serve_are_not_mapped(kind, stays, monkeypatch):
    mounts = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 22 0:44 / /far rw,noatime shared:7 - "
        f"{kind} host:/models rw\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda *args, **named: mounts)
    assert tensorfiles._is_mappable(os.makedev(0, 44)) is stays
    assert tensorfiles._is_mappable(os.makedev(8, 1))


def test_a_mapped_file_that_shrank_before(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_file({"a": numbers(100)}, path)
    monkeypatch.setattr(tensorfiles, "SMALL", 0)
    published = mapped(tmp_path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="ended while it was read"):
        published.take("a")
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        tensorfiles.Files(published, mapped=True).take("a")


def test_our_files_begin_where_a_cache_line_begins(tmp_path):
    for name, content in tensorfiles.contents(
        tensorfiles.plain({"a": numbers(5), "b" * 7: numbers(3)})
    ).items():
        assert callable(content)
        content(tmp_path / name)
    entries = headers.read_header(tmp_path / "model.safetensors")
    assert entries["a"].start % tensorfiles.ALIGNED == 0


# ------------------------------------------------------------------------------------------ shards


def index(folder: Path, placed: Any) -> None:
    (folder / headers.INDEX).write_text(json.dumps({"weight_map": placed}))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": numbers(2)}, folder / "one.safetensors")
    save_file({"b": numbers(3)}, folder / "two.safetensors")
    index(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    return folder


def test_shards_that_are_written_keep_their_limit_and_are_counted_in_the_index(
    tmp_path,
):
    actual = {
        name: numbers(size) for name, size in (("a", 3), ("b", 2), ("c", 4), ("d", 20), ("e", 1))
    }
    contents = tensorfiles.contents(tensorfiles.plain(actual), limit=24)
    for name, content in contents.items():
        content(tmp_path / name) if callable(content) else (tmp_path / name).write_text(content)
    placed = json.loads((tmp_path / headers.INDEX).read_text())
    assert placed["metadata"]["total_size"] == 4 * sum(map(len, actual.values()))
    files = [f"model-{number:05}-of-00004.safetensors" for number in (1, 1, 2, 3, 4)]
    assert placed["weight_map"] == dict(zip(actual, files, strict=True))
    assert all(
        torch.equal(tensorfiles.open_files(tmp_path).load(name), tensor)
        for name, tensor in actual.items()
    )


def test_shards_are_one_set_of_tensors(sharded):
    published = tensorfiles.open_files(sharded)
    assert torch.equal(published.load("a"), numbers(2)) and torch.equal(
        published.load("b"), numbers(3)
    )


@pytest.mark.parametrize(
    "kind",
    [
        "../secret.safetensors",
        "/absolute",
        "link.safetensors",
        "..",
        "sub/../../x",
        "a\0b",
        "x" * 5000,
    ],
)
def test_a_shard_outside_the_folder(kind, sharded):
    outside = sharded.parent / "secret.safetensors"
    save_file({"a": numbers(2)}, outside)
    (sharded / "link.safetensors").symlink_to(outside)
    index(sharded, {"a": str(outside) if kind == "/absolute" else kind})
    with pytest.raises(UserError, match="outside this folder"):
        tensorfiles.open_files(sharded)


def test_the_hubs_cache_links_to_its_blobs(tmp_path):
    snapshot, blobs = (
        tmp_path / "models--a--b" / "snapshots" / "abc",
        tmp_path / "models--a--b" / "blobs",
    )
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"a": numbers(2)}, blobs / "0123")
    (snapshot / "one.safetensors").symlink_to("../../blobs/0123")
    index(snapshot, {"a": "one.safetensors"})
    assert torch.equal(tensorfiles.open_files(snapshot).load("a"), numbers(2))


def test_shards_missing_wrong_or_double(sharded):
    index(sharded, {"a": "one.safetensors", "b": "one.safetensors"})
    with pytest.raises(UserError, match=r"places b in one\.safetensors, which lacks it"):
        tensorfiles.open_files(sharded)
    index(sharded, {"a": "one.safetensors", "b": "three.safetensors"})
    with pytest.raises(UserError, match=r"three\.safetensors that the index names is missing"):
        tensorfiles.open_files(sharded)
    index(sharded, {"a": "one.safetensors", "b": "two.safetensors"})
    save_file({"a": numbers(2), "b": numbers(3)}, sharded / "two.safetensors")
    with pytest.raises(UserError, match=r"a is in one\.safetensors and in two\.safetensors"):
        tensorfiles.open_files(sharded)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[" * 99_999, "\xff"]
)
def test_an_index_that_is_none(text, tmp_path):
    (tmp_path / headers.INDEX).write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"is not (an index of weights|valid JSON|a JSON object)"):
        tensorfiles.open_files(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "ckpt.pt", "model.pth", "last.ckpt"])
def test_pickled_weights_are_refused_with_the_way_to_convert_them(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x80\x04")
    with pytest.raises(UserError, match=r"pickled weights .*glassformer convert --from nanogpt"):
        tensorfiles.open_files(tmp_path)


def test_no_weights_at_all(tmp_path):
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        tensorfiles.open_files(tmp_path)


def test_a_file_of_the_hubs_cache_has_the_sha256_that_the_hub_says(tmp_path):
    """models--org--name/snapshots/REVISION/model.safetensors -> ../../blobs/SHA256; a flipped bit
    is seen."""
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"a": numbers(4, 4)}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    blob = blobs / hashlib.sha256(content).hexdigest()
    blob.write_bytes(content)
    (snapshot / "model.safetensors").symlink_to(blob)
    assert torch.equal(tensorfiles.open_files(snapshot).load("a"), numbers(4, 4))
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"sha256 is not what the hub says.*download"):
        tensorfiles.open_files(snapshot)
