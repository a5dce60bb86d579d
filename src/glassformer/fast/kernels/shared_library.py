"""The compiled library: found, loaded, and the build of it chosen that this processor can run."""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LARGE = 1 << 21  # bytes of a large page of memory
MADV_HUGEPAGE = 14  # Linux: large pages here, please; refused is as good as before
VERSION = 6  # of the functions' arguments; an older library is not used
NAME = "libkernels.dylib" if sys.platform == "darwin" else "libkernels.so"
BUILDS = {
    "avx512-vnni-bf16": (
        "avx512_f",
        "avx512_bw",
        "avx512_vl",
        "avx512_dq",
        "avx512_vnni",
        "avx512_bf16",
    ),
    "avx512-vnni": ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_vnni"),
    "avx2": ("avx2", "fma3", "f16c"),
    "neon-i8mm-bf16": ("neon", "dotprod", "i8mm", "bf16"),
    "neon-dotprod": ("neon", "dotprod"),
    "neon": ("neon",),
}
"""The builds, best first, and what each asks of the processor."""
ARM64 = ("aarch64", "arm64")
ARM64_FEATURES = ("neon", "dotprod", "i8mm", "bf16")  # bits of kernels_features
MACHINES = ("x86_64", "AMD64", *ARM64)

_chosen: list[str] = []  # by ``use``; empty: the best


def path() -> str:
    """Which build computes: "avx512-vnni-bf16", ..., "neon", or "torch" where none can."""
    return _chosen[-1] if _chosen else (builds() or ["torch"])[0]


def reason() -> str:
    """Why ``path`` is what it is, in a sentence."""
    if _chosen:
        return f"{_chosen[-1]} was asked for."
    if builds():
        return (
            f"{NAME} is there, and {builds()[0]} is the best of its builds that this "
            "processor can run."
        )
    if platform.machine() not in MACHINES:
        return f"The kernels are written for x86-64 and ARM64; this is {platform.machine()}."
    if library() is None:
        return (
            f"{NAME} is not there, or of another version: it was not compiled when "
            "Glassformer was installed."
        )
    return (
        "This processor lacks "
        f"{', '.join(flag for flag in BUILDS['avx2'] if not features().get(flag))}."
    )


@contextmanager
def use(build: str) -> Iterator[None]:
    """Inside, another build computes what is packed inside: one of ``builds()`` or "torch"."""
    if build not in (*builds(), "torch"):
        raise ValueError(f'no build "{build}"; there are {", ".join((*builds(), "torch"))}')
    _chosen.append(build)
    try:
        yield
    finally:
        _chosen.pop()


@cache
def builds() -> list[str]:
    """The builds that this processor can run, best first; none without the library."""
    if library() is None:
        return []
    return [build for build, flags in BUILDS.items() if all(features().get(flag) for flag in flags)]


@cache
def features() -> dict[str, bool]:
    """Instruction sets of the processor by torch's names, on ARM64 by ARM's: {"avx2": True, ...}."""
    lib = library()
    if lib is not None and platform.machine() in ARM64:
        bits = lib.kernels_features()
        return {name: bool(bits >> i & 1) for i, name in enumerate(ARM64_FEATURES)}
    return {
        name: value
        for name, value in torch.cpu.get_capabilities().items()
        if isinstance(value, bool)
    }


@cache
def library() -> ctypes.CDLL | None:
    """The compiled library beside this file, with torch's thread pool in its hands; None where
    there is none."""
    if platform.machine() not in MACHINES:
        return None
    try:
        lib = ctypes.CDLL(str(resources.files(__package__) / NAME))
        if lib.kernels_version() != VERSION:
            return None
        lib.kernels_pool(pool())
    except (OSError, AttributeError):
        return None
    return lib


@cache
def pool() -> ctypes.c_void_p:
    """The function that runs another on all threads of torch's own OpenMP pool; null where torch
    brings none.

    A second pool would fight with torch's for the cores. macOS shows a library's functions to who
    names the library alone.
    """
    omp = str(Path(torch.__file__).parent / "lib/libomp.dylib")
    try:
        return ctypes.cast(
            ctypes.CDLL(omp if sys.platform == "darwin" else None).GOMP_parallel, ctypes.c_void_p
        )
    except (AttributeError, OSError, TypeError):
        return ctypes.c_void_p(None)


def in_large_pages(tensor: Tensor) -> Tensor:
    """A copy in memory pages of 2 MiB, where the system gives them (Linux); small ones share such
    pages.

    A matrix that is read once a token is read a fifth faster than in pages of 4 KiB: 38 instead of
    32 GB/s by one core.
    """
    if tensor.nbytes < LARGE // 128:
        return tensor.clone(memory_format=torch.contiguous_format)
    place = (
        large_pages(tensor.nbytes) if tensor.nbytes >= 2 * LARGE else _shared.take(tensor.nbytes)
    )
    return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def large_pages(size: int) -> Tensor:
    """Memory (size,) of bytes that begins with a large page; what stands in it may be anything."""
    room = torch.empty(size + LARGE, dtype=torch.uint8)
    ahead = -room.data_ptr() % LARGE
    if sys.platform.startswith("linux"):
        aligned_size = size // LARGE * LARGE
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(room.data_ptr() + ahead), ctypes.c_size_t(aligned_size), MADV_HUGEPAGE
        )
    return room[ahead : ahead + size]


class _Shared:
    """Large pages that several matrices lie in, given back when the last of them goes."""

    SIZE = 16 * LARGE

    def __init__(self) -> None:
        self.lock, self.room = threading.Lock(), torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """The next bytes (size,), from the beginning of a cache line."""
        with self.lock:
            if size > len(self.room):
                self.room = large_pages(self.SIZE)
            taken, self.room = self.room[:size], self.room[-(-size // 64) * 64 :]
        return taken


_shared = _Shared()


def has(name: str) -> bool:
    """True where the loaded library has the function; an older build may lack it."""
    return path() != "torch" and hasattr(library(), f"{name}_{path().replace('-', '_')}")


@cache
def function(name: str, build: str) -> Any:
    """The C function ``name`` of a build."""
    lib = library()
    assert lib is not None
    c_function = getattr(lib, f"{name}_{build.replace('-', '_')}")
    c_function.restype, c_function.argtypes = None, [_TYPES[letter] for letter in SIGNATURES[name]]
    return c_function


SIGNATURES = {
    "matmul_int8": "pppppplllii",
    "matmul_int4": "pppppplllii",
    "matmul_bf16": "pppppllli",
    "matmul_fp32": "pppppllli",
    "paged_attention": "pppppppppplllllllllffii",
    "copy_pages": "pppll",
    "write_pages": "ppppplllll",
    "norm": "pppllii",
    "activation": "ppllii",
    "stack_room": "pp",
    "stack": "p",
}
"""The arguments of the C functions: addresses, long, float and int."""
_TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "l": ctypes.c_long,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
}
