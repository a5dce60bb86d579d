"""The command line: results on standard output, notes and progress on standard error, mistakes in one sentence."""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import __version__
from .errors import UserError, nearest
from .files import explain
from .parsing import Parser, settings

# Nothing else is imported up here: `glassformer --help` answers without torch.

MODEL = "a folder, a hub name or a recipe such as glass/1m"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for a user's mistake, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    try:
        given, rest = parser().parse_known_args(arguments)
        if rest and given.run is not train:
            hint = nearest(rest[0], [o for o in given.options if o.startswith("--")]) if rest[0].startswith("-") else ""
            raise UserError(f"{rest[0]} is not understood.{hint} See glassformer {given.command} --help.")
        given.rest = rest
        code: int = given.run(given) or 0
        if sys.stdout is not None:  # None where it was closed before we began
            sys.stdout.flush()
        return code
    except UserError as error:
        print(f"glassformer: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"glassformer: {explain(error, Path(error.filename or 'the output'))}", file=sys.stderr)
            return 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough, as with `| head`
        return 0
    except KeyboardInterrupt:
        print("\nglassformer: stopped.", file=sys.stderr)
        return 130


def parser() -> Parser:
    """Every command and its options."""
    top = Parser(
        prog="glassformer",
        description="The whole Transformer family, trained, run and looked into.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"glassformer {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    def command(name: str, run: Any, help: str, epilog: str | None = None) -> argparse.ArgumentParser:
        usage = "glassformer train [RUN.toml] --out DIR [--resume] [--NAME VALUE ...]" if name == "train" else None
        made = commands.add_parser(name, help=help, description=help, epilog=epilog, usage=usage, allow_abbrev=False)
        made.set_defaults(run=run, options=made._option_string_actions)
        return made

    one = command(
        "train",
        train,
        "Train a model as the run file RUN.toml says, or with the defaults.",
        "Any setting can be given as --NAME VALUE: --steps 500, --data.train FILE, --recipe glass/4m.",
    )
    one.add_argument("--out", required=True, metavar="DIR", help="where checkpoints, log and curves go")
    one.add_argument("--resume", action="store_true", help="go on from the last checkpoint in DIR")

    one = command("generate", generate, "Continue a text, token by token.")
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("prompt", nargs="*", metavar="PROMPT", help="one or several; - reads standard input; none: begin")
    one.add_argument("--max-new", type=int, default=256, metavar="N", help="at most N tokens (256)")
    one.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 takes the likeliest token (1)")
    one.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    one.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens with mass P")
    one.add_argument("--min-p", type=float, metavar="P", help="draw from tokens P times as likely as the likeliest")
    one.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: repeat less (1)")
    one.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated"
    )
    one.add_argument("--samples", type=int, default=1, metavar="N", help="N continuations of each prompt (1)")
    one.add_argument("--seed", type=int, metavar="S", help="the same seed gives the same text")
    one.add_argument("--dtype", metavar="D", help="float32, bfloat16 or float16 (the checkpoint's own)")
    one.add_argument("--json", action="store_true", help="tokens, log-probabilities and texts as JSON")

    one = command("eval", evaluate, "Loss, perplexity and bits per byte of a text; every token is counted once.")
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("--data", required=True, metavar="FILE", help="a file, a folder or a named corpus")
    one.add_argument("--field", default="text", metavar="NAME", help="the text field of JSONL (text)")
    one.add_argument(
        "--separator", type=unescaped, metavar="TEXT", help="what parts a plain file's documents (nothing)"
    )
    one.add_argument("--context", type=int, metavar="N", help="tokens a window holds (the model's context)")
    one.add_argument("--stride", type=int, metavar="N", help="how far windows move on (half of the context)")
    one.add_argument("--batch", type=int, default=8, metavar="N", help="windows at once (8)")
    one.add_argument("--json", action="store_true", help="the figures as JSON")

    one = command("look", look, "Any named value inside the model while it reads a text.")
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("text", metavar="TEXT", help="what the model reads")
    one.add_argument("pattern", nargs="*", metavar="PATTERN", help='names, as "*.pattern"; none lists every name')
    one.add_argument("--json", action="store_true", help="every number as JSON")

    one = command("recipes", recipes, "The families and their sizes.")
    one.add_argument("--json", action="store_true", help="as JSON")

    one = command("cost", cost, "Parameters, FLOPs and memory, from the config alone.")
    one.add_argument("name", metavar="NAME|RUN.toml", help="a recipe, a folder or a run file")
    one.add_argument("--batch", type=int, metavar="N", help="rows in a batch")
    one.add_argument("--context", type=int, metavar="N", help="tokens in a row (the model's context)")
    one.add_argument("--json", action="store_true", help="as JSON")

    one = command("data", data, "A corpus: what it holds and where it lies.")
    one.add_argument("name", nargs="?", metavar="NAME", help="a named corpus, a file or a folder; none lists the names")
    one.add_argument("--field", default="text", metavar="NAME", help="the text field of JSONL (text)")
    one.add_argument(
        "--separator", type=unescaped, metavar="TEXT", help="what parts a plain file's documents (nothing)"
    )
    one.add_argument("--json", action="store_true", help="as JSON")

    one = command("convert", convert, "Save a model in another layout: Hugging Face's or our own.")
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("folder", metavar="FOLDER", help="where to save it")
    one.add_argument("--layout", choices=["hf", "glassformer"], default="hf", help="hf opens in transformers (hf)")
    return top


def train(given: argparse.Namespace) -> int | None:
    """``glassformer train``."""
    from . import run as runs
    from .training import run

    if not given.out:
        raise UserError("--out is empty; name a folder.")
    named, changes = settings(given.rest)
    plan = runs.read(named, changes)
    words = [*called(), "train", *given.rest, "--out", given.out, "--resume"]
    ended = run(plan, Path(given.out), given.resume, sample=write_a_little, command=shlex.join(words))
    return 128 + ended.signal if ended.signal else None


def called() -> list[str]:
    """How this program is called again from here: by its name where the shell finds it, else by its path."""
    path = Path(sys.argv[0])
    if path.name != "glassformer":
        return [os.path.relpath(sys.executable), "-m", "glassformer"]
    found = shutil.which("glassformer")
    return ["glassformer" if found and Path(found).samefile(path) else os.path.relpath(path)]


def write_a_little(model: Any, tokenizer: Any) -> str:
    """What a model under training says when it is asked to begin."""
    from . import generation

    start = [tokenizer.bos if tokenizer.bos is not None else tokenizer.eos or 0]
    return generation.generate(model, tokenizer, [start], max_new=80, temperature=0.8, seed=1, eos=()).run().text


def generate(given: argparse.Namespace) -> None:
    """``glassformer generate``."""
    from . import generation

    prompts = [standard_input() if prompt == "-" else prompt for prompt in given.prompt] or [None]
    model, tokenizer = reader(given.model, given.dtype)
    told = generation.generate(
        model,
        tokenizer,
        prompts,
        max_new=given.max_new,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        min_p=given.min_p,
        repetition_penalty=given.repetition_penalty,
        stop=given.stop,
        samples=given.samples,
        seed=given.seed,
    )
    if given.json:
        emit(told.run().to_dict())
        return
    if len(prompts) == given.samples == 1:
        if sys.stderr.isatty():
            print(prompts[0] or "", end="", file=sys.stderr, flush=True)
        for step in told:
            print(step.text, end="", flush=True)
        print()
    else:
        for row in told.run().rows:
            print(f"[{row.number}] {prompts[row.number // given.samples] or ''}{row.text}\n")
    if given.temperature:
        note(f"seed {told.seed}")


def reader(name: str, dtype: str | None = None) -> tuple[Any, Any]:
    """A model and the tokenizer it needs to read text; UserError where it has none."""
    from . import store

    model, tokenizer = store.load(name, dtype=dtype)
    if tokenizer is None:
        raise UserError(f"{name} has no tokenizer, so text cannot be read; load a folder that has one.")
    return model, tokenizer


def standard_input() -> str:
    """All of standard input; UserError where it is no text."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not {error.encoding} text (byte {error.start}); convert it.") from None


def evaluate(given: argparse.Namespace) -> None:
    """``glassformer eval``."""
    from . import evaluation, text

    source = text.find(given.data, given.field, given.separator)
    for line in source.notes:
        note(line)
    model, tokenizer = reader(given.model)
    score = evaluation.score(
        model, tokenizer, source, context=given.context, stride=given.stride, batch=given.batch, progress=counting()
    )
    if given.json:
        emit(score.to_dict())
    else:
        rows(
            ("loss", f"{score.loss:.4f} nats per token"),
            ("perplexity", f"{score.perplexity:.4f}"),
            ("bits per byte", f"{score.bits_per_byte:.4f}"),
            ("tokens", f"{score.tokens:,}"),
            ("bytes", f"{score.bytes:,}"),
        )


def look(given: argparse.Namespace) -> None:
    """``glassformer look``."""
    from . import inspection, store

    if not given.pattern:
        print("\n".join(inspection.paths(store.load(given.model)[0])))
        return
    seen = inspection.look(*reader(given.model), given.text, *given.pattern)
    if given.json:
        emit(inspection.to_dict(seen))
    else:
        print("\n".join(inspection.describe(seen)))


def recipes(given: argparse.Namespace) -> None:
    """``glassformer recipes``."""
    from . import cost as costs
    from . import recipes as book

    pages = [(page, {size: costs.cost(config) for size, config in page.sizes.items()}) for page in book.all()]
    if given.json:
        emit(
            [
                {"name": f"{page.name}/{size}", "parameters": price.total, "dim": price.model.dim, "paper": page.paper}
                for page, sizes in pages
                for size, price in sizes.items()
            ]
        )
        return
    for page, sizes in pages:
        print(f"{page.name}: {page.paper}")
        for size, price in sizes.items():
            name, wide, long = f"{page.name}/{size}", price.model.dim, price.model.context
            print(f"  {name:18} {price.total:>16,} parameters {wide:>7,} wide {long:>8,} tokens of context")


def cost(given: argparse.Namespace) -> None:
    """``glassformer cost``."""
    from . import cost as costs
    from . import run as runs
    from . import store

    for name in ("batch", "context"):
        value = getattr(given, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}; give 1 or more.")
    batch, context = given.batch or 1, given.context
    if given.name.endswith(".toml"):
        from .training import planned

        plan = runs.read(given.name)
        config = planned(plan)
        batch, context = given.batch or plan.train.batch, context or plan.train.context
    else:
        found = store.resolve(given.name)
        config = store.read_config(found).config if isinstance(found, Path) else found
    price = costs.cost(config, batch, context)
    if given.json:
        emit(price.to_dict())
    else:
        width = max(len(name) for name, _ in price.table())
        print("\n".join(f"{name:{width}}  {value:>20}" for name, value in price.table()))


def data(given: argparse.Namespace) -> None:
    """``glassformer data``."""
    from . import text
    from .text import named

    if given.name is None:
        corpora = named.corpora()
        if given.json:
            emit([{"name": c.name, "what": c.what, "origin": c.origin, "licence": c.licence} for c in corpora])
        else:
            rows(*((c.name, f"{c.what} ({c.licence}, {c.origin})") for c in corpora))
        return
    source = text.find(given.name, given.field, given.separator)
    for line in source.notes:
        note(line)
    found = source.summary()
    if given.json:
        emit({name: str(v) if isinstance(v, Path) else v for name, v in vars(found).items()})
    else:
        pieces = f"{counted(found.documents, 'document')}, {counted(found.files, 'file')}"
        counts = f"{found.bytes:,} bytes of text in {pieces}"
        rows(("corpus", found.name), ("holds", counts), ("lies at", str(found.path)), ("from", found.origin))
        rows(("licence", found.licence))


def convert(given: argparse.Namespace) -> None:
    """``glassformer convert``."""
    from . import store

    model, tokenizer = store.load(given.model)
    store.save(model, given.folder, tokenizer, layout=given.layout)
    print(given.folder)


def counted(number: int, what: str) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def emit(value: Any) -> None:
    """A result as JSON."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def rows(*pairs: tuple[str, str]) -> None:
    """Names and values, one pair a line."""
    for name, value in pairs:
        print(f"{name:14} {value}")


def counting() -> Callable[[int], None] | None:
    """A count of tokens that runs in the terminal; None where standard error is no terminal."""
    if not sys.stderr.isatty():
        return None
    return lambda done: print(f"\r{done:,} tokens", end="\r", file=sys.stderr, flush=True)


def unescaped(text: str) -> str:
    """A text in which \\n is a new line."""
    return text.replace("\\n", "\n")


def note(line: str) -> None:
    """Something about the work, not its result."""
    print(line, file=sys.stderr)
