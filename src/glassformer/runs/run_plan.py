"""A run file resolved: the model's config, its tokenizer, the examples, the cost. No torch here.

``train`` carries the plan out, ``cost`` prints it, ``compare`` holds several beside each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import families as recipes
from ..core import config
from ..core.config import serial
from ..core.config.objective import Full, Objective
from ..core.config.run import Muon
from ..core.config.scaling import longer_hint
from ..core.errors import UserError, nearest, need, note
from ..core.tokenizer import Tokenizer
from ..core.tokenizer import train as train_tokenizer
from ..formats import checkpoint, pretrained, resolve
from ..formats.checkpoint import Checkpoint
from ..formats.data import find as find_corpus
from ..formats.tokenizer_files import open as open_tokenizer
from ..formats.tokenizer_trainers import DEFAULT_SIZE, END
from ..scale.cost import Cost, cost
from ..tasks.example_table import ExampleTable
from ..tasks.examples import read_examples
from .run_config import Data, Examples, Run
from .run_file import model_changes


def plan_run(settings: Run, start: Path | None = None) -> RunPlan:
    """Resolve a run file, without reading its data; ``start`` is the checkpoint that a resumed run
    goes on from.

    Raises UserError where the parts do not fit together.
    """
    train_config = settings.train
    fits = not train_config.new_embeddings or (
        settings.checkpoint is not None and isinstance(train_config.tune, Full)
    )
    need(
        fits,
        "train.new_embeddings needs a checkpoint to begin from, --from FOLDER, and "
        "train.tune Full.",
    )
    plan = RunPlan(settings, *base_model(settings, start))
    plan.check(plan.shape)  # before data is read and a tokenizer is trained
    return plan


def training_and_validation(
    data: Examples, objective: Objective
) -> tuple[ExampleTable, ExampleTable]:
    """The tables that a run's [data] names, with the same set of labels. Raises UserError as
    ``read_examples`` does."""
    columns, prefix = data.columns, data.prefix
    train = read_examples(data.train, objective, columns=columns, labels=data.labels, before=prefix)
    if isinstance(data.valid, float):
        return train.split(data.valid)
    return train, read_examples(
        data.valid, objective, columns=columns, labels=train.labels, before=prefix
    )


@dataclass(frozen=True)
class RunPlan:
    """A resolved run file. ``base``: the config of the recipe or checkpoint, or the run file's
    complete one.

    ``tokenizer`` is None where one has yet to be trained or opened: ``with_tokenizer`` does it.
    ``source_tokenizer`` is the encoder's own, None where both sides have one. What needs the data
    is a property, read when it is first asked for.
    """

    settings: Run
    base: config.Model
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None

    @cached_property
    def shape(self) -> config.Model:
        """The config with the run's changes, its vocabulary and heads still those of ``base``."""
        return with_overrides(self.settings, self.base)

    @cached_property
    def examples(self) -> tuple[ExampleTable, ExampleTable] | None:
        """The examples to train and to validate on; None where the run learns from running text."""
        data = self.settings.data
        return (
            training_and_validation(data, self.settings.train.objective)
            if isinstance(data, Examples)
            else None
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that a text or a word is given one of; a regression has none."""
        return () if self.examples is None else self.examples[0].labels or ()

    @property
    def vocab(self) -> int:
        """The tokenizer's size; of one that has yet to be trained the size at most, as the settings
        tell it."""
        return self._vocab()

    @property
    def source_vocab(self) -> int:
        """The same of the tokenizer that reads the source."""
        return self._vocab(source=True) if self.two_tokenizers else self.vocab

    def _vocab(self, source: bool = False) -> int:
        if (self.source_tokenizer if source else self.tokenizer) is None:
            kind, vocab = self._tokenizer_spec(source)
            match kind:
                case "bpe":
                    return vocab or DEFAULT_SIZE
                case "byte":
                    return 256 + len(self.specials)
                case "char":
                    return len(set().union(*self.texts(source))) + len(self.specials)
        return self.find_tokenizer(source).size

    @property
    def two_tokenizers(self) -> bool:
        """True if the source has a separate tokenizer."""
        return self.source_tokenizer is not None or two_tokenizers(self.settings)

    def _tokenizer_spec(self, source: bool) -> tuple[str, int | None]:
        """The tokenizer to find, and how many entries to train one of."""
        data = self.settings.data
        if not source:
            return data.tokenizer or "bpe", data.vocab
        assert isinstance(data, Examples) and data.source_tokenizer is not None
        kind = data.source_tokenizer
        shared_vocab = data.vocab if kind in ("bpe", "words") else None
        return kind, data.source_vocab or shared_vocab

    @cached_property
    def _with_heads(self) -> tuple[config.Model, list[str]]:
        model = with_overrides(self.settings, self.base, self.vocab, self.source_vocab)
        return self.settings.train.objective.with_heads(model, len(self.labels))

    @property
    def model(self) -> config.Model:
        """The config of the model that is trained."""
        return self._with_heads[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about heads added to the model or left out for its objective."""
        return tuple(self._with_heads[1])

    @property
    def context(self) -> int:
        """Tokens of a row."""
        return self.settings.train.context or self.shape.context

    @cached_property
    def cost(self) -> Cost:
        """The cost of a step's micro-batches."""
        train_config = self.settings.train
        return replace(
            cost(self.model, -(-train_config.batch // train_config.accumulate), self.context),
            muon=isinstance(train_config.optimizer, Muon),
            accumulated=train_config.accumulate > 1,
        )

    def memory(self, dtype: str, frozen: int | None = None) -> int:
        """Bytes to train in ``dtype``; a weight that does not train has no gradient and no
        moments."""
        if frozen is None:
            frozen = 0 if isinstance(self.settings.train.tune, Full) else self.cost.total
        return self.cost.train("bf16" if dtype == "bfloat16" else "fp32", frozen)

    def check(self, model: config.Model) -> None:
        """UserError for an objective that does not fit the model, the kind of data or the
        tokenizers."""
        train_config, examples = self.settings.train, isinstance(self.settings.data, Examples)
        if self.two_tokenizers:
            in_settings, objective, shape = (
                two_tokenizers(self.settings),
                type(train_config.objective).__name__,
                type(model).__name__,
            )
            leave = "leave out data.source_tokenizer" if in_settings else "begin from another model"
            field_title = "data.source_tokenizer" if in_settings else "The model's source tokenizer"
            need(
                {"source", "target"} <= {*train_config.objective.example_fields},
                f"{field_title} is for a source beside a target, and the objective {objective} "
                f'has none; {leave}, or set train.objective = "Seq2Seq".',
            )
            fits = model.has_source
            need(
                fits,
                f"{field_title} is for an encoder that reads the source, and a {shape} reads "
                f"both sides as one text; {leave}, or choose the recipe of an encoder-decoder.",
            )
        need(
            not train_config.label_smoothing or train_config.objective.smooths_labels,
            "train.label_smoothing changes nothing in the loss of "
            f"{type(train_config.objective).__name__} with these settings; leave it out.",
        )
        train_config.objective.check(
            model, self.tokenizer, examples=examples, tune=train_config.tune
        )

    def with_tokenizer(self) -> RunPlan:
        """The plan with its tokenizer or both of them, opened, or trained on the data."""
        tokenizer = self.find_tokenizer()
        source_tokenizer = self.find_tokenizer(source=True) if self.two_tokenizers else None
        if (
            self.tokenizer is None
            and self.settings.checkpoint is not None
            and not self.settings.train.new_embeddings
        ):
            _must_be_its_own(self.settings, tokenizer, source_tokenizer)
        self.settings.train.objective.prepare_tokenizer(tokenizer)
        plan = replace(self, tokenizer=tokenizer, source_tokenizer=source_tokenizer)
        # not read twice
        vars(plan).update({name: value for name, value in vars(self).items() if name == "examples"})
        plan.check(plan.shape)
        return plan

    def find_tokenizer(self, source: bool = False) -> Tokenizer:
        """The tokenizer of the checkpoint, the one that data.tokenizer names, or one trained on the
        data; for the ``source`` its own one.
        """
        tokenizer = self.source_tokenizer if source else self.tokenizer
        if tokenizer is not None:
            return tokenizer
        data = self.settings.data
        kind, vocab = self._tokenizer_spec(source)
        kinds = (
            ("char", "byte", "bpe", "words")
            if isinstance(data, Examples)
            else ("char", "byte", "bpe")
        )
        if kind in kinds:
            side = (
                "" if not self.two_tokenizers else " of the source" if source else " of the target"
            )
            texts = _announced(f"{kind} tokenizer{side}", self.texts(source))
            return train_tokenizer(kind, texts, vocab, self.specials)
        path = Path(kind).expanduser()
        if path.exists():
            folder = resolve.checkpoint_folder(path) if path.is_dir() else path
            source_path = folder / checkpoint.SOURCE
            return open_tokenizer(source_path if source and source_path.is_file() else folder)
        if kind in pretrained.KNOWN:
            return pretrained.find(kind)
        near, field = (
            nearest(kind, [*kinds, *pretrained.KNOWN]),
            "source_tokenizer" if source else "tokenizer",
        )
        raise UserError(
            f'data.{field}: "{kind}" is not a file, folder, kind or name of a tokenizer.{near}'
        )

    @property
    def specials(self) -> tuple[str, ...]:
        """Special tokens of a tokenizer trained for this run."""
        return self.settings.train.objective.specials or (END,)

    def texts(self, source: bool = False) -> Iterable[str]:
        """Texts that a tokenizer is trained on: all, or with two tokenizers those of its side."""
        data = self.settings.data
        if isinstance(data, Data):
            sources = [find_corpus(name, data.field, data.separator) for name in data.sources()]
            return itertools.chain.from_iterable(source.texts() for source in sources)
        assert self.examples is not None
        return self.examples[0].texts(first=source or not self.two_tokenizers, second=not source)


def two_tokenizers(settings: Run) -> bool:
    """True if the settings name a separate tokenizer for the source."""
    return isinstance(settings.data, Examples) and settings.data.source_tokenizer is not None


def _must_be_its_own(settings: Run, tokenizer: Tokenizer, source: Tokenizer | None) -> None:
    """UserError where the checkpoint's embeddings stand for the tokens of another tokenizer."""
    assert settings.checkpoint is not None
    base = Checkpoint.open(settings.checkpoint)
    base_tokenizer = base.tokenizer()
    sides = (
        ("tokenizer", tokenizer, base_tokenizer),
        ("source_tokenizer", source, base.source_tokenizer() or base_tokenizer),
    )
    for field, named, expected in sides:
        if named is not None and expected is not None and not _same_tokens(named, expected):
            raise UserError(
                f"data.{field} has other tokens than the tokenizer of {settings.checkpoint}, "
                f"whose embeddings mean nothing for them; give --data.{field} "
                f"{settings.checkpoint}, or --new-embeddings true to draw embeddings and head "
                "anew."
            )


def _same_tokens(first: Tokenizer, second: Tokenizer) -> bool:
    """True if each id that both have is the same token."""
    names, second_names = (
        {id: token for token, id in tokenizer.vocabulary().items()} for tokenizer in (first, second)
    )
    return first.fingerprint == second.fingerprint or all(
        names[id] == second_names[id] for id in names.keys() & second_names.keys()
    )


def _announced(title: str, texts: Iterable[str]) -> Iterable[str]:
    """The texts, with a line on standard error once the first has been read without an error."""
    for number, text in enumerate(texts):
        if number == 0:
            note(f"Training a {title}.")
        yield text


def base_model(
    settings: Run, start: Path | None = None
) -> tuple[config.Model, Tokenizer | None, Tokenizer | None]:
    """The config that the run's model starts from, the tokenizer and the source's own one where a
    checkpoint has them: the one that is gone on from, or else begun with.
    """
    table, tokenizer, source = settings.model, None, None
    if start is not None:
        tokenizer, source = (
            checkpoint.open_tokenizer(start),
            Checkpoint.open(start).source_tokenizer(),
        )
    name = settings.checkpoint
    if "recipe" not in table and name is None:
        model_table = {key: value for key, value in table.items() if "." not in key}
        return serial.from_dict(config.Model, model_table, "model"), tokenizer, source
    if "recipe" in table:
        return recipes.find(str(table["recipe"])), tokenizer, source
    assert name is not None
    base = Checkpoint.open(name)
    if base.folder is not None and settings.data.tokenizer is None and tokenizer is None:
        tokenizer = base.tokenizer()
        need(
            tokenizer is not None,
            f"{name} has no tokenizer; name the one that it was trained with: "
            "data.tokenizer = a file, a folder or a name such as gpt2.",
        )
    if start is None and base.config.source_embed is not None and not two_tokenizers(settings):
        source = base.source_tokenizer()
    return base.config, tokenizer, source


def _with_vocab(changes: dict[str, Any], embed: str, vocab: int | None) -> dict[str, Any]:
    """The changes, with the tokenizer's vocabulary where they name none."""
    named = f"{embed}.vocab" in changes or "vocab" in dict(changes.get(embed) or {})
    if named or vocab is None:
        return changes
    return {f"{embed}.vocab": vocab, **changes}


def with_overrides(
    settings: Run, base: Any, vocab: int | None = None, source_vocab: int | None = None
) -> config.Model:
    """The config with the run's changes, the tokenizers' vocabularies if known and the run's
    context in it."""
    table, train_config = settings.model, settings.train
    full_config = "recipe" not in table and "from" not in table
    changes = {k: v for k, v in model_changes(table).items() if not full_config or "." in k}
    sized = "recipe" in table or train_config.new_embeddings
    if sized:
        changes = _with_vocab(changes, "embed", vocab)
    if train_config.context is not None and "recipe" in table:
        changes = {"context": train_config.context, **changes}
    if two_tokenizers(settings) and base.has_source and base.source_embed is None:
        need(
            "from" not in table,
            f"{settings.checkpoint} has one vocabulary for both sides; leave out "
            "data.source_tokenizer, or begin from a recipe.",
        )
        sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})  # of the source's embedding last
        for name, value in changes.items():
            sides[name.partition(".")[0] == "source_embed"][name] = value
        base = serial.change(base, sides[0])
        base, changes = replace(base, source_embed=base.embed), sides[1]
    if sized and base.source_embed is not None:
        changes = _with_vocab(changes, "source_embed", source_vocab)
    model: config.Model = serial.change(base, changes)
    for side, embed, size in (
        ("", model.embed, vocab),
        ("source_", model.input_embed, source_vocab),
    ):
        if size is not None and embed.vocab < size:
            field = f"{side if two_tokenizers(settings) else ''}tokenizer"
            raise UserError(
                f"The {field.replace('_', ' ')} has {size} tokens, the model's {side}embed.vocab "
                f"only {embed.vocab}; raise it or give data.{field} the model's own."
            )
    if (train_config.context or 1) > model.context:
        raise UserError(
            f"train.context {train_config.context} is more than the model's context "
            f"{model.context}; lower it, or raise the model's: --model.context "
            f"{train_config.context}.{longer_hint(model)}"
        )
    return model
