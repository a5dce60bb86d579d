"""``glassformer train``: from a run file to a trained model in a folder, or on from where it stopped.

DIR/  run.json   log.jsonl   step-000500/ ...   last   best   curves.png   tensorboard/   routing.jsonl (experts)
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from .. import config, files
from ..config import serial
from ..config.objective import Full, Objective
from ..config.run import UNCHECKED, Examples, Run, Train
from ..cost import Cost, available_memory, cost, gibibytes
from ..errors import UserError, need
from ..nn import device as devices
from ..nn.experts import MoE
from . import checkpoint, prepare
from .hooks import Evaluate, Hook, Log, Routing, Save, TensorBoard, draw, note
from .live import Live, duration
from .loop import State, Stuck, train
from .optimizer import Optimizer
from .prepare import RunData
from .probe import Plan, make_plan
from .schedule import said

MANY = 20  # times over the text, from which on validation soon rises again
Sampler = Callable[[Any, Any, str | None], str]  # (model, tokenizer, source or None) -> some text it wrote


@dataclass(frozen=True)
class Ended:
    """How a run ended: at which step, with which losses, and by which signal if it was stopped."""

    folder: Path
    step: int
    loss: float | None
    valid: float | None
    signal: int | None = None


def run(
    settings: Run,
    out: Path,
    resume: bool = False,
    *,
    sample: Sampler | None = None,
    command: str = "",
    chosen: str = "",
) -> Ended:
    """Train as ``settings`` say into the folder ``out``; ``resume`` goes on with the run that is there.

    ``sample`` writes some text now and then; ``command`` is what continues the run, printed when it is stopped.
    ``chosen`` says which of the settings nobody gave, and why they are so; it is told and kept in run.json.
    Everything said goes to standard error. Raises UserError for whatever a user can fix.
    """
    with files.lock(out, "training"):
        checkpoint.tidy(out)
        before = _before(settings, out, resume)
        start = checkpoint.newest(out) if resume else None
        if chosen:
            note(chosen)
        return _train(settings, out, before, start, sample, command, chosen)


def planned(settings: Run) -> config.Model:
    """The config of the model that a run trains; no weights are made and no tokenizer is trained.

    A BPE has as many tokens as the settings ask for, though a short text may not hold so many.
    """
    origin, tokenizer = prepare.origin(settings, None)
    fits(settings, prepare.fitted(settings, origin))
    examples = prepare.tables(settings)
    size = tokenizer.size if tokenizer else prepare.vocabulary_of(settings, examples)
    labels = prepare.labels(settings, examples)
    return settings.train.objective.with_heads(prepare.fitted(settings, origin, size), len(labels))[0]


def fits(settings: Run, model: config.Model, tokenizer: Any = None) -> None:
    """UserError for an objective that does not fit the model's shape, the data or the tokenizer."""
    how, examples = settings.train, isinstance(settings.data, Examples)
    how.objective.check(model, tokenizer, examples=examples, tune=how.tune)


def _train(
    settings: Run,
    out: Path,
    before: dict[str, Any],
    start: Path | None,
    sample: Sampler | None,
    command: str,
    chosen: str,
) -> Ended:
    how = settings.train
    board_is_here = importlib.util.find_spec("tensorboard") is not None
    need(board_is_here or not how.tensorboard, "train.tensorboard is true, but it is missing: pip install tensorboard.")
    device = devices.find(how.device)
    if how.device or device.type != "cpu":
        note(f"Training on {devices.title(device)}.")
    origin, tokenizer = prepare.origin(settings, start)
    fits(settings, prepare.fitted(settings, origin))  # before a tokenizer is trained
    examples = prepare.tables(settings)
    if tokenizer is None:
        tokenizer = prepare.tokenizer_of(settings, examples)
    model_config = prepare.fitted(settings, origin, tokenizer.size)
    fits(settings, model_config, tokenizer)
    labels = prepare.labels(settings, examples)
    model_config, ends = how.objective.with_heads(model_config, len(labels))
    if before:
        _same(before.get("model"), serial.to_dict(model_config), out)
    objective = how.objective
    data = prepare.run_data(settings, tokenizer, examples, model_config)
    context = how.context or model_config.context
    price = cost(model_config, -(-how.batch // how.accumulate), context)
    _refuse_what_cannot_fit(price, how, device)
    model, drawn = prepare.build(settings, model_config, device, fresh=start is None)
    for line in (*ends, *drawn, *data.notes):
        if "--data.separator" not in line or "--data.separator" not in chosen:  # said already
            note(line)
    state = State(model, Optimizer(model, how.optimizer), data.batches, labels=labels, base=prepare.base_of(settings))
    state.ended = tuple(before.get("ended", ()))
    state.content = None if state.base is None else prepare.content_of(model)
    if start is not None:
        _restore(out, start, state)
        note(f"Going on from {start}, step {state.step} of {how.steps}.")
    plan = _plan(before, state, objective, how)
    _say(price, how, plan, data, sum(weight.numel() for weight in model.parameters() if not weight.requires_grad))
    facts = {"data": settings.data, "train": settings.train, "model": model_config, "plan": plan}
    about: dict[str, Any] = {"glassformer": 1, **facts, "ended": state.ended, "tokenizer": tokenizer.fingerprint}
    about |= {"asked": settings.model, "chosen": chosen or before.get("chosen", "")}
    files.write(out / "run.json", serial.dumps(about))

    evaluate = Evaluate(data.validation, objective, how.evaluate_every, labels)
    save = Save(out, how.save_every, how.keep, tokenizer)
    flops = 0.0 if isinstance(model_config, config.EncoderDecoder) else price.training_flops  # sides are seldom even
    live = Live(flops, plan.peak, _bound(sample, tokenizer, how, data), how.sample_every)
    step, valid = None, None
    mixed = any(isinstance(part, MoE) for part in model.modules())
    with Signals() as signals:
        with live, contextlib.ExitStack() as opened:
            log = opened.enter_context(contextlib.closing(Log(out / "log.jsonl", state.step)))
            board = TensorBoard.open(out / "tensorboard", state.step) if how.tensorboard is not False else None
            hooks: list[Hook] = [evaluate, log, live, save]  # what is logged comes before what is saved
            if mixed:
                routing = Routing(out / "routing.jsonl", tokenizer, state.step)
                hooks.insert(1, opened.enter_context(contextlib.closing(routing)))
            if board is not None:
                hooks.insert(1, opened.enter_context(contextlib.closing(board)))
            try:
                left = () if risen(state, how) else train(model, data.batches, objective, how, state=state, plan=plan)
                for step in left:
                    for hook in hooks:
                        hook(step)
                    valid = valid if step.valid is None else step.valid
                    if (signals.number or risen(state, how)) and not step.last:
                        save.save(step)
                        break
            except Stuck as error:
                assert step is not None
                save.save(step)
                raise UserError(
                    f"{error} They are in {checkpoint.newest(out) or 'no checkpoint: none moved'}."
                ) from None
        if signals.number and step and not step.last:
            kept = checkpoint.newest(out)
            where = f"the last checkpoint is {kept}" if kept else "nothing was saved yet"
            note(f"Stopped by {signal.Signals(signals.number).name} after step {step.index}; {where}. Continue with:")
            note(f"  {command or 'the same call with resume=True'}")
            return Ended(out, step.index, step.loss, valid, signals.number)
        if risen(state, how):
            since = f"Validation has not fallen since step {state.best_step}, so the run ends at step {state.step}"
            note(f"{since} of {how.steps}; --resume --early-stop 0 goes on.")
        if state.best_step is not None:
            note(f"The best checkpoint is that of step {state.best_step}: {_held_out(state.best, data)}. It is used.")
        note(f"Trained {state.step} steps; the model is in {out}. {draw(out / 'log.jsonl', out / 'curves.png')}")
        if mixed:
            note(f"Which tokens go to which expert is in {out / 'routing.jsonl'}.")
    return Ended(out, state.step, step.loss if step else None, valid)


def risen(state: State, how: Train) -> bool:
    """Whether the run ends early: ``how.early_stop`` evaluations in a row brought no lower validation loss."""
    if not how.early_stop or not how.evaluate_every or state.best_step is None:
        return False
    return state.step - state.best_step >= how.early_stop * how.evaluate_every


def _held_out(loss: float, data: RunData) -> str:
    """A validation loss in words; of running text also in bits per byte, comparable between tokenizers."""
    said = f"validation loss {loss:.4f}"
    if not data.held_out:
        return said
    tokens, size = sum(map(len, data.held_out)), sum(part.bytes for part in data.held_out)
    return f"{said}, {loss / math.log(2) * tokens / size:.2f} bits per byte"


# ------------------------------------------------------------------------------ the same run again?


def _before(settings: Run, out: Path, resume: bool) -> dict[str, Any]:
    """What run.json says of the run that is being resumed; empty for a new one."""
    path = out / "run.json"
    begun = path.exists() or bool(checkpoint.steps(out))
    if begun and not resume:
        raise UserError(f"{out} holds a run already; add --resume to go on with it, or choose another folder.")
    if not begun:
        need(not resume, f"{out} holds no run to go on with; leave out --resume to begin one there.")
        return {}
    before = checkpoint.read_json(path)
    was, now = dict(before.get("asked") or {}).get("recipe"), settings.model.get("recipe")
    if was and now:  # told before what follows from it
        _same(was, now, out, "recipe")
    _extend(before, settings.train, out)
    for name, mine in (("data", settings.data), ("train", settings.train)):
        there = dict(before.get(name) or {})
        with contextlib.suppress(UserError):  # a setting that is younger than the run has its default
            there = serial.to_dict(serial.from_dict(type(mine), there))
        kept = {key: value for key, value in there.items() if key not in UNCHECKED}
        now = {key: value for key, value in serial.to_dict(mine).items() if key not in UNCHECKED}
        _same(kept, now, out, name)
    return before


def _extend(before: dict[str, Any], how: Train, out: Path) -> None:
    """Let a finished run go on with more steps: ``before`` then has these, and the step at which it had ended."""
    there, newest = dict(before.get("train") or {}).get("steps"), checkpoint.newest(out)
    if not isinstance(there, int) or how.steps <= there:
        return
    at = checkpoint.number(newest) if newest else 0
    finish = (
        f"{out} stands at step {at} of {there}; give --steps {there} to finish that first, then --steps {how.steps}."
    )
    need(at == there, finish)
    before["train"] = {**before["train"], "steps": how.steps}
    before["ended"] = [*before.get("ended", []), there]
    note(f"The run had ended at step {there:,} and goes on to {how.steps:,}: {said(how.schedule, how.steps - there)}.")


def _same(there: Any, here: Any, out: Path, name: str = "model") -> None:
    differs = checkpoint.difference(there, json.loads(json.dumps(here)), name)
    if differs:
        raise UserError(f"{out} cannot be resumed with another config: {differs}; set it back or choose another --out.")


def _restore(out: Path, start: Path, state: State) -> None:
    """Take up the newest checkpoint; where it is damaged, say how to go on from the one before."""
    try:
        checkpoint.restore(start, state)
        checkpoint.point(out, state)
    except UserError as error:
        older = [path for path in checkpoint.steps(out) if path != start]
        if not older:
            raise
        raise UserError(f"{error} To go on from {older[-1].name} instead, remove {start}.") from None


def _plan(before: dict[str, Any], state: State, objective: Objective, how: Train) -> Plan:
    """The decisions of the run being resumed, or new ones."""
    if before.get("plan"):
        plan: Plan = serial.from_dict(Plan, before["plan"])
        return plan
    cursor = state.batches.state()
    batch = next(state.batches)
    state.batches.restore(cursor)
    return make_plan(state.model, batch, objective, how)


# ------------------------------------------------------------------------------- words and signals


def _refuse_what_cannot_fit(price: Cost, how: Train, device: torch.device) -> None:
    still = 0 if isinstance(how.tune, Full) else price.total
    wanted, have = _memory(price, how.dtype, still), available_memory(device)
    if have is not None and wanted > have:
        raise UserError(
            f"Training needs about {gibibytes(wanted)} and {gibibytes(have)} are free; lower train.batch or "
            f"train.context, raise train.accumulate, or take a smaller model."
        )


def _memory(price: Cost, dtype: str, still: int) -> int:
    """Bytes to train; a weight that stays still has no gradient and no moments."""
    return price.train("bf16" if dtype == "bfloat16" else "fp32") - 12 * still


def _say(price: Cost, how: Train, plan: Plan, data: RunData, still: int) -> None:
    """The cost statement: what is about to be done, with what, and how long it will take."""
    tokens = how.batch * price.context
    note(
        f"{price.total:,} parameters, {price.training_flops / 1e6:,.1f} MFLOP a {price.each}, "
        f"about {gibibytes(_memory(price, plan.dtype, still))} of memory."
    )
    times = how.steps * how.batch / data.rows
    looks = math.ceil(how.steps / how.evaluate_every) if how.evaluate_every else 0
    seen = sum(1 for _ in data.validation()) if looks else 0  # batches, each a third of a step: there is no way back
    note(
        f"{how.steps:,} steps of {tokens:,} tokens on {data.name}, {times:.1f} times over: "
        f"about {duration(plan.seconds * (how.steps + looks * seen / 3))}."
    )
    if times > MANY and how.objective.every_token:
        note("The text is read so often that the model will learn it by heart; take more text or fewer --steps.")
    note(f"{plan.why}.")


def _bound(sample: Sampler | None, tokenizer: Any, how: Train, data: RunData) -> Callable[[Any], str] | None:
    """What writes a sample: the model's own text, or its answer to a source that is held out."""
    if sample is None or not how.objective.generates:
        return None

    def written(model: Any) -> str:
        try:
            return sample(model, tokenizer, data.prompt)
        except UserError as error:  # what is only looked at ends no training
            return f"(none: {error})"

    return written


class Signals:
    """While entered, the first Ctrl-C, SIGTERM or SIGHUP is only noted in ``number``; a second Ctrl-C interrupts.

    A SIGHUP that is ignored, as under nohup, stays so.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.old: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            heard = [signal.SIGINT, signal.SIGTERM]
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                heard.append(signal.SIGHUP)
            self.old = {number: signal.signal(number, self.notice) for number in heard}
        return self

    def notice(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            if number in (signal.SIGINT, signal.SIGTERM):
                raise KeyboardInterrupt
            return  # a terminal that closes says so more than once
        self.number = number
        note("Finishing this step, then saving; once more to stop at once.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)
