"""Ends that architectures name: labels of a text or of each token, and where an answer lies.

decoder     a ``score`` of the last token       or labels of each token
pair        a text that both sides read: its labels at the decoder's last EOS, answers on the decoder
encoder     encoder_pages.py, for each family calls its layers differently

No torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import Activation
from ..core.config.pool import Pool, TokenHead
from ..core.errors import need
from .config_reader import ConfigReader, Settings
from .names import Names, Table, rules

MASKED, LABELS, CHOICE = "MaskedLM", "SequenceClassification", "MultipleChoice"
TOKENS, ANSWERS = "TokenClassification", "QuestionAnswering"
PRETRAINING = "PreTraining"
ENDS = (LABELS, TOKENS, ANSWERS)
HEADS = ("lm_head.weight", "embed_out.weight")  # over tokens, of a decoder's files


def head_of(raw: ConfigReader) -> str:
    """The part of an architecture's name that says which head it has; empty for a bare model."""
    return raw.architecture("").partition("For")[2]


# ---------------------------------------------------------------------------------- config.json, in


def read_labels(raw: ConfigReader) -> int:
    """Number of labels to choose from."""
    named = raw.inside("id2label")
    return int(raw.integer("num_labels", 2) if named is None else len(named.table))


def read_token_head(raw: ConfigReader, dropout: float) -> TokenHead:
    """The head over each token that an architecture names; an answer has no dropout before it."""
    labels, span = read_labels(raw), head_of(raw) == ANSWERS
    fits = labels == 2 or not span
    raw.must(fits, "id2label", "a table of 2, where an answer starts and where it ends")
    return TokenHead(labels, dropout=0.0 if span else dropout, span=span)


def read_ends(raw: ConfigReader, model: Any, eos: int | None, headless: bool) -> Any:
    """The decoder or pair with the ends that its architecture names in place of its head over tokens.

    ``eos`` ends a text where the file does not say; ``headless``: the files of a bare model may
    hold no head.
    """
    kind = head_of(raw)
    pair = model.has_source
    is_decoder = model.is_decoder
    usual = raw.number("hidden_dropout", 0.1, most=0.99) if is_decoder else 0.0
    dropout = raw.number("classifier_dropout", usual, most=0.99)
    ends: Settings = {}
    if kind == LABELS:
        act: Activation | None = "tanh" if pair else None
        word = "eos" if pair else "pad"
        ids = {word: raw.value(f"{word}_token_id", eos)}
        share = dropout if pair else 0.0  # a score has none
        ends["pool"] = Pool("last", act, read_labels(raw), share, bias=pair, **ids)
    elif kind in ENDS:
        ends["token_head"] = read_token_head(raw, dropout)
    elif not (headless and is_decoder) or model.head.tied or any(map(raw.holds, HEADS)):
        return model
    return replace(model, head=None, **ends)


# --------------------------------------------------------------------------------- config.json, out


def head_name(model: Any) -> str:
    """The head that a model has, as architectures are named; empty for a bare one."""
    if model.token_head is not None:
        return ANSWERS if model.token_head.span else TOKENS
    labels = LABELS if model.labels else ""
    if model.head is not None:
        return PRETRAINING if labels else MASKED
    return labels


def write_dropout(model: Any, word: str = "classifier_dropout") -> Settings:
    """The ``word`` of the dropout before labels, of the text or of each token."""
    head = model.token_head or model.pool
    return {word: head.dropout} if head_name(model) in ENDS else {}


def write_ends(raw: Settings, model: Any, names: tuple[str, ...]) -> Settings:
    """Settings of the ends of a model, ``raw`` the others; ``names`` are its family's architectures.

    Raises UserError where none is of this end.
    """
    kind = head_name(model)
    head = model.token_head or model.pool
    added = Settings()
    fitting = [name for name in names if name.endswith(f"For{kind}" if kind else "Model")]
    need(bool(fitting), f"Its family has no class For{kind}.")
    if kind in ENDS:
        raw.pop("tie_word_embeddings", None)  # of a head that is not here
        ids = {f"LABEL_{i}": i for i in range(head.labels)}
        added |= {"id2label": {str(i): name for name, i in ids.items()}, "label2id": ids}
    elif model.head is not None:
        added["tie_word_embeddings"] = model.head.tied
    elif head is None:
        word = "tie_word_embeddings" if model.is_decoder else "add_pooling_layer"
        added[word] = False
    if model.has_source:  # a tokenizer's follows, where there is one; theirs shifts texts by it
        raw.setdefault("pad_token_id", 1)
    for word in ("eos", "pad"):
        if (id := getattr(model.pool, word, None)) is not None:
            added[f"{word}_token_id"] = id
    return {"architectures": fitting[-1:], **raw, **added}


# ------------------------------------------------------------------------------------ weight names


PAIR = {"pool.transform": "classification_head.dense", "pool.proj": "classification_head.out_proj"}


def name_ends(table: Table, model: Any, root: str) -> Table:
    """The table with the names of the ends of a decoder or a pair, all else below ``root``; a head
    over tokens in the files is passed over."""
    generic = "score" if table.prefix == "model." else "classifier"
    pool = PAIR if model.has_source else {"pool.proj": "score"}
    ends = rules(label_layers(model, pool, generic))

    def below(name: str) -> str:
        return root + name.removeprefix(table.prefix)

    return replace(
        table,
        rules=(*(replace(rule, file_name=below(rule.file_name)) for rule in table.rules), *ends),
        ignore=tuple(map(below, (*table.ignore, *HEADS))),
        copies=tuple((below(copy), below(x)) for copy, x in table.copies if copy not in HEADS),
        prefix=root,
    )


def label_layers(model: Any, pool: Names, tokens: str = "classifier") -> Names:
    """The layers of labels: those of each token, ``tokens`` their name, or of the ``pool``."""
    head = model.token_head
    return pool if head is None else {"token_head.proj": "qa_outputs" if head.span else tokens}
