// Which parts carry one answer, and which of them feeds which: the JSON of `glassformer circuit`, drawn. Nothing is drawn that it does not hold.
import { signal, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { BOX, kept, picture, share, WORD } from "../core/circuit";
import { number, percent } from "../core/format";
import { card, explain, failure, run } from "../core/run";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { Circuit, CircuitNode, Run } from "../core/types";
import { actions } from "../frame/keys";
import { Num } from "../kernel/Num";
import { save } from "../kernel/takeout";
import { CellCard, open } from "./cell";
import "./circuit.css";

const MANY = 1500; // edges on the page
const answer = state.param("ca", "", String), instead = state.param("ci", "", String);
const corrupted = state.param("cc", "", String), other = state.param("cs", "", String);
const least = state.param("cl", "0.05", String), greedy = state.param("cg", "", String), neurons = state.param("cn", "", String), after = state.param("cp", "", String);

interface Found {
  run: string;
  circuit: Circuit;
}

const found = signal<Found | null>(null), chosen = signal(""), error = signal("");
const asking = signal<{ stop: AbortController; since: number } | null>(null);

async function find(made: Run): Promise<void> {
  asking.value?.stop.abort();
  const mine = { stop: new AbortController(), since: Date.now() };
  asking.value = mine;
  error.value = "";
  const asked = { answer: answer.value, instead: instead.value, position: /^-?\d+$/.test(after.value) ? Number(after.value) : null, corrupted: corrupted.value, corrupted_source: other.value, least: Number(least.value), greedy: greedy.value === "1", neurons: neurons.value === "1" };
  try {
    const circuit = await transport.post<Circuit>(`api/runs/${made.run}/circuit`, asked, mine.stop.signal);
    if (asking.value !== mine) return;
    found.value = { run: made.run, circuit };
    chosen.value = "";
    state.announcement.value = `${circuit.nodes.length} nodes, ${circuit.edges.length} edges.`;
  } catch (problem) {
    if (asking.value === mine && (problem as Error).name !== "AbortError") error.value = (problem as Error).message;
  } finally {
    if (asking.value === mine) asking.value = null;
  }
}

/** Select a node, and open the largest number of its row; of scores that of the key that is looked at. */
async function choose(made: Run, address: string): Promise<void> {
  chosen.value = address;
  const node = found.value!.circuit.nodes.find((one) => one.address === address)!, key = node.head && /looks at (\d+):/.exec(node.text)?.[1];
  try {
    const cell = await explain(made.run, key ? address.replace("]", `,${key}]`) : address.split(" - ")[0]); // of a difference its first logit
    if (chosen.value === address) open(cell.address);
  } catch (problem) {
    failure.value = (problem as Error).message;
  }
}

export function CircuitScreen() {
  const made = run.value!, circuit = found.value?.run === made.run ? found.value.circuit : null;
  useEffect(() => {
    actions.stop = () => asking.value?.stop.abort();
    return () => delete actions.stop;
  }, []);
  return (
    <div class="stack circuit">
      <Question made={made} />
      {error.value && <p class="failure" role="alert">{error.value}</p>}
      {circuit && (
        <div class="columns">
          <div class="stack">
            <Drawing made={made} circuit={circuit} />
            <Faithful circuit={circuit} />
          </div>
          <aside class="stack" aria-label="the chosen node">
            <Chosen made={made} circuit={circuit} />
            {state.cell.value && <CellCard />}
          </aside>
        </div>
      )}
    </div>
  );
}

function Question({ made }: { made: Run }) {
  const seconds = useSignal(0), now = asking.value;
  useEffect(() => {
    if (!now) return;
    const timer = setInterval(() => (seconds.value = Math.round((Date.now() - now.since) / 1000)), 500);
    return () => (clearInterval(timer), (seconds.value = 0));
  }, [now]);
  const field = (one: typeof answer, title: string, hint: string, wide = false) => <label class="row">{title} <input aria-label={title} placeholder={hint} size={wide ? 34 : 12} value={one.value} onInput={(event) => (one.value = event.currentTarget.value)} /></label>;
  const flag = (one: typeof greedy, title: string, hint: string) => <label class="row" title={hint}><input type="checkbox" checked={one.value === "1"} onChange={(event) => (one.value = event.currentTarget.checked ? "1" : "")} /> {title}</label>;
  return (
    <form class="card stack" aria-label="the answer" onSubmit={(event) => (event.preventDefault(), void find(made))}>
      <h2>Which parts carry this answer, and which of them feeds which?</h2>
      <div class="row">
        {field(answer, "answer", "the likeliest")}
        {field(instead, "instead of", "nothing")}
        {field(after, made.task === "masked" ? "at token" : "after token", made.task === "masked" ? "the mask" : "the last")}
      </div>
      <div class="row">
        {field(corrupted, "corrupted text", "as many tokens, another answer", true)}
        {card.value?.abilities.source && field(other, "corrupted source", "as many tokens, another answer", true)}
      </div>
      <div class="row">
        <label class="row" title="the share of the answer that a node adds or takes at least">least share <input aria-label="least share" type="number" min="0.001" max="1" step="any" value={least.value} onInput={(event) => (least.value = event.currentTarget.value)} /></label>
        {flag(greedy, "greedy", "take nodes out, the smallest first, where the measured answer stays within the least share")}
        {flag(neurons, "single neurons", "split MLPs and experts into single neurons")}
        {now ? <button type="button" onClick={() => now.stop.abort()}>Stop</button> : <button class="primary" disabled={!transport.live}>Find the circuit</button>}
        <span class="soft" aria-live="polite">{now ? `computing, ${seconds.value} s …` : `The model runs 24 times and back once for each node${greedy.value ? ", greedy once more for each" : ""}; the page's other questions to it wait so long.`}</span>
      </div>
    </form>
  );
}

const sign = (value: number) => (value < 0 ? "minus" : "plus");

function Drawing({ made, circuit }: { made: Run; circuit: Circuit }) {
  const drawn = useMemo(() => picture(circuit), [circuit]), on = chosen.value, frame = useRef<HTMLDivElement>(null);
  useEffect(() => frame.current!.scrollTo(drawn.width, 0), [drawn]); // the answer is mostly at the end
  const edges = drawn.edges.length > MANY ? [...drawn.edges].sort((a, b) => b.width - a.width).slice(0, MANY) : drawn.edges;
  const near = (...ends: string[]) => (!on || ends.includes(on) ? "" : "far");
  const text = (node: CircuitNode) => `${node.text}: ${number(node.value, 5)}, ${percent(Math.abs(share(circuit, node.value)))} of the answer`;
  const byAddress = new Map(circuit.nodes.map((one) => [one.address, one]));
  return (
    <section class="card" aria-label="the circuit">
      <div class="row">
        <h2>{circuit.answer}</h2>
        <button class="quiet" onClick={() => save(JSON.stringify(circuit, null, 2), `circuit ${made.model}`, "json", "application/json")}>save JSON</button>
        {on && <button class="quiet" onClick={() => (chosen.value = "")}>show all edges alike</button>}
      </div>
      <div class="scroll drawing" ref={frame} tabIndex={0} role="region" aria-label="layers by positions">
        <svg width={drawn.width} height={drawn.height} role="group" aria-label="nodes and edges of the circuit">
          {drawn.rows.map((row) => <text key={row.name} class="side" x={4} y={row.y + 4}>{row.name}</text>)}
          {drawn.columns.map((one) => <text key={one.title} class="word" x={one.x} y={drawn.height - 8} text-anchor="middle">{one.word.slice(0, WORD)}<title>{one.title}</title></text>)}
          {edges.map(({ edge, path, width }) => (
            <path key={`${edge.writer} > ${edge.reader}`} class={`edge ${sign(edge.value)} ${near(edge.writer, edge.reader)}`} d={path} stroke-width={width} data-edge={`${edge.writer} > ${edge.reader}`} data-v={edge.value} onClick={() => void choose(made, edge.writer)}>
              <title>{`${byAddress.get(edge.writer)!.text} adds ${number(edge.value, 5)} to ${byAddress.get(edge.reader)!.text}, ${percent(Math.abs(share(circuit, edge.value)))} of the answer`}</title>
            </path>
          ))}
          {drawn.ties.map((one) => <path key={one.key} class="tie" d={one.path} />)}
          {drawn.nodes.map(({ node, label, x, y }) => (
            <g key={node.address} class={`node ${sign(node.value)} ${node.kind}`} role="button" tabindex={0} aria-pressed={on === node.address} aria-label={text(node)} data-node={node.address} data-v={node.value}
              onClick={() => void choose(made, node.address)} onKeyDown={(event) => event.key === "Enter" && void choose(made, node.address)}>
              <rect x={x - BOX.width / 2} y={y - BOX.height / 2} width={BOX.width} height={BOX.height} rx={node.head ? 11 : 4} style={{ fillOpacity: Math.min(0.7, 0.06 + 0.6 * Math.abs(share(circuit, node.value))) }} />
              <text x={x} y={y + 4} text-anchor="middle">{label}</text>
              <title>{text(node)}</title>
            </g>
          ))}
        </svg>
      </div>
      <p class="soft">
        Positions from left to right, layers from the bottom up. An edge is as wide as its share of the answer; <i class="key plus" /> adds, <i class="key minus" /> takes. A round box beside a head is where the head looks.
        Click a node or an edge to open its numbers.
        {edges.length < drawn.edges.length && ` The ${MANY} widest of ${drawn.edges.length} edges are drawn; the JSON has all.`}
      </p>
    </section>
  );
}

function Faithful({ circuit }: { circuit: Circuit }) {
  const run = circuit.faithfulness, many = run.nodes === 1 ? "1 node" : `${run.nodes} nodes`;
  const best = run.random.length ? run.random.reduce((a, b) => (kept(circuit, b) > kept(circuit, a) ? b : a)) : null;
  const rows: [string, string, number][] = [["the model", "model", run.model], [`${many} alone`, "circuit", run.circuit]];
  if (best !== null) rows.push([`${run.random.length} random circuits of ${many}, mean`, "random.mean", run.random.reduce((a, b) => a + b, 0) / run.random.length], [`${run.random.length} random circuits of ${many}, best`, "random.best", best]);
  rows.push(["no node", "nothing", run.nothing], [`all but these ${many}`, "without", run.without]);
  const x = (value: number) => 10 + 280 * Math.min(1.1, Math.max(-0.1, kept(circuit, value)) + 0.1) / 1.2;
  return (
    <section class="card" aria-label="what the circuit keeps">
      <h2>What the circuit keeps of the answer</h2>
      <p class="soft">What is left out is held at {run.held_at}.</p>
      <table>
        <thead><tr><th class="left" scope="col">run</th><th scope="col">answer</th><th scope="col">kept</th></tr></thead>
        <tbody>{rows.map(([name, key, value]) => <tr key={key}><th scope="row" class="left">{name}</th><td><Num addr={`circuit.faithfulness.${key}`} v={value} as="signed" /></td><td><span class="num" data-v={kept(circuit, value)}>{Math.round(100 * kept(circuit, value))} %</span></td></tr>)}</tbody>
      </table>
      {run.random.length > 0 && (
        <svg class="strip-of" viewBox="0 0 300 44" role="img" aria-label={`the ${run.random.length} random circuits, and this one, between no node and the model`}>
          <line x1={x(run.nothing)} x2={x(run.model)} y1={16} y2={16} />
          {run.random.map((value, nth) => <circle key={nth} cx={x(value)} cy={16} r={3.5} data-random={nth} data-v={value}><title>{`random circuit ${nth}: ${number(value, 5)}`}</title></circle>)}
          <rect class="plus" x={x(run.circuit) - 4} y={10} width={8} height={12}><title>this circuit</title></rect>
          <text x={x(run.nothing)} y={38} text-anchor="middle">0 %</text>
          <text x={x(run.model)} y={38} text-anchor="middle">100 %</text>
        </svg>
      )}
    </section>
  );
}

/** A node: what it reads, and who reads it. */
function Chosen({ made, circuit }: { made: Run; circuit: Circuit }) {
  const node = circuit.nodes.find((one) => one.address === chosen.value);
  if (!node) return <p class="note">Choose a node: here stands what it reads and who reads it, and the arithmetic of its largest number.</p>;
  const nodes = new Map(circuit.nodes.map((one) => [one.address, one])), looks = circuit.nodes.filter((one) => one.head === node.address);
  const sorted = (list: typeof circuit.edges) => [...list].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const into = sorted(circuit.edges.filter((one) => one.reader === node.address)), out = sorted(circuit.edges.filter((one) => one.writer === node.address));
  const rest = node.sum === null ? null : node.sum - into.reduce((sum, one) => sum + one.value, 0);
  const link = (address: string) => <button class="quiet left" onClick={() => void choose(made, address)}>{nodes.get(address)!.text}</button>;
  const table = (title: string, list: typeof circuit.edges, end: "writer" | "reader") => (
    <table>
      <thead><tr><th scope="col" class="left">{title}</th><th scope="col">adds</th></tr></thead>
      <tbody>
        {list.map((one) => <tr key={one[end]}><th scope="row" class="left">{link(one[end])}</th><td><Num addr={`circuit.edge(${one.writer} > ${one.reader})`} v={one.value} as="signed" /></td></tr>)}
        {end === "writer" && rest !== null && <tr><th scope="row" class="left soft">small edges, and what is outside</th><td class="num">{number(rest, 4)}</td></tr>}
      </tbody>
    </table>
  );
  return (
    <section class="card stack" aria-label="node">
      <div>
        <h2>{node.text}</h2>
        <code>{node.address}</code>
        <p>adds <Num addr={`circuit.${node.address}`} v={node.value} as="signed" /> to the answer, {percent(Math.abs(share(circuit, node.value)))} of it</p>
      </div>
      {looks.map((one) => <p key={one.address}>{link(one.address)}</p>)}
      {node.head && <p>where {link(node.head)} looks</p>}
      {node.sum !== null && table("it reads", into, "writer")}
      {out.length > 0 && table("read by", out, "reader")}
    </section>
  );
}
