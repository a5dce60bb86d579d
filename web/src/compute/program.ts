// A recorded pass (sight/recording/program.py), computed anew for a text of any length.
import type { Container } from "../core/safetensors";
import type { Op } from "../core/types";
import { Call, FUNCTIONS, isTensor, type Argument } from "./functions";
import type { Tensor, Type } from "./tensors";

interface Leaf {
  address: string;
  kind: "weight" | "input" | "constant";
  type: Type;
}

export interface Operation {
  name: string;
  args: any[];
  kwargs: Record<string, any>;
  outputs: [address: string, type: Type, named: boolean][];
  source: string;
  is_written_out: boolean;
}

export type Size = number | number[];

/** Of a text's lengths: a number, or a constant and what is added for each length. */
export const sized = (size: Size, lengths: readonly number[]): number => (typeof size === "number" ? size : size.reduce((sum, part, i) => sum + (i ? part * lengths[i - 1] : part), 0));

export interface Source {
  leaves: Leaf[];
  operations: Operation[];
  plan: (Omit<Op, "shape"> & { shape: Size[] })[];
  longest: number;
  has_words: boolean;
  tokenizer: any;
}

/** The values of one pass by their numbers, and the text's lengths. */
export interface Pass {
  values: (Tensor | undefined)[];
  lengths: number[];
  edited: Set<number>;
}

export class Program {
  readonly number = new Map<string, number>(); // of a value, by its address
  private readonly first: number[] = []; // the number of each operation's first result

  constructor(readonly source: Source, private readonly held: Container) {
    let count = 0;
    for (const leaf of source.leaves) this.number.set(leaf.address, count++);
    for (const operation of source.operations) {
      this.first.push(count);
      for (const [address] of operation.outputs) this.number.set(address, count++);
    }
    for (const op of source.plan) for (const name of op.names) if (!this.number.has(name)) this.number.set(name, this.number.get(op.id)!);
  }

  /** The operation that gave a value, and which of its results it is; undefined for what is given. */
  origin(value: number): { operation: Operation; output: number } | undefined {
    if (value < this.source.leaves.length) return undefined;
    let at = this.first.length - 1;
    while (this.first[at] > value) at--;
    return { operation: this.source.operations[at], output: value - this.first[at] };
  }

  address(value: number): string {
    const from = this.origin(value);
    return from ? from.operation.outputs[from.output][0] : this.source.leaves[value].address;
  }

  /** Whether the model itself has a name for a value. */
  named(value: number): boolean {
    const from = this.origin(value);
    return !!from && from.operation.outputs[from.output][2];
  }

  leaf(value: number): Leaf | undefined {
    return this.source.leaves[value];
  }

  /** What an operation is called with. */
  call(operation: Operation, { values, lengths }: Pass, before: Call["before"] = null): Call {
    const read = (one: any): Argument => {
      if (Array.isArray(one)) return one.map(read);
      if (!one || typeof one !== "object") return one;
      if ("value" in one) return values[one.value]!;
      if ("size" in one) return sized(one.size, lengths);
      if ("float" in one) return Number(one.float.replace("inf", "Infinity"));
      return "slice" in one ? { slice: one.slice.map(read) as (number | null)[] } : one;
    };
    return new Call(operation.args.map(read), Object.fromEntries(Object.entries(operation.kwargs).map(([name, one]) => [name, read(one)])), operation.outputs[0][1], before);
  }

  /** The numbers of the values that an operation reads, in order. */
  inputs(operation: Operation): number[] {
    const found: number[] = [];
    const look = (one: any): void => {
      if (Array.isArray(one)) one.forEach(look);
      else if (one && typeof one === "object" && "value" in one) found.push(one.value);
    };
    [...operation.args, ...Object.values(operation.kwargs)].forEach(look);
    return found;
  }

  /** The operations that a value needs; those of `target` alone are computed where only it is asked for. */
  private needed(target: string): Set<Operation> {
    const all = new Set<Operation>(), waiting = [this.number.get(target)!];
    while (waiting.length) {
      const operation = this.origin(waiting.pop()!)?.operation;
      if (operation && !all.has(operation)) {
        all.add(operation);
        waiting.push(...this.inputs(operation));
      }
    }
    return all;
  }

  /** One pass over ids, each input by its name. What `before` has read already is not computed again; `edits` change values by their numbers. */
  run(inputs: Record<string, number[]>, { target, before = null, edits }: { target?: string; before?: Pass | null; edits?: Map<number, (x: Tensor) => Tensor> } = {}): Pass {
    const lengths = Object.values(inputs).map((ids) => ids.length);
    const values: (Tensor | undefined)[] = this.source.leaves.map((leaf) => {
      const ids = inputs[leaf.address];
      if (ids) return { data: Int32Array.from(ids), shape: [1, ids.length], type: "int" };
      const { data, shape } = this.held.tensors[leaf.address];
      return { data: data as Float32Array, shape, type: leaf.type };
    });
    const pass = { values, lengths, edited: new Set(edits?.keys()) }, only = target === undefined ? null : this.needed(target);
    this.source.operations.forEach((operation, at) => {
      const old = before?.values[this.first[at]], x = before && operation.name === "linear" ? before.values[this.inputs(operation)[0]] : undefined;
      const results = only && !only.has(operation) ? [] : [FUNCTIONS[operation.name](this.call(operation, pass, old && x ? { x, result: old } : null))].flat();
      operation.outputs.forEach((_, output) => {
        const change = edits?.get(values.length);
        values.push(change && results[output] ? change(results[output]) : results[output]);
      });
    });
    return pass;
  }

  /** Later values of a pass where one of them were another. */
  rerun(pass: Pass, changed: number, to: Tensor, target: string): Tensor {
    const values = pass.values.slice(), only = this.needed(target), moved = new Set([changed]);
    values[changed] = to;
    this.source.operations.forEach((operation, at) => {
      if (this.first[at] <= changed || !only.has(operation) || !this.inputs(operation).some((one) => moved.has(one))) return;
      const results = [FUNCTIONS[operation.name](this.call(operation, { ...pass, values }))].flat();
      operation.outputs.forEach((_, output) => {
        values[this.first[at] + output] = results[output];
        moved.add(this.first[at] + output);
      });
    });
    return values[this.number.get(target)!]!;
  }

  plan(lengths: readonly number[]): Op[] {
    return this.source.plan.map((op) => ({ ...op, shape: op.shape.map((size) => sized(size, lengths)) }));
  }
}

export { isTensor };
