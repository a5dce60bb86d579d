"""From a run file to what is trained and what it learns from: tokenizer, data, the model's config, the model."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import config, recipes
from ..checkpoints import Checkpoint, places, store
from ..checkpoints.checkpoint import open_tokenizer as checkpoint_tokenizer
from ..config import objective as objectives
from ..config import serial
from ..config.context import longer_hint
from ..config.run import Data, Examples, Run, Train, model_changes
from ..data import Shards, tokenise
from ..data import find as find_corpus
from ..errors import UserError, nearest, need
from ..nn import build_model, lora
from ..tokenizer import Tokenizer, pretrained
from ..tokenizer import open as open_tokenizer
from ..tokenizer import train as train_tokenizer
from ..tokenizer.trainers import DEFAULT_SIZE, END
from .data import Batch, Batches, every_token_once, transformed, transformed_once
from .encoded import encode
from .examples import ExampleBatches, each_once
from .hooks import note

if TYPE_CHECKING:
    from ..data.examples import Table

Tables = tuple["Table", "Table"]
TENTHS = 10  # pieces of a text whose validation is spread, each at least ROWS contexts long
ROWS = 16
SHOWN = 60  # characters of the source whose answer is shown while training, about

# --------------------------------------------------------------------------------------- the model


def origin(settings: Run, start: Path | None) -> tuple[config.Model, Tokenizer | None]:
    """The config that the run's model starts from, and its tokenizer where it has one."""
    table = settings.model
    tokenizer = checkpoint_tokenizer(start) if start is not None else None
    if "recipe" in table:
        return recipes.find(str(table["recipe"])), tokenizer
    if "from" in table:
        found = places.resolve(str(table["from"]))
        if not isinstance(found, Path):
            return found, tokenizer
        if settings.data.tokenizer is None and tokenizer is None:
            tokenizer = checkpoint_tokenizer(found)
            sentence = f"{table['from']} has no tokenizer; name the one that it was trained with: data.tokenizer"
            need(tokenizer is not None, f"{sentence} = a file, a folder or a name such as gpt2.")
        return Checkpoint.open(found).config, tokenizer
    whole = {key: value for key, value in table.items() if "." not in key}
    made: config.Model = serial.from_dict(config.Model, whole, "model")
    return made, tokenizer


def fitted(settings: Run, start: config.Model, vocab: int | None = None) -> config.Model:
    """The model's config with the run's changes, the tokenizer's ``vocab`` if known and the run's context in it."""
    table, how = settings.model, settings.train
    whole = "recipe" not in table and "from" not in table
    changes = {k: v for k, v in model_changes(table).items() if not whole or "." in k}
    if "recipe" in table:
        named = "embed.vocab" in changes or "vocab" in dict(changes.get("embed") or {})
        changes = changes if named or vocab is None else {"embed.vocab": vocab, **changes}
        if how.context is not None:
            changes = {"context": how.context, **changes}
    made = serial.change(start, changes)
    for name, embed in (("embed", made.embed), ("source_embed", config.source_embed(made))):
        if vocab is not None and embed.vocab < vocab:
            sentence = f"The tokenizer has {vocab} tokens, the model's {name}.vocab only {embed.vocab}; "
            raise UserError(sentence + "raise it or give data.tokenizer the model's own.")
    if (how.context or 1) > made.context:
        raise UserError(
            f"train.context {how.context} is more than the model's context {made.context}; lower it.{longer_hint(made)}"
        )
    return made


def build(settings: Run, made: config.Model, device: torch.device, fresh: bool) -> tuple[Any, list[str]]:
    """The model to train, of its checkpoint's weights where it has one; what was drawn anew and what trains, said."""
    seed, tune = settings.train.seed, settings.train.tune
    whole = isinstance(tune, objectives.Full)
    if "from" not in settings.model:
        kind = type(tune).__name__
        need(whole, f'{kind} changes a model that was trained; name it, [model] from = "FOLDER".')
        return build_model(made, device=device, seed=seed), []
    if whole and not fresh:
        return build_model(made, device=device, seed=seed), []
    name = str(settings.model["from"])
    found = store.load_as(made, name, seed=seed, dtype=torch.float32, device=device)
    drawn = sorted({path.rpartition(".")[0] for path in found.new})
    said = [f"{name} has no weights for {', '.join(drawn)}: drawn anew."] if drawn else []
    lora.tune(found.model, tune, found.new, seed)
    if not whole:
        moving = sum(weight.numel() for _, weight in lora.trained(found.model))
        said.append(f"{type(tune).__name__} trains {moving:,} weights; the others stay as they are.")
    return found.model, said if fresh else []


def base_of(settings: Run) -> str | None:
    """The name by which the model that is changed will be found again; None where a whole model is trained."""
    if isinstance(settings.train.tune, objectives.Full):
        return None
    name = str(settings.model["from"])
    found = places.resolve(name)
    return str(found.resolve()) if isinstance(found, Path) and Path(name).expanduser().is_dir() else name


def content_of(model: Any) -> str:
    """A digest of the weights that do not train, made at the speed of the memory."""
    still = [(name, weight.detach()) for name, weight in model.named_parameters() if not weight.requires_grad]
    sums = [(name, int(weight.view(torch.int32).sum(dtype=torch.int64))) for name, weight in still]
    return hashlib.sha256(repr(sums).encode()).hexdigest()


# ---------------------------------------------------------------------------------------- the data


@dataclass(frozen=True)
class RunData:
    """What a run learns from: endless ``batches``, and those it is validated on.

    ``name`` says what it is and how much, ``rows`` how many rows it fills; ``prompt`` is a source to show an answer to,
    ``held_out`` the running text that validation reads (all of it or some).
    """

    batches: Any
    validation: Callable[[], Iterable[Batch]]
    name: str
    rows: float
    notes: tuple[str, ...] = ()
    prompt: str | None = None
    held_out: tuple[Shards, ...] = ()


def tables(settings: Run) -> Tables | None:
    """The examples to train and to validate on; None where the run learns from running text."""
    if not isinstance(settings.data, Examples):
        return None
    from ..data.examples import training_and_validation

    return training_and_validation(settings.data, settings.train.objective)


def labels(settings: Run, examples: Tables | None) -> tuple[str, ...]:
    """The names of the labels that a text or a word is given one of; a regression has none."""
    return () if examples is None else examples[0].labels or ()


def tokenizer_of(settings: Run, examples: Tables | None) -> Tokenizer:
    """A tokenizer trained on the data, or the one at the path named."""
    data = settings.data
    kind = data.tokenizer or "bpe"
    kinds = ("char", "byte", "bpe", "words") if examples else ("char", "byte", "bpe")
    if kind not in kinds:
        path = Path(kind).expanduser()
        if not path.exists() and kind in pretrained.KNOWN:
            return pretrained.find(kind)
        if not path.exists():
            known = nearest(kind, [*kinds, *pretrained.KNOWN])
            raise UserError(f'data.tokenizer: "{kind}" is not a file, folder, kind or name of a tokenizer.{known}')
        return open_tokenizer(places.checkpoint(path) if path.is_dir() else path)
    return train_tokenizer(kind, _announced(kind, _texts(data, examples)), data.vocab, _specials(settings))


def vocabulary_of(settings: Run, examples: Tables | None) -> int:
    """The number of tokens that ``tokenizer_of`` gives, at most: nothing is trained where the settings tell it."""
    kind, vocab, specials = settings.data.tokenizer or "bpe", settings.data.vocab, len(_specials(settings))
    if kind == "bpe":
        return vocab or DEFAULT_SIZE
    if kind == "byte":
        return 256 + specials
    if kind == "char":
        return len(set().union(*_texts(settings.data, examples))) + specials
    return tokenizer_of(settings, examples).size


def _specials(settings: Run) -> tuple[str, ...]:
    return settings.train.objective.specials or (END,)


def _texts(data: Data | Examples, examples: Tables | None) -> Iterable[str]:
    """What a tokenizer is trained on."""
    if isinstance(data, Data):
        sources = [find_corpus(name, data.field, data.separator) for name in data.sources()]
        return itertools.chain.from_iterable(source.texts() for source in sources)
    assert examples is not None
    return examples[0].texts()


def _announced(kind: str, texts: Iterable[str]) -> Iterable[str]:
    """The texts; before the first, which is there then and can be read, what is done with them is said."""
    for number, one in enumerate(texts):
        if number == 0:
            note(f"Training a {kind} tokenizer.")
        yield one


def run_data(settings: Run, tokenizer: Tokenizer, examples: Tables | None, made: config.Model) -> RunData:
    """The run's batches and those it is validated on."""
    how, data = settings.train, settings.data
    context = how.context or made.context
    if isinstance(data, Data):
        found = _running(data, tokenizer, how, context)
    else:
        assert examples is not None
        found = _examples(data, examples, tokenizer, how, made, context)
    once = found.validation
    return replace(
        found,
        batches=transformed(found.batches, how.objective, tokenizer, how.seed),
        validation=lambda: transformed_once(once(), how.objective, tokenizer, how.seed),
    )


def _running(data: Data, tokenizer: Tokenizer, how: Train, context: int) -> RunData:
    training: list[tuple[Shards, float]] = []
    held_out: list[Shards] = []
    notes: list[str] = []
    for name, weight in data.sources().items():
        source = find_corpus(name, data.field, data.separator)
        notes += getattr(source, "notes", ())
        shards = tokenise(source, tokenizer)
        if isinstance(data.valid, float):
            pieces = _held_out(shards, data, context)
            held_out += [rest for _, rest in pieces]
            size = sum(len(part) for part, _ in pieces)
            training += [(part, weight * (len(part) / size)) for part, _ in pieces]
        else:
            training.append((shards, weight))
    if isinstance(data.valid, str):
        held_out.append(tokenise(find_corpus(data.valid, data.field, data.separator), tokenizer))
    batches = Batches(training, how.batch, context, how.seed)
    short = next((part for part in held_out if len(part) < 2), None)
    if short is not None and how.evaluate_every:
        raise UserError(f"{short.name} sets aside {len(short)} token to validate on; raise data.valid or give a file.")
    names = ", ".join(dict.fromkeys(part.name for part, _ in training))
    tokens = sum(len(part) for part, _ in training)
    return RunData(
        batches,
        _validation(held_out, how, context),
        f"{names} ({tokens:,} tokens)",
        tokens / context,
        tuple(notes),
        held_out=tuple(held_out) if how.objective.every_token else (),
    )


def _held_out(shards: Shards, data: Data, context: int) -> list[tuple[Shards, Shards]]:
    """What is trained on and what is held out, in pieces long enough for some rows each."""
    assert isinstance(data.valid, float)
    if data.split == "end":
        return [shards.split(data.valid)]
    return shards.spread(data.valid, max(1, min(TENTHS, len(shards) // (ROWS * context))))


def _examples(
    data: Examples, examples: Tables, tokenizer: Tokenizer, how: Train, made: config.Model, context: int
) -> RunData:
    train, valid = (encode(table, tokenizer, how.objective, made, context, data.cut) for table in examples)
    batches = ExampleBatches(train, how.batch, context, how.seed)
    rows = train.tokens / (len(train.sides) * context * batches.fill)
    source = min((one.first for one in examples[1]), key=lambda text: abs(len(text) - SHOWN))
    return RunData(
        batches,
        lambda: each_once(valid, how.batch, context),
        f"{train.name} ({len(train):,} examples in {rows:,.0f} rows, {batches.fill:.0%} full)",
        rows,
        tuple(said for table in examples for said in table.notes),
        source,
    )


def _validation(held_out: list[Shards], how: Train, context: int) -> Callable[[], Iterable[Batch]]:
    """What is evaluated each time: all of the held-out text where it is short, else the same random rows of it."""
    if sum(map(len, held_out)) <= how.evaluate_batches * how.batch * context or min(map(len, held_out)) <= context:
        everything = [(shards, how.batch, context) for shards in held_out]
        return lambda: itertools.chain.from_iterable(itertools.starmap(every_token_once, everything))
    parts = [(shards, float(len(shards))) for shards in held_out]
    return lambda: itertools.islice(Batches(parts, how.batch, context, how.seed), how.evaluate_batches)
