"""Tokenizers by name: the published ones people compare, in the user's data folder or the hub's
cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ..core import files
from ..core.errors import UserError, nearest
from ..core.tokenizer.tokenizer import Tokenizer
from .data.corpus import data_home
from .tokenizer_files import open

# from the hub
WANTED = ("tokenizer*", "*.model", "vocab.*", "merges.txt", "added_tokens.json", "*.tiktoken")


class Known(NamedTuple):
    """A published tokenizer: its name on the hub, its own, how many ids it has."""

    hub: str
    title: str
    size: int


KNOWN = {
    "gpt2": Known("openai-community/gpt2", "GPT-2", 50_257),  # 256 bytes, 50,000 merges, 1 special
    # 100,256 ranks, 7 special (tiktoken's own: 5)
    "cl100k": Known("Xenova/gpt-4", "GPT-4 (cl100k_base)", 100_263),
    # 128,000 ranks and 256 special tokens
    "llama3": Known("meta-llama/Meta-Llama-3-8B", "Llama 3", 128_256),
    "llama2": Known("meta-llama/Llama-2-7b-hf", "Llama 2", 32_000),  # 3 special tokens among them
    # 5 special tokens among them
    "bert-cased": Known("google-bert/bert-base-cased", "BERT cased", 28_996),
    # 5 special tokens among them
    "bert-uncased": Known("google-bert/bert-base-uncased", "BERT uncased", 30_522),
    # 32,000 pieces and 100 sentinels, all special
    "t5": Known("google/flan-t5-base", "T5 and Flan-T5", 32_100),
    # Llama 2's 32,000 entries and 11 added
    "phi3": Known("microsoft/Phi-3-mini-4k-instruct", "Phi-3", 32_011),
    # 38 special tokens among them (StarCoder 2's)
    "starcoder": Known("bigcode/starcoder2-3b", "StarCoder", 49_152),
    # 151,643 ranks, 14 special of Qwen2-VL (Qwen2's own: 3)
    "qwen": Known("Qwen/Qwen2-1.5B", "Qwen2", 151_657),
}


def find(name: str | Path) -> Tokenizer:
    """The tokenizer of that name, or at that path, or of a model on the hub.

    A name goes before a path of the same name (write ./gpt2 for the folder). A named one is looked
    for under ``GLASSFORMER_DATA``, then in the hub's cache, then on the hub. Raises UserError.
    """
    text = str(name)
    if text in KNOWN and not isinstance(name, Path):
        if (tokenizer := at_hand(text, online=True)) is None:
            raise UserError(
                f"{text} ({KNOWN[text].title}) is not here and cannot be downloaded; set "
                "GLASSFORMER_DATA to a folder "
                f"that has tok-{text} in it, or give the path of a tokenizer."
            )
        return tokenizer
    path = Path(name).expanduser()
    if files.path_kind(path) is not None:
        return open(path)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) or files.path_kind(path.parent) is not None:
        hint = nearest(text, KNOWN)
        suggestion = hint if "mean" in hint else f" Known: {', '.join(KNOWN)}."
        raise UserError(
            f'There is no tokenizer "{text}"; give a name, a file or a folder.{suggestion}'
        )
    folder = _hub(text)
    if folder is None:
        raise UserError(
            f"{text} is neither a file nor a folder here, not in the hub's cache and not given "
            "by the hub; give a path."
        )
    return open(folder)


def local_names() -> list[str]:
    """The names that lie in the user's data folder."""
    return [name for name in KNOWN if _placed(name)]


def at_hand(name: str, online: bool = False) -> Tokenizer | None:
    """The published tokenizer of that name, None where it is neither here nor, if ``online``, on
    the hub."""
    folder = place(name, online)
    return None if folder is None else open(folder)


def place(name: str, online: bool = False) -> Path | None:
    """The folder of that published tokenizer, which is not opened; None where it cannot be had."""
    return _placed(name) or _hub(KNOWN[name].hub, online)


def _placed(name: str) -> Path | None:
    """The folder in the user's data, if it is there."""
    home = data_home()
    if home is not None and (home / f"tok-{name}").is_dir():
        return home / f"tok-{name}"
    return None


def _hub(name: str, online: bool = True) -> Path | None:
    """The folder with a hub model's tokenizer, from its cache where it is; None where it cannot be
    had."""
    import huggingface_hub
    from huggingface_hub import errors as hub

    for offline in (True, False) if online else (True,):
        try:
            folder = huggingface_hub.snapshot_download(
                name, allow_patterns=list(WANTED), local_files_only=offline, etag_timeout=10
            )
        except (
            hub.HfHubHTTPError,
            hub.LocalEntryNotFoundError,
            hub.HFValidationError,
            OSError,
            ValueError,
        ):
            continue
        if any(Path(folder).iterdir()):
            return Path(folder)
    return None
