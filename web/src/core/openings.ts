// What stands in the boxes at first: a sentence, and for models that read a source a pair of them.
import { batch } from "@preact/signals";
import { type Piece } from "./pieces";
import { head, ids, key, layer, prompt, query, source } from "./state";

export const FIRST = "The animal didn't cross the street because it was too tired"; // the example's text
export const PAIR = { source: `${FIRST}.`, target: "L'animal n'a pas traversé la rue parce qu'" }; // il, or elle?

/** Fill what is empty for a model that reads a source, or for one that does not; what the reader wrote stays. */
export function fillIn(readsSource: boolean): void {
  if (ids.value) return;
  batch(() => {
    if (readsSource && !source.value && ["", FIRST].includes(prompt.value)) [source.value, prompt.value] = [PAIR.source, PAIR.target];
    else if (!readsSource && source.value === PAIR.source && prompt.value === PAIR.target) [source.value, prompt.value] = ["", FIRST];
    else if (!readsSource && !prompt.value) prompt.value = source.value || FIRST;
  });
}

/** Of the first sentence, where nothing is chosen yet: the token "it", and the first token of "animal". */
export function firstPair(tokens: readonly Piece[] | null): { from: number; to: number } | null {
  if (!tokens || prompt.value !== FIRST || [query, key, layer, head].some((one) => one.value !== null)) return null;
  const letters = tokens.map((one) => one.text.replace(/\P{L}/gu, ""));
  const from = letters.lastIndexOf("it"), to = letters.findIndex((_, at) => letters[at] && letters.slice(at).join("").startsWith("animal"));
  return from >= 0 && to >= 0 ? { from, to } : null;
}
