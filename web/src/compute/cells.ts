// One number opened: what its function read, and what each operand gives, as sight/recording/opening.py does it.
import { parse } from "../core/address";
import type { Cell, Op, Operand } from "../core/types";
import { Call, FUNCTIONS, isTensor } from "./functions";
import type { Operation, Pass, Program } from "./program";
import { inDouble, side, sizeOf, stepsTo, strides, type Tensor } from "./tensors";

const MOVES = new Set("view view_as reshape transpose permute T mT flip pad flatten unflatten unsqueeze squeeze expand expand_as contiguous clone detach to float cat stack chunk split getitem roll repeat_interleave index_select index_copy".split(" "));
const POINTWISE = new Set("add sub rsub mul div rdiv neg pow rpow exp log sqrt rsqrt square abs sin cos tanh sigmoid relu gelu silu clamp clamp_min maximum minimum where masked_fill floor_divide remainder eq ne lt le gt ge and or logical_and logical_or logical_not dropout".split(" "));
const CREATED = new Set("arange tensor zeros ones full zeros_like ones_like new_zeros new_full".split(" "));
const SIDES: Record<string, string> = { T: "token", S: "key", V: "word", H: "head", K: "key-value head", E: "expert", L: "label", k: "choice", F: "neuron" };

interface Place {
  value: number; // of the pass
  at: number; // in its data
}

interface Opened {
  kind: string;
  recomputed: number;
  terms: { value: number; of: Place[] }[];
  others: Place[];
  numbers: Record<string, number>;
  facts?: Record<string, string | number>;
}

export interface Words {
  equations: Record<string, string>;
  sentences: Record<string, string>;
  leaves: Record<string, string>;
}

/** Where an address stands; undefined where there is no such number. */
export function find(program: Program, pass: Pass, address: string): Place | undefined {
  const { name, index } = parse(address), value = program.number.get(name), x = value === undefined ? undefined : pass.values[value];
  if (value === undefined || !x) return undefined;
  const full = index ?? [], places = full.length === x.shape.length - 1 && x.shape[0] === 1 ? [0, ...full] : full;
  if (places.length !== x.shape.length || places.some((one, i) => !(one >= -x.shape[i] && one < x.shape[i]))) return undefined;
  const steps = strides(x.shape);
  return { value, at: places.reduce((sum, one, i) => sum + side(one, x.shape[i]) * steps[i], 0) };
}

function index(x: Tensor, at: number): number[] {
  return strides(x.shape).map((step, i) => Math.floor(at / step) % x.shape[i]);
}

/** The address of a number, batch row left out. */
export function named(program: Program, pass: Pass, { value, at }: Place): string {
  const x = pass.values[value]!, places = index(x, at), batch = program.leaf(value)?.kind !== "weight" && x.shape[0] === 1 && x.shape.length > 1;
  const shown = batch ? places.slice(1) : places;
  return program.address(value) + (shown.length ? `[${shown.join(",")}]` : "");
}

/** Where a number was computed: functions that only move numbers are walked through, up to a value that the model has a name for, other than `named`. */
export function origin(program: Program, pass: Pass, start: Place, named = -1): Place {
  for (let place = start; ; ) {
    const from = program.origin(place.value);
    if (!from || pass.edited.has(place.value) || !MOVES.has(from.operation.name) || (program.named(place.value) && place.value !== named)) return place;
    const call = program.call(from.operation, pass), copies = from.operation.name === "index_copy", listed = Array.isArray(call.args[0]);
    const moved = listed ? (call.args[0] as Tensor[]) : copies ? [call.x, call.at<Tensor>(3, "source")] : [call.x], all = program.inputs(from.operation);
    const inputs = copies ? [all[0], all[2]] : all.slice(0, moved.length);
    const traced = (code: (which: number, at: number) => number): number => {
      const coded = moved.map((x, which): Tensor => ({ shape: x.shape, type: "int", data: Int32Array.from(x.data, (_, at) => 1 + code(which, at)) }));
      const args = listed ? [coded, ...call.args.slice(1)] : [coded[0], ...call.args.slice(1, 3), ...(copies ? [coded[1]] : call.args.slice(3))];
      return [FUNCTIONS[from.operation.name](new Call(args, call.kwargs, "int"))].flat()[from.output].data[place.at] - 1;
    };
    if (traced((_, at) => at) < 0) return place; // a constant that was put beside
    place = { value: inputs[moved.length > 1 ? traced((which) => which) : 0], at: traced((_, at) => at) };
  }
}

const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0);

function opened(program: Program, pass: Pass, place: Place, operation: Operation): Opened {
  const call = program.call(operation, pass), inputs = program.inputs(operation), result = pass.values[place.value]!, kind = operation.name;
  const read = ({ value, at }: Place) => pass.values[value]!.data[at];
  const where = index(result, place.at), none = { numbers: {}, others: [] as Place[] };
  const pairs = (first: Place[], second: Place[], others: Place[] = []): Opened => {
    const terms = first.map((one, i) => ({ value: read(one) * read(second[i]), of: [one, second[i]] }));
    return { kind, terms, others, numbers: {}, recomputed: sum(terms.map((one) => one.value)) + sum(others.map(read)) };
  };
  const row = (value: number, start: number, size: number, step = 1): Place[] => Array.from({ length: size }, (_, i) => ({ value, at: start + i * step }));
  if (kind === "linear") {
    const [columns, size] = call.at<Tensor>(1, "weight").shape, line = Math.floor(place.at / columns), column = place.at % columns;
    return pairs(row(inputs[0], line * size, size), row(inputs[1], column * size, size), inputs.length > 2 ? [{ value: inputs[2], at: column }] : []);
  }
  if (kind === "matmul" || kind === "bmm") {
    const [a, b] = inputs.map((one) => pass.values[one]!), size = a.shape[a.shape.length - 1], columns = b.shape[b.shape.length - 1], rows = a.shape[a.shape.length - 2];
    const batch = result.shape.slice(0, -2), line = Math.floor(place.at / columns), at = (x: Tensor) => sum(stepsTo(x.shape.slice(0, -2), batch).map((step, i) => step * where[i]));
    return pairs(row(inputs[0], (at(a) * rows + (line % rows)) * size, size), row(inputs[1], at(b) * size * columns + (place.at % columns), size, columns));
  }
  if (kind === "embedding") {
    const size = result.shape[result.shape.length - 1], ids: Place = { value: inputs[0], at: Math.floor(place.at / size) }, id = read(ids);
    const cell = { value: inputs[1], at: id * size + (place.at % size) };
    return { kind, ...none, recomputed: read(cell), terms: [{ value: read(cell), of: [cell] }], others: [ids], facts: { row: id, table: program.address(inputs[1]) } };
  }
  if (kind === "softmax") {
    const along = side(call.at(1, "dim", -1), result.shape.length), step = strides(result.shape)[along], size = result.shape[along];
    const cells = row(inputs[0], place.at - where[along] * step, size, step), most = Math.max(...cells.map(read)), shares = cells.map((one) => Math.exp(read(one) - most)), total = sum(shares);
    return { kind, others: [], recomputed: shares[where[along]] / total, terms: cells.map((one, i) => ({ value: shares[i] / total, of: [one] })), numbers: { max: most, exp: shares[where[along]], sum: total } };
  }
  if (kind === "rms_norm" || kind === "layer_norm") {
    const size = sizeOf(call.at<number[]>(1, "normalized_shape")), start = place.at - (place.at % size), x = Array.from(pass.values[inputs[0]]!.data.subarray(start, start + size));
    const mean = kind === "layer_norm" ? x.reduce((a, b) => a + b / size, 0) : 0, deviation = Math.sqrt(x.reduce((a, b) => a + (b - mean) ** 2 / size, 0));
    const eps = call.at<number | null>(kind === "layer_norm" ? 4 : 3, "eps", null) ?? (kind === "layer_norm" ? 1e-5 : 2 ** -23);
    const itself = { value: inputs[0], at: place.at }, beside = inputs.slice(1).map((value) => ({ value, at: place.at % size }));
    const [gain, shift] = [call.at<Tensor | null>(2, "weight", null), kind === "layer_norm" ? call.at<Tensor | null>(3, "bias", null) : null].map((one) => (one ? one.data[place.at % size] : null));
    const value = ((read(itself) - mean) / Math.sqrt(deviation ** 2 + eps)) * (gain ?? 1);
    return { kind, recomputed: value + (shift ?? 0), terms: [{ value, of: [itself] }], others: beside, numbers: kind === "layer_norm" ? { mean, deviation } : { "root mean square": deviation } };
  }
  if (["sum", "mean", "logsumexp", "amax"].includes(kind)) {
    const x = pass.values[inputs[0]]!, given = call.at<number | number[] | null>(1, "dim", null), sides = given === null ? x.shape.map((_, i) => i) : [given].flat().map((one) => side(one, x.shape.length));
    const kept = where.length === x.shape.length, fixed: number[] = [];
    x.shape.forEach((_, i) => fixed.push(sides.includes(i) ? -1 : where[kept ? i : i - sides.filter((one) => one < i).length]));
    const cells = row(inputs[0], 0, x.data.length).filter(({ at }) => index(x, at).every((one, i) => fixed[i] < 0 || fixed[i] === one)), share = kind === "mean" ? 1 / cells.length : 1;
    if (kind === "sum" || kind === "mean") return { kind, ...none, recomputed: sum(cells.map(read)) * share, terms: cells.map((one) => ({ value: read(one) * share, of: [one] })) };
    const most = Math.max(...cells.map(read));
    return { kind, ...none, recomputed: kind === "amax" ? most : most + Math.log(sum(cells.map((one) => Math.exp(read(one) - most)))), terms: [], others: cells };
  }
  if (kind === "index_add") {
    const along = side(call.at(1, "dim"), result.shape.length), source = pass.values[inputs[2]]!, steps = strides(source.shape), rows = Array.from(pass.values[inputs[1]]!.data);
    const own = { value: inputs[0], at: place.at }, come = rows.flatMap((to, r) => (to === where[along] ? [{ value: inputs[2], at: sum(steps.map((step, i) => step * (i === along ? r : where[i]))) }] : []));
    return { kind, numbers: {}, others: [own], recomputed: sum([own, ...come].map(read)), terms: [own, ...come].map((one) => ({ value: read(one), of: [one] })) };
  }
  if (kind === "topk") {
    const along = side(call.at(2, "dim", -1), result.shape.length), step = strides(result.shape)[along], of = strides(pass.values[inputs[0]]!.shape);
    const first = place.value - program.origin(place.value)!.output, chosen = pass.values[first + 1]!.data[place.at];
    const cell = { value: inputs[0], at: sum(where.map((one, i) => (i === along ? chosen : one) * of[i])) }, value = step && first === place.value ? read(cell) : chosen;
    return { kind, ...none, recomputed: value, terms: first === place.value ? [{ value, of: [cell] }] : [], others: first === place.value ? [] : [cell] };
  }
  if (kind === "grouped_mm") {
    const [, size, columns] = pass.values[inputs[1]]!.shape, ends = Array.from(call.at<Tensor>(2, "offs").data), expert = ends.findIndex((end) => where[0] < end);
    return pairs(row(inputs[0], where[0] * size, size), row(inputs[1], expert * size * columns + where[1], size, columns));
  }
  // a number of each input, or of a row of one where the sizes differ
  const cells = inputs.flatMap((value): Place[] => {
    const x = pass.values[value]!;
    if (x.shape.length > result.shape.length || x.shape.some((size, i) => size !== 1 && size !== result.shape[i + result.shape.length - x.shape.length])) return [];
    return [{ value, at: sum(stepsTo(x.shape, result.shape).map((step, i) => step * where[i])) }];
  });
  if (cells.length < inputs.length) return { kind, ...none, recomputed: read(place), terms: [] };
  const single = (value: any): any => (isTensor(value) ? { shape: [], type: value.type, data: value.data.slice(cellOf.get(value)!, cellOf.get(value)! + 1) } : Array.isArray(value) ? value.map(single) : value);
  const cellOf = new Map(cells.map((one) => [pass.values[one.value]!, one.at]));
  const again = new Call(call.args.map(single), Object.fromEntries(Object.entries(call.kwargs).map(([name, one]) => [name, single(one)])), call.type);
  const recomputed = inDouble(() => [FUNCTIONS[kind](again)].flat()[0].data[0]);
  const inexact = cells.filter((one) => pass.values[one.value]!.type === "float"), exact = cells.filter((one) => !inexact.includes(one));
  if ((kind === "add" || kind === "sub") && cells.length > 1) {
    const signs = [1, (kind === "sub" ? -1 : 1) * call.at(2, "alpha", 1)], terms = cells.map((one, i) => ({ value: signs[i] * read(one), of: [one] }));
    return { kind, numbers: {}, others: cells, recomputed: sum(terms.map((one) => one.value)), terms };
  }
  const whole = inexact.length > 0 && Number.isFinite(recomputed);
  return { kind, numbers: {}, recomputed, terms: whole ? [{ value: recomputed, of: inexact }] : [], others: whole ? exact : cells };
}

/** A number with six digits, as Python's format "g" writes it. */
function six(x: number): string {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf";
  const power = x === 0 ? 0 : Math.floor(Math.log10(Math.abs(Number(x.toPrecision(6)))));
  if (power >= -4 && power < 6) return String(Number(x.toPrecision(6)));
  const [digits, exponent] = x.toExponential(5).split("e");
  return `${String(Number(digits))}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

const written = (text: string, facts: Record<string, string | number>): string =>
  text.replace(/\{([\w ]+)(:\.6g)?\}/g, (whole, name, rounded) => (name in facts ? (rounded ? six(Number(facts[name])) : String(facts[name])) : whole));

const json = (x: number): any => (Number.isFinite(x) ? x : Number.isNaN(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");

export function cell(program: Program, pass: Pass, plan: readonly Op[], words: Words, address: string, most: number, piece: (name: string, axis: string, at: number) => string | null): Cell | undefined {
  const start = find(program, pass, address);
  if (!start) return undefined;
  const value = pass.values[start.value]!, stored = value.data[start.at], op = plan.find((one) => one.id === program.address(start.value));
  const place = origin(program, pass, start, start.value), computed = program.origin(place.value), from = computed && CREATED.has(computed.operation.name) ? undefined : computed, edited = pass.edited.has(place.value);
  const made: Opened = edited ? { kind: "edit", recomputed: stored, terms: [], others: [], numbers: {} } : from ? opened(program, pass, place, from.operation) : { kind: program.leaf(place.value)?.kind ?? "created", recomputed: stored, terms: [], others: [], numbers: {} };
  const operand = (one: Place): Operand => {
    const there = origin(program, pass, one);
    return { address: named(program, pass, there), value: json(pass.values[there.value]!.data[there.at]) };
  };
  const order = made.terms.map((_, i) => i).sort((a, b) => Math.abs(made.terms[b].value) - Math.abs(made.terms[a].value)).slice(0, most);
  const count = sum(made.terms.map((one) => one.of.length)) + made.others.length;
  const plain = words.sentences[made.kind] ?? `The function ${made.kind} of {count} numbers.`;
  let sentence = from ? written(plain, { ...made.numbers, ...made.facts, terms: made.terms.length, count }) : written(words.leaves[made.kind] ?? "", { name: computed?.operation.name ?? "" });
  if (from && !edited) {
    if (made.kind === "softmax" && stored === 0 && made.numbers.exp === 0) sentence += " The mask hides this key.";
    const constants = MOVES.has(made.kind) || !POINTWISE.has(made.kind) ? [] : [...from.operation.args, ...Object.values(from.operation.kwargs)].flatMap((one) => (typeof one === "number" ? [one] : one?.float ? [Number(one.float.replace("inf", "Infinity"))] : []));
    if (constants.length) sentence += ` The code's own number is ${constants.map(six).join(" and ")}.`;
    if (from.operation.is_written_out) sentence += " PyTorch computes this attention in one step; here it is written out.";
  }
  const own = named(program, pass, start), name = parse(own).name, where = parse(own).index ?? [], axes = op ? op.axes.slice(op.axes.length - where.length) : [];
  const sides = axes.map((axis, i) => {
    const word = piece(name, axis, where[i]);
    return `${SIDES[axis] ?? "dimension"} ${where[i]}${word === null ? "" : ` "${word}"`}`;
  });
  const difference = stored === made.recomputed ? 0 : stored - made.recomputed;
  return {
    address: own, kind: from ? made.kind : made.kind === "weight" ? "weight" : "leaf", value: json(stored), dtype: value.type === "float" ? "float32" : value.type === "bool" ? "bool" : "int64",
    recomputed: json(made.recomputed), difference: json(difference), sentence, place: computed ? sides.join(", ") : "", equation: from ? (words.equations[made.kind] ?? `${made.kind}(..)`) : "",
    numbers: Object.fromEntries(Object.entries(made.numbers).map(([key, one]) => [key, json(one)])), count: made.terms.length,
    terms: order.map((at) => ({ term: at, value: json(made.terms[at].value), operands: made.terms[at].of.map(operand) })), others: made.others.map(operand),
    source: computed?.operation.source ?? "", edited, words: { plain: sentence, place: sides.join(", "), value: op?.words ?? "a weight" },
    next: plan.filter((one) => one.in.includes(name)).map((one) => one.id), weights: {}, python: `trace['${name}']${op && value.shape[0] === 1 && value.shape.length > 1 ? "[0]" : ""}${where.map((one) => `[${one}]`).join("")}`,
  };
}
