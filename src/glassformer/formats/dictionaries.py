"""Dictionaries of features beside a model: sparse autoencoders and transcoders, in SAELens' files.

cfg.json  sae_weights.safetensors     a folder of SAELens, or a checkpoint of the objective Features
params.npz                            Gemma Scope

An attached dictionary makes three more values of a pass, which a tape records and edits:

features.pre     (B, T, F)  x W_enc + b_enc, where x is the value at its address
features.active  (B, T, F)  what TopK or JumpReLU leaves of it
features.error   (B, T, O)  the value at its target, less active W_dec + b_dec

B batch, T tokens, C numbers that are read, F features, O numbers that are written.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ..core import files
from ..core.checkpoints import tensors as tensorfiles
from ..core.errors import UserError, need
from ..core.nn import Model, Tape
from ..core.nn.finite import is_finite
from ..core.nn.model import inference
from ..families.recipe import ConfigReader
from .resolve import checkpoint_folder

PAGE, TENSORS, SCOPE = "cfg.json", "sae_weights.safetensors", "params.npz"
WEIGHTS = ("W_enc", "b_enc", "W_dec", "b_dec")
HOOKS = {
    "resid_post": "resid",
    "resid_mid": "mid",
    "attn_out": "attn.write",
    "mlp_out": "ffn.write",
    "z": "attn.z",
    "post": "ffn.hidden",
    "pre": "ffn.pre",
}
"""TransformerLens' names of hook points, and ours."""
KINDS = {
    "standard": ("relu", False),
    "topk": ("topk", False),
    "jumprelu": ("jumprelu", False),
    "transcoder": ("relu", True),
    "jumprelu_transcoder": ("jumprelu", True),
}
"""SAELens' architectures that are read: their activation, and whether they are transcoders."""
KEYS = """
activation_fn activation_fn_kwargs activation_fn_str apply_b_dec_to_input architecture context_size d_in d_out d_sae
dataset_path dataset_trust_remote_code device dtype hook_head_index hook_layer hook_layer_out hook_name hook_name_out
hook_point hook_point_head_index hook_point_layer k metadata model_from_pretrained_kwargs model_name neuronpedia_id
prepend_bos rescale_acts_by_decoder_norm sae_lens_training_version sae_lens_version seqpos_slice
"""
"""Keys of cfg.json that are obeyed, that the tensors say again, or that only describe."""
ALLOWED: dict[str, tuple[Any, ...]] = {
    "normalize_activations": ("none", None, False),
    "reshape_activations": ("none", "hook_z"),
}
ADDRESS = "name it: --at decoder.blocks.N.resid, of a transcoder --at READ:WRITTEN"


class Dictionary(nn.Module):
    """``decode(encode(x))`` is about ``x``, or for a transcoder the value at another address.

    ``active`` is TopK's number of features; ``centered``: the output's bias is taken from the input.
    """

    W_enc: Tensor
    b_enc: Tensor
    W_dec: Tensor
    b_dec: Tensor
    threshold: Tensor

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        activation: str,
        address: str,
        target: str = "",
        active: int = 0,
        centered: bool = True,
        name: str = "the dictionary",
    ) -> None:
        super().__init__()
        self.activation, self.active, self.centered, self.name = activation, active, centered, name
        self.address, self.target = address, target or address
        for key, tensor in tensors.items():
            setattr(self, key, nn.Parameter(tensor))

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.W_dec)

    def pre(self, x: Tensor) -> Tensor:
        """Values before the activation (.., F) of values (.., C)."""
        x = x.to(self.W_enc)
        return F.linear(x - self.b_dec if self.centered else x, self.W_enc.T, self.b_enc)

    def activate(self, pre: Tensor) -> Tensor:
        """Values before the activation as features (.., F), most of them 0."""
        if self.activation == "topk":
            chosen = pre.topk(min(self.active, pre.shape[-1])).indices
            return pre.relu() * torch.zeros_like(pre).scatter(-1, chosen, 1.0)
        if self.activation == "jumprelu":
            return pre.relu() * (pre > self.threshold)
        return pre.relu()

    def encode(self, x: Tensor) -> Tensor:
        return self.activate(self.pre(x))

    def decode(self, features: Tensor) -> Tensor:
        return features @ self.W_dec + self.b_dec

    def watched(self, tape: Tape) -> Any:
        """The tape of one pass, which sees the features too."""
        return FeatureTape(tape, self)


class FeatureTape:
    """A tape that is shown the features of one pass, and puts what it changes of them into the value
    at the dictionary's target."""

    def __init__(self, tape: Tape, dictionary: Dictionary) -> None:
        self.tape, self.dictionary = tape, dictionary
        names = [f"features.{leaf}" for leaf in ("pre", "active", "error")]
        self.is_watched = any(map(tape.watches, names))
        self.is_changed = any(map(tape.changes, names))
        self.features: tuple[Tensor, Tensor] | None = None  # as they are, and as edited

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tape, name)

    def watches(self, path: str) -> bool:
        places = (self.dictionary.address, self.dictionary.target)
        return self.tape.watches(path) or (self.is_watched and path in places)

    def pass_through(self, path: str, x: Tensor) -> Tensor:
        """``x`` after the tape's edits of it, then after those of its features."""
        x = self.tape.pass_through(path, x)
        if not self.is_watched:
            return x
        dictionary = self.dictionary
        if path == dictionary.address:
            raw = dictionary.pre(rows_of(x))
            pre = self.tape.pass_through("features.pre", raw)
            active = dictionary.activate(pre)
            clean = active if pre is raw else dictionary.activate(raw)
            self.features = clean, self.tape.pass_through("features.active", active)
        if path == dictionary.target and self.features is not None:
            (clean, active), self.features = self.features, None
            y = rows_of(x)
            before = y - dictionary.decode(clean)
            error = self.tape.pass_through("features.error", before)
            if self.is_changed:
                y = dictionary.decode(active) + error
                y = y if x.ndim == 3 else y.view(*y.shape[:2], x.shape[1], -1).transpose(1, 2)
                x = y.to(x)
        return x


def rows_of(x: Tensor) -> Tensor:
    """Every number of each token (B, T, C), of all heads together."""
    if x.ndim == 3:
        return x
    return x.transpose(1, 2).flatten(2)


def values_at(
    model: Any, addresses: tuple[str, ...], run: Callable[[Tape], object]
) -> list[Tensor]:
    """The values (B, T, C) at addresses in a pass that ``run`` makes, which ends at the last of
    them."""
    tape = _EndingTape(*addresses)
    with contextlib.suppress(_Ended):
        run(tape)
    for address in addresses:
        need(
            address in tape.records and tape.records[address].ndim in (3, 4),
            f'The model has no value of each token at "{address}"; glassformer look lists its values.',
        )
    return [rows_of(tape.records[address]) for address in addresses]


class _Ended(Exception):
    """All that was asked of a pass is recorded."""


class _EndingTape(Tape):
    def record(self, path: str, x: Tensor) -> None:
        super().record(path, x)
        if len(self.records) == len(set(self.patterns)):
            raise _Ended


def attach(model: Model, dictionary: Dictionary) -> None:
    """Give a model the features of a dictionary: values ``features.pre``, ``.active`` and ``.error``
    of its passes.

    Raises UserError where the model has no such value, or one of another size.
    """
    token = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
    need(not model.config.has_source, "A dictionary stands beside a decoder or an encoder alone.")
    addresses = (dictionary.address, dictionary.target)
    with inference(model):
        values = values_at(model, addresses, lambda tape: model(token, tape=tape, logits="none"))
    sizes = len(dictionary.W_enc), dictionary.W_dec.shape[1]
    for address, value, size in zip(addresses, values, sizes, strict=True):
        need(
            value.shape[-1] == size,
            f"{dictionary.name} is for values of {size} numbers and {address} has "
            f"{value.shape[-1]}; give the model that it was trained on, or --at another address.",
        )
    model.features = dictionary.to(token.device).requires_grad_(False).eval()


# ------------------------------------------------------------------------------------------ files


def contents(dictionary: Dictionary, base: str) -> dict[str, str | Callable[[Path], None]]:
    """The files of a dictionary, as SAELens opens them."""
    state = {name: weight.detach().float() for name, weight in dictionary.named_parameters()}
    is_transcoder = dictionary.target != dictionary.address
    names = {kind: name for name, kind in KINDS.items()}
    kind = names.get((dictionary.activation, is_transcoder), "topk")  # it has no TopK transcoder
    page = {
        "architecture": kind,
        "d_in": len(state["W_enc"]),
        "d_sae": dictionary.width,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": dictionary.centered,
        "normalize_activations": "none",
        "reshape_activations": "none",
        **({"k": dictionary.active} if dictionary.activation == "topk" else {}),
        **({"d_out": state["W_dec"].shape[1]} if is_transcoder else {}),
        "metadata": {
            "sae_lens_version": "6.0.0",
            "model_name": base,
            "address": dictionary.address,
            "target": dictionary.target,
        },
    }
    (content,) = tensorfiles.contents(tensorfiles.plain(state), limit=1 << 62).values()
    return {PAGE: json.dumps(page, indent=2) + "\n", TENSORS: content}


def load_dictionary(path: str | Path, address: str = "", target: str = "") -> Dictionary:
    """The dictionary in a folder or file of SAELens, of Gemma Scope or of a run.

    Args:
        path: The folder, or Gemma Scope's params.npz.
        address: The value that it reads, where the files do not say it.
        target: The value that it writes, of a transcoder whose files do not say it.

    Raises:
        UserError: The files are no dictionary, are damaged, or say something that is not read.
    """
    folder = Path(path).expanduser()
    folder = checkpoint_folder(folder) if (folder / "run.json").is_file() else folder
    scope = folder if folder.suffix == ".npz" else folder / SCOPE
    page: dict[str, Any] = {"architecture": "jumprelu", "apply_b_dec_to_input": False}
    if scope.is_file():
        source, tensors = str(scope), _arrays(scope)
    else:
        need(
            (folder / PAGE).is_file() and (folder / TENSORS).is_file(),
            f"{path} holds no dictionary; give a folder with {PAGE} and {TENSORS}, or {SCOPE}.",
        )
        page = files.read_json(folder / PAGE, "download it again")
        source = str(folder / PAGE)
        file = tensorfiles.open_file(folder / TENSORS)
        tensors = {name: file.load(name).float() for name in file.entries}
    for key, value in page.items():
        allowed = ALLOWED.get(key, (False, None))
        value_text = json.dumps(value)[:80]
        read_text = json.dumps(allowed[0])
        sentence = f'{source} says "{key}": {value_text}; only {read_text} is read.'
        need(key in KEYS.split() or value in allowed, sentence)
    reader = ConfigReader(page, source)
    kind = str(page.get("architecture", "standard"))
    if "topk" in (page.get("activation_fn_str"), page.get("activation_fn")):  # before version 6
        kind = "topk"
    need(kind in KINDS, f'{source} is of the architecture "{kind}"; {", ".join(KINDS)} are read.')
    activation, is_transcoder = KINDS[kind]
    inside, metadata = map(reader.inside, ("activation_fn_kwargs", "metadata"))
    active = page.get("k", inside and inside.value("k", None))
    counts = type(active) is int and active > 0
    need(activation != "topk" or counts, f"{source} names no k above 0.")
    _check(tensors, activation, source)
    if reader.flag("rescale_acts_by_decoder_norm", False):
        norm = tensors["W_dec"].norm(dim=-1)  # features are counted in decoders of length 1
        tensors |= {name: tensors[name] * norm for name in ("W_enc", "b_enc")}
        tensors["W_dec"] = tensors["W_dec"] / norm[:, None]
    facts = {**page, **(metadata.table if metadata else {})}
    address = address or str(facts.get("address") or _ours(facts.get("hook_name"), source))
    target = target or str(facts.get("target") or _ours(facts.get("hook_name_out"), source))
    need(not is_transcoder or bool(target), f"{source} does not say what it writes; {ADDRESS}.")
    need(bool(address), f"{source} does not say what it reads; {ADDRESS}.")
    centered = not is_transcoder and reader.flag("apply_b_dec_to_input", True)
    return Dictionary(tensors, activation, address, target, active or 0, centered, source)


def _arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of Gemma Scope; UserError where the file is damaged."""
    complaint = f"{path} is damaged; download it again."
    named = read_arrays(path, complaint)
    need(all(x.dtype.kind in "fiu" for x in named.values()), complaint)
    return {
        name.replace("w_", "W_"): torch.from_numpy(x.astype(np.float32))
        for name, x in named.items()
    }


def read_arrays(path: Path, complaint: str) -> dict[str, NDArray[Any]]:
    """The arrays of numbers in an .npz file by their names; UserError with the complaint where it is
    none, or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except MemoryError:
        raise
    except Exception:  # zipfile and numpy raise nearly anything at a damaged byte
        raise UserError(complaint) from None


def _ours(hook: object, source: str) -> str:
    """Our name of TransformerLens' hook point; "" for none."""
    form = re.fullmatch(r"blocks\.(\d+)\.(?:attn\.|mlp\.)?hook_(\w+)", str(hook))
    block, leaf = (int(form[1]), form[2]) if form else (0, "")
    if leaf == "resid_pre":
        return f"decoder.blocks.{block - 1}.resid" if block else "decoder.embed"
    need(leaf in HOOKS or not hook, f'{source} is of "{hook}", which has no name here; {ADDRESS}.')
    return f"decoder.blocks.{block}.{HOOKS[leaf]}" if hook else ""


def _check(tensors: dict[str, Tensor], activation: str, source: str) -> None:
    """UserError where a tensor of a dictionary is missing, too much or of another shape."""
    expected = [*WEIGHTS, *["threshold"] * (activation == "jumprelu")]
    need(
        tensors.keys() == {*expected},
        f"{source} holds {', '.join(sorted(tensors))}; a dictionary of {activation} holds "
        f"{', '.join(expected)}.",
    )
    inputs, width, *_ = *tensors["W_enc"].shape, 0, 0
    outputs = tensors["b_dec"].numel()
    shapes = {"W_enc": (inputs, width), "W_dec": (width, outputs), "b_dec": (outputs,)}
    for name, tensor in tensors.items():
        shape = shapes.get(name, (width,))
        fits = tensor.shape == shape and is_finite(tensor)
        need(fits, f"{source} is damaged: {name} is not {list(shape)} finite numbers.")
