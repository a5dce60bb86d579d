// Keys that hold everywhere but where text is typed.
import { signal } from "@preact/signals";
import { layers, run } from "../core/run";
import * as state from "../core/state";
import type { Screen } from "../views/screen";

export const help = signal(false);

/** What Backspace and the stop key do on the screen that is open. */
export const actions: { up?: () => void; stop?: () => void; walk?: (step: number) => void } = {};

export const KEYS: [string, string][] = [
  ["1 – 9", "screens"],
  ["[ ]", "layer before, after"],
  ["; '", "head before, after"],
  ["arrows", "move in a matrix or along the tokens; Shift: by ten"],
  ["Enter", "open the cell"],
  ["Space", "lock the cell"],
  ["+ − 0", "zoom in a matrix, and back"],
  ["Backspace", "one step up"],
  ["→ ←", "the next, the last card of the walk (Inside)"],
  ["/", "the text box"],
  [".", "stop generating"],
  ["?", "this list"],
];

function heads(): number {
  const one = run.value?.plan.find((op) => op.axes.includes("H"));
  return one ? one.shape[one.axes.indexOf("H")] : 0;
}

export function listen(screens: readonly Screen[]): void {
  addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && (target as HTMLInputElement).type !== "range";
    if (event.key === "Escape") {
      help.value = false;
      if (typing) target.blur();
      return;
    }
    if (typing) return;
    const turn = (signal: typeof state.layer, step: number, n: number) => n && (signal.value = (((signal.value ?? (step > 0 ? -1 : n)) + step) % n + n) % n);
    const chosen = screens.find((one) => String(one.order) === event.key);
    if (chosen) state.view.value = chosen.name;
    else if (event.key === "[" || event.key === "]") {
      const step = event.key === "]" ? 1 : -1, n = Math.max(0, ...layers.value.map((one) => one.layer + 1));
      turn(state.layer, step, n);
    } else if (event.key === ";" || event.key === "'") turn(state.head, event.key === "'" ? 1 : -1, heads());
    else if (event.key === "/") document.querySelector<HTMLTextAreaElement>("#prompt")?.focus();
    else if (event.key === "?") help.value = !help.value;
    else if (event.key === ".") actions.stop?.();
    else if (event.key === "Backspace") actions.up?.();
    else if ((event.key === "ArrowRight" || event.key === "ArrowLeft") && actions.walk) actions.walk(event.key === "ArrowRight" ? 1 : -1);
    else return;
    event.preventDefault();
  });
}
