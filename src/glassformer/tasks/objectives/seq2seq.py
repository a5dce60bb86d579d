"""A target text after a source text: translation, summarization.

encoder-decoder   source  s s s </s>         tokens  <s> t t t    targets  t t t </s>
decoder           tokens  s s s <s> t t t    targets  - - - t t t </s>
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.config import Decoder, EncoderDecoder
from ...core.config.serial import frozen
from ..example_table import Example
from ..examples import ExampleRow
from .documents import SomeTokens

if TYPE_CHECKING:
    from .documents import Fit, Framing, Item, Layout


@frozen
class Seq2Seq(SomeTokens):
    """The target text after the source text: translation, summarization. A decoder alone reads both
    as one."""

    shapes = (EncoderDecoder, Decoder)
    example_fields = ("source", "target")
    specials = ("<pad>", "<s>", "</s>", "<unk>")
    generates = True

    def example(self, row: ExampleRow) -> Example:
        """A source and its targets; the first is learned from, all are references."""
        source, targets = row.prefixed_text("source"), row.texts("target")
        return Example(source, targets[0], line=row.line, references=targets)

    def layout(self, framing: Framing, fit: Fit) -> Layout:
        """The source for the encoder and the target for the decoder, or both as one text of which
        the end is asked."""
        from ...core.tokenizer.framing import decoder_start, end_of_target, question, source

        tokenizer, eos = framing.tokenizer, end_of_target(framing.tokenizer)

        def pair(example: Example, first: list[int], target: list[int] | None) -> list[Item]:
            assert target is not None
            (first,) = fit(example, [first], 1, "source")
            start = decoder_start(tokenizer, framing.model)
            (target,) = fit(example, [target], len(start), "target")
            source_ids = source(framing.source_tokenizer or tokenizer, first)
            tokens = [*start, *target]
            unlearned = [-1] * (len(start) - 1)
            pos = [*range(len(tokens))]
            written = {"tokens": tokens, "targets": [*unlearned, *target, eos], "pos": pos}
            return [written, {"source": source_ids, "source_pos": [*range(len(source_ids))]}]

        def one_text(example: Example, first: list[int], target: list[int] | None) -> list[Item]:
            assert target is not None
            around = len(question(tokenizer, []))
            first, target = fit(example, [first, target], around, "source and target")
            asked = question(tokenizer, first)
            targets = [-1] * (len(asked) - 1) + [*target, eos]
            return [{"tokens": asked + target, "targets": targets, "pos": [*range(len(targets))]}]

        return pair if framing.model.has_source else one_text
