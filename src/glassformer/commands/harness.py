"""Our models under lm-evaluation-harness: its tasks and prompts, our probabilities and our
generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UserError


def harness_model(
    model: Any,
    tokenizer: Any,
    *,
    batch: int = 16,
    progress: Callable[[int], None] | None = None,
    edits: Sequence[Any] = (),
) -> Any:
    """A model as ``lm_eval.simple_evaluate(model=...)`` takes it; UserError where the library is
    missing.

    Texts are encoded as in training: with the tokenizer's bos where it has one.
    ``prefix_token_id``, which stands before a text without context, is the bos, else the eos.
    """
    try:
        from lm_eval import utils
        from lm_eval.api.model import TemplateLM
        from lm_eval.models.utils import normalize_gen_kwargs
    except ImportError:
        raise UserError(
            "Tasks need lm-evaluation-harness: pip install lm_eval (about 700 MB with its "
            "dependencies)."
        ) from None
    from ..core import generation
    from ..core.tokenizer.framing import document_start
    from ..tasks import evaluation

    opening = document_start(tokenizer)
    eos = tokenizer.eos
    prefix = opening if opening is not None else eos
    if prefix is None:
        raise UserError(
            "The harness puts a bos or eos before a text, and this tokenizer has neither; "
            "use another one."
        )

    class HarnessModel(TemplateLM):  # type: ignore[misc]  # the library has no types
        """One of ours behind the harness's interface."""

        max_length = model.config.context
        eot_token_id = prefix if eos is None else eos
        prefix_token_id = prefix
        tokenizer_name = tokenizer.fingerprint

        def tok_encode(
            self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
        ) -> list[int]:
            special = opening is not None and add_special_tokens is not False
            return list(tokenizer.encode(string, bos=special))

        def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> list[tuple[float, bool]]:
            pairs = [(context, continuation) for _, context, continuation in requests]
            return [
                (likelihood.logprob, likelihood.greedy)
                for likelihood in evaluation.likelihoods(
                    model, pairs, batch=batch, progress=progress, edits=edits
                )
            ]

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            totals = []
            for request in requests:
                windows = utils.get_rolling_token_windows(
                    self.tok_encode(request.args[0], add_special_tokens=False),
                    prefix,
                    self.max_length,
                    context_len=1,
                )
                pairs = [utils.make_disjoint_window(window) for window in windows]
                totals.append(
                    sum(
                        likelihood.logprob
                        for likelihood in evaluation.likelihoods(
                            model, pairs, batch=batch, edits=edits
                        )
                    )
                )
            return totals

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            written = []
            for done, request in enumerate(requests, start=1):
                prompt = request.args[0]
                settings = normalize_gen_kwargs(request.args[1])
                room = max(1, self.max_length - settings["max_gen_toks"])
                output = generation.generate(
                    model,
                    tokenizer,
                    [self.tok_encode(prompt)[-room:] or [prefix]],
                    max_new=settings["max_gen_toks"],
                    temperature=settings.get("temperature", 0.0),
                    stop=[stop for stop in settings["until"] if stop],
                    edits=edits,
                )
                written.append(output.run().text)
                if progress:
                    progress(done)
            return written

    return HarnessModel()


def evaluate_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str],
    *,
    shots: int | None = None,
    limit: int | None = None,
    folder: Path | None = None,
    batch: int = 16,
    progress: Callable[[int], None] | None = None,
    edits: Sequence[Any] = (),
) -> dict[str, dict[str, float]]:
    """The harness's figures by task: ``acc``, ``acc_norm``, ``exact_match`` ... each with its
    standard error.

    ``folder`` holds the user's own task files (YAML), which may read local data; the harness's own
    download theirs from the hub. Raises UserError for an unknown task and for data that cannot be
    had.
    """
    adapter = harness_model(model, tokenizer, batch=batch, progress=progress, edits=edits)
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=None if folder is None else str(folder))
    unknown = [name for name in tasks if not manager.match_tasks([name])]
    if unknown:
        raise UserError(f'The harness has no task "{unknown[0]}"; `lm-eval ls tasks` lists them.')
    try:
        results = simple_evaluate(
            model=adapter,
            tasks=list(tasks),
            num_fewshot=shots,
            limit=limit,
            task_manager=manager,
            log_samples=False,
        )
    except OSError as error:  # a data set that is not on this machine, and no network (huggingface's errors are these)
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(
            f"The data of these tasks is not available ({reason}); download it once while online."
        ) from None
    assert results is not None
    return {
        task: {
            name.replace(",none", ""): float(value)
            for name, value in values.items()
            # METRIC,FILTER; the rest is the task's name and size
            if "," in name and isinstance(value, int | float)
        }
        for task, values in results["results"].items()
    }
