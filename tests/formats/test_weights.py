"""The two-way table of names, and safetensors files whole, cut, corrupt and lying."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from folders import read_json, write_json
from glassformer import UserError
from glassformer import config as c
from glassformer.core.checkpoints import headers
from glassformer.core.checkpoints import tensors as tensorfiles
from glassformer.core.checkpoints.headers import read_headers
from glassformer.core.nn import build
from glassformer.families.names import NameRule, Table
from glassformer.formats import mapped as mapping
from glassformer.formats import store, weights
from glassformer.formats.mapped import MappedFiles
from mistakes import mistake
from seeding import generator_from
from tiny import equal_tensors

B = "blocks.{i}"
QKV = (f"{B}.q", f"{B}.k", f"{B}.v")
SINGLE = headers.SINGLE


def write(pieces, folder, **options):
    """Write what saving would."""
    for name, content in tensorfiles.contents(pieces, **options).items():
        content(folder / name) if callable(content) else (folder / name).write_text(content)


def there_and_back(rule, actual, folder):
    """Saved tensors of the parameters; loading them must restore the parameters."""
    shapes = {name: tuple(tensor.shape) for name, tensor in actual.items()}
    table = Table((rule,))
    write(store.tensors_to_write(table, actual, shapes), folder)
    back = {name: torch.full_like(tensor, float("nan")) for name, tensor in actual.items()}
    published = tensorfiles.open_files(folder)
    weights.fill(weights.check(table, shapes, published), published, back, shapes)
    assert equal_tensors(back, actual)
    return load_file(folder / SINGLE)


def numbers(*shape):
    return torch.randn(*shape, generator=generator_from(sum(shape)))


# ------------------------------------------------------------------------------------- the table


def test_a_letter_on_both_sides_repeats(tmp_path):
    actual = {f"blocks.{i}.up": numbers(3, 2 + i) for i in (0, 1, 10)}
    reference = there_and_back(NameRule("h.{i}.fc", f"{B}.up"), actual, tmp_path)
    assert equal_tensors(reference, {f"h.{i}.fc": actual[f"blocks.{i}.up"] for i in (0, 1, 10)})


def test_one_of_theirs_splits_into_several_of_ours_of_unequal_width(tmp_path):
    """Phi-3's fused queries, keys and values with fewer key-value heads."""
    actual = {"blocks.0.q": numbers(8, 4), "blocks.0.k": numbers(2, 4), "blocks.0.v": numbers(2, 4)}
    reference = there_and_back(NameRule("h.{i}.qkv", QKV), actual, tmp_path)
    assert torch.equal(reference["h.0.qkv"], torch.cat([*actual.values()]))


def test_transpose(tmp_path):
    """GPT-2's Conv1D: (in, out), its three parts side by side."""
    actual = {f"blocks.0.{name}": numbers(4, 5) + at for at, name in enumerate("qkv")}
    reference = there_and_back(NameRule("h.{i}.c", QKV, transpose=True), actual, tmp_path)
    assert torch.equal(reference["h.0.c"], torch.cat([t.T for t in actual.values()], dim=1))


def test_a_letter_of_theirs_alone_stacks(tmp_path):
    """Mixtral's experts, one file entry each."""
    actual = {f"blocks.{i}.gate": numbers(4, 3, 2) + i for i in range(2)}
    reference = there_and_back(NameRule("h.{i}.experts.{e}.w1", f"{B}.gate"), actual, tmp_path)
    assert len(reference) == 8
    assert torch.equal(reference["h.1.experts.3.w1"], actual["blocks.1.gate"][3])


H = 3
D = 4
C = 5  # heads, their width, the model's


@pytest.mark.parametrize(
    "axes, actual, to_reference",
    [
        ("h c d -> (h d) c", (H * D, C), lambda t: t.view(H, D, C).transpose(1, 2)),  # W_Q
        ("h d c -> c (h d)", (C, H * D), lambda t: t.T.reshape(H, D, C)),  # W_O
        ("h d -> (h d)", (H * D,), lambda t: t.view(H, D)),  # b_Q
        ("c h d -> (h d) c", (H * D, C), lambda t: t.T.reshape(C, H, D)),  # Flax
    ],
    ids=["W_Q", "W_O", "b_Q", "Flax"],  # of TransformerLens
)
def test_a_heads_axis_is_folded(axes, actual, to_reference, tmp_path):
    local = numbers(*actual)
    rule = NameRule("h.{i}.W", f"{B}.q", axes=axes, heads=H)
    reference = there_and_back(rule, {"blocks.0.q": local}, tmp_path)
    assert torch.equal(reference["h.0.W"], to_reference(local))


def test_rotary_pairs_of_neighbours_become_halves(tmp_path):
    """Their dimension 2 i and 2 i + 1 of a head are ours i and i + D/2; what they say about angles
    is the same."""
    local = numbers(H * D, C)
    rule = NameRule("h.{i}.wq", f"{B}.q", axes="(h d 2) c -> (h 2 d) c", heads=H)
    reference = there_and_back(rule, {"blocks.0.q": local}, tmp_path)["h.0.wq"]
    halves = local.view(H, 2, D // 2, C)
    assert torch.equal(reference.view(H, D // 2, 2, C), halves.transpose(1, 2))
    x = numbers(C)
    pos = 7.0
    # as the original files' code turns them
    pairs = torch.view_as_complex((reference @ x).view(H, D // 2, 2))
    speed = 10_000.0 ** -(torch.arange(0, D, 2) / D)
    turned = torch.view_as_real(pairs * torch.polar(torch.ones(D // 2), pos * speed)).flatten(1)
    rotary = build(c.Rotary(), C, H, True)
    cos, sin = rotary.table(torch.tensor([[pos]]), D, torch.float32)
    actual = rotary.turn((local @ x).view(1, H, 1, D), cos, sin).view(H, 2, D // 2)
    assert_close(actual.transpose(1, 2).flatten(1), turned, rtol=1e-5, atol=1e-5)


def test_transpose_and_fold_and_split_at_once(tmp_path):
    """Queries, keys and values of each head side by side, transposed (GPT-NeoX, as Conv1D)."""
    actual = {f"blocks.0.{name}": numbers(H * D, C) + at for at, name in enumerate("qkv")}
    rule = NameRule("h.{i}.W", QKV, transpose=True, axes="(h 3 d) c -> (3 h d) c", heads=H)
    reference = there_and_back(rule, actual, tmp_path)["h.0.W"]
    assert reference.shape == (C, 3 * H * D)
    assert torch.equal(reference.T.view(H, 3, D, C)[:, 1], actual["blocks.0.k"].view(H, D, C))


def test_a_parameter_without_a_rule_is_an_error():
    with mistake(r"no rule for blocks\.0\.extra"):
        weights.links(Table((NameRule("h.{i}.up", f"{B}.up"),)), {"blocks.0.extra": (1,)})


TABLE = Table(
    (NameRule("h.{i}.up", f"{B}.up"), NameRule("h.{i}.down", f"{B}.down")),
    ignore=("h.{i}.mask",),
    prefix="model.",
)


def check(folder, reference, actual, table=TABLE):
    """Numbers of their names and lengths, or tensors, against parameters of a length."""
    saved = {name: numbers(n) if isinstance(n, int) else n for name, n in reference.items()}
    save_file(saved, folder / SINGLE)
    shapes = {name: (size,) for name, size in actual.items()}
    return weights.check(table, shapes, tensorfiles.open_files(folder))


@pytest.mark.parametrize(
    "reference, actual, messages",
    [
        (
            {"h.0.up": 2, "h.0.left": 2},
            {"blocks.0.up": 2, "blocks.0.down": 2},
            ["lack h.0.down (for blocks.0.down)", "no place for h.0.left"],
        ),
        (
            {"h.0.up": 2, "more": 5},
            {"blocks.0.up": 2},
            ["the model has no place for more; fix"],
        ),
        (
            {f"x.{i}": 1 for i in range(20)},
            {f"blocks.{i}.up": 2 for i in range(10)},
            ["and 6 more", "and 16 more"],
        ),
        (
            {"h.0.up": numbers(3, 2)},
            {"blocks.0.up": 2},
            ["h.0.up has shape (3, 2), but blocks.0.up of the model needs (2,)"],
        ),
        *(
            ({"h.0.up": torch.ones(2).to(dtype)}, {"blocks.0.up": 2}, ["not quantized"])
            for dtype in (torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn)
        ),
    ],
)
def test_what_does_not_fit_is_named_on_both_sides(reference, actual, messages, tmp_path):
    with mistake(None, *messages) as caught:
        check(tmp_path, reference, actual)
    assert len(str(caught.value)) < 600


def test_declared_constants_may_remain(tmp_path):
    assert len(check(tmp_path, {"h.0.up": 2, "h.0.mask": 5}, {"blocks.0.up": 2})) == 1


def test_a_tied_copy_may_remain_when_it_is_one(tmp_path):
    table = Table((NameRule("embed", "embed"),), copies=(("head", "embed"),))
    assert check(tmp_path, {"embed": 3, "head": 3}, {"embed": 3}, table)
    for second in (numbers(3) + 1, numbers(3).double(), 4):
        with mistake("two different tables"):
            check(tmp_path, {"embed": 3, "head": second}, {"embed": 3}, table)


def test_a_tied_copy_is_compared_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(headers, "CHUNK", 8)
    for changed in (0, 4):
        second = numbers(5)
        second[changed] += 1
        save_file({"a": numbers(5), "b": second, "c": numbers(5)}, tmp_path / SINGLE)
        published = tensorfiles.open_files(tmp_path)
        assert published.equal("a", "c")
        assert not published.equal("a", "b")


def test_the_format_of_most_numbers_is_the_files_own(tmp_path):
    save_file(
        {"a": numbers(100), **{f"b{i}": numbers(2).bfloat16() for i in range(3)}},
        tmp_path / SINGLE,
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
    write(tensorfiles.plain(state), tmp_path)
    reference = load_file(tmp_path / SINGLE)
    save_file(state, tmp_path / SINGLE, metadata={"format": "pt"})
    published = tensorfiles.open_files(tmp_path)
    for name, tensor in state.items():
        for got in (reference[name], published.load(name)):
            assert got.dtype == dtype
            assert torch.equal(got.float(), tensor.float())


def test_tensors_that_share_memory_or_are_not_contiguous(tmp_path):
    base = numbers(4, 6)
    state = {"a": base.T, "b": base[:, ::2], "c": base[1]}
    write(tensorfiles.plain(state), tmp_path)
    assert equal_tensors(load_file(tmp_path / SINGLE), state)
    entries = headers.read_header(tmp_path / SINGLE)
    assert entries["a"].start % tensorfiles.ALIGNED == 0  # where a cache line begins


# ------------------------------------------------------------------------------- files that are not


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


LIES = {
    "not json": (b"hello", b"", "invalid JSON"),
    "not utf-8": (b'{"\xff": 1}', b"", "invalid UTF-8"),
    "deep": (b"[" * 100_000, b"", "invalid JSON"),
    "huge number": (b'{"a": ' + b"9" * 10_000 + b"}", b"", "number out of range"),
    "no shape": ({"a": {"dtype": "F32"}}, b"", "missing field `shape`"),
    "negative shape": ({"a": entry(shape=(-2, -1))}, bytes(8), "integer `-2`"),
    "overflowing shape": ({"a": entry(shape=(1 << 33, 1 << 31, 4))}, bytes(8), "overflow"),
    "past the end": ({"a": entry(offsets=(8, 16))}, bytes(8), "invalid offset for tensor `a`"),
    "too long": ({"a": entry()}, bytes(9), "not fully covered"),
    "overlap": ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "invalid offset for"),
    "same bytes twice": ({"a": entry(), "b": entry()}, bytes(8), "invalid offset for tensor"),
    "unknown dtype": ({"a": entry("F7")}, bytes(8), "unknown variant `F7`"),
    "not ours": ({"a": entry("F8_E8M0", offsets=(0, 2))}, bytes(2), "has the dtype F8_E8M0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(lie, tmp_path):
    header, data, output = LIES[lie]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + data)
    with mistake(re.escape(output)) as caught:
        tensorfiles.open_files(tmp_path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "content, text",
    [
        (b"", "header too small"),
        (b"\xff" * 64, "header too large"),
        (b"\x32\0\0\0\0\0\0\0{}", "invalid header length"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_none(content, text, tmp_path):
    path = tmp_path / SINGLE
    path.mkdir() if content is None else path.write_bytes(content)
    with mistake(text):
        tensorfiles.open_files(tmp_path)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / SINGLE
    save_file({"a": numbers(3, 4), "b.c": numbers(5)}, path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError):
            tensorfiles.open_files(tmp_path)


def test_flipped_bytes_never_crash_and_never_fool_us_alone(tmp_path):
    """Bytes of a header changed, one or two: an error of ours, or a file that the library reads the
    same."""
    path = tmp_path / SINGLE
    save_file({"a": numbers(3, 4), "b.c": numbers(5)}, path)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    dice = random.Random(0)
    trials = [[at] for at in range(header) for _ in range(6)]
    trials += [[dice.randrange(header) for _ in "ab"] for _ in range(500)]
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
        views = {name: published.load(name).view(torch.uint8) for name in published.entries}
        reference = load_file(path)
        assert equal_tensors(
            views, {name: tensor.view(torch.uint8) for name, tensor in reference.items()}
        )
    assert 0 < accepted < len(trials)  # a letter of a name changed is still a good file


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_shrinks_while_it_is_read(mapped, tmp_path, monkeypatch):
    monkeypatch.setattr(mapping, "SMALL", 0)
    path = tmp_path / SINGLE
    save_file({"a": numbers(100)}, path)
    kind = MappedFiles if mapped else tensorfiles.Files
    published = kind(read_headers(tmp_path))
    path.write_bytes(path.read_bytes()[:-4])
    with mistake("ended while it was read"):
        published.take("a")
    path.unlink()
    with mistake("cannot be read"):
        kind(published).take("a")


# ------------------------------------------------------------------------------------------ mapped


def mapped(folder):
    return MappedFiles(read_headers(folder))


def address(tensor, path):
    """True where a tensor lies in a mapping of the file, as the system sees it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return line.endswith(str(path))
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system as Linux answers")
def test_a_large_file_is_mapped_and_stays_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / SINGLE
    reference = {"a": numbers(40, 30), "none": torch.empty(0, 4), "b": numbers(50).bfloat16()}
    save_file(reference, path)
    before = path.read_bytes()
    assert not address(mapped(tmp_path).take("a"), path)  # small
    monkeypatch.setattr(mapping, "SMALL", 0)
    published = mapped(tmp_path)
    actual = {name: published.take(name) for name in reference}
    assert equal_tensors(actual, reference)
    assert actual["b"].dtype == torch.bfloat16
    assert address(actual["a"], path)
    assert address(actual["b"], path)
    assert not address(published.load("a"), path)
    published.release(reference)
    assert torch.equal(actual["a"], reference["a"])
    actual["a"] += 1
    assert torch.equal(actual["a"], reference["a"] + 1)
    assert path.read_bytes() == before
    del published
    path.unlink()
    assert torch.equal(actual["b"], reference["b"])


def test_what_cannot_be_mapped_is_read(tmp_path, monkeypatch):
    """A tensor that begins at an odd byte, a disk far away, a system that refuses."""
    path = tmp_path / SINGLE
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * ((8 - len(header)) % 8 + 1)
    numbers = torch.tensor([1.5, -2.0])
    path.write_bytes(len(header).to_bytes(8, "little") + header + numbers.numpy().tobytes())
    monkeypatch.setattr(mapping, "SMALL", 0)
    odd = mapped(tmp_path).take("a")
    assert torch.equal(odd, numbers)
    assert odd.data_ptr() % 4 == 0
    save_file({"a": numbers}, path)
    for name, answer in (("_is_mappable", lambda device: False), ("mmap.mmap", refuse)):
        with monkeypatch.context() as patch:
            patch.setattr(f"glassformer.formats.mapped.{name}", answer)
            assert torch.equal(mapped(tmp_path).take("a"), numbers)


def refuse(*args, **named):
    raise OSError(12, "Cannot allocate memory")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a disk is")
@pytest.mark.parametrize(
    "kind, stays",
    [("ext4", True), ("tmpfs", True), ("nfs4", False), ("fuse.sshfs", False), ("9p", False)],
)
def test_files_that_others_serve_are_not_mapped(kind, stays, monkeypatch):
    mounts = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 22 0:44 / /far rw,noatime shared:7 - "
        f"{kind} host:/models rw\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda *args, **named: mounts)
    assert mapping._is_mappable(os.makedev(0, 44)) is stays
    assert mapping._is_mappable(os.makedev(8, 1))


# ------------------------------------------------------------------------------------------ shards


def index(folder, placed):
    write_json(folder / headers.INDEX, {"weight_map": placed})


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": numbers(2)}, folder / "one")
    return folder


@pytest.fixture
def hub(tmp_path):
    """models--org--name/snapshots/REVISION with a link into blobs/, and the blob."""
    snapshot = tmp_path / "snapshots" / "abc"
    blobs = tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"a": numbers(4, 4)}, tmp_path / "whole")
    blob = blobs / hashlib.sha256((tmp_path / "whole").read_bytes()).hexdigest()
    (tmp_path / "whole").rename(blob)
    (snapshot / SINGLE).symlink_to(Path("../../blobs") / blob.name)
    return snapshot, blob


def test_a_shard_is_a_link_into_the_hubs_blobs(hub):
    snapshot, _ = hub
    (snapshot / SINGLE).rename(snapshot / "one.safetensors")
    index(snapshot, {"a": "one.safetensors"})
    assert torch.equal(tensorfiles.open_files(snapshot).load("a"), numbers(4, 4))


def test_shards_that_are_written_keep_their_limit_and_are_counted_in_the_index(tmp_path):
    sizes = {"a": 3, "b": 2, "c": 4, "d": 20, "e": 1}
    actual = {name: numbers(size) for name, size in sizes.items()}
    write(tensorfiles.plain(actual), tmp_path, limit=24)
    placed = read_json(tmp_path / headers.INDEX)
    assert placed["metadata"]["total_size"] == 4 * sum(sizes.values())
    files = [f"model-{number:05}-of-00004.safetensors" for number in (1, 1, 2, 3, 4)]
    assert placed["weight_map"] == dict(zip(actual, files, strict=True))
    published = tensorfiles.open_files(tmp_path)
    assert equal_tensors({name: published.load(name) for name in published.entries}, actual)


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
    with mistake("outside this folder"):
        tensorfiles.open_files(sharded)


@pytest.mark.parametrize(
    "placed, message",
    [
        ({"a": "one", "b": "one"}, r"places b in one, which lacks it"),
        ({"a": "one", "b": "three"}, r"three that the index names is missing"),
        ({"a": "one", "b": "both"}, r"a is in both and in one"),
    ],
)
def test_shards_missing_wrong_or_double(sharded, placed, message):
    save_file({"a": numbers(2), "b": numbers(3)}, sharded / "both")
    index(sharded, placed)
    with mistake(message):
        tensorfiles.open_files(sharded)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[" * 99_999, "\xff"]
)
def test_an_index_that_is_none(text, tmp_path):
    (tmp_path / headers.INDEX).write_bytes(text.encode("latin-1"))
    with mistake(r"is not (an index of weights|valid JSON|a JSON object)"):
        tensorfiles.open_files(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "ckpt.pt", "model.pth", "last.ckpt"])
def test_pickled_weights_are_refused_with_the_way_to_convert_them(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x80\x04")
    with mistake(r"pickled weights .*glassformer convert --from nanogpt"):
        tensorfiles.open_files(tmp_path)


def test_no_weights_at_all(tmp_path):
    with mistake(r"has no model\.safetensors"):
        tensorfiles.open_files(tmp_path)


def test_a_file_of_the_hubs_cache_has_the_sha256_that_the_hub_says(hub):
    """A flipped bit is seen."""
    snapshot, blob = hub
    assert torch.equal(tensorfiles.open_files(snapshot).load("a"), numbers(4, 4))
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with mistake(r"sha256 is not what the hub says.*download"):
        tensorfiles.open_files(snapshot)
