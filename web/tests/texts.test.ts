import { strict as assert } from "node:assert";
import { test } from "node:test";
import { spoken } from "../src/text/mathml";
import { KINDS, textOf } from "../src/text/kinds";

test("every kind has a title, plain words, an equation and code", () => {
  for (const kind of [...KINDS, "a kind that nobody knows"]) {
    const text = textOf(kind, {}, "decoder.blocks.0.attn.pattern");
    for (const part of [text.title, text.plain, text.code]) assert.ok(part.length > 2, kind);
    assert.ok(spoken(text.maths).length > 2, kind);
  }
});

test("parameters choose the words", () => {
  assert.equal(textOf("norm", { type: "rms" }).title, "RMSNorm");
  assert.equal(textOf("norm", { type: "layer" }).title, "LayerNorm");
  assert.match(spoken(textOf("scale", { by: 0.125 }, "decoder.blocks.0.attn.scaled").maths), /= 0.125 ·/);
  assert.match(textOf("mask", { causal: true }).plain, /later/);
  assert.doesNotMatch(textOf("mask", { causal: false }).plain, /later/);
});

test("no slip of the blogs", () => {
  const said = KINDS.map((kind) => textOf(kind, {}, ".attn.scaled").plain).join(" ");
  assert.doesNotMatch(said, /sentence length|length of the (text|sentence)|embedding size/);
});
