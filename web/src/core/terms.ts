// What a list of terms is called: its columns, and the words of the side along which it runs.
import { parse, short } from "./address";
import type { Cell } from "./types";

type Terms = Cell["terms"];

/** The name of each factor's column: the value that all rows take it from; "" where a row has its own (a sum of two parts). */
export function columns(terms: Terms): string[] {
  const most = Math.max(0, ...terms.map((one) => one.operands.length));
  return Array.from({ length: most }, (_, i) => {
    const names = new Set(terms.flatMap((one) => (one.operands[i] ? [parse(one.operands[i].address).name] : [])));
    return names.size === 1 ? short([...names][0]) : "";
  });
}

/** The side that tells the terms apart, with each one's place on it; null where they differ in more, or have no such side. */
export function side(terms: Terms, axes: (name: string) => readonly string[] | undefined): { name: string; axis: string; places: number[] } | null {
  for (let i = 0; i < (terms.length > 1 ? terms[0].operands.length : 0); i++) {
    const all = terms.map((one) => (one.operands[i] ? parse(one.operands[i].address) : null)), [first] = all;
    const index = first?.index;
    if (!first || !index || all.some((one) => one?.name !== first.name || one.index?.length !== index.length)) continue;
    const apart = index.map((_, at) => at).filter((at) => all.some((one) => one!.index![at] !== index[at]));
    const axis = axes(first.name)?.slice(-index.length)[apart[0]];
    if (apart.length === 1 && axis) return { name: first.name, axis, places: all.map((one) => one!.index![apart[0]]) };
  }
  return null;
}
