"""Products and attention for inference on a CPU, in C where a compiled library is there, in torch
where not.

    packed = pack_int8(weight_q, scales)     a matrix in the order that the kernels read; also int4, bf16, fp32
    y = matmul(x, packed, bias)              (..., C) -> (..., N)
    pages = Pages.empty(64, kv_heads=4, head_dim=64, dtype=torch.float32)      a cache in pages of 32 keys
    y = paged_attention(q, pages, tables, rows, lengths, scale)
    path()                                   which build computes: "avx512-vnni-bf16", "avx2", ..., or "torch"

The law: with a compiled build a row's bits depend on nothing but the row; not on how many rows
there are, how they are cut, or how many threads compute. int8 and int4 keep it in torch as well,
with the same bits. Each C file has its readable counterpart in ``reference``, which it must equal
bit for bit.
"""

from .matrices import GROUP, Packed, matmul, pack_bf16, pack_fp32, pack_int4, pack_int8
from .pages import PAGE, Pages, paged_attention
from .shared_library import features, path, reason, use

__all__ = [
    "GROUP",
    "PAGE",
    "Packed",
    "Pages",
    "features",
    "matmul",
    "pack_bf16",
    "pack_fp32",
    "pack_int4",
    "pack_int8",
    "paged_attention",
    "path",
    "reason",
    "use",
]
