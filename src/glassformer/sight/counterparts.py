"""Other models that must say what a model says: of another engine, format or library, adapted,
saved, compiled.

None of these changes the model that it is made of. Each function raises NotRun where there is no
such counterpart.
"""

from __future__ import annotations

import copy
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import files, registry
from ..core.errors import UserError
from ..core.memory import available_memory
from ..core.nn import Model, lora
from ..core.nn.attention import AttentionEngine, AttentionInputs, choose, eager_attention
from ..core.nn.build import compiled
from ..core.nn.layers import Linear
from ..core.nn.model import inference
from ..core.nn.replace import is_packed, replace_modules
from .layouts import DocumentReader, Documents, PinnedRouting, Values
from .recording.outside import module_of

RANK = 4  # of a drawn adapter
ANSWERS = ("logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits")
SHARE = 0.1  # and how large its change is beside the weights, by their standard deviations


class NotRun(Exception):
    """A comparison that cannot be made here; its text says why."""


# ------------------------------------------------------------------------------------------ engines


def with_engine(model: Model, engine: str | AttentionEngine) -> Model:
    """The same model and weights, its attention computed by an engine where that can."""
    view = copy.copy(model)
    view.engine = engine
    return view


def engines_of(model: Model, name: str, documents: Documents) -> Counter[str]:
    """Counts of attentions by the engine that computes them, asked for that of a ``name``, while the
    model reads two tokens."""
    counts = Counter[str]()

    def run(attention: AttentionInputs) -> Tensor:
        position = attention.position
        bias = None if position is None else attention.mask.bias(position)
        attention = attention._replace(bias=bias)
        counts[choose(attention, name).name] += 1
        return eager_attention(attention)

    view = with_engine(model, AttentionEngine("counted", run, lambda inputs: True, None))
    short = Documents(*([ids[0][:2]] if ids else None for ids in vars(documents).values()))  # type: ignore[arg-type]
    DocumentReader(view, short).read(short.alone(0))
    return counts


# ------------------------------------------------------------------------------------------ formats


def in_format(model: Model, dtype: torch.dtype) -> Model:
    """A copy of the model in another number format."""
    weight = next(model.parameters())
    if weight.device.type == "mps" and dtype == torch.float64:
        raise NotRun("MPS has no float64")
    _room(model, dtype.itemsize + weight.dtype.itemsize, weight.device)
    return copy.deepcopy(model).to(dtype)


def _room(model: Model, size: int, device: torch.device) -> None:
    """Raise NotRun where ``size`` bytes for each weight do not fit the memory of a device."""
    needed = sum(weight.numel() for weight in model.parameters()) * size
    _must_fit("a copy", needed, available_memory(device), "memory")


def _must_fit(what: str, needed: int, free: int | None, place: str) -> None:
    if free is not None and needed > 0.9 * free:
        raise NotRun(
            f"{what} takes {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB of {place} are free"
        )


# ------------------------------------------------------------------------------------------ weights


def loaded_again(model: Model, folder: Path) -> tuple[Model, str]:
    """The model as it comes back from ``folder``, in which it is saved, and the layout it has
    there."""
    weights = sum(weight.nbytes for weight in model.parameters())
    _must_fit("saving", weights, shutil.disk_usage(folder.parent).free, "disk")
    (store,) = registry.load("stores")
    store.save(model, folder)
    weight = next(model.parameters())
    layout = "glassformer" if "glassformer" in files.read_json(folder / "config.json") else "hf"
    return store.load(folder, dtype=weight.dtype, device=weight.device)[0], layout


def adapters(model: Model, seed: int = 0) -> tuple[dict[str, Model], str]:
    """The model with its LoRA ``apart``, ``merged``, and merged and taken out again; a drawn one
    where it has none."""
    layers = lora.adapted(model)
    description = "its own adapter"
    if not layers:
        plain = {path: module for path, module in model.named_modules() if type(module) is Linear}
        if any(map(is_packed, model.parameters())):
            raise NotRun("a change stays beside a quantized weight")
        chosen = [path for path in plain if path.endswith((".attn.q", ".attn.v"))]
        chosen = chosen or [path for path in plain if path.endswith((".input", ".up", ".in_proj"))]
        if not chosen:
            raise NotRun("no linear layer here is one that an adapter is usually drawn for")
        layers = {path: _drawn(plain[path], seed + n) for n, path in enumerate(chosen)}
        description = "a drawn adapter"
    copies: dict[str, Model] = {}
    for name in ("apart", "merged", "unmerged"):
        swaps: dict[nn.Module, nn.Module] = {}
        for path, layer in layers.items():
            layer = _unshared(layer)
            if name != "apart":
                layer.merge()
            if name == "unmerged":
                layer.unmerge()
            swaps[model.get_submodule(path)] = layer
        copies[name] = replace_modules(model, swaps)
    return copies, f"{description} on {len(layers)} layers"


def _drawn(of: Linear, seed: int) -> lora.LoRALinear:
    """A layer with a change of SHARE of its weights' size beside it."""
    layer = lora.LoRALinear(of, RANK, 1.0)
    draw = torch.Generator().manual_seed(seed)
    down, up = (torch.randn(weight.shape, generator=draw) for weight in (layer.down, layer.up))
    size = SHARE * float(of.weight.detach().float().std()) / RANK**0.5
    layer.down.data.copy_(down)
    layer.up.data.copy_(up * size)
    return layer


def _unshared(layer: lora.LoRALinear) -> lora.LoRALinear:
    """The same layer with a matrix of its own, the change beside it."""
    clone = copy.copy(layer)
    matrix = layer.weight if layer.original is None else layer.original
    clone._parameters = {**layer._parameters, "weight": nn.Parameter(matrix.detach().clone())}
    clone.original = None
    return clone


def with_prepacked(model: Model) -> Model:
    """A view of the model whose products read copies of the weights, as generation does it on a
    CPU."""
    (room,) = registry.load("acceleration")
    if not any(True for _ in room.packable(model)):
        raise NotRun("no weights here gain by a copy in the processor's own order")
    weight = next(model.parameters())
    _room(model, weight.dtype.itemsize, weight.device)
    view: Model = room.prepack(model).model
    return view


# ----------------------------------------------------------------------------------------- compiled


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Without the warnings of PyTorch's compiler."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def shortened(model: Model) -> tuple[Model, int]:
    """The model with only as many blocks as differ and one more, which takes far less compiling;
    how many are left."""
    swaps: dict[nn.Module, nn.Module] = {}
    count = 0
    for name, stack in model.config.stacks.items():
        blocks: Any = model.get_submodule(f"{name}.blocks")
        swaps[blocks] = first = blocks[: len(stack.pattern) + 1]
        count += len(first)
    return replace_modules(model, swaps), count


def compiled_copy(model: Model) -> Model:
    """The model under torch.compile, as training does it."""
    if not model.config.stacks:
        raise NotRun(
            "recurrent layers are not compiled: how long documents are is not known before"
        )
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch.utils._triton import has_triton

    on_cpu = next(model.parameters()).device.type == "cpu"
    try:
        compiler = get_cpp_compiler() if on_cpu else has_triton()
    except Exception as error:
        raise NotRun(f"torch.compile finds no compiler ({str(error).splitlines()[0]})") from None
    if not compiler:
        raise NotRun("torch.compile finds no Triton for this device")
    copied: Model = compiled(copy.deepcopy(model))
    return copied


# ------------------------------------------------------------------------------------- transformers


class HFModel:
    """A model as ``transformers`` reads it from a folder; its answers and hidden states by the paths
    that they have here."""

    def __init__(self, folder: Path, of: Model, documents: Documents) -> None:
        if "glassformer" in files.read_json(folder / "config.json"):
            raise NotRun("no layout that transformers knows holds this model")
        try:
            module = module_of(folder, "This comparison")
        except UserError as error:
            raise NotRun(str(error)) from None
        self.of = of
        self.documents = documents
        weight = next(of.parameters())
        self.model = module.to(weight.device, weight.dtype).eval()

    def __call__(self, tape: bool, pinned: PinnedRouting | None = None) -> list[Values]:
        """Each document by itself: logits, and hidden states by the paths that they have here."""
        if self.documents.sources is None:
            return [self._answers({"input_ids": ids[None]}) for ids in self.documents.tokens]
        pairs = zip(self.documents.sources, self.documents.tokens, strict=True)
        return [
            self._answers({"input_ids": source[None], "decoder_input_ids": ids[None]})
            for source, ids in pairs
        ]

    def _answers(self, inputs: Mapping[str, Tensor]) -> Values:
        with inference(self.model):
            output = self.model(**inputs, output_hidden_states=True)
        values: Values = {}
        for side, body in self.of.config.stacks.items():
            name = f"{side}_hidden_states" if self.of.config.has_source else "hidden_states"
            states: Sequence[Tensor] = getattr(output, name, None) or ()
            # what enters each block, and what leaves the last norm
            inside = [f"{side}.blocks.{i}.resid" for i in range(body.depth - 1)]
            places = [f"{side}.embed", *inside, f"{side}.out"]
            if len(states) == len(places):
                values |= {path: state[0] for path, state in zip(places, states, strict=True)}
        return values | self._ends(output)

    def _ends(self, output: Any) -> Values:
        """The model's outputs by our names; a bare model has only its hidden states."""
        cfg = self.of.config
        logits, words, pair, first, last = (getattr(output, name, None) for name in ANSWERS)
        values: dict[str, Tensor | None] = {"logits": words, "pool.write": pair}
        if cfg.token_head is not None:
            if first is not None and last is not None:
                logits = torch.stack((first, last), -1)
            values["token_head.write"] = (
                logits if logits is None else logits.reshape(1, logits.shape[1], -1)
            )
        elif logits is not None:
            values["pool.write" if cfg.head is None else "logits"] = logits
        return {path: value[0] for path, value in values.items() if value is not None}
