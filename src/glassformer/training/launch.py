"""``glassformer train``: from a run file to a trained model in a folder, or on from where it stopped.

DIR/  run.json   log.jsonl   step-000500/ ...   last   best   curves.png   tensorboard/
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from .. import config, files, recipes, serial, store, text
from ..cost import Cost, available_memory, cost, gibibytes
from ..errors import UserError, nearest
from ..nn import build_model
from ..run import WATCHING, Data, Run, Train, model_changes
from ..text import Shards, Tokenizer
from . import checkpoint
from .data import Batch, Batches, every_token_once
from .hooks import Evaluate, Hook, Log, Save, TensorBoard, draw, note
from .live import Live, duration
from .loop import State, train
from .objective import Causal
from .optimizer import Optimizer
from .probe import Plan, make_plan

MANY = 20  # times over the text, from which on validation soon rises again
Sampler = Callable[[Any, Any], str]  # (model, tokenizer) -> some text it wrote


@dataclass(frozen=True)
class Ended:
    """How a run ended: at which step, with which losses, and by which signal if it was stopped."""

    folder: Path
    step: int
    loss: float | None
    valid: float | None
    signal: int | None = None


def run(settings: Run, out: Path, resume: bool = False, *, sample: Sampler | None = None, command: str = "") -> Ended:
    """Train as ``settings`` say into the folder ``out``; ``resume`` goes on with the run that is there.

    ``sample`` writes some text now and then; ``command`` is what continues the run, printed when it is stopped.
    Everything said goes to standard error. Raises UserError for whatever a user can mend.
    """
    with files.lock(out, "training"):
        checkpoint.tidy(out)
        before = _before(settings, out, resume)
        start = checkpoint.newest(out) if resume else None
        return _train(settings, out, before, start, sample, command)


def planned(settings: Run) -> config.Model:
    """The config of the model that a run trains, its vocabulary that of the tokenizer; no weights are made."""
    origin, tokenizer = _origin(settings, None)
    _fitted(settings, origin)
    return _fitted(settings, origin, (tokenizer or _tokenizer(settings.data)).size)


def _train(
    settings: Run, out: Path, before: dict[str, Any], start: Path | None, sample: Sampler | None, command: str
) -> Ended:
    how = settings.train
    device = "cuda" if torch.cuda.is_available() else "cpu"
    origin, tokenizer = _origin(settings, start)
    _fitted(settings, origin)  # a mistake in the config is said before a tokenizer is trained
    tokenizer = tokenizer or _tokenizer(settings.data)
    shards, held_out = _shards(settings.data, tokenizer)
    model_config = _fitted(settings, origin, tokenizer.size)
    if before:
        _same(before.get("model"), serial.to_dict(model_config), out)
    context = how.context or model_config.context
    price = cost(model_config, -(-how.batch // how.accumulate), context)
    _refuse_what_cannot_fit(price, how, device)
    model = _model(settings, model_config, how.seed, device, fresh=start is None)
    objective = Causal(how.label_smoothing)
    batches = Batches(shards, how.batch, context, how.seed)
    state = State(model, Optimizer(model, how.optimizer), batches)
    if start is not None:
        _restore(out, start, state)
        note(f"Going on from {start}, step {state.step} of {how.steps}.")
    plan = _plan(before, state, objective, how)
    _say(price, how, plan, shards)
    facts = {"data": settings.data, "train": settings.train, "model": model_config, "plan": plan}
    about = {"glassformer": 1, **facts, "tokenizer": tokenizer.fingerprint}
    files.write(out / "run.json", serial.dumps(about))

    evaluate = Evaluate(_validation(held_out, how, context), objective, how.evaluate_every, plan.dtype)
    save = Save(out, how.save_every, how.keep, tokenizer)
    live = Live(price.training_flops, plan.peak, _bound(sample, tokenizer), how.sample_every)
    step, valid = None, None
    with Signals() as signals, live, contextlib.ExitStack() as opened:
        log = opened.enter_context(contextlib.closing(Log(out / "log.jsonl", state.step)))
        board = TensorBoard.open(out / "tensorboard", state.step) if how.tensorboard else None
        hooks: list[Hook] = [evaluate, log, live, save]
        if board is not None:
            hooks.insert(1, opened.enter_context(contextlib.closing(board)))
        for step in train(model, batches, objective, how, state=state, plan=plan):
            for hook in hooks:
                hook(step)
            valid = valid if step.valid is None else step.valid
            if signals.number and not step.last:
                save.save(step)
                break
    if signals.number and step and not step.last:
        kept = checkpoint.newest(out)
        where = f"the last checkpoint is {kept}" if kept else "nothing was saved yet"
        note(f"Stopped by {signal.Signals(signals.number).name} after step {step.index}; {where}. Continue with:")
        note(f"  {command or 'the same call with resume=True'}")
        return Ended(out, step.index, step.loss, valid, signals.number)
    note(f"Trained {state.step} steps; the model is in {out}. {draw(out / 'log.jsonl', out / 'curves.png')}")
    return Ended(out, state.step, step.loss if step else None, valid)


# ------------------------------------------------------------------------------ the same run again?


def _before(settings: Run, out: Path, resume: bool) -> dict[str, Any]:
    """What run.json says of the run that is being resumed; empty for a new one."""
    path = out / "run.json"
    there = path.exists() or bool(checkpoint.steps(out))
    if there and not resume:
        raise UserError(f"{out} holds a run already; add --resume to go on with it, or choose another folder.")
    if not there:
        if resume:
            note(f"Nothing is in {out} yet; starting at the beginning.")
        return {}
    before = checkpoint.read_json(path)
    for name, mine in (("data", settings.data), ("train", settings.train)):
        kept = {key: value for key, value in dict(before.get(name) or {}).items() if key not in WATCHING}
        now = {key: value for key, value in serial.to_dict(mine).items() if key not in WATCHING}
        _same(kept, now, out, name)
    return before


def _same(there: Any, here: Any, out: Path, name: str = "model") -> None:
    differs = checkpoint.difference(there, json.loads(json.dumps(here)), name)
    if differs:
        raise UserError(f"{out} cannot be resumed with another config: {differs}; set it back or choose another --out.")


def _restore(out: Path, start: Path, state: State) -> None:
    """Take up the newest checkpoint; where it is damaged, say how to go on from the one before."""
    try:
        checkpoint.restore(start, state)
    except UserError as error:
        older = [path for path in checkpoint.steps(out) if path != start]
        if not older:
            raise
        raise UserError(f"{error} To go on from {older[-1].name} instead, remove {start}.") from None


def _plan(before: dict[str, Any], state: State, objective: Causal, how: Train) -> Plan:
    """The decisions of the run being resumed, or new ones."""
    if before.get("plan"):
        plan: Plan = serial.from_dict(Plan, before["plan"])
        return plan
    cursor = state.batches.state()
    batch = next(state.batches)
    state.batches.restore(cursor)
    return make_plan(state.model, batch, objective, how)


# -------------------------------------------------------------------------------- data and model


def _origin(settings: Run, start: Path | None) -> tuple[config.Model, Tokenizer | None]:
    """The config that the run's model starts from, and its tokenizer where it has one."""
    table = settings.model
    tokenizer = store.open_tokenizer(start) if start is not None else None
    if "recipe" in table:
        return recipes.find(str(table["recipe"])), tokenizer
    if "from" in table:
        found = store.resolve(str(table["from"]))
        if not isinstance(found, Path):
            return found, tokenizer
        if settings.data.tokenizer is None and tokenizer is None:
            tokenizer = store.open_tokenizer(found)
        return store.read_config(found).config, tokenizer
    whole = {key: value for key, value in table.items() if "." not in key}
    made: config.Model = serial.from_dict(config.Model, whole, "model")
    return made, tokenizer


def _fitted(settings: Run, origin: config.Model, vocab: int | None = None) -> config.Model:
    """The model's config with the run's changes, the tokenizer's ``vocab`` if known and the run's context in it."""
    table, how = settings.model, settings.train
    whole = "recipe" not in table and "from" not in table
    changes = {k: v for k, v in model_changes(table).items() if not whole or "." in k}
    if "recipe" in table:
        named = "embed.vocab" in changes or "vocab" in dict(changes.get("embed") or {})
        changes = changes if named or vocab is None else {"embed.vocab": vocab, **changes}
        if how.context is not None:
            changes = {"context": how.context, **changes}
    made = serial.change(origin, changes)
    if not isinstance(made, config.Decoder):
        raise UserError(f"{type(made).__name__} models are not trained by this command yet; give a Decoder.")
    if vocab is not None and made.embed.vocab < vocab:
        sentence = f"The tokenizer has {vocab} tokens, the model's embed.vocab only {made.embed.vocab}; "
        raise UserError(sentence + "raise it or give data.tokenizer the model's own.")
    if (how.context or 1) > made.context:
        raise UserError(f"train.context {how.context} is more than the model's context {made.context}; lower it.")
    return made


def _model(settings: Run, made: config.Model, seed: int, device: str, fresh: bool) -> Any:
    if "from" not in settings.model or not fresh:
        return build_model(made, device=device, seed=seed)
    given, _ = store.load(str(settings.model["from"]), dtype=torch.float32, device=device)
    if given.config == made:
        return given
    model = build_model(made, device=device, seed=seed)
    weights, mine = given.state_dict(), model.state_dict()
    there, here = ({name: list(t.shape) for name, t in part.items()} for part in (weights, mine))
    differs = checkpoint.difference(there, here)
    if differs:
        raise UserError(f"The weights of {settings.model['from']} do not fit the changed config: {differs}; undo it.")
    model.load_state_dict(weights)
    return model


def _tokenizer(data: Data) -> Tokenizer:
    """A tokenizer trained on the corpora, or the one at the path named."""
    kind = data.tokenizer or "bpe"
    kinds = ("char", "byte", "bpe")
    if kind not in kinds:
        path = Path(kind).expanduser()
        if not path.exists():
            raise UserError(f'data.tokenizer: "{kind}" is no file, folder or kind of tokenizer.{nearest(kind, kinds)}')
        return text.open(path)
    note(f"Training a {kind} tokenizer.")
    sources = (text.find(name, data.field, data.separator) for name in data.sources())
    texts = itertools.chain.from_iterable(source.texts() for source in sources)
    return text.train(kind, texts, data.vocab)


def _shards(data: Data, tokenizer: Tokenizer) -> tuple[list[tuple[Shards, float]], list[Shards]]:
    """The corpora to train on with their weights, and those held out."""
    training, held_out = [], []
    for name, weight in data.sources().items():
        source = text.find(name, data.field, data.separator)
        for said in getattr(source, "notes", ()):
            note(said)
        shards = text.tokenise(source, tokenizer)
        if isinstance(data.valid, float):
            shards, rest = shards.split(data.valid)
            held_out.append(rest)
        training.append((shards, weight))
    if isinstance(data.valid, str):
        held_out.append(text.tokenise(text.find(data.valid, data.field, data.separator), tokenizer))
    return training, held_out


def _validation(held_out: list[Shards], how: Train, context: int) -> Callable[[], Iterable[Batch]]:
    """What is evaluated each time: all of the held-out text where it is short, else the same random rows of it."""
    if sum(map(len, held_out)) <= how.evaluate_batches * how.batch * context or min(map(len, held_out)) <= context:
        everything = [(shards, how.batch, context) for shards in held_out]
        return lambda: itertools.chain.from_iterable(itertools.starmap(every_token_once, everything))
    parts = [(shards, float(len(shards))) for shards in held_out]
    return lambda: itertools.islice(Batches(parts, how.batch, context, how.seed), how.evaluate_batches)


def _bound(sample: Sampler | None, tokenizer: Tokenizer) -> Callable[[Any], str] | None:
    return None if sample is None else lambda model: sample(model, tokenizer)


# ------------------------------------------------------------------------------- words and signals


def _refuse_what_cannot_fit(price: Cost, how: Train, device: str) -> None:
    need, have = price.train("bf16" if how.dtype == "bfloat16" else "fp32"), available_memory(device)
    if have is not None and need > have:
        raise UserError(
            f"Training needs about {gibibytes(need)} and {gibibytes(have)} are free; lower train.batch or "
            f"train.context, raise train.accumulate, or take a smaller model."
        )


def _say(price: Cost, how: Train, plan: Plan, shards: list[tuple[Shards, float]]) -> None:
    """The cost statement: what is about to be done, with what, and how long it will take."""
    held = sum(len(part) for part, _ in shards)
    tokens = how.batch * price.context
    names = ", ".join(part.name for part, _ in shards)
    note(
        f"{price.total:,} parameters, {price.training_flops / 1e6:,.1f} MFLOP a token, "
        f"about {gibibytes(price.train('bf16' if plan.dtype == 'bfloat16' else 'fp32'))} of memory."
    )
    note(
        f"{how.steps:,} steps of {tokens:,} tokens on {names} ({held:,} tokens, {how.steps * tokens / held:.1f} times "
        f"over): about {duration(plan.seconds * how.steps)}."
    )
    if how.steps * tokens > MANY * held:
        note("The text is read so often that the model will learn it by heart; take more text or fewer --steps.")
    note(f"{plan.why}.")


class Signals:
    """While entered, the first Ctrl-C or SIGTERM is only noted in ``number``; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.old: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self.old = {number: signal.signal(number, self.notice) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def notice(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
        note("Finishing this step, then saving; once more to stop at once.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)
