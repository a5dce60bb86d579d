"""The `tokenizers` library with its panics, its hangs and its silent losses turned into sentences.

A file may be made to harm: its pattern may make a text's work endless, its replacements may blow it
up. The library gives Python's lock away while it encodes a batch, but looks at no signal until it
is done; so long texts are encoded in a thread of their own, within a budget, and Ctrl-C is heard.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..errors import UserError
from .tokenizer_json import Spec, ids_of, make_spec, steps
from .vocabulary import byte_alphabet

if TYPE_CHECKING:
    import tokenizers

T = TypeVar("T")
# which text, or None for a token of its own, its id, its segment
Place: TypeAlias = tuple[int | None, int, int]

LARGE = 1 << 14  # characters; what is smaller is done at once
SECONDS, RATE = 10.0, 50_000  # the budget: these, and a second for so many characters
TICK = 0.1  # seconds between two looks at the clock
LOST = "\0 lost"  # stands where a BPE without an unknown token would leave a character out

# .abandoned: set once the thread's pool was left by an exception (formats/tiktoken_backend.py)
worker = threading.local()


# ------------------------------------------------------------------------------------ opening


def load(spec: Spec, source: str) -> tokenizers.Tokenizer:
    """The library's tokenizer; it adds nothing around a text and trims no spans."""
    import tokenizers

    none = f"{source} holds no tokenizer that can be used"
    with library_errors(lambda error: UserError(f"{none} ({reason(error)}); restore it.")):
        return tokenizers.Tokenizer.from_str(
            json.dumps({**spec, "post_processor": None}, ensure_ascii=False)
        )


@contextlib.contextmanager
def library_errors(refusal: Callable[[BaseException], UserError]) -> Iterator[None]:
    """Raises the library's errors, even its panics, which are not Exceptions, as this UserError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, UserError):
        raise
    except BaseException as error:
        raise refusal(error) from None


def reason(error: BaseException) -> str:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return first if len(first) <= 200 else first[:200] + "..."


def marking_lost(spec: Spec) -> Spec:
    """The specification with a token ``LOST`` for each character the model would leave out.

    Only a BPE with no unknown token leaves any out, where not every byte is an entry; others come
    back as they are.
    """
    model = spec["model"]
    if model["type"] != "BPE" or model.get("unk_token") is not None:
        return spec
    before = [*steps(spec.get("normalizer")), *steps(spec.get("pre_tokenizer"))]
    letters: set[str] = set()
    if model.get("byte_fallback"):
        letters = {f"<0x{byte:02X}>" for byte in range(256)}
    elif any(step.get("type") == "ByteLevel" for step in before):
        letters = {*byte_alphabet().values()}
    affixed = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if letters and letters <= model["vocab"].keys() and not affixed:
        return spec
    ids = ids_of(spec)
    ids[LOST] = max(ids.values(), default=-1) + 1
    return {**spec, "model": {**model, "vocab": ids, "unk_token": LOST, "fuse_unk": False}}


def places(spec: Spec, source: str, pair: bool) -> list[Place]:
    """The tokens that the post-processor puts around a text or a pair."""
    import tokenizers

    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    tiny = json.dumps(make_spec(words, post_processor=spec.get("post_processor")))
    badly = f"{source} says badly what stands around a text"
    with library_errors(lambda error: UserError(f"{badly} ({reason(error)}); restore it.")):
        encoding = tokenizers.Tokenizer.from_str(tiny).encode("a", "a" if pair else None)
    return list(zip(encoding.sequence_ids, encoding.ids, encoding.type_ids, strict=True))


# ------------------------------------------------------------------------------------ encoding


def encodings(
    library: tokenizers.Tokenizer, texts: Sequence[str], method: str = "encode_batch"
) -> list[tokenizers.Encoding]:
    """The library's answers, within a budget; UserError where it panics or finds no id.

    By a batch even for one text: else the library keeps Python's lock.
    """

    def work() -> list[tokenizers.Encoding]:
        answers: list[tokenizers.Encoding] = getattr(library, method)(
            texts, add_special_tokens=False
        )
        return answers

    with library_errors(lambda error: refusal(texts, library, error)):
        answers = within_budget(work, count_characters(texts)) if texts else []
    lost = library.token_to_id(LOST)
    if lost is not None and any(lost in answer.ids for answer in answers):
        raise refusal(texts, library, LookupError("it has no token for what it does not know"))
    return answers


def count_characters(texts: Sequence[Any]) -> int:
    """Characters of all texts; what is not a text is refused later."""
    return sum(len(text) for text in texts if isinstance(text, str))


def refusal(texts: Sequence[Any], library: tokenizers.Tokenizer, error: BaseException) -> UserError:
    """Why the library could not encode these texts: the first one that is none or unknown."""
    for text in texts:
        if not isinstance(text, str):
            return UserError(
                f"A tokenizer encodes texts, and this is a {type(text).__name__}; give a str."
            )
        for letter in dict.fromkeys(text):
            at = text.index(letter)
            if 0xD800 <= ord(letter) < 0xE000:
                return UserError(
                    f"Character {at} of the text is half of a surrogate pair; remove it."
                )
            if not _knows(letter, library):
                return UserError(
                    "The tokenizer does not know the character "
                    f"{json.dumps(letter, ensure_ascii=False)} (number {at} "
                    f"of the text); remove it or train a tokenizer on text that has it."
                )
    return UserError(
        f"The tokenizer cannot encode this text ({reason(error)}); use another tokenizer."
    )


def _knows(letter: str, library: tokenizers.Tokenizer) -> bool:
    try:
        return library.token_to_id(LOST) not in library.encode(letter, add_special_tokens=False).ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return not isinstance(error, Exception)  # a panic is the library's fault, not the letter's


def within_budget(work: Callable[[], T], characters: int) -> T:
    """Do ``work`` on a text of so many characters; UserError when its budget is spent.

    The budget is of processor time, so that a busy machine ends nothing. The work itself cannot be
    ended: it goes on in a thread that does not keep the process alive.
    """
    if characters < LARGE:
        return work()
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # the library's own panics are not Exceptions
            future.set_exception(error)

    abandoned: threading.Event = getattr(worker, "abandoned", threading.Event())
    threading.Thread(target=run, daemon=True).start()
    wall, processor = time.monotonic(), time.process_time()
    budget = SECONDS + characters / RATE
    while not future.done():
        with contextlib.suppress(TimeoutError):
            return future.result(TICK)
        spent = min(time.monotonic() - wall, time.process_time() - processor)
        if spent > budget or abandoned.is_set():
            raise UserError(
                f"This tokenizer needs over {budget:.0f} seconds for {characters:,} characters; "
                "give shorter texts, or another tokenizer."
            )
    return future.result()
