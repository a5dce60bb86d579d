"""A plugin of pytest, in a process of its own: tensors lie against memory that nobody may touch, at
their end or, where ``GUARD`` is ``front``, before their beginning. Whoever goes beyond them ends
the process."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os

import torch

from glassformer.fast.kernels import matrices

IN_FRONT = os.environ.get("GUARD") == "front"
LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(tensor):
    """A copy beside a page without access."""
    size = tensor.nbytes
    if size == 0 or size > 1 << 24:
        return tensor
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    forbidden, start = (0, mmap.PAGESIZE) if IN_FRONT else (room, room - size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + forbidden
    assert LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    place = torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=size)
    return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def guarding(plain):
    @functools.wraps(plain)
    def wrapped(*args, **kwargs):
        return guarded(plain(*args, **kwargs))

    return wrapped


vars(matrices)["in_large_pages"] = guarded
_scratch = []  # a call uses it after the name is gone


def scratch(size):
    _scratch[:] = [guarded(torch.zeros(size, dtype=torch.uint8))]
    return _scratch[0]


matrices.scratch = scratch
for owner, names in (
    (torch, ("empty", "empty_like", "randn", "zeros")),
    (torch.Tensor, ("new_empty", "bfloat16")),
):
    for name in names:
        setattr(owner, name, guarding(getattr(owner, name)))
