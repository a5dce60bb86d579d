"""The page's sampler is Python's: survivors, probabilities and draws; and the luck of a seed is the
command line's."""

from __future__ import annotations

import base64
import random

import torch

from glassformer.core.generation import sample
from seeding import generator_from

SAMPLE = """all => all.map(([logits, seen, how, u]) => {
  const bytes = Uint8Array.from(atob(logits), one => one.charCodeAt(0));
  const one = __glassformer.sample(new Float32Array(bytes.buffer), seen, how, u);
  return [Array.from(one.final).flatMap((p, id) => p > 0 ? [[id, p]] : []), one.token];
})"""


def test_300_settings(site, tab):
    tab.goto(f"{site.url}#playground")
    luck = random.Random(5)
    generator = generator_from(3)
    requests, expected = [], []
    for _ in range(300):
        size = luck.choice([7, 50, 300, 5000])
        logits = torch.randn(1, size, generator=generator) * luck.choice([0.5, 3, 8])
        zeros = torch.zeros(1, size, dtype=torch.bool)
        output = luck.sample(range(size), 3)
        zeros[0, output] = True
        sampling = sample.Sampling(
            temperature=luck.choice([0.0, 0.3, 0.8, 1.0, 1.7]),
            top_k=luck.choice([None, 1, 5, 40, 6000]),
            top_p=luck.choice([None, 0.1, 0.5, 0.95, 1.0]),
            min_p=luck.choice([None, 0.01, 0.2]),
            repetition_penalty=luck.choice([1.0, 1.3, 0.8]),
        )
        u = torch.rand(1, generator=generator)
        chosen = int(sample.choose(logits, u, zeros, sampling))
        warm = sample.penalise(logits, zeros, sampling.repetition_penalty)
        final = (
            sample.cut(warm / sampling.temperature, sampling) if not sampling.greedy else warm
        ).softmax(-1)[0]
        if sampling.greedy:
            final = torch.zeros(size).scatter(0, torch.tensor(chosen), 1.0)
        requests.append(
            [
                base64.b64encode(logits[0].numpy().tobytes()).decode(),
                output,
                vars(sampling),
                float(u),
            ]
        )
        expected.append((sampling, final, chosen))
    result = [
        item for low in range(0, 300, 50) for item in tab.evaluate(SAMPLE, requests[low : low + 50])
    ]
    for number, ((survivors, token), (sampling, final, chosen)) in enumerate(
        zip(result, expected, strict=True)
    ):
        mask = torch.zeros_like(final)
        mask[[id for id, _ in survivors]] = torch.tensor(
            [p for _, p in survivors], dtype=torch.float32
        )
        assert torch.equal(mask > 0, final > 0), (
            number,
            sampling,
            len(survivors),
            int((final > 0).sum()),
        )
        torch.testing.assert_close(mask, final, rtol=1e-5, atol=1e-6)
        assert token == chosen, (number, sampling)


def test_the_luck_of_a_seed(site, tab):
    """The needle shows the number that generation draws with."""
    tab.goto(f"{site.url}#playground")
    for seed, prompt in ((0, [5]), (1337, [1, 2, 3]), (2**53 - 1, list(range(40)))):
        values = torch.rand(700, generator=sample.random_generator(seed, 0, prompt)).tolist()
        assert (
            tab.evaluate(
                "([seed, ids]) => Array.from(__glassformer.luck(seed, ids, 700))", [seed, prompt]
            )
            == values
        )


def test_a_step_waits_for_the_one_before(site, tab):
    """Two clicks at once write one token: nobody knows the second before the model has read the
    first."""
    tab.goto(f"{site.url}#playground?m=llama&t=the+cat&T=0.9&tk=40&seed=11&n_new=6")
    tab.wait_for_selector("aside .bars .num")
    tab.locator("button", has_text="Step").evaluate(
        "async one => { one.click(); await new Promise(setTimeout); one.click(); }"
    )
    tab.wait_for_selector("aside:not([aria-busy=true]) .bars")
    tab.wait_for_timeout(150)
    tab.locator("button", has_text="Step").click()
    tab.wait_for_function(
        "() => document.querySelectorAll('section[aria-label=output] .token').length === 2"
    )
    assert tab.locator('input[aria-label^="name of branch"]').count() == 1


def test_what_comes_while_a_step_is_read_stays(site, tab):
    """A branch that is named before the model has read its last token keeps its name."""
    tab.goto(f"{site.url}#playground?m=llama&t=the+cat&T=0.9&tk=40&seed=11&n_new=6")
    tab.wait_for_selector("aside .bars .num")
    tab.locator("button", has_text="Step").click()
    tab.wait_for_selector("aside h2:has-text('after token 2')")
    tab.wait_for_selector("footer:not(:has-text('the model reads'))")
    name = tab.locator("input[aria-label^='name of branch']")
    tab.locator("button", has_text="Step").evaluate(
        """async one => {
          one.click();
          const name = document.querySelector("input[aria-label^='name of branch']");
          name.value = "mine";
          name.dispatchEvent(new Event("change", { bubbles: true }));
        }"""
    )
    tab.wait_for_selector("aside h2:has-text('after token 3')")
    tab.wait_for_timeout(150)
    assert name.input_value() == "mine"
    # a text of the reader's begins anew
    tab.fill("#prompt", "a dog")
    tab.press("#prompt", "Enter")
    name.wait_for(state="detached")


def test_steps_on_the_page_write_what_the_server_writes(site, tab):
    tab.goto(f"{site.url}#playground?m=llama&t=the+cat&T=0.9&tk=40&seed=11&n_new=6")
    tab.wait_for_selector("aside .bars .num")
    for number in range(6):
        tab.locator("button", has_text="Step").click()
        tab.wait_for_function(
            "n => document.querySelectorAll('section[aria-label=output] .token').length === n",
            arg=number + 1,
        )
        tab.wait_for_selector("aside:not([aria-busy=true]) .bars")
        tab.wait_for_timeout(150)

    def written():
        displayed = tab.locator("section[aria-label=output] .token")
        return list(displayed.evaluate_all("all => all.map(one => one.dataset.id)"))

    steps = written()
    tab.goto("about:blank")
    tab.goto(f"{site.url}#playground?m=llama&t=the+cat&T=0.9&tk=40&seed=11&n_new=6")
    tab.wait_for_selector("aside .bars .num")
    tab.locator("button", has_text="Generate").click()
    tab.wait_for_function(
        "() => document.querySelectorAll('section[aria-label=output] .token').length === 6"
    )
    assert written() == steps
