"""``glassformer convert``: save a model in another layout: Hugging Face's or our own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ..core.errors import UserError, need, note
from .common import new_file, new_folder
from .options import note_untrained
from .parsing import Words

EXAMPLES = (
    "glassformer convert tiny-stories --out published --layout hf",
    "glassformer convert tiny-stories --layout gguf --numbers Q8_0 --out stories.gguf",
    "glassformer convert --from nanogpt out/ckpt.pt --out out/nanogpt --tokenizer gpt2",
)
# GPT-2's sizes, one rounded up
GPT2 = {"nanogpt": (50_257, 50_304), "mingpt": (50_257,), "transformerlens": (50_257,)}
# the tokenizer of nanoGPT's and minGPT's characters: sorted, from 0, and nothing else
LETTERS = (
    'python -c "from glassformer.core.tokenizer import train; '
    "train('char', [open('input.txt').read()], specials=[]).save('letters')\" "
    "makes the folder letters of input.txt."
)
SMALL = 512  # entries: a smaller vocabulary is of characters


def run(
    model: str,
    folder: str | None = None,
    *,
    out: str | None = None,
    layout: Literal["hf", "glassformer", "gguf"] | None = None,
    numbers: str | None = None,
    from_: Literal["nanogpt", "mingpt", "nanochat", "transformerlens", "hf", "gguf"] | None = None,
    config: Path | None = None,
    tokenizer: str | None = None,
    context: int | None = None,
    add_tokens: list[str] | None = None,
    push: str | None = None,
    use: Words = (),
) -> None:
    """Saves a model in another layout.

    folder FOLDER: the same as --out
    out FOLDER: where to save it
    layout: hf for transformers, gguf (a file, --out NAME.gguf) for llama.cpp (hf if possible)
    numbers K: number format of a gguf file: F32, F16, BF16, Q8_0 or Q4_0 (F16; codes stay)
    from_: the library that saved the file MODEL
    config FILE: with --from: a JSON file with the settings that the weights lack
    tokenizer NAME: the tokenizer to save with it: a name such as gpt2, a file or a folder
    context N: the model's new context, in tokens
    add_tokens TOKEN: new special tokens, such as those of a chat template; their vectors begin as
        the mean of the others
    push NAME: upload it to this repository of the Hugging Face hub, such as me/my-model
    """
    if push is not None:
        from ..formats import hub, store

        need(
            not (out or folder or from_) and layout != "gguf",
            "--push uploads a model folder to the hub; leave --out and --from out.",
        )
        net, its_tokenizer = store.load(model, context=context)
        print(hub.push(net, push, its_tokenizer, layout=layout))  # type: ignore[arg-type]  # no GGUF
        return
    target = out or folder
    if target is None:
        raise UserError("Say where the model goes: --out FOLDER, or --push NAME.")
    convert(
        model,
        target,
        layout=layout,
        numbers=numbers,
        library=from_,
        config=config,
        tokenizer=tokenizer,
        context=context,
        add_tokens=add_tokens or (),
    )
    print(target)


def convert(
    model: str,
    out: str,
    *,
    layout: Literal["hf", "glassformer", "gguf"] | None = None,
    numbers: str | None = None,
    library: Literal["nanogpt", "mingpt", "nanochat", "transformerlens", "hf", "gguf"]
    | None = None,
    config: Path | None = None,
    tokenizer: str | None = None,
    context: int | None = None,
    add_tokens: Sequence[str] = (),
) -> None:
    """Saves a model in another layout, or another library's file as a model.

    Args:
        model: A folder, a hub name, or with ``library`` a file.
        out: The folder to write; with ``layout="gguf"`` the file.
        layout: ``hf`` opens in transformers, ``gguf`` in llama.cpp. None is ``hf`` where that can
            hold the model.
        numbers: Of a GGUF file: F32, F16, BF16, Q8_0 or Q4_0.
        library: The library that saved the file.
        config: A JSON file with what the weights of such a file do not say.
        tokenizer: The tokenizer to save with it: a name such as gpt2, a file or a folder.
        context: Tokens it is to read, in place of its own number.
        add_tokens: New special tokens; their vectors begin as the mean of the others.

    Raises:
        UserError: The layout cannot hold the model, or a file cannot be read or written.

    Example:
        >>> glassformer.convert("out/mine", "out/mine.gguf", layout="gguf", numbers="Q8_0")
    """
    from ..fast.quantized import quantized
    from ..formats import gguf, pretrained, store, torch_files
    from ..formats.checkpoint import Checkpoint

    to_gguf = layout == "gguf"
    need(numbers is None or to_gguf, "--numbers goes with --layout gguf.")
    need(
        library != "gguf" or (model.endswith(".gguf") and Path(model).is_file()),
        f"{model} is not a .gguf file; give one.",
    )
    library = None if library == "gguf" else library
    need(
        not to_gguf or (library is None and config is None),
        "--layout gguf needs a model folder; convert the file to a folder first.",
    )
    need(
        not to_gguf or out.endswith(".gguf"),
        f"A GGUF model is one file: --out {out}.gguf.",
    )
    path = new_file(out, model) if to_gguf else new_folder(out)
    need(config is None or library is not None, "--config goes with --from.")
    need(
        context is None or library is None,
        "--context needs a model folder; convert the file to a folder first.",
    )
    need(
        not add_tokens or library is None,
        "--add-tokens needs a model folder; convert the file to a folder first.",
    )
    # opened before a large model is
    named_tokenizer = None if tokenizer is None else pretrained.find(tokenizer)
    if library is not None:
        net = torch_files.load(library, Path(model), config)
        _check_vocabulary(named_tokenizer, tokenizer, net)
        fitting = named_tokenizer or _default_tokenizer(library, Path(model), net, out)
        store.save(net, path, fitting, layout=layout)  # type: ignore[arg-type]  # no GGUF here
        return
    opened = Checkpoint.open(model, context)
    note_untrained(model)
    net = opened.model()
    _check_vocabulary(named_tokenizer, tokenizer, net)
    fitting = named_tokenizer or opened.tokenizer()
    if add_tokens:
        from ..formats.added_tokens import add_tokens as grow

        need(fitting is not None, f"{model} has no tokenizer to add tokens to; name one.")
        assert fitting is not None
        net, fitting = grow(net, fitting, add_tokens)
    if to_gguf:
        if fitting is None:
            note(
                "This model has no tokenizer, so llama.cpp will accept only ids; --tokenizer "
                "NAME adds one."
            )
        numbers = (numbers or "F16").upper()
        tensor_counts = gguf.save(
            net, path, numbers, fitting, _gguf_name(model, opened)
        ).most_common()
        tensors = ", ".join(f"{count} of {kind}" for kind, count in tensor_counts)
        note(f"Number formats of the tensors: {tensors}.")
    else:
        folder_layout: Any = layout or (None if quantized(net) else "hf")
        store.save(
            net,
            path,
            fitting,
            layout=folder_layout,
            source_tokenizer=opened.source_tokenizer(),
        )


def _gguf_name(model: str, opened: Any) -> str:
    """Returns the name of the model in a GGUF file: the folder's name (of a checkpoint the run's
    too), or the hub's or recipe's."""
    from ..formats import gguf

    if opened.is_gguf:
        return gguf.name(opened.folder)
    folder = Path(model).expanduser()
    path = folder.resolve() if folder.is_dir() else folder
    if path.name.startswith("step-"):
        return f"{path.parent.name}-{path.name}"
    return path.name


def _check_vocabulary(tokenizer: Any, name: str | None, model: Any) -> None:
    """UserError where the model has no rows for all tokens of the tokenizer."""
    rows = model.config.embed.vocab
    if tokenizer is not None and tokenizer.size > rows:
        letters = f", for a model of characters without a special token: {LETTERS}"
        raise UserError(
            f"{name} has {tokenizer.size} tokens, the model only {rows}; give the "
            f"model's own tokenizer{letters if rows < SMALL else '.'}"
        )


def _default_tokenizer(kind: str, path: Path, model: Any, out: str) -> Any:
    """The tokenizer beside a published file, or GPT-2's for its size; what was found or is missing
    is said."""
    from ..formats import pretrained
    from ..formats.checkpoint import open_tokenizer

    rows = model.config.embed.vocab
    like_gpt2 = rows in GPT2.get(kind, ())
    tokenizer = open_tokenizer(path.parent) if kind == "hf" else None
    if tokenizer is None and like_gpt2:
        tokenizer = pretrained.at_hand("gpt2")
        if tokenizer is not None:
            note(
                f"The vocabulary of {rows:,} is GPT-2's, so its tokenizer is saved too; "
                "--tokenizer names another."
            )
    if tokenizer is None:
        usual = "gpt2" if like_gpt2 else "NAME"
        letters = f"; a model of characters has that of its own text: {LETTERS}"
        note(
            f"This model has no tokenizer: glassformer convert {shlex.quote(out)} "
            f"--tokenizer {usual} --out NEW_FOLDER adds "
            f"one{letters if rows < SMALL else '.'}"
        )
    return tokenizer
