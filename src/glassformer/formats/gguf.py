"""GGUF files (llama.cpp's): read as a model, Q8_0 and Q4_0 as the codes that they are; written, to
be opened there."""

from __future__ import annotations

import contextlib
import errno
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core import config
from ..core.checkpoints.headers import Headers, TensorEntry
from ..core.checkpoints.tensors import Files
from ..core.errors import need
from ..core.files import write
from ..core.nn import Model, build_model
from ..core.nn.finite import is_finite
from ..core.nn.init import allocate
from ..core.nn.replace import replace_parameter
from ..core.tokenizer import Tokenizer
from ..fast import quantized
from ..fast.rounding import nearest, searched
from . import gguf_configs as recipe
from . import tuning, weights
from .gguf_fields import fields_of
from .gguf_file import read_gguf
from .gguf_tokenizer import from_fields
from .tokenizer_forms import tokenizer_of

Bytes: TypeAlias = np.ndarray[Any, Any]
CODED = {"Q8_0": 8, "Q4_0": 4}
"""Kinds that are codes and scales as ours are, with the bits of a code: blocks of 32 numbers, each
a scale (F16) and then the codes, or 16 bytes with the first half's codes + 8 in their low bits."""
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}
"""What the field general.file_type calls the kind that most tensors have; these are written."""

WHOLE = (
    r"^position_embd|^token_types|_gate_inp|attn_rel_b|conv1d|conv\.weight$|norm|\.bias$|ssm_[ad]$"
)
"""A regex of the tensors that are F32 in every file, beside vectors, for llama.cpp computes with no
others."""

# -------------------------------------------------------------------------------------- reading


class GGUF(Files):
    """The tensors of a file by name, as numbers of fp32; those of Q8_0 and Q4_0 also as codes."""

    def __init__(self, path: Path) -> None:
        self.fields, self.places = read_gguf(path)
        entries = {
            name: TensorEntry(path, "F32", shape, start, start + nbytes)
            for name, (_, shape, start, nbytes) in self.places.items()
        }
        super().__init__(Headers(path, entries))

    def raw(self, name: str) -> Bytes:
        """The bytes of a tensor, a line for each row."""
        place = self.places[name]
        data = np.fromfile(self.folder, np.uint8, place.nbytes, offset=place.start)
        need(len(data) == place.nbytes, f"{self.folder} ended while it was read; copy it again.")
        return data.reshape(math.prod(place.shape[:-1]), -1)

    def load(self, name: str) -> Tensor:
        from gguf import GGMLQuantizationType, dequantize

        place = self.places[name]
        numbers = dequantize(self.raw(name), GGMLQuantizationType[place.kind])
        return torch.from_numpy(numbers.reshape(place.shape))

    def codes(self, name: str) -> tuple[Tensor, Tensor]:
        """The codes (N, C) int8 and scales (N, C / 32) of a tensor of Q8_0 or Q4_0."""
        place = self.places[name]
        codes, scales = split(place.kind, self.raw(name))
        codes = codes.reshape(place.shape)
        scales = scales.reshape(*place.shape[:-1], -1)
        return torch.from_numpy(codes), torch.from_numpy(scales)


def split(kind: str, raw: Bytes) -> tuple[Bytes, Bytes]:
    """The codes (B, 32) int8 and the scales (B, 1) fp16 of B blocks of Q8_0 or Q4_0."""
    blocks = raw.reshape(-1, 34 if kind == "Q8_0" else 18)
    scales = blocks[:, :2].copy().view("<f2")
    body = blocks[:, 2:]
    if kind == "Q8_0":
        return body.view(np.int8), scales
    return np.concatenate((body & 15, body >> 4), -1).astype(np.int8) - 8, scales


def join(kind: str, codes: Bytes, scales: Bytes) -> Bytes:
    """The blocks of codes (B, 32) and scales (B, 1)."""
    head = scales.astype("<f2").view(np.uint8)
    if kind == "Q8_0":
        return np.concatenate((head, codes.view(np.uint8)), -1)
    nibbles = (codes + 8).astype(np.uint8)
    return np.concatenate((head, nibbles[:, :16] | (nibbles[:, 16:] << 4)), -1)


def open_config(path: Path) -> config.Model:
    """Our config of the model in a file; UserError for a damaged file and for a model of another
    architecture."""
    return _config(GGUF(path))[0]


def open_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer in a file, None where it has no vocabulary."""
    fields, _ = read_gguf(path, tensors=False)
    if "tokenizer.ggml.tokens" not in fields:
        return None
    return tokenizer_of(*from_fields(fields, str(path)), str(path))


def name(path: Path) -> str:
    """Name of the model in a file (general.name), or else the file's stem."""
    title = read_gguf(path, tensors=False)[0].get("general.name")
    return title if isinstance(title, str) and title.strip() else path.stem


def _config(file: GGUF) -> tuple[config.Model, dict[str, Any]]:
    """Our config of the model in a file, and the entry it is described."""
    shapes = {name: place.shape for name, place in file.places.items()}
    factors = {
        name: file.load(name).flatten().tolist()
        for name in (recipe.FACTORS, *recipe.LONG_FACTORS.values())
        if name in shapes
    }
    return recipe.read_config(file.fields, shapes, factors, str(file.folder))


def check(path: Path) -> None:
    """UserError where a file's tensors are not those that its fields describe."""
    _checked(GGUF(path))


def _checked(
    file: GGUF,
) -> tuple[config.Model, str, list[weights.Link], dict[str, tuple[int, ...]]]:
    cfg, entry = _config(file)
    table = recipe.table(cfg, entry)
    shapes = weights.shapes(cfg)
    for name in [name for name in file.entries if recipe.is_later(name, file.fields)]:
        del file.entries[name]
    return cfg, entry["recipe"], weights.check(table, shapes, file), shapes


def load(path: Path, dtype: torch.dtype | None, device: weights.Device = None) -> Model:
    """The model in a file. Its matrices of Q8_0 and Q4_0 stay the codes that they are, unless a
    ``dtype`` is given."""
    file = GGUF(path)
    cfg, family, links, shapes = _checked(file)
    if dtype is not None:
        weights.must_fit(cfg, dtype, device)
    model = build_model(cfg, device="meta", dtype=dtype or torch.float32)
    model.family = family
    coded = set(quantized.QuantizedLayout(8).plan(model)) if dtype is None else set()
    allocate(model, torch.device(device or torch.get_default_device()))
    for link in links:
        kind = file.places[link.file_names[0]].kind
        # codes of a matrix that lies transposed are no rows
        fits = len(link.file_names) == 1 and coded.issuperset(link.param_names)
        if kind in CODED and fits and _moves_blocks(link, [shapes[n] for n in link.param_names]):
            _fill_codes(model, link, file, shapes)
        else:
            weights.fill([link], file, dict(model.named_parameters()), shapes)
    return model.eval()


def _fill_codes(
    model: Model, link: weights.Link, file: GGUF, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Put the codes of one of their tensors in the place of our parameters."""
    file_name = link.file_names[0]
    codes, scales = file.codes(file_name)
    need(
        is_finite(scales),
        f"{file.folder}: {file_name} has scales that are not finite; copy it again.",
    )
    code_shapes = [shapes[name] for name in link.param_names]
    scale_shapes = [(shape[0], scales.shape[1]) for shape in code_shapes]
    sides = (link.load([codes], code_shapes), link.load([scales], scale_shapes))
    for name, *pair in zip(link.param_names, *sides, strict=True):
        rounded = (pair[0].contiguous(), pair[1].contiguous())
        param = model.get_parameter(name)
        packed = quantized.Codes.of(rounded, CODED[file.places[file_name].kind], 32)
        replace_parameter(model, name, quantized.parameter(packed.to(param.device), param.dtype))


# -------------------------------------------------------------------------------------- writing


def save(
    model: Model, path: Path, kind: str, tokenizer: Tokenizer | None, name: str = ""
) -> Counter[str]:
    """A file that llama.cpp opens: matrices of ``kind`` (those quantized here as they are), vectors
    of F32.

    A matrix whose rows no block divides is F16. Gives the number of tensors of each kind. UserError
    for another kind, for codes that would be rounded again, and for a model or tokenizer that the
    format has no words for.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter

    pool = model.config.pool
    need(
        (model.config.head is None) == model.config.is_encoder
        and not (pool and (pool.labels or pool.transform)),
        "GGUF files here hold models that continue a text, or that end in vectors as llama.cpp "
        "pools them, and this one ends otherwise; give --layout hf.",
    )
    adapted = next(iter(tuning.adapted(model)), None)
    need(
        adapted is None,
        f"{adapted} has an adapter beside quantized weights, which GGUF cannot hold. Train the "
        "adapter on the unquantized model, and convert that model.",
    )
    need(
        kind in FILE_TYPES,
        f"GGUF files are written in {', '.join(FILE_TYPES)}, not in {kind}; give one of them.",
    )
    codes = Counter(weight.quantized_data.bits for weight in quantized.quantized(model).values())
    bits = codes.most_common(1)[0][0] if codes else None
    need(
        kind not in CODED or bits in (None, CODED[kind]),
        f"This model's matrices are codes of {bits} bits, and {kind} would round them a second "
        "time; leave --numbers out to write them as they are, or convert the model that they were "
        f"made of with --numbers {kind}.",
    )
    cfg, start = recipe.begin_at_zero(model.config)
    params: dict[str, Tensor] = dict(model.named_parameters())
    if start:
        name_of_table = f"{cfg.main_body}.position.weight"
        params[name_of_table] = params[name_of_table][start:]
    described, factors, entry = recipe.write_fields(cfg, model.family)
    links = weights.links(recipe.table(cfg, entry), weights.shapes(cfg))
    tensors = [
        (link, index, *form)
        for link in links
        for index, form in enumerate(
            _kinds_and_shapes(link, [params[name] for name in link.param_names], kind)
        )
    ]
    shapes = {link.file_names[index]: shape for link, index, _, shape in tensors}
    recipe.check(cfg, described, shapes, factors)
    architecture = described.pop("general.architecture")

    def put(beside: Path) -> None:
        writer = GGUFWriter(beside, architecture)
        for link, index, stored, shape in tensors:
            size = math.prod(shape)
            numbers[stored] += size
            block, width = GGML_QUANT_SIZES[GGMLQuantizationType[stored]]
            writer.add_tensor_info(
                link.file_names[index],
                shape,
                np.dtype(np.float32),
                size // block * width,
                GGMLQuantizationType[stored],
            )
        for factor_name, divisors in factors.items():
            size = len(divisors)
            writer.add_tensor_info(factor_name, (size,), np.dtype(np.float32), 4 * size)
        fields: dict[str, Any] = {**described, "general.name": name}
        fields["general.quantization_version"] = 2
        fields["general.file_type"] = FILE_TYPES[numbers.most_common(1)[0][0]]
        fields |= (
            {"tokenizer.ggml.model": "none"}
            if tokenizer is None
            else fields_of(tokenizer, cfg.embed.vocab)
        )
        if cfg.embed.segments:
            fields["tokenizer.ggml.token_type_count"] = cfg.embed.segments
        for key, value in fields.items():
            # a number is not signed, as a list's are; bytes are a list of them
            kinds = {int: GGUFValueType.UINT32, bytes: GGUFValueType.ARRAY}
            kind_of_value = kinds.get(type(value)) or GGUFValueType.get_type(value)
            writer.add_key_value(key, value, kind_of_value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        try:
            for link, index, stored, _ in tensors:
                writer.write_tensor_data(
                    _data(link, [params[name] for name in link.param_names], index, stored)
                )
            for divisors in factors.values():
                writer.write_tensor_data(np.asarray(divisors, "<f4"))
            writer.close()
        except OSError as error:
            with contextlib.suppress(OSError):
                writer.close()
            # numpy's, where a part alone could be written, has no number
            raise OSError(error.errno or errno.ENOSPC, str(error)) from None

    numbers = Counter[str]()
    write(path, put)
    return Counter(stored for _, _, stored, _ in tensors) + Counter(F32=len(factors))


def _kinds_and_shapes(
    link: weights.Link, params: Sequence[Tensor], kind: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The kind of numbers and the shape that each of their tensors is written in."""
    sketches = link.save([torch.empty(param.shape, device="meta") for param in params])
    bits = {_bits(param) for param in params}
    coded = len(sketches) == len(bits) == 1 and None not in bits
    for name, sketch in zip(link.file_names, sketches, strict=True):
        shape = tuple(sketch.shape)
        if coded and shape[-1] % 32 == 0:
            need(
                _moves_blocks(link, [param.shape for param in params]),
                f"{name} has heads that are no multiple of 32 wide side by side, so its codes would "
                "be rounded a second time; convert the model that they were made of.",
            )
            yield ("Q8_0" if bits == {8} else "Q4_0"), shape
        elif len(shape) == 1 or re.search(WHOLE, name):
            yield "F32", shape
        else:
            yield ("F16" if kind in CODED and shape[-1] % 32 else kind), shape


def _moves_blocks(link: weights.Link, shapes: Sequence[Sequence[int]]) -> bool:
    """True where what lies otherwise in the file are rows, or columns by blocks of 32: codes stay
    codes."""
    try:
        link.save([torch.empty((*shape[:-1], shape[-1] // 32), device="meta") for shape in shapes])
    except RuntimeError:
        return False
    return True


def _bits(param: Tensor) -> int | None:
    """The bits of a weight's codes, None where it has none."""
    return param.quantized_data.bits if isinstance(param, quantized.QuantizedWeight) else None


def _data(link: weights.Link, params: Sequence[Tensor], index: int, kind: str) -> Bytes:
    """One of their tensors as it stands in the file."""
    if kind in PLAIN:
        tensor = link.save([param.detach() for param in params])[index]
        tensor = tensor.to(PLAIN[kind]).contiguous()
        need(is_finite(tensor), f"A weight is too large for {kind}; write BF16 or F32.")
        return tensor.view(-1).view(torch.uint8).numpy()
    round_weight = nearest if kind == "Q8_0" else searched
    if len(link.file_names) > 1 or CODED[kind] not in map(_bits, params):
        tensor = link.save([param.detach() for param in params])[index].contiguous()
        codes, scales = (side.numpy() for side in round_weight(tensor, CODED[kind], 32))
        return join(kind, codes.reshape(-1, 32), scales.reshape(-1, 1))
    pairs = [
        (param.quantized_data.unpacked(), param.quantized_data.fine_scales())
        if isinstance(param, quantized.QuantizedWeight) and _bits(param) == CODED[kind]
        else round_weight(param.detach(), CODED[kind], 32)
        for param in params
    ]
    codes, scales = (link.save(list(side))[0].numpy() for side in zip(*pairs, strict=True))
    return join(kind, codes.reshape(-1, 32), scales.reshape(-1, 1))
