"""``glassformer generate``: continue a text, token by token."""

from __future__ import annotations

import argparse
import sys

from .common import MODEL, emit, note, reader, standard_input

HELP = "Continue a text, token by token."
EXAMPLES = (
    'glassformer generate out/mine "Once upon a time" --max-new 100',
    "glassformer generate out/mine --prompts prompts.txt --temperature 0 --json",
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
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
    one.add_argument("--slide", action="store_true", help="go on past the context, reading its last half again")
    one.add_argument("--samples", type=int, default=1, metavar="N", help="N continuations of each prompt (1)")
    one.add_argument("--seed", type=int, metavar="S", help="the same seed gives the same text")
    one.add_argument("--dtype", metavar="D", help="float32, bfloat16 or float16 (the checkpoint's own)")
    one.add_argument("--json", action="store_true", help="tokens, log-probabilities and texts as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import config, generation

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
        slide=given.slide,
    )
    if given.json:
        emit(told.run().to_dict())
    elif len(prompts) == given.samples == 1:
        if sys.stderr.isatty():
            print(prompts[0] or "", end="", file=sys.stderr, flush=True)
        for step in told:
            print(step.text, end="", flush=True)
        print()
    else:
        for row in told.run().rows:
            print(f"[{row.number}] {prompts[row.number // given.samples] or ''}{row.text}\n")
    if "context" in told.finishes:
        most, slides = model.config.context, isinstance(model.config, config.Decoder)
        way = f"; --slide goes on, reading the last {most // 2} again" if slides else ""
        note(f"Ended at the model's context of {most} tokens{way}.")
    if given.temperature and not given.json:
        note(f"seed {told.seed}")
