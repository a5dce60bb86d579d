"""The ARM64 kernels on an x86-64 machine: compiled by zig, run by qemu, the bits of the readable
counterparts."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import kernel_reference as reference
from glassformer.fast.kernels import pack_bf16, pack_fp32, pack_int4, pack_int8, shared_library
from glassformer.fast.kernels.stack import ACTIVATIONS

ROOT = Path(__file__).parents[3]
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
CALL = struct.Struct("40s21q2f")
BASE = 0x2000000000
TENSORS = 1 << 16  # where they begin in the file
PROCESSORS = {
    "cortex-a57": ("neon",),
    "neoverse-n1": ("neon", "neon-dotprod"),
    "max": ("neon", "neon-dotprod", "neon-i8mm-bf16"),
}


class Calls:
    """Calls of C functions, and the file in which they and their tensors lie."""

    def __init__(self):
        self.calls, self.memory, self.results = [], bytearray(), []

    def put(self, data):
        """The address that a tensor, or the bytes of a structure, will have."""
        if isinstance(data, torch.Tensor):
            data = data.contiguous().view(torch.uint8).numpy().tobytes()
        self.memory += bytes(-len(self.memory) % 64)
        address = BASE + TENSORS + len(self.memory)
        self.memory += data
        return address

    def add(self, name, build, arguments, floats=(0.0, 0.0)):
        places = [self.put(x) if isinstance(x, torch.Tensor | bytes) else x for x in arguments]
        places += [0] * (21 - len(places))
        symbol = f"{name}_{build.replace('-', '_')}".encode()
        self.calls.append(CALL.pack(symbol, *places, *floats))

    def expect(self, label, y):
        """Room for a result that must be ``y``."""
        address = self.put(torch.full_like(y, 7))
        self.results.append((label, address - BASE, y))
        return address

    def run(self, program, processor, path):
        calls = b"".join(self.calls)
        assert len(calls) + CALL.size <= TENSORS
        path.write_bytes(calls.ljust(TENSORS, b"\0") + self.memory)
        done = subprocess.run([QEMU, "-cpu", processor, program, path], check=False)
        assert done.returncode == 0
        data = path.read_bytes()
        for label, place, y in self.results:
            bytes_ = bytearray(data[place : place + y.nbytes])
            actual = torch.frombuffer(bytes_, dtype=y.dtype).view(y.shape)
            assert torch.equal(actual.nan_to_num(7), y.nan_to_num(7)), label


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The kernels and arm_calls.c as a program for ARM64, which needs no library."""
    if QEMU is None:
        pytest.skip("needs qemu: apt-get install qemu-user")
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs zig: pip install ziglang")
    if not shared_library.builds():
        pytest.skip("needs the compiled kernels, which pack: python hatch_build.py")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("arm")
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"]
    objects = module.objects(compiler, module.ARM, str(folder))
    source = str(Path(__file__).with_name("arm_calls.c"))
    subprocess.run(
        [*compiler, "-O1", "-static", source, *objects, "-o", folder / "calls"], check=True
    )
    return folder / "calls"


def add_products(calls, build, rows, outputs, inputs):
    groups = -(-inputs // 32)
    bias = torch.randn(outputs)
    x = torch.randn(rows, inputs) * torch.logspace(-3, 3, rows)[:, None]
    x[0, 0] = torch.inf if rows == 5 else 0.5
    scales = (torch.rand(outputs, groups) / 50).half()
    scratch = torch.zeros(rows * groups * 40 + 64, dtype=torch.uint8)
    for kind, pack, low in (("int8", pack_int8, -128), ("int4", pack_int4, -8)):
        weight = torch.randint(low, -low, (outputs, inputs), dtype=torch.int8)
        packed = pack(weight, scales)
        for dtype in (torch.float32, torch.bfloat16):
            row = x.to(dtype)
            y = reference.integer_product(row, weight, scales.float(), bias).to(dtype)
            to = calls.expect((kind, rows, outputs, inputs, dtype), y)
            arguments = (row, packed.data, packed.scales, bias, to, scratch)
            sizes = (rows, inputs, outputs, int(dtype == torch.bfloat16), 1)
            calls.add(f"matmul_{kind}", build, (*arguments, *sizes))
    scratch = torch.zeros(rows * inputs * 4 + 64, dtype=torch.uint8)
    for kind, pack, dtype in (("bf16", pack_bf16, torch.bfloat16), ("fp32", pack_fp32, None)):
        weight, row = (
            item.to(dtype or torch.float32) for item in (torch.randn(outputs, inputs), x)
        )
        y = reference.float_product(row, weight, bias).to(row.dtype)
        to = calls.expect((kind, rows, outputs, inputs), y)
        row = F.pad(row, (0, inputs % 2 if kind == "bf16" else 0))
        arguments = (row, pack(weight).data, bias, to, scratch, rows, row.shape[1], outputs, 1)
        calls.add(f"matmul_{kind}", build, arguments)


def add_rows(calls, build, dtype):
    bf16 = int(dtype == torch.bfloat16)
    for kind, centred in ((1, False), (2, True)):
        x, gain, shift = (torch.randn(*size).to(dtype) for size in ((3, 40), (40,), (40,)))
        norm = struct.pack("qqqf4x", calls.put(gain), calls.put(shift), kind, 1e-5)
        y = reference.normed(x, gain, shift, 1e-5, centred).to(dtype)
        calls.add("norm", build, (x, calls.expect(("norm", kind), y), norm, 3, 40, bf16))
    hard = torch.tensor([0.0, 1e-30, -1e-30, 20.0, -20.0, 90.0, -90.0, 1e5, -1e5, torch.nan])
    x = torch.cat([hard, torch.randn(90) * 4]).to(dtype)
    for number, name in enumerate(ACTIVATIONS):
        to = calls.expect(name, reference.activated(name, x).to(dtype))
        calls.add("activation", build, (x, to, number, len(x), bf16))


def add_attention(calls, build, dtype, window, softcap, plus):
    heads, kv_heads, dim, wide, length = 6, 2, 24, 32, 600
    step = 2 if dtype == torch.bfloat16 else 1
    count = -(-length // 32)
    k, v = torch.randn(2, length, kv_heads, dim).to(dtype)
    keys = torch.zeros(count * 32, kv_heads, dim, dtype=dtype)
    keys[:length] = k
    keys = keys.view(count, 32, kv_heads, dim // step, step).permute(0, 2, 3, 1, 4).contiguous()
    values = torch.zeros(count * 32, kv_heads, wide, dtype=dtype)
    values[:length, :, :dim] = v
    values = values.view(count, 32, kv_heads, wide).transpose(1, 2).contiguous()
    lengths = torch.tensor([33, 500, 599, 600], dtype=torch.int32)
    tokens, chunks = len(lengths), 2
    q = torch.randn(tokens, heads, dim).to(dtype)
    bias = torch.randn(heads, 40) if plus else None
    y = torch.stack(
        [
            reference.attention_row(
                q[t],
                *(item[:length].repeat_interleave(heads // kv_heads, 1) for item in (k, v)),
                *(0.3, window, softcap, bias),
            )
            for t, length in enumerate(lengths.tolist())
        ]
    ).to(dtype)
    tables = torch.arange(count, dtype=torch.int32)
    rows = torch.zeros(tokens, dtype=torch.int32)
    to = calls.expect(("attention", dtype, window), y)
    partials = torch.zeros(tokens * heads * chunks * (2 + wide))
    runs = torch.zeros(3 * (tokens + 1), dtype=torch.int32)
    addresses = (q, keys, values, tables, rows, lengths, 0 if bias is None else bias, to)
    sizes = (tokens, heads, kv_heads, dim, wide, count, window or 0, 40 if plus else 0, chunks)
    flags = (int(dtype == torch.bfloat16), 1)
    arguments = (*addresses, partials, runs, *sizes, *flags)
    calls.add("paged_attention", build, arguments, (0.3, softcap or 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_kernel_is_the_reference_bit_for_bit(program, processor, tmp_path):
    """On processors with and without the instructions for products of bytes and of bf16."""
    best = list(shared_library.BUILDS).index
    features = subprocess.run([QEMU, "-cpu", processor, program], check=False).returncode - 100
    names = shared_library.ARM64_FEATURES
    cpu_features = {name for i, name in enumerate(names) if features >> i & 1}
    able = [name for name, flags in shared_library.BUILDS.items() if set(flags) <= cpu_features]
    assert able == sorted(PROCESSORS[processor], key=best)
    torch.manual_seed(0)
    for build in able:
        calls = Calls()
        for shape in ((1, 17, 33), (2, 16, 64), (3, 40, 100), (5, 50, 200), (13, 33, 1100)):
            add_products(calls, build, *shape)
        for dtype in (torch.float32, torch.bfloat16):
            add_rows(calls, build, dtype)
            add_attention(calls, build, dtype, None, None, False)
            add_attention(calls, build, dtype, 50, 5.0, True)
        calls.run(program, processor, tmp_path / "calls")
