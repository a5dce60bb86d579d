import { strict as assert } from "node:assert";
import { test } from "node:test";
import { bucketed, smooth, ticks, widthFor } from "../src/kernel/curves";

const curve = (count: number, value: (step: number) => number) => {
  const steps = Array.from({ length: count }, (_, at) => at);
  return { steps, values: steps.map(value) };
};

test("a lone spike is there at every zoom", () => {
  const spiked = curve(100_000, (step) => (step === 61_803 ? 99 : Math.sin(step)));
  for (const most of [1, 7, 300, 1366, 100_000]) {
    const made = bucketed(spiked, 0, 99_999, most);
    assert.ok(made.start.length <= most, `${made.start.length} buckets of ${most}`);
    assert.equal(Math.max(...made.max), 99);
  }
});

test("every bucket holds the least, the greatest and the mean of its steps", () => {
  const wave = curve(1000, (step) => ((step * 7919) % 1009) / 10);
  const made = bucketed(wave, 100, 899, 60);
  made.start.forEach((start, at) => {
    const inside = wave.values.filter((_, step) => step >= 100 && step <= 899 && step >= start && step < start + made.width);
    assert.equal(made.min[at], Math.min(...inside));
    assert.equal(made.max[at], Math.max(...inside));
    assert.ok(Math.abs(made.mean[at]! - inside.reduce((sum, one) => sum + one, 0) / inside.length) < 1e-9);
  });
});

test("new points change the last bucket alone", () => {
  const before = bucketed(curve(1000, Math.sqrt), 0, 2047, 64);
  const after = bucketed(curve(1010, Math.sqrt), 0, 2047, 64);
  const same = before.start.length - 1;
  assert.deepEqual(after.max.slice(0, same), before.max.slice(0, same));
  assert.deepEqual(after.start.slice(0, before.start.length), before.start);
});

test("numbers that are none are told and not drawn", () => {
  const made = bucketed({ steps: [0, 1, 2, 3], values: [1, NaN, 3, Infinity] }, 0, 3, 2);
  assert.deepEqual(made, { width: 2, start: [0, 2], min: [1, 3], max: [1, 3], mean: [1, 3], broken: [true, true] });
});

test("widths are powers of two, ticks are round", () => {
  assert.equal(widthFor(0, 99_999, 1000), 128);
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(3.2, 4.9, 4), [3.5, 4, 4.5]);
  assert.deepEqual(ticks(5, 5, 4), [5]);
});

test("a smoothed constant is that constant from the first step", () => {
  for (const one of smooth([4, 4, 4, NaN, 4], 0.9)) assert.ok(Math.abs(one - 4) < 1e-12);
});
