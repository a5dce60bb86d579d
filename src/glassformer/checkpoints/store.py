"""A folder, a hub name or a recipe -> model and tokenizer; and a model -> a folder.

hf            config.json as published, published weight names: what transformers loads
glassformer   config.json = {"glassformer": 1, "model": ...}, our own names: holds every model
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from .. import config, files, recipes
from ..config import serial
from ..config.context import for_context
from ..errors import UserError, need
from ..nn import Model, build_model, lora
from ..nn.finite import check_when_used
from ..nn.model import allocate
from ..recipes import sentences
from ..recipes.recipe import Recipe, Rule, Table
from . import adapters, weights
from . import tensors as tensorfiles
from .places import SOURCE, open_tokenizer
from .places import open_source_tokenizer as open_source_tokenizer
from .places import resolve as resolve

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

FORMAT = 1  # of the glassformer layout
ENDS = ("head.", "pool.", "token_head.")  # what may differ from the checkpoint that a model starts from
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
Layout = Literal["hf", "glassformer"]
Contents = dict[str, str | Callable[[Path], None]]


# -------------------------------------------------------------------------------------- loading


def load(
    name: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    mapped: bool = True,
    context: int | None = None,
) -> tuple[Model, Tokenizer | None]:
    """The model and tokenizer in a folder or under a hub name, ready to use; or a recipe's model, newly initialised.

    ``dtype`` None is the files' own (fp32 for a recipe). A large file on a disk of this machine is ``mapped``, not
    read, and where nothing has to change, its tensors are the model's: it may be removed or replaced by a new one (as
    ``save`` does it), but not cut or written over in place while the model lives. False reads it. ``context`` is how
    many tokens the model is to read, in place of its own number; a LongStretch takes its long waves where they are more
    than its length. Raises UserError for everything that is missing, damaged or does not fit together.
    """
    kind = _dtype(dtype)
    found = resolve(name)
    if not isinstance(found, Path):
        found = found if context is None else for_context(found, context)
        _must_fit(found, kind or torch.float32, device)
        return build_model(found, device=device, dtype=kind), None
    base = adapters.base_of(found)
    if base is not None:
        need(context is None, f"{found} is a change of {base}, which has a context of its own; leave context out.")
        return _changed(found, base, kind, device), open_tokenizer(found)
    book = read_config(found)
    if context is not None:
        book = replace(book, config=for_context(book.config, context))
    published = book.files()
    published.mapped = mapped
    model = _filled(book, published, kind or published.dtype, device)
    return model.eval(), open_tokenizer(found)


@dataclass(frozen=True)
class Fitted:
    """A model that began as another's checkpoint: which parameters are drawn anew, which of the files went unused."""

    model: Model
    new: tuple[str, ...]
    unused: tuple[str, ...]


def load_as(
    cfg: config.Model,
    name: str | Path,
    *,
    seed: int | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
) -> Fitted:
    """The model of ``cfg`` with the weights of the one called ``name``; only head and pool may differ from it.

    What the checkpoint lacks there is drawn with ``seed``. A recipe has no weights, so all of its model is drawn.
    Raises UserError as ``load`` does, and where anything but the ends does not fit.
    """
    kind = _dtype(dtype)
    found = resolve(name)
    wanted = weights.shapes(cfg)
    if not isinstance(found, Path):
        _must_fit(cfg, kind or torch.float32, device)
        return Fitted(build_model(cfg, device=device, dtype=kind, seed=seed).eval(), tuple(wanted), ())
    book = read_config(found)
    changed = adapters.base_of(found) is not None
    given = dict(load(found, dtype=kind, device=device)[0].named_parameters()) if changed else {}
    there = weights.shapes(book.config)
    fits = {name for name, shape in wanted.items() if there.get(name) == shape}
    for path, shape in wanted.items():
        if path not in fits and not path.startswith(ENDS):
            has = there.get(path, "nothing")
            raise UserError(f"{found} has {has} for {path} and the config wants {shape}; change only the head or pool.")
    own = next(iter(given.values())).dtype if changed else book.files().dtype
    _must_fit(cfg, kind or own, device)
    model = build_model(cfg, device=device, dtype=kind or own, seed=seed)
    parameters = {path: weight for path, weight in model.named_parameters() if path in fits}
    if changed:
        with torch.no_grad():
            for path, weight in parameters.items():
                weight.copy_(given[path])
    else:
        links, held = _links(book, book.files())
        weights.fill([link for link in links if fits.issuperset(link.ours)], book.files(), parameters, held)
    return Fitted(model.eval(), tuple(n for n in wanted if n not in fits), tuple(n for n in there if n not in fits))


def _changed(folder: Path, base: str, dtype: torch.dtype | None, device: torch.device | str | None) -> Model:
    """The model called ``base`` with what a folder changes in it."""
    try:
        model = load_as(read_config(folder).config, base, dtype=dtype, device=device).model
    except UserError as error:
        raise UserError(f"{folder} holds only what was changed in {base}, and that cannot be loaded: {error}") from None
    adapters.attach(model, folder)
    lora.settle(model)
    return model.requires_grad_(True).eval()


def labels(name: str | Path) -> tuple[str, ...]:
    """The names of the labels that a model chooses from, in the order of its outputs; empty where none were given."""
    found = resolve(name)
    path = found / "config.json" if isinstance(found, Path) else None
    if path is None or not path.is_file():
        return ()
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        named = json.loads(path.read_bytes())["id2label"]
        given = tuple(str(named[str(number)]) for number in range(len(named)))
        return () if all(re.fullmatch(r"LABEL_\d+", label) for label in given) else given
    return ()


@dataclass(frozen=True)
class Book:
    """A folder's config.json, understood: our config, and the recipe whose names the files use (None: our own).

    ``held`` are the published weights beside it, already found, where there are any.
    """

    folder: Path
    config: config.Model
    recipe: Recipe | None
    held: tensorfiles.Files | None = None

    def files(self) -> tensorfiles.Files:
        """The weights beside it; UserError where there are none."""
        return self.held or tensorfiles.open_files(self.folder)


def read_config(folder: Path) -> Book:
    """The model that a folder's config.json describes, in either layout."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        base = adapters.base_of(folder)
        origin = resolve(base) if base is not None else None
        if isinstance(origin, Path):
            return read_config(origin)
        if (folder / "run.json").exists():
            line = f"glassformer train --out {shlex.quote(str(folder))} --resume"
            raise UserError(f"{folder} is a run that has no checkpoint yet; go on with --resume: {line}") from None
        raise UserError(f"{folder} has no config.json; give the folder of a saved model.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its rights.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not valid JSON; restore it or download it again.") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} is not a table of settings; restore it or download it again.")
    if "glassformer" not in raw:
        there = any((folder / name).exists() for name in (tensorfiles.SINGLE, tensorfiles.INDEX))
        held = tensorfiles.open_files(folder) if there else None
        recipe, model = recipes.read({**raw, **sentences.open_beside(folder)}, str(path), held)
        return Book(folder, model, recipe, held)
    if raw["glassformer"] != FORMAT:
        version = json.dumps(raw["glassformer"])[:20]
        raise UserError(f"{path} is in format {version} and this version reads {FORMAT}; upgrade glassformer.")
    try:
        return Book(folder, serial.from_dict(config.Model, raw.get("model")), None)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _filled(book: Book, published: tensorfiles.Files, dtype: torch.dtype, device: torch.device | str | None) -> Model:
    """The model with the files' weights; nothing is allocated before every name and shape was compared."""
    found, held = _links(book, published)
    _must_fit(book.config, dtype, device)
    model = build_model(book.config, device="meta", dtype=dtype)
    allocate(model, device or torch.get_default_device())
    check_when_used(model, weights.fill(found, published, dict(model.named_parameters()), held))
    return model


def _links(book: Book, published: tensorfiles.Files) -> tuple[list[weights.Link], dict[str, tensorfiles.Shape]]:
    """What fills which of the model's parameters, every name and shape compared; and the shapes the files hold."""
    shapes = weights.shapes(book.config)
    table, held = _own(shapes), shapes
    if book.recipe is not None:
        table, held = book.recipe.table(book.config), weights.shapes(book.recipe.layout(book.config))
    return weights.check(table, held, published, optional=held.keys() - shapes.keys()), held


def _own(names: Iterable[str]) -> Table:
    """The table of the glassformer layout: every name is called what it is."""
    patterns = dict.fromkeys(_numbers_as_letters(name) for name in names)
    return Table(tuple(Rule(pattern, pattern) for pattern in patterns))


def _numbers_as_letters(name: str) -> str:
    """blocks.3.ffn.experts.5.up -> blocks.{a}.ffn.experts.{b}.up"""
    letters = iter("abcdefgh")
    return re.sub(r"\d+", lambda _: f"{{{next(letters)}}}", name)


def _must_fit(cfg: config.Model, dtype: torch.dtype, device: torch.device | str | None) -> None:
    from ..cost import available_memory, gibibytes

    where = torch.device(device) if device is not None else torch.get_default_device()
    need = dtype.itemsize * sum(torch.Size(shape).numel() for shape in weights.shapes(cfg).values())
    have = available_memory(where)
    if have is not None and need > have:
        raise UserError(
            f"The weights take {gibibytes(need)} in {str(dtype).removeprefix('torch.')} and {where} has "
            f"{gibibytes(have)} free; use a smaller model or dtype."
        )


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise UserError(f'There is no dtype "{dtype}" for a model; give one of {", ".join(DTYPES)}.')
        return DTYPES[dtype]
    return dtype


# --------------------------------------------------------------------------------------- saving


def save(
    model: Model,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    layout: Layout | None = None,
    *,
    labels: Sequence[str] = (),
    base: str | None = None,
    source_tokenizer: Tokenizer | None = None,
) -> None:
    """Write a model (and tokenizer) to a folder: whole or not at all, other files there untouched.

    ``layout`` None is "hf" where a published layout holds the model and "glassformer" elsewhere. ``labels`` are the
    names of what it chooses from. With ``base`` only what trains is written, and loading starts from the model of that
    name. ``source_tokenizer`` is for a model with a ``source_embed``. Raises UserError when "hf" is asked for and no
    published layout can hold it, or the folder cannot be written.
    """
    if layout not in (None, "hf", "glassformer"):
        raise UserError(f'There is no layout "{layout}"; give "hf" or "glassformer".')
    if any(weight.is_meta for weight in model.parameters()):
        raise UserError("This model is on the meta device and has no weights to save; build it on a real one.")
    target = Path(folder).expanduser()
    named: dict[str, Any] = {}
    if labels:
        named["id2label"] = {str(i): name for i, name in enumerate(labels)}
        named["label2id"] = {name: i for i, name in enumerate(labels)}
    _must_load(model.config, None if base is not None else _state(model))
    contents = _published(model, tokenizer, layout, named) if layout != "glassformer" and base is None else None
    if contents is None:
        book = {"glassformer": FORMAT, "model": serial.to_dict(model.config), **_token_ids(tokenizer), **named}
        if base is not None:
            contents = {**adapters.contents(model, base), "config.json": _json({**book, "base": base})}
        else:
            contents = {**tensorfiles.contents(tensorfiles.plain(_state(model))), "config.json": _json(book)}
    if source_tokenizer is not None:
        contents[SOURCE] = source_tokenizer.to_json()
    _commit(target, contents, tokenizer)


def _must_load(cfg: config.Model, state: Mapping[str, torch.Tensor] | None) -> None:
    """Refuse to save what could never be loaded: a config that no reader gives back, weights of another model."""
    try:
        back = serial.loads(config.Model, serial.dumps(cfg))
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"Nothing is saved, since this config could not be read back: {error}") from None
    need(back == cfg, "Nothing is saved, since this config is read back as another one; give its types plain values.")
    shapes = {name: tuple(weight.shape) for name, weight in (state or {}).items()}
    described = weights.shapes(cfg) if state is not None else {}
    odd = next((name for name in {**shapes, **described} if shapes.get(name) != described.get(name)), None)
    sentence = f"Nothing is saved, since model.config does not describe {odd} as it is; a part of your own"
    need(odd is None, f"{sentence} is a type in the config (config.member).")


def _published(
    model: Model, tokenizer: Tokenizer | None, layout: Layout | None, named: Mapping[str, Any]
) -> Contents | None:
    """The files of the published layout; None where there is no such layout and none was asked for."""
    try:
        recipe, raw = recipes.write(model.config)
    except UserError:
        if layout is None:
            return None
        raise
    state = _state(model)
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    ids = _token_ids(tokenizer, spell_out=True)
    if isinstance(model.config, config.EncoderDecoder) and tokenizer is not None:  # as generation begins
        ids["decoder_start_token_id"] = tokenizer.pad if tokenizer.bos is None else tokenizer.bos
    raw = {**raw, **ids} if tokenizer is not None else {**ids, **raw}
    raw = {**raw, "torch_dtype": dtype, **named}
    beside = raw.pop(sentences.KEY, None)
    bare = raw["architectures"][0] in recipe.bare
    pieces = weights.pieces(recipe.table(model.config), state, weights.shapes(recipe.layout(model.config)), bare)
    others = sentences.files_of(beside, model.config.dim) if beside else {}
    return {**tensorfiles.contents(pieces), **others, "config.json": _json(raw)}


def _state(model: Model) -> dict[str, torch.Tensor]:
    return {name.replace("_orig_mod.", ""): weight for name, weight in lora.weights(model).items()}


def _token_ids(tokenizer: Tokenizer | None, spell_out: bool = False) -> dict[str, int | None]:
    """The tokenizer's special ids for config.json; spelled out, null says that there is none."""
    ids = {f"{name}_token_id": getattr(tokenizer, name, None) for name in ("bos", "eos", "pad")}
    return {name: id for name, id in ids.items() if spell_out or id is not None}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _commit(folder: Path, contents: Contents, tokenizer: Tokenizer | None) -> None:
    """Write everything beside, then rename it into place, config.json last; then remove what it replaced."""
    if not folder.exists():
        with files.write_folder(folder) as beside:
            _write(beside, contents, tokenizer)
        return
    files.make_folder(folder)
    replaced = _weight_files(folder)
    try:
        beside = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    except OSError as error:
        raise files.explain(error, folder) from None
    try:
        _write(beside, contents, tokenizer)
        names = [str(path.relative_to(beside)) for path in beside.rglob("*") if path.is_file()]
        for name in (*(name for name in names if name != "config.json"), "config.json"):
            files.sync(beside / name)
            (folder / name).parent.mkdir(exist_ok=True)
            (beside / name).replace(folder / name)
        for path in replaced:
            if path.name not in contents:
                path.unlink(missing_ok=True)
        files.sync(folder)
    except OSError as error:
        raise files.explain(error, folder) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write(folder: Path, contents: Contents, tokenizer: Tokenizer | None) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        files.write(folder / name, content)
    if tokenizer is not None:
        tokenizer.save(folder)


def _weight_files(folder: Path) -> list[Path]:
    """The model that stands in a folder: a single file or an index and its shards, and what makes vectors of it."""
    found: Iterable[str] = [tensorfiles.SINGLE, tensorfiles.INDEX, sentences.MODULES, SOURCE]
    if (folder / tensorfiles.INDEX).is_file():
        with contextlib.suppress(UserError):  # an index that says nothing names no shards
            found = [*found, *set(tensorfiles.read_index(folder).values())]
    return [folder / name for name in found if Path(name).name == name and (folder / name).is_file()]
