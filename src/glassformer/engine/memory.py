"""What an engine for a model needs and may take, said before anything is computed; what of a request it can answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .. import config
from ..cost import available_memory, gibibytes
from ..errors import UserError, need
from ..generation.prompt import check
from ..nn import Model, kernels
from ..nn.exact_experts import exact_experts
from ..nn.fused import fuse
from ..nn.kernels import PAGE
from ..nn.paged import PagedCache
from ..nn.prepacked import prepack
from .pages import PagePool
from .request import Encode, Request
from .runner import PagedRunner, Runner, Sources, StateRunner

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


@dataclass
class Room:
    """The longest ``context``, the pages of ``pool`` (``size`` tokens each; a recurrent state is one), and their bytes.

    The ``first`` tokens of a text are read in one go; ``rewinds``: guesses that were wrong can be taken back.
    """

    model: Model  # its products by prepacked weights, where they pay
    context: int
    sequences: int
    pool: PagePool
    source_pages: int
    size: int
    nbytes: int
    first: int = 0
    copied: int = 0  # bytes of prepacked weights
    draft: Model | None = None

    @property
    def rewinds(self) -> bool:
        """Whether what was read can be forgotten: pages can, states cannot."""
        return self.size == PAGE

    def __str__(self) -> str:
        """What was taken, in a sentence."""
        held = f"{len(self.pool.users)} pages of {self.size} tokens" if self.rewinds else "a state a text"
        texts = f"at most {self.sequences} texts of {self.context:,} tokens at once"
        copied = f" and {gibibytes(self.copied)} for prepacked weights" if self.copied else ""
        return f"{gibibytes(self.nbytes)} for {held}{copied}; {texts}."

    def runner(self) -> Runner:
        """What reads chunks into these pages."""
        if not self.rewinds:
            return StateRunner(self.model)
        cfg = self.model.config
        assert not isinstance(cfg, config.Encoder)
        cache = PagedCache(cfg, self.context, len(self.pool.users), self.source_pages, page_dtype(self.model))
        return PagedRunner(self.model, cache, Sources(self.source_pages))

    def drafter(self) -> PagedRunner | None:
        """What reads chunks by the draft model, into pages of the same numbers."""
        if self.draft is None or not self.rewinds:
            return None
        assert isinstance(self.draft.config, config.Decoder)
        context = int(min(self.context, self.draft.config.context, self.draft.limit))
        cache = PagedCache(self.draft.config, context, len(self.pool.users), 0, page_dtype(self.draft))
        return PagedRunner(self.draft, cache, Sources(0))


def page_dtype(model: Model) -> torch.dtype:
    """What keys and values are kept in."""
    return torch.bfloat16 if next(model.parameters()).dtype == torch.bfloat16 else torch.float32


def reader(model: Model) -> tuple[Model, int]:
    """A view of the model that reads prepacked weights, in a quarter of the free memory, and the bytes that it takes.

    By our own kernels where they are compiled: then a row's bits depend on no other row.
    """
    if model.training:
        return model, 0
    free = available_memory()
    compiled, room = kernels.path() != "torch", None if free is None else free // 4
    view = prepack(model, room, exact=compiled)
    taken = sum(packed.group.nbytes for packed in view.packed)
    if not compiled:
        return fuse(view.model), taken
    exact, more = exact_experts(view.model, None if room is None else room - taken)
    return fuse(exact), taken + more


def room_for(model: Model, context: int | None, sequences: int, memory: int | None, draft: Model | None = None) -> Room:
    """The room that so many texts of that length at once need, or as much of it as ``memory`` (bytes) holds."""
    cfg, most = model.config, int(min(model.config.context, model.limit))
    device = next(model.parameters()).device.type
    need(device == "cpu", f'The engine computes on a CPU, and the model is on {device}; load it with device="cpu".')
    need(sequences >= 1, f"max_sequences is {sequences}; give 1 or more.")
    need(context is None or 1 <= context <= most, f"max_context is {context}; give 1 to {most}.")
    context = context or most
    model, copied = reader(model)
    if isinstance(cfg, config.Encoder) or isinstance(cfg.decoder, config.Recurrent):
        return Room(model, context, sequences, PagePool(sequences), 0, context + 1, 0, 0, copied)
    blocks = [cfg.decoder.block(index) for index in range(cfg.decoder.depth)]
    attentions = [one for block in blocks for one in (block.attention, block.cross) if one is not None]
    even = all(config.head_dim(one, cfg.dim) % 2 == 0 for one in attentions)
    need(even, "An engine takes heads of an even number of dimensions; use glassformer.generate for this model.")
    own, across = PagedCache.page_bytes(cfg, page_dtype(model))
    if draft is not None:
        assert isinstance(draft.config, config.Decoder)
        own += PagedCache.page_bytes(draft.config, page_dtype(draft))[0]
        draft, more = reader(draft)
        copied += more
    each = -(-context // PAGE)
    if memory is None:
        free = available_memory()
        memory = own * each * sequences + across * each * sequences if free is None else free // 2
    sources = each * min(sequences, max(1, memory // 2 // (across * each))) if across else 0
    pages = min(each * sequences, (memory - sources * across) // own)
    least = gibibytes((own + across) * each)
    need(
        pages >= each,
        f"One text of {context:,} tokens needs {least}, and {gibibytes(memory)} are there for it; "
        "give a smaller max_context, or more memory.",
    )
    first = max(block.attention.mask.prefix_length for block in blocks)
    sequences = min(sequences, sources // each) if across else sequences
    taken = pages * own + sources * across
    return Room(model, context, sequences, PagePool(pages), sources, PAGE, taken, first, copied, draft)


def check_request(request: Request, model: Model, tokenizer: Tokenizer | None, context: int, first: int) -> None:
    """UserError for what this model cannot continue."""
    cfg = model.config
    _check_length(request.tokens, model, context)
    if isinstance(cfg, config.Encoder) or cfg.head is None:
        raise UserError("This model cannot continue a text; use it to encode texts.")
    said = f"this model reads its first {first} tokens in one go; give that many to begin with."
    need(len(request.tokens) >= first, said)
    two = isinstance(cfg, config.EncoderDecoder)
    need(two == (request.source is not None), f"This model {'needs a' if two else 'takes no'} source.")
    if request.source is not None:
        check(request.source, config.source_embed(cfg).vocab)
        length = len(request.source)
        need(length <= context, f"{length} tokens of source are more than the {context} allowed; shorten them.")
    need(not request.stop or tokenizer is not None, "Stop strings need a tokenizer; give the engine one.")
    wrong = next((token for token in request.logit_bias if not 0 <= token < cfg.embed.vocab), None)
    need(wrong is None, f"logit_bias names token {wrong}; this model knows 0 to {cfg.embed.vocab - 1}.")
    read = request.prompt_logprobs is not None or bool(request.want)
    need(request.max_new != 0 or read, "max_new is 0; ask for prompt_logprobs or want something then.")


def check_encode(request: Encode, model: Model, context: int) -> None:
    """UserError for what this model cannot say of a text."""
    cfg = model.config
    _check_length(request.tokens, model, context)
    need(not isinstance(cfg, config.EncoderDecoder), "An encoder-decoder has no vector for a text; use another.")
    labelled = cfg.pool is not None and bool(cfg.pool.labels)
    need(request.output != "labels" or labelled, "This model has no labels for texts; train it with Classify.")
    need(
        request.output != "tags" or model.token_head is not None, "This model has no labels for tokens; train with Tag."
    )
    need(request.output != "logits" or cfg.head is not None, "This model has no head over tokens.")
    segments = cfg.embed.segments
    need(request.segments is None or bool(segments), "This model reads one text, not pairs; leave out segments.")
    wrong = next((one for one in request.segments or () if not 0 <= one < segments), None)
    need(wrong is None, f"Segment {wrong} is not one of this model's {segments}; give 0 to {segments - 1}.")


def _check_length(tokens: object, model: Model, context: int) -> None:
    check(tokens, model.config.embed.vocab)  # type: ignore[arg-type]
    length = len(tokens)  # type: ignore[arg-type]
    need(length <= context, f"{length} tokens are more than the {context} allowed; shorten them.")
