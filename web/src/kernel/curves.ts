/** Curves of any length in a bounded number of points: the least and the greatest of each bucket of steps.
 *
 *  Buckets are a power of two steps wide and begin at its multiples. So a new point changes the last bucket alone, and
 *  a lone spike is in the picture at every zoom.
 */

export interface Curve {
  /** Steps, ascending. */
  steps: number[];
  values: number[];
}

export interface Bucketed {
  /** Steps in one bucket, a power of two. */
  width: number;
  /** First step of each bucket that holds a point. */
  start: number[];
  min: number[];
  max: number[];
  mean: number[];
  /** Whether a bucket holds a number that is not finite. */
  broken: boolean[];
}

/** The narrowest power of two with which the steps from `low` to `high` fall into at most `most` buckets. */
export function widthFor(low: number, high: number, most: number): number {
  let width = 1;
  while (Math.floor(high / width) - Math.floor(low / width) + 1 > most) width *= 2;
  return width;
}

/** The points from step `low` to step `high` in at most `most` buckets; NaN and infinities are told, not drawn. */
export function bucketed(curve: Curve, low: number, high: number, most: number): Bucketed {
  const width = widthFor(low, high, Math.max(1, most));
  const made: Bucketed = { width, start: [], min: [], max: [], mean: [], broken: [] };
  let count = 0;
  const close = (): void => {
    const last = made.start.length - 1;
    if (last >= 0) made.mean[last] = count ? made.mean[last]! / count : NaN;
  };
  for (let at = firstAtLeast(curve.steps, low); at < curve.steps.length && curve.steps[at]! <= high; at++) {
    const start = Math.floor(curve.steps[at]! / width) * width;
    let last = made.start.length - 1;
    if (last < 0 || made.start[last] !== start) {
      close();
      made.start.push(start);
      made.min.push(Infinity);
      made.max.push(-Infinity);
      made.mean.push(0);
      made.broken.push(false);
      count = 0;
      last++;
    }
    const value = curve.values[at]!;
    if (!Number.isFinite(value)) {
      made.broken[last] = true;
      continue;
    }
    made.min[last] = Math.min(made.min[last]!, value);
    made.max[last] = Math.max(made.max[last]!, value);
    made.mean[last] = made.mean[last]! + value;
    count++;
  }
  close();
  return made;
}

/** The first place whose step is at least `step`. */
export function firstAtLeast(steps: readonly number[], step: number): number {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle]! < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Round numbers between `low` and `high`, about `count` of them: 1, 2 or 5 times a power of ten apart. */
export function ticks(low: number, high: number, count: number): number[] {
  if (!(high > low) || !Number.isFinite(high - low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((by) => by * power >= rough) ?? 10);
  const made: number[] = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) made.push(Number((at * step).toPrecision(12)));
  return made;
}

/** A running mean that starts unbiased: each value weighs 1 - `keep`, what was before decays by `keep`. */
export function smooth(values: readonly number[], keep: number): number[] {
  let total = 0;
  let weight = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return weight ? total / weight : NaN;
    total = total * keep + value * (1 - keep);
    weight = weight * keep + (1 - keep);
    return total / weight;
  });
}
