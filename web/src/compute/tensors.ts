// Arrays with a shape, row by row without gaps. Whole numbers and truth values are Int32Array.

export type Type = "float" | "int" | "bool";

export interface Tensor {
  data: Float32Array | Int32Array | Float64Array;
  shape: number[];
  type: Type;
}

export const sizeOf = (shape: readonly number[]) => shape.reduce((a, b) => a * b, 1);

let double = false;

/** What `compute` gives where results are not rounded to single precision. */
export function inDouble<T>(compute: () => T): T {
  double = true;
  try {
    return compute();
  } finally {
    double = false;
  }
}

export function empty(shape: number[], type: Type): Tensor {
  const size = sizeOf(shape);
  return { data: type !== "float" ? new Int32Array(size) : double ? new Float64Array(size) : new Float32Array(size), shape, type };
}

export function scalar(value: number, type: Type = "float"): Tensor {
  const one = empty([], type);
  one.data[0] = value;
  return one;
}

export function strides(shape: readonly number[]): number[] {
  const out = new Array(shape.length);
  for (let side = shape.length - 1, step = 1; side >= 0; step *= shape[side--]) out[side] = step;
  return out;
}

/** The shape that several shapes broadcast to. */
export function broadcast(...shapes: readonly number[][]): number[] {
  const out: number[] = new Array(Math.max(...shapes.map((one) => one.length))).fill(1);
  for (const shape of shapes)
    shape.forEach((size, side) => {
      const at = side + out.length - shape.length;
      if (size !== 1) out[at] = size;
    });
  return out;
}

/** Steps through a tensor of `shape` while `target` is gone through: 0 along sides that are repeated. */
export function stepsTo(shape: readonly number[], target: readonly number[]): number[] {
  const own = strides(shape), missing = target.length - shape.length;
  return target.map((_, side) => (side < missing || shape[side - missing] === 1 ? 0 : own[side - missing]));
}

/** Calls `visit(place, offsets)` for each place of `shape` in order; `steps` are those of each tensor that is read. */
export function walk(shape: readonly number[], steps: readonly number[][], visit: (place: number, offsets: Int32Array) => void): void {
  const size = sizeOf(shape), sides = shape.length, index = new Int32Array(sides), offsets = new Int32Array(steps.length);
  for (let place = 0; place < size; place++) {
    visit(place, offsets);
    for (let side = sides - 1; side >= 0; side--) {
      index[side]++;
      for (let k = 0; k < steps.length; k++) offsets[k] += steps[k][side];
      if (index[side] < shape[side]) break;
      for (let k = 0; k < steps.length; k++) offsets[k] -= steps[k][side] * shape[side];
      index[side] = 0;
    }
  }
}

/** A copy with its sides in another order. */
export function permuted(x: Tensor, order: readonly number[]): Tensor {
  const own = strides(x.shape), out = empty(order.map((side) => x.shape[side]), x.type);
  walk(out.shape, [order.map((side) => own[side])], (place, [from]) => (out.data[place] = x.data[from]));
  return out;
}

export const side = (at: number, count: number) => (at < 0 ? at + count : at);

/** Sizes with one -1, which takes what is left. */
export function shaped(sizes: readonly number[], size: number): number[] {
  const known = sizes.reduce((a, b) => (b === -1 ? a : a * b), 1);
  return sizes.map((one) => (one === -1 ? size / known : one));
}
