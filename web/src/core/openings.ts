// What stands in the boxes at first: a sentence, and for models that read a source a pair of them.
import { batch } from "@preact/signals";
import { ids, prompt, source } from "./state";

export const FIRST = "Farewell, my noble lord; farewell, my noble"; // the example's text
export const PAIR = { source: "A man rides a bicycle down the street .", target: "Ein Mann fährt mit" };

/** Fill what is empty for a model that reads a source, or for one that does not; what the reader wrote stays. */
export function fillIn(readsSource: boolean): void {
  if (ids.value) return;
  batch(() => {
    if (readsSource && !source.value && ["", FIRST].includes(prompt.value)) [source.value, prompt.value] = [PAIR.source, PAIR.target];
    else if (!readsSource && source.value === PAIR.source && prompt.value === PAIR.target) [source.value, prompt.value] = ["", FIRST];
    else if (!readsSource && !prompt.value) prompt.value = source.value || FIRST;
  });
}
