// The walk of one forward pass, at four depths: the whole map, a block, an operation, a cell. Cards come from the plan, by kind.
import { computed, signal, useSignal, type Signal } from "@preact/signals";
import { Fragment } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { at as part, inEncoder, parse, short, sideName, sides, stackOf, tail } from "../core/address";
import { number } from "../core/format";
import { label } from "../core/pieces";
import { along, card, layers, logits, ops, run, sibling, useLoaded, values } from "../core/run";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { Attribution, Op, Run } from "../core/types";
import { highest, isLabels, wordsOf } from "../core/whatif";
import { chosenStack } from "../frame/Frame";
import { actions } from "../frame/keys";
import { extent, ends, Matrix, paint } from "../kernel/matrix";
import { Num } from "../kernel/Num";
import { diverging, sequential } from "../kernel/palette";
import { scaleOf, slice } from "../kernel/slice";
import { Formula } from "../text/Formula";
import { textOf } from "../text/kinds";
import { flowOf, type Item, type Part } from "../core/flow";
import { back, CellCard, open } from "./cell";
import { Flow } from "./flow";
import { Sandbox } from "./sandbox";

/** The plan as boxes and arrows, and the box that is open. */
const drawing = computed(() => (run.value ? flowOf(run.value) : { columns: [], cross: [] }));
const box = state.param("pt", "", String);

function opened(): { item: Item; part: Part } | null {
  for (const item of box.value ? drawing.value.columns.flat() : [])
    for (const part of item.parts) if (part.key === box.value && item.layer === state.layer.value) return { item, part };
  return null;
}

function enter(item: Item, part: Part | null) {
  go(null);
  folded.value = "";
  if (item.stack) chosenStack.value = item.stack;
  state.layer.value = item.layer;
  box.value = part?.key ?? "";
  if (part?.ops.length === 1) go(part.ops[0]);
}

const choices = signal<Record<string, number>>({});
const text = (op: Op) => (op.kind === "classify" && !isLabels(op) ? { ...textOf("generic"), title: "The text's vector" } : textOf(op.kind, op.params, op.id));
const title = (op: Op) => text(op).title;

/** Where a leading side stands: heads are the page's selection, other sides are this screen's own. */
function chosen(op: Op) {
  return (axis: string, size: number) => {
    if (axis === "H") return state.head.value ?? 0;
    if (axis === "K") {
      const heads = [...ops.value.values()].find((one) => one.kind === "softmax" && one.layer === op.layer && one.axes.includes("H"))?.shape[1] ?? size;
      return Math.floor((state.head.value ?? 0) / Math.max(1, heads / size));
    }
    if (axis === "T") return state.query.value ?? 0;
    return choices.value[axis] ?? 0;
  };
}

function go(op: Op | null) {
  if (op && !opened()?.part.ops.includes(op)) box.value = "";
  state.cell.value = "";
  state.op.value = op?.id ?? "";
  if (op && op.layer !== null) {
    state.layer.value = op.layer;
    chosenStack.value = stackOf(op);
  }
}

function walk(step: number) {
  const plan = run.value?.plan.filter((one) => one.kind !== "leaf") ?? [];
  const now = plan.findIndex((one) => one.id === state.op.value);
  const from = now >= 0 ? now : state.layer.value === null ? -1 : plan.findIndex((one) => one.layer === state.layer.value) - 1;
  const next = plan[Math.max(0, Math.min(plan.length - 1, from + step))];
  if (next) go(next);
}

function up() {
  if (state.cell.value) back();
  else if (state.op.value) state.op.value = "";
  else if (folded.value) folded.value = "";
  else if (opened()) box.value = "";
  else state.layer.value = null;
}

export function Inside() {
  useEffect(() => {
    actions.walk = walk;
    actions.up = up;
    return () => {
      delete actions.walk;
    };
  }, []);
  useEffect(() => {
    // A cell that is opened shows its own head's matrix.
    const at = state.cell.value ? parse(state.cell.value) : null, one = at && ops.value.get(at.name);
    const side = one ? sides(one).findIndex((side) => side.axis === "H") : -1;
    if (at?.index && side >= 0 && side < at.index.length) state.head.value = at.index[side];
  }, [state.cell.value, run.value?.run]);
  const op = ops.value.get(state.op.value);
  return (
    <>
      <Crumbs op={op} />
      <div class="columns">
        <div class="stack">{op ? <OpView op={op} /> : within().length ? <Cards ops={within()} base={folded.value} /> : opened() ? <Cards ops={opened()!.part.ops} base={opened()!.part.ops.some((one) => one.module) ? shared(opened()!.part.ops) : ""} /> : state.layer.value !== null && layers.value.length ? <BlockView /> : <MapView />}</div>
        <aside class="card" aria-label="inspector">{state.cell.value || !op ? <CellCard /> : <Explained op={op} />}<Sandbox kind={op?.kind ?? ""} /></aside>
      </div>
    </>
  );
}

function Crumbs({ op }: { op: Op | undefined }) {
  const block = state.layer.value;
  return (
    <nav class="crumbs" aria-label="where you are">
      <button onClick={() => ((state.layer.value = null), (folded.value = box.value = ""), go(null))}>map</button>
      {block !== null && <><span aria-hidden="true">▸</span><button onClick={() => ((folded.value = box.value = ""), go(null))}>{inEncoder(chosenStack.value) ? "encoder " : ""}layer {block}</button></>}
      {opened() && <><span aria-hidden="true">▸</span><button onClick={() => ((folded.value = ""), go(null))}>{opened()!.part.title}</button></>}
      {within().length > 0 && <><span aria-hidden="true">▸</span><button onClick={() => go(null)}>{tail(folded.value)}</button></>}
      {op && <><span aria-hidden="true">▸</span><button aria-current="true" onClick={() => (state.cell.value = "")}>{op.layer === null ? op.id : tail(op.id)}</button></>}
      {state.cell.value && <><span aria-hidden="true">▸</span><code>[{parse(state.cell.value).index?.join(",")}]</code></>}
      <span style={{ flex: 1 }} />
      <button onClick={() => walk(-1)} aria-label="walk: the card before">←</button>
      <button onClick={() => walk(1)} aria-label="walk: the next card">walk →</button>
    </nav>
  );
}

// --------------------------------------------------------------------------------------- the map

function MapView() {
  const made = run.value!, place = state.query.value ?? made.tokens.length - 1;
  const first = made.plan.findIndex((one) => one.layer !== null), last = made.plan.length - [...made.plan].reverse().findIndex((one) => one.layer !== null);
  const before = made.plan.slice(0, first < 0 ? made.plan.length : first), after = first < 0 ? [] : made.plan.slice(last);
  const between = made.plan.slice(Math.max(0, first), last).filter((one) => one.layer === null);
  const stacks = [...new Set(layers.value.map((one) => one.stack))];
  const loaded = useLoaded(() => (transport.live && ops.value.has("logits") && (card.value?.abilities as Record<string, boolean> | undefined)?.attribution ? added(made, place) : null), [made.run, place]);
  const told = loaded.data?.run === made.run && loaded.data.place === place ? loaded.data : null;
  return (
    <>
      <p class="note">From the tokens at the top to the answer at the bottom; wider: more numbers for each token, by their logarithm; in brackets the most inside. Open any box.</p>
      <Flow drawing={drawing.value} open={enter} />
      <p class="note">Step by step; bars: the length of what each part wrote to token {place}. Open a layer, or any card.</p>
      {told && <Answered told={told} />}
      <Cards ops={before} />
      {stacks.map((stack, at) => (
        <Fragment key={stack}>
          <Writes place={place} stack={stack} told={told} />
          {at + 1 < stacks.length && between.length > 0 && <Cards ops={between} />}
        </Fragment>
      ))}
      {stacks.length < 2 && between.length > 0 && <Cards ops={between} />}
      <Cards ops={after} />
    </>
  );
}

/** What the answer's logit is made of, and, where something was changed, what it was made of before. */
interface Added {
  run: string;
  place: number;
  word: string;
  now: Attribution;
  before: Attribution | null;
}

async function added(made: Run, place: number): Promise<Added> {
  const plain = state.edits.value.length ? await sibling([]) : made, token = highest(await logits(plain.run, place), 1)[0];
  const ask = (run: string) => transport.json<Attribution>(`api/runs/${run}/attribution?token=${token}&position=${place}`);
  const [now, before, [word]] = await Promise.all([ask(made.run), plain === made ? null : ask(plain.run), wordsOf([token], made.model)]);
  return { run: made.run, place, word, now, before };
}

/** The sum of what the parts below an address added. */
const below = (told: Attribution, path: string) => told.parts.reduce((sum, one) => (one.address.startsWith(`${path}.`) ? sum + one.value : sum), 0);

function Answered({ told: { word, now, before } }: { told: Added }) {
  const cell = `${now.capped === null ? "logits" : "head.uncapped"}[${now.position},${now.token}]`;
  const shown = (one: Attribution) => <Num addr={cell} v={one.logit} digits={4} open={before && one === before ? undefined : (address) => open(address)} />;
  return (
    <p class="note" data-answer={now.token}>
      The logit of “<b class="mono">{word}</b>”, the likeliest after token {now.position}{now.capped !== null && ", before its cap"}: {before && <>{shown(before)} → </>}{shown(now)}
      {before && <> with the edits, <b>Δ <Num addr={`delta(${cell})`} v={now.logit - before.logit} as="signed" digits={4} /></b></>}. Beside each part: what it added to that{before && ", before and now"}.
    </p>
  );
}

interface Written {
  stack: string;
  layer: number;
  count: number; // of its operations
  parts: { op: Op; length: number; addr: string }[];
}

async function written(place: number): Promise<Written[]> {
  const made = run.value!;
  return Promise.all(layers.value.map(async ({ stack, layer, ops }) => {
    const writes = ops.filter((one) => one.id.endsWith(".write") && one.axes.includes("T"));
    const row = inEncoder(stack) && made.source_tokens ? made.source_tokens.length - 1 : place;
    const parts = await Promise.all(writes.map(async (op) => {
      const got = await values(made.run, part(op, row, ":"));
      return { op, addr: part(op, row), length: Math.hypot(...got.data) };
    }));
    return { stack, layer, count: ops.length, parts };
  }));
}

function Writes({ place, stack, told }: { place: number; stack: string; told: Added | null }) {
  const share = (of: Attribution, part: string) => <Num addr={`attribution(${of.token},${of.position}) ${part}`} v={below(of, part)} as="signed" digits={3} />;
  const made = run.value!;
  const loaded = useLoaded(() => written(place), [made.run, place]);
  if (loaded.error) return <p class="failure">{loaded.error}</p>;
  if (!loaded.data) return <p class="note">…</p>;
  const most = Math.max(1e-9, ...loaded.data.flatMap((one) => one.parts.map((part) => part.length)));
  return (
    <div class="stack" style={{ gap: "4px", maxWidth: "780px" }}>
      {loaded.data.filter((one) => one.stack === stack).map((one) => (
        <div class="row" key={`${one.stack}${one.layer}`}>
          <button style={{ width: "92px" }} onClick={() => ((chosenStack.value = one.stack), (state.layer.value = one.layer))}>{inEncoder(one.stack) ? "E" : "layer "}{one.layer}</button>
          {!one.parts.length && <span class="note">{one.count} operations</span>}
          {one.parts.map((part) => (
            <button key={part.op.id} class="op" style={{ flex: "1 1 120px", padding: "3px 8px" }} onClick={() => go(part.op)}>
              <b>{tail(part.op.id).replace(".write", "")} <span class="num" data-length={part.addr} data-v={part.length}>{number(part.length, 3)}</span></b>
              {told && !(made.source_tokens && stack === "encoder") && <small class="added">{told.before && <>{share(told.before, part.op.id.replace(/\.write$/, ""))} → </>}{share(told.now, part.op.id.replace(/\.write$/, ""))}</small>}
              <span style={{ display: "block", height: "6px", background: "var(--accent)", width: `${(part.length / most) * 100}%` }} />
            </button>
          ))}
        </div>
      ))}
    </div>
  );
}

// --------------------------------------------------------------------------------------- a block

function BlockView() {
  const found = layers.value.find((one) => one.layer === state.layer.value && one.stack === chosenStack.value) ?? layers.value.find((one) => one.layer === state.layer.value);
  if (!found) return <p class="note">This model has no layer {state.layer.value}.</p>;
  const base = /^.*?\.\d+(?=\.|$)/.exec(found.ops.find((one) => one.module)?.module ?? "")?.[0];
  const item = base ? null : drawing.value.columns.flat().find((one) => one.stack === found.stack && one.layer === found.layer);
  if (!item || item.parts.length < 2) return <Cards ops={found.ops} base={base} />;
  const parts = new Set(item.parts.flatMap((one) => one.ops)), rest = found.ops.filter((one) => !parts.has(one));
  return (
    <>
      {item.parts.map((one) => <section key={one.key} class="stack" aria-label={one.title}><h2>{one.title}</h2><Cards ops={one.ops} /></section>)}
      {rest.length > 0 && <section class="stack" aria-label="the residual stream"><h2>The residual stream</h2><Cards ops={rest} /></section>}
    </>
  );
}

const MANY = 120; // cards at once

/** Cards of operations in order; what one module computes in a row is one card, which opens to its own. */
function Cards({ ops, base = "" }: { ops: readonly Op[]; base?: string }) {
  const most = useSignal(MANY), all = groups(ops, base);
  return (
    <div class="cards">
      {all.slice(0, most.value).map((group, at) => {
        const op = group[group.length - 1], path = group.length > 1 ? shared(group) : "";
        return (
          <button key={op.id} class={`op ${group.some((one) => one.id === state.op.value) ? "now" : ""}`} onClick={() => (path ? unfold(path) : go(op))} title={path ? `${path}: ${group.length} operations` : `${op.id}: ${text(op).plain}`}>
            {at > 0 && group[0].in.includes(all[at - 1][all[at - 1].length - 1].id) && <i class="reads" aria-hidden="true" title="reads the card before">→</i>}
            <b>{at + 1} {path ? inside(path, base) : title(op)}</b>
            <small>{path ? `${group.length} operations ▸` : op.layer === null ? op.id : tail(op.id)}</small>
            <small>{sides(op).filter(({ axis }) => axis !== "row").map((one) => one.size).join("×")}</small>
            <Thumb op={op} />
          </button>
        );
      })}
      {all.length > most.value && <button onClick={() => (most.value *= 4)}>{all.length - most.value} more ▾</button>}
    </div>
  );
}

/** The module whose card is open. */
const folded = state.param("mod", "", String);

const inside = (path: string, base: string) => (base && path.startsWith(`${base}.`) ? path.slice(base.length + 1) : path);

/** The operations of the module whose card is open; none where it has none in this layer. */
function within(): Op[] {
  const path = folded.value;
  return path ? run.value!.plan.filter((one) => one.layer === state.layer.value && `${one.module}.`.startsWith(`${path}.`)) : [];
}

function unfold(path: string) {
  folded.value = path;
  go(null);
}

/** Operations in a row of one module below `base`. */
function groups(ops: readonly Op[], base: string): Op[][] {
  const made: { child: string; ops: Op[] }[] = [];
  for (const op of ops) {
    const child = /^[^.]+(\.\d[^.]*)?/.exec(op.module === base || (base && !op.module.startsWith(`${base}.`)) ? "" : inside(op.module, base))?.[0] ?? "";
    const last = made[made.length - 1];
    if (child && last?.child === child) last.ops.push(op);
    else made.push({ child, ops: [op] });
  }
  return made.map((one) => one.ops);
}

/** The longest path of modules that all operations stand in. */
function shared(ops: readonly Op[]): string {
  return ops.map((one) => one.module.split(".")).reduce((path, other) => path.filter((_, at) => path.slice(0, at + 1).join() === other.slice(0, at + 1).join())).join(".");
}

const THUMB = 48;

function Thumb({ op }: { op: Op }) {
  const made = run.value!, cut = slice(op, chosen(op));
  const loaded = useLoaded(() => values(made.run, cut.address, { as: "u8", pool: `max:${THUMB}x${THUMB}` }), [made.run, cut.address]);
  const draw = (canvas: HTMLCanvasElement | null) => {
    const got = loaded.data;
    if (!canvas || !got || !got.data.length) return;
    const cols = got.shape[got.shape.length - 1], rows = got.data.length / cols, scale = scaleOf(op);
    const [low, high] = ends(scale, got.data instanceof Uint8Array ? [got.min, got.max] : extent(got.data));
    canvas.width = cols;
    canvas.height = rows;
    const words = paint(got.data, rows, cols, cols, rows, (scale === "sequential" ? sequential : diverging).value, low, high, got.value);
    canvas.getContext("2d")!.putImageData(new ImageData(new Uint8ClampedArray(words.buffer as ArrayBuffer), cols, rows), 0, 0);
  };
  return <canvas aria-hidden="true" ref={draw} />;
}

// ----------------------------------------------------------------------------------- an operation

const MIXES = new Set(["linear", "lm_head", "classify", "router", "expert"]); // a result's column is a row of the weight

function OpView({ op }: { op: Op }) {
  const out = useSignal<number | null>(null), inner = useSignal<number | null>(null);
  const inputs = op.in.map((id) => ops.value.get(id)).filter((one): one is Op => !!one);
  const mixes = MIXES.has(op.kind);
  return (
    <>
      <h2>{title(op)} <code>{op.id}</code></h2>
      <Value op={op} col={out} main />
      {inputs.length > 0 && <h3>made of</h3>}
      <div class="stack">
        {inputs.map((one) => (
          <details key={one.id} open={one.kind !== "leaf" && inputs.length < 4} class="card">
            <summary>{title(one)} <code>{short(one.id)}</code></summary>
            <button class="quiet" onClick={() => go(one)}>go to it ↗</button>
            <Value op={one} col={mixes ? inner : out} />
          </details>
        ))}
        {Object.entries(op.w).map(([role, address]) => <Weight key={address} role={role} address={address} rowHover={mixes ? out : inner} colHover={mixes ? inner : out} />)}
      </div>
    </>
  );
}

function Value({ op: asked, col, main }: { op: Op; col: Signal<number | null>; main?: boolean }) {
  const made = run.value!, wanted = slice(asked, chosen(asked));
  // What is drawn stands beside what it is of: the last picture keeps its own addresses until the next is there.
  const loaded = useLoaded(() => values(made.run, wanted.address).then((got) => ({ got, op: asked, cut: wanted })), [made.run, wanted.address]);
  const { op, cut } = loaded.data ?? { op: asked, cut: wanted };
  const rowPieces = along(op, cut.row.axis), colPieces = along(op, cut.col.axis);
  const rowLabels = useMemo(() => rowPieces?.map((one) => label(one)), [rowPieces]), colLabels = useMemo(() => colPieces?.map((one) => label(one)), [colPieces]);
  const got = loaded.data?.got, at = state.cell.value ? parse(state.cell.value) : null;
  const here = at?.name === op.id && cut.lead.every((one, side) => at.index?.[side] === one.at) ? at.index : null;
  return (
    <div aria-busy={loaded.loading}>
      <Leads op={asked} />
      {loaded.error && <p class="failure">{loaded.error}</p>}
      {got && got.data.length > 0 && (
        <Shown key={op.id} got={got}>
          {(rows, cols) => (
            <Matrix
              data={got.data} value={got.value} rows={rows} cols={cols} scale={scaleOf(op)} range={op.kind === "softmax" && op.axes.includes("S") ? [0, 1] : undefined}
              hollow={op.kind === "softmax" && op.axes.includes("S")} title={cut.address}
              addr={(r, c) => cut.cell(scaled(r, rows, cut.row.size), scaled(c, cols, cut.col.size))} label={`${title(op)}, ${op.id}: ${sideName(cut.row.axis)} by ${sideName(cut.col.axis)}`}
              rowLabels={rows === cut.row.size ? rowLabels : undefined} colLabels={cols === cut.col.size ? colLabels : undefined}
              rowName={sideName(cut.row.axis) || "row"} colName={sideName(cut.col.axis)}
              hoverRow={cut.row.axis === "T" && !isSource(op) ? state.hover.query : cut.row.axis === "S" || isSource(op) ? state.hover.key : undefined}
              hoverCol={cut.col.axis === "S" ? state.hover.key : col}
              row={here ? (here.length > 1 ? here[here.length - 2] : 0) : null} col={here ? here[here.length - 1] : null}
              onOpen={(r, c) => open(cut.cell(scaled(r, rows, cut.row.size), scaled(c, cols, cut.col.size)))}
              pooledFrom={[cut.row.size, cut.col.size]} height={main ? 420 : 200}
            />
          )}
        </Shown>
      )}
    </div>
  );
}

function isSource(op: Op): boolean {
  return op.of_source.includes("T");
}

/** The place in the whole of a pooled place: its first. */
function scaled(at: number, shown: number, full: number): number {
  return shown === full ? at : Math.floor((at * full) / shown);
}

function Shown({ got, children }: { got: { shape: number[]; data: ArrayLike<number> }; children: (rows: number, cols: number) => any }) {
  const cols = got.shape[got.shape.length - 1] || 1;
  return children(got.data.length / cols, cols);
}

function Leads({ op }: { op: Op }) {
  const cut = slice(op, chosen(op));
  if (!cut.lead.length) return null;
  return (
    <div class="row">
      {cut.lead.filter(({ size }) => size > 1).map(({ axis, size, at }) => (
        <label key={axis}>
          {sideName(axis).replace(/s$/, "")}{" "}
          <select value={at} onChange={(event) => {
            const to = Number(event.currentTarget.value);
            if (axis === "H") state.head.value = to;
            else if (axis === "K") state.head.value = to * Math.max(1, Math.round((ops.value.get(op.id.replace(/\.[^.]*$/, ".qk"))?.shape[1] ?? size) / size));
            else if (axis === "T") state.query.value = to;
            else choices.value = { ...choices.value, [axis]: to };
          }}>
            {Array.from({ length: size }, (_, i) => <option key={i} value={i}>{i}</option>)}
          </select>
        </label>
      ))}
    </div>
  );
}

function Weight({ role, address, rowHover, colHover }: { role: string; address: string; rowHover: any; colHover: any }) {
  const made = run.value!;
  const shown = useSignal(false);
  const loaded = useLoaded(() => (shown.value ? values(made.run, address, { pool: "max:256x256" }) : null), [made.run, address, shown.value]);
  const got = loaded.data;
  const cols = got ? got.shape[got.shape.length - 1] || 1 : 1, rows = got ? got.data.length / cols : 1;
  const full = got?.full ?? [], fullRows = full.length > 1 ? full.slice(0, -1).reduce((a, b) => a * b, 1) : 1, fullCols = full[full.length - 1] ?? cols;
  return (
    <details class="card" onToggle={(event) => (shown.value = event.currentTarget.open)}>
      <summary>{role} <code>{address}</code> {got && full.join("×")}</summary>
      {loaded.error && <p class="failure">{loaded.error}</p>}
      {got && (
        <Matrix
          data={got.data} value={got.value} rows={rows} cols={cols} scale="diverging" label={`${role}, ${address}`} height={220}
          addr={(r, c) => weightCell(address, full, scaled(r, rows, fullRows), scaled(c, cols, fullCols))}
          hoverRow={rows === fullRows && full.length === 2 ? rowHover : undefined} hoverCol={cols === fullCols ? colHover : undefined}
          onOpen={(r, c) => open(weightCell(address, full, scaled(r, rows, fullRows), scaled(c, cols, fullCols)))} pooledFrom={[fullRows, fullCols]}
        />
      )}
    </details>
  );
}

function weightCell(address: string, full: number[], row: number, col: number): string {
  if (full.length < 2) return `${address}[${col}]`;
  const lead: number[] = [];
  let rest = row;
  for (const size of full.slice(0, -1).reverse()) {
    lead.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return `${address}[${[...lead, col].join(",")}]`;
}

function Explained({ op }: { op: Op }) {
  const users = run.value!.plan.filter((one) => one.in.includes(op.id));
  return (
    <div class="stack">
      <h2>{title(op)}</h2>
      <p>{text(op).plain}</p>
      {state.depth.value === "maths" && <Formula of={text(op).maths} />}
      {state.depth.value === "code" && <pre><code>{text(op).code}</code></pre>}
      <table>
        <tbody>
          <tr><th scope="row" class="left">kind</th><td class="left"><span class="tag">{op.kind}</span></td></tr>
          <tr><th scope="row" class="left">sides</th><td class="left">{sides(op).map((one) => `${one.size} ${sideName(one.axis)}`).join(" × ")}</td></tr>
          {Object.entries(op.params).map(([name, v]) => <tr key={name}><th scope="row" class="left">{name}</th><td class="left">{String(v)}</td></tr>)}
          <tr><th scope="row" class="left">code</th><td class="left"><code>{op.src || "given"}</code></td></tr>
        </tbody>
      </table>
      {users.length > 0 && (
        <div class="row">read by {users.slice(0, 12).map((one) => <button key={one.id} class="quiet" onClick={() => go(one)}><code>{short(one.id)}</code></button>)}</div>
      )}
      <p class="note">Open a cell of the matrix to see its arithmetic.</p>
    </div>
  );
}
