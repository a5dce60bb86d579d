"""GGUF files (llama.cpp's): read as a model, Q8_0 and Q4_0 as the codes that they are; written, to
be opened there."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import config
from ..core.checkpoints import weights
from ..core.checkpoints.headers import Headers, TensorEntry
from ..core.checkpoints.loading import Device, must_fit
from ..core.checkpoints.tensors import Files
from ..core.errors import need
from ..core.files import temporary
from ..core.nn import Model, build_model
from ..core.nn.finite import is_finite
from ..core.nn.init import allocate
from ..core.nn.replace import replace_parameter
from ..core.tokenizer import Tokenizer
from ..fast import quantized
from ..fast.rounding import nearest, searched
from . import gguf_configs as recipe
from . import lora
from .gguf_blocks import CODED, Numbers, decode, join, split
from .gguf_fields import fields_of
from .gguf_file import ALIGNMENT, BLOCKS, LIST, MAGIC, NAMES, SIZED, TEXT, read_gguf
from .gguf_tokenizer import from_fields

FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}
"""What the field general.file_type calls the kind that most tensors have; these are written."""
LETTERS = {letter: number for number, letter in SIZED.items()}

# -------------------------------------------------------------------------------------- reading


class GGUF(Files):
    """The tensors of a file by name, as numbers of fp32; those of Q8_0 and Q4_0 also as codes."""

    def __init__(self, path: Path) -> None:
        self.fields, self.places = read_gguf(path)
        entries = {
            name: TensorEntry(path, "F32", p.shape, p.start, p.end)
            for name, p in self.places.items()
        }
        super().__init__(Headers(path, entries))

    def raw(self, name: str) -> Numbers:
        """The blocks of a tensor, (.., bytes of one)."""
        place = self.places[name]
        numbers, width = BLOCKS[place.kind]
        blocks = np.fromfile(
            self.entries[name].path, np.uint8, place.end - place.start, offset=place.start
        )
        need(
            len(blocks) == place.end - place.start,
            f"{self.folder} ended while it was read; copy it again.",
        )
        return blocks.reshape(*place.shape[:-1], place.shape[-1] // numbers, width)

    def load(self, name: str) -> Tensor:
        return torch.from_numpy(
            decode(self.places[name].kind, self.raw(name)).reshape(self.places[name].shape)
        )

    take = load

    def codes(self, name: str) -> tuple[Tensor, Tensor]:
        """The codes (N, C) int8 and scales (N, C / 32) of a tensor of Q8_0 or Q4_0."""
        codes, scales = split(self.places[name].kind, self.raw(name))
        shape = self.places[name].shape
        return torch.from_numpy(codes.reshape(shape)), torch.from_numpy(scales[..., 0].copy())


def open_config(path: Path) -> config.Model:
    """Our config of the model in a file; UserError for a damaged file and for a model of another
    architecture."""
    return _config(GGUF(path), path)


def open_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer in a file, None where it has no vocabulary."""
    fields, _ = read_gguf(path)
    return (
        None
        if "tokenizer.ggml.tokens" not in fields
        else Tokenizer(*from_fields(fields, str(path)), str(path))
    )


def name(path: Path) -> str:
    """Name of the model in a file (general.name), or else the file's stem."""
    title = read_gguf(path)[0].get("general.name")
    return title if isinstance(title, str) and title.strip() else path.stem


def _config(file: GGUF, path: Path) -> config.Model:
    shapes = {name: place.shape for name, place in file.places.items()}
    factors = file.load(recipe.FACTORS).flatten().tolist() if recipe.FACTORS in shapes else None
    return recipe.read_config(file.fields, shapes, factors, str(path))


def load(path: Path, dtype: torch.dtype | None, device: Device = None) -> Model:
    """The model in a file. Its matrices of Q8_0 and Q4_0 stay the codes that they are, unless a
    ``dtype`` is given."""
    file = GGUF(path)
    cfg = _config(file, path)
    table = recipe.table(cfg, file.fields["general.architecture"])
    shapes = weights.shapes(cfg)
    links = weights.check(table, shapes, file)
    kind = dtype or torch.float32
    must_fit(cfg, kind, device) if dtype is not None else None
    model = build_model(cfg, device="meta", dtype=kind)
    coded = set(quantized.QuantizedLayout(8).plan(model)) if dtype is None else set()
    target_device = torch.device(device or torch.get_default_device())
    allocate(model, target_device)
    for link in links:
        bits = (
            CODED.get(file.places[link.file_names[0]].kind)
            if coded.issuperset(link.param_names)
            else None
        )
        if bits is None:
            weights.fill([link], file, dict(model.named_parameters()), shapes)
            continue
        codes, scales = file.codes(link.file_names[0])
        need(
            is_finite(scales),
            f"{path}: {link.file_names[0]} has scales that are not finite; copy it again.",
        )
        groups = [(shapes[name][0], scales.shape[1]) for name in link.param_names]
        code_pairs = zip(
            link.load([codes], [shapes[n] for n in link.param_names]),
            link.load([scales], groups),
            strict=True,
        )
        for name, (param_codes, param_scales) in zip(link.param_names, code_pairs, strict=True):
            packed = quantized.Codes.of(
                (param_codes.contiguous(), param_scales.contiguous()), bits, 32
            ).to(target_device)
            replace_parameter(model, name, quantized.parameter(packed, kind))
    return model.eval()


# -------------------------------------------------------------------------------------- writing


def save(
    model: Model, path: Path, kind: str, tokenizer: Tokenizer | None, name: str = ""
) -> Counter[str]:
    """A file that llama.cpp opens: matrices of ``kind`` (those quantised here as they are), vectors
    of F32.

    A matrix whose rows no block divides is F16. Gives the number of tensors of each kind. UserError
    for another kind, for codes that would be rounded again, and for a model or tokenizer that the
    format has no words for.
    """
    adapted = next(iter(lora.adapted(model)), None)
    sentence = f"{adapted} has an adapter beside quantised weights, which GGUF has no place for"
    need(
        adapted is None,
        f"{sentence}; train the adapter on the model before it was quantised, and convert that.",
    )
    need(
        kind in FILE_TYPES,
        f"GGUF files are written in {', '.join(FILE_TYPES)}, not in {kind}; give one of them.",
    )
    bit_counts = Counter(
        weight.quantized_data.bits for weight in quantized.quantized(model).values()
    )
    bits = bit_counts.most_common(1)[0][0] if bit_counts else None
    again = (
        f"This model's matrices are codes of {bits} bits, and {kind} would round them a second "
        "time; leave --numbers"
    )
    again += (
        " out to write them as they are, or convert the model that they were made of with "
        f"--numbers {kind}."
    )
    need(kind not in CODED or bits in (None, CODED[kind]), again)
    described, factors = recipe.write_fields(model.config)
    table = recipe.table(model.config, described["general.architecture"])
    fields: dict[str, Any] = {**described, "general.name": name}
    fields["general.quantization_version"] = 2
    if tokenizer is not None:
        fields |= fields_of(tokenizer, model.config.embed.vocab)
    parameters = dict(model.named_parameters())
    shapes = weights.shapes(model.config)
    tensors = [_tensor(link, parameters, shapes, kind) for link in weights.links(table, shapes)]
    if factors is not None:
        factor_array = np.asarray(factors, "<f4")
        tensors.append(
            (recipe.FACTORS, "F32", (len(factors),), lambda: factor_array.view(np.uint8))
        )
    numbers = Counter[str]()
    for _, stored, shape, _ in tensors:
        numbers[stored] += math.prod(shape)
    fields["general.file_type"] = FILE_TYPES[numbers.most_common(1)[0][0]]
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary(path.parent, ".saving-") as beside:
        _write(beside / path.name, fields, tensors)
        (beside / path.name).replace(path)
    return Counter(stored for _, stored, _, _ in tensors)


Made = tuple[str, str, tuple[int, ...], Callable[[], Numbers]]
"""(name, kind, shape, what makes its bytes)."""


def _tensor(
    link: weights.Link, parameters: Mapping[str, Any], shapes: Mapping[str, Any], kind: str
) -> Made:
    """One of their tensors, of our parameters."""
    params = [parameters[name] for name in link.param_names]
    sketch = link.save([torch.empty(shapes[name], device="meta") for name in link.param_names])[0]
    shape, name = tuple(sketch.shape), link.file_names[0]
    codes = [
        weight.quantized_data for weight in params if isinstance(weight, quantized.QuantizedWeight)
    ]
    alike = len({code.bits for code in codes}) == 1
    if alike and len(codes) == len(params) and shape[-1] % 32 == 0:
        code_kind = "Q8_0" if codes[0].bits == 8 else "Q4_0"
        return (
            name,
            code_kind,
            shape,
            lambda: _blocks(
                code_kind, link, [(code.unpacked(), code.fine_scales()) for code in codes]
            ),
        )
    if len(shape) == 1 or name.startswith("position_embd"):
        return (
            name,
            "F32",
            shape,
            lambda: _plain("F32", link.save([param.detach() for param in params])[0]),
        )
    if kind not in CODED or shape[-1] % 32:
        plain = "F16" if kind in CODED else kind
        return (
            name,
            plain,
            shape,
            lambda: _plain(plain, link.save([param.detach() for param in params])[0]),
        )
    rounded = nearest if kind == "Q8_0" else searched
    return (
        name,
        kind,
        shape,
        lambda: _blocks(kind, link, [rounded(param.detach(), CODED[kind], 32) for param in params]),
    )


def _blocks(kind: str, link: weights.Link, pairs: Iterable[tuple[Tensor, Tensor]]) -> Numbers:
    codes, scales = (link.save(list(side))[0].numpy() for side in zip(*pairs, strict=True))
    return join(kind, codes.reshape(-1, 32), scales.reshape(-1, 1)).reshape(-1)


def _plain(kind: str, tensor: Tensor) -> Numbers:
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    small = tensor.to(dtype).contiguous()
    need(is_finite(small), f"A weight is too large for {kind}; write BF16 or F32.")
    return small.view(-1).view(torch.uint8).numpy()


def _write(path: Path, fields: Mapping[str, Any], tensors: list[Made]) -> None:
    numbers = {name: number for number, name in NAMES.items()}
    head = bytearray(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(fields)))
    for key, value in fields.items():
        head += _text(key) + _value(value)
    sizes, at = list[int](), 0
    for name, kind, shape, _ in tensors:
        block, width = BLOCKS[kind]
        sizes.append(int(np.prod(shape)) // block * width)
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", numbers[kind], at)
        at += -(-sizes[-1] // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for (_, _, _, make), size in zip(tensors, sizes, strict=True):
            data = make()
            assert data.nbytes == size
            file.write(data.tobytes() + bytes(-size % ALIGNMENT))


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """A field's type and value: lists by their first entry."""
    if isinstance(value, list):
        kind, parts = _letter(
            -1 if type(value[0]) is int else value[0]
        )  # llama.cpp's lists are signed, its numbers not
        body = (
            b"".join(map(_text, value))
            if kind == TEXT
            else struct.pack(f"<{len(value)}{parts}", *value)
        )
        return struct.pack("<IIQ", LIST, kind, len(value)) + body
    kind, letter = _letter(value)
    return struct.pack("<I", kind) + (
        _text(value) if kind == TEXT else struct.pack(f"<{letter}", value)
    )


def _letter(value: Any) -> tuple[int, str]:
    if isinstance(value, str):
        return TEXT, ""
    letter = (
        "?"
        if isinstance(value, bool)
        else "f"
        if isinstance(value, float)
        else "I"
        if value >= 0
        else "i"
    )
    return LETTERS[letter], letter
