"""A model to the Hugging Face hub, with a card that says what it is and how to open it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import files
from ..core.errors import UserError
from ..core.nn import Model
from . import store

if TYPE_CHECKING:
    from ..core.tokenizer import Tokenizer


def push(
    model: Model,
    name: str,
    tokenizer: Tokenizer | None = None,
    *,
    layout: store.Layout | None = None,
    private: bool = False,
) -> str:
    """Saves a model to a repository on the Hugging Face hub, with a model card.

    The hub's address and its token are those of ``huggingface_hub`` (HF_ENDPOINT, ``hf auth
    login``). A repository that is there gets a new commit.

    Args:
        model: The model.
        name: The repository, such as "me/my-model".
        tokenizer: The tokenizer to save with it.
        layout: As in ``save``.
        private: Whether a new repository is private.

    Returns:
        The address of the repository.

    Raises:
        UserError: The hub cannot be reached or refuses, or the layout does not hold the model.

    Example:
        >>> glassformer.push(model, "me/my-model", tokenizer)
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    with tempfile.TemporaryDirectory(prefix="glassformer-") as folder:
        store.save(model, folder, tokenizer, layout)
        files.write(Path(folder) / "README.md", card(model, name, Path(folder)).encode())
        hub = huggingface_hub.HfApi(library_name="glassformer")
        try:
            address = hub.create_repo(name, private=private, exist_ok=True)
            hub.upload_folder(
                repo_id=address.repo_id,
                folder_path=folder,
                commit_message="Upload a model of glassformer",
            )
        except (HFValidationError, LocalTokenNotFoundError, HfHubHTTPError) as error:
            answer = str(error).strip().split("\n")[0]
            raise UserError(
                f"The hub does not take {name} ({answer}); log in with `hf auth login` to an "
                "account that may write there."
            ) from None
        except Exception as error:  # each release of huggingface_hub has another HTTP library
            raise UserError(
                f"The hub gave no answer ({type(error).__name__}: {error}); go online, or check "
                "HF_ENDPOINT."
            ) from error
    return str(address)


def card(model: Model, name: str, folder: Path) -> str:
    """The model card: its shape and its size, and how each library opens it."""
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    published, cfg = raw.get("architectures"), model.config
    parameters = sum(weight.numel() for weight in model.parameters())
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    shape = f"{type(cfg).__name__}, {cfg.dim} wide, {cfg.context:,} tokens of context"
    lines = [
        "---",
        f"library_name: {'transformers' if published else 'glassformer'}",
        "tags: [glassformer]",
        "---",
        f"# {name.rpartition('/')[2]}",
        "",
        f"{shape}: {parameters:,} parameters in {dtype}.",
        "",
        "```python",
        "import glassformer",
        "",
        f'model, tokenizer = glassformer.load("{name}")',
        "```",
    ]
    if published:
        lines += ["", f"`transformers` opens it as {published[0]}."]
    if model.labels:
        lines += ["", f"Labels: {', '.join(model.labels)}."]
    return "\n".join([*lines, ""])
