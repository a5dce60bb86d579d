"""A model's name resolved: to a folder here, the hub's files, or a recipe."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

from .. import families as recipes
from ..core import config, files
from ..core.errors import UserError, nearest

MODELS = Path(__file__).parents[1] / "models"  # small ones that the package holds
GGUF = ".gguf"  # the end of a file's name that llama.cpp opens
# from the hub
WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.model", "*.txt", "*.tiktoken")
HUB = {
    "bert": "google-bert/bert-base-uncased",
    "bert-base-cased": "google-bert/bert-base-cased",
    "bert-base-uncased": "google-bert/bert-base-uncased",
    "gemma": "google/gemma-2b",
    "gemma2": "google/gemma-2-2b",
    "gpt2": "openai-community/gpt2",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-xl": "openai-community/gpt2-xl",
    "llama": "meta-llama/Llama-3.2-1B",
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "mixtral": "mistralai/Mixtral-8x7B-v0.1",
    "phi": "microsoft/phi-2",
    "phi3": "microsoft/Phi-3-mini-4k-instruct",
    "qwen2": "Qwen/Qwen2.5-0.5B",
    "qwen3": "Qwen/Qwen3-0.6B",
    "starcoder2": "bigcode/starcoder2-3b",
    "t5": "google-t5/t5-small",
    "t5-base": "google-t5/t5-base",
    "t5-small": "google-t5/t5-small",
}
"""The published weights that a name alone means."""


def resolve(name: str | Path) -> Path | config.Model:
    """The folder (or .gguf file) that a path, run folder, shipped model or hub name leads to, or the
    config of a recipe."""
    text, path = str(name), Path(name).expanduser()
    if not text:
        raise UserError(
            "The model's name is empty; give a model's folder, a hub name such as "
            "org/name or a recipe."
        )
    with contextlib.suppress(OSError):  # a text too long for a path is none
        if path.is_dir():
            return checkpoint_folder(path)
        if path.is_file():
            if path.suffix == GGUF:
                return path
            if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
                line = f"glassformer convert --from nanogpt {shlex.quote(text)} --out NEW_FOLDER"
                raise UserError(
                    f"{path} is a file of another library; make a folder of it: {line} (or "
                    "mingpt, hf ...)."
                )
            raise UserError(
                f"{path} is a file; give the folder that holds it and its "
                "config.json, or a .gguf file."
            )
    if (
        isinstance(name, Path)
        or text.startswith(("/", ".", "~"))
        or not re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", text)
    ):
        raise UserError(
            f"There is no folder {text[:200]}; give a model's folder, a hub name such as "
            "org/name or a recipe."
            f"{files.nearest_path(path)}"
        )
    if is_recipe(text):
        return recipes.find(text)
    if (MODELS / text / "config.json").is_file():
        return MODELS / text
    return _download(text)


def is_recipe(name: str) -> bool:
    """True where a name is a recipe's: a shape, which has no weights."""
    return (
        "/" in name
        and name.lower().partition("/")[0] in recipes.RECIPES
        and not Path(name).is_dir()
    )


def checkpoint_folder(folder: Path) -> Path:
    """The checkpoint that a run folder's ``best`` or ``last`` names; any other folder as it is."""
    if (folder / "config.json").exists():
        return folder
    for pointer in (folder / "best", folder / "last"):
        if pointer.is_file():
            name = pointer.read_text(errors="replace").strip()
            target = folder / name
            if not name or target.resolve().parent != folder.resolve() or not target.is_dir():
                raise UserError(
                    f'{pointer} names "{name[:80]}", which is not a folder in {folder}; name one '
                    "that is there."
                )
            return target
    return folder


def checkpoint_note(name: str | Path) -> str | None:
    """Which checkpoint of the run folder at ``name`` is meant, in words; None where it is not a run
    folder."""
    with contextlib.suppress(OSError):
        folder = Path(name).expanduser()
        if folder.is_dir() and (checkpoint := checkpoint_folder(folder)) != folder:
            best = (folder / "best").is_file()
            return (
                f"Checkpoint {checkpoint.name} of {folder}, "
                f"{'the best by validation loss' if best else 'the last'}."
            )
    return None


def _download(name: str) -> Path:
    """The hub's files of a model, from its cache where they are; a name alone means the one in
    HUB."""
    import huggingface_hub
    from huggingface_hub import errors as hub

    suggestion = nearest(name, recipes.names())
    hint = (
        (suggestion if "mean" in suggestion else files.nearest_path(Path(name)))
        if name not in HUB
        else ""
    )
    full = HUB.get(name, name)
    description = name if full == name else f"{name} means {full} on the hub, which"
    if full != name:
        # a cache from when the hub had it by its short name
        with contextlib.suppress(hub.LocalEntryNotFoundError):
            return Path(
                huggingface_hub.snapshot_download(
                    name, allow_patterns=list(WANTED), local_files_only=True
                )
            )
    try:
        return Path(huggingface_hub.snapshot_download(full, allow_patterns=list(WANTED)))
    except hub.GatedRepoError:
        raise UserError(
            f"{description} is gated; accept its terms on the hub, then log in with `hf auth login`."
        ) from None
    except (hub.RepositoryNotFoundError, hub.HFValidationError):
        raise UserError(
            f"There is no folder, recipe or hub model called {full}; check the spelling.{hint}"
        ) from None
    except hub.HfHubHTTPError as error:
        answer = str(error).strip().split("\n")[0][:160]
        raise UserError(
            f"{description} cannot be downloaded ({answer}); try again later, or give a folder."
        ) from None
    except (hub.LocalEntryNotFoundError, ConnectionError):
        raise UserError(
            f"{description} is not a folder here and not in the hub's cache, and the hub cannot be "
            "reached; "
            f"go online once, or give a folder or a recipe.{hint}"
        ) from None
    except OSError as error:
        raise files.explain(error, Path(huggingface_hub.constants.HF_HUB_CACHE)) from None
