"""Ends that architectures name: labels of a text or of each token, and where an answer lies.

decoder     a ``score`` of the last token       or labels of each token
pair        a text that both sides read: its labels at the decoder's last EOS, answers on the decoder
encoder     encoder_pages.py, for each family calls its layers differently

No torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.model import Decoder
from ..core.config.pool import Pool, TokenHead
from ..core.errors import need
from .config_reader import ConfigReader, Settings
from .names import Names, Table, rules, under

MASKED, LABELS, CHOICE = "MaskedLM", "SequenceClassification", "MultipleChoice"
TOKENS, ANSWERS = "TokenClassification", "QuestionAnswering"
PRETRAINING = "PreTraining"
ENDS = (LABELS, TOKENS, ANSWERS)


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
    kind, pair = head_of(raw), model.has_source
    is_decoder = isinstance(model, Decoder)
    usual = raw.number("hidden_dropout", 0.1, most=0.99) if is_decoder else 0.0
    dropout = raw.number("classifier_dropout", usual, most=0.99)
    if kind == LABELS and pair:
        eos = raw.value("eos_token_id", eos)
        return replace(
            model, head=None, pool=Pool("last", "tanh", read_labels(raw), dropout, eos=eos)
        )
    if kind == LABELS:
        pad = raw.value("pad_token_id", None)
        return replace(
            model, head=None, pool=Pool("last", None, read_labels(raw), bias=False, pad=pad)
        )
    if kind in (TOKENS, ANSWERS):
        return replace(model, head=None, token_head=read_token_head(raw, dropout))
    head = raw.holds("lm_head.weight") or raw.holds("embed_out.weight")
    bare = headless and is_decoder and not (model.head.tied or head)
    return replace(model, head=None) if bare else model


# --------------------------------------------------------------------------------- config.json, out


def head_name(model: Any) -> str:
    """The head that a model has, as architectures are named; empty for a bare one."""
    if model.token_head is not None:
        return ANSWERS if model.token_head.span else TOKENS
    labels = LABELS if model.pool is not None and model.pool.labels else ""
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
    kind, head, added = head_name(model), model.token_head or model.pool, Settings()
    fitting = [name for name in names if name.endswith(f"For{kind}" if kind else "Model")]
    need(bool(fitting), f"Its family has no class For{kind}.")
    if kind in ENDS:
        added["id2label"] = {str(i): f"LABEL_{i}" for i in range(head.labels)}
    elif model.head is not None:
        added["tie_word_embeddings"] = model.head.tied
    elif head is None:
        added |= {"add_pooling_layer": False, "tie_word_embeddings": False}
    return {"architectures": fitting[-1:], **added, **raw}


def write_tokens(model: Any) -> Settings:
    """Settings of the tokens that say where a text of a decoder or pair ends."""
    # of a pair, a tokenizer's follows, where there is one; theirs shifts texts by it
    raw: Settings = {"pad_token_id": 1} if model.has_source else {}
    ids = {f"{name}_token_id": getattr(model.pool, name, None) for name in ("eos", "pad")}
    return raw | {word: id for word, id in ids.items() if id is not None}


# ------------------------------------------------------------------------------------ weight names


def name_ends(table: Table, model: Any, root: str | None) -> Table:
    """The table with the names of the ends of a decoder or a pair, all else below ``root`` where the
    class of such a model has another than the family's."""
    generic = "score" if table.prefix == "model." else "classifier"
    pool = {"pool.proj": "score"}
    if model.has_source:
        pool = under("classification_head", {"transform": "dense", "proj": "out_proj"}, "pool.")
    ends = rules(label_layers(model, pool, generic))
    if root is None:
        return replace(table, rules=(*table.rules, *ends))

    def below(name: str) -> str:
        return root + name.removeprefix(table.prefix)

    return replace(
        table,
        rules=(*(replace(rule, file_name=below(rule.file_name)) for rule in table.rules), *ends),
        ignore=tuple(map(below, table.ignore)),
        copies=tuple((below(copy), below(original)) for copy, original in table.copies),
        prefix=root,
    )


def label_layers(model: Any, pool: Names, tokens: str = "classifier") -> Names:
    """The layers of labels: those of each token, ``tokens`` their name, or of the ``pool``."""
    head = model.token_head
    return pool if head is None else {"token_head.proj": "qa_outputs" if head.span else tokens}
