// One selection, shared by all screens and equal to the URL's hash: a link shows the same screen again.
import { batch, effect, signal, type Signal } from "@preact/signals";

interface Entry {
  signal: Signal<any>;
  start: any;
  parse: (text: string) => any;
  print: (value: any) => string;
}

const entries = new Map<string, Entry>();
let given = new URLSearchParams();
export const view = signal("inside"); // the whole model as one drawing

function read() {
  const hash = location.hash.replace(/^#\/?/, "");
  const bare = !hash.includes("?") && hash.includes("="); // a selection without a screen
  const [name, rest] = bare ? ["", hash] : hash.split("?", 2);
  given = new URLSearchParams(rest ?? "");
  if (name) view.value = name;
  for (const [key, one] of entries) one.signal.value = given.has(key) ? one.parse(given.get(key)!) : one.start;
}

/** A part of the selection: a signal that stands in the URL under `key` while it differs from `start`. */
export function param<T>(key: string, start: T, parse: (text: string) => T, print: (value: T) => string = String): Signal<T> {
  const known = entries.get(key);
  if (known) return known.signal;
  const made = signal<T>(given.has(key) ? parse(given.get(key)!) : start);
  entries.set(key, { signal: made, start, parse, print });
  registered.value += 1;
  return made;
}

const registered = signal(0);
read();

const integer = (text: string) => (/^-?\d+$/.test(text) ? Number(text) : null);
const text = (one: string) => one;
const many = (one: string): string[] => {
  try {
    const list = JSON.parse(one);
    return Array.isArray(list) ? list.map(String) : [];
  } catch {
    return [];
  }
};

export const model = param("m", "", text);
export const prompt = param("t", "", text);
export const source = param("s", "", text);
/** Token ids in place of the text, where a token was chosen that no text would give; typing clears them. */
export const ids = param<number[] | null>("i", null, (one) => (/^\d+(\.\d+)*$/.test(one) ? one.split(".").map(Number) : null), (list) => (list ?? []).join("."));
export const edits = param<string[]>("e", [], many, (list) => JSON.stringify(list));
export const layer = param<number | null>("l", null, integer);
export const head = param<number | null>("h", null, integer);
export const query = param<number | null>("q", null, integer);
export const key = param<number | null>("k", null, integer);
export const neuron = param<number | null>("n", null, integer);
export const expert = param<number | null>("x", null, integer);
export const op = param("op", "", text);
export const cell = param("c", "", text); // a whole address with its index
export const stream = param("st", "", text); // "source" where the token strip's selection is of the source

export type Depth = "plain" | "maths" | "code";
export const depth = param<Depth>("d", "plain", (one) => (["plain", "maths", "code"].includes(one) ? (one as Depth) : "plain"));

/** What the pointer is over; no part of the URL. Canvases subscribe to these, components need not. */
export const hover = { query: signal<number | null>(null), key: signal<number | null>(null), op: signal("") };

export function url(): string {
  registered.value;
  const out = new URLSearchParams();
  for (const [key, one] of entries) {
    const value = one.signal.value;
    if (value === null) continue;
    const written = one.print(value);
    if (one.start === null || written !== one.print(one.start)) out.set(key, written);
  }
  for (const [key, value] of given) if (!entries.has(key)) out.set(key, value); // of a screen that has not come yet
  const rest = out.toString();
  return `#${view.value}${rest ? `?${rest}` : ""}`;
}

/** Begin with this text, where the link does not say another. */
export function open(said: { model: string; text: string; source: string; ids: number[]; view: string }) {
  if (given.size) return;
  [view.value, model.value, prompt.value, source.value, ids.value] = [said.view, said.model, said.text, said.source, said.ids];
}

function asked(): string {
  return JSON.stringify([model.value, prompt.value, source.value, ids.value, edits.value]);
}

/** When somebody has written another link into the address bar: `settle` puts what was there in the place of what is not here, `then` reads the text. */
export const arrived: { settle: (model: string, view: string) => void; then: () => void } = { settle: () => undefined, then: () => undefined };

/** What the link asks for and the page does not have. */
export const notice = signal("");

/** Begin to mirror the selection in the URL. */
export function mirror() {
  let timer = 0;
  let known = location.hash; // what was last written here or read
  effect(() => {
    const now = url();
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      if (now === location.hash || location.hash !== known) return; // somebody wrote another link, whose event comes yet
      try {
        history.replaceState(null, "", now);
      } catch {
        /* a page inside a frame may have no history */
      }
      known = location.hash;
    }, 80);
  });
  addEventListener("hashchange", () => {
    if (location.hash === known) return;
    known = location.hash;
    const before = asked(), had = [model, view, prompt, source, ids].map((one) => one.value) as [string, string, string, string, number[] | null];
    batch(() => {
      read();
      if (!["t", "s", "i"].some((key) => given.has(key))) [, , prompt.value, source.value, ids.value] = had; // the text stays
      arrived.settle(had[0], had[1]);
      registered.value += 1; // the address bar shows what is here, not what was asked for
    });
    if (asked() !== before) arrived.then();
  });
}

// Settings of the reader, not of the link.
export type Theme = "system" | "light" | "dark";

function remembered(key: string): string | null {
  try {
    return localStorage.getItem(`glassformer.${key}`);
  } catch {
    return null;
  }
}

export const theme = signal<Theme>((remembered("theme") as Theme) ?? "system");
const media = matchMedia("(prefers-color-scheme: dark)");
const system = signal(media.matches);
media.addEventListener("change", () => (system.value = media.matches));
// In a frame on the site the page around says light or dark, at first and at every change.
addEventListener("message", ({ data }) => ["light", "dark", "system"].includes(data?.theme) && (theme.value = data.theme));
export const dark = signal(false);
effect(() => {
  dark.value = theme.value === "dark" || (theme.value === "system" && system.value);
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
  try {
    localStorage.setItem("glassformer.theme", theme.value);
  } catch {
    /* no storage: the switch holds until the page is closed */
  }
});

/** A sentence for everybody, also read aloud. */
export const announcement = signal("");
