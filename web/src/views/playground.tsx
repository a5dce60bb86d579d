// What comes next, and how it is chosen: the whole row of logits is here, so that every slider is exact and asks nobody.
import { batch, computed, effect, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { number, percent, size, visible } from "../core/format";
import { luck } from "../core/luck";
import { answerCell, busy, card, headOf, logits, request, run, sibling, submit, tokens, useLoaded, values, vocabulary } from "../core/run";
import { sample, type Chosen } from "../core/sampler";
import { bytes } from "../core/safetensors";
import * as state from "../core/state";
import { transport } from "../core/transport";
import { isLabels, vectorOf } from "../core/whatif";
import type { Beam, Generated, Run, Settings } from "../core/types";
import { actions } from "../frame/keys";
import { Num } from "../kernel/Num";
import { css, ink, sequential } from "../kernel/palette";
import { Alike } from "./alike";
import { open } from "./cell";

const real = (text: string) => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
const temperature = state.param<number>("T", 1, (one) => real(one) ?? 1);
const topK = state.param<number | null>("tk", null, real);
const topP = state.param<number | null>("tp", null, real);
const minP = state.param<number | null>("mp", null, real);
const penalty = state.param<number>("rp", 1, (one) => real(one) ?? 1);
const seed = state.param<number>("seed", 1337, (one) => real(one) ?? 1337);
const maxNew = state.param<number>("n_new", 48, (one) => real(one) ?? 48);
const settings = computed<Settings>(() => ({ temperature: temperature.value, top_k: topK.value, top_p: topP.value, min_p: minP.value, repetition_penalty: penalty.value }));

/** A token of a branch: written by the model, chosen by hand, or found by a search. */
type Written = Pick<Generated, "id" | "bytes" | "logprob" | "top" | "ms" | "kv_bytes">;

interface Branch {
  number: number;
  name: string;
  prompt: number[]; // what the luck is made of
  start: number[]; // what the decoder begins with
  tokens: Written[];
  finish: string;
}

const branches = signal<Branch[]>([]);
const active = signal(0);
const generating = signal(false);
const trouble = signal("");
const picked = signal<number | null>(null); // a generated token whose alternatives are shown
let stopper: AbortController | null = null;
let looking = 0; // runs of ours on the way: what they read belongs to the branches
let rooted = "";
let numbers = 0;

const branch = computed(() => branches.value.find((one) => one.number === active.value) ?? null);

function change(made: Partial<Branch>, which = active.value) {
  branches.value = branches.value.map((one) => (one.number === which ? { ...one, ...made } : one));
}

function begin(tokens: Written[] = [], from?: Branch): Branch {
  const made = run.value!, start = from?.start ?? made.tokens.map((one) => one.id);
  const prompt = from?.prompt ?? (made.source_tokens ?? made.tokens).map((one) => one.id);
  const born: Branch = { number: ++numbers, name: "", prompt, start, tokens, finish: "" };
  batch(() => {
    branches.value = [...branches.value, born];
    active.value = born.number;
  });
  return born;
}

effect(() => {
  const made = run.value;
  if (!made || made.run === rooted) return;
  rooted = made.run;
  if (looking) return;
  branches.value = [];
  picked.value = null;
});

function stop() {
  stopper?.abort();
}

/** Let the server write until it is done or stopped. */
async function generate() {
  if (generating.value) return stop();
  const pair = !!run.value?.source_tokens, fresh = pair || !branch.value || branch.value.tokens.length === 0;
  const own = fresh && branch.value && !branch.value.tokens.length ? branch.value : fresh ? begin() : branch.value!;
  const before = own.tokens.slice();
  const body: Record<string, unknown> = { ...request(), settings: settings.value, seed: seed.value, max_new: maxNew.value };
  delete body.cut;
  delete body.text;
  if (pair) {
    delete body.ids;
    body.start = own.start;
  } else body.ids = [...own.start, ...before.map((one) => one.id)];
  stopper = new AbortController();
  batch(() => {
    generating.value = true;
    trouble.value = "";
    picked.value = null;
  });
  if (!pair) change({ prompt: body.ids as number[], finish: "" }, own.number);
  const made: Generated[] = [];
  try {
    await transport.stream("api/generate", body, (data, _, event) => {
      if (event === "message") {
        made.push(data);
        change({ tokens: [...before, ...made] }, own.number);
      } else if (event === "error") trouble.value = data.error;
      else if (event === "end") change({ finish: data.finish ?? "" }, own.number);
    }, stopper.signal);
  } catch (error) {
    if ((error as Error).name !== "AbortError") trouble.value = (error as Error).message;
    else change({ finish: "stopped" }, own.number);
  } finally {
    generating.value = false;
    state.announcement.value = `${made.length} tokens written.`;
  }
}

const BEAMS = 4;

/** What a beam search finds, each as a branch from here. */
async function search() {
  if (searching.value) return stop();
  const made = run.value!, pair = !!made.source_tokens, ids = made.tokens.map((one) => one.id), { model, source, edits } = request() as Record<string, unknown>;
  const body = { model, edits, beams: BEAMS, max_new: Math.min(maxNew.value, made.task === "causal" ? 64 : 128), ...(pair ? { source, start: ids } : { ids }) };
  stopper = new AbortController();
  searching.value = true;
  trouble.value = "";
  try {
    const { beams } = await transport.post<{ beams: Beam[] }>("api/beam", body, stopper.signal);
    if (run.value !== made) return;
    const born = beams.map(({ tokens, finish }, nth) => {
      const one = begin(tokens.map((token) => ({ ...token, top: [], ms: 0, kv_bytes: 0 })));
      change({ name: `beam ${nth + 1}`, finish }, one.number);
      return one.number;
    });
    active.value = born[0] ?? active.value;
  } catch (error) {
    if ((error as Error).name !== "AbortError") trouble.value = (error as Error).message;
  } finally {
    searching.value = false;
  }
}

const searching = signal(false);

/** The token that the needle points at, and a run that has read it. */
async function put(token: number, words: readonly Uint8Array[] | null, chosen: Chosen) {
  if (busy.value) return; // the needle still points at a token of the text before the last step
  let own = branch.value ?? begin();
  const spent = performance.now(), read = run.value!.tokens.length - own.start.length;
  if (read < own.tokens.length) own = begin(own.tokens.slice(0, read), own); // an earlier place was looked at: the rest stays as it is
  const best = Array.from(chosen.order.subarray(0, 10), (id) => ({ id, logprob: Math.log(chosen.raw[id]) }));
  const piece = words?.[token] ?? new Uint8Array();
  const step: Written = { id: token, bytes: btoa(String.fromCharCode(...piece)), logprob: Math.log(chosen.raw[token]), top: best, ms: 0, kv_bytes: 0 };
  const list = [...own.tokens, step];
  change({ tokens: list }, own.number);
  await look({ ...own, tokens: list }, list.length);
  step.ms = performance.now() - spent;
}

/** Run the model on a branch up to a token: every screen then shows that. */
async function look(own: Branch, upTo: number) {
  batch(() => {
    state.ids.value = [...own.start, ...own.tokens.slice(0, upTo).map((one) => one.id)];
    state.query.value = null;
  });
  looking++;
  try {
    await submit();
  } finally {
    looking--;
  }
}

export function Playground() {
  const made = run.value!, abilities = card.value?.abilities;
  useEffect(() => {
    actions.stop = stop;
    return () => {
      delete actions.stop;
    };
  }, []);
  const masks = maskPlaces.value, length = made.tokens.length;
  const place = state.query.value ?? (abilities?.fill && masks.length ? masks[0] : length - 1);
  const headless = !headOf(made);
  const row = useLoaded(() => (headless ? null : logits(made.run, place).then((values) => ({ values, place, run: made.run }))), [made.run, place]);
  const words = useLoaded(() => vocabulary(state.model.value), [state.model.value]);
  // The needle: luck number n of this branch's prompt, where n tokens have been written since.
  const written = branch.value ? branch.value.start.length : length;
  const prompt = branch.value?.prompt ?? (made.source_tokens ?? made.tokens).map((one) => one.id);
  const nth = Math.max(0, place + 1 - (made.source_tokens ? written : Math.max(written, prompt.length)));
  const u = luck(seed.value, prompt, nth + 1)[nth];
  const seen = made.tokens.slice(0, place + 1).map((one) => one.id);
  const ready = row.data?.run === made.run && row.data.place === place; // no word before its number
  const chosen = ready ? sample(row.data!.values, abilities?.fill ? [] : seen, settings.value, u) : null;
  return (
    <div class="columns">
      <div class="stack">
        {abilities?.generate && <Output chosen={chosen} words={words.data} place={place} />}
        {abilities?.fill && <Fill place={place} words={words.data} />}
        {abilities?.pool && <Labels />}
        {headless && vectorOf(made) && <Vector made={made} />}
        {!headless && !abilities?.fill && <Stages chosen={chosen} u={u} words={words.data} />}
        {abilities?.generate && <Branches />}
      </div>
      {headless ? <p class="note">This model has no head over tokens: it gives a vector. Attention switches heads off and hides tokens, and shows how far the vector turns.</p> : <Next chosen={chosen} place={place} words={words.data} error={row.error} loading={row.loading} />}
    </div>
  );
}

// ---------------------------------------------------------------------------------- what is next

const read = new TextDecoder("utf-8");

function word(id: number, words: readonly Uint8Array[] | null): string {
  const raw = words?.[id];
  if (!raw) return `#${id}`;
  const text = read.decode(raw);
  return text.includes("�") ? Array.from(raw, (one) => `⟨${one.toString(16).padStart(2, "0")}⟩`).join("") : visible(text) || "∅";
}

const SHOWN = 14;

function Next({ chosen, place, words, error, loading }: { chosen: Chosen | null; place: number; words: readonly Uint8Array[] | null; error: string; loading: boolean }) {
  if (error) return <p class="failure" role="alert">{error}</p>;
  if (!chosen) return <aside class="card"><p class="note">…</p></aside>;
  const fill = card.value?.abilities.fill, ids = Array.from(chosen.order.subarray(0, SHOWN));
  if (!fill && !ids.includes(chosen.token)) ids.push(chosen.token);
  const rest = chosen.order.length - SHOWN;
  let held = 0;
  for (const id of chosen.order.subarray(0, SHOWN)) held += chosen.raw[id];
  const most = Math.max(...ids.map((id) => Math.max(chosen.raw[id], chosen.warm[id], fill ? 0 : chosen.final[id])), 1e-9);
  const kept = chosen.left.length ? chosen.left[chosen.left.length - 1].count : chosen.order.length;
  return (
    <aside class="card stack" aria-label="the next token" aria-busy={loading}>
      <h2>{fill ? `What fits at token ${place}` : `Next token, after token ${place}`}</h2>
      {!fill && <p class="note"><span class="key raw" /> the model's own · <span class="key warm" /> after temperature · <span class="key final" /> what is drawn from</p>}
      <div class="bars">
        {ids.map((id, at) => {
          const cutHere = !fill && chosen.final[id] > 0 && at + 1 < ids.length && chosen.final[ids[at + 1]] === 0;
          return [
            <button key={`n${id}`} class="name" title={`token ${id}: its arithmetic`} onClick={() => ((state.view.value = "inside"), open(answerCell(run.value!, place, id)))}>{word(id, words)}</button>,
            <span key={`t${id}`} class="track">
              {!fill && <i class="warm" style={{ width: `${(chosen.warm[id] / most) * 100}%` }} />}
              <i class="final" style={{ width: `${((fill ? chosen.raw[id] : chosen.final[id]) / most) * 100}%`, top: fill ? undefined : "4px" }} />
              {!fill && <i class="raw" style={{ width: `${(chosen.raw[id] / most) * 100}%` }} />}
            </span>,
            <span key={`p${id}`} class="row" style={{ gap: "6px", flexWrap: "nowrap" }}>
              <Num addr={`probs[${place},${id}]`} v={chosen.raw[id]} as="percent" />
              {!fill && <b class="num" data-final={id} data-v={chosen.final[id]}>{chosen.final[id] ? percent(chosen.final[id]) : "cut"}</b>}
              {!fill && chosen.token === id && <span aria-label="chosen" title="the needle is here">◀ u</span>}
            </span>,
            cutHere && <span key={`c${id}`} class="cut">cut: {kept} kept</span>,
          ];
        })}
      </div>
      <p class="note">
        {rest > 0 && <>{rest.toLocaleString("en")} more hold <span class="num" data-v={1 - held}>{percent(Math.max(0, 1 - held))}</span> · </>}
        entropy <span class="num" data-entropy={chosen.entropy} data-v={chosen.entropy}>{number(chosen.entropy, 4)}</span> bits
        {!fill && <> · Σ kept = <span class="num" data-sum={chosen.sum} data-v={chosen.sum}>{chosen.sum.toFixed(6)}</span></>}
      </p>
    </aside>
  );
}

// ---------------------------------------------------------------------------------- the sampler

interface Stage {
  name: keyof Settings;
  title: string;
  signal: { value: number | null };
  off: number | null;
  on: number;
  min: number;
  max: number;
  step: number;
  says: string;
}

const STAGES: Stage[] = [
  { name: "repetition_penalty", title: "repetition", signal: penalty as any, off: 1, on: 1.1, min: 0.5, max: 2, step: 0.01, says: "Tokens that are already in the text get less likely: logits above 0 are divided by it, others multiplied." },
  { name: "temperature", title: "temperature", signal: temperature as any, off: 1, on: 0.8, min: 0, max: 3, step: 0.01, says: "Divides the logits: below 1 the likeliest gain, above 1 they lose; 0 takes the likeliest." },
  { name: "top_k", title: "top-k", signal: topK, off: null, on: 50, min: 1, max: 5000, step: 1, says: "Keeps the k likeliest tokens." },
  { name: "top_p", title: "top-p", signal: topP, off: null, on: 0.95, min: 0.01, max: 1, step: 0.01, says: "Keeps the fewest likeliest tokens that together have the share p." },
  { name: "min_p", title: "min-p", signal: minP, off: null, on: 0.05, min: 0, max: 1, step: 0.01, says: "Keeps tokens at least p times as likely as the likeliest." },
];

function Stages({ chosen, u, words }: { chosen: Chosen | null; u: number; words: readonly Uint8Array[] | null }) {
  return (
    <section class="card" aria-label="how the next token is chosen">
      <h2>How the next token is chosen, in this order</h2>
      <div class="sliders">
        {STAGES.map((stage) => {
          const now = stage.signal.value, on = now !== stage.off;
          const left = chosen?.left.find((one) => one.name === stage.name);
          const top = stage.name === "top_k" ? Math.min(stage.max, chosen?.order.length ?? stage.max) : stage.max;
          return [
            <label key={`l${stage.name}`} title={stage.says}>
              <input type="checkbox" checked={on} onChange={(event) => (stage.signal.value = event.currentTarget.checked ? stage.on : stage.off)} /> {stage.title}
            </label>,
            <input key={`r${stage.name}`} type="range" min={stage.min} max={top} step={stage.step} value={now ?? stage.on} aria-label={stage.title} aria-valuetext={`${stage.title} ${now ?? "off"}`} style={on ? undefined : { opacity: 0.45 }} onInput={(event) => (stage.signal.value = Number(event.currentTarget.value))} />,
            <span key={`v${stage.name}`} class="row" style={{ gap: "4px" }}>
              <input type="number" min={stage.min} step={stage.step} value={now ?? ""} placeholder="off" aria-label={`${stage.title}, exactly`} onChange={(event) => {
                const v = real(event.currentTarget.value);
                stage.signal.value = v === null ? stage.off : Math.max(stage.min, stage.name === "top_k" ? Math.round(v) : Math.min(v, stage.name === "top_p" || stage.name === "min_p" ? stage.max : v));
              }} />
              {left && <small class="note">{left.count} left</small>}
            </span>,
          ];
        })}
      </div>
      {chosen && <Needle chosen={chosen} u={u} />}
      {chosen && (
        <p class="note">
          draw: u = <span class="num" data-u={u} data-v={u}>{number(u, 6)}</span> falls to <b>{word(chosen.token, words)}</b> {temperature.value === 0 ? "(temperature 0: the likeliest, no luck)" : `(its part of the bar: ${number(chosen.from, 4)} to ${number(chosen.to, 4)})`}
        </p>
      )}
    </section>
  );
}

/** All that can be drawn, in the order of their ids, as long as they are likely; the needle is the luck. */
function Needle({ chosen, u }: { chosen: Chosen; u: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const one = canvas.current!, wide = (one.width = Math.max(1, one.clientWidth * (devicePixelRatio || 1))), high = (one.height = 22 * (devicePixelRatio || 1));
    const g = one.getContext("2d")!, style = getComputedStyle(one), table = sequential.value;
    let at = 0;
    for (let id = 0; id < chosen.final.length; id++) {
      const p = chosen.final[id];
      if (!p) continue;
      const x = (at / chosen.sum) * wide, w = (p / chosen.sum) * wide;
      g.fillStyle = id === chosen.token ? style.getPropertyValue("--accent") : css(table, 0.25 + 0.6 * p);
      g.fillRect(x, id === chosen.token ? 0 : 5, Math.max(w - (w > 3 ? 1 : 0), 0.5), high - 8);
      at += p;
    }
    if (temperature.value === 0) return;
    g.fillStyle = style.getPropertyValue("--ink");
    g.fillRect(Math.min(wide - 2, u * wide) - 1, 0, 3, high);
  });
  return <canvas ref={canvas} class="needle" role="img" aria-label={`the needle stands at ${number(u, 4)} of the bar of all tokens that are left`} />;
}

// ---------------------------------------------------------------------------------- the output

function Output({ chosen, words, place }: { chosen: Chosen | null; words: readonly Uint8Array[] | null; place: number }) {
  const own = branch.value, made = run.value!;
  const end = place === made.tokens.length - 1;
  const at = picked.value, one = at === null ? null : own?.tokens[at];
  return (
    <section class="card" aria-label="output">
      <div class="row">
        <button class="primary" disabled={searching.value || !transport.reads} onClick={() => void generate()}>{generating.value ? "Stop ." : "Generate ▸"}</button>
        <button disabled={!chosen || !end || generating.value || !transport.reads} aria-disabled={busy.value} title={end ? "write the token that the needle points at" : "choose the last token first"} onClick={() => void put(chosen!.token, words, chosen!)}>Step</button>
        <button disabled={!own?.tokens.length || generating.value} onClick={() => {
          change({ tokens: own!.tokens.slice(0, -1), finish: "" });
          picked.value = null;
          void look(branch.value!, own!.tokens.length - 1);
        }}>Undo</button>
        <button disabled={generating.value || !transport.live} title={`the ${BEAMS} likeliest continuations as a whole, by beam search`} onClick={() => void search()}>{searching.value ? "Stop ." : "Beams"}</button>
        <label>seed <input type="number" min={0} step={1} value={seed.value} onChange={(event) => (seed.value = Math.max(0, Math.round(Number(event.currentTarget.value) || 0)))} /></label>
        <label>most <input type="number" min={1} max={4096} value={maxNew.value} onChange={(event) => (maxNew.value = Math.max(1, Math.min(4096, Math.round(Number(event.currentTarget.value) || 1))))} /></label>
      </div>
      {trouble.value && <p class="failure" role="alert">{trouble.value}</p>}
      <Written own={own} />
      {one && own && at !== null && (
        <div class="stack">
          <h3>instead of “{text(one)}” (<span class="num" data-v={Math.exp(one.logprob)}>{percent(Math.exp(one.logprob))}</span>): continue from here with</h3>
          <div class="row">
            {one.top.map((other) => (
              <button key={other.id} class="chip" onClick={() => {
                const raw = words?.[other.id] ?? new Uint8Array(), step = { ...one, id: other.id, bytes: btoa(String.fromCharCode(...raw)), logprob: other.logprob };
                const born = begin([...own.tokens.slice(0, at), step], own);
                picked.value = null;
                void look(born, born.tokens.length);
              }}>{word(other.id, words)} <span class="num" data-id={other.id} data-v={Math.exp(other.logprob)}>{percent(Math.exp(other.logprob))}</span></button>
            ))}
            <button onClick={() => void look(own, at)}>look inside, before it</button>
          </div>
        </div>
      )}
      <Speed own={own} />
    </section>
  );
}

function text(one: Written): string {
  const raw = bytes(one.bytes), made = read.decode(raw);
  return made.includes("�") ? Array.from(raw, (each) => `⟨${each.toString(16).padStart(2, "0")}⟩`).join("") : visible(made) || "∅";
}

const DRAWN = 400;

function Written({ own }: { own: Branch | null }) {
  if (!own?.tokens.length) return <p class="note">Nothing is written yet. Generate writes on; Step writes the token that the needle points at.</p>;
  const table = sequential.value, from = Math.max(0, own.tokens.length - DRAWN);
  return (
    <>
      <div class="strip" role="group" aria-label="what was written; colour: how likely it was">
        {from > 0 && <span class="note">{from} before</span>}
        {own.tokens.slice(from).map((one, i) => {
          const p = Math.exp(one.logprob), best = !one.top.length || one.top[0].id === one.id;
          return (
            <button key={from + i} class={`token ${best ? "" : "notbest"} ${picked.value === from + i ? "on" : ""}`} style={{ background: css(table, p), color: ink(table, p) }} data-id={one.id} title={`${percent(p)}${best ? "" : ", not the likeliest"}`} onClick={() => (picked.value = picked.value === from + i ? null : from + i)}>
              {text(one)}
            </button>
          );
        })}
      </div>
      <p class="note">colour: probability · underlined: not the likeliest · a click shows what else it could have been{own.finish && ` · ended: ${own.finish}`}</p>
    </>
  );
}

function Speed({ own }: { own: Branch | null }) {
  const timed = own?.tokens.filter((one) => one.ms > 0) ?? [];
  if (!timed.length) return null;
  const rest = timed.slice(1), total = rest.reduce((sum, one) => sum + one.ms, 0), most = Math.max(...timed.map((one) => one.ms));
  const path = timed.slice(-200).map((one, i) => `M${i * 3} 20V${20 - 18 * (one.ms / most)}`).join("");
  const cache = timed[timed.length - 1].kv_bytes;
  return (
    <p class="note row">
      <span>first token <span class="num" data-v={timed[0].ms}>{timed[0].ms.toFixed(0)}</span> ms{rest.length > 0 && <> · then <span class="num" data-v={(1000 * rest.length) / total}>{((1000 * rest.length) / total).toFixed(0)}</span> tokens/s</>}{cache > 0 && <> · keys and values {size(cache)}</>}</span>
      <svg width={Math.min(600, 3 * timed.length)} height={20} role="img" aria-label="milliseconds of each token"><path d={path} stroke="currentColor" stroke-width="2" fill="none" /></svg>
    </p>
  );
}

function Branches() {
  if (branches.value.length < 1) return null;
  return (
    <section class="card" aria-label="branches">
      <h2>Branches</h2>
      {branches.value.length > 1 && <Tree all={branches.value} />}
      <div class="stack" style={{ gap: "4px" }}>
        {branches.value.map((one) => {
          const sum = one.tokens.reduce((total, each) => total + each.logprob, 0);
          return (
            <div class="row" key={one.number} style={{ flexWrap: "nowrap" }}>
              <button aria-pressed={one.number === active.value} onClick={() => ((active.value = one.number), (picked.value = null))}>{one.number === active.value ? "●" : "○"} {one.name || one.number}</button>
              <input aria-label={`name of branch ${one.number}`} size={8} placeholder="name" value={one.name} onChange={(event) => change({ name: event.currentTarget.value }, one.number)} />
              <button class="quiet written" title="look inside, at its end" disabled={!transport.reads} onClick={() => ((active.value = one.number), void look(one, one.tokens.length))}>{one.tokens.map(text).join("")}</button>
              {one.tokens.length > 0 && <span class="num" title="mean log-probability of its tokens, natural logarithm" data-v={sum / one.tokens.length}>{number(sum / one.tokens.length, 3)}</span>}
              <button class="quiet" aria-label={`drop branch ${one.number}`} onClick={() => (branches.value = branches.value.filter((other) => other.number !== one.number))}>✕</button>
            </div>
          );
        })}
      </div>
    </section>
  );
}

const ROW = 24, LETTER = 7.6, TAIL = 12; // tokens of a branch alone that are drawn

/** What the branches have in common once, and where they part; a width of the line for how likely a token was. */
function Tree({ all }: { all: readonly Branch[] }) {
  const rows: { x: number; y: number; from: [number, number] | null; word: string; p: number; on: boolean }[] = [];
  let y = 0, wide = 0;
  function grow(some: readonly Branch[], at: number, x: number, from: [number, number] | null, alone = 0) {
    if (alone > TAIL) return void rows.push({ x, y, from, word: "…", p: 0, on: false });
    const by = new Map<number, Branch[]>();
    for (const one of some) if (one.tokens[at]) by.set(one.tokens[at].id, [...(by.get(one.tokens[at].id) ?? []), one]);
    [...by.values()].forEach((mine, nth) => {
      if (nth) y += ROW;
      const token = mine[0].tokens[at], word = text(token), next = x + 16 + LETTER * word.length;
      rows.push({ x, y, from, word, p: Math.exp(token.logprob), on: mine.some((one) => one.number === active.value) });
      wide = Math.max(wide, next);
      grow(mine, at + 1, next, [next - 8, y], mine.length > 1 ? 0 : alone + 1);
    });
  }
  const roots = new Map<string, Branch[]>();
  for (const one of all) roots.set(one.start.join(), [...(roots.get(one.start.join()) ?? []), one]);
  [...roots.values()].forEach((mine, nth) => {
    if (nth) y += ROW;
    const shared = mine[0].tokens.findIndex((token, at) => mine.some((one) => one.tokens[at]?.id !== token.id)), skip = mine.length > 1 ? Math.max(0, shared - 4) : 0;
    if (skip) rows.push({ x: 0, y, from: null, word: `${skip} alike …`, p: 1, on: false });
    grow(mine, skip, skip ? 100 : 14, [skip ? 92 : 6, y]);
  });
  if (rows.length > 400) return null;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="the branches as a tree">
      <svg class="tree" width={wide + 8} height={y + ROW + 6} role="img" aria-label={`${all.length} branches; those that begin alike are drawn once`}>
        {rows.map((one, nth) => (
          <g key={nth} class={one.on ? "on" : ""}>
            {one.from && <path d={`M${one.from[0]} ${one.from[1] + 14}C${one.x - 4} ${one.from[1] + 14} ${one.from[0]} ${one.y + 14} ${one.x} ${one.y + 14}`} stroke-width={0.6 + 3 * one.p} />}
            <text x={one.x + 3} y={one.y + 18}>{one.word}<title>{percent(one.p)}</title></text>
          </g>
        ))}
      </svg>
    </div>
  );
}

// ---------------------------------------------------------------------------------- other tasks

const maskPlaces = computed(() => tokens.value.filter((one) => one.token.special && /mask/i.test(one.text)).map((one) => one.at));

/** A piece of the text, by characters as Python counts them, in place of another. */
function replaced(begin: number, end: number, by: string): string {
  const letters = Array.from(state.prompt.value);
  return [...letters.slice(0, begin), by, ...letters.slice(end)].join("");
}

function Fill({ place, words }: { place: number; words: readonly Uint8Array[] | null }) {
  const made = run.value!, token = made.tokens[place], masks = maskPlaces.value, row = useLoaded(() => logits(made.run, place), [made.run, place]);
  const spans = token && (token.end ?? 0) > (token.start ?? 0);
  const masked = masks.includes(place);
  const best = row.data && masked ? Array.from(sample(row.data, [], { temperature: 0, top_k: null, top_p: null, min_p: null, repetition_penalty: 1 }, 0).order.subarray(0, 8)) : [];
  return (
    <section class="card stack" aria-label="masks">
      <h2>Masked words</h2>
      <p class="note">This model reads the whole text at once. Write ___ for a word, or choose a token above and mask it; then see what fits.</p>
      <div class="row">
        {masks.map((at, i) => <button key={at} aria-pressed={at === place} onClick={() => (state.query.value = at)}>mask {i + 1}</button>)}
        {spans && !masked && <button onClick={() => ((state.prompt.value = replaced(token.start!, token.end!, /^\s/.test(Array.from(state.prompt.value)[token.start!] ?? "") ? " ___" : "___")), (state.ids.value = null), void submit())}>mask token {place}</button>}
      </div>
      {best.length > 0 && (
        <div class="row">put in:{best.map((id) => <button key={id} class="chip" onClick={() => {
          let nth = masks.indexOf(place);
          state.prompt.value = state.prompt.value.replace(/___|\[MASK\]|<mask>/g, (found) => (nth-- === 0 ? read.decode(words![id]).trim() : found));
          void submit();
        }}>{word(id, words)}</button>)}</div>
      )}
    </section>
  );
}

/** The text's vector beside a second text's, and beside what it was without the edits. */
function Vector({ made }: { made: Run }) {
  const plain = useLoaded(async () => ({ of: made.run, run: state.edits.value.length ? await sibling([]) : made }), [made.run]);
  if (plain.error) return <p class="failure" role="alert">{plain.error}</p>;
  return (
    <section class="card" aria-label="the text's vector">
      <h2>The text's vector <span class="soft">{vectorOf(made)!.shape.at(-1)} numbers</span></h2>
      {plain.data?.of === made.run && <Alike before={plain.data.run} after={made} />}
    </section>
  );
}

function Labels() {
  const made = run.value!, op = made.plan.find(isLabels);
  const loaded = useLoaded(() => (op ? values(made.run, op.id) : null), [made.run, op?.id]);
  if (!op || !loaded.data) return null;
  const scores = Array.from(loaded.data.data), most = Math.max(...scores.map(Math.abs), 1e-9);
  return (
    <section class="card" aria-label="labels">
      <h2>Scores of the labels</h2>
      <div class="bars">
        {scores.map((v, i) => [
          <span key={`n${i}`} class="name">{card.value?.labels?.[i] ?? `label ${i}`}</span>,
          <span key={`t${i}`} class="track"><i class="final" style={{ width: `${(Math.abs(v) / most) * 100}%` }} /></span>,
          <Num key={`v${i}`} addr={`${op.id}[${i}]`} v={v} as="signed" open={(address) => ((state.view.value = "inside"), open(address))} />,
        ])}
      </div>
    </section>
  );
}
