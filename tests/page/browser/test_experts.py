"""The Experts screen: choices, weights and loads are those of a model loaded apart."""

from __future__ import annotations

from apart import close, numbers, typed


def test_routing_is_the_models(site, tab):
    apart = typed(tab, site, "mixture", "experts")
    tab.wait_for_selector(".routing [data-addr]")
    for layer in (0, 1):
        tab.locator(f".experts .lensgrid tbody tr:nth-child({layer + 1}) button").first.click()
        tab.wait_for_selector(f'.routing [data-addr^="decoder.blocks.{layer}."]')
        path = f"decoder.blocks.{layer}.ffn"
        chosen = apart.values[f"{path}.chosen"]
        cells = numbers(tab.locator(".routing td.first, .routing td.other"))
        assert len(cells) == chosen.numel()
        for address, value in cells:
            assert close(value, apart[address])
        probabilities = apart.values[f"{path}.router"].float().softmax(-1)
        for address, value in numbers(
            tab.locator('[aria-label="router"] [data-addr*="router_probs"]')
        ):
            token, expert = (int(piece) for piece in address.split("[")[1].rstrip("]").split(","))
            assert close(value, float(probabilities[token, expert]))
        loads = numbers(tab.locator(f'.lensgrid [data-addr^="experts.load[{path},"]'))
        assert [value for _, value in loads] == chosen.flatten().bincount(
            minlength=len(loads)
        ).tolist()


def test_a_model_without_a_router_says_so(site, tab):
    typed(tab, site, "gpt", "experts")
    assert "no router" in tab.locator("main .note").inner_text()
