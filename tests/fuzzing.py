"""Damaged files, and work in a process of its own: a hang, an abort or a flood of memory is one finding
and no end."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
import traceback
from pathlib import Path

from glassformer import UserError

SECONDS = 10
LONGEST = 1500  # of processor time; of a sentence


def damaged(data, chance):
    """The bytes with a few changed, or cut."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8) if changed else 0):
        # beginnings are what is read first
        end = min(len(changed), chance.choice((16, 300, 1 << 30)))
        changed[chance.randrange(end)] = chance.randrange(256)
    return bytes(changed if chance.random() < 0.6 else changed[: chance.randrange(len(data) + 1)])


def damaged_json(data, chance, values):
    """The same with a few values dropped, or replaced by strange ones or by what is near them."""
    try:
        tree = json.loads(data)
    except ValueError:
        return damaged(data, chance)
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = _places(tree)
        if not places:
            break
        node, key = chance.choice(places)
        if chance.random() < 0.15:
            del node[key]
        else:
            node[key] = chance.choice(values if chance.random() < 0.7 else _near(node[key]))
    return json.dumps(tree).encode()


def _places(value):
    """Every container in a JSON value and a key in it; long lists by a few."""
    pairs = list(value.items())[:40] if isinstance(value, dict) else list(enumerate(value))[:6]
    inner = [value for _, value in pairs if isinstance(value, dict | list)]
    return [(value, key) for key, _ in pairs] + [
        place for child in inner for place in _places(child)
    ]


def _near(value):
    results = [str(value), [value], {"type": value}]
    if isinstance(value, int | float):
        return [*results, value + 1, value - 1, value * 1000, -value, float(value)]
    return [*results, value[:-1], value.upper()] if isinstance(value, str) else results


def outcome(work, room):
    """What ``work`` says, "refused" where that is a sentence, else what is wrong; with ``room``
    bytes of memory beyond what is there."""
    end, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        message = "DIED"
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1), os.dup2(null, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (3 * SECONDS, 3 * SECONDS + 1))
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))
            began = time.process_time()
            message = work()
            if time.process_time() - began > SECONDS:
                message = f"OVER {SECONDS} seconds"
        except UserError as error:
            words = str(error)
            good = 10 < len(words) <= LONGEST and words.isprintable()
            message = "refused" if good else f"WORDS {words[:200]!a}"
        except BaseException:
            message = f"TRACEBACK {traceback.format_exc()[-1500:]}"
        finally:
            os.write(write, message.encode()[:3000])
            os._exit(0)
    os.close(write)
    with os.fdopen(end, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return message or f"ENDED by {signal.Signals(os.WTERMSIG(status)).name}"
