"""Files that are packed: .gz, and .zst where the package `zstandard` is installed (extra
``streams``)."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

from ...core.errors import UserError

PACKED = (".gz", ".zst")
SLICE = 1 << 9  # packed bytes unpacked at a time: few, as each may become thousands


def plain_suffix(path: Path) -> str:
    """The suffix of a file without its compression suffix: .jsonl of a.jsonl.gz."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def unpacked(raw: BinaryIO, path: Path) -> BinaryIO:
    """The stream of what is packed in a file; UserError where a package for it is missing."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if path.suffix == ".zst":
        return cast(BinaryIO, _Zstandard(raw, _zstandard(path)))
    return raw


class _Zstandard:
    """The bytes of all frames; EOFError where the last one is cut, which the package's own reader
    passes over."""

    def __init__(self, raw: BinaryIO, package: Any) -> None:
        self.raw, self.package = raw, package
        self.frame: Any = None  # that is being read
        # unpacked and not yet read; taking its front copies nothing of the others
        self.ready = bytearray()

    def read(self, size: int = -1) -> bytes:
        while (size < 0 or len(self.ready) < size) and (block := self.raw.read(SLICE)):
            while block:
                self.frame = self.frame or self.package.ZstdDecompressor().decompressobj()
                self.ready += self.frame.decompress(block)
                block = self.frame.unused_data if self.frame.eof else b""
                self.frame = None if self.frame.eof else self.frame
        if self.frame is not None and (size < 0 or len(self.ready) < size):
            raise EOFError("it ends in the middle of a frame")
        end = len(self.ready) if size < 0 else size
        taken = bytes(self.ready[:end])
        del self.ready[:end]
        return taken


def damage(path: Path) -> tuple[type[Exception], ...]:
    """The exceptions that reading a damaged file may raise."""
    packed: tuple[type[Exception], ...] = (
        (_zstandard(path).ZstdError,) if path.suffix == ".zst" else ()
    )
    return (OSError, EOFError, zlib.error, *packed)


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise UserError(
            f"{path} is read by zstandard, which is missing: pip install zstandard."
        ) from None
    return zstandard
