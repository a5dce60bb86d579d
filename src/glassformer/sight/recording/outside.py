"""Models that are not ours: from a Python file of the user's own, or by the library ``transformers``."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core import files
from ...core.errors import UserError, need
from ...core.tokenizer import Tokenizer, tokenizer_json
from .module_trace import KEEP, ModuleTrace, check_module

ROLES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")

WORDS = ("*tokenizer*", "*vocab*", "*.model")  # files of a folder's tokenizer
LOCAL = {"local_files_only": True, "trust_remote_code": False}


class Outside:
    """A model that is not ours, and how it reads a text.

    ``reader`` is a tokenizer of ``transformers``, ``encode`` makes the module's arguments of a
    text; without either a text is a row of token ids, "5 3 8".
    """

    def __init__(
        self, module: nn.Module, reader: Any = None, encode: Callable[[str], Any] | None = None
    ) -> None:
        check_module(module)
        self.module, self.reader, self.encode = module, reader, encode
        self.is_pair = is_pair(module)
        self.tokenizer = readable(reader)

    def ids(self, text: Any, is_target: bool = False) -> Tensor:
        """The token ids (B, T) of a text, or of rows of ids; a target that is a text follows the id
        that a decoder begins with."""
        if not isinstance(text, str):
            rows: Tensor = torch.atleast_2d(torch.as_tensor(text))  # type: ignore[no-untyped-call]
            need(rows.numel() > 0, "The text is empty; give at least one token.")
            return rows
        if self.encode is not None:
            row = user_code(self.encode, text)
            is_row = isinstance(row, Tensor) and row.shape[:-1] == (1,)
            need(
                is_row and not row.is_floating_point(),
                "The function of the model file returns no row of token ids.",
            )
            return torch.as_tensor(row)
        if is_target and not text.strip():
            ids = []
        elif self.reader is None:
            ids = _numbers(text)
        else:
            text = text.replace("___", self.reader.mask_token or "___")
            ids = self.reader(text, add_special_tokens=not is_target)["input_ids"]
        ids = [_start(self.module), *ids] if is_target else ids
        need(bool(ids), "The text has no tokens; give a word or more.")
        return torch.tensor([ids])

    def read(self, ids: Tensor, source: Tensor | None = None, keep: int = KEEP) -> ModuleTrace:
        """A pass over token ids, and over those of a source."""
        if source is not None:
            return self._pass({"input_ids": source, "decoder_input_ids": ids}, keep)
        by_name = "input_ids" in inspect.signature(self.module.forward).parameters
        return self._pass({"input_ids": ids} if by_name else ids, keep)

    def trace(self, text: str, keep: int = KEEP, source: str | None = None) -> ModuleTrace:
        """A pass over a text; of an encoder-decoder it is the source where no ``source`` stands
        beside it, and the target is empty."""
        need(source is None or self.is_pair, "This model reads one text; leave out the source.")
        if self.encode is not None and source is None:
            return self._pass(user_code(self.encode, text), keep)
        if not self.is_pair:
            return self.read(self.ids(text), keep=keep)
        target, source = ("", text) if source is None else (text, source)
        return self.read(self.ids(target, True), self.ids(source), keep)

    def _pass(self, inputs: Any, keep: int) -> ModuleTrace:
        inputs = inputs if isinstance(inputs, dict | tuple) else (inputs,)
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
        try:
            return ModuleTrace(self.module, args, kwargs, keep, tokenizer=self.tokenizer)
        except UserError:
            raise
        except Exception as error:
            name = type(self.module).__name__
            raise UserError(
                f"The code of {name} fails on this text: {type(error).__name__}: {error}"
            ) from None


def is_pair(module: nn.Module) -> bool:
    """True for an encoder-decoder."""
    stated = getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    return bool(stated) or "decoder_input_ids" in inspect.signature(module.forward).parameters


def _start(module: nn.Module) -> int:
    """The id that a decoder beside an encoder begins with."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    ids = (getattr(getattr(module, "config", None), name, None) for name in names)
    return next((id for id in ids if isinstance(id, int)), 0)


def readable(reader: Any) -> Tokenizer | None:
    """The words of a tokenizer of ``transformers`` or of ours; None where its form is another one."""
    if isinstance(reader, Tokenizer):
        return reader
    backend = getattr(reader, "backend_tokenizer", None)
    if backend is None:
        return None
    spec = json.loads(backend.to_str())
    stated = {role: getattr(reader, f"{role}_token", None) for role in ROLES}
    try:
        return Tokenizer(spec, tokenizer_json.roles_of(spec, stated))
    except (UserError, LookupError, TypeError):
        return None


def user_code(call: Callable[..., Any], *args: Any) -> Any:
    """Calls code of the user's own, whose mistakes become a sentence with their line."""
    try:
        return call(*args)
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if len(frames) > 1 else ""
        raise UserError(
            f"The model's file fails{line}: {type(error).__name__}: {error}; correct it."
        ) from None


def from_file(name: str) -> Outside:
    """The model that ``FILE.py:FUNCTION`` makes.

    The function returns a module, which then reads token ids; or a module and a function that
    makes the module's arguments of a text: a tensor, a tuple or a dict.
    """
    path, _, function = name.partition(":")
    if not function or not path.endswith(".py") or not Path(path).is_file():
        raise UserError(
            f'"{name}" is no model file; give FILE.py:FUNCTION, a file that exists and a function '
            "in it that returns the module."
        )
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    user_code(spec.loader.exec_module, code)
    if not callable(make := getattr(code, function, None)):
        raise UserError(f'{path} has no function "{function}".')
    result = user_code(make)
    module, encode = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(module, nn.Module) or not (encode is None or callable(encode)):
        raise UserError(
            f"{name} returns {type(module).__name__}; it must return a torch.nn.Module, or a module "
            "and a function that turns a text into its arguments."
        )
    return Outside(user_code(module.eval), encode=encode)


def from_transformers(folder: str, option: str = "--with-transformers") -> Outside:
    """The model in a folder, by the code that ``transformers`` has for it, with the folder's
    tokenizer."""
    home, reader = Path(folder).expanduser(), None
    module = module_of(home, option)
    # without files transformers makes a tokenizer that has no words
    if any(file for pattern in WORDS for file in home.glob(pattern)):
        import transformers

        reader = transformers.AutoTokenizer.from_pretrained(home, **LOCAL)
    return Outside(module.eval(), reader)


def module_of(folder: Path, option: str) -> nn.Module:
    """The module that ``transformers`` makes of a folder; ``option`` is what asks for it."""
    try:
        import transformers
    except ImportError:
        raise UserError(f"{option} needs the library: pip install transformers.") from None
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no config.json; give the folder of a checkpoint.")
    names = files.read_json(path).get("architectures") or [""]
    kind: Any = getattr(transformers, names[0], None) if names[0] else None
    if kind is None:
        raise UserError(
            f'transformers {transformers.__version__} has no architecture "{names[0]}", which '
            f"{path} names."
        )
    try:
        with _quiet(transformers.utils.logging):
            module: nn.Module = kind.from_pretrained(folder, **LOCAL)
    except Exception as error:  # safetensors has errors of its own
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"transformers cannot load {folder}: {reason}") from None
    return module


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Without transformers' bars and remarks about what it loads."""
    level = log.get_verbosity()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        log.enable_progress_bar()


def _numbers(text: str) -> list[int]:
    numbers = re.split(r"[\s,]+", text.strip())
    if not all(number.isdigit() and len(number) < 19 for number in numbers):
        raise UserError(
            f'"{text}" is not a row of token ids such as "5 3 8". A model without a tokenizer reads '
            "only ids. A model file may also return a function that turns a text into the model's "
            "arguments."
        )
    return [int(number) for number in numbers]
