"""``glassformer generate``: continue a text, token by token."""

from __future__ import annotations

import contextlib
import json as jsonlib
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import mute, need, note
from ..sight.labels import display_texts, pieces
from .common import count_noun, new_file, progress_counter
from .options import Edits, ModelOptions, Texts
from .parsing import Count, Whole, Words, print_json
from .sources import read_prompts

if TYPE_CHECKING:
    from ..core.generation.session import Reader

EXAMPLES = (
    'glassformer generate tiny-stories "Once upon a time" --max-new 100',
    "glassformer generate out/mine --prompts prompts.txt --temperature 0 --json",
    "glassformer generate out/mine --prompts many.jsonl --out answers.jsonl --seed 1",
    "torchrun --nproc-per-node 4 -m glassformer generate out/mine --prompts long.txt",
)


@contextlib.contextmanager
def prompt_reader(device: str | None, out: str | None) -> Iterator[tuple[Reader | None, bool]]:
    """Yields the function that prefills prompts over all processes of torchrun, None for one
    process; and whether this is the first process, which alone decodes."""
    from ..scale.parallel import Parallel, processes

    if processes() == 1:
        yield None, True
        return
    from ..scale.mesh import started
    from ..scale.prefill import prefill
    from ..scale.ring import Ring

    with started(Parallel(data=1, context=processes()), device) as mesh:
        mute(not mesh.is_first)  # a mistake is everybody's: the first one says it
        need(out is None, "--out is for one process; leave out torchrun.")
        ring = Ring(mesh.group("context"))

        def read(model: Any, tokens: Any, pos: Any) -> Any:
            return prefill(model, tokens, pos, ring, keep=mesh.is_first)

        with contextlib.redirect_stdout(sys.stdout if mesh.is_first else None):
            yield read, mesh.is_first


def run(
    options: ModelOptions,
    prompt: Texts = (),
    *,
    prompts: str | None = None,
    batch: Count = 32,
    max_new: int = 256,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Words = (),
    slide: bool = False,
    samples: int = 1,
    seed: int | None = None,
    next: Count | None = None,
    logprobs: Whole = 0,
    edit: Edits = (),
    json: bool = False,
    out: str | None = None,
) -> None:
    """Continues prompts, token by token.

    prompt PROMPT: one prompt or several; - is standard input; none starts an empty text
    batch N: prompts at once
    max_new N: at most N new tokens
    temperature T: 0 takes the likeliest token (1)
    top_k K: draw from the K likeliest tokens
    top_p P: draw from the likeliest tokens with mass P
    min_p P: draw from tokens P times as likely as the likeliest
    repetition_penalty R: above 1: repeat less (1)
    stop TEXT: end before this text; may be repeated
    slide: continue past the context by reading its last half again
    samples N: N continuations of each prompt
    seed S: the same seed gives the same text
    next N: show only the N likeliest next tokens of each prompt
    logprobs N: show the N likeliest alternatives of each token
    json: tokens, log-probabilities and texts as JSON
    out FILE.jsonl: a JSON line for each continuation; run it again to resume
    """
    with prompt_reader(options.device, out) as (reader, is_first):
        from ..core import generation

        sampling = generation.Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
        only_next = next is not None
        unread = {
            "samples": samples != 1,
            "max-new": max_new not in (1, 256),
            "temperature": temperature not in (0, 1),
            "top-k": top_k,
            "top-p": top_p,
            "min-p": min_p,
            "repetition-penalty": repetition_penalty != 1,
            "stop": stop,
            "logprobs": logprobs,
        }
        samples_each = 1 if only_next else samples
        generation.check_settings(sampling, max_new, samples, stop)
        for option in (name for name, value in unread.items() if only_next and value):
            need(False, f"--next shows the model's own probabilities; leave out --{option}.")
        texts: list[str | None] = [*prompt, *(read_prompts(prompts) if prompts else ())] or [None]
        if out is not None:
            options.device = options.for_engine()
        model, tokenizer = options.load_with_tokenizer()
        if out is not None:
            for name, value in (("slide", slide), ("next", next), ("edit", edit)):
                need(not value, f"--{name} does not go with --out; leave one of them out.")
            job = {"model": options.model, "max_new": max_new, "stop": list(stop)}
            job |= {"samples": samples, **vars(sampling), "logprobs": logprobs}
            path = new_file(out, prompts)
            job["seed"] = _resumed_seed(path) if seed is None else seed
            write_continuations(path, model, tokenizer, texts, sampling, job)
            return
        rows: list[Any] = []
        for start in range(0, len(texts), batch):
            output = generation.generate(
                model,
                tokenizer,
                texts[start : start + batch],
                max_new=1 if only_next or not is_first else max_new,
                **vars(sampling),
                stop=stop,
                samples=samples_each,
                seed=seed,
                slide=slide,
                likely=next or logprobs,
                edits=edit,
                reader=reader,
            )
            seed = output.seed
            if len(texts) == samples == 1 and not (json or next or logprobs):
                if is_first and sys.stderr.isatty():
                    print(texts[0] or "", end="", file=sys.stderr, flush=True)
                for step in output:
                    print(step.text, end="", flush=True)
                print()
            rows += output.run().rows
        if json:
            print_json({"seed": seed, "rows": [as_json(row, tokenizer, only_next) for row in rows]})
        elif next or logprobs:
            for number, row in enumerate(rows):
                print(texts[number // samples_each] or "")
                print("\n".join(likely_lines(row, tokenizer, with_tokens=bool(logprobs))))
        elif len(rows) > 1:
            for number, row in enumerate(rows):
                print(f"[{number}] {texts[number // samples] or ''}{row.text}\n")
        if any(row.finish == "context" for row in rows) and not only_next:
            context, slides = model.config.context, model.config.is_decoder
            hint = f"; --slide goes on, reading the last {context // 2} again" if slides else ""
            note(f"Ended at the model's context of {context} tokens{hint}.")
        if temperature and not json and not only_next:
            note(f"seed {seed}")


def likely_lines(row: Any, tokenizer: Any, with_tokens: bool) -> Iterator[str]:
    """Yields the likeliest tokens in the place of each token of a continuation."""
    for token, likely in zip(row.tokens, row.likely, strict=True):
        if with_tokens:
            yield f"  {display_texts(tokenizer, [token])[0]}"
        words = display_texts(tokenizer, [id for id, _ in likely])
        for (_, logprob), word in zip(likely, words, strict=True):
            yield f"  {math.exp(logprob):8.4f}  {word}"


def write_continuations(
    out: Path,
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | None],
    sampling: Any,
    job: dict[str, Any],
) -> None:
    """Writes continuations of many prompts by the engine, as many at once as memory holds, into a
    file that appears whole; one of another ``job``, or of other weights, is not resumed."""
    import hashlib

    from ..core.generation.generating import starts_and_sources
    from ..fast.quantized import quantized
    from ..formats import store
    from ..serve import engine
    from ..serve.engine.batch import answer_into

    starts, sources = starts_and_sources(prompts, tokenizer, None, model.config, None, None)
    job = {
        **job,
        "prompts": hashlib.sha256(jsonlib.dumps([starts, sources]).encode()).hexdigest(),
        "weights": store.digest(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "bits": sorted({weight.quantized_data.bits for weight in quantized(model).values()}),
        "tokenizer": tokenizer.fingerprint,
    }
    samples = job["samples"]
    equals = Counter[tuple[int, ...]]()
    requests = []
    absent: Any = [None] * len(starts)
    for start, source in zip(starts, sources or absent, strict=True):
        prompt = tuple(source or start)
        request = engine.Request(
            start,
            source,
            sampling=sampling,
            seed=job["seed"],
            max_new=job["max_new"],
            n=samples,
            first=equals[prompt],
            stop=job["stop"],
            logprobs=job["logprobs"],
        )
        requests.append(request)
        equals[prompt] += samples

    def line(number: int, output: Any) -> dict[str, Any]:
        likely = {"likely": output.top} if job["logprobs"] else {}
        return {
            "number": number,
            "prompt": prompts[number],
            "sample": output.index,
            "text": output.text,
            "finish": output.finish_reason,
            "tokens": output.tokens,
            "logprobs": output.logprobs,
            **likely,
        }

    with engine.Engine(model, tokenizer, max_queue=max(256, samples)) as running:
        note(str(running.memory_plan))
        progress = progress_counter(f"of {len(prompts):,} prompts")
        resumed = answer_into(out, running, requests, job, line, progress)
        stats = running.stats()
    if resumed:
        note(f"{resumed:,} were done before.")
    print(f"{count_noun(len(prompts), 'prompt')}, {stats.generated_tokens:,} new tokens in {out}")


def _resumed_seed(out: Path) -> int:
    """The seed of the job that was begun there; else any."""
    try:
        with out.with_name(f"{out.name}.part").open("rb") as file:
            seed = jsonlib.loads(file.readline())["seed"]
        if isinstance(seed, int):
            return seed
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    return int.from_bytes(os.urandom(4)) >> 1


def as_json(row: Any, tokenizer: Any, only_next: bool) -> dict[str, Any]:
    """A continuation with its tokens' strings, and the likeliest in the place of each where they
    were asked for."""
    likely = [
        [
            {
                "token": token,
                "piece": tokenizer.token(token),
                "logprob": logprob,
                "probability": math.exp(logprob),
            }
            for token, logprob in pairs
        ]
        for pairs in row.likely
    ]
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
