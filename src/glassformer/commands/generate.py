"""``glassformer generate``: continue a text, token by token."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, need, note
from ..tokenizer.labels import pieces, shown
from .common import (
    MODEL,
    computing,
    counted,
    counting,
    editing,
    edits_of,
    emit,
    engine_device,
    model_and_tokenizer,
    new_file,
    prompting,
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


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    add("model", metavar="MODEL", help=MODEL)
    add(
        "prompt",
        nargs="*",
        metavar="PROMPT",
        help="one or several; - is standard input; none: begin",
    )
    prompting(one)
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
    editing(one)
    computing(one)
    add("--json", action="store_true", help="tokens, log-probabilities and texts as JSON")
    add(
        "--out",
        metavar="FILE.jsonl",
        help="a JSON line for each continuation; stopped, it goes on where it was",
    )


@contextlib.contextmanager
def readers(given: argparse.Namespace) -> Iterator[Reader | None]:
    """What reads the prompts: all processes that torchrun started, each a share; the first one
    alone goes on."""
    from ..config.parallel import Parallel
    from ..parallel.mesh import processes, started
    from ..parallel.prefill import prefill
    from ..parallel.ring import Ring

    if processes() == 1:
        yield None
        return
    need(given.out is None, "--out is for one process; leave out torchrun.")
    with contextlib.ExitStack() as opened:
        mesh = opened.enter_context(started(Parallel(data=1, context=processes()), given.device))
        ring = Ring(mesh.group("context"))
        if not mesh.is_first:
            given.max_new, nowhere = (
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


def run(given: argparse.Namespace) -> None:
    with readers(given) as reader:
        answer(given, reader)


def answer(given: argparse.Namespace, reader: Reader | None) -> None:
    """Continue the prompts, which ``reader`` reads if there is one."""
    from .. import config, generation

    need(given.batch > 0, f"--batch is {given.batch}; give 1 or more.")
    need(given.logprobs >= 0, f"--logprobs is {given.logprobs}; give 0 or more.")
    need(given.next is None or given.next > 0, f"--next is {given.next}; give 1 or more.")
    how = generation.Sampling(
        given.temperature, given.top_k, given.top_p, given.min_p, given.repetition_penalty
    )
    samples = given.samples if given.next is None else 1
    generation.check_settings(how, given.max_new, samples, given.stop)
    edits = edits_of(given)
    prompts: list[str | None] = [*texts(given, given.prompt)] or [None]
    if given.out is not None:
        given.device = engine_device(given)
    model, tokenizer = model_and_tokenizer(given)
    if given.out is not None:
        return into_file(given, model, tokenizer, prompts, how)
    groups = [prompts[begin : begin + given.batch] for begin in range(0, len(prompts), given.batch)]
    seed, rows = given.seed, []
    for group in groups:
        told = generation.generate(
            model,
            tokenizer,
            group,
            max_new=given.max_new if given.next is None else 1,
            **vars(how),
            stop=given.stop,
            samples=samples,
            seed=seed,
            slide=given.slide,
            likely=given.next or given.logprobs,
            edits=edits,
            reader=reader,
        )
        seed = told.seed
        if len(prompts) == given.samples == 1 and not (given.json or given.next or given.logprobs):
            if sys.stderr.isatty():
                print(prompts[0] or "", end="", file=sys.stderr, flush=True)
            for step in told:
                print(step.text, end="", flush=True)
            print()
        rows += told.run().rows
    if given.json:
        emit({"seed": seed, "rows": [as_json(row, tokenizer, given.next) for row in rows]})
    elif given.next or given.logprobs:
        each = len(rows) // len(prompts)
        for number, row in enumerate(rows):
            print(prompts[number // each] or "")
            for token, likely in zip(row.tokens, row.likely, strict=True):
                if given.logprobs:
                    print(f"  {shown(tokenizer, [token])[0]}")
                words = shown(tokenizer, [other for other, _ in likely])
                print(
                    "\n".join(
                        f"  {math.exp(p):8.4f}  {word}"
                        for (_, p), word in zip(likely, words, strict=True)
                    )
                )
    elif len(rows) > 1:
        for number, row in enumerate(rows):
            print(f"[{number}] {prompts[number // given.samples] or ''}{row.text}\n")
    if any(row.finish == "context" for row in rows) and given.next is None:
        most, slides = model.config.context, isinstance(model.config, config.Decoder)
        way = f"; --slide goes on, reading the last {most // 2} again" if slides else ""
        note(f"Ended at the model's context of {most} tokens{way}.")
    if given.temperature and not given.json and given.next is None:
        note(f"seed {seed}")


def into_file(
    given: argparse.Namespace, model: Any, tokenizer: Any, prompts: list[str | None], how: Any
) -> None:
    """Continuations of many prompts by the engine, as many at once as memory holds, into a file
    that appears whole."""
    from .. import engine
    from ..engine.batch import answer_into
    from ..generation.prompt import starts_and_sources

    for name in ("slide", "next", "edit"):
        need(not getattr(given, name), f"--{name} does not go with --out; leave one of them out.")
    out = new_file(given.out, given.prompts)
    starts, sources = starts_and_sources(prompts, tokenizer, None, model.config, None, None)
    settings = {"max_new": given.max_new, "stop": given.stop, "samples": given.samples, **vars(how)}
    digest = hashlib.sha256(json.dumps([starts, sources]).encode()).hexdigest()
    job = {
        "model": given.model,
        **settings,
        "logprobs": given.logprobs,
        "prompts": digest,
        **_answering(model, tokenizer),
    }
    seed = _seed_of(out) if given.seed is None else given.seed
    said, equals, requests = (
        {"sampling": how, "seed": seed, "max_new": given.max_new},
        Counter[tuple[int, ...]](),
        [],
    )
    for number, start in enumerate(starts):
        source = None if sources is None else sources[number]
        read = tuple(source or start)
        rest = {
            **said,
            "n": given.samples,
            "first": equals[read],
            "stop": given.stop,
            "logprobs": given.logprobs,
        }
        requests.append(engine.Request(start, source, **rest))
        equals[read] += given.samples

    def line(number: int, one: Any) -> dict[str, Any]:
        told = {"number": number, "prompt": prompts[number], "sample": one.index, "text": one.text}
        told |= {"finish": one.finish_reason, "tokens": one.tokens, "logprobs": one.logprobs}
        return {**told, **({"likely": one.top} if given.logprobs else {})}

    with engine.Engine(model, tokenizer, max_queue=max(256, given.samples)) as running:
        note(str(running.room))
        begun = answer_into(
            out,
            running,
            requests,
            {**job, "seed": seed},
            line,
            counting(f"of {len(prompts):,} prompts"),
        )
        stats = running.stats()
    if begun:
        note(f"{begun:,} were there.")
    print(f"{counted(len(prompts), 'prompt')}, {stats.generated_tokens:,} new tokens in {out}")


def _answering(model: Any, tokenizer: Any) -> dict[str, Any]:
    """What answers: the job of another model, though it has the same name, is not gone on with."""
    from ..checkpoints import store
    from ..nn.quantized import quantized

    bits = sorted({weight.held.bits for weight in quantized(model).values()})
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        "weights": store.digest(model),
        "dtype": dtype,
        "bits": bits,
        "tokenizer": tokenizer.fingerprint,
    }


def _seed_of(out: Path) -> int:
    """The seed of the job that was begun there; else any."""
    try:
        with out.with_name(f"{out.name}.part").open("rb") as file:
            seed = json.loads(file.readline())["seed"]
        if isinstance(seed, int):
            return seed
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    return secrets.randbelow(2**31)


def as_json(row: Any, tokenizer: Any, only_next: int | None) -> dict[str, Any]:
    """A continuation with its tokens' strings, and the likeliest in the place of each where they
    were asked for."""

    def told_of(token: int, p: float) -> dict[str, Any]:
        return {
            "token": token,
            "piece": tokenizer.token(token),
            "logprob": p,
            "probability": math.exp(p),
        }

    likely = [[told_of(token, p) for token, p in some] for some in row.likely]
    told = {"prompt": row.prompt, "prompt_pieces": pieces(tokenizer.for_source, row.prompt)}
    if only_next:
        return {**told, "next": likely[0]}
    told |= {
        "text": row.text,
        "tokens": row.tokens,
        "pieces": pieces(tokenizer, row.tokens),
        "logprobs": row.logprobs,
    }
    return {**told, "finish": row.finish, **({"likely": likely} if likely else {})}
