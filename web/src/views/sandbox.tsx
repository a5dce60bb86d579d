// The arithmetic of attention with numbers that you type; no model is asked.
import { useState } from "preact/hooks";
import { number } from "../core/format";
import * as state from "../core/state";
import { softmax } from "../core/whatif";
import { Matrix } from "../kernel/matrix";

const CARDS: Record<string, [string, () => any]> = { softmax: ["Softmax", Softmax], av: ["Attention of a few words", Words], pos_sin: ["Positions by sine and cosine", Sines], rope: ["Rotation by position", Rope] };
const LIKE: Record<string, string> = { qk: "av", mask: "av", scale: "av", topk: "softmax", router: "softmax", lookup: "pos_sin" };
const open = state.param("sb", "", (one) => one);

/** Cards without a model; the one that fits the operation comes first. */
export function Sandbox({ kind }: { kind: string }) {
  const fits = CARDS[kind] ? kind : LIKE[kind], [title, Card] = CARDS[open.value] ?? [];
  return (
    <section class="sandbox stack" aria-label="sandbox">
      <div class="row">
        <span class="soft">try it with your own numbers:</span>
        {Object.entries(CARDS).sort(([a], [b]) => Number(b === fits) - Number(a === fits)).map(([name, [said]]) => <button key={name} class="quiet" aria-pressed={open.value === name} onClick={() => (open.value = open.value === name ? "" : name)}>{said}</button>)}
      </div>
      {Card && <><h3>{title}</h3><Card /></>}
    </section>
  );
}

const numbers = (text: string) => text.split(/[\s,;]+/).filter(Boolean).map(Number);
const shown = (v: number, digits = 3) => <span class="num" data-v={v}>{Number.isFinite(v) ? v.toFixed(digits) : number(v)}</span>;
const WRONG = <p class="failure" role="alert">Type numbers with spaces or commas between them.</p>;

function Slider({ name, value, set, min, max, step = 1 }: { name: string; value: number; set: (v: number) => void; min: number; max: number; step?: number }) {
  return <label class="row">{name} <input type="range" aria-label={name} min={min} max={max} step={step} value={value} style={{ flex: 1 }} onInput={(event) => set(Number(event.currentTarget.value))} /> {shown(value, step < 1 ? 2 : 0)}</label>;
}

function Softmax() {
  const [typed, type] = useState("2, 1, 0"), [heat, setHeat] = useState(1), scores = numbers(typed), warm = scores.map((v) => v / heat), most = Math.max(...warm), shares = softmax(warm), sum = warm.reduce((a, v) => a + Math.exp(v - most), 0);
  return (
    <>
      <label class="row">scores <input aria-label="scores" style={{ flex: 1 }} value={typed} onInput={(event) => type(event.currentTarget.value)} /></label>
      <Slider name="temperature" value={heat} set={setHeat} min={0.05} max={4} step={0.05} />
      {!scores.length || scores.some(Number.isNaN) ? WRONG : (
        <table>
          <thead><tr><th>score</th><th>e^(score − greatest)</th><th>share</th><th /></tr></thead>
          <tbody>{scores.map((v, at) => <tr key={at}><td>{shown(v, 2)}</td><td>{shown(Math.exp(warm[at] - most))}</td><td><b>{shown(shares[at])}</b></td><td class="meter"><i style={{ width: `${100 * shares[at]}%` }} /></td></tr>)}</tbody>
          <tfoot><tr><th /><td>Σ {shown(sum)}</td><td>Σ {shown(shares.reduce((a, v) => a + v, 0))}</td><td /></tr></tfoot>
        </table>
      )}
    </>
  );
}

/** softmax(X Xᵀ / √d) X of vectors that are typed: each word is its own query, key and value. */
function Words() {
  const [typed, type] = useState("How 1 0 1 0\nAre 0 2 0 2\nYou 1 1 1 1"), [causal, setCausal] = useState(false);
  const rows = typed.split("\n").map((line) => line.trim().split(/[\s,;]+/)).filter((line) => line[0]), words = rows.map(([word]) => word), X = rows.map((row) => row.slice(1).map(Number)), d = X[0]?.length ?? 0;
  const wrong = !d || X.some((row) => row.length !== d || row.some(Number.isNaN));
  const scores = wrong ? [] : X.map((q, t) => X.map((k, s) => (causal && s > t ? -Infinity : q.reduce((sum, v, i) => sum + v * k[i], 0) / Math.sqrt(d))));
  const pattern = scores.map((row) => Array.from(softmax(row)));
  const table = (name: string, of: number[][], heads: string[]) => (
    <div class="scroll" tabIndex={0} role="region" aria-label={name}><table><thead><tr><th class="left">{name}</th>{heads.map((one, at) => <th key={at}>{one}</th>)}</tr></thead>
      <tbody>{of.map((row, t) => <tr key={t}><th scope="row" class="left mono">{words[t]}</th>{row.map((v, at) => <td key={at} class={v === -Infinity ? "hatched" : ""}>{shown(v)}</td>)}</tr>)}</tbody></table></div>
  );
  return (
    <>
      <textarea aria-label="a word and its vector on each line" rows={4} class="mono" spellcheck={false} value={typed} onInput={(event) => type(event.currentTarget.value)} />
      <label><input type="checkbox" checked={causal} onChange={(event) => setCausal(event.currentTarget.checked)} /> causal mask</label>
      {wrong ? <p class="failure" role="alert">Type a word and as many numbers on each line as on the first.</p> : (
        <>
          {table("scores q·k / √d", scores, words)}
          {table("weights", pattern, words)}
          {table("what comes out", pattern.map((row) => X[0].map((_, i) => row.reduce((sum, a, s) => sum + a * X[s][i], 0))), X[0].map((_, i) => String(i)))}
        </>
      )}
    </>
  );
}

function Sines() {
  const [N, setN] = useState(32), [half, setHalf] = useState(16), d = 2 * half, data = new Float32Array(N * d);
  for (let p = 0; p < N; p++) for (let i = 0; i < half; i++) {
    const angle = p / 10000 ** ((2 * i) / d);
    data[p * d + 2 * i] = Math.sin(angle);
    data[p * d + 2 * i + 1] = Math.cos(angle);
  }
  return (
    <>
      <Slider name="positions" value={N} set={setN} min={2} max={128} />
      <Slider name="pairs of dimensions" value={half} set={setHalf} min={1} max={64} />
      <Matrix data={data} rows={N} cols={d} scale="diverging" range={[-1, 1]} height={220} label="sine and cosine of each position" title="positions" rowName="position" colName="dimension" addr={(row, col) => `sandbox.sin[${row},${col}]`} say={(row, col, v) => `${col % 2 ? "cos" : "sin"}(${row} / 10000^(${col - (col % 2)}/${d})) = ${number(v, 4)}`} />
    </>
  );
}

function Rope() {
  const [place, setPlace] = useState(3), [pair, setPair] = useState(0), [typed, type] = useState("1, 0"), d = 64, base = 10000, [a, b] = numbers(typed), angle = place * base ** ((-2 * pair) / d);
  const x = a * Math.cos(angle) - b * Math.sin(angle), y = a * Math.sin(angle) + b * Math.cos(angle), most = Math.hypot(a, b) || 1, at = (u: number, v: number) => `M0 0L${(40 * u) / most} ${(-40 * v) / most}`;
  if (numbers(typed).length !== 2 || Number.isNaN(a + b)) return <><input aria-label="a pair of numbers" value={typed} onInput={(event) => type(event.currentTarget.value)} />{WRONG}</>;
  return (
    <>
      <label class="row">a pair of a query <input aria-label="a pair of numbers" value={typed} onInput={(event) => type(event.currentTarget.value)} /></label>
      <Slider name="position" value={place} set={setPlace} min={0} max={64} />
      <Slider name="which pair of 32" value={pair} set={setPair} min={0} max={31} />
      <div class="row">
        <svg viewBox="-44 -44 88 88" width="110" role="img" aria-label="the pair before and after"><circle r="40" fill="none" stroke="var(--line)" /><path d={at(a, b)} stroke="var(--soft)" stroke-width="2" /><path d={at(x, y)} stroke="var(--accent)" stroke-width="3" /></svg>
        <p>θ = {place} · {base}^(−2·{pair}/{d}) = {shown(angle)}<br />({shown(a, 2)}, {shown(b, 2)}) → ({shown(x)}, {shown(y)})<br /><span class="soft">the length stays {shown(Math.hypot(x, y))}; two rotated vectors' product depends on how far they are apart alone</span></p>
      </div>
    </>
  );
}
