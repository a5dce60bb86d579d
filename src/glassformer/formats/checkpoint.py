"""A checkpoint's metadata, read once: what a folder, hub name or recipe holds. Only its weights
need torch.

hf            config.json as published, published weight names: what transformers loads
glassformer   config.json = {"glassformer": 1, "model": ...}, our own names: holds every model
gguf          one file of llama.cpp's
adapter       one of the first two with "base": NAME, or PEFT's adapter_config.json: what was changed in another model
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .. import families as recipes
from ..core import files
from ..core.checkpoints.headers import (
    INDEX,
    SINGLE,
    Headers,
    read_header,
    read_headers,
    short,
)
from ..core.config import Model as ModelConfig
from ..core.config import serial
from ..core.config.position import Rotary
from ..core.errors import UserError, need
from ..families import sentences
from ..families.names import Table
from ..families.recipe import Recipe
from . import mxfp4
from .generation_config import GENERATION
from .resolve import GGUF, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from ..core.checkpoints.tensors import Files
    from ..core.nn import Model
    from ..core.tokenizer import Tokenizer
    from ..fast.quantized import QuantizedLayout

    Dtype = torch.dtype | str | None
    Device = torch.device | str | None

Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]
_Result = TypeVar("_Result")

FORMAT = 1  # of the glassformer layout
SUMS, ANOTHER = "SHA256SUMS", "use another checkpoint"  # of a checkpoint of a training
CONFIG, ADAPTER = "config.json", "adapter_config.json"
SAVING = ".saving-"  # how the name of what a save writes first begins
STARTS = ("decoder_start_token_id", "forced_bos_token_id")
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "vocab.json",
    "encoder.json",
    "vocab.txt",
)
TOKENIZER_FILES = ("tokenizer", "source_tokenizer")  # that a training writes
# beside the tokenizer of what is written, where the source has another
SOURCE = "source_tokenizer.json"
# the word of an adapter's config.json for the weights of its base; bytes read of them, and where
FINGERPRINT, SAMPLES, SAMPLE = "base_fingerprint", 1024, 64
# what may differ from the checkpoint that a model starts from
ENDS = ("head.", "pool.", "token_head.")


@dataclass(frozen=True)
class Fitted:
    """A model that began as another's checkpoint: which parameters are drawn anew, which of the
    files went unused."""

    model: Model
    new: tuple[str, ...]
    unused: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A model by its name: ``folder`` (None: a recipe, a shape without weights) and the ``config``
    of its model.

    ``recipe``: whose names the files use (None: our own). ``base``: the name of the model that the
    folder holds only a change of. ``labels``: the names of what the model chooses from, in the
    order of its outputs; empty where none were given. ``prompts``: the texts before what it embeds,
    by name; the empty name's is the default. ``headers``: where the tensors lie, if that
    is known already. ``quantization``: what config.json says of weights of few bits, None where
    there are none. ``fingerprint_of_base``: that of the base's weights when the change was made.
    ``stamp``: the state of its files before they were read, so that no part of another model that
    is saved there meanwhile is read as this one's.
    """

    name: str
    folder: Path | None
    config: ModelConfig
    recipe: Recipe | None = None
    base: str | None = None
    labels: tuple[str, ...] = ()
    prompts: tuple[tuple[str, str], ...] = ()
    headers: Headers | None = None
    quantization: Any = None
    fingerprint_of_base: str | None = None
    stamp: Stamp = ()

    @classmethod
    def open(cls, name: str | Path, context: int | None = None) -> Checkpoint:
        """The checkpoint that a folder, run folder, hub name or recipe leads to.

        ``context`` is how many tokens its model is to read, in place of its own number; a
        LongRopeScaling takes its long factors where they are more than its length. Raises UserError
        where no model is described there.
        """
        target = resolve(name)
        if not isinstance(target, Path):
            opened = cls(str(name), None, target)
        else:
            base = None if target.is_file() else base_of(target)
            allowed = base is None or context is None
            need(
                allowed,
                f"{target} is a change of {base}, which has a context of its own; leave "
                "context out.",
            )
            opened = _stamped(str(name), target, base)
        return (
            opened
            if context is None
            else replace(opened, config=for_context(opened.config, context))
        )

    def changed_by(self, folder: Path) -> Checkpoint:
        """The checkpoint of the adapter in a folder, on this model, by whatever name the folder calls
        it. Raises UserError where the folder holds no adapter."""
        target = resolve(folder)
        need(
            self.folder is not None
            and isinstance(target, Path)
            and _base_named(target) is not None,
            f"{folder} holds no adapter of {self.name}; give the folder of an adapter_config.json, "
            "or of a run that trained a part of the weights.",
        )
        assert isinstance(target, Path)
        return _stamped(str(folder), target, self.name)

    @property
    def is_gguf(self) -> bool:
        """True where ``folder`` is a single file of llama.cpp's."""
        return self.folder is not None and self.folder.suffix == GGUF and self.folder.is_file()

    def weights(self) -> Headers:
        """Headers of the files that hold the tensors; UserError where there are none."""
        assert self.folder is not None
        return self.headers or read_headers(self.folder)

    def model(
        self,
        *,
        dtype: Dtype = None,
        device: Device = None,
        mapped: bool = True,
        bits: int | None = None,
        group: int = 32,
        head: int = 8,
    ) -> Model:
        """The model with its weights, in evaluation mode; a recipe's is newly initialised.

        ``dtype`` None is the files' own (fp32 for a recipe). A large file on a disk of this machine
        is ``mapped``, not read, and where nothing has to change, its tensors are the model's: it
        may be removed or replaced by a new one (as ``save`` does it), but not cut or written over
        in place while the model lives. False reads it. ``bits`` 8 or 4 quantizes the weights,
        ``group`` of them to a scale, the ends in ``head`` bits. Raises UserError for everything
        that is missing, damaged or does not fit together.
        """
        from . import weights

        layout: QuantizedLayout | None = None
        if bits is not None:
            from ..fast import quantized

            layout = quantized.QuantizedLayout(bits, group, head)
        kind = weights.dtype_of(dtype)
        if self.folder is None:
            new_kind = kind or weights.MODEL_DTYPES["float32"]
            return weights.new_model(self.config, new_kind, device, layout=layout)
        with self._unchanged():
            if self._plain:
                files = self._files(mapped)
                size = kind or files.dtype
                names = self._names()
                model = weights.load_model(self.config, *names, files, size, device, layout).eval()
            else:
                model = self._converted(kind, device, mapped)
                if layout is not None:
                    quantized.quantize_weights(model, layout)
        model.labels, model.prompts = self.labels, self.prompts
        model.family = self.recipe.name if self.recipe else model.family
        return model

    def check(self) -> None:
        """UserError where the names or shapes of the weights are not the config's, or this machine
        has not the memory for those of float numbers; loads none."""
        from . import adapters, gguf, weights

        smallest = weights.MODEL_DTYPES["bfloat16"]
        if self.is_gguf and self.folder is not None:
            gguf.check(self.folder)
        elif self.folder is not None and self.base is not None:
            self._of_base(Checkpoint.check)
            adapters.check(self.config, self.folder)
        elif self.folder is not None and self._plain:
            files = self._files(mapped=True)
            links, _ = weights.check_links(self.config, *self._names(), files)
            in_files = weights.mapped_params(links, files, files.dtype)
            weights.must_fit(self.config, smallest, None, in_files=in_files)
        elif self.quantization is None:
            weights.must_fit(self.config, smallest, None)

    def fingerprint(self) -> str | None:
        """A SHA-256 of where the tensors lie and of some numbers of each; None where there are none.

        A training changes nearly every number, so a few of each tell one model from another in no
        time, whatever the size.
        """
        if self.folder is None:
            return None
        hasher = hashlib.sha256()
        paths = [self.folder] if self.is_gguf else sorted(self.folder.glob("*model*.safetensors"))
        for path in paths:
            size = path.stat().st_size
            hasher.update(f"{path.name} {size}".encode())
            entries = () if self.is_gguf else read_header(path).values()
            places = [(entry.start + entry.end) // 2 for entry in entries]
            with path.open("rb") as file:
                for place in (*range(0, size, size // SAMPLES + 1), *places):
                    file.seek(place)
                    hasher.update(file.read(SAMPLE))
        return hasher.hexdigest()

    def _unchanged(self) -> contextlib.AbstractContextManager[None]:
        """UserError where the files were not those that were opened, or are no longer at the end."""
        if self.folder is None or not self.stamp:
            return contextlib.nullcontext()
        return unchanged(self.folder, self.stamp)

    @property
    def _plain(self) -> bool:
        """True where the folder holds all weights, as numbers in safetensors files."""
        return self.base is None and self.quantization is None and not self.is_gguf

    def _files(self, mapped: bool = False) -> Files:
        """The folder's weights, as they were written."""
        from ..core.checkpoints.tensors import Files
        from . import mapped as mapping

        assert self.folder is not None
        headers = self.weights()
        large = any(entry.end >= mapping.SMALL for entry in headers.entries.values())
        files = (mapping.MappedFiles if mapped and large else Files)(headers)
        verify(self.folder, "model", "adapter")  # a header that lies was named by now
        return files

    def _names(self) -> tuple[Table, ModelConfig]:
        """The names in the files, and the config whose parameters they hold."""
        return (Table(()), self.config) if self.recipe is None else self.recipe.names(self.config)

    def _converted(self, kind: torch.dtype | None, device: Device, mapped: bool) -> Model:
        """The model of a GGUF file, of quantized weights, or of a change in another model."""
        from . import adapters, tuning, weights
        from . import quantized_weights as few_bits

        assert self.folder is not None
        if self.is_gguf:
            from . import gguf

            return gguf.load(self.folder, kind, device)
        if self.base is None:
            files = self._files(mapped)
            page = few_bits.CodesConfig.parse(self.quantization, str(self.folder / CONFIG))
            size = kind or weights.dtype_of(page.dtype) or files.dtype
            return few_bits.load(self.config, page, files, size, device).eval()
        model = self._of_base(
            lambda base: base.model_as(self.config, dtype=kind, device=device).model
        )
        verify(self.folder, "model", "adapter")
        adapters.attach(model, self.folder)
        tuning.merge_and_unload(model)
        return model.requires_grad_(True).eval()

    def _of_base(self, step: Callable[[Checkpoint], _Result]) -> _Result:
        """The result of a step with the base. UserError says that it failed, or that the base has
        other weights."""
        assert self.base is not None
        try:
            base = Checkpoint.open(self.base)
            result = step(base)
        except UserError as error:
            raise UserError(
                f"{self.folder} holds only what was changed in {self.base}, and that cannot be "
                f"loaded: {error}"
            ) from None
        need(
            self.fingerprint_of_base in (None, base.fingerprint()),
            f"{self.folder} is a change of {self.base}, whose weights are no longer those that it "
            "was made with; put those back.",
        )
        return result

    def model_as(
        self,
        cfg: ModelConfig,
        *,
        seed: int | None = None,
        dtype: Dtype = None,
        device: Device = None,
        anew: tuple[str, ...] = (),
    ) -> Fitted:
        """The model of ``cfg`` with these weights; only its ends, head and pool, may differ from
        them.

        What the files lack there is drawn with ``seed``, as are all parameters whose names begin as
        those of ``anew``. A recipe has no weights, so all of its model is drawn. Raises UserError
        as ``model`` does, and where anything but the ends does not fit or would go unused.
        """
        from . import weights

        kind = weights.dtype_of(dtype)
        shapes = weights.shapes(cfg)
        source_shapes = {} if self.folder is None else weights.shapes(self.config)
        missing = [path for path in source_shapes if path not in shapes]
        missing = [path for path in missing if not path.startswith((*ENDS, *anew))]
        for path, shape in shapes.items() if self.folder is not None else ():
            need(
                source_shapes.get(path) == shape or path.startswith((*ENDS, *anew)),
                f"{self.folder} has {source_shapes.get(path, 'nothing')} for {path} and the config "
                f"wants {shape}; change only the head or pool.",
            )
        need(
            not missing,
            f"{self.folder} has weights that the config has no place for "
            f"({short(missing, 2)}); change only the head or pool, or begin from a recipe.",
        )
        shared = {
            path
            for path, shape in shapes.items()
            if source_shapes.get(path) == shape and not path.startswith(anew)
        }
        if self.folder is None or not self._plain:
            source = None if self.folder is None else self.model(dtype=kind, device=device)
            source_params = {} if source is None else dict(source.named_parameters())
            first = next(iter(source_params.values()), None)
            size = kind or (weights.MODEL_DTYPES["float32"] if first is None else first.dtype)
            model = weights.new_model(cfg, size, device, seed)
            weights.copy_weights(model, {path: source_params[path] for path in shared})
        else:
            with self._unchanged():
                files = self._files()
                model = weights.new_model(cfg, kind or files.dtype, device, seed)
                links, file_shapes = weights.check_links(self.config, *self._names(), files)
                params = {path: model.get_parameter(path) for path in shared}
                shared_links = [link for link in links if shared.issuperset(link.param_names)]
                weights.fill(shared_links, files, params, file_shapes)
        new = tuple(path for path in shapes if path not in shared)
        unused = tuple(path for path in source_shapes if path not in shared)
        return Fitted(model.eval(), new, unused)

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer in the folder, with the source's own where there is one; None without
        any."""
        with self._unchanged():
            if self.is_gguf:
                from . import gguf

                assert self.folder is not None
                return gguf.open_tokenizer(self.folder)
            tokenizer = None if self.folder is None else open_tokenizer(self.folder)
            if tokenizer is not None:
                tokenizer.source_tokenizer = self.source_tokenizer()
                tokenizer.frames_as_file = self.recipe is not None and scores(self.config)
            return tokenizer

    def source_tokenizer(self) -> Tokenizer | None:
        """The tokenizer that the model's encoder reads by, None where both sides have one."""
        path = None if self.folder is None or self.is_gguf else self.folder / SOURCE
        if path is None or not path.is_file():
            return None
        verify(path.parent, SOURCE)
        from .tokenizer_forms import from_json

        return from_json(path.read_text(encoding="utf-8"), source=str(path))


def scores(model: ModelConfig) -> bool:
    """True for a decoder that ends in labels, of a text or of each token."""
    labels = model.token_head is not None or model.labels > 0
    return model.is_decoder and labels


def for_context(model: ModelConfig, context: int) -> ModelConfig:
    """The same model for texts of ``context`` tokens; a LongRopeScaling takes the factors for such
    texts.

    Raises UserError for what is not a number of tokens, and for more than its LongRopeScaling or
    its table holds.
    """
    need(
        type(context) is int and context > 0, f"context is {context!r}; give an integer, 1 or more."
    )
    changes: dict[str, Any] = {"context": context}
    for name, scaling in model.long_scalings.items():
        most = round(scaling.original_context * scaling.factor)
        need(
            context <= most,
            f"context is {context} and this model was made for {most} tokens; give no more.",
        )
        stack = model.stacks[name]
        assert isinstance(stack.position, Rotary)
        position = replace(
            stack.position, scaling=replace(scaling, use_long=context > scaling.original_context)
        )
        changes[name] = replace(stack, position=position)
    return replace(model, **changes)


def open_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in a model's folder, None where there is none (or Marian's pair of them, one
    for each language)."""
    if not has_tokenizer(folder):
        return None
    verify(folder, *TOKENIZER_FILES)
    from .tokenizer_files import open as open_tokenizer

    tokenizer: Tokenizer = open_tokenizer(folder)
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """True where ``open_tokenizer`` finds one in the folder; nothing is opened."""
    if (folder / "source.spm").exists() and not (folder / "tokenizer.json").exists():
        return False
    return any((folder / name).exists() for name in TOKENIZERS) or any(folder.glob("*.tiktoken"))


def base_of(folder: Path) -> str | None:
    """The name of the model that a folder holds a change of; None where it holds a whole model.

    It is a hub name, a recipe or a folder anywhere on this machine, as a person may name one: only
    a model's config and weights are read there. Raises UserError where changes of changes lead back
    to one of them.
    """
    first = base = _base_named(folder)
    visited = {folder.resolve()}
    while base is not None:
        try:
            target = resolve(base)
        except UserError:  # who loads it says what is wrong with it
            break
        if not isinstance(target, Path):
            break
        again = target.resolve() in visited
        need(
            not again,
            f"{folder} is a change of {first}, which is itself a change of {target}; "
            "name another base.",
        )
        visited.add(target.resolve())
        base = _base_named(target)
    return first


def _base_named(folder: Path) -> str | None:
    for page, key in ((CONFIG, "base"), (ADAPTER, "base_model_name_or_path")):
        with contextlib.suppress(UserError):  # who reads the page says what is wrong with it
            base = files.read_json(folder / page).get(key)
            if isinstance(base, str) and base:
                return base
    return None


def file_stamp(folder: Path) -> Stamp:
    """The names, times, sizes and inodes of the files of a model in a folder, or of its one file."""
    names = (CONFIG, ADAPTER, GENERATION, SOURCE, INDEX, "tokenizer_config.json", *TOKENIZERS)
    paths = [folder, *(folder / name for name in names)]
    with contextlib.suppress(OSError):  # a training removes its older checkpoints
        paths += sorted(folder.glob("*.safetensors"))
    stamps = []
    for path in paths:
        with contextlib.suppress(OSError):
            stat = path.stat()
            times = (stat.st_mtime_ns, stat.st_size) if path.is_file() else (0, 0)
            stamps.append((str(path), *times, stat.st_ino))
    return tuple(stamps)


@contextlib.contextmanager
def unchanged(folder: Path, stamp: Stamp) -> Iterator[None]:
    """UserError where the model in a folder is saved anew or removed while it is read inside."""
    try:
        yield
    finally:
        need(
            file_stamp(folder) == stamp,
            f"{folder} was saved anew or removed while it was read; read it again.",
        )


def _stamped(name: str, folder: Path, base: str | None) -> Checkpoint:
    """``_read`` of files that stay as they are, and their stamp."""
    stamp = file_stamp(folder)
    with unchanged(folder, stamp):
        return replace(_read(name, folder, base), stamp=stamp)


def _read(name: str, folder: Path, base: str | None) -> Checkpoint:
    """The model that a folder's config.json describes, in either layout; an adapter's without one
    is its base's."""
    path = folder / CONFIG
    if folder.is_file():
        from . import gguf

        return Checkpoint(name, folder, gguf.open_config(folder))
    if not path.exists():
        origin = None if base is None else resolve(base)
        if isinstance(origin, Path):
            return replace(
                _read(name, origin, base_of(origin)),
                folder=folder,
                base=base,
                labels=(),
                headers=None,
            )
        resumable = (folder / "run.json").exists()
        line = f"glassformer train --out {shlex.quote(str(folder))} --resume"
        need(
            not resumable,
            f"{folder} is a run that has no checkpoint yet; go on with --resume: {line}",
        )
        need(
            next(folder.glob(f"{SAVING}*"), None) is None,
            f"{folder} has no config.json: a save into it was ended before it was done, or goes on "
            "now; save the model again.",
        )
        raise UserError(f"{folder} has no config.json; give the folder of a saved model.")
    raw = files.read_json(path, fix="restore it or download it again")
    verify(folder, CONFIG, ADAPTER)
    labels = _labels(raw)
    if "glassformer" not in raw:
        published = any((folder / weights).exists() for weights in (SINGLE, INDEX))
        headers = read_headers(folder) if published else None
        if headers is not None:
            raw, headers = mxfp4.unpack(raw, headers)
        beside = {**_generation(folder), **sentences.open_beside(folder)}
        recipe, model = recipes.read_config({**raw, **beside}, str(path), headers)
        prompts = sentences.open_prompts(folder)
        return Checkpoint(name, folder, model, recipe, base, labels, prompts, headers)
    if raw["glassformer"] != FORMAT:
        version = json.dumps(raw["glassformer"])[:20]
        raise UserError(
            f"{path} is in format {version} and this version reads {FORMAT}; upgrade glassformer."
        )
    try:
        model = serial.from_dict(ModelConfig, raw.get("model"))
        named = raw.get("prompts")
        prompts = sentences.read_prompts(named, None, str(path)) if named else ()
        return Checkpoint(
            name,
            folder,
            model,
            None,
            base,
            labels,
            prompts,
            quantization=raw.get("quantization"),
            fingerprint_of_base=raw.get(FINGERPRINT),
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _generation(folder: Path) -> dict[str, Any]:
    """First tokens of a target as generation_config.json has them, which config.json may lack."""
    path = folder / GENERATION
    raw = files.read_json(path, fix="restore it or remove it") if path.is_file() else {}
    return {name: raw[name] for name in STARTS if raw.get(name) is not None}


def _labels(raw: dict[str, Any]) -> tuple[str, ...]:
    with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):
        named = raw["id2label"]
        labels = tuple(str(named[str(number)]) for number in range(len(named)))
        return () if all(re.fullmatch(r"LABEL_\d+", label) for label in labels) else labels
    return ()


def verify(folder: Path, *prefixes: str) -> None:
    """Refuse a training checkpoint whose files, those whose names begin so (none: all), are not
    what was written.

    Raises UserError; a folder without sums is taken as it is. Reads 1.1 GB/s.
    """
    sums = folder / SUMS
    if not sums.is_file():
        return
    try:
        lines = [line.partition("  ") for line in sums.read_text(encoding="utf-8").splitlines()]
        listed = {Path(name).name: digest for digest, _, name in lines}
        chosen = [name for name in listed if name.startswith(prefixes or "")]
        wrong = [name for name in chosen if files.sha256(folder / name) != listed[name]]
        paths = [*folder.iterdir()]
    except (OSError, ValueError) as error:
        raise UserError(
            f"{sums} is damaged or names a missing file ({error}); {ANOTHER}."
        ) from None
    need(
        not wrong,
        f"{folder / ''.join(wrong[:1])} is damaged: its sha256 is not that in {SUMS}; {ANOTHER}.",
    )
    written = {path.name for path in paths if path.suffix in (".json", ".safetensors")}
    lost = sorted(name for name in written - listed.keys() if name.startswith(prefixes or ""))
    need(not lost, f"{sums} is damaged (it lacks {''.join(lost[:1])}); {ANOTHER}.")
