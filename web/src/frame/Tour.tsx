// A walk over the page in at most two minutes: each step opens a screen, rings an element of it and says in two sentences what it is.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { card, run } from "../core/run";
import * as state from "../core/state";
import { hasWords } from "../core/whatif";
import { screens } from "../views";

interface Step {
  view: string;
  target: string; // the element that is ringed
  title: string;
  text: string;
  when?: () => boolean;
}

const words = () => !!run.value && hasWords(run.value);

export const STEPS: readonly Step[] = [
  { view: "playground", target: 'section[aria-label="the text"]', title: "The text", text: "Type a sentence and press Enter. The boxes below it are its tokens, the pieces that the model reads. A click on one locks it on every screen." },
  { view: "playground", target: 'aside[aria-label="the next token"]', title: "The answer", text: "The model gives every token of its vocabulary a probability. Here are the likeliest, exactly as the model computed them.", when: words },
  { view: "inside", target: '.flow[aria-label="the whole model"]', title: "The whole model", text: "Tokens go in at the top, the answer comes out at the bottom. Each box is a part of this model: click it to see its steps and their numbers." },
  { view: "inside", target: 'aside[aria-label="inspector"]', title: "Any number", text: "Open a box, then a step, then a cell: here stands the arithmetic behind that one number, back to the weights." },
  { view: "attention", target: 'section[aria-label="find the head"]', title: "Find the head", text: "Choose two tokens. Every attention head is listed by how much it looks from the first to the second. The first sentence opens on the head in which “it” finds “animal”." },
  { view: "attention", target: 'section[aria-label="what if"]', title: "What if", text: "Switch a head off or hide a token: the model runs again without it, and you see how the answer moves.", when: () => words() && !!card.value?.abilities.edits },
  { view: "lens", target: 'main[aria-label="Lens"]', title: "Depth by depth", text: "The lens reads the answer after every layer. You see at which depth the model settles on its word." },
];

/** The steps that the model on the page has. */
function steps(): Step[] {
  return STEPS.filter((one) => (one.when?.() ?? true) && !(card.value && screens.find((screen) => screen.name === one.view)?.absent?.(card.value, run.value)));
}

const KEY = "glassformer.tour";
const at = signal<number | null>(null);
const done = signal(stored() === "done");

function stored(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function remember(value: string) {
  done.value = value === "done";
  try {
    localStorage.setItem(KEY, value);
  } catch {
    /* no storage: the tour begins at its first step each time */
  }
}

function go(step: number) {
  const list = steps();
  if (step >= list.length) return leave();
  at.value = Math.max(0, step);
  remember(String(at.value));
  state.view.value = list[at.value].view;
  if (list[at.value].view === "inside") state.op.value = state.cell.value = "";
  if (list[at.value].target.startsWith(".flow")) {
    state.layer.value = null;
    for (const opened of ["pt", "mod"]) state.param(opened, "", String).value = "";
  }
}

function leave() {
  at.value = null;
  remember("done");
}

/** Begins the tour, or goes on where the reader was. */
export function TourButton() {
  const begun = Number(stored() ?? 0);
  return <button class={done.value ? "quiet" : "primary"} disabled={!run.value || at.value !== null} title="seven places of this page, in two minutes" onClick={() => go(Number.isInteger(begun) ? begun : 0)}>Tour</button>;
}

interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

const WIDE = 340, HIGH = 190;

export function Tour() {
  const [box, setBox] = useState<Box | null>(null), next = useRef<HTMLButtonElement>(null);
  const list = steps(), nth = at.value, step = nth === null ? null : list[Math.min(nth, list.length - 1)];
  useEffect(() => {
    setBox(null);
    if (!step) return;
    let shown = false;
    const place = () => {
      const found = document.querySelector(step.target);
      if (!found) return;
      if (!shown) {
        found.scrollIntoView({ block: "nearest" });
        next.current?.focus({ preventScroll: true });
      }
      shown = true;
      const { left, top, width, height } = found.getBoundingClientRect();
      setBox((before) => (before && before.left === left && before.top === top && before.width === width && before.height === height ? before : { left, top, width, height }));
    };
    place();
    const timer = setInterval(place, 150); // what is on the screen comes, grows and is scrolled
    return () => clearInterval(timer);
  }, [step?.target]);
  if (!step || nth === null) return null;
  const below = box && box.top + box.height + HIGH < innerHeight, above = box && !below && box.top > HIGH;
  const where = !box || (!below && !above) ? { right: "12px", bottom: "12px" } : { left: `${Math.max(8, Math.min(box.left, innerWidth - WIDE - 8))}px`, ...(below ? { top: `${box.top + box.height + 10}px` } : { bottom: `${innerHeight - box.top + 10}px` }) };
  return (
    <>
      {box && <div class="ring" data-ring={step.target} aria-hidden="true" style={{ left: `${box.left - 4}px`, top: `${box.top - 4}px`, width: `${box.width + 8}px`, height: `${box.height + 8}px` }} />}
      <div class="tour card" role="dialog" aria-label="tour" style={where} onKeyDown={(event) => event.key === "Escape" && leave()}>
        <h2>{step.title} <span class="note">{nth + 1} of {list.length}</span></h2>
        <p aria-live="polite">{step.text}</p>
        <div class="row">
          <button ref={next} class="primary" onClick={() => go(nth + 1)}>{nth + 1 < list.length ? "Next" : "Done"}</button>
          {nth > 0 && <button onClick={() => go(nth - 1)}>Back</button>}
          <button class="quiet" onClick={leave}>Skip the tour</button>
        </div>
      </div>
    </>
  );
}
