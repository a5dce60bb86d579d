"""The assistant's answers in conversations (supervised fine-tuning).

text      <|im_start|>user⏎ Hi <|im_end|>⏎ <|im_start|>assistant⏎ Hello ! <|im_end|>
targets   -                                                     Hello ! <|im_end|>
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...core.config.serial import frozen
from ...core.errors import need
from ..conversations import ConversationRecord
from ..example_table import Example
from .documents import SomeTokens

if TYPE_CHECKING:
    from ..answer_weights import Weighted
    from ..encoded import Encoded
    from ..example_table import ExampleTable
    from .documents import Fit, Tokenizer


CHATML = ("<|im_start|>", "<|im_end|>")
"""The special tokens of the template chatml."""


class Conversations(SomeTokens):
    """An objective that learns from conversations, by the tokenizer's chat template."""

    template: str
    date: str

    specials = ("<|endoftext|>", *CHATML)

    def prepare_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Give the tokenizer the template of the settings, or "chatml" where it has none and was
        trained for it; and the tokens that close an answer as the ends of what is written."""
        from ...formats import chat_template
        from ...formats.tokenizer_files import read_template
        from ..answer_weights import template_of

        fits_chatml = tokenizer.specials.keys() >= {*CHATML}
        source = self.template or ("chatml" if fits_chatml else "")
        if source == "chatml" and (self.template or tokenizer.chat_template is None):
            need(
                fits_chatml,
                f"The chat template chatml writes {' and '.join(CHATML)}, which this "
                "tokenizer lacks; add them: glassformer convert MODEL --add-tokens "
                f"{' '.join(map(repr, CHATML))} --out FOLDER.",
            )
            tokenizer.chat_template = chat_template.CHATML
        elif self.template:
            tokenizer.chat_template = read_template(Path(self.template).expanduser())
        closing = template_of(tokenizer, self.date).closing()
        # in their order, so that a run that goes on writes the same config.json
        end_ids = dict.fromkeys((*(tokenizer.ends or tokenizer.end_ids), *closing))
        tokenizer.ends = () if {*end_ids} == {tokenizer.eos} else tuple(end_ids)

    def encode(self, table: ExampleTable, tokenizer: Tokenizer, fit: Fit) -> Encoded:
        """The conversations as ids, targets and positions."""
        from ..answer_weights import encode, template_of

        return encode(table, template_of(tokenizer, self.date), self.documents, fit)

    def documents(self, sides: list[list[Weighted]]) -> list[list[Weighted]]:
        """The documents that stand side by side, of each item that an example becomes."""
        raise NotImplementedError


@frozen
class Chat(Conversations):
    """The assistant's answers in conversations of one turn or several, their ends included; what
    others say is only read.

    ``template`` is a Jinja file, or "chatml" for a tokenizer that has none. ``date`` is today in
    templates that write a date, so that the same run reads the same texts on another day.
    """

    template: str = ""  # a chat template's file, or chatml; none: the tokenizer's
    date: str = "2024-07-26"  # today, for templates that write a date

    example_fields = ("messages", "prompt", "completion")
    optional = example_fields

    def example(self, row: ConversationRecord) -> Example:
        """A conversation."""
        return row.conversation()

    def documents(self, sides: list[list[Weighted]]) -> list[list[Weighted]]:
        """Each text alone."""
        return [[text] for text in sides[0]]
