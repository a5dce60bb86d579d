// PyTorch's functions that a recorded pass calls, on plain arrays. Sums are added up in double precision and results are
// rounded to single: within 1e-5 of PyTorch, which a test in Chromium checks.
import { broadcast, empty, permuted, scalar, shaped, side, sizeOf, stepsTo, strides, walk, type Tensor, type Type } from "./tensors";

export interface Slice {
  slice: (number | null)[];
}

export type Argument = Tensor | Slice | { ellipsis: true } | number | boolean | string | null | Argument[];

/** The arguments of one call; `type` is that of its first result. */
export class Call {
  constructor(readonly args: Argument[], readonly kwargs: Record<string, Argument>, readonly type: Type, readonly before: Before | null = null) {}

  at<T extends Argument = number>(position: number, name: string, otherwise?: T): T {
    const one = this.args.length > position ? this.args[position] : this.kwargs[name];
    return (one === undefined || (one === null && otherwise !== undefined) ? otherwise : one) as T;
  }

  get x(): Tensor {
    return tensor(this.args[0] ?? this.kwargs.input);
  }

  /** Numbers from a position on, given one by one or as a list. */
  numbers(from: number, name = "size"): number[] {
    const rest = this.args.length > from ? this.args.slice(from) : [this.kwargs[name]];
    return (Array.isArray(rest[0]) ? rest[0] : rest).filter((one) => typeof one === "number") as number[];
  }
}

/** The same call of an earlier pass: its first input and its result. */
export interface Before {
  x: Tensor;
  result: Tensor;
}

export const isTensor = (one: unknown): one is Tensor => !!one && typeof one === "object" && "data" in one;

const tensor = (one: Argument): Tensor => (isTensor(one) ? one : scalar(Number(one), typeof one === "boolean" ? "bool" : Number.isInteger(one) ? "int" : "float"));

type Function = (call: Call) => Tensor | Tensor[];

// ------------------------------------------------------------------------------- number by number

function unary(f: (x: number) => number): Function {
  return (call) => {
    const x = call.x, out = empty(x.shape, call.type);
    for (let i = 0; i < x.data.length; i++) out.data[i] = f(x.data[i]);
    return out;
  };
}

function combine(type: Type, f: (...numbers: number[]) => number, ...inputs: Tensor[]): Tensor {
  const out = empty(broadcast(...inputs.map((one) => one.shape)), type), data = inputs.map((one) => one.data);
  if (inputs.length === 2) {
    const [a, b] = data;
    if (inputs.every((one) => one.data.length === out.data.length)) for (let i = 0; i < out.data.length; i++) out.data[i] = f(a[i], b[i]);
    else walk(out.shape, inputs.map((one) => stepsTo(one.shape, out.shape)), (at, offsets) => (out.data[at] = f(a[offsets[0]], b[offsets[1]])));
  } else walk(out.shape, inputs.map((one) => stepsTo(one.shape, out.shape)), (at, offsets) => (out.data[at] = f(...data.map((one, k) => one[offsets[k]]))));
  return out;
}

const binary = (f: (a: number, b: number) => number): Function => (call) => combine(call.type, f, call.x, tensor(call.at<Argument>(1, "other")));
/** Python's x - 1 is a call of its own, with a number on the right; 1 - x gives it from the left. */
const reversed = (f: (a: number, b: number) => number) => binary((x, other) => f(other, x));
const truth = (f: (a: number, b: number) => boolean) => binary((a, b) => (f(a, b) ? 1 : 0));

function scaled(f: (a: number, b: number) => number): Function {
  return (call) => {
    const alpha = call.at(2, "alpha", 1);
    return combine(call.type, (a, b) => f(a, alpha * b), call.x, tensor(call.at<Argument>(1, "other")));
  };
}

/** The error function (Abramowitz & Stegun 7.1.5 and 7.1.14): a series near 0, a continued fraction beyond. */
export function erf(x: number): number {
  const a = Math.abs(x);
  if (a > 6) return Math.sign(x);
  if (a < 2.5) {
    let term = a, sum = a;
    for (let n = 1; Math.abs(term) > 1e-17; n++) sum += (term *= (-a * a) / n) / (2 * n + 1);
    return Math.sign(x) * sum * (2 / Math.sqrt(Math.PI));
  }
  let fraction = 0;
  for (let k = 60; k > 0; k--) fraction = k / 2 / (a + fraction);
  return Math.sign(x) * (1 - Math.exp(-a * a) / ((a + fraction) * Math.sqrt(Math.PI)));
}

const gelu: Function = (call) =>
  call.kwargs.approximate === "tanh" || call.args[1] === "tanh"
    ? unary((x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))))(call)
    : unary((x) => 0.5 * x * (1 + erf(x / Math.SQRT2)))(call);

const clamp: Function = (call) => {
  const low = call.at<number | null>(1, "min", null) ?? -Infinity, high = call.at<number | null>(2, "max", null) ?? Infinity;
  return unary((x) => Math.min(high, Math.max(low, x)))(call);
};

// ---------------------------------------------------------------------------------- along one side

/** Calls `visit(start, step, size, place)` for every line along a side; `place` counts the lines. */
function lines(shape: readonly number[], along: number, visit: (start: number, step: number, size: number, place: number) => void): void {
  const at = side(along, shape.length), size = shape[at] ?? 1, step = sizeOf(shape.slice(at + 1)), outer = sizeOf(shape.slice(0, at));
  for (let o = 0, place = 0; o < outer; o++) for (let i = 0; i < step; i++) visit(o * size * step + i, step, size, place++);
}

function softmax(call: Call): Tensor {
  const x = call.x, out = empty(x.shape, "float");
  lines(x.shape, call.at(1, "dim", -1), (start, step, size) => {
    let most = -Infinity, sum = 0;
    for (let i = 0; i < size; i++) most = Math.max(most, x.data[start + i * step]);
    for (let i = 0; i < size; i++) sum += Math.exp(x.data[start + i * step] - most);
    for (let i = 0; i < size; i++) out.data[start + i * step] = Math.exp(x.data[start + i * step] - most) / sum;
  });
  return out;
}

function reduce(f: (row: (i: number) => number, size: number) => number): Function {
  return (call) => {
    const x = call.x, given = call.at<number | number[] | null>(1, "dim", null), keep = call.at<boolean>(2, "keepdim", false);
    const sides = (given === null || typeof given === "number" ? (given === null ? x.shape.map((_, i) => i) : [given]) : given).map((one) => side(one, x.shape.length));
    const others = x.shape.map((_, i) => i).filter((i) => !sides.includes(i));
    const moved = permuted(x, [...others, ...sides]), size = sizeOf(sides.map((i) => x.shape[i]));
    const out = empty(x.shape.flatMap((n, i) => (sides.includes(i) ? (keep ? [1] : []) : [n])), call.type);
    for (let place = 0; place < out.data.length; place++) out.data[place] = f((i) => moved.data[place * size + i], size);
    return out;
  };
}

function added(row: (i: number) => number, size: number): number {
  let sum = 0;
  for (let i = 0; i < size; i++) sum += row(i);
  return sum;
}

function cumsum(call: Call): Tensor {
  const x = call.x, out = empty(x.shape, call.type);
  lines(x.shape, call.at(1, "dim", 0), (start, step, size) => {
    let sum = 0;
    for (let i = 0; i < size; i++) out.data[start + i * step] = sum += x.data[start + i * step];
  });
  return out;
}

function topk(call: Call): Tensor[] {
  const x = call.x, k = call.at(1, "k"), along = side(call.at(2, "dim", -1), x.shape.length), shape = x.shape.map((n, i) => (i === along ? k : n));
  const values = empty(shape, x.type), indices = empty(shape, "int"), step = sizeOf(shape.slice(along + 1));
  lines(x.shape, along, (start, stride, size, place) => {
    const order = Array.from({ length: size }, (_, i) => i).sort((a, b) => x.data[start + b * stride] - x.data[start + a * stride] || a - b);
    const to = Math.floor(place / step) * step * k + (place % step);
    for (let i = 0; i < k; i++) {
      indices.data[to + i * step] = order[i];
      values.data[to + i * step] = x.data[start + order[i] * stride];
    }
  });
  return [values, indices];
}

function norm(centred: boolean): Function {
  return (call) => {
    const x = call.x, out = empty(x.shape, "float"), size = sizeOf(call.at<number[]>(1, "normalized_shape"));
    const weight = call.at<Tensor | null>(2, "weight", null), bias = centred ? call.at<Tensor | null>(3, "bias", null) : null;
    const eps = call.at<number | null>(centred ? 4 : 3, "eps", null) ?? (centred ? 1e-5 : 2 ** -23);
    for (let start = 0; start < x.data.length; start += size) {
      let mean = 0, square = 0;
      if (centred) for (let i = 0; i < size; i++) mean += x.data[start + i] / size;
      for (let i = 0; i < size; i++) square += (x.data[start + i] - mean) ** 2;
      const scale = 1 / Math.sqrt(square / size + eps);
      for (let i = 0; i < size; i++) out.data[start + i] = (x.data[start + i] - mean) * scale * (weight ? weight.data[i] : 1) + (bias ? bias.data[i] : 0);
    }
    return out;
  };
}

// ------------------------------------------------------------------------------------------ products

/** Of each row of `a` (rows, size) the products with every row of `b` (columns, size), added up, from row `first` on. */
function products(a: Tensor["data"], b: Tensor["data"], rows: number, columns: number, size: number, out: Tensor["data"], aFrom = 0, bFrom = 0, outFrom = 0): void {
  for (let r = 0; r < rows; r++) {
    const x = aFrom + r * size;
    let c = 0;
    for (; c + 4 <= columns; c += 4) { // four at a time read the row once
      const p = bFrom + c * size, q = p + size, s = q + size, t = s + size;
      let one = 0, two = 0, three = 0, four = 0;
      for (let i = 0; i < size; i++) {
        const v = a[x + i];
        one += v * b[p + i];
        two += v * b[q + i];
        three += v * b[s + i];
        four += v * b[t + i];
      }
      const to = outFrom + r * columns + c;
      out[to] = one;
      out[to + 1] = two;
      out[to + 2] = three;
      out[to + 3] = four;
    }
    for (; c < columns; c++) {
      let one = 0;
      for (let i = 0; i < size; i++) one += a[x + i] * b[bFrom + c * size + i];
      out[outFrom + r * columns + c] = one;
    }
  }
}

/** Rows that an earlier pass has read already give what they gave: the same numbers in the same order. */
function linear(call: Call): Tensor {
  const x = call.x, weight = call.at<Tensor>(1, "weight"), bias = call.at<Tensor | null>(2, "bias", null);
  const [columns, size] = weight.shape, rows = x.data.length / size, out = empty([...x.shape.slice(0, -1), columns], "float");
  let first = 0;
  if (call.before && call.before.x.shape.length === x.shape.length) {
    const old = call.before.x.data, most = Math.min(rows, old.length / size);
    let same = 0;
    while (same < most * size && old[same] === x.data[same]) same++;
    first = Math.floor(same / size);
    out.data.set(call.before.result.data.subarray(0, first * columns));
  }
  products(x.data, weight.data, rows - first, columns, size, out.data, first * size, 0, first * columns);
  if (bias) for (let i = first * columns; i < out.data.length; i++) out.data[i] += bias.data[i % columns];
  return out;
}

function matmul(call: Call): Tensor {
  let a = call.x, b = tensor(call.at<Argument>(1, "mat2", call.kwargs.other ?? call.kwargs.tensor2));
  const vector = b.shape.length === 1, row = a.shape.length === 1;
  if (row) a = { ...a, shape: [1, ...a.shape] };
  if (vector) b = { ...b, shape: [...b.shape, 1] };
  const [rows, size] = a.shape.slice(-2), columns = b.shape[b.shape.length - 1], batch = broadcast(a.shape.slice(0, -2), b.shape.slice(0, -2));
  const turned = permuted(b, [...b.shape.slice(0, -2).map((_, i) => i), b.shape.length - 1, b.shape.length - 2]);
  const out = empty([...batch, rows, columns], call.type);
  walk(batch, [stepsTo(a.shape.slice(0, -2), batch), stepsTo(b.shape.slice(0, -2), batch)], (at, [i, j]) =>
    products(a.data, turned.data, rows, columns, size, out.data, i * rows * size, j * size * columns, at * rows * columns));
  out.shape = [...batch, ...(row ? [] : [rows]), ...(vector ? [] : [columns])];
  return out;
}

function embedding(call: Call): Tensor {
  const ids = call.x, table = call.at<Tensor>(1, "weight"), size = table.shape[1], out = empty([...ids.shape, size], "float");
  ids.data.forEach((id, at) => out.data.set(table.data.subarray(id * size, (id + 1) * size), at * size));
  return out;
}

// --------------------------------------------------------------------------------------------- moves

const reshape: Function = (call) => ({ ...call.x, shape: shaped(call.numbers(1, "shape"), call.x.data.length) });

function transpose(call: Call): Tensor {
  const x = call.x, order = x.shape.map((_, i) => i), [a, b] = [call.at(1, "dim0"), call.at(2, "dim1")].map((one) => side(one, order.length));
  [order[a], order[b]] = [b, a];
  return permuted(x, order);
}

function flatten(call: Call): Tensor {
  const x = call.x, from = side(call.at(1, "start_dim", 0), x.shape.length), to = side(call.at(2, "end_dim", -1), x.shape.length);
  return { ...x, shape: [...x.shape.slice(0, from), sizeOf(x.shape.slice(from, to + 1)), ...x.shape.slice(to + 1)] };
}

function unflatten(call: Call): Tensor {
  const x = call.x, at = side(call.at(1, "dim"), x.shape.length), sizes = call.at<number[]>(2, "sizes");
  return { ...x, shape: [...x.shape.slice(0, at), ...shaped(sizes, x.shape[at]), ...x.shape.slice(at + 1)] };
}

function unsqueeze(call: Call): Tensor {
  const x = call.x, at = side(call.at(1, "dim"), x.shape.length + 1);
  return { ...x, shape: [...x.shape.slice(0, at), 1, ...x.shape.slice(at)] };
}

function squeeze(call: Call): Tensor {
  const x = call.x, at = call.at<number | null>(1, "dim", null);
  return { ...x, shape: x.shape.filter((size, i) => size !== 1 || (at !== null && i !== side(at, x.shape.length))) };
}

function expanded(x: Tensor, sizes: readonly number[]): Tensor {
  const missing = sizes.length - x.shape.length, out = empty(sizes.map((size, i) => (size === -1 ? x.shape[i - missing] : size)), x.type);
  walk(out.shape, [stepsTo(x.shape, out.shape)], (place, [from]) => (out.data[place] = x.data[from]));
  return out;
}

function joined(parts: Tensor[], along: number): Tensor {
  const at = side(along, parts[0].shape.length), shape = parts[0].shape.slice();
  shape[at] = parts.reduce((sum, one) => sum + one.shape[at], 0);
  const out = empty(shape, parts[0].type), outer = sizeOf(shape.slice(0, at)), step = sizeOf(shape.slice(at));
  let start = 0;
  for (const one of parts) {
    const size = sizeOf(one.shape.slice(at));
    for (let o = 0; o < outer; o++) out.data.set(one.data.subarray(o * size, (o + 1) * size), o * step + start);
    start += size;
  }
  return out;
}

function stack(call: Call): Tensor {
  const parts = call.args[0] as Tensor[], at = side(call.at(1, "dim", 0), parts[0].shape.length + 1);
  return joined(parts.map((one) => ({ ...one, shape: [...one.shape.slice(0, at), 1, ...one.shape.slice(at)] })), at);
}

function narrowed(x: Tensor, along: number, from: number, to: number, step = 1): Tensor {
  const size = x.shape[along], inner = sizeOf(x.shape.slice(along + 1)), outer = sizeOf(x.shape.slice(0, along));
  const count = Math.max(0, Math.ceil((to - from) / step)), out = empty(x.shape.map((n, i) => (i === along ? count : n)), x.type);
  for (let o = 0; o < outer; o++)
    for (let i = 0; i < count; i++) {
      const start = (o * size + from + i * step) * inner;
      out.data.set(x.data.subarray(start, start + inner), (o * count + i) * inner);
    }
  return out;
}

function pieces(x: Tensor, along: number, sizes: readonly number[]): Tensor[] {
  let from = 0;
  return sizes.map((size) => narrowed(x, along, from, (from += size)));
}

function split(call: Call): Tensor[] {
  const x = call.x, at = side(call.at(2, "dim", 0), x.shape.length), by = call.at<number | number[]>(1, "split_size_or_sections", call.kwargs.split_size as number);
  return pieces(x, at, typeof by === "number" ? Array.from({ length: Math.ceil(x.shape[at] / by) }, (_, i) => Math.min(by, x.shape[at] - i * by)) : by);
}

function chunk(call: Call): Tensor[] {
  const x = call.x, at = side(call.at(2, "dim", 0), x.shape.length), by = Math.ceil(x.shape[at] / call.at(1, "chunks"));
  return pieces(x, at, Array.from({ length: Math.ceil(x.shape[at] / by) }, (_, i) => Math.min(by, x.shape[at] - i * by)));
}

/** x[...]: slices, places, new sides, an ellipsis, and one tensor of places. */
function getitem(call: Call): Tensor {
  let x = call.x, at = 0;
  const given = call.args[1], index = Array.isArray(given) ? given : [given];
  for (const [place, one] of index.entries()) {
    if (one === null) x = { ...x, shape: [...x.shape.slice(0, at), 1, ...x.shape.slice(at++)] };
    else if (typeof one === "number") {
      const from = side(one, x.shape[at]);
      x = narrowed(x, at, from, from + 1);
      x = { ...x, shape: x.shape.filter((_, i) => i !== at) };
    } else if (isTensor(one)) {
      const taken = one.type === "bool" ? nonzero(new Call([one], {}, "int")) : one;
      x = taken.data.length === 0 ? narrowed(x, at, 0, 0) : joined(Array.from(taken.data, (row) => narrowed(x, at, side(row, x.shape[at]), side(row, x.shape[at]) + 1)), at);
      x = { ...x, shape: [...x.shape.slice(0, at), ...(one.type === "bool" ? [taken.data.length] : one.shape), ...x.shape.slice(at + 1)] };
      at += one.type === "bool" ? 1 : one.shape.length;
    } else if (typeof one === "object" && !Array.isArray(one) && "slice" in one) {
      const [start, stop, step] = one.slice, size = x.shape[at];
      const turn = (end: number | null, otherwise: number) => (end === null ? otherwise : Math.min(size, Math.max(0, side(end, size))));
      x = narrowed(x, at++, turn(start, 0), turn(stop, size), step ?? 1);
    } else at = x.shape.length - index.slice(place + 1).filter((each) => each !== null).length;
  }
  return x;
}

function roll(call: Call): Tensor {
  let x = call.x;
  const by = call.at<number | number[]>(1, "shifts"), along = call.at<number | number[]>(2, "dims");
  [along].flat().forEach((one, i) => {
    const at = side(one, x.shape.length), size = x.shape[at], cut = (((size - [by].flat()[i]) % size) + size) % size;
    x = joined([narrowed(x, at, cut, size), narrowed(x, at, 0, cut)], at);
  });
  return x;
}

function padded(call: Call): Tensor {
  let x = call.x;
  const pairs = call.at<number[]>(1, "pad"), value = call.at<number | null>(3, "value", null) ?? 0;
  for (let i = 0; i < pairs.length; i += 2) {
    const at = x.shape.length - 1 - i / 2, size = x.shape[at], [before, after] = [pairs[i], pairs[i + 1]];
    const margin = (count: number): Tensor => {
      const out = empty(x.shape.map((n, one) => (one === at ? Math.max(0, count) : n)), x.type);
      out.data.fill(value);
      return out;
    };
    x = joined([margin(before), narrowed(x, at, Math.max(0, -before), size - Math.max(0, -after)), margin(after)], at);
  }
  return x;
}

function flipped(call: Call): Tensor {
  return call.numbers(1, "dims").reduce((x, along) => {
    const at = side(along, x.shape.length);
    return joined(Array.from({ length: x.shape[at] }, (_, i) => narrowed(x, at, x.shape[at] - 1 - i, x.shape[at] - i)), at);
  }, call.x);
}

function repeated(call: Call): Tensor {
  const x = call.x, by = call.at<Argument>(1, "repeats"), at = side(call.at(2, "dim"), x.shape.length), size = x.shape[at];
  return joined(Array.from({ length: size }, (_, i) => new Array<Tensor>(isTensor(by) ? by.data[i] : Number(by)).fill(narrowed(x, at, i, i + 1))).flat(), at);
}

// -------------------------------------------------------------------------------- to and from places

/** Rows of `x` along a side by their places; a place for each row that is taken. */
function selected(call: Call): Tensor {
  const x = call.x, at = side(call.at(1, "dim"), x.shape.length);
  return joined(Array.from(call.at<Tensor>(2, "index").data, (row) => narrowed(x, at, row, row + 1)), at);
}

/** `x` with rows of another put to their places along a side: f(what is there, what comes). */
function placed(f: (old: number, other: number) => number): Function {
  return (call) => {
    const x = call.x, at = side(call.at(1, "dim"), x.shape.length), index = call.at<Tensor>(2, "index"), source = call.at<Tensor>(3, "source", call.kwargs.tensor as Tensor);
    const out = { ...x, data: x.data.slice() }, inner = sizeOf(x.shape.slice(at + 1)), outer = sizeOf(x.shape.slice(0, at)), size = x.shape[at], count = index.data.length;
    for (let o = 0; o < outer; o++)
      for (let r = 0; r < count; r++)
        for (let i = 0; i < inner; i++) {
          const to = (o * size + index.data[r]) * inner + i;
          out.data[to] = f(out.data[to], source.data[(o * count + r) * inner + i]);
        }
    return out;
  };
}

/** `x` with each number of another put to a place of its own along a side. */
function scattered(call: Call, f: (old: number, other: number) => number): Tensor {
  const x = call.x, at = side(call.at(1, "dim"), x.shape.length), index = call.at<Tensor>(2, "index"), source = call.at<Tensor>(3, "src");
  const out = { ...x, data: x.data.slice() }, own = strides(x.shape), from = strides(source.shape), step = own[at];
  walk(index.shape, [own.map((one, i) => (i === at ? 0 : one)), from], (place, [base, other]) => {
    const to = base + index.data[place] * step;
    out.data[to] = f(out.data[to], source.data[other]);
  });
  return out;
}

const LARGER: Record<string, (old: number, other: number) => number> = { amax: Math.max, amin: Math.min, sum: (a, b) => a + b, prod: (a, b) => a * b };

function nonzero(call: Call): Tensor {
  const x = call.x, places = Array.from(x.data.keys()).filter((at) => x.data[at] !== 0), steps = strides(x.shape), out = empty([places.length, x.shape.length], "int");
  places.forEach((at, row) => steps.forEach((step, i) => (out.data[row * steps.length + i] = Math.floor(at / step) % x.shape[i])));
  return out;
}

function bincount(call: Call): Tensor {
  const x = call.x, out = empty([Math.max(call.at(2, "minlength", 0), ...Array.from(x.data, (one) => one + 1))], "int");
  for (const one of x.data) out.data[one]++;
  return out;
}

function argsort(call: Call): Tensor {
  const x = call.x, out = empty(x.shape, "int"), sign = call.at<boolean>(2, "descending", false) ? -1 : 1;
  lines(x.shape, call.at(1, "dim", -1), (start, step, size) => {
    const order = Array.from({ length: size }, (_, i) => i).sort((a, b) => sign * (x.data[start + a * step] - x.data[start + b * step]) || a - b);
    order.forEach((one, i) => (out.data[start + i * step] = one));
  });
  return out;
}

/** Rows of `x` times the matrix of their group; `offs` says where each group ends. */
function grouped(call: Call): Tensor {
  const x = call.x, table = call.at<Tensor>(1, "mat_b"), ends = call.at<Tensor>(2, "offs").data, [groups, size, columns] = table.shape, out = empty([x.shape[0], columns], "float");
  const turned = permuted(table, [0, 2, 1]);
  for (let group = 0, from = 0; group < groups; from = ends[group++])
    if (ends[group] > from) products(x.data, turned.data, ends[group] - from, columns, size, out.data, from * size, group * size * columns, from * columns);
  return out;
}

// --------------------------------------------------------------------------------- from nothing else

function arange(call: Call): Tensor {
  const given = call.numbers(0, "end"), [start, end, step] = given.length === 1 ? [0, given[0], 1] : [given[0], given[1], given[2] ?? 1];
  const out = empty([Math.max(0, Math.ceil((end - start) / step))], call.type);
  for (let i = 0; i < out.data.length; i++) out.data[i] = start + i * step;
  return out;
}

const filled = (value: (call: Call) => number, shape: (call: Call) => number[]): Function => (call) => {
  const out = empty(shape(call), call.type);
  out.data.fill(value(call));
  return out;
};

function listed(call: Call): Tensor {
  const shape: number[] = [];
  for (let one: Argument = call.args[0]; Array.isArray(one); one = one[0]) shape.push(one.length);
  const out = empty(shape, call.type);
  [call.args[0]].flat(Infinity as 1).forEach((one, i) => (out.data[i] = Number(one)));
  return out;
}

const same = unary((x) => x), sizes = (call: Call) => call.numbers(0), like = (call: Call) => call.x.shape;

export const FUNCTIONS: Record<string, Function> = {
  linear, matmul, bmm: matmul, embedding, softmax, layer_norm: norm(true), rms_norm: norm(false),
  add: scaled((a, b) => a + b), sub: scaled((a, b) => a - b), mul: binary((a, b) => a * b), div: binary((a, b) => a / b), pow: binary((a, b) => a ** b),
  rdiv: reversed((a, b) => a / b), rsub: reversed((a, b) => a - b), rpow: reversed((a, b) => a ** b),
  neg: unary((x) => -x), exp: unary(Math.exp), log: unary(Math.log), sqrt: unary(Math.sqrt), rsqrt: unary((x) => 1 / Math.sqrt(x)), square: unary((x) => x * x),
  abs: unary(Math.abs), cos: unary(Math.cos), sin: unary(Math.sin), tanh: unary(Math.tanh), sigmoid: unary((x) => 1 / (1 + Math.exp(-x))),
  relu: unary((x) => Math.max(0, x)), silu: unary((x) => x / (1 + Math.exp(-x))), gelu, clamp, clamp_min: clamp,
  floor_divide: binary((a, b) => Math.floor(a / b)), remainder: binary((a, b) => a - b * Math.floor(a / b)), maximum: binary(Math.max), minimum: binary(Math.min),
  le: truth((a, b) => a <= b), ge: truth((a, b) => a >= b), lt: truth((a, b) => a < b), gt: truth((a, b) => a > b), eq: truth((a, b) => a === b), ne: truth((a, b) => a !== b),
  and: binary((a, b) => a & b), or: binary((a, b) => a | b), logical_and: truth((a, b) => !!a && !!b), logical_or: truth((a, b) => !!a || !!b), logical_not: unary((x) => (x ? 0 : 1)),
  masked_fill: (call) => combine(call.type, (x, hidden, value) => (hidden ? value : x), call.x, call.at<Tensor>(1, "mask"), tensor(call.at<Argument>(2, "value"))),
  where: (call) => combine(call.type, (which, a, b) => (which ? a : b), tensor(call.at<Argument>(0, "condition")), tensor(call.at<Argument>(1, "input")), tensor(call.at<Argument>(2, "other"))),
  view: reshape, reshape, transpose, permute: (call) => permuted(call.x, call.numbers(1, "dims").map((one) => side(one, call.x.shape.length))), flatten, unflatten, unsqueeze, squeeze,
  T: (call) => permuted(call.x, call.x.shape.map((_, i) => call.x.shape.length - 1 - i)), mT: (call) => permuted(call.x, call.x.shape.map((_, i, all) => (i < all.length - 2 ? i : 2 * all.length - 3 - i))),
  pad: padded, flip: flipped, view_as: (call) => ({ ...call.x, shape: call.at<Tensor>(1, "other").shape }), int: unary(Math.trunc),
  index_select: selected, index_copy: placed((_, other) => other), index_add: placed((old, other) => old + other), scatter_add: (call) => scattered(call, (old, other) => old + other),
  scatter_reduce: (call) => scattered(call, LARGER[call.at<string>(4, "reduce")]), nonzero, bincount, argsort, grouped_mm: grouped,
  logsumexp: reduce((row, size) => {
    const all = Array.from({ length: size }, (_, i) => row(i)), most = Math.max(...all);
    return most + Math.log(all.reduce((sum, one) => sum + Math.exp(one - most), 0));
  }),
  expand: (call) => expanded(call.x, call.numbers(1)), expand_as: (call) => expanded(call.x, call.at<Tensor>(1, "other").shape),
  cat: (call) => joined(call.args[0] as Tensor[], call.at(1, "dim", 0)), stack, chunk, split, getitem, roll, repeat_interleave: repeated,
  contiguous: same, clone: same, detach: same, dropout: same, to: same, float: same, long: unary(Math.trunc), bool: unary((x) => (x ? 1 : 0)),
  arange, tensor: listed, zeros: filled(() => 0, sizes), ones: filled(() => 1, sizes), full: filled((call) => Number(call.at(1, "fill_value")), (call) => [call.args[0]].flat() as number[]),
  zeros_like: filled(() => 0, like), ones_like: filled(() => 1, like), new_zeros: filled(() => 0, (call) => call.numbers(1)), new_full: filled((call) => Number(call.at(2, "fill_value")), (call) => [call.args[1]].flat() as number[]),
  mean: reduce((row, size) => added(row, size) / size), sum: reduce(added), amax: reduce((row, size) => Math.max(...Array.from({ length: size }, (_, i) => row(i)))), cumsum, topk,
};
