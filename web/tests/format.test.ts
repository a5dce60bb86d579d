import assert from "node:assert/strict";
import { test } from "node:test";
import { fitted, number, points } from "../src/core/format";

test("a number in a narrow cell has fewer digits, and is never left out", () => {
  assert.equal(fitted(0.0005, 5), "5e−4");
  assert.equal(fitted(0.000123, 6), "0.0001");
  assert.equal(fitted(0.345678, 5), "0.346");
  assert.equal(fitted(-123457, 6), "−1e5");
  assert.equal(fitted(0, 5), "0");
  for (let power = -40; power < 40; power++)
    for (const v of [3.7 * 10 ** power, -3.7 * 10 ** power]) {
      const said = fitted(v, 5);
      assert.ok(said.length > 0 && said.length <= 5 && said !== "0", `${v}: ${said}`);
    }
  assert.equal(fitted(NaN, 5), "NaN");
  assert.equal(fitted(-Infinity, 5), number(-Infinity));
});

test("a change of a probability is in points", () => {
  assert.equal(points(-0.0281), "−2.81 points");
  assert.equal(points(0.25), "+25.0 points");
});
