"""The most that one request may ask for; what is beyond is refused before anything is computed."""

from __future__ import annotations

MOST_BODY = 8 << 20  # bytes of a request
MOST_BODIES = 128 << 20  # bytes of all requests that are held at once
MOST_ANSWERS = 1 << 30  # bytes of tokens, scores, vectors and logits of all answers at once
SMALL_WORK = 1 << 15  # bytes, characters or numbers; work on more is heavy
SMALL_JSON = 1 << 11  # pieces of an answer's JSON that are written at once
LARGE_BODY = 1 << 20  # bytes that the JSON scanner in C reads without letting other threads run
MOST_HEADERS = 32 << 10
MOST_HEADER_LINES = 128  # bytes of its headers together, and how many
MOST_CHARACTERS = 1 << 20  # of all texts of a request
MOST_TEXTS = 1024  # prompts, inputs or documents of a request
MOST_MESSAGES = 1024
MOST_CHOICES = 64  # n
MOST_CONTINUATIONS = 1024  # n of each prompt together
MOST_LOGPROBS = 20
MOST_SCORES = 1 << 21  # log-probabilities of a request's prompts, their likeliest tokens too
SCORE_BYTES = 128  # of each of them, a pair of Python's numbers
EVENT_BYTES = 512  # of a token that was written, and waits for its reader or for the others
ACCOUNT_SECONDS = 0.25  # from one count of these to the next
FLOAT_BYTES = 64  # of a number in a tensor, in a list and in JSON
PIECE_BYTES = 256 << 10  # of a large answer, that wait for a reader at once
MOST_STOPS = 16
LONGEST_STOP = 256
MOST_BIASES = 1024
# of any number of tokens, so that nothing overflows before the context is asked
MOST_TOKENS = 1 << 24
MOST_FILL_LOGITS = 1 << 27  # numbers that the ways to fill a text are ranked by at once
FILL_LOGITS_AT_ONCE = 1 << 22  # and of those that are computed side by side
MOST_FILL_TEXT = 1 << 25  # characters of all texts that are filled
MOST_SCHEMA = 64 << 10  # characters of a JSON schema, regular expression or grammar
LONGEST_NAME = 256  # of a model, a role, an id

HEADERS_SECONDS = 20.0  # a request's headers have so long, from their first byte
BODY_SECONDS = 60.0  # and so long from one piece of its body to the next
WRITE_SECONDS = 60.0  # a reader has so long to make room for the next piece of an answer
LAST_SECONDS = 1.0  # and so long, when the server ends, for a request that is on its way
IDLE_SECONDS = 75  # a connection without a request is kept so long, a new one too
