// Every head of every layer on one canvas; one head as a matrix, as words, as lines; and what the answer is without it.
import { batch, effect, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { at as cellAt, isAttention, short } from "../core/address";
import { number } from "../core/format";
import { firstPair } from "../core/openings";
import { label, type Piece } from "../core/pieces";
import { along, card, ops, run, sibling, submit, thumbs, useLoaded, values } from "../core/run";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { Heads, Measured, Op, Run } from "../core/types";
import { type Answer, answerPlace, hasWords, moved, telling, vectorOf, wordsOf } from "../core/whatif";
import { bitmap } from "../kernel/bitmap";
import { Legend, Matrix, paint } from "../kernel/matrix";
import { Num } from "../kernel/Num";
import { counters, probed } from "../kernel/probe";
import { css as colour, sequential } from "../kernel/palette";
import { TakeAway } from "../kernel/TakeAway";
import "./attention.css";
import { Alike } from "./alike";
import { Moved } from "./moved";

const GROUPS = { encoder: "Encoder self", decoder: "Decoder self", cross: "Cross" } as const;
type Group = keyof typeof GROUPS;
type View = "matrix" | "text" | "lines";
type Scores = Map<string, Record<string, number | null>>; // by head, then by score
const ORDERS: Record<string, string> = { layer: "layer", pair: "weight at the locked pair", first: "weight on the first token", previous: "weight on the token before", entropy: "entropy, least first" };
// Of the model, on random tokens that come twice (sight/heads.py), so that words play no part.
const MEASURED: Record<string, string> = { "m.induction": "induction: what came after this token the first time", "m.previous": "the token before", "m.next": "the token after", "m.duplicate": "this token the first time", "m.first": "the first token", "m.entropy": "entropy, least first", "m.norm": "size of what is moved" };
const LABELS = ["induction", "previous", "next", "duplicate", "first"];
const VIEWS: View[] = ["matrix", "text", "lines"];
const LINES = 60; // tokens up to which lines are drawn
const WHOLE = 160; // tokens up to which whole patterns are read to sort by
const NODES = 600; // words of a text that are drawn
const PX = 48;
const MOST = 1_000_000; // weights of one answer in f32, which has 4 MiB
const SIDE = 512; // of a pooled one

const group = state.param<Group | "">("ag", "", (one) => (one in GROUPS ? (one as Group) : ""));
const view = state.param<View>("av", "matrix", (one) => (VIEWS.includes(one as View) ? (one as View) : "matrix"));
const order = state.param("ao", "layer", (one) => (one in ORDERS || one in MEASURED ? one : "layer"));
const only = state.param("af", "", (one) => (LABELS.includes(one) ? one : "")); // heads with this label alone
const hide = state.param("ah", false, (one) => one === "1", (on) => (on ? "1" : "0"));
const byValue = state.param("an", false, (one) => one === "1", (on) => (on ? "1" : "0"));

function groupOf(op: Op): Group {
  if (!op.of_source.length) return run.value?.kind === "encoder" ? "encoder" : "decoder";
  return op.of_source.includes("T") ? "encoder" : "cross";
}

/** The attention patterns of a run in the plan's order, by what they look from and at. */
function patterns(made: Run): Map<Group, Op[]> {
  const found = new Map<Group, Op[]>();
  for (const op of made.plan) {
    if (!isAttention(op)) continue;
    const name = groupOf(op);
    if (!found.has(name)) found.set(name, []);
    found.get(name)!.push(op);
  }
  return found;
}

const heads = (op: Op) => op.shape[op.axes.indexOf("H")];
const part = (op: Op) => op.id.slice(0, op.id.lastIndexOf("."));
/** Query heads that share one key-value head. */
const shared = (op: Op) => Number(ops.value.get(`${part(op)}.qk`)?.params.group ?? 1);
const words = (pieces: readonly Piece[] | null, count: number) => pieces?.map(label) ?? Array.from({ length: count }, (_, at) => String(at));

export function Attention() {
  const made = run.value!;
  const found = patterns(made);
  const names = [...found.keys()];
  const name = group.value && found.has(group.value) ? group.value : found.has("cross") ? "cross" : found.has("decoder") ? "decoder" : names[0];
  const list = found.get(name)!;
  const op = list[Math.max(0, list.findIndex((one) => one.layer === state.layer.value))];
  const head = Math.min(heads(op) - 1, Math.max(0, state.head.value ?? 0));
  const pair = usePair(made, list);
  useFirstPair(made, op, pair.data);
  return (
    <div class="stack attention">
      {names.length > 1 && (
        <div class="switch" role="group" aria-label="which attention">
          {names.map((one) => (
            <button key={one} aria-pressed={one === name} onClick={() => (group.value = one)}>{GROUPS[one]}</button>
          ))}
        </div>
      )}
      <div class="halves">
        <div class="stack">
        <section class="card" aria-label="all heads">
          <Atlas key={name} made={made} list={list} op={op} head={head} pair={pair.data} />
        </section>
        <Find op={op} head={head} pair={pair.data} error={pair.error} />
        </div>
        <div class="stack">
          <section class="card" aria-label="one head">
            <Head made={made} op={op} head={head} />
          </section>
          <WhatIf made={made} op={op} head={head} />
        </div>
      </div>
    </div>
  );
}

// ------------------------------------------------------------------------------------------ all heads

interface Thumb {
  op: Op;
  head: number;
  data: Uint8Array;
  rows: number;
  cols: number;
}

/** Thumbnails layer by layer, as they come. */
function useThumbs(made: Run, list: Op[], first: () => Promise<unknown>): { done: Map<string, Thumb[]>; error: string } {
  const [now, set] = useState<{ done: Map<string, Thumb[]>; error: string }>({ done: new Map(), error: "" });
  useEffect(() => {
    let mine = true;
    const all = made.plan.filter(isAttention), done = new Map<string, Thumb[]>();
    set({ done, error: "" });
    (async () => {
      await first().catch(() => null); // the head that is looked at comes first
      for (const op of list) {
        const at = all.indexOf(op);
        const one = transport.live ? (await thumbs(made.run, at, at + 1, PX)).tensors[op.id] : await values(made.run, op.id, { as: "u8", pool: `max:${PX}x${PX}`, map: "sqrt", range: "0:1" });
        if (!mine) return;
        const [H, rows, cols] = one.shape, size = rows * cols;
        done.set(op.id, Array.from({ length: H }, (_, head) => ({ op, head, rows, cols, data: (one.data as Uint8Array).subarray(head * size, (head + 1) * size) })));
        set({ done: new Map(done), error: "" });
      }
    })().catch((error) => mine && set({ done, error: (error as Error).message }));
    return () => {
      mine = false;
    };
  }, [made.run, list[0].id]);
  return now;
}

/** Of every head on this text: mean weight on the first token and on the one before, mean entropy in bits. */
async function scored(made: Run, list: Op[]): Promise<Scores> {
  const found: Scores = new Map();
  for (const op of list) {
    const { data, shape } = await values(made.run, op.id), [T, S] = shape.slice(-2);
    for (let h = 0; h < heads(op); h++) {
      let first = 0, previous = 0, entropy = 0;
      for (let t = 0; t < T; t++)
        for (let s = 0; s < S; s++) {
          const a = data[(h * T + t) * S + s];
          if (t && s === 0) first += a / (T - 1);
          if (t && s === t - 1) previous += a / (T - 1);
          if (a > 0) entropy -= (a * Math.log2(a)) / T;
        }
      found.set(cellAt(op, h), { first, previous, entropy });
    }
  }
  return found;
}

/** Where heads can be measured and switched off: in models of our own families. */
const measurable = () => transport.live && !!card.value?.abilities.edits;
const measured = (model: string) => transport.json<Heads>(`api/heads/${encodeURIComponent(model)}`).then((told) => new Map(told.heads.map((one) => [`${one.path}.pattern[${one.head}]`, one])));

function Atlas({ made, list, op, head, pair }: { made: Run; list: Op[]; op: Op; head: number; pair: Pair | null }) {
  const { done, error } = useThumbs(made, list, () => weights(made, op, head));
  const frame = useRef<HTMLDivElement>(null), base = useRef<HTMLCanvasElement>(null), over = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const hovered = useSignal<Thumb | null>(null);
  const long = Math.max(...list.map((one) => Math.max(...one.shape.slice(-2)))) > WHOLE;
  const cross = groupOf(list[0]) === "cross";
  const own = order.value in MEASURED, sorted = order.value === "pair" ? (pair ? "pair" : "layer") : !own && (long || cross) ? "layer" : order.value, least = sorted.endsWith("entropy");
  const onText = useLoaded(() => (own || sorted === "layer" || sorted === "pair" ? null : scored(made, list)), [made.run, list[0].id, own || sorted === "layer" || sorted === "pair"]);
  const wanted = own || !!only.value;
  const ofModel = useLoaded(() => (wanted ? measured(made.model) : null), [made.digest, wanted]);
  const marks = ofModel.data;
  const scores = useMemo((): Scores | null => (sorted === "pair" ? new Map(pair!.ranked.map((one) => [cellAt(one.op, one.head), { pair: one.weight }])) : own ? marks && new Map([...marks].map(([at, one]) => [at, Object.fromEntries(Object.entries(one.scores).map(([name, v]) => [`m.${name}`, v]))])) : onText.data), [own, marks, onText.data, sorted, pair]);
  const most = Math.max(...list.map(heads));
  const together = sorted === "layer" ? shared(list[0]) : 1;
  useEffect(() => {
    const observer = new ResizeObserver(([one]) => setWidth(Math.floor(one.contentRect.width)));
    observer.observe(frame.current!);
    return () => observer.disconnect();
  }, []);

  // Places: a row a layer, a column a head; sorted ones fill rows from the highest.
  const places = useMemo(() => {
    const every = list.flatMap((one) => Array.from({ length: heads(one) }, (_, h) => ({ op: one, head: h })));
    const all = only.value && marks ? every.filter((one) => marks.get(cellAt(one.op, one.head))?.labels.includes(only.value)) : every;
    if (sorted === "layer") return all.map((one) => ({ ...one, row: list.indexOf(one.op), col: one.head }));
    if (scores) {
      const none = least ? Infinity : -Infinity, by = (one: { op: Op; head: number }) => scores.get(cellAt(one.op, one.head))?.[sorted] ?? none;
      all.sort((a, b) => (least ? by(a) - by(b) : by(b) - by(a)) || 0);
    }
    return all.map((one, at) => ({ ...one, row: Math.floor(at / most), col: at % most }));
  }, [made.run, list[0].id, list.length, sorted, scores, marks, only.value, most]);

  const left = sorted === "layer" ? 30 : 2, top = 18, gap = 3, apart = 7;
  const groups = together > 1 ? Math.ceil(most / together) : 1;
  const cell = Math.max(10, Math.min(96, Math.floor((width - left - 4 - (groups - 1) * apart) / most) - gap));
  const x = (col: number) => left + col * (cell + gap) + (together > 1 ? Math.floor(col / together) * apart : 0);
  const y = (row: number) => top + row * (cell + gap);
  const rows = Math.max(0, ...places.map((one) => one.row)) + 1;
  const wide = x(most - 1) + cell + 3, tall = y(rows);
  const at = (px: number, py: number) => places.find((one) => px >= x(one.col) && px < x(one.col) + cell && py >= y(one.row) && py < y(one.row) + cell) ?? null;
  const thumbOf = (one: { op: Op; head: number }) => done.get(one.op.id)?.[one.head];

  const atPair = useMemo(() => new Map((pair?.ranked ?? []).map((one) => [cellAt(one.op, one.head), one.weight])), [pair]);

  function draw() {
    const canvas = base.current;
    if (!canvas || !width) return;
    counters.repaints += 1;
    const ratio = devicePixelRatio || 1, table = sequential.value;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(tall * ratio);
    const g = canvas.getContext("2d")!;
    g.scale(ratio, ratio);
    g.imageSmoothingEnabled = false;
    const style = getComputedStyle(canvas);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    g.fillStyle = style.getPropertyValue("--soft");
    if (sorted === "layer") {
      g.textAlign = "right";
      list.forEach((one, row) => g.fillText(`L${one.layer ?? row}`, left - 5, y(row) + cell / 2));
      g.textAlign = "center";
      for (let h = 0; h < most; h++) if (cell >= 16 || h % 4 === 0) g.fillText(String(h), x(h) + cell / 2, top / 2);
    } else {
      g.textAlign = "left";
      g.fillText(`${least ? "lowest" : "highest"} first →`, left, top / 2);
    }
    g.strokeStyle = style.getPropertyValue("--line");
    const dots = Math.round(cell * ratio);
    for (const one of places) {
      const thumb = thumbOf(one);
      if (thumb) {
        // Where there are fewer dots than cells the strongest one shows: one hot cell may not vanish.
        const wide = Math.min(thumb.cols, dots), high = Math.min(thumb.rows, dots);
        g.drawImage(bitmap(thumb.data, wide, high, table, "u8", () => paint(thumb.data, thumb.rows, thumb.cols, wide, high, table, 0, 255)), x(one.col), y(one.row), cell, cell);
      }
      g.strokeRect(x(one.col) - 0.5, y(one.row) - 0.5, cell + 1, cell + 1);
      const weight = atPair.get(cellAt(one.op, one.head));
      if (weight) {
        g.fillStyle = style.getPropertyValue("--accent");
        g.fillRect(x(one.col), y(one.row) + cell - 4, cell * weight, 4);
      }
    }
    mark();
  }

  function mark() {
    const canvas = over.current;
    if (!canvas || !width) return;
    counters.overlays += 1;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(tall * ratio);
    const g = canvas.getContext("2d")!;
    g.scale(ratio, ratio);
    g.strokeStyle = getComputedStyle(canvas).getPropertyValue("--accent");
    for (const one of places) {
      const locked = one.op === op && one.head === head, lit = hovered.value && one.op === hovered.value.op && one.head === hovered.value.head;
      if (!locked && !lit) continue;
      g.lineWidth = locked ? 3 : 1.5;
      g.strokeRect(x(one.col) - 0.5, y(one.row) - 0.5, cell + 1, cell + 1);
    }
  }

  useEffect(() => effect(() => {
    sequential.value;
    draw();
  }), [done, width, places, cell, op.id, head, atPair]);
  useEffect(() => effect(() => {
    hovered.value;
    mark();
  }), [places, width, op.id, head]);
  useEffect(() => {
    const probe = (px: number, py: number) => {
      const one = at(px, py), thumb = one && thumbOf(one);
      if (!one || !thumb) return null;
      const row = Math.floor(((py - y(one.row)) / cell) * thumb.rows), col = Math.floor(((px - x(one.col)) / cell) * thumb.cols);
      const whole = thumb.rows === one.op.shape.at(-2) && thumb.cols === one.op.shape.at(-1);
      const value = (thumb.data[row * thumb.cols + col] / 255) ** 2;
      return { addr: `${whole ? "" : `max-pooled ${thumb.rows}x${thumb.cols} `}u8 ${cellAt(one.op, one.head, row, col)}`, value };
    };
    probed(base.current!, probe);
    probed(over.current!, probe);
  });

  function choose(one: { op: Op; head: number } | null) {
    if (!one) return;
    state.layer.value = one.op.layer;
    state.head.value = one.head;
  }
  function keys(event: KeyboardEvent) {
    const now = places.find((one) => one.op === op && one.head === head) ?? { row: 0, col: -1 };
    const step: Record<string, [number, number]> = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in step)) return;
    const [dr, dc] = step[event.key];
    choose(places.find((one) => one.row === now.row + dr && one.col === now.col + dc) ?? null);
    event.preventDefault();
    event.stopPropagation();
  }
  const pooled = list.some((one) => Math.max(...one.shape.slice(-2)) > PX);
  const score = sorted === "layer" ? undefined : scores?.get(cellAt(op, head))?.[sorted];
  const told = score === undefined || score === null ? "" : `, ${(ORDERS[sorted] ?? MEASURED[sorted]).replace(", least first", "")} ${number(score, 3)}`;
  return (
    <>
      <div class="row">
        <h2>All heads <span class="soft">{list.length} layers × {most}</span></h2>
        <label>sort by{" "}
          <select class="sorts" value={sorted} onChange={(event) => (order.value = event.currentTarget.value)}>
            <optgroup label="on this text">{Object.entries(ORDERS).map(([key, said]) => <option key={key} value={key} disabled={key === "pair" ? !pair : key !== "layer" && (long || cross)}>{said}{key !== "layer" && key !== "pair" && long ? ` (up to ${WHOLE} tokens)` : ""}</option>)}</optgroup>
            {measurable() && <optgroup label="on random tokens that come twice">{Object.entries(MEASURED).map(([key, said]) => <option key={key} value={key}>{said}</option>)}</optgroup>}
          </select>
        </label>
        {measurable() && <label>show{" "}
          <select value={only.value} title="a head has a label where its score on random tokens that come twice is clearly above that on shuffled ones" onChange={(event) => (only.value = event.currentTarget.value)}>
            <option value="">every head</option>{LABELS.map((one) => <option key={one} value={one}>{one} heads</option>)}
          </select>
        </label>}
      </div>
      {(error || ofModel.error) && <p class="failure" role="alert">{error || ofModel.error}</p>}
      {only.value && marks && <p class="soft">{places.length ? `${places.length} of ${list.reduce((sum, one) => sum + heads(one), 0)} heads are ${only.value} heads` : `No head here has the mark ${only.value}: none is clearly above its baseline.`}</p>}
      <div ref={frame} class="atlas">
        <div
          class="sheet" role="grid" tabIndex={0} aria-label={`attention of all heads; chosen: layer ${op.layer}, head ${head}${told}`} aria-rowcount={rows} aria-colcount={most}
          style={{ width: `${wide}px`, height: `${tall}px` }} onKeyDown={keys}
          onPointerMove={(event) => {
            const box = base.current!.getBoundingClientRect(), one = at(event.clientX - box.left, event.clientY - box.top);
            const thumb = (one && thumbOf(one)) ?? null;
            if (thumb !== hovered.value) hovered.value = thumb;
          }}
          onPointerLeave={() => (hovered.value = null)}
          onClick={(event) => {
            const box = base.current!.getBoundingClientRect();
            choose(at(event.clientX - box.left, event.clientY - box.top));
          }}
        >
          <canvas ref={base} aria-hidden="true" style={{ width: `${wide}px`, height: `${tall}px` }} />
          <canvas ref={over} class="over" aria-hidden="true" style={{ width: `${wide}px`, height: `${tall}px` }} />
          <div role="row" class="hidden"><div role="gridcell" aria-selected="true">layer {op.layer}, head {head}{told}</div></div>
        </div>
      </div>
      <div class="legend">
        <Legend scale="sequential" low={0} high={1} /> <span>by the root of the weight, the same for all</span>
        {pooled && <span class="tag" title="each cell of a picture shows the greatest weight under it">pooled to {PX}×{PX}</span>}
        {together > 1 && <span class="tag">{together} query heads share one key-value head</span>}
        <Hovered of={hovered} scores={scores} by={sorted} />
      </div>
      {marks && <Marks one={marks.get(cellAt(op, head))} />}
    </>
  );
}

/** What the chosen head does on random tokens that come twice, beside what it is held to. */
function Marks({ one }: { one: Measured | undefined }) {
  if (!one) return null;
  return (
    <p class="soft">
      This head on random tokens that come twice:{" "}
      {Object.entries(one.scores).filter(([, v]) => v !== null).map(([name, v]) => (
        <span key={name} class="look" title={name in one.baseline ? `baseline ${number(one.baseline[name], 3)} ± ${number(one.deviation[name], 2)}` : ""}>{one.labels.includes(name) ? <b>{name}</b> : name.replace("_", " ")} <Num addr={`heads.${one.path}[${one.head}].${name}`} v={v} digits={3} /></span>
      ))}
      <span>{one.labels.length ? "bold: clearly above its baseline" : "none is clearly above its baseline"}</span>
    </p>
  );
}

function Hovered({ of, scores, by }: { of: { value: Thumb | null }; scores: Scores | null; by: string }) {
  const one = of.value;
  if (!one) return <span class="said" />;
  const score = by === "layer" ? undefined : scores?.get(cellAt(one.op, one.head))?.[by];
  return <span class="said">layer {one.op.layer}, head {one.head}{score !== undefined && score !== null && `: ${number(score, 3)}`}</span>;
}

// -------------------------------------------------------------------------------------- find the head

/** The locked query and key, and every head of a group by its weight there, the largest first. */
interface Pair {
  query: number;
  key: number;
  ranked: { op: Op; head: number; weight: number }[];
}

function usePair(made: Run, list: Op[]) {
  const query = state.query.value, key = state.key.value, locked = query !== null && key !== null && query < list[0].shape.at(-2)! && key < list[0].shape.at(-1)!;
  const rank = async (): Promise<Pair & { of: string }> => {
    const each = await Promise.all(list.map((op) => values(made.run, cellAt(op, ":", query!, key!))));
    const ranked = list.flatMap((op, nth) => Array.from({ length: heads(op) }, (_, head) => ({ op, head, weight: each[nth].data[head] })));
    return { query: query!, key: key!, ranked: ranked.sort((a, b) => b.weight - a.weight), of: made.run + list[0].id };
  };
  const loaded = useLoaded(() => (locked ? rank() : null), [made.run, list[0].id, query, key]);
  const data = loaded.data, fits = locked && data?.query === query && data.key === key && data.of === made.run + list[0].id;
  return { data: fits ? data : null, error: locked ? loaded.error : "" };
}

/** The first sentence opens on the head that looks most from "it" to "animal". */
function useFirstPair(made: Run, op: Op, pair: Pair | null) {
  const waits = useRef(false);
  useEffect(() => {
    const found = groupOf(op) === "cross" ? null : firstPair(along(op, "T"));
    waits.current = !!found;
    if (found) batch(() => ((state.query.value = found.from), (state.key.value = found.to)));
  }, [made.run]);
  useEffect(() => {
    if (!pair || !waits.current) return;
    waits.current = false;
    const [best] = pair.ranked;
    batch(() => ((state.layer.value = best.op.layer), (state.head.value = best.head)));
  }, [pair]);
}

const FOUND = 12; // heads in the list at first
const CHOICES = 200; // tokens up to which both sides are lists to choose from

/** Which head looks from here to there: all heads by their weight at a pair of tokens. */
function Find({ op, head, pair, error }: { op: Op; head: number; pair: Pair | null; error: string }) {
  const all = useSignal(false), [T, S] = op.shape.slice(-2), from = words(along(op, "T"), T), to = words(along(op, "S"), S);
  const choose = (name: string, signal: typeof state.query, list: readonly string[]) => (
    <label>{name}{" "}
      <select aria-label={`${name} token`} value={signal.value ?? ""} onChange={(event) => (signal.value = event.currentTarget.value === "" ? null : Number(event.currentTarget.value))}>
        <option value="">…</option>{list.map((word, at) => <option key={at} value={at}>{at}: {word}</option>)}
      </select>
    </label>
  );
  return (
    <section class="card" aria-label="find the head">
      <h2>Find the head</h2>
      <div class="row">
        {Math.max(T, S) <= CHOICES && <>{choose("from", state.query, from)}{choose("to", state.key, to)}</>}
        {pair && <button aria-pressed={order.value === "pair"} onClick={() => (order.value = order.value === "pair" ? "layer" : "pair")}>sort the pictures</button>}
      </div>
      {error && <p class="failure" role="alert">{error}</p>}
      {!pair && !error && <p class="soft">Choose two tokens, or click a cell of the matrix: then every head is listed by its weight from the one to the other.</p>}
      {pair && !(pair.ranked[0]?.weight > 0) && <p class="soft">No head looks from “{from[pair.query]}” at “{to[pair.key]}”: each weight there is 0.</p>}
      {pair && pair.ranked[0]?.weight > 0 && (
        <ol class="ranked" aria-label={`heads by their weight from ${from[pair.query]} to ${to[pair.key]}`}>
          {pair.ranked.slice(0, all.value ? undefined : FOUND).map((one) => (
            <li key={cellAt(one.op, one.head)}>
              <button class="quiet" aria-pressed={cellAt(one.op, one.head) === cellAt(op, head)} onClick={() => ((state.layer.value = one.op.layer), (state.head.value = one.head))}>
                layer {one.op.layer}, head {one.head}: <Num addr={cellAt(one.op, one.head, pair.query, pair.key)} v={one.weight} digits={2} />
              </button>
              <i style={{ width: `${100 * one.weight}%` }} />
            </li>
          ))}
        </ol>
      )}
      {pair && pair.ranked.length > FOUND && pair.ranked[0].weight > 0 && <button class="quiet" onClick={() => (all.value = !all.value)}>{all.value ? `the first ${FOUND}` : `all ${pair.ranked.length} heads`}</button>}
    </section>
  );
}

// ------------------------------------------------------------------------------------------- one head

interface Square {
  data: Float32Array;
  rows: number;
  cols: number;
  /** Of the whole, where what is here was pooled. */
  full: [number, number];
  weighted: boolean;
  run: string;
}

/** A head's weights, pooled where they are more than one answer holds. */
function weights(made: Run, op: Op, head: number) {
  const [T, S] = op.shape.slice(-2);
  return values(made.run, cellAt(op, head), T * S > MOST ? { as: "u8", pool: `max:${SIDE}x${SIDE}`, map: "sqrt" } : {});
}

/** A head's weights, or weight x length of the value. */
async function square(made: Run, op: Op, head: number, weighted: boolean): Promise<Square> {
  const one = await weights(made, op, head);
  const [rows, cols] = one.shape.slice(-2), full = one.full.slice(-2) as [number, number];
  const data = one.data instanceof Float32Array ? one.data : Float32Array.from(one.data, (code) => (one.max - one.min) * (one.map === "sqrt" ? (code / 255) ** 2 : code / 255) + one.min);
  if (!weighted || full[1] !== cols) return { data, rows, cols, full, weighted: false, run: made.run };
  const norms = await lengths(made, op, head);
  return { data: data.map((a, i) => a * norms[i % cols]), rows, cols, full, weighted: true, run: made.run };
}

async function lengths(made: Run, op: Op, head: number): Promise<number[]> {
  const v = await values(made.run, `${part(op)}.v[${Math.floor(head / shared(op))}]`), [S, D] = v.shape.slice(-2);
  return Array.from({ length: S }, (_, s) => {
    let sum = 0;
    for (let d = 0; d < D; d++) sum += v.data[s * D + d] ** 2;
    return Math.sqrt(sum);
  });
}

/** First tokens and special ones, which take what a head has no use for. */
function sinks(keys: readonly Piece[] | null): Set<number> {
  return new Set([0, ...(keys ?? []).filter((one) => one.token.special).map((one) => one.at)]);
}

function Head({ made, op, head }: { made: Run; op: Op; head: number }) {
  const queries = along(op, "T"), keys = along(op, "S");
  const [T, S] = op.shape.slice(-2);
  const values_ = ops.value.has(`${part(op)}.v`), weighted = byValue.value && values_;
  const loaded = useLoaded(() => square(made, op, head, weighted), [made.run, op.id, head, weighted]);
  const data = loaded.data?.run === made.run ? loaded.data : null;
  const whole = !!data && data.rows === T && data.cols === S;
  const hidden = hide.value && whole ? sinks(keys) : null;
  const shown = useMemo(() => (data && hidden ? data.data.map((v, i) => (hidden.has(i % data.cols) ? -Infinity : v)) : data?.data), [data, hide.value]);
  const most = useMemo(() => (shown ? shown.reduce((a, v) => (v > a ? v : a), 0) : 1), [shown]);
  const query = Math.min(T - 1, state.query.value ?? T - 1);
  const crowded = Math.max(T, S) > LINES;
  const now: View = view.value === "lines" && crowded ? "matrix" : view.value;
  const address = (row: number, col: number) => {
    const cell = cellAt(op, head, row, col);
    return !whole ? `max-pooled ${cell}` : data?.weighted ? `${cell} * |${part(op)}.v[${Math.floor(head / shared(op))},${col}]|` : cell;
  };
  const rowWords = words(queries, T), colWords = words(keys, S);
  const ceiling = data?.weighted || hidden ? most || 1 : 1;
  return (
    <div class="stack">
      <div class="row">
        <h2>{GROUPS[groupOf(op)]} · layer {op.layer} · head {head}</h2>
        <div class="switch" role="group" aria-label="how to show it">
          {VIEWS.map((one) => (
            <button key={one} aria-pressed={now === one} disabled={one === "lines" && crowded} title={one === "lines" && crowded ? `lines are drawn for up to ${LINES} tokens` : undefined} onClick={() => (view.value = one)}>{one}</button>
          ))}
        </div>
      </div>
      <div class="row">
        <label><input type="checkbox" checked={hide.value} onChange={(event) => (hide.value = event.currentTarget.checked)} /> hide first and special tokens</label>
        {values_ && <label title="the weight times the length of the value: a strong look at a small value carries little"><input type="checkbox" checked={byValue.value} onChange={(event) => (byValue.value = event.currentTarget.checked)} /> weight × |value|</label>}
      </div>
      {loaded.error && <p class="failure" role="alert">{loaded.error}</p>}
      {data && shown && (
        <>
          {now === "matrix" && (
            <Matrix
              data={shown} rows={data.rows} cols={data.cols} addr={address} scale="sequential" range={[0, ceiling]} hollow={whole && !data.weighted} title={cellAt(op, head)}
              label={`attention of ${short(op.id)}, head ${head}: rows look at columns`}
              rowLabels={whole ? rowWords : undefined} colLabels={whole ? colWords : undefined} rowName="query" colName="key"
              hoverRow={whole ? state.hover.query : undefined} hoverCol={whole ? state.hover.key : undefined}
              row={whole ? state.query.value : null} col={whole ? state.key.value : null}
              onLock={(row, col) => {
                state.query.value = Math.floor((row * T) / data.rows);
                state.key.value = Math.floor((col * S) / data.cols);
              }}
              pooledFrom={data.full}
              say={(row, col, v) => (whole ? `${rowWords[row]} looks at ${colWords[col]}: ${v === -Infinity ? "hidden" : number(v, 5)}` : `about token ${Math.floor((row * T) / data.rows)} at ${Math.floor((col * S) / data.cols)}: at most ${number(v, 5)}`)}
            />
          )}
          {now === "text" && <TextView made={made} op={op} head={head} query={query} queries={queries} keys={keys} hidden={hidden} />}
          {now === "lines" && whole && <Lines data={shown} rows={T} cols={S} rowWords={rowWords} colWords={colWords} top={ceiling} address={address} />}
          <Row made={made} op={op} head={head} query={query} rowWords={rowWords} colWords={colWords} />
          <div class="row">
            {now !== "matrix" && <TakeAway grid={() => ({ address: cellAt(op, head), rows: data.rows, cols: data.cols, values: data.data, rowWords: whole ? rowWords : [], colWords: whole ? colWords : [], min: 0, max: data.weighted ? ceiling : 1 })} />}
            <span class="soft">An attention weight is not an explanation by itself{measurable() && ": switch the head off and see"}.</span>
          </div>
        </>
      )}
    </div>
  );
}

/** What the locked token looks at, exact, the strongest first. */
function Row({ made, op, head, query, rowWords, colWords }: { made: Run; op: Op; head: number; query: number; rowWords: readonly string[]; colWords: readonly string[] }) {
  const address = cellAt(op, head, query);
  const loaded = useLoaded(async () => ({ row: (await values(made.run, address)).data, address, run: made.run }), [made.run, address]);
  if (loaded.data?.address !== address || loaded.data.run !== made.run) return null;
  const row = Array.from(loaded.data.row), sum = row.reduce((a, v) => a + v, 0);
  const best = Array.from(row, (_, at) => at).sort((a, b) => row[b] - row[a]).slice(0, 8).filter((at) => row[at] > 0);
  const open = (cell: string) => {
    state.cell.value = cell;
    state.op.value = op.id;
    state.view.value = "inside";
  };
  return (
    <p class="looks">
      <b class="mono">{rowWords[query]}</b> <span class="soft">({query}) looks at</span>{" "}
      {best.map((at) => (
        <span key={at} class="look"><button class="quiet word" onClick={() => (state.key.value = at)} title={`token ${at}: lock it`}>{colWords[at]}</button> <Num addr={cellAt(op, head, query, at)} v={row[at]} digits={3} open={open} /></span>
      ))}
      <span class="soft">row Σ <span class="num" data-sum={address} data-v={sum}>{sum.toFixed(3)}</span>{Math.abs(sum - 1) < 1e-3 ? " ✓" : ""}</span>
    </p>
  );
}

function TextView({ made, op, head, query, queries, keys, hidden }: { made: Run; op: Op; head: number; query: number; queries: readonly Piece[] | null; keys: readonly Piece[] | null; hidden: Set<number> | null }) {
  const [T, S] = op.shape.slice(-2);
  const across = queries !== keys, column = Math.min(S - 1, across ? (state.key.value ?? 0) : query);
  const loaded = useLoaded(async () => {
    const [row, col] = await Promise.all([values(made.run, cellAt(op, head, query)), values(made.run, cellAt(op, head, ":", column))]);
    return { row: Array.from(row.data), col: Array.from(col.data) };
  }, [made.run, op.id, head, query, column]);
  if (!loaded.data) return <p class="soft">…</p>;
  const { row, col } = loaded.data;
  const most = row.reduce((a, v, at) => (hidden?.has(at) ? a : Math.max(a, v)), 1e-9), mostCol = col.reduce((a, v) => Math.max(a, v), 1e-9);
  const keyWords = words(keys, S), rowWords = words(queries, T);
  const word = (at: number, text: string, looked: boolean, back: boolean, on: boolean, lock: () => void) => (
    <button
      key={at} class={`word ${on ? "on" : ""}`} title={`${looked ? `is looked at: ${number(row[at], 3)}` : ""}${looked && back ? " · " : ""}${back ? `looks back: ${number(col[at], 3)}` : ""}`} onClick={lock}
      style={{ background: looked && !hidden?.has(at) ? `color-mix(in srgb, var(--look) ${Math.round((100 * row[at]) / most)}%, transparent)` : "none", borderBottomColor: back ? `color-mix(in srgb, var(--back-look) ${Math.round((100 * col[at]) / mostCol)}%, transparent)` : "transparent" }}
      data-addr={looked ? cellAt(op, head, query, at) : undefined} data-v={looked ? row[at] : undefined}
    >{text}</button>
  );
  return (
    <div class="textview">
      {across && <p>{rowWords.slice(0, NODES).map((one, at) => word(at, one, false, true, at === query, () => (state.query.value = at)))}</p>}
      <p>{keyWords.slice(0, NODES).map((one, at) => word(at, one, true, !across && at < T, at === (across ? column : query), () => ((across ? state.key : state.query).value = at)))}</p>
      <p class="soft"><span class="swatch look" /> <b class="mono">{rowWords[query]}</b> looks here <span class="swatch back" /> looks at <b class="mono">{keyWords[column]}</b>{S > NODES && ` · the first ${NODES} of ${S} tokens`}</p>
    </div>
  );
}

function Lines({ data, rows, cols, rowWords, colWords, top, address }: { data: ArrayLike<number>; rows: number; cols: number; rowWords: readonly string[]; colWords: readonly string[]; top: number; address: (row: number, col: number) => string }) {
  const hover = useSignal<number | null>(null);
  const step = 20, wide = 400, from = 115, to = 285, tall = Math.max(rows, cols) * step + 8;
  const only = hover.value ?? state.query.value;
  const made: { row: number; col: number; v: number }[] = [];
  for (let row = 0; row < rows; row++) {
    if (only !== null && row !== only) continue;
    const all = Array.from({ length: cols }, (_, col) => ({ row, col, v: data[row * cols + col] })).filter((one) => one.v > 0);
    made.push(...all.sort((a, b) => b.v - a.v).slice(0, 8));
  }
  const stroke = colour(sequential.value, 0.72);
  return (
    <div class="scroll tall" tabIndex={0} role="region" aria-label="lines from each token to the eight it looks at most">
      <svg class="lines" viewBox={`0 0 ${wide} ${tall}`} style={{ width: "100%", maxWidth: `${wide}px` }} role="img" aria-label="attention as lines">
        {made.map(({ row, col, v }) => (
          <line key={`${row},${col}`} x1={from} y1={row * step + 14} x2={to} y2={col * step + 14} stroke={stroke} stroke-width={1 + 3 * Math.min(1, v / top)} stroke-opacity={Math.min(1, 0.06 + v / top)} data-addr={address(row, col)} data-v={v}>
            <title>{`${rowWords[row]} → ${colWords[col]}: ${number(v, 4)}`}</title>
          </line>
        ))}
        {rowWords.map((word, at) => (
          <text key={`q${at}`} x={from - 6} y={at * step + 18} text-anchor="end" class={only === at ? "on" : ""} onPointerEnter={() => (hover.value = at)} onPointerLeave={() => (hover.value = null)} onClick={() => (state.query.value = state.query.value === at ? null : at)}>{word}</text>
        ))}
        {colWords.map((word, at) => <text key={`k${at}`} x={to + 6} y={at * step + 18}>{word}</text>)}
      </svg>
    </div>
  );
}

// -------------------------------------------------------------------------------------------- what if

function WhatIf({ made, op, head }: { made: Run; op: Op; head: number }) {
  const [turned, setTurned] = useState<{ edit: string; after: Run } | null>(null);
  const [change, setChange] = useState<{ edit: string; answers: [Answer, Answer]; words: Map<number, string> } | null>(null);
  const [error, setError] = useState(""), [waiting, setWaiting] = useState("");
  useEffect(() => {
    setChange(null);
    setTurned(null);
    setError("");
  }, [made.run]);
  const inWords = hasWords(made);
  if (!(inWords || vectorOf(made)) || !card.value?.abilities.edits) return null;
  const keys = along(op, "S");
  const key = state.key.value ?? state.query.value;
  const ofSource = !!made.source_tokens && groupOf(op) !== "decoder";
  const choices: [string, string][] = [];
  if (/\.(attn|cross)$/.test(part(op))) {
    choices.push([`head_off(${JSON.stringify(part(op))}, ${head})`, "switch this head off"]);
    choices.push([`head_off(${JSON.stringify(part(op))}, ${head}, "mean")`, "this head its mean"]);
    choices.push([`attn_off(${JSON.stringify(part(op))})`, `all heads of layer ${op.layer} off`]);
  }
  const mlp = op.id.replace(/\.(attn|cross)\.pattern$/, ".ffn");
  if (ops.value.has(`${mlp}.write`)) choices.push([`mlp_off(${JSON.stringify(mlp)})`, `MLP of layer ${op.layer} off`]);
  if (keys && key !== null && key < keys.length) choices.push([`mask_token(${key}${ofSource ? ', "source"' : ""})`, `hide “${label(keys[key])}”`]);
  async function ask(edit: string) {
    setWaiting(edit);
    setError("");
    try {
      if (!inWords) return setTurned({ edit, after: await sibling([...state.edits.value, edit]) });
      const answers = await moved(edit);
      const ids = telling(answers);
      const said = await wordsOf(ids);
      setChange({ edit, answers, words: new Map(ids.map((id, at) => [id, said[at]])) });
    } catch (problem) {
      setChange(null);
      setTurned(null);
      setError((problem as Error).message);
    } finally {
      setWaiting("");
    }
  }
  return (
    <section class="card" aria-label="what if">
      <h2>What if</h2>
      <div class="row">
        {choices.map(([edit, said]) => (
          <button key={edit} aria-pressed={(change ?? turned)?.edit === edit} disabled={!!waiting} onClick={() => void ask(edit)}>{waiting === edit ? "…" : said}</button>
        ))}
      </div>
      {error && <p class="failure" role="alert">{error}</p>}
      {turned ? <><Alike before={made} after={turned.after} keep={() => ((state.edits.value = [...state.edits.value, turned.edit]), void submit())} /><code>{turned.edit}</code></> : !inWords ? <><p class="soft">The text's vector as it is, and without that. Lock a token to hide it.</p><Alike before={made} after={made} /></> : change ? <Moved {...change} keep={() => ((state.edits.value = [...state.edits.value, change.edit]), void submit())} /> : <p class="soft">The answer at position {answerPlace(made)} as it is, and without that. Lock a token to hide it.</p>}
    </section>
  );
}
