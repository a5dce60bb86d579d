"""The run file: what to train, on what, and how, as frozen dataclasses. No torch here.

[model]                      [data]                        [train]
recipe = "glass/1m"          train = "python-docs"         steps = 1000
decoder.depth = 8            tokenizer = "bpe"             optimizer = { type = "AdamW", lr = 1e-3 }
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from ..core.config.run import Cut, Train
from ..core.config.serial import Range, frozen
from ..core.errors import need
from ..scale.parallel import Parallel

LARGEST_VOCAB = 1 << 20
"""More entries than any published tokenizer has; a trainer would take their memory before it reads
a text."""


Vocab: TypeAlias = Annotated[
    int, Range(lambda x: 0 < x <= LARGEST_VOCAB, f"a number from 1 to {LARGEST_VOCAB:,}")
]
HELD_OUT = Range(
    lambda x: not isinstance(x, float) or 0 < x < 1,
    "a share between 0 and 1, or the path of a file",
)


@frozen
class Data:
    """Running text to train on: a named corpus, a file, a folder, several of them, or ``{name =
    weight}``.

    ``split`` "spread" holds out the end of each tenth of ``train``, so that what is held out is
    like the rest. ``tokenizer`` is "char", "byte" or "bpe" to train one, or a name (gpt2), file or
    folder that has one, a run's too.
    """

    table: ClassVar[str] = "data"

    # a corpus, file or folder; several {name = weight}
    train: str | tuple[str, ...] | dict[str, float] = "python-docs"
    # share of train to hold out, between 0 and 1, or another corpus
    valid: Annotated[float | str, HELD_OUT] = 0.1
    # what is held out: the end of train, or of each tenth of it
    split: Literal["end", "spread"] = "end"
    # trained (char, byte, bpe), or a name, file, folder; none: the model's, else bpe
    tokenizer: str | None = None
    vocab: Vocab | None = None  # entries of a BPE that is trained; none: the trainer's default
    field: str = "text"  # the field of JSONL that holds the text
    separator: str | None = None  # what parts a plain file into documents; none: it is one document

    def __post_init__(self) -> None:
        need(bool(self.train), "data.train is empty; name a corpus, a file or a folder.")

    def sources(self) -> dict[str, float]:
        """Each corpus of ``train`` with its weight."""
        if isinstance(self.train, dict):
            return self.train
        return dict.fromkeys((self.train,) if isinstance(self.train, str) else self.train, 1.0)


@frozen
class Examples:
    """Examples to train on: the columns of a .tsv or .jsonl file, or the lines of parallel files.

    Parts are source and target (Seq2Seq), text, second and label (Classify, Contrast), tokens and
    labels (Tag: a word and its label a line and an empty line between sentences, or lists in
    JSONL). ``train`` and ``valid`` are a file, or ``{source = FILE, target = FILE}`` for parallel
    ones; ``valid`` may be a share of ``train``. ``columns`` names what each part is called in the
    file, or counts from 0 where a .tsv has no header: ``{text = "sentence", label = "label"}``.
    ``labels`` fixes the set and its order (None: those of ``train``). ``prefix`` stands before each
    source or text ("summarize: "). ``truncate`` is where a part too long for the context loses its
    rest, "end" or "start", or "no" to refuse it. ``tokenizer`` is as for Data, or "words": what
    white space parts. With a ``source_tokenizer`` an encoder-decoder has two vocabularies: a
    tokenizer that is trained learns from the texts of its own side, and the source's has
    ``source_vocab`` entries (None: as many as ``vocab``). None is a pair's own, else ``tokenizer``
    for both sides.
    """

    table: ClassVar[str] = "data"

    train: str | dict[str, str]  # a file, or {source = FILE, target = FILE} for parallel ones
    # share of train to hold out, or files as for train
    valid: Annotated[float | str | dict[str, str], HELD_OUT] = 0.1
    # {part = column's name, or its number from 0}
    columns: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] | None = None  # the labels in their order; none: those of train
    prefix: str = ""  # put before each source or text, such as "summarize: "
    # where a part too long loses its rest; "no" refuses it
    truncate: Cut = "no"
    tokenizer: str | None = None  # as for Data, or "words": split at white space
    # entries of a tokenizer that is trained; none: the trainer's default
    vocab: Vocab | None = None
    source_tokenizer: str | None = None  # of the source alone; none: both sides have one tokenizer
    # entries of a source tokenizer that is trained; none: as vocab
    source_vocab: Vocab | None = None

    def __post_init__(self) -> None:
        need(bool(self.train), "data.train is empty; name a file, or a file for each part.")
        alone = self.source_vocab is not None and self.source_tokenizer is None
        need(
            not alone,
            "data.source_vocab is for a tokenizer of the source; give data.source_tokenizer too.",
        )


@frozen
class Run:
    """A whole run. ``model`` holds ``recipe`` or ``from`` (a folder, a hub name), and changes to
    its config.

    Without either it is a whole model config with its ``type``. ``{seed}`` in ``from`` stands for
    ``train.seed``, so that of several seeds each goes on from its own checkpoint.
    """

    model: dict[str, Any] = field(default_factory=lambda: {"recipe": "glass/1m"})
    data: Data | Examples = Data()
    train: Train = field(default_factory=Train)
    parallel: Parallel = Parallel()

    @property
    def checkpoint(self) -> str | None:
        """The folder or hub name that the model comes from, with the run's own seed in it; None
        where it is new."""
        name = self.model.get("from")
        if name is None:
            return None
        return str(name).replace("{seed}", str(self.train.seed))
