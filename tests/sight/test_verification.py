"""Every family passes every check; a planted fault fails the checks that it should, and is named by
its place."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

import glassformer
import tiny
from glassformer import config
from glassformer.core.config import objective as objectives
from glassformer.core.nn import attention, cache, hooks, layers
from glassformer.core.nn.attention import ENGINES
from glassformer.core.nn.cross_attention import CrossAttention
from glassformer.fast import packed_layers
from glassformer.fast.quantized import QuantizedLayout, quantize_weights
from glassformer.formats import dictionaries, store, tuning
from glassformer.sight import counterparts, layouts, probes
from glassformer.sight.agreement import differing, tolerance
from glassformer.tasks import recurrence
from mistakes import mistake
from seeding import generator_from


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Shorter texts."""
    monkeypatch.setattr(probes, "LENGTH", 12)


def checks(model, **options):
    result = list(glassformer.verify(model, **{"new": 3, **options}))
    assert len({check.name for check in result}) == len(result)
    return {check.name: check for check in result}


def failing(result):
    return {name: check for name, check in result.items() if check.status == "FAIL"}


# each kind of shape, position, mask, mixture and state; test_laws.py holds all families to the laws
KINDS = "llama gemma2 mixtral alibi prefix mixed starcoder2 gru mamba2 rwkv rwkv7 bert pooled vaswani t5"


@pytest.mark.parametrize("name", [*KINDS.split(), "bahdanau", "two vocabularies"])
def test_every_family_passes(name):
    result = checks(tiny.model(name))
    assert not failing(result), "\n".join(check.line() for check in failing(result).values())
    kinds = {check.kind for check in result.values() if check.status == "pass"}
    assert kinds >= {"tape", "batch", "padding", "packing", "engine", "format", "lora", "saved"}
    assert ("cache" in kinds) == (not isinstance(tiny.ALL[name], config.Encoder))
    for check in result.values():
        if check.status == "pass":
            assert check.difference is not None and check.difference <= check.bound
            assert check.bound == 0 or "LoRA taken" not in check.name
        else:
            assert check.note and check.difference is None, (
                "what is not run says why, and is no pass"
            )
    exact = {check.kind for check in result.values() if check.bound == 0}
    assert exact == {"tape", "saved", "lora"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["llama", "nanomoe", "t5"])
def test_every_format_passes(name, dtype):
    result = checks(tiny.model(name).to(dtype))
    assert not failing(result), "\n".join(check.line() for check in failing(result).values())
    names = {torch.bfloat16: "bfloat16 / float32", torch.float16: "float16 / float32"}
    assert result[names.get(dtype, "float32 / float64")].status == "pass"
    if name == "llama" and dtype == torch.bfloat16:
        assert result["engine prefill / eager"].status == "pass"


@pytest.mark.parametrize("name", ["gpt2", "vaswani"])
def test_texts_may_fill_the_table_of_positions(name):
    """Columns of padding are no positions; texts have 12 tokens here."""
    table = config.Learned(12)
    sides = tiny.ALL[name].stacks.items()
    learned = {side: replace(stack, position=table) for side, stack in sides}
    result = checks(tiny.model(replace(tiny.ALL[name], context=12, **learned)))
    assert not failing(result), "\n".join(check.line() for check in failing(result).values())


def test_the_continuation_is_the_plain_pass_own_and_greedy():
    model = tiny.model("llama")
    args, new = probes.draw(model, None, 6)
    for ids in args.tokens:
        for place in range(len(ids) - new, len(ids)):
            with torch.no_grad():
                assert model(ids[None, :place]).logits[0, -1].argmax() == ids[place]


# ------------------------------------------------------------------------------------------ planted
# faults

ATTENTION, PACKED = attention.Attention, packed_layers.PackedWeight


def forgetful(self, k, v, was=cache.KV.extend):
    k, v = was(self, k, v)
    first = torch.zeros_like(k[:, :, :1])
    return (torch.cat((first, k[:, :, 1:]), 2), v) if k.shape[2] > 5 else (k, v)


def blind_to_documents(self, flow, kv, was=ATTENTION.self_mask):
    flow.document_ids = None
    return was(self, flow, kv)


def mixes_rows(self, hidden, embed, was=layers.Head.forward):
    logits = was(self, hidden, embed)
    return logits.flip(0) if len(logits) == 2 else logits


def leans(self, path, x, was=hooks.Tape.pass_through):
    return was(self, path, x) * (1.0001 if path.endswith("blocks.1.resid") else 1)


def gainless(self, x, was=layers.RMSNorm.forward):
    return was(self, x) * (0.3 if x.dtype == torch.bfloat16 else 1)


def doubled(self, was=tuning.LoRALinear.merged_weight):
    return self.weight.detach() + 2 * (was(self) - self.weight.detach())


def shifted(self, x, was=PACKED.product):
    return was(self, x) + 0.1


def stateless(mixer_state, state, order, was=recurrence.keep_last):
    was(mixer_state, tuple(torch.zeros_like(piece) for piece in state), order)


def blind_across(self, flow, was=CrossAttention.cross_mask):
    flow.memory.pos = flow.memory.pos.clamp(min=0)
    return was(self, flow)


FIRST = r"(en|de)coder\.blocks\.0\."
FAULTS = {  # family, where, what, kinds that fail, the address that is named
    "cache": (
        "llama",
        cache.KV,
        "extend",
        forgetful,
        {"cache"},
        FIRST + r"attn\.scores\[0,\d+,0\]",
    ),
    "state": (
        "gru",
        recurrence,
        "keep_last",
        stateless,
        {"cache"},
        r"decoder\.cells\.0\.state\[\d+,\d+\]",
    ),
    "documents": (
        "gpt2",
        ATTENTION,
        "self_mask",
        blind_to_documents,
        {"packing"},
        FIRST + r"attn\.(pattern|z)\[0,\d+,\d+",
    ),
    "batch": ("llama", layers.Head, "forward", mixes_rows, {"batch"}, r"logits\[0,0\]"),
    "tape": ("llama", hooks.Tape, "pass_through", leans, {"tape"}, r"logits\[0,\d+\]"),
    "format": (
        "llama",
        layers.RMSNorm,
        "forward",
        gainless,
        {"format"},
        FIRST + r"attn\.in\[0,0\]",
    ),
    "lora": ("gpt2", tuning.LoRALinear, "merged_weight", doubled, {"lora"}, FIRST + r"attn\.qkv"),
    "prepacked": ("gpt2", PACKED, "product", shifted, {"prepacked"}, FIRST + r"attn\.qkv\[0,0\]"),
    "source": (
        "t5",
        CrossAttention,
        "cross_mask",
        blind_across,
        {"padding", "cache"},
        FIRST + r"cross\.pattern\[0,0,0\]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_its_checks_and_is_named(fault, monkeypatch):
    family, places, name, broken, kinds, address = FAULTS[fault]
    monkeypatch.setattr(places, name, broken)
    result = failing(checks(tiny.model(family)))
    assert {check.kind for check in result.values()} == kinds, result

    for check in result.values():
        assert check.difference is None or check.difference > check.bound
        assert check.first is not None and re.match(address, check.first.address), check.line()


def test_a_weight_that_comes_back_changed_is_named(monkeypatch):
    load = store.load

    def worn(*args, **options):
        model, tokenizer = load(*args, **options)
        weight = dict(model.named_parameters())["decoder.blocks.1.ffn.down.weight"]
        weight.data = weight.data.clone()
        weight.data[3, 5] += 1e-7
        return model, tokenizer

    monkeypatch.setattr(store, "load", worn)
    (values,) = failing(checks(tiny.model("llama"))).values()
    assert (
        values.kind == "saved" and values.first.address == "decoder.blocks.1.ffn.down.weight[3,5]"
    )


def test_an_engine_that_errs_fails_alone(monkeypatch):
    engine = ENGINES["cpu_blocks"]
    monkeypatch.setitem(
        ENGINES, "cpu_blocks", engine._replace(run=lambda inputs: 1.01 * engine.run(inputs))
    )
    (values,) = failing(checks(tiny.model("gpt2"))).values()
    assert values.name == "engine cpu_blocks / eager" and values.first.address.startswith(
        "decoder.blocks.0.attn.z[0,0,"
    )


def test_padding_that_is_seen_fails(monkeypatch):
    was = attention.Mask.__init__

    def padded_mask(self, q_pos, k_pos, *args, **more):
        was(
            self,
            q_pos,
            torch.where((k_pos < 0) & (q_pos.shape == k_pos.shape), 0, k_pos),
            *args,
            **more,
        )

    monkeypatch.setattr(attention.Mask, "__init__", padded_mask)
    result = failing(checks(tiny.model("bert")))
    assert set(result) == {"padded left / alone", "padded right / alone"}
    assert all(".attn.pattern[" in check.first.address for check in result.values())


def test_a_way_that_breaks_fails_and_the_others_are_told(monkeypatch):
    def broken(*args):
        raise IndexError("no such slot")

    monkeypatch.setattr(cache.KV, "extend", broken)
    result = failing(checks(tiny.model("llama")))
    assert {check.kind for check in result.values()} == {"cache"}
    assert {check.note for check in result.values()} == {"IndexError: no such slot"}


def test_near_ties_of_experts_are_told_from_routers_that_err(monkeypatch):
    """Experts whose routers are alike to the last bits: rounding alone chooses between them."""
    model = tiny.model("mixtral")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("router.weight"):
                weight.copy_(
                    weight[:1] + 3e-8 * torch.randn(weight.shape, generator=generator_from(0))
                )
    for seed in range(3):
        result = checks(model, seed=seed, against="hf")
        assert not failing(
            {name: check for name, check in result.items() if check.kind != "transformers"}
        )
        assert any("near tie of experts" in check.note for check in result.values())
        assert "Error" not in result["here / transformers"].note
    from glassformer.core.nn.experts import MoE

    was = MoE.route
    monkeypatch.setattr(
        MoE,
        "route",
        lambda self, x: was(self, x) + (0.1 * torch.eye(4)[0] if x.shape[0] == 2 else 0),
    )
    (wrong,) = failing(checks(model)).values()
    assert wrong.kind == "batch" and wrong.first.address.startswith(
        "decoder.blocks.0.ffn.router[0,0]"
    )


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_transformers_says_the_same(name, monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    cfg = tiny.ALL[name]
    model = tiny.model(replace(cfg, pool=None) if name == "bert" else cfg)
    assert checks(model, against="hf")["here / transformers"].status == "pass"
    store.save(model, tmp_path / "m", layout="hf")
    first = dict(model.named_parameters())[
        f"{'encoder' if name == 'bert' else 'decoder'}.blocks.0.ffn.up.weight"
    ]
    with torch.no_grad():
        first.mul_(1.01)
    result = failing(checks(model, against=tmp_path / "m"))
    assert set(result) == {"here / transformers"}
    assert re.match(
        r"(en|de)coder\.blocks\.0\.resid\[0,0\]", result["here / transformers"].first.address
    )


def test_what_cannot_be_compared_says_why():
    result = checks(tiny.model("alibi"), against="hf")
    assert result["engine block_sparse / eager"].note == "it knows no bias of positions"
    assert "no layout that transformers knows" in result["here / transformers"].note
    assert "--compile" in result["compiled / eager"].note
    assert all(
        result[name].status == "not run" for name in result if result[name].difference is None
    )


def test_an_adapted_model_is_verified_with_its_own_adapter():
    model = tiny.model("llama")
    tuning.tune(model, objectives.LoRA(rank=2, alpha=4.0, target_modules=("*.attn.v",)))
    with torch.no_grad():
        [layer.up.normal_(0, 0.1) for layer in tuning.adapted(model).values()]
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    result = checks(model)
    assert not failing(result), failing(result)
    assert result["LoRA merged / apart"].note == "its own adapter on 2 layers"
    assert result["saved and loaded / before"].bound > 0  # merged in the file, apart here
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_a_model_with_features_passes():
    model = tiny.model("llama")
    width = model.config.dim
    tensors = {"W_enc": torch.ones(width, 8), "W_dec": torch.ones(8, width)}
    tensors |= {"b_enc": torch.zeros(8), "b_dec": torch.zeros(width)}
    dictionary = dictionaries.Dictionary(tensors, "topk", "decoder.blocks.0.resid", active=2)
    dictionaries.attach(model, dictionary)
    result = checks(model)
    assert not failing(result), failing(result)
    assert "beside its base" in result["saved and loaded / before"].note


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.slow
def test_compiled_code_says_the_same(name, monkeypatch):
    result = checks(tiny.model(name), compile=True)["compiled / eager"]
    assert result.status == "pass" and result.difference is not None, result.line()


def test_compiled_code_that_errs_is_named_by_what_it_says(monkeypatch):
    def wrong(model):
        second = counterparts.in_format(model, torch.float32)
        with torch.no_grad():
            second.embed.token.weight[:, 0] += 0.1
        return second

    monkeypatch.setattr(counterparts, "compiled_copy", wrong)
    (values,) = failing(checks(tiny.model("llama"), compile=True)).values()
    assert values.kind == "compiled" and values.first.address.startswith("logits[0,")


# ------------------------------------------------------------------------------------------ bounds
# and refusals


def test_the_bound_follows_the_format_and_the_depth():
    gpt2, deep = tiny.ALL["gpt2"], tiny.decoder(*[tiny.block()] * 4)
    assert tolerance(gpt2, torch.float32, 9) == 16 * 2**-23 * math.sqrt(5)
    assert tolerance(gpt2, torch.bfloat16, 9) == 4 * 2**-7 * math.sqrt(5)
    assert tolerance(gpt2, torch.float32, 9, quantized=True) == 4 / 254 * math.sqrt(5)
    assert tolerance(deep, torch.float32, 9) == 16 * 2**-23 * math.sqrt(17)
    assert tolerance(tiny.ALL["lstm"], torch.float32, 9) == 16 * 2**-23 * math.sqrt(19)


def test_the_first_difference_knows_masks_and_nan():
    inf = float("inf")
    expected = torch.tensor([[1.0, -inf], [2.0, 3.0]])
    assert differing("x", expected.clone(), expected) is None
    assert differing("x", torch.tensor([[1.0, 0.5], [2.0, 3.0]]), expected).address == "x[0,1]"
    result = differing("x", torch.tensor([[1.0, -inf], [float("nan"), 3.0]]), expected, 1e-3)
    assert (result.address, result.value, result.expected) == ("x[1,0]", None, 2.0)
    assert differing("x", expected + 1e-4, expected, 1e-3) is None


def test_the_texts_are_cut_back_to_their_own_values():
    """Every value of a padded batch, cut to a text, is that of the text alone: shape and all."""
    for name in ("mixed", "t5", "bahdanau", "bert"):
        model = tiny.model(name)
        args, _ = probes.draw(model, None, 4)
        reader = layouts.DocumentReader(model, args, tape=True)
        alone = reader.read(args.alone(0, 1, 2))
        for layout in (args.padded("left"), args.packed()):
            for actual, reference in zip(reader.read(layout), alone, strict=True):
                assert actual.keys() == reference.keys()
                assert all(actual[path].shape == reference[path].shape for path in reference)


def test_bad_models_are_refused():
    model = tiny.model("llama")
    with mistake("tokens to compare is 0"):
        checks(model, new=0)
    with torch.no_grad():
        dict(model.named_parameters())["decoder.blocks.1.attn.q.weight"][0, 0] = float("nan")
    with mistake(r"decoder\.blocks\.1\.attn\.q\.weight"):
        checks(model)
    short = replace(tiny.ALL["llama"], context=1)
    with mistake("context of 1"):
        checks(tiny.model(short))


def test_the_command_tells_all_and_exits_with_1_on_a_failure(tmp_path, terminal, monkeypatch):
    store.save(tiny.model("llama"), tmp_path / "m")
    data = terminal.json(f"verify {tmp_path}/m --tokens 4")
    assert data["passed"] and data["dtype"] == "float32"
    fields = "kind name status difference bound greedy tokens first"
    assert data["checks"][0].keys() >= set(fields.split())
    monkeypatch.setattr(cache.KV, "extend", forgetful)
    output = terminal(f"verify {tmp_path}/m --tokens 4", code=1)
    assert output.startswith("compared") and "FAIL" in output
    assert "first: decoder.blocks.0.attn." in output
    assert re.search(r"checks passed, [1-9]\d* failed, \d+ not run\n$", output)


def test_a_model_that_answers_zeros_passes_nothing():
    """A head that starts at 0: all ways agree, whatever they compute; only saved weights are
    compared."""
    model = tiny.model(replace(tiny.ALL["llama"], head=config.Head(tied=False)))
    assert checks(model)["padded left / alone"].status == "pass"
    torch.nn.init.zeros_(model.head.proj.weight)
    result = checks(model)
    passed = [name for name, check in result.items() if check.status == "pass"]
    assert passed == ["LoRA taken out again / apart", "saved and loaded / before"]
    assert not failing(result) and "every answer is 0" in result["padded left / alone"].note


@pytest.mark.parametrize("name", ["llama", "t5", "mixtral"])
def test_quantized_models_verify(name):
    """Saved and loaded bit for bit; all else within what an input rounded the other way does; no
    change is merged."""
    model = tiny.model(name)
    quantize_weights(model, QuantizedLayout(4))
    checks = {check.name: check for check in glassformer.verify(model, None, new=4)}
    assert not [check.line() for check in checks.values() if check.status == "FAIL"]
    assert (
        checks["saved and loaded / before"].difference == 0
        and checks["on a tape / off it"].bound == 0
    )
    assert checks["LoRA merged / apart"].status == "not run"
