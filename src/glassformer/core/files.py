"""Files that are whole or absent: write beside, fsync, rename; hashes, locks, lazy modules."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from .errors import UserError

# Every command imports this file: what few of its functions need is imported by them.

JsonObject = dict[str, Any]
LARGEST = 1 << 28  # bytes of a file that is read whole; tokenizers and indexes have some millions


def path_kind(path: Path) -> Literal["file", "folder", "other"] | None:
    """The kind of a path, None for nothing; UserError for a lost link, a locked folder, no path."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise UserError(
                f"{path} is a broken link; restore its target or give another path."
            ) from None
        return None
    except PermissionError:
        raise UserError(
            f"{path} cannot be reached: a folder on the way to it is locked; change its rights."
        ) from None
    except (OSError, ValueError) as error:
        text = ascii(str(path))[1:-1]
        text = text if len(text) <= 200 else f"{text[:200]}..."
        raise UserError(
            f"{text} is not a path ({getattr(error, 'strerror', None) or error}); give another."
        ) from None
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def nearest_path(path: Path) -> str:
    """A closing hint for a missing path: the name in its folder that is most like it, or ""."""
    import difflib

    try:
        close = difflib.get_close_matches(
            path.name, [entry.name for entry in path.parent.iterdir()], n=1
        )
    except (OSError, ValueError):
        return ""
    return f' Did you mean "{path.parent / close[0]}"?' if close else ""


def open_regular(path: Path, most: int | None = None) -> io.BufferedReader:
    """A file open to read; OSError for a pipe or a device, and for more than ``most`` bytes."""
    # a pipe without a writer is opened at once, too
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    status = os.fstat(handle)
    regular = stat.S_ISREG(status.st_mode)
    if regular and (most is None or status.st_size <= most):
        return os.fdopen(handle, "rb")
    os.close(handle)
    reason = f"it has more than {most:,} bytes" if regular else "it is not a file"
    raise OSError(errno.EINVAL, reason, str(path))


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """The bytes of a file; OSError as ``open_regular``."""
    with open_regular(path, most) as file:
        return file.read()


def read_text(path: Path, most: int = LARGEST) -> str:
    """The UTF-8 text of a file, a pipe or a device; OSError for more than ``most`` bytes."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data.decode()


def read_json(path: Path, fix: str = "restore the file") -> dict[str, Any]:
    """The JSON object in a file; UserError, which ends with ``fix``, where there is none."""
    return json_object(path, str(path), fix)


def json_object(
    text: Path | bytes | str, source: str, fix: str = "restore the file"
) -> dict[str, Any]:
    """The JSON object in a text (bytes: UTF-8); UserError about ``source`` as ``read_json``."""
    value = json_value(text, source, fix)
    if not isinstance(value, dict):
        raise UserError(f"{source} is not a JSON object; {fix}.")
    return value


def json_value(text: Path | bytes | str, source: str, fix: str) -> Any:
    """Whatever JSON a file or text holds; UserError as ``read_json`` says."""
    try:
        return json.loads(read_bytes(text) if isinstance(text, Path) else text)
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror}); {fix}.") from None
    except (ValueError, RecursionError) as error:  # ValueError also of bytes that are not UTF-8
        raise UserError(f"{source} is not valid JSON ({error}); {fix}.") from None


def sha256(path: Path) -> str:
    import hashlib

    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def inside(folder: Path, *names: str) -> Path | None:
    """The path of what a file of ``folder`` names there; None where that leads out of it.

    In the hub's cache a folder's files are links to its neighbour "blobs".
    """
    home = folder.resolve()
    homes = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    path = folder.joinpath(*names)
    try:
        path.is_file()  # a name that no file can have is an error here, not where it is opened
        plain = all(Path(name).name == name for name in names)
        return (
            path if plain and any(path.resolve().is_relative_to(home) for home in homes) else None
        )
    except (OSError, ValueError, RuntimeError):  # a name too long, with a NUL, a circle of links
        return None


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def explain(error: OSError, path: Path) -> UserError:
    """An operating system error as one sentence that says what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"The disk that holds {path} is full; free some space. Nothing there was changed."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(
            f"{path} cannot be written ({error.strerror}); choose another folder or "
            "change its rights."
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return UserError(
            f"{path} cannot be made because a file stands in its way; choose another folder."
        )
    return UserError(f"{path} cannot be written or read ({error.strerror}); check the path.")


@contextlib.contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Errors of the operating system inside are the user's, about ``path``."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from None


def make_folder(path: Path) -> Path:
    """The folder, made with its parents where missing; UserError where it cannot be."""
    with explain_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    """Put ``content`` at ``path`` so that a reader sees the old file or the new one, never a part.

    ``content`` may be a function that writes a file at the path it is given. Raises UserError when
    the disk is full or the folder cannot be written; the old file then still stands.
    """
    make_folder(path.parent)
    beside = path.with_name(_temporary_name(f".{path.name}."))
    # not mkstemp, whose files nobody else may read whatever the umask says
    with explain_errors(path.parent):
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    with contextlib.ExitStack() as after, explain_errors(path):
        after.callback(beside.unlink, missing_ok=True)
        if callable(content):
            content(beside)
        else:
            beside.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(beside)
        beside.replace(path)
        sync(path.parent)


def _temporary_name(prefix: str) -> str:
    return f"{prefix}{os.urandom(4).hex()}.part"


@contextlib.contextmanager
def temporary(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in ``parent``, gone afterwards unless it was renamed; UserError as ``write``."""
    beside = parent / _temporary_name(prefix)
    with explain_errors(parent):
        beside.mkdir()
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextlib.contextmanager
def write_folder(path: Path, lasting: bool = True) -> Iterator[Path]:
    """Fill a folder beside ``path``, then rename it: all of its files appear at once or none do.

    A folder that stood at ``path`` is replaced. ``lasting`` waits until the disk has it; a cache
    whose reader checks hashes need not. Raises UserError as ``write`` does.
    """
    make_folder(path.parent)
    with temporary(path.parent, f".{path.name}.") as beside, explain_errors(path):
        yield beside
        for file in [*sorted(beside.rglob("*")), beside] if lasting else ():
            sync(file)
        if path.exists():
            old = beside.with_suffix(".old")
            path.rename(old)
            beside.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            beside.rename(path)
        if lasting:
            sync(path.parent)


def exclusive(file: IO[Any], wait: bool = True) -> None:
    """Lock an open file until it is closed; OSError where another has it, unless ``wait``."""
    try:
        import fcntl
    except ImportError:
        raise UserError(
            "Glassformer runs on Linux and macOS; on Windows use it inside WSL."
        ) from None
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def try_lock(file: IO[Any], path: Path) -> bool:
    """Lock an open file until it is closed; False where another holds it or has removed it."""
    try:
        exclusive(file, wait=False)
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


def lazily(
    package: str, home: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package that imports each of its names on first use."""

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(home)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary; UserError when it is missing or broken."""
    import tomllib

    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path.") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, a list in itself
        raise UserError(f"{path} is not valid TOML ({error}); fix that line.") from None
