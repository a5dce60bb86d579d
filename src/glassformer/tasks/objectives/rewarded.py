"""Answers that the model draws itself, the better ones of a group made likelier (GRPO and its kin).

prompt --> G answers, drawn by the engine --> a reward each --> advantage = reward - the group's mean
tokens' log-probabilities at drawing and at training --> ratio --> clipped, times the advantage

G answers of a prompt, N answers of a batch, K tokens of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...core import registry
from ...core.config.serial import PositiveFloat, PositiveInt, Share, frozen
from ...core.errors import need
from ..conversations import ConversationRecord
from ..example_table import Conversation, Example, ExampleTable
from ..rewards import compute_reward, find_reward
from .sft import CHATML, Conversations

if TYPE_CHECKING:
    from ...core.training.loss import Loss
    from ..encoded import Encoded
    from .documents import Batch, Fit, Tensor, Tokenizer

NO_SPREAD = 1e-4  # added to a group's deviation


@dataclass(frozen=True)
class Prompt:
    """A prompt as ids, and where it stands in the data."""

    ids: list[int]
    conversation: Conversation
    location: str


@dataclass
class Rollout:
    """N answers and what is known of them: ``texts`` are prompts with their answers, which begin at
    ``since``; ``drawn`` (K,) log-probabilities where they were drawn, ``answer`` (K,) the answer of each
    token."""

    texts: list[list[int]]
    since: list[int]
    answers: list[str]
    rewards: Tensor  # (N,)
    advantages: Tensor  # (N,)
    drawn: Tensor
    answer: Tensor


@frozen
class Rewarded(Conversations):
    """Answers that the model draws of its own, rewarded by a function.

    - "grpo" (Shao et al. 2024): a mean over an answer's tokens, then over answers
    - "dapo" (Yu et al. 2025): a mean over all tokens; ``clip_high`` lets rare tokens grow more
    - "dr_grpo" (Liu et al. 2025): a sum over tokens by ``max_new``; set ``scale`` to false

    Each step draws anew, by the run's seed and step.
    """

    reward: str = "exact"  # exact, number, regex, json_schema, unit_tests, or your function's name
    group: PositiveInt = 8  # answers of a prompt
    max_new: PositiveInt = 64  # tokens of an answer at most
    method: Literal["grpo", "dapo", "dr_grpo"] = "grpo"  # over what the loss is a mean
    scale: bool = True  # advantages divided by the group's deviation
    clip: PositiveFloat = 0.2  # how far a ratio may fall, or rise, and still count
    clip_high: PositiveFloat | None = None  # how far it may rise; none: as clip
    beta: Share = 0.0  # weight of the divergence from the model that the run begins from
    exact: bool = True  # training sums in the sampler's order: the first ratio is 1
    seconds: PositiveFloat = 10.0  # that a reward may take
    template: str = ""  # a chat template's file, or chatml; none: the tokenizer's, or none at all
    date: str = "2024-07-26"  # today, for templates that write a date

    example_fields = ("prompt", "messages", "answer", "tests")
    optional = example_fields
    without_reference = "beta = 0"
    undivided = ("context", "tensor", "expert")  # an engine draws with whole weights
    casts_weights = (
        False  # of several processes too each draws and learns with those that are stored
    )

    @property
    def needs_reference(self) -> bool:
        """True if the loss compares with the model that training begins from."""
        return self.beta > 0

    @property
    def smooths_labels(self) -> bool:
        return False

    def example(self, row: ConversationRecord) -> Example:
        """A prompt and its record."""
        return row.prompt()

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        """The tokenizer gets its template as for conversations; without one, prompts are plain text."""
        if self.template or tokenizer.chat_template or tokenizer.specials.keys() >= {*CHATML}:
            super().prepare_tokenizer(tokenizer)

    def encode(self, table: ExampleTable, tokenizer: Tokenizer, fit: Fit) -> Encoded:
        """Prompts as ids, each in a row of its own; labels are their numbers."""
        from ..answer_weights import template_of
        from ..encoded import Encoded, Side

        find_reward(self.reward)
        need(self.group > 1, "A group of 1 has no mean to be better than; give 2 or more.")
        template = template_of(tokenizer, self.date) if tokenizer.chat_template else None
        by_location, numbers = self.prompts, list[int]()
        self.__dict__["_tokenizer"] = tokenizer
        columns, places = (
            list[dict[str, Any]](),
            {place: at for at, place in enumerate(by_location)},
        )
        for example in table:
            (conversation,) = example.conversations
            ids = (
                tokenizer.encode(conversation.text)
                if template is None
                else template.tokens([*conversation.messages])
            )
            (ids,) = fit(example, [ids], self.max_new, "prompt with its answer")
            location = f"{table.name} line {example.line}"
            need(bool(ids), f"{location} has a prompt without a token; fix or remove it.")
            by_location[location] = Prompt([*map(int, ids)], conversation, location)
            numbers.append(places.setdefault(location, len(places)))
            columns.append(_row(by_location[location].ids, fit.context))
        side = Side.of(**{name: [row[name] for row in columns] for name in columns[0]})
        return Encoded(table.name, (side,), np.array(numbers))

    def with_reference(self, model: Any, encoded: Encoded, batch: int, context: int) -> Encoded:
        """The examples; the model at its start is kept beside the one that trains."""
        self.__dict__["_reference"] = model.eval()
        return encoded

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The loss of answers drawn now; in validation it is minus the mean reward of the likeliest
        answers."""
        import torch

        from ...core.training.loss import Loss

        model = getattr(model, "_orig_mod", model)
        training = torch.is_grad_enabled()
        assert batch.labels is not None
        all_prompts = [*self.prompts.values()]
        prompts = [all_prompts[number] for number in batch.labels.tolist()]
        was_training = model.training
        model.eval()  # what is drawn and what is learned from are of one pass, without dropout
        try:
            sampler, rollout = self.rollout(model, prompts, batch.tokens.shape[1], training)
            tokens = len(rollout.answer)
            facts = {"reward": rollout.rewards.mean()}
            if not training:
                return Loss(-rollout.rewards.sum(), len(prompts), None, tokens, facts)
            exact = self.exact and sampler.exact
            logs, aux = sampler.score(model, rollout.texts, rollout.since, exact)
            reference = None
            if self.beta:
                with torch.no_grad():
                    before = self.__dict__["_reference"].to(logs.device)
                    reference = sampler.score(before, rollout.texts, rollout.since, False)[0]
        finally:
            model.train(was_training)
        total, count, more = self.policy_loss(logs, rollout, reference)
        facts |= more | {"length": torch.tensor(tokens / len(rollout.texts))}
        return Loss(total, count, aux, sum(map(len, rollout.texts)), facts)

    def rollout(
        self, model: Any, prompts: list[Prompt], context: int, training: bool
    ) -> tuple[Any, Rollout]:
        """A sampler of the model's weights, and answers with their rewards and advantages: groups
        drawn at random in training, else each prompt's likeliest."""
        import torch

        (room,) = registry.load("rollouts")
        sampler = room.Sampler(model, self.__dict__["_tokenizer"], context)
        count = self.group if training else 1
        seeds = torch.randint(2**62, (len(prompts),)).tolist() if training else None
        drawn = sampler.draw([prompt.ids for prompt in prompts], count, self.max_new, seeds)
        pairs = [(p, drawing) for p, group in zip(prompts, drawn, strict=True) for drawing in group]
        rewards = torch.tensor(
            [
                compute_reward(
                    self.reward, drawing.text, p.conversation.record or {}, p.location, self.seconds
                )
                for p, drawing in pairs
            ]
        )
        sizes = torch.tensor([len(drawing.tokens) for _, drawing in pairs])
        return sampler, Rollout(
            [[*p.ids, *drawing.tokens] for p, drawing in pairs],
            [len(p.ids) for p, _ in pairs],
            [drawing.text for _, drawing in pairs],
            rewards,
            self.advantages(rewards.view(-1, count)).flatten() if count > 1 else rewards,
            torch.tensor([log for _, drawing in pairs for log in drawing.logprobs]),
            torch.arange(len(pairs)).repeat_interleave(sizes),
        )

    def advantages(self, rewards: Tensor) -> Tensor:
        """Rewards (prompts, G) less the group's mean, in units of its deviation with ``scale``."""
        centred = rewards - rewards.mean(1, keepdim=True)
        return centred / (rewards.std(1, keepdim=True) + NO_SPREAD) if self.scale else centred

    @property
    def prompts(self) -> dict[str, Prompt]:
        """The prompts that were encoded, by their places; a label is a number among them."""
        prompts: dict[str, Prompt] = self.__dict__.setdefault("_prompts", {})
        return prompts

    def is_clipped(self, ratio: Tensor, advantage: Tensor) -> Tensor:
        """Marks tokens that moved so far in their advantage's direction that they count no more."""
        high = 1 + (self.clip_high or self.clip)
        return ((ratio > high) & (advantage > 0)) | ((ratio < 1 - self.clip) & (advantage < 0))

    def policy_loss(
        self, logs: Tensor, rollout: Rollout, reference: Tensor | None = None
    ) -> tuple[Tensor, int, dict[str, Tensor]]:
        """The loss as a sum, over how many it is a mean, and facts, from the log-probabilities (K,)
        of the drawn tokens."""
        ratio = (logs - rollout.drawn).exp()
        advantage = rollout.advantages[rollout.answer]
        clipped = ratio.clamp(1 - self.clip, 1 + (self.clip_high or self.clip))
        losses = -(ratio * advantage).minimum(clipped * advantage)
        facts = {
            "ratio_low": ratio.detach().min(),
            "ratio_high": ratio.detach().max(),
            "clipped": self.is_clipped(ratio.detach(), advantage).float().mean(),
        }
        if reference is not None:
            apart = reference - logs
            divergence = apart.exp() - apart - 1
            losses = losses + self.beta * divergence
            facts["kl"] = divergence.detach().mean()
        answers = len(rollout.texts)
        if self.method == "dapo":
            return losses.sum(), len(losses), facts
        sums = losses.new_zeros(answers).index_add(0, rollout.answer, losses)
        sizes = rollout.answer.bincount(minlength=answers)
        divisor = sizes.clamp(min=1) if self.method == "grpo" else self.max_new
        return (sums / divisor).sum(), answers, facts


def _row(ids: list[int], context: int) -> dict[str, Any]:
    """A prompt in a row of its own: a batch counts prompts."""
    columns = {"tokens": ([*ids], 0), "pos": ([*range(len(ids))], -1), "targets": ([], -1)}
    return {
        name: np.array(values + [empty] * (context - len(values)), np.int32)
        for name, (values, empty) in columns.items()
    }
