"""``glassformer generate``: continue a text, token by token."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, need, note
from ..tokenizer.labels import pieces, shown
from .common import (
    MODEL_HELP,
    add_device_options,
    add_edit_option,
    add_prompts_option,
    count_noun,
    engine_device,
    load_model_and_tokenizer,
    new_file,
    parse_edits,
    print_json,
    progress_counter,
    texts,
)

if TYPE_CHECKING:
    from ..generation.session import Reader

EXAMPLES = (
    'glassformer generate out/mine "Once upon a time" --max-new 100',
    "glassformer generate out/mine --prompts prompts.txt --temperature 0 --json",
    "glassformer generate out/mine --prompts many.jsonl --out answers.jsonl --seed 1",
    "torchrun --nproc-per-node 4 -m glassformer generate out/mine --prompts long.txt",
)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL_HELP)
    add(
        "prompt",
        nargs="*",
        metavar="PROMPT",
        help="one or several; - is standard input; none: begin",
    )
    add_prompts_option(parser)
    add("--batch", type=int, default=32, metavar="N", help="prompts at once (32)")
    add("--max-new", type=int, default=256, metavar="N", help="at most N tokens (256)")
    add(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="0 takes the likeliest token (1)",
    )
    add("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    add("--top-p", type=float, metavar="P", help="draw from the likeliest tokens with mass P")
    add(
        "--min-p",
        type=float,
        metavar="P",
        help="draw from tokens P times as likely as the likeliest",
    )
    add(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="R",
        help="above 1: repeat less (1)",
    )
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be repeated",
    )
    add("--slide", action="store_true", help="go on past the context, reading its last half again")
    add("--samples", type=int, default=1, metavar="N", help="N continuations of each prompt (1)")
    add("--seed", type=int, metavar="S", help="the same seed gives the same text")
    add(
        "--next", type=int, metavar="N", help="only show the N likeliest next tokens of each prompt"
    )
    add(
        "--logprobs",
        type=int,
        default=0,
        metavar="N",
        help="with each token the N likeliest in its place",
    )
    add_edit_option(parser)
    add_device_options(parser)
    add("--json", action="store_true", help="tokens, log-probabilities and texts as JSON")
    add(
        "--out",
        metavar="FILE.jsonl",
        help="a JSON line for each continuation; stopped, it goes on where it was",
    )


@contextlib.contextmanager
def prompt_reader(args: argparse.Namespace) -> Iterator[Reader | None]:
    """Yields the function that prefills prompts over all processes of torchrun, None for one
    process; the first process alone decodes."""
    from ..config.parallel import Parallel
    from ..parallel.mesh import processes, started
    from ..parallel.prefill import prefill
    from ..parallel.ring import Ring

    if processes() == 1:
        yield None
        return
    need(args.out is None, "--out is for one process; leave out torchrun.")
    with contextlib.ExitStack() as opened:
        mesh = opened.enter_context(started(Parallel(data=1, context=processes()), args.device))
        ring = Ring(mesh.group("context"))
        if not mesh.is_first:
            args.max_new, nowhere = (
                1,
                opened.enter_context(Path(os.devnull).open("w", encoding="utf-8")),
            )
            opened.enter_context(contextlib.redirect_stdout(nowhere))
            opened.enter_context(contextlib.redirect_stderr(nowhere))
        try:
            yield lambda model, tokens, pos: prefill(model, tokens, pos, ring, keep=mesh.is_first)
        except UserError:  # everybody's: the first one says it
            if mesh.is_first:
                raise
            raise SystemExit(2) from None


def run(args: argparse.Namespace) -> None:
    with prompt_reader(args) as reader:
        generate_texts(args, reader)


def generate_texts(args: argparse.Namespace, reader: Reader | None) -> None:
    """Continue the prompts, which ``reader`` reads if there is one."""
    from .. import config, generation

    need(args.batch > 0, f"--batch is {args.batch}; give 1 or more.")
    need(args.logprobs >= 0, f"--logprobs is {args.logprobs}; give 0 or more.")
    need(args.next is None or args.next > 0, f"--next is {args.next}; give 1 or more.")
    sampling = generation.Sampling(
        args.temperature, args.top_k, args.top_p, args.min_p, args.repetition_penalty
    )
    samples = args.samples if args.next is None else 1
    generation.check_settings(sampling, args.max_new, samples, args.stop)
    edits = parse_edits(args)
    prompts: list[str | None] = [*texts(args, args.prompt)] or [None]
    if args.out is not None:
        args.device = engine_device(args)
    model, tokenizer = load_model_and_tokenizer(args)
    if args.out is not None:
        return generate_to_file(args, model, tokenizer, prompts, sampling)
    groups = [prompts[start : start + args.batch] for start in range(0, len(prompts), args.batch)]
    seed, rows = args.seed, []
    for group in groups:
        output = generation.generate(
            model,
            tokenizer,
            group,
            max_new=args.max_new if args.next is None else 1,
            **vars(sampling),
            stop=args.stop,
            samples=samples,
            seed=seed,
            slide=args.slide,
            likely=args.next or args.logprobs,
            edits=edits,
            reader=reader,
        )
        seed = output.seed
        if len(prompts) == args.samples == 1 and not (args.json or args.next or args.logprobs):
            if sys.stderr.isatty():
                print(prompts[0] or "", end="", file=sys.stderr, flush=True)
            for step in output:
                print(step.text, end="", flush=True)
            print()
        rows += output.run().rows
    if args.json:
        print_json({"seed": seed, "rows": [as_json(row, tokenizer, args.next) for row in rows]})
    elif args.next or args.logprobs:
        samples_each = len(rows) // len(prompts)
        for number, row in enumerate(rows):
            print(prompts[number // samples_each] or "")
            for token, likely in zip(row.tokens, row.likely, strict=True):
                if args.logprobs:
                    print(f"  {shown(tokenizer, [token])[0]}")
                words = shown(tokenizer, [id for id, _ in likely])
                print(
                    "\n".join(
                        f"  {math.exp(p):8.4f}  {word}"
                        for (_, p), word in zip(likely, words, strict=True)
                    )
                )
    elif len(rows) > 1:
        for number, row in enumerate(rows):
            print(f"[{number}] {prompts[number // args.samples] or ''}{row.text}\n")
    if any(row.finish == "context" for row in rows) and args.next is None:
        most, slides = model.config.context, isinstance(model.config, config.Decoder)
        hint = f"; --slide goes on, reading the last {most // 2} again" if slides else ""
        note(f"Ended at the model's context of {most} tokens{hint}.")
    if args.temperature and not args.json and args.next is None:
        note(f"seed {seed}")


def generate_to_file(
    args: argparse.Namespace, model: Any, tokenizer: Any, prompts: list[str | None], sampling: Any
) -> None:
    """Continuations of many prompts by the engine, as many at once as memory holds, into a file
    that appears whole."""
    import hashlib

    from .. import engine
    from ..engine.batch import answer_into
    from ..generation.prompt import starts_and_sources

    for name in ("slide", "next", "edit"):
        need(not getattr(args, name), f"--{name} does not go with --out; leave one of them out.")
    out = new_file(args.out, args.prompts)
    starts, sources = starts_and_sources(prompts, tokenizer, None, model.config, None, None)
    settings = {
        "max_new": args.max_new,
        "stop": args.stop,
        "samples": args.samples,
        **vars(sampling),
    }
    digest = hashlib.sha256(json.dumps([starts, sources]).encode()).hexdigest()
    job = {
        "model": args.model,
        **settings,
        "logprobs": args.logprobs,
        "prompts": digest,
        **_model_fingerprint(model, tokenizer),
    }
    seed = _resumed_seed(out) if args.seed is None else args.seed
    common_options, equals, requests = (
        {"sampling": sampling, "seed": seed, "max_new": args.max_new},
        Counter[tuple[int, ...]](),
        [],
    )
    for number, start in enumerate(starts):
        source = None if sources is None else sources[number]
        prompt = tuple(source or start)
        options = {
            **common_options,
            "n": args.samples,
            "first": equals[prompt],
            "stop": args.stop,
            "logprobs": args.logprobs,
        }
        requests.append(engine.Request(start, source, **options))
        equals[prompt] += args.samples

    def line(number: int, output: Any) -> dict[str, Any]:
        record = {
            "number": number,
            "prompt": prompts[number],
            "sample": output.index,
            "text": output.text,
        }
        record |= {
            "finish": output.finish_reason,
            "tokens": output.tokens,
            "logprobs": output.logprobs,
        }
        return {**record, **({"likely": output.top} if args.logprobs else {})}

    with engine.Engine(model, tokenizer, max_queue=max(256, args.samples)) as running:
        note(str(running.room))
        resumed = answer_into(
            out,
            running,
            requests,
            {**job, "seed": seed},
            line,
            progress_counter(f"of {len(prompts):,} prompts"),
        )
        stats = running.stats()
    if resumed:
        note(f"{resumed:,} were there.")
    print(f"{count_noun(len(prompts), 'prompt')}, {stats.generated_tokens:,} new tokens in {out}")


def _model_fingerprint(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Returns the fingerprint of model and tokenizer, so that an output file of other weights is
    not resumed."""
    from ..checkpoints import store
    from ..nn.quantized import quantized

    bits = sorted({weight.quantized_data.bits for weight in quantized(model).values()})
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        "weights": store.digest(model),
        "dtype": dtype,
        "bits": bits,
        "tokenizer": tokenizer.fingerprint,
    }


def _resumed_seed(out: Path) -> int:
    """The seed of the job that was begun there; else any."""
    try:
        with out.with_name(f"{out.name}.part").open("rb") as file:
            seed = json.loads(file.readline())["seed"]
        if isinstance(seed, int):
            return seed
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    return int.from_bytes(os.urandom(4)) >> 1


def as_json(row: Any, tokenizer: Any, only_next: int | None) -> dict[str, Any]:
    """A continuation with its tokens' strings, and the likeliest in the place of each where they
    were asked for."""

    def token_record(token: int, p: float) -> dict[str, Any]:
        return {
            "token": token,
            "piece": tokenizer.token(token),
            "logprob": p,
            "probability": math.exp(p),
        }

    likely = [[token_record(token, p) for token, p in pairs] for pairs in row.likely]
    record = {"prompt": row.prompt, "prompt_pieces": pieces(tokenizer.for_source, row.prompt)}
    if only_next:
        return {**record, "next": likely[0]}
    record |= {
        "text": row.text,
        "tokens": row.tokens,
        "pieces": pieces(tokenizer, row.tokens),
        "logprobs": row.logprobs,
    }
    return {**record, "finish": row.finish, **({"likely": likely} if likely else {})}
