"""Models loaded and saved: a folder, a hub name or a recipe -> model and tokenizer; and a model ->
a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .. import families as recipes
from ..core import config, files
from ..core.checkpoints import tensors as tensorfiles
from ..core.checkpoints.headers import INDEX, SINGLE, Shape, read_index
from ..core.config import serial
from ..core.errors import UserError, need
from ..core.nn import Model
from ..core.tokenizer.framing import target_start
from ..families import sentences
from ..families.names import Table
from ..fast.quantized import QuantizedWeight
from . import adapters, tuning, weights
from . import quantized_weights as quantized
from .checkpoint import FINGERPRINT, FORMAT, SAVING, SOURCE, Checkpoint, scores
from .generation_config import GENERATION
from .tokenizer_saving import framed_json, settings

if TYPE_CHECKING:
    from ..core.tokenizer import Tokenizer

Layout = Literal["hf", "glassformer"]
Contents = dict[str, str | Callable[[Path], None]]


def load(
    name: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    mapped: bool = True,
    context: int | None = None,
    bits: int | None = None,
    group: int = 32,
    head: int = 8,
) -> tuple[Model, Tokenizer | None]:
    """Opens a model and its tokenizer, ready to use.

    Args:
        name: A folder, a run's folder, a name on the Hugging Face hub, a GGUF file, or a recipe
            such as "glass/1m", whose model is newly initialised.
        dtype: The dtype of the weights, such as "bfloat16"; None is the files' own.
        device: Where the model computes; None is the CPU.
        mapped: Use a large file where it lies. False reads it into memory.
        context: The tokens it is to read, in place of its own number.
        bits: 8 or 4 quantizes the weights (docs/quantize.md).
        group: Weights that share a scale, where ``bits`` is given.
        head: The bits of embeddings and head, where ``bits`` is given: 8 or 16.

    Returns:
        The model in evaluation mode, and its tokenizer or None.

    Raises:
        UserError: Something is missing, damaged or does not fit together.

    Example:
        >>> model, tokenizer = glassformer.load("out/mine")
    """
    checkpoint = Checkpoint.open(name, context)
    model = checkpoint.model(
        dtype=dtype, device=device, mapped=mapped, bits=bits, group=group, head=head
    )
    return model, checkpoint.tokenizer()


def digest(model: Model, frozen: bool = False) -> str:
    """The SHA-256 of a model's config and weights, in the dtype or bits that they have here, as
    hexadecimal text; ``frozen``: of the weights alone that do not train."""
    hasher = hashlib.sha256(b"" if frozen else serial.dumps(model.config).encode())
    for name, weight in model.named_parameters():
        if frozen and weight.requires_grad:
            continue
        codes = weight.quantized_data if isinstance(weight, QuantizedWeight) else None
        for tensor in (weight,) if codes is None else (codes.codes, codes.scales):
            hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            hasher.update(tensorfiles.flat_bytes(tensor.cpu().contiguous()))
    return hasher.hexdigest()


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
    beside: Mapping[str, str] | None = None,
) -> None:
    """Writes a model to a folder: whole or not at all, and other files there stay.

    Args:
        model: The model.
        folder: The folder to write.
        tokenizer: The tokenizer to write beside it.
        layout: "hf" opens in transformers, "glassformer" holds every model. None is "hf" where a
            published layout holds the model.
        labels: Names of what the model chooses from, in place of its own.
        base: Write only what trains, as a change of the model of this name.
        source_tokenizer: The tokenizer of the source, where it is not the tokenizer's own.
        beside: Texts of other files that appear with it, by name.

    Raises:
        UserError: No published layout holds the model, or the folder cannot be written.

    Example:
        >>> glassformer.save(model, "elsewhere", tokenizer)
    """
    contents = contents_of(
        model, tokenizer, layout, labels=labels, base=base, source_tokenizer=source_tokenizer
    )
    contents |= beside or {}
    path = Path(folder).expanduser() / GENERATION
    if tokenizer is not None and (tokenizer.ends or path.is_file()):
        page = files.read_json(path) if path.is_file() else {}
        page["eos_token_id"] = _token_ids(tokenizer).get("eos_token_id")
        contents[GENERATION] = _json(page)
    _commit(path.parent, contents, tokenizer)


def contents_of(
    model: Model,
    tokenizer: Tokenizer | None = None,
    layout: Layout | None = None,
    *,
    labels: Sequence[str] = (),
    base: str | None = None,
    source_tokenizer: Tokenizer | None = None,
) -> Contents:
    """The files that ``save`` writes beside the tokenizer's own, by name."""
    if layout not in (None, "hf", "glassformer"):
        raise UserError(f'There is no layout "{layout}"; give "hf" or "glassformer".')
    if any(weight.is_meta for weight in model.parameters()):
        raise UserError(
            "This model is on the meta device and has no weights to save; build it on a real one."
        )
    named: dict[str, Any] = {}
    labels = labels or model.labels
    if labels:
        named["id2label"] = {str(i): name for i, name in enumerate(labels)}
        named["label2id"] = {name: i for i, name in enumerate(labels)}
    state = None if base is not None else _state(model)
    _must_load(model.config, state)
    page = None if state is None else quantized.page_of(model)
    need(
        page is None or layout != "hf",
        "No published layout holds our quantized weights; save it in our own (layout glassformer), "
        "or save the model that it was made of.",
    )
    need(
        page is None or not tuning.adapted(model),
        "An adapter beside quantized weights is saved alone, as in its run's folder, which loads "
        "as any model (in Python give base, its name).",
    )
    contents: Contents | None = None
    if layout != "glassformer" and state is not None and page is None:
        contents = _published(model, state, tokenizer, layout, named)
    if contents is None:
        book = {"glassformer": FORMAT, "model": serial.to_dict(model.config)}
        book |= {**_token_ids(tokenizer), **named}
        book |= {"prompts": dict(model.prompts)} if model.prompts else {}
        if state is None:
            book["base"] = base
            with contextlib.suppress(UserError):  # a base that is not here yet
                book[FINGERPRINT] = Checkpoint.open(str(base)).fingerprint()
            contents = adapters.contents(model, str(base))
        elif page is not None:
            book[quantized.KEY] = vars(page)
            contents = quantized.contents(model, page, state)
        else:
            contents = tensorfiles.contents(tensorfiles.plain(state))
        contents = {**contents, "config.json": _json(book)}
        if tokenizer is not None and tokenizer.frames_as_file:
            contents["tokenizer.json"] = framed_json(tokenizer)
    two_sided = model.config.source_embed is not None
    if source_tokenizer is None and tokenizer is not None and two_sided:
        source_tokenizer = tokenizer.source_tokenizer
    if source_tokenizer is not None:
        contents[SOURCE] = source_tokenizer.to_json()
    return contents


def _must_load(cfg: config.Model, state: Mapping[str, Tensor] | None) -> None:
    """Refuse to save what could never be loaded: a config that no reader gives back, weights of
    another model."""
    try:
        back = serial.loads(config.Model, serial.dumps(cfg))
    except (UserError, TypeError, ValueError) as error:
        raise UserError(
            f"Nothing is saved, since this config could not be read back: {error}"
        ) from None
    need(
        back == cfg,
        "Nothing is saved, since this config is read back as another one; give its "
        "types plain values.",
    )
    if state is None:
        return
    shapes = {name: tuple(t.shape) for name, t in state.items()}
    described = weights.shapes(cfg)
    names = (name for name in {**shapes, **described} if shapes.get(name) != described.get(name))
    odd = next(names, None)
    need(
        odd is None,
        f"Nothing is saved, since model.config does not describe {odd} as it is; a part of your "
        "own is a type in the config (config.member).",
    )


def _published(
    model: Model,
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    layout: Layout | None,
    named: Mapping[str, Any],
) -> Contents | None:
    """The files of the published layout; None where there is no such layout and none was asked
    for."""
    try:
        recipe, raw = recipes.write_config(model.config, model.family)
    except UserError:
        if layout is None:
            return None
        raise
    ids: dict[str, Any] = _token_ids(tokenizer, spell_out=True)
    # as generation begins
    if model.config.has_source and tokenizer is not None:
        ids["decoder_start_token_id"] = next(iter(target_start(tokenizer, model.config)), None)
    ids = {name: id for name, id in ids.items() if name not in recipe.fixed}
    ends = scores(model.config)
    if model.config.labels:
        # theirs passes padding over at a text's end, where what closes it is the last token of ours
        closing = (*tokenizer.end_ids, *tokenizer.framed([[-1]])[0]) if tokenizer and ends else ()
        if ids.get("pad_token_id") in closing:
            ids["pad_token_id"] = None
        pool: Any = model.config.pool
        stated = {"eos_token_id": pool.eos, "pad_token_id": pool.pad}
        ids |= {name: id for name, id in stated.items() if id is not None}
    raw = {**raw, **ids} if tokenizer is not None else {**ids, **raw}
    raw["torch_dtype"] = str(next(iter(state.values())).dtype).removeprefix("torch.")
    beside = raw.pop(sentences.KEY, None)
    table, published = recipe.names(model.config)
    bare = raw["architectures"][0] in recipe.bare
    paired = model.config.embed.segments > 1
    tensors = tensors_to_write(table, state, weights.shapes(published), bare)
    return {
        **tensorfiles.contents(tensors),
        **(sentences.files_of(beside, model.config.dim, model.prompts) if beside else {}),
        **({"tokenizer_config.json": settings(tokenizer, True)} if tokenizer and paired else {}),
        **({"tokenizer.json": framed_json(tokenizer)} if tokenizer and ends else {}),
        "config.json": _json({**raw, **named}),
    }


def tensors_to_write(
    table: Table,
    params: Mapping[str, Tensor],
    shapes: Mapping[str, Shape],
    bare: bool = False,
) -> Iterator[tensorfiles.PendingTensor]:
    """Tensors to write for ``params``, by the names of their files; a name in ``shapes`` that they
    lack is written as zeros.

    ``bare`` leaves the table's prefix away.
    """
    dtype = next(iter(params.values())).dtype

    def written(link: weights.Link, index: int) -> Tensor:
        tensors = [
            params[name].detach() if name in params else torch.zeros(shapes[name], dtype=dtype)
            for name in link.param_names
        ]
        return link.save(tensors)[index]

    for link in weights.links(table, shapes):
        sketch = link.save([torch.empty(shapes[n], device="meta") for n in link.param_names])
        link_dtype = params[link.param_names[0]].dtype if link.param_names[0] in params else dtype
        for i, (name, meta_tensor) in enumerate(zip(link.file_names, sketch, strict=True)):
            file_name = name.removeprefix(table.prefix) if bare else name
            shape = tuple(meta_tensor.shape)
            yield tensorfiles.PendingTensor(file_name, link_dtype, shape, partial(written, link, i))


def _state(model: Model) -> dict[str, Tensor]:
    return {
        name.replace("_orig_mod.", ""): weight for name, weight in tuning.weights(model).items()
    }


def _token_ids(tokenizer: Tokenizer | None, spell_out: bool = False) -> dict[str, Any]:
    """The tokenizer's special ids for config.json; spelled out, null says that there is none."""
    ids: dict[str, Any] = {
        f"{name}_token_id": getattr(tokenizer, name, None) for name in ("bos", "eos", "pad")
    }
    if tokenizer is not None and tokenizer.ends:
        ids["eos_token_id"] = [*tokenizer.ends] if tokenizer.ends[1:] else tokenizer.ends[0]
    return {name: id for name, id in ids.items() if spell_out or id is not None}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _commit(folder: Path, contents: Contents, tokenizer: Tokenizer | None) -> None:
    """Write everything beside, then rename it into place, config.json last; then remove what it
    replaced. In between no config.json stands there, so that nobody reads a mixture of two models.
    """
    if not folder.exists():
        with files.write_folder(folder) as beside:
            _write(beside, contents, tokenizer)
        return
    files.make_folder(folder)
    replaced = _weight_files(folder)
    with files.temporary(folder, SAVING) as beside, files.explain_errors(folder):
        _write(beside, contents, tokenizer)
        names = [str(path.relative_to(beside)) for path in beside.rglob("*") if path.is_file()]
        for name in names:
            files.sync(beside / name)
        (folder / "config.json").unlink(missing_ok=True)
        for name in (*(name for name in names if name != "config.json"), "config.json"):
            (folder / name).parent.mkdir(exist_ok=True)
            (beside / name).replace(folder / name)
        for path in replaced:
            if path.name not in contents:
                path.unlink(missing_ok=True)
        files.sync(folder)


def _write(folder: Path, contents: Contents, tokenizer: Tokenizer | None) -> None:
    if tokenizer is not None:
        tokenizer.save(folder)
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        files.write(folder / name, content)


def _weight_files(folder: Path) -> list[Path]:
    """The model that stands in a folder: a single file or an index and its shards, and what makes
    vectors of it."""
    names: Iterable[str] = [SINGLE, INDEX, sentences.MODULES, sentences.PAGE, SOURCE]
    if (folder / INDEX).is_file():
        with contextlib.suppress(UserError):  # an index that says nothing names no shards
            names = [*names, *set(read_index(folder).values())]
    return [
        folder / name for name in names if Path(name).name == name and (folder / name).is_file()
    ]
