"""No page is lost or given twice, whatever comes and goes; nobody waits for ever."""

from __future__ import annotations

import random

import pytest

from glassformer.serve.engine.scheduler import (
    FairQueue,
    OutOfPages,
    PagePool,
    PrefixCache,
    Scheduler,
    Windows,
)
from glassformer.serve.engine.sequence import Sequence
from pages import check_pages, check_windows, sequence_of

SIZE = 4


def test_a_page_is_free_used_or_cached():
    pool = PagePool(3)
    a = pool.take()
    b = pool.take()
    c = pool.take()
    with pytest.raises(OutOfPages):
        pool.take()
    pool.know(a)
    pool.share(a)
    pool.give([a, b])
    assert (pool.free, pool.cached, pool.in_use) == (1, 0, 2)
    pool.give([a])
    assert (pool.free, pool.cached, pool.in_use) == (1, 1, 1)
    pool.share(a)
    assert (pool.cached, pool.in_use) == (0, 2)
    pool.give([a, c])
    with pytest.raises(AssertionError, match="twice"):
        pool.give([c])


def test_the_least_recently_used_page_is_forgotten_first():
    forgotten = []
    pool = PagePool(3, forgotten.append)
    pages = [pool.take() for _ in range(3)]
    for page in pages:
        pool.know(page)
    pool.give([pages[1]])
    pool.give([pages[0]])
    pool.give([pages[2]])
    assert [pool.take(), pool.take()] == [pages[1], pages[0]] == forgotten


def test_a_prefix_is_found_by_all_that_stands_before_and_under_the_same_root():
    pool = PagePool(8)
    prefix = PrefixCache(pool, SIZE)
    pages = [pool.take() for _ in range(3)]
    text = [*range(10)]
    prefix.keep(None, text, pages)
    assert prefix.find(None, text) == pages[:2] == prefix.find(None, [*range(8), 99, 98, 97, 96])
    assert prefix.find(None, [*range(4), 9, 9, 9, 9]) == pages[:1]
    assert prefix.find(None, [9, 9, 9, 9, 4, 5, 6, 7]) == [] == prefix.find("other", text)


def test_what_followed_a_forgotten_page_is_not_found_behind_another():
    pool = PagePool(2)
    prefix = PrefixCache(pool, SIZE)
    pages = [pool.take(), pool.take()]
    prefix.keep(None, [*range(8)], pages)
    pool.give(pages)  # the first one is forgotten first
    again = pool.take()
    assert again == pages[0]
    prefix.keep(None, [*range(4)], [again])
    assert prefix.find(None, [*range(8)]) == [again]  # the second hangs on a page that is gone


def test_who_is_preempted_is_the_first_of_its_client_to_go_on():
    scheduler = Scheduler(PagePool(2), SIZE, budget=SIZE, max_num_seqs=1)
    texts = [sequence_of([number, 8, 9], "one") for number in range(3)]
    for text in texts:
        scheduler.add(text)
    scheduler.plan()
    assert scheduler.running == texts[:1]
    assert [*scheduler.waiting] == texts[1:]
    scheduler.preempt(texts[0])
    assert [*scheduler.waiting] == texts
    assert not scheduler.running
    assert scheduler.pool.in_use == 0


def test_who_was_read_makes_room_and_is_not_read_again():
    scheduler = Scheduler(PagePool(2), SIZE, budget=SIZE, max_num_seqs=1)
    first = sequence_of([1, 2, 3], "one")
    second = sequence_of([4, 5], "one")
    for text in (first, second):
        scheduler.add(text)
    scheduler.done(scheduler.plan()[0])
    assert [chunk.sequence for chunk in scheduler.plan()] == [second]
    assert scheduler.suspended == {first}
    assert not len(scheduler.waiting)
    assert not first.pages


def grown(text):
    """The next token of a text, from all before it."""
    return hash(tuple(text.ids)) % 3


def copied(stored, source, target):
    stored.update(
        {
            target * SIZE + at: stored[source * SIZE + at]
            for at in range(SIZE)
            if source * SIZE + at in stored
        }
    )


def play(seed):
    """A random life of a scheduler, with texts that begin alike or branch, guesses, cancellations
    and too few pages."""
    lot = random.Random(seed)
    pages = lot.randint(6, 14)
    longest = 6 * SIZE
    pool = PagePool(pages)
    budget = lot.choice([1, 3, 8, 40])
    most = lot.randint(1, 5)
    span = lot.choice([None, 1, 3, 6])
    pieces = min(6, (max(budget, most, 3) + (span or 0) - 3 + SIZE) // SIZE + 1) + lot.randint(0, 3)
    windows = Windows(pool, SIZE, span, pieces)
    released = []
    scheduler = Scheduler(
        pool,
        SIZE,
        budget=budget,
        max_num_seqs=most,
        windows=windows,
        first=lot.choice([0, 0, 3]),
        released=released.append,
        copy=lambda source, target: (
            (copied(stored, source, target), copied(near, part_of[source], part_of[target]))[0]
            if span
            else copied(stored, source, target)
        ),
    )
    part_of = windows.part_of
    copy = scheduler.copy
    assert copy is not None
    # texts that go on together, and those of them that were read
    groups = dict[Sequence, list[Sequence]]()
    ids = set[Sequence]()
    # what a careful reader would find in each slot: place and token
    stored = {}
    near = {}  # the same where layers with windows look
    todo = lot.randint(1, 9)
    bounds = dict[Sequence, int]()
    live = list[Sequence]()
    for step in range(400):
        while todo and lot.random() < 0.6:
            tokens = [place % 3 for place in range(lot.randint(3, longest - 3))][
                : lot.randint(3, 20)
            ]
            text = sequence_of(
                tokens,
                lot.choice("abc"),
                cache_key=lot.choice([None, 7]),
                recompute_from=lot.choice([None] * 9 + [0]),
            )
            running = [item for item in scheduler.running if item.computed and item not in groups]
            if running and lot.random() < 0.3:
                text.fork_parent = twin = lot.choice(running)
                text.ids, text.cache_key = (
                    twin.ids[: max(1, lot.randint(3, len(twin.ids)))],
                    twin.cache_key,
                )
            bounds[text] = min(longest, len(tokens) + lot.randint(1, 9))
            if text.fork_parent is None and lot.random() < 0.3:
                groups[text] = [
                    text,
                    *(
                        sequence_of([*tokens], text.client, cache_key=text.cache_key)
                        for _ in range(lot.randint(0, 3))
                    ),
                ]
                groups.update(dict.fromkeys(groups[text], groups[text]))
            scheduler.add(text)
            live.append(text)
            todo -= 1
        if live and lot.random() < 0.1:
            remaining = live.pop(lot.randrange(len(live)))
            for text in groups.get(remaining, [remaining]):
                ids.discard(text)
                if text.number >= 0:
                    scheduler.drop(text)
        chunks = scheduler.plan()
        check_windows(windows)
        check_pages(pool)
        assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks)
        assert sum(len(chunk.tokens) for chunk in chunks) <= scheduler.budget
        assert bool(chunks) == bool(live)
        for chunk in chunks:
            text = chunk.sequence
            for place, token in enumerate(chunk.tokens, chunk.start):
                page = text.pages[place // SIZE]
                assert pool.users[page] >= 1
                if place % SIZE == 0 and page in scheduler.prefix._keys:
                    raise AssertionError("a page whose contents are known is written again")
                stored[page * SIZE + place % SIZE] = (place, token)
                if span:
                    near[part_of[page] * SIZE + place % SIZE] = (place, token)
            for place in range(chunk.start):  # what was read before is still there
                page = text.pages[place // SIZE]
                at = place % SIZE
                assert stored[page * SIZE + at] == (place, text.ids[place]), (seed, step)
                if span and place > chunk.start - span:
                    assert near[part_of[page] * SIZE + at] == (place, text.ids[place]), (
                        seed,
                        step,
                    )
        for chunk in chunks:
            text = chunk.sequence
            accepted = 0
            if text in groups:
                scheduler.done(chunk)
                ids.update({text} if chunk.finishes else ())
                continue
            if chunk.finishes:
                guesses = chunk.tokens[len(chunk.tokens) - chunk.drafted :]
                text.ids.append(grown(text))
                while (
                    accepted < chunk.drafted
                    and guesses[accepted] == text.ids[-1]
                    and len(text.ids) < longest
                ):
                    accepted += 1
                    text.ids.append(grown(text))
            if len(text.ids) >= bounds[text] and chunk.finishes:
                scheduler.drop(text)
                live.remove(text)
                continue
            chunk.accepted = accepted
            scheduler.done(chunk)
            if chunk.finishes and lot.random() < 0.5:
                text.draft = [lot.randrange(3) for _ in range(min(3, longest - len(text.ids)))]
        for first in [text for text in live if text in groups]:
            group = groups[first]
            if not all(text in ids or text.number < 0 for text in group):
                continue
            ids.difference_update(group)
            length = len(first.ids)
            if length >= bounds[first]:
                for text in [text for text in group if text.number >= 0]:
                    scheduler.drop(text)
                live.remove(first)
            else:
                places = [place for place, text in enumerate(group) if text.number >= 0]
                parents = [lot.choice(places) for _ in group]
                scheduler.branch(group, parents, [lot.randrange(3) for _ in group], copy)
        check_pages(pool)
        if not live and not todo:
            break
    else:
        raise AssertionError(f"seed {seed}: somebody waits for ever")
    assert pool.in_use == windows.pool.in_use == 0
    assert not scheduler.running
    assert not len(scheduler.waiting)


@pytest.mark.parametrize("number", range(10))
def test_no_page_leaks_in_ten_thousand_lives(number):
    for seed in range(number * 1000, number * 1000 + 1000):
        play(seed)


def test_a_long_prompt_does_not_hold_up_what_is_being_written():
    scheduler = Scheduler(PagePool(100), SIZE, budget=8, max_num_seqs=4)
    short = sequence_of([1, 2])
    long = sequence_of([*range(100)])
    scheduler.add(short)
    scheduler.add(long)
    for _ in range(10):
        chunks = {chunk.sequence: chunk for chunk in scheduler.plan()}
        assert short in chunks
        assert len(chunks[long].tokens) >= 6
        for chunk in chunks.values():
            if chunk.finishes:
                chunk.sequence.ids.append(0)
            scheduler.done(chunk)


def test_a_step_has_fewer_tokens_whose_logits_are_needed():
    """Their vocabulary is computed too, and whoever generates waits for it."""
    scheduler = Scheduler(PagePool(100), SIZE, budget=16, max_num_seqs=4)
    scored = sequence_of([*range(40)], recompute_from=0)
    scheduler.add(scored)
    (chunk,) = scheduler.plan()
    assert len(chunk.tokens) == 4
    scheduler.done(chunk)
    short = sequence_of([1, 2], "other", recompute_from=None)
    scheduler.add(short)
    sizes = {chunk.sequence: len(chunk.tokens) for chunk in scheduler.plan()}
    assert sizes == {short: 2, scored: 3}
    limited = Scheduler(PagePool(100), SIZE, budget=16, max_num_seqs=4, first=9)
    limited.add(sequence_of([*range(40)], recompute_from=0))
    assert [len(chunk.tokens) for chunk in limited.plan()] == [9], "the first go into one pass"


def test_prompts_of_two_clients_are_read_in_turns():
    scheduler = Scheduler(PagePool(200), SIZE, budget=8, max_num_seqs=9)
    texts = [sequence_of([*range(40)], "greedy") for number in range(5)] + [
        sequence_of([*range(40)], "other")
    ]
    for text in texts:
        scheduler.add(text)
    for _ in range(10):
        for chunk in scheduler.plan():
            scheduler.done(chunk)
    assert texts[5].computed >= 36
    assert sum(text.computed for text in texts) <= 90


def test_clients_take_turns():
    turns = FairQueue[Sequence]()
    for client, number in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        turns.add(sequence_of([number], client))
    assert [turns.pop().ids[0] for _ in range(6)] == [1, 4, 5, 2, 6, 3]
