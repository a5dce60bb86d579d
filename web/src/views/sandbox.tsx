// The arithmetic of attention with numbers that you type; no model is asked.
import { useState } from "preact/hooks";
import { number } from "../core/format";
import * as state from "../core/state";
import { angle as angleOf, attention, RULES, sines, softmax, turned } from "../core/arithmetic";
import { sample } from "../core/sampler";
import { Matrix } from "../kernel/matrix";

interface Given { start?: string }

/** name -> title, component; `start` is what stands in its box at first. */
export const CARDS: Record<string, [string, (given: Given) => any]> = {
  softmax: ["Softmax", Softmax], av: ["Attention of a few words", Words], mask: ["Who may look at whom", Hidden], pos_sin: ["Positions by sine and cosine", Sines], rope: ["Rotation by position", Rope], sampling: ["From scores to a token", Draw],
};
const LIKE: Record<string, string> = { qk: "av", scale: "av", topk: "softmax", router: "softmax", lookup: "pos_sin", logits: "sampling" };
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

function Softmax({ start = "2, 1, 0" }: Given) {
  const [typed, type] = useState(start), [heat, setHeat] = useState(1), scores = numbers(typed), warm = scores.map((v) => v / heat), most = Math.max(...warm), shares = softmax(warm), sum = warm.reduce((a, v) => a + Math.exp(v - most), 0);
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
function Words({ start = "How 1 0 1 0\nAre 0 2 0 2\nYou 1 1 1 1" }: Given) {
  const [typed, type] = useState(start), [causal, setCausal] = useState(false);
  const rows = typed.split("\n").map((line) => line.trim().split(/[\s,;]+/)).filter((line) => line[0]), words = rows.map(([word]) => word), X = rows.map((row) => row.slice(1).map(Number)), d = X[0]?.length ?? 0;
  const wrong = !d || X.some((row) => row.length !== d || row.some(Number.isNaN));
  const { scores, pattern, out } = attention(wrong ? [] : X, (t, s) => !causal || s <= t);
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
          {table("what comes out", out, X[0].map((_, i) => String(i)))}
        </>
      )}
    </>
  );
}

function Sines() {
  const [N, setN] = useState(32), [half, setHalf] = useState(16), d = 2 * half, data = sines(N, d);
  return (
    <>
      <Slider name="positions" value={N} set={setN} min={2} max={128} />
      <Slider name="pairs of dimensions" value={half} set={setHalf} min={1} max={64} />
      <Matrix data={data} rows={N} cols={d} scale="diverging" range={[-1, 1]} height={220} label="sine and cosine of each position" title="positions" rowName="position" colName="dimension" addr={(row, col) => `sandbox.sin[${row},${col}]`} say={(row, col, v) => `${col % 2 ? "cos" : "sin"}(${row} / 10000^(${col - (col % 2)}/${d})) = ${number(v, 4)}`} />
    </>
  );
}

function Rope({ start = "1, 0" }: Given) {
  const [place, setPlace] = useState(3), [pair, setPair] = useState(0), [typed, type] = useState(start), d = 64, base = 10000, [a, b] = numbers(typed), angle = angleOf(place, pair, d);
  const [x, y] = turned(a, b, angle), most = Math.hypot(a, b) || 1, at = (u: number, v: number) => `M0 0L${(40 * u) / most} ${(-40 * v) / most}`;
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

/** A rule as a picture, and what it makes of one word's scores: hidden ones are minus infinity before softmax. */
function Hidden({ start = "LLM #s are cool ." }: Given) {
  const [text, setText] = useState(start), [rule, setRule] = useState("causal"), [n, setN] = useState(2), [typed, type] = useState("1 2 0.5 1.5 0.2");
  const words = text.split(/\s+/).filter(Boolean).slice(0, 64), N = words.length, [chosen, choose] = useState(2), query = Math.min(chosen, N - 1);
  const sees = (q: number, k: number) => RULES[rule](q, k, n), given = numbers(typed), wrong = given.length !== N || given.some(Number.isNaN);
  const hidden = given.map((v, k) => (sees(query, k) ? v : -Infinity)), shares = softmax(hidden);
  if (!N) return <><input aria-label="words" value={text} onInput={(event) => setText(event.currentTarget.value)} /><p class="failure" role="alert">Type a few words.</p></>;
  return (
    <>
      <label class="row">words <input aria-label="words" style={{ flex: 1 }} value={text} onInput={(event) => setText(event.currentTarget.value)} /></label>
      <label class="row">rule <select aria-label="rule" value={rule} onChange={(event) => setRule(event.currentTarget.value)}>{Object.keys(RULES).map((one) => <option key={one}>{one}</option>)}</select></label>
      {!["full", "causal"].includes(rule) && <Slider name="its number" value={n} set={setN} min={1} max={Math.max(2, N)} />}
      <Matrix data={Float32Array.from({ length: N * N }, (_, at) => Number(sees(Math.floor(at / N), at % N)))} rows={N} cols={N} scale="sequential" range={[0, 1]} height={Math.min(260, 40 + 24 * N)} rowLabels={words} colLabels={words} rowName="query" colName="key" hollow label="who may look at whom" title="mask" row={query} onLock={(row) => choose(row)} addr={(row, col) => `sandbox.mask[${row},${col}]`} say={(row, col, v) => `“${words[row]}” ${v ? "sees" : "does not see"} “${words[col]}”`} />
      <Slider name="word that asks" value={query} set={choose} min={0} max={N - 1} />
      <label class="row">its scores <input aria-label="scores of the word" style={{ flex: 1 }} value={typed} onInput={(event) => type(event.currentTarget.value)} /></label>
      {wrong ? <p class="failure" role="alert">Type {N} numbers, one for each word.</p> : (
        <div class="scroll" tabIndex={0} role="region" aria-label="scores and shares"><table>
          <thead><tr><th class="left">“{words[query]}” looks at</th>{words.map((one, at) => <th key={at}>{one}</th>)}</tr></thead>
          <tbody>
            <tr><th scope="row" class="left">score, or −∞</th>{hidden.map((v, at) => <td key={at} class={v === -Infinity ? "hatched" : ""}>{shown(v, 2)}</td>)}</tr>
            <tr><th scope="row" class="left">share</th>{Array.from(shares, (v, at) => <td key={at}><b>{shown(v)}</b></td>)}</tr>
          </tbody>
        </table></div>
      )}
    </>
  );
}

/** Temperature, top-k, top-p and a draw, by the sampler that the playground has, on scores that are typed. */
function Draw({ start = "Rome 3\nParis 2\nlove 1\n, 0.5\nbanana -2" }: Given) {
  const [typed, type] = useState(start), [heat, setHeat] = useState(1), [k, setK] = useState(0), [p, setP] = useState(1), [u, setU] = useState(0.5);
  const rows = typed.split("\n").map((line) => /^\s*(.*\S)\s+(\S+)\s*$/.exec(line)).filter((one) => one !== null), words = rows.map((one) => one[1]), logits = Float32Array.from(rows, (one) => Number(one[2]));
  const wrong = !rows.length || rows.length !== typed.split("\n").filter((line) => line.trim()).length || logits.some(Number.isNaN);
  const made = wrong ? null : sample(logits, [], { temperature: heat, top_k: k || null, top_p: p, min_p: null, repetition_penalty: 1 }, u);
  return (
    <>
      <textarea aria-label="a token and its logit on each line" rows={5} class="mono" spellcheck={false} value={typed} onInput={(event) => type(event.currentTarget.value)} />
      <Slider name="temperature (0: the best)" value={heat} set={setHeat} min={0} max={3} step={0.05} />
      <Slider name="top-k (0: off)" value={Math.min(k, rows.length)} set={setK} min={0} max={Math.max(1, rows.length)} />
      <Slider name="top-p (1: off)" value={p} set={setP} min={0.05} max={1} step={0.05} />
      <Slider name="luck" value={u} set={setU} min={0} max={0.99} step={0.01} />
      {!made ? <p class="failure" role="alert">Type a token and a number on each line.</p> : (
        <>
          <table>
            <thead><tr><th class="left">token</th><th>logit</th><th>probability</th><th>warmed</th><th>drawn from</th><th /></tr></thead>
            <tbody>{Array.from(made.order, (id) => <tr key={id}><th scope="row" class="left mono">{words[id]}{id === made.token ? " ←" : ""}</th><td>{shown(logits[id], 2)}</td><td>{shown(made.raw[id])}</td><td>{shown(made.warm[id])}</td><td><b>{shown(made.final[id])}</b></td><td class="meter"><i style={{ width: `${100 * made.final[id]}%` }} /></td></tr>)}</tbody>
          </table>
          <p role="status">“{words[made.token]}” is drawn: luck {u.toFixed(2)} lies between {made.from.toFixed(3)} and {made.to.toFixed(3)} of the shares put end to end in the order typed.</p>
        </>
      )}
    </>
  );
}
