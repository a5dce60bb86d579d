"""Tokenizers by name: the published ones people compare, in the user's data folder or the hub's cache."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .. import files
from ..errors import UserError, nearest
from .formats import open
from .tokenizer import Tokenizer

WANTED = ("tokenizer*", "*.model", "vocab.*", "merges.txt", "added_tokens.json", "*.tiktoken")  # from the hub


@dataclass(frozen=True)
class Known:
    """A published tokenizer: its folder under ``GLASSFORMER_DATA``, its name on the hub, what is said of its size."""

    folder: str
    hub: str
    what: str
    size: int
    counted: str


KNOWN = {
    "gpt2": Known("tok-gpt2", "openai-community/gpt2", "GPT-2", 50_257, "256 bytes, 50,000 merges, 1 special"),
    "cl100k": Known(
        "tok-cl100k",
        "Xenova/gpt-4",
        "GPT-4 (cl100k_base)",
        100_263,
        "100,256 ranks and 7 special tokens; tiktoken's own 5 make 100,261",
    ),
    "llama3": Known(
        "tok-llama3", "meta-llama/Meta-Llama-3-8B", "Llama 3", 128_256, "128,000 ranks and 256 special tokens"
    ),
    "llama2": Known("tok-llama2", "meta-llama/Llama-2-7b-hf", "Llama 2", 32_000, "3 special tokens among them"),
    "bert-cased": Known(
        "tok-bert-cased", "google-bert/bert-base-cased", "BERT cased", 28_996, "5 special tokens among them"
    ),
    "bert-uncased": Known(
        "tok-bert-uncased", "google-bert/bert-base-uncased", "BERT uncased", 30_522, "5 special tokens among them"
    ),
    "t5": Known(
        "tok-t5", "google/flan-t5-base", "T5 and Flan-T5", 32_100, "32,000 pieces and 100 sentinels, all special"
    ),
    "phi3": Known(
        "tok-phi3", "microsoft/Phi-3-mini-4k-instruct", "Phi-3", 32_011, "Llama 2's 32,000 entries and 11 added"
    ),
    "starcoder": Known(
        "tok-starcoder", "bigcode/starcoder2-3b", "StarCoder", 49_152, "38 special tokens among them (StarCoder 2's)"
    ),
    "qwen": Known(
        "tok-qwen",
        "Qwen/Qwen2-1.5B",
        "Qwen2",
        151_657,
        "151,643 ranks and the 14 special tokens of Qwen2-VL; Qwen2's own 3 make 151,646",
    ),
}


def find(name: str | Path) -> Tokenizer:
    """The tokenizer of that name, or at that path, or of a model on the hub.

    A name goes before a path of the same name (write ./gpt2 for the folder). A named one is looked for under
    ``GLASSFORMER_DATA``, then in the hub's cache, then on the hub. Raises UserError.
    """
    text = str(name)
    if text in KNOWN and not isinstance(name, Path):
        return _known(text, KNOWN[text])
    path = Path(name).expanduser()
    if files.standing(path) is not None:
        return open(path)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) or files.standing(path.parent) is not None:
        hint = nearest(text, KNOWN)
        known = hint if "mean" in hint else f" Known: {', '.join(KNOWN)}."
        raise UserError(f'There is no tokenizer "{text}"; give a name, a file or a folder.{known}')
    folder = _hub(text)
    if folder is None:
        raise UserError(
            f"{text} is neither a file nor a folder here, not in the hub's cache and not given by the hub; give a path."
        )
    return open(folder)


def here() -> list[str]:
    """The names that lie in the user's data folder."""
    home = files.data_home()
    return [] if home is None else [name for name, known in KNOWN.items() if (home / known.folder).is_dir()]


def at_hand(name: str) -> Tokenizer | None:
    """The published tokenizer of that name where no network is needed for it, else None."""
    known = KNOWN[name]
    folder = _placed(known) or _hub(known.hub, online=False)
    return None if folder is None else open(folder)


def _known(name: str, known: Known) -> Tokenizer:
    folder = _placed(known) or _hub(known.hub)
    if folder is None:
        raise UserError(
            f"{name} ({known.what}) is not here and cannot be downloaded; set GLASSFORMER_DATA to a folder "
            f"that has {known.folder} in it, or give the path of a tokenizer."
        )
    return open(folder)


def _placed(known: Known) -> Path | None:
    home = files.data_home()
    return home / known.folder if home is not None and (home / known.folder).is_dir() else None


def _hub(name: str, online: bool = True) -> Path | None:
    """The folder with a hub model's tokenizer, from its cache where it is; None where it cannot be had."""
    import huggingface_hub
    from huggingface_hub import errors as hub

    for offline in (True, False) if online else (True,):
        try:
            folder = huggingface_hub.snapshot_download(
                name, allow_patterns=list(WANTED), local_files_only=offline, etag_timeout=10
            )
        except (hub.HfHubHTTPError, hub.LocalEntryNotFoundError, hub.HFValidationError, OSError, ValueError):
            continue
        if any(Path(folder).iterdir()):
            return Path(folder)
    return None
