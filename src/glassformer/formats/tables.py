"""Text in the column of a table: Parquet files, and the Arrow files that Hugging Face's `datasets`
saves.

    x.parquet                                         read by row groups
    FOLDER/dataset_info.json state.json data-*.arrow  what Dataset.save_to_disk writes
    FOLDER/dataset_dict.json train/ test/             what DatasetDict.save_to_disk writes

Read by pyarrow (extra ``streams``), a few rows at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core import files
from ..core.errors import UserError, need

SUFFIXES = (".parquet", ".arrow")
ROWS = 256  # read at a time


def columns(path: Path, field: str) -> Iterator[tuple[str, int]]:
    """Each row's text in the column ``field``, and the bytes of the file read so far; empty cells
    are left out.

    Raises UserError, with the row, for a damaged file, a missing column and one that holds no text.
    """
    arrow, row = open_pyarrow(path), 0
    try:
        for table, bytes_read in (
            _parquet(path, field) if path.suffix == ".parquet" else _stream(path)
        ):
            for text in _cells(table, path, field, arrow):
                row += 1
                if text:
                    yield text, bytes_read
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"{path} cannot be read (after row {row}: {reason}); restore the file."
        ) from None


def table_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Each row of a table as Python values. Raises UserError for a damaged file."""
    arrow = open_pyarrow(path)
    try:
        for batch, _ in _parquet(path) if path.suffix == ".parquet" else _stream(path):
            _must_be_distinct(path, batch.schema.names)
            yield from batch.to_pylist()
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{path} cannot be read ({reason}); restore the file.") from None


def _parquet(path: Path, field: str | None = None) -> Iterator[tuple[Any, int]]:
    from pyarrow import parquet

    size = path.stat().st_size
    with parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
        names = file.schema_arrow.names
        need(field is None or field in names, _lacks(path, field or "", names))
        chosen = names if field is None else [field]
        done, rows = 0, max(1, file.metadata.num_rows)
        # one by one: an iterator over all of them keeps what it has read
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(ROWS, [group], chosen, use_threads=False):
                done += batch.num_rows
                yield batch, size * done // rows


def _stream(path: Path) -> Iterator[tuple[Any, int]]:
    from pyarrow import ipc, memory_map

    with memory_map(str(path)) as file, ipc.open_stream(file) as batches:
        for batch in batches:
            for low in range(0, batch.num_rows, ROWS):
                yield batch.slice(low, ROWS), file.tell()


def _cells(batch: Any, path: Path, field: str, arrow: Any) -> list[str | None]:
    need(field in batch.schema.names, _lacks(path, field, batch.schema.names))
    _must_be_distinct(path, [name for name in batch.schema.names if name == field])
    column = batch.column(field)
    kind = column.type.value_type if arrow.types.is_dictionary(column.type) else column.type
    texts = (arrow.types.is_string, arrow.types.is_large_string, arrow.types.is_string_view)
    need(
        any(is_text(kind) for is_text in texts),
        f'{path}: the column "{field}" holds {kind} and no text; {_SAY}',
    )
    cells: list[str | None] = column.to_pylist()
    return cells


def _must_be_distinct(path: Path, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    need(twice is None, f'{path} has several columns "{twice}"; rename one.')


_SAY = "say which column by --field, in a training by --data.field."


def _lacks(path: Path, field: str, names: list[str]) -> str:
    return f'{path} has no column "{field}" (there: {", ".join(names) or "none"}); {_SAY}'


def open_pyarrow(path: Path) -> Any:
    """The package that reads the file; UserError where it is missing."""
    try:
        import pyarrow
        import pyarrow.types
    except ImportError:
        raise UserError(
            f"{path} is read by pyarrow, which is missing: pip install pyarrow."
        ) from None
    return pyarrow


# ------------------------------------------------------------------------------ folders of tables


def tables(folder: Path, paths: list[Path]) -> tuple[list[Path], list[str]]:
    """The tables to train on among the files of a folder, in order, and notes; none where it holds
    no table."""
    saved = _saved_dataset(folder)
    if saved is not None:
        return saved
    rows = [path for path in paths if path.suffix in SUFFIXES and not path.name.startswith(".")]
    if not rows:
        return [], []
    # a data set as it lies on the hub: other files describe it
    names = {path: str(path.relative_to(folder)) for path in paths}
    training = [path for path in rows if _SPLIT.search(names[path])]
    excluded = [path for path in rows if path not in training] if training else []
    return training or rows, [
        *(f"{names[path]} left out: not of the split train" for path in excluded),
        *(f"{names[path]} left out: no table" for path in paths if path not in rows),
    ]


def _saved_dataset(folder: Path) -> tuple[list[Path], list[str]] | None:
    """The files of a folder that `datasets` saved, in order, and notes; None where it is no such
    folder.

    Of several splits "train" is taken. Raises UserError where a file that belongs to it is missing.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = files.read_json(folder / "dataset_dict.json").get("splits") or []
        need(
            "train" in splits,
            f"{folder} has the splits {', '.join(map(str, splits)) or 'none'} and no train; name "
            f"one, {folder}/SPLIT.",
        )
        saved = _saved_dataset(folder / "train")
        need(
            saved is not None, f"{folder}/train holds no saved dataset (no state.json); restore it."
        )
        assert saved is not None
        other_splits = ", ".join(str(split) for split in splits if split != "train")
        return saved[0], [
            f"{folder.name}: the split train is read{f', not {other_splits}' if other_splits else ''}.",
            *saved[1],
        ]
    if not (folder / "state.json").is_file():
        return None
    listed = files.read_json(folder / "state.json").get("_data_files")
    names: list[Any] = (
        [entry.get("filename") for entry in listed if isinstance(entry, dict)]
        if isinstance(listed, list)
        else []
    )
    need(
        bool(names) and all(isinstance(name, str) for name in names),
        f"{folder}/state.json lists no data files; restore it.",
    )
    paths = [files.inside(folder, str(name)) for name in names]
    for name, path in zip(names, paths, strict=True):
        need(
            path is not None and path.is_file(),
            f"{folder} lacks {name}, which its state.json lists; restore the file.",
        )
    return [path for path in paths if path is not None], []


# data/train-00000-of-00002.parquet, train/0000.parquet
_SPLIT = re.compile(r"(^|[/_-])train([/._-]|$)")
