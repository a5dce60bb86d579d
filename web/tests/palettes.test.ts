import { strict as assert } from "node:assert";
import { test } from "node:test";
import { contrast, inkOn, lut, rgbOf } from "../src/kernel/palettes";
import { csv, svg } from "../src/kernel/takeout";

const rgb = (pixel: number) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255] as const;

test("lightness of the sequential palette only grows, from its ground", () => {
  for (const dark of [true, false]) {
    const light = [...lut("sequential", dark)].map((pixel) => contrast(rgb(pixel), dark ? [0, 0, 0] : [255, 255, 255]));
    for (let at = 1; at < 256; at++) assert.ok(light[at]! >= light[at - 1]! - 0.03, `${dark} ${at}`);
  }
});

test("words on any colour can be read", () => {
  for (const name of ["sequential", "diverging"] as const)
    for (const dark of [true, false])
      for (const pixel of lut(name, dark)) assert.ok(contrast(rgb(pixel), rgbOf(inkOn(pixel))) >= 4.5);
});

const grid = { address: "decoder.blocks.0.attn.pattern[0]", rows: 2, cols: 2, values: [1, 0, 0.1 + 0.2, NaN], rowWords: ["a", '"<,'], colWords: ["x", "y"], min: 0, max: 1 };

test("a file of numbers has all their digits, and words in quotes where they need them", () => {
  assert.equal(csv(grid), ',x,y\na,1,0\n"""<,",0.30000000000000004,NaN\n');
});

test("a picture's words cannot break it", () => {
  const made = svg(grid, lut("sequential", false));
  assert.equal(made.match(/<rect /g)!.length, 1 + 4 + 64);
  assert.ok(made.includes("&quot;&lt;,"));
});
