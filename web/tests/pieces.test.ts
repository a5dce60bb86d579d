import assert from "node:assert/strict";
import { test } from "node:test";
import { aligned } from "../src/core/pieces";
import type { Token } from "../src/core/types";

const cut = (...spans: [number, number][]): Token[] => spans.map(([start, end], id) => ({ id, bytes: "", start, end, special: start === end, unk: false }));

test("two ways to cut a text meet where both cut it", () => {
  const words = cut([0, 0], [0, 3], [3, 7], [7, 8]), letters = cut([0, 1], [1, 2], [2, 3], [3, 5], [5, 7], [7, 8]);
  assert.deepEqual(aligned(words, letters), [
    { start: 0, end: 3, a: [1], b: [0, 1, 2] },
    { start: 3, end: 7, a: [2], b: [3, 4] },
    { start: 7, end: 8, a: [3], b: [5] },
  ]);
});

test("a cut that only one has joins what is beside it; a character over several tokens stays whole", () => {
  assert.deepEqual(aligned(cut([0, 2], [2, 5]), cut([0, 3], [3, 5])), [{ start: 0, end: 5, a: [0, 1], b: [0, 1] }]);
  assert.deepEqual(aligned(cut([0, 1], [0, 1], [0, 1], [1, 2]), cut([0, 1], [1, 2])), [
    { start: 0, end: 1, a: [0, 1, 2], b: [0] },
    { start: 1, end: 2, a: [3], b: [1] },
  ]);
  assert.deepEqual(aligned(cut([0, 3], [4, 7]), cut([0, 3], [3, 7])).map((one) => one.end), [3, 7]);
});
