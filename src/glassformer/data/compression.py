"""Files that are packed: .gz, and .zst where the package `zstandard` is installed (extra ``streams``)."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import UserError

PACKED = (".gz", ".zst")


def plain_suffix(path: Path) -> str:
    """What a file's name ends in once it is unpacked: .jsonl of a.jsonl.gz."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def unpacked(raw: BinaryIO, path: Path) -> BinaryIO:
    """The stream of what is packed in a file; UserError where a package for it is missing."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if path.suffix == ".zst":
        opened: BinaryIO = _zstandard(path).ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        return opened
    return raw


def damage(path: Path) -> tuple[type[Exception], ...]:
    """What reading a file may raise where it is damaged."""
    packed: tuple[type[Exception], ...] = (_zstandard(path).ZstdError,) if path.suffix == ".zst" else ()
    return (OSError, EOFError, zlib.error, *packed)


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise UserError(f'{path} is read by zstandard, which is missing: pip install "glassformer[streams]".') from None
    return zstandard
