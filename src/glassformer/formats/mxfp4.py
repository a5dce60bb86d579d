"""Experts of four bits, as GPT-OSS is published: MXFP4 of the Open Compute Project's Microscaling Formats 1.0.

    NAME_blocks   (E, N, G, 16) uint8      two numbers a byte, the lower half first
    NAME_scales   (E, N, G) uint8          2 ** (scale - 127) times 32 numbers each
    NAME          (E, 32 G, N) bfloat16    what a folder without quantization holds

E experts, N outputs, G groups of 32 inputs. The tensors are made of the files one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.checkpoints.headers import Headers, TensorEntry
from ..core.errors import need

if TYPE_CHECKING:
    from torch import Tensor

BLOCKS, SCALES, KEY = "_blocks", "_scales", "quantization_config"
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of three bits; the fourth is the sign


def unpack(raw: dict[str, Any], headers: Headers) -> tuple[dict[str, Any], Headers]:
    """The config.json and tensors of a folder as they would be without MXFP4; the same where it has
    none. Raises UserError where blocks and scales do not fit, or numbers lie beside them."""
    quantization = raw.get(KEY)
    if not isinstance(quantization, Mapping) or quantization.get("quant_method") != "mxfp4":
        return raw, headers
    entries = dict(headers.entries)
    for name, blocks in headers.entries.items():
        scales = headers.entries.get(f"{name.removesuffix(BLOCKS)}{SCALES}")
        if not name.endswith(BLOCKS) or scales is None:
            continue
        fits = len(scales.shape) == 3 and blocks.shape == (*scales.shape, 16)
        need(
            fits and blocks.dtype == scales.dtype == "U8",
            f"{blocks.path}: {name} {blocks.shape} and its scales {scales.shape} are no MXFP4; "
            "download them again.",
        )
        experts, outputs, groups = scales.shape
        whole, load = name.removesuffix(BLOCKS), partial(decode, headers, name)
        need(
            whole not in headers.entries,
            f"{blocks.path}: {whole} lies there as MXFP4 and as numbers; download the files again.",
        )
        entries[whole] = TensorEntry(
            blocks.path, "BF16", (experts, 32 * groups, outputs), 0, 0, load
        )
        del entries[name], entries[f"{whole}{SCALES}"]
    return {key: value for key, value in raw.items() if key != KEY}, Headers(
        headers.folder, entries
    )


def decode(headers: Headers, name: str) -> Tensor:
    """The matrices (E, 32 G, N) of the blocks ``name``, an expert at a time."""
    import torch

    from ..core.checkpoints.tensors import Files

    files = Files(headers)
    blocks = files.load(name)
    scales = files.load(f"{name.removesuffix(BLOCKS)}{SCALES}")
    table = torch.tensor([*MAGNITUDES, *(-x for x in MAGNITUDES)])
    experts, outputs, groups = scales.shape
    result = torch.empty(experts, 32 * groups, outputs, dtype=torch.bfloat16)
    for matrix, block, scale in zip(result, blocks, scales, strict=True):
        numbers = table[torch.stack((block & 15, block >> 4), -1).long()].flatten(-2)  # (N, G, 32)
        matrix.copy_(torch.ldexp(numbers, scale[..., None].int() - 127).flatten(1).T)
    return result
