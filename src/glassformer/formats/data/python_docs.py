"""The corpus python-docs: this Python's own reference text, gathered without importing any of it or
using a network."""

from __future__ import annotations

import ast
import gc
import hashlib
import json
import platform
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ...core import files
from ...core.errors import need
from .corpus import cache_home, cache_lock

NAME = "python-docs"
_LEFT_OUT = {"test", "tests", "idlelib", "idle_test", "turtledemo", "lib2to3", "ensurepip"}
_LEFT_OUT |= {"site-packages", "dist-packages", "__pycache__"}


def documents() -> Path:
    """The corpus as a JSONL file in the cache, made when it is missing or damaged (a few
    seconds)."""
    home = Path(sysconfig.get_path("stdlib"))
    version = (
        f"{platform.python_implementation()}-{platform.python_version()}-{hash_of(str(home))[:8]}"
    )
    folder = cache_home() / "corpora" / NAME / version
    path, seal = folder / "documents.jsonl", folder / "sha256"
    with cache_lock(folder):
        if path.is_file() and seal.is_file() and seal.read_text().strip() == files.sha256(path):
            return path
        collecting = gc.isenabled()
        # syntax trees hold no cycles; searching them for some would take as long as parsing
        gc.disable()
        try:
            pages = {
                hash_of(text): json.dumps({"name": name, "text": text})
                for name, text in reference_text(home)
            }
        finally:
            if collecting:
                gc.enable()
        need(
            bool(pages),
            f"{sys.executable} has no standard library sources in {home}; give a file of your own.",
        )
        with files.write_folder(folder) as beside:
            # by hash: an order that is the same everywhere and makes the last tenth like the rest
            (beside / path.name).write_text(
                "\n".join(pages[key] for key in sorted(pages)) + "\n", encoding="utf-8"
            )
            (beside / seal.name).write_text(files.sha256(beside / path.name) + "\n")
    return path


def hash_of(text: str) -> str:
    """The text's SHA-256 as hexadecimal text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def reference_text(home: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of each language topic and each documented thing below ``home``, read without
    importing any."""
    for path in sorted(home.rglob("*.py")):
        inside = path.relative_to(home)
        if _LEFT_OUT & set(inside.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # templates and samples of older syntax
        if inside.parts == ("pydoc_data", "topics.py"):
            yield from _topics(tree)
        else:
            yield from _docstrings(
                tree, ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
            )


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for key, page in ast.literal_eval(node.value).items():
                yield key, page.strip() + "\n"


def _docstrings(node: ast.AST, name: str, kind: str = "module") -> Iterator[tuple[str, str]]:
    """The docstrings of a module or class and of all it defines, each below a line with its full
    name."""
    if isinstance(node, ast.Module | ast.ClassDef) and (words := ast.get_docstring(node)):
        yield name, f"{kind} {name}\n\n{words}\n"
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.ClassDef):
            yield from _docstrings(inner, f"{name}.{inner.name}", "class")
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            if words := ast.get_docstring(inner):
                full = f"{name}.{inner.name}"
                yield full, f"def {full}({ast.unparse(inner.args)})\n\n{words}\n"
        elif isinstance(
            inner, ast.If | ast.Try | ast.With
        ):  # definitions that depend on the machine
            yield from _docstrings(inner, name)
