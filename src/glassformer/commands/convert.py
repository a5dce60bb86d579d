"""``glassformer convert``: save a model in another layout: Hugging Face's or our own."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..errors import UserError, need, note
from .common import MODEL_HELP, add_use_option, new_file, new_folder, note_untrained

KINDS = ("nanogpt", "mingpt", "nanochat", "transformerlens", "hf", "gguf")
EXAMPLES = (
    "glassformer convert out/mine --out published --layout hf",
    "glassformer convert out/mine --layout gguf --numbers Q8_0 --out mine.gguf",
    "glassformer convert --from nanogpt out/ckpt.pt --out out/nanogpt --tokenizer gpt2",
)
# GPT-2's sizes, one rounded up
GPT2 = {"nanogpt": (50_257, 50_304), "mingpt": (50_257,), "transformerlens": (50_257,)}
LETTERS = "from glassformer.tokenizer import train; "
LETTERS += "train('char', [open('input.txt').read()], specials=[]).save('letters')"
SMALL = 512  # entries: a smaller vocabulary is of characters


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL_HELP)
    add("folder", nargs="?", help=argparse.SUPPRESS)
    add("--out", metavar="FOLDER", help="where to save it")
    help = "hf opens in transformers, gguf (a file, --out NAME.gguf) in llama.cpp (hf where it can)"
    add("--layout", choices=["hf", "glassformer", "gguf"], help=help)
    add(
        "--numbers",
        metavar="K",
        help="of a gguf file: F32, F16, BF16, Q8_0 or Q4_0 (F16; codes stay as they are)",
    )
    add("--from", dest="kind", choices=KINDS, help="MODEL is a file that this library saved")
    add("--config", metavar="FILE", help="with --from: JSON that says what its weights do not")
    help = "the tokenizer to save with it: a name such as gpt2, a file or a folder"
    add("--tokenizer", metavar="NAME", help=help)
    add("--context", type=int, metavar="N", help="tokens it is to read, in place of its own number")
    add_use_option(parser)


def run(args: argparse.Namespace) -> None:
    from ..checkpoints import Checkpoint, store, torch_files
    from ..nn.quantized import quantized

    out = args.out or args.folder
    need(out is not None, "Say where the model goes: --out FOLDER.")
    need(args.numbers is None or args.layout == "gguf", "--numbers goes with --layout gguf.")
    if args.kind == "gguf":
        need(
            args.model.endswith(".gguf") and Path(args.model).is_file(),
            f"{args.model} is no .gguf file; name one.",
        )
        args.kind = None
    if args.layout == "gguf":
        _to_gguf(args, out)
        return
    folder = new_folder(out)
    if args.kind is not None:
        need(
            args.context is None,
            "--context is for a model that is a folder; convert the file first.",
        )
        named_tokenizer, path = _open_tokenizer(args.tokenizer), Path(args.model)
        model = torch_files.load(args.kind, path, Path(args.config) if args.config else None)
        tokenizer = _check_vocabulary(named_tokenizer, args.tokenizer, model) or _default_tokenizer(
            args.kind, path, model, out
        )
        store.save(model, folder, tokenizer, layout=args.layout)
    else:
        need(args.config is None, "--config goes with --from.")
        named_tokenizer = _open_tokenizer(args.tokenizer)
        opened = Checkpoint.open(args.model, args.context)
        model = opened.model()
        tokenizer = _check_vocabulary(named_tokenizer, args.tokenizer, model) or opened.tokenizer()
        note_untrained(args.model)
        reads = opened.source_tokenizer()
        layout: Any = args.layout or (None if quantized(model) else "hf")
        store.save(
            model, folder, tokenizer, layout=layout, labels=opened.labels, source_tokenizer=reads
        )
    print(out)


def _to_gguf(args: argparse.Namespace, out: str) -> None:
    """A file for llama.cpp."""
    from ..checkpoints import Checkpoint, gguf

    need(
        args.kind is None and args.config is None,
        "--layout gguf writes a model that is a folder; convert it first.",
    )
    need(out.endswith(".gguf"), f"A GGUF model is one file: --out {out}.gguf.")
    path = new_file(out, args.model)
    opened = Checkpoint.open(args.model, args.context)
    note_untrained(args.model)
    model = opened.model()
    tokenizer = (
        _check_vocabulary(_open_tokenizer(args.tokenizer), args.tokenizer, model)
        or opened.tokenizer()
    )
    if tokenizer is None:
        note(
            "This model has no tokenizer, so llama.cpp will read ids alone; --tokenizer NAME "
            "adds one."
        )
    tensor_counts = gguf.save(
        model, path, (args.numbers or "F16").upper(), tokenizer, _gguf_name(args.model, opened)
    )
    note(
        "Tensors by their numbers: "
        f"{', '.join(f'{count} of {kind}' for kind, count in tensor_counts.most_common())}."
    )
    print(out)


def _gguf_name(model: str, opened: Any) -> str:
    """Returns the name of the model in a GGUF file: the folder's name (of a checkpoint the run's
    too), or the hub's or recipe's."""
    from ..checkpoints import gguf

    if opened.gguf:
        return gguf.name(opened.folder)
    folder = Path(model).expanduser()
    path = folder.resolve() if folder.is_dir() else folder
    return f"{path.parent.name}-{path.name}" if path.name.startswith("step-") else path.name


def _open_tokenizer(name: str | None) -> Any:
    """The tokenizer asked for, opened before a large model is; None where none is."""
    from ..tokenizer import pretrained

    return None if name is None else pretrained.find(name)


def _check_vocabulary(tokenizer: Any, name: str, model: Any) -> Any:
    """The tokenizer; UserError where the model has no rows for all its tokens."""
    rows = model.config.embed.vocab
    if tokenizer is not None and tokenizer.size > rows:
        letters = (
            f", for a model of characters without a special token: {_letters_command()}"
            if rows < SMALL
            else "."
        )
        raise UserError(
            f"{name} has {tokenizer.size} tokens, the model only {rows}; give the "
            f"one it has{letters}"
        )
    return tokenizer


def _default_tokenizer(kind: str, path: Path, model: Any, out: str) -> Any:
    """The tokenizer beside a published file, or GPT-2's for its size; what was found or is missing
    is said."""
    from ..checkpoints.checkpoint import open_tokenizer
    from ..tokenizer import pretrained

    rows = model.config.embed.vocab
    tokenizer = open_tokenizer(path.parent) if kind == "hf" else None
    if tokenizer is None and rows in GPT2.get(kind, ()):
        tokenizer = pretrained.at_hand("gpt2")
        if tokenizer is not None:
            note(
                f"The vocabulary of {rows:,} is GPT-2's, so its tokenizer is saved too; "
                "--tokenizer names another."
            )
    if tokenizer is None:
        usual = "gpt2" if rows in GPT2.get(kind, ()) else "NAME"
        fix = (
            f"glassformer convert {shlex.quote(out)} --tokenizer {usual} --out NEW_FOLDER adds one"
        )
        more = (
            f"; a model of characters has that of its own text: {_letters_command()}"
            if rows < SMALL
            else "."
        )
        note(f"This model has no tokenizer: {fix}{more}")
    return tokenizer


def _letters_command() -> str:
    """Returns the command that makes the tokenizer of nanoGPT's and minGPT's characters: sorted,
    from 0, and nothing else."""
    return f'python -c "{LETTERS}" makes the folder letters of input.txt.'
