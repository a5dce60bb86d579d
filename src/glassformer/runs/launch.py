"""``glassformer train``: from a run file to a trained model in a folder, or on from where it
stopped.

DIR/  run.json   log.jsonl   step-000500/ ...   last   best   curves.png   tensorboard/
      samples.jsonl   routing.jsonl (experts)
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core import files
from ..core.config import serial
from ..core.config.run import Train
from ..core.errors import Stuck, UserError, need, note
from ..core.memory import available_memory, gibibytes
from ..core.nn.experts import MoE
from ..core.training.loop import State, TrainStep, train
from ..fast import device as devices
from ..fast.training.execution import ExecutionSettings, choose_by_table, choose_execution
from ..formats import store
from ..scale.cost import FP32
from ..scale.mesh import Mesh, started
from ..scale.prefetch import read_ahead
from ..scale.shard import draw as draw_weights
from ..scale.shard import gathered, shard
from ..scale.shared_batches import mesh_of, shared_state
from . import run_checkpoints
from .callbacks import Evaluate, Hook, Log, Rank0Hooks, Routing, Sample, Save, TensorBoard
from .history import training_log
from .prepare import RunData, base_of, build, first_of, run_data
from .processes import (
    check,
    in_micro_batches,
    layout_of,
    note_layout,
    previous,
    rank0_logging,
    with_tokenizer,
)
from .progress import Live
from .report import draw, duration
from .resume import is_stale, must_be_same, restore_newest
from .run_config import Run
from .run_plan import RunPlan, plan_run
from .signals import Signals, lock

MANY_EPOCHS = 20  # times over the text, from which on validation soon rises again
Sampler = Callable[..., str]
"""(model, tokenizer, source or None) -> some text it wrote; with ``source_tokenizer=`` where the
source has its own."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run: its last step, the losses, and the signal if it was stopped by one."""

    folder: Path
    step: int
    loss: float | None
    valid_loss: float | None
    signal: int | None = None


@dataclass(frozen=True)
class Setup:
    """A run before its next step; ``notes`` are what a reader may know of it, ``frozen`` the number
    of weights that do not train."""

    plan: RunPlan
    data: RunData
    state: State
    execution: ExecutionSettings
    notes: tuple[str, ...]
    frozen: int

    def steps(self) -> Iterator[TrainStep]:
        """The steps from where the state stands."""
        state, train_config = self.state, self.plan.settings.train
        return train(
            state.model,
            state.batches,
            train_config.objective,
            train_config,
            state=state,
            execution=self.execution,
        )


def run(
    settings: Run,
    out: Path,
    resume: bool = False,
    *,
    sample: Sampler | None = None,
    command: str = "",
    chosen: str = "",
) -> RunResult:
    """Train as ``settings`` say into the folder ``out``; ``resume`` goes on with the run that is
    there.

    ``sample`` writes some text now and then; ``command`` is what continues the run, printed when it
    is stopped. ``chosen`` says which of the settings nobody gave, and why they are so; it is
    printed and kept in run.json. Every line goes to standard error. Raises UserError for whatever a
    user can fix.
    """
    with (
        started(settings.parallel, settings.train.device) as mesh,
        rank0_logging(mesh),
        contextlib.ExitStack() as stack,
    ):
        with mesh.agreeing():
            if mesh.is_first:
                stack.enter_context(lock(out, "training"))
                run_checkpoints.tidy(out)
        before = previous(settings, out, resume, mesh)
        if chosen:
            note(chosen)
        return _train(
            settings, out, before, sample, command or "the same call with resume=True", chosen, mesh
        )


def _train(
    settings: Run,
    out: Path,
    before: dict[str, Any],
    sample: Sampler | None,
    command: str,
    chosen: str,
    mesh: Mesh,
) -> RunResult:
    named = mesh.first(str(run_checkpoints.newest(out) or "") if before else "")
    start = Path(named) if named else None
    ready = set_up(settings, out, before, start, mesh, start is None)
    plan, data, state, execution = ready.plan, ready.data, ready.state, ready.execution
    train_config = plan.settings.train
    for line in ready.notes:
        if "--data.separator" not in line or "--data.separator" not in chosen:  # said already
            note(line)
    if start is not None:
        restore_newest(out, start, state, train_config)
        note(f"Going on from {start}, step {state.step} of {train_config.steps}.")
    announce(plan, data, execution, ready.frozen)
    note_layout(layout_of(plan, train_config, mesh, execution.dtype), mesh)
    run_info: dict[str, Any] = {"data": settings.data, "train": settings.train, "model": plan.model}
    run_info |= {"execution": execution, "pieces": train_config.accumulate}
    run_info |= {
        "ended": state.earlier_ends,
        "glassformer": 1,
        "tokenizer": plan.tokenizer and plan.tokenizer.fingerprint,
    }
    if plan.source_tokenizer is not None:
        run_info["source_tokenizer"] = plan.source_tokenizer.fingerprint
    run_info |= {"asked": settings.model, "chosen": chosen or before.get("chosen", "")}
    with mesh.agreeing():
        if mesh.is_first:
            files.write(out / "run.json", serial.dumps(run_info))

    with Signals(out, mesh) as signals:
        with contextlib.ExitStack() as opened:
            # sides are seldom equally long
            two_sided = plan.model.has_source
            flops = 0.0 if two_sided else plan.cost.training_flops
            live = Live(flops, execution.peak)
            writes = _sampling(sample, plan, data, mesh)
            path = out / "samples.jsonl"
            sampled = Sample(writes, train_config.sample_every, path, mesh, state.step)
            hooks, save = _hooks(opened, plan, data, state, out, sampled, live)
            ended = _stale(state, train_config)
            steps = () if ended else ready.steps()

            def should_stop() -> Any:
                # the time that is left is of steps, not of pauses
                live.began += signals.wait()
                return signals.heard() or _stale(state, train_config)

            step, valid = _consume(steps, hooks, save, should_stop)
        if signals.number and step and not step.last:
            newest = run_checkpoints.newest(out)
            location = f"the last checkpoint is {newest}" if newest else "nothing was saved yet"
            note(
                f"Stopped by {signal.Signals(signals.number).name} after step {step.index}; "
                f"{location}. Continue with:"
            )
            note(f"  {command}")
            return RunResult(out, step.index, step.loss, valid, signals.number)
        if mesh.is_first:
            _conclude(state, train_config, data, out)
    return RunResult(out, state.step, step.loss if step else None, valid)


def set_up(
    settings: Run,
    out: Path,
    before: dict[str, Any],
    start: Path | None,
    mesh: Mesh,
    fresh: bool,
) -> Setup:
    """The model, data and optimizer of a run; ``start`` is a checkpoint whose tokenizer it has.
    Unless it begins ``fresh``, a checkpoint's state will take the place of this one.

    ``before`` is run.json of the run in ``out``, empty for a new one. Raises UserError where the
    settings do not fit it, the data or the memory.
    """
    train_config = in_micro_batches(settings.train, before, mesh, out)
    has_tensorboard = importlib.util.find_spec("tensorboard") is not None
    need(
        has_tensorboard or not train_config.tensorboard,
        "train.tensorboard is true, but it is missing: pip install tensorboard.",
    )
    device = mesh.device
    notes = []
    if train_config.device or device.type != "cpu":
        notes.append(f"Training on {devices.title(device)}.")
    plan = with_tokenizer(plan_run(replace(settings, train=train_config), start), mesh)
    check(train_config, plan.model, mesh)
    if before:
        must_be_same(before.get("model"), serial.to_dict(plan.model), out, "model")
    if "extended" in before:
        notes.append(before["extended"])
    with mesh.rank0_first():
        data = run_data(plan, mesh)
    data = replace(data, batches=read_ahead(data.batches, device))
    layout = layout_of(plan, train_config, mesh, train_config.dtype)
    needed = plan.memory(train_config.dtype) if mesh.alone else layout.memory * mesh.neighbours_here
    free = available_memory(device)
    if free is not None and needed > free:
        raise UserError(
            f"Training needs about {gibibytes(needed)} and {gibibytes(free)} are free; "
            "lower train.batch or train.context, raise train.accumulate, or take a smaller "
            "model."
        )
    model, built = build(plan, device, fresh, data.batches, mesh)
    notes += [*plan.notes, *built, *data.notes]
    base = base_of(settings)
    frozen_digest = None if base is None else f"sha256:{store.digest(model, frozen=True)}"
    if before.get("execution"):  # as decided for the run that is resumed
        execution: ExecutionSettings = serial.from_dict(ExecutionSettings, before["execution"])
    elif not mesh.alone:
        table = mesh.first(serial.to_dict(choose_by_table(plan.model, device, train_config)))
        execution = serial.from_dict(ExecutionSettings, table)
    else:
        batch = first_of(data.batches)
        execution = choose_execution(model, batch, train_config.objective, train_config)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    if not mesh.alone:
        empty = next(model.parameters()).is_meta
        shard(model, mesh, execution.dtype, mesh.layout.exact)
        if empty:
            model.to_empty(device=device)
            if fresh:
                draw_weights(model, mesh, train_config.seed)
    state = shared_state(
        model,
        train_config.optimizer,
        data.batches,
        mesh,
        labels=plan.labels,
        base_model=base,
        frozen_digest=frozen_digest,
    )
    state.earlier_ends = tuple(before.get("ended", ()))
    return Setup(plan, data, state, execution, tuple(notes), frozen)


def _hooks(
    opened: contextlib.ExitStack,
    plan: RunPlan,
    data: RunData,
    state: State,
    out: Path,
    sample: Sample,
    live: Live,
) -> tuple[list[Hook], Save]:
    """The hooks of every step, closed with ``opened``; logs come before checkpoints."""
    train_config = plan.settings.train
    logs = list[Any]()
    mesh = mesh_of(state)
    save = Save(
        out,
        train_config.save_every,
        train_config.keep,
        plan.tokenizer,
        plan.source_tokenizer,
        train_config.save_at,
    )
    evaluate = Evaluate(
        data.validation,
        train_config.objective,
        train_config.evaluate_every,
        plan.labels,
        mesh,
        save_at=train_config.save_at,
    )
    if mesh.is_first:
        if any(isinstance(module, MoE) for module in state.model.modules()):
            logs.append(
                Routing(out / "routing.jsonl", plan.tokenizer, state.step, plan.source_tokenizer)
            )
        if train_config.tensorboard is not False:
            with contextlib.suppress(ImportError):  # by default it is used where it is installed
                logs.append(TensorBoard(out / "tensorboard", state.step))
        logs.append(Log(out / "log.jsonl", state.step))
        for log in logs:
            opened.enter_context(contextlib.closing(log))
        logs.append(opened.enter_context(live))
    return [evaluate, sample, Rank0Hooks(logs, mesh), save], save


def _consume(
    steps: Iterable[TrainStep], hooks: list[Hook], save: Save, should_stop: Callable[[], Any]
) -> tuple[TrainStep | None, float | None]:
    """Put each step through the hooks, until there are no more or ``should_stop`` is true; the last,
    and the last validation loss. What was learned is saved in either case, also before UserError
    tells of steps that got stuck.
    """
    step, valid = None, None
    try:
        for step in steps:
            for hook in hooks:
                hook(step)
            valid = valid if step.valid_loss is None else step.valid_loss
            if should_stop() and not step.last:
                save.save(step)
                break
    except Stuck as error:
        if step is not None:
            save.save(step)
        newest = run_checkpoints.newest(save.folder) or "no checkpoint: none moved"
        raise UserError(f"{error} They are in {newest}.") from None
    return step, valid


def _conclude(state: State, train_config: Train, data: RunData, out: Path) -> None:
    """Say why the run ended, which checkpoint is used, and where everything is."""
    if _stale(state, train_config):
        note(
            f"Validation has not fallen since step {state.best_step}, so the run ends at "
            f"step {state.step} of {train_config.steps}; --resume --early-stop 0 continues. To go "
            "beyond the last step, use --resume --steps N with N above "
            f"{train_config.steps}."
        )
    if state.best_step is not None:
        best = f"validation loss {state.best:.4f}"
        if data.held_out:  # of running text also in bits per byte, comparable between tokenizers
            tokens, size = (
                sum(map(len, data.held_out)),
                sum(shards.bytes for shards in data.held_out),
            )
            best += f", {state.best / math.log(2) * tokens / size:.2f} bits per byte"
        note(f"The best checkpoint is that of step {state.best_step}: {best}. It is used.")
    note(
        f"Trained {state.step} steps; the model is in {out}. "
        f"{draw(training_log(out).charts(), out / 'curves.png')}"
    )
    if (out / "routing.jsonl").exists():
        note(f"Which tokens go to which expert is in {out / 'routing.jsonl'}.")


def _stale(state: State, train_config: Train) -> bool:
    return is_stale(
        state.step,
        state.best_step,
        state.earlier_ends,
        train_config.early_stop,
        train_config.evaluate_every,
    )


def _sampling(
    sample: Sampler | None, plan: RunPlan, data: RunData, mesh: Mesh
) -> Callable[[Any], str] | None:
    """Returns a function that generates a sample: a continuation, or the answer to a held-out
    source."""
    if sample is None or not plan.settings.train.objective.generates:
        return None
    tokenizers = (
        {} if plan.source_tokenizer is None else {"source_tokenizer": plan.source_tokenizer}
    )

    def written(model: Any) -> str:
        try:
            with gathered(model, mesh, plan.cost.total * FP32):
                return sample(model, plan.tokenizer, data.prompt, **tokenizers)
        except UserError as error:  # what is only looked at ends no training
            return f"(none: {error})"

    return written


def announce(plan: RunPlan, data: RunData, execution: ExecutionSettings, frozen: int) -> None:
    """Prints the parameters, data, memory and expected time of a run; ``frozen`` weights do not
    train."""
    train_config, cost = plan.settings.train, plan.cost
    memory = gibibytes(plan.memory(execution.dtype, frozen))
    note(
        f"{cost.total:,} parameters, {cost.training_flops / 1e6:,.1f} MFLOP a "
        f"{cost.flops_unit}, about {memory} of memory."
    )
    epochs = train_config.steps * train_config.batch / data.rows
    evaluations = (
        math.ceil(train_config.steps / train_config.evaluate_every)
        if train_config.evaluate_every
        else 0
    )
    # each a third of a step: there is no backward
    batches = sum(1 for _ in data.validation()) if evaluations else 0
    note(
        f"{train_config.steps:,} steps of {train_config.batch * plan.context:,} tokens "
        f"on {data.name}, {epochs:.1f} times over: about "
        f"{duration(execution.seconds * (train_config.steps + evaluations * batches / 3))}."
    )
    if epochs > MANY_EPOCHS and train_config.objective.every_token:
        note(
            "The model reads the text so often that it will memorise it; give more text or fewer "
            "--steps."
        )
    note(f"{execution.why}.")
