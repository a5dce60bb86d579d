import assert from "node:assert/strict";
import { test } from "node:test";
import { columns, side } from "../src/core/terms";

const terms = (...rows: string[][]) => rows.map((row, term) => ({ term, value: 1, operands: row.map((address) => ({ address, value: 1 })) }));
const AXES: Record<string, string[]> = { logits: ["B", "T", "V"], "decoder.blocks.0.attn.pattern": ["B", "H", "T", "S"], "decoder.blocks.0.attn.v": ["B", "K", "S", "D"] };
const axes = (name: string) => AXES[name];

test("a column is named after a value only where every row takes it from there", () => {
  assert.deepEqual(columns(terms(["decoder.blocks.3.mid[9,106]"], ["decoder.blocks.3.ffn.write[9,106]"])), [""]);
  assert.deepEqual(columns(terms(["decoder.blocks.3.mid[9,1]", "w[1]"], ["decoder.blocks.3.mid[9,2]", "w[2]"])), ["L3.mid", "w"]);
  assert.deepEqual(columns([]), []);
});

test("terms run along one side, and are told by their places there", () => {
  assert.deepEqual(side(terms(["logits[22,10]"], ["logits[22,11]"]), axes), { name: "logits", axis: "V", places: [10, 11] });
  const mixed = terms(["decoder.blocks.0.attn.pattern[1,5,0]", "decoder.blocks.0.attn.v[1,0,3]"], ["decoder.blocks.0.attn.pattern[1,5,2]", "decoder.blocks.0.attn.v[1,2,3]"]);
  assert.deepEqual(side(mixed, axes), { name: "decoder.blocks.0.attn.pattern", axis: "S", places: [0, 2] });
  assert.equal(side(terms(["decoder.blocks.3.mid[9,106]"], ["decoder.blocks.3.ffn.write[9,106]"]), axes), null);
  assert.equal(side(terms(["logits[22,10]"], ["logits[21,11]"]), axes), null);
  assert.equal(side(terms(["logits[22,10]"]), axes), null);
  assert.equal(side(terms(["table[1,2]"], ["table[2,2]"]), axes), null);
});
