// The same text read by two models, or by two checkpoints of one: answers, surprise at each token, heads, states.
import { useMemo, useState } from "preact/hooks";
import { at as place, isAttention, nameRun, short } from "../core/address";
import { readable, visible } from "../core/format";
import { aligned, label, pieces, type Stretch } from "../core/pieces";
import { logits, models, run, thumbs, useLoaded, values } from "../core/run";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { InContexts, Run, Training } from "../core/types";
import { type Answer, answerOf, answerPlace, hasWords, softmax, wordsOf } from "../core/whatif";
import { Num } from "../kernel/Num";
import "./compare.css";
import { Heads } from "./train";

const POSITIONS = 32; // the last ones, whose whole rows of logits are read
const other = state.param("cb", "", (one) => one);

export function Compare() {
  const made = run.value!;
  const trainings = useLoaded(() => transport.json<Training[]>("api/train"), []);
  const names = useMemo(() => [...new Set([...(models.value ?? []).map((one) => one.name), ...(trainings.data ?? []).flatMap((one) => one.checkpoints.map((two) => two.model))])], [models.value, trainings.data]);
  const second = names.includes(other.value) ? other.value : (names.find((one) => one !== made.model) ?? "");
  const loaded = useLoaded(async () => {
    if (!second) return null;
    const pair = models.value?.find((one) => one.name === second.split("@")[0])?.abilities.source, read = made.source_tokens ? state.source.value : state.prompt.value;
    // Two that read a source have the same one; beside one that does not, the source is what the other reads.
    const body = pair ? { model: second, source: read, text: made.source_tokens ? state.prompt.value : "" } : { model: second, text: read };
    const theirs = await transport.post<Run>("api/runs", body);
    nameRun(theirs);
    return { first: made.run, run: theirs };
  }, [made.run, second]);
  const b = loaded.data?.first === made.run && loaded.data.run.model === second ? loaded.data.run : null;
  return (
    <div class="stack compare">
      <div class="row">
        <h2>A <span class="mono">{made.model}</span></h2>
        <label>B{" "}
          <select value={second} onChange={(event) => (other.value = event.currentTarget.value)}>{names.map((one) => <option key={one} value={one}>{one}</option>)}</select>
        </label>
        <span class="soft">the same text for both; A is the model above</span>
      </div>
      {!second && <p class="note">Only one model is here. Start the page with two, or with --run and the folder of a training, whose checkpoints can be compared.</p>}
      {loaded.error && <p class="failure" role="alert">{loaded.error}</p>}
      {b && <Both a={made} b={b} />}
      {transport.live && models.value?.find((one) => one.name === made.model)?.abilities.edits && <Contexts model={made.model} />}
    </div>
  );
}

function Both({ a, b }: { a: Run; b: Run }) {
  const same = a.tokens.length === b.tokens.length && a.tokens.every((one, at) => one.id === b.tokens[at].id && one.bytes === b.tokens[at].bytes);
  return (
    <>
      {!same && <p class="note">The two cut the text differently ({a.tokens.length} and {b.tokens.length} tokens); they are compared where both cut it.</p>}
      {hasWords(a) && hasWords(b) && (
        <div class="halves">
          <Answers name="A" made={a} />
          <Answers name="B" made={b} />
        </div>
      )}
      {hasWords(a) && hasWords(b) && a.task === "causal" && b.task === "causal" && (same ? <Surprise a={a} b={b} same={same} /> : <Stretches a={a} b={b} />)}
      <div class="halves">
        {[a, b].map((one, at) => (
          <section key={at} class="card" aria-label={`heads of ${"AB"[at]}`}>
            <h2>{"AB"[at]}: every head</h2>
            <Heads run={one.run} />
          </section>
        ))}
      </div>
      {same && <Apart a={a} b={b} />}
    </>
  );
}

function Answers({ name, made }: { name: string; made: Run }) {
  const place = answerPlace(made);
  const loaded = useLoaded(async () => {
    const answer: Answer = await answerOf(made, place);
    return { answer, words: await wordsOf(answer.top, made.model).catch(() => answer.top.map((id) => `#${id}`)) };
  }, [made.run, place]);
  const told = loaded.data?.answer.run.run === made.run ? loaded.data : null;
  return (
    <section class="card" aria-label={`answer of ${name}`}>
      <h2>{name}: next word at {place}</h2>
      {loaded.error && <p class="failure" role="alert">{loaded.error}</p>}
      {told && (
        <div class="bars">
          {told.answer.top.map((id, at) => {
            const p = told.answer.probabilities[id];
            return [<span key={`w${id}`} class="name">{told.words[at]}</span>, <span key={`b${id}`} class="track"><i class="final" style={{ width: `${100 * p}%` }} /></span>, <Num key={`n${id}`} addr={`softmax(${made.run}:logits[${place}])[${id}]`} v={p} as="percent" />];
          })}
        </div>
      )}
    </section>
  );
}

interface Place {
  at: number;
  a: number | null;
  b: number | null;
  kl: number | null;
}

/** -log p of each next token under both, and KL(A || B) where both have the same words. */
async function surprise(a: Run, b: Run, same: boolean): Promise<Place[]> {
  const length = same ? a.tokens.length : 0, from = Math.max(0, length - POSITIONS), found: Place[] = [];
  for (let at = from; at < length; at++) {
    const [p, q] = (await Promise.all([logits(a.run, at), logits(b.run, at)])).map(softmax);
    const next = a.tokens[at + 1]?.id;
    const kl = p.length === q.length ? p.reduce((sum, v, i) => (v > 0 ? sum + v * Math.log(v / q[i]) : sum), 0) : null;
    found.push({ at, a: next === undefined ? null : -Math.log(p[next]), b: next === undefined ? null : -Math.log(q[next]), kl });
  }
  return found;
}

function Surprise({ a, b, same }: { a: Run; b: Run; same: boolean }) {
  const loaded = useLoaded(() => (same ? surprise(a, b, same) : null), [a.run, b.run]);
  const list = loaded.data, words = useMemo(() => pieces(a.tokens), [a.run]);
  if (!list?.length) return null;
  const most = Math.max(...list.flatMap((one) => [one.a ?? 0, one.b ?? 0]), 1e-9), far = Math.max(...list.map((one) => one.kl ?? 0), 1e-9);
  const meter = (v: number | null, top: number) => <td class="meter"><i style={{ width: `${(100 * (v ?? 0)) / top}%` }} /></td>;
  return (
    <section class="card" aria-label="token by token">
      <h2>Token by token: surprise −log p of the next one (nats), and KL(A ‖ B)</h2>
      <div class="scroll tall" tabIndex={0} role="region" aria-label="surprise at each token">
        <table class="positions">
          <thead><tr><th class="left">after</th><th class="left">next</th><th>A</th><th /><th>B</th><th /><th>KL</th><th /></tr></thead>
          <tbody>
            {list.map((one) => (
              <tr key={one.at}>
                <td class="left">{label(words[one.at])}</td>
                <td class="left">{one.a === null ? "" : label(words[one.at + 1])}</td>
                <td>{one.a !== null && <Num addr={`surprise(${a.run})[${one.at}]`} v={one.a} digits={4} />}</td>{meter(one.a, most)}
                <td>{one.b !== null && <Num addr={`surprise(${b.run})[${one.at}]`} v={one.b} digits={4} />}</td>{meter(one.b, most)}
                <td>{one.kl !== null && <Num addr={`kl(${a.run},${b.run})[${one.at}]`} v={one.kl} digits={4} />}</td>{meter(one.kl, far)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

const STRETCHES = 64; // the last ones

/** The sum of -log p of a stretch's tokens, each after all before it; null where the first has nothing before it. */
async function surprises(made: Run, places: readonly number[][]): Promise<(number | null)[]> {
  return Promise.all(places.map(async (some) => {
    if (!some.length || some[0] === 0) return null;
    const rows = await Promise.all(some.map(async (at) => softmax(await logits(made.run, at - 1))[made.tokens[at].id]));
    return rows.reduce((sum, p) => sum - Math.log(p), 0);
  }));
}

/** Two models that cut the text differently, side by side where both cut it. */
function Stretches({ a, b }: { a: Run; b: Run }) {
  const list = useMemo(() => aligned(a.tokens, b.tokens).slice(-STRETCHES), [a.run, b.run]);
  const loaded = useLoaded(async () => ({ list, a: await surprises(a, list.map((one) => one.a)), b: await surprises(b, list.map((one) => one.b)) }), [list]);
  const told = loaded.data?.list === list ? loaded.data : null, letters = Array.from(state.prompt.value);
  if (!told || !list.length) return loaded.error ? <p class="failure" role="alert">{loaded.error}</p> : null;
  const both = list.map((_, at) => at).filter((at) => told.a[at] !== null && told.b[at] !== null);
  const most = Math.max(1e-9, ...told.a.map((v) => v ?? 0), ...told.b.map((v) => v ?? 0));
  const characters = both.reduce((sum, at) => sum + list[at].end - list[at].start, 0);
  const each = (side: (number | null)[]) => both.reduce((sum, at) => sum + side[at]!, 0) / Math.LN2 / Math.max(1, characters);
  const cells = (side: "a" | "b", made: Run, one: Stretch, at: number) => [
    <td key={`${side}n`}>{one[side].length}</td>,
    <td key={side}>{told[side][at] !== null && <Num addr={`surprise(${made.run})[${one[side].join("+")}]`} v={told[side][at]} digits={4} />}</td>,
    <td key={`${side}m`} class="meter"><i style={{ width: `${(100 * (told[side][at] ?? 0)) / most}%` }} /></td>,
  ];
  return (
    <section class="card" aria-label="stretch by stretch">
      <h2>Where both cut the text: surprise −log p of a stretch, the sum of its tokens (nats)</h2>
      <p>bits a character: A <Num addr={`bits(${a.run})`} v={each(told.a)} digits={4} /> · B <Num addr={`bits(${b.run})`} v={each(told.b)} digits={4} /> <span class="soft">of the {characters} characters that both foretell{list.length === STRETCHES && ", at the end of the text"}</span></p>
      <div class="scroll tall" tabIndex={0} role="region" aria-label="surprise at each stretch">
        <table class="positions">
          <thead><tr><th class="left">text</th><th>tokens of A</th><th>A</th><th /><th>tokens of B</th><th>B</th><th /></tr></thead>
          <tbody>{list.map((one, at) => <tr key={one.end}><td class="left">{visible(letters.slice(one.start, one.end).join(""))}</td>{cells("a", a, one, at)}{cells("b", b, one, at)}</tr>)}</tbody>
        </table>
      </div>
    </section>
  );
}

const contextWord = state.param("cw", "bank", (one) => one), contextOne = state.param("c1", "Bank has lot of money", (one) => one), contextTwo = state.param("c2", "That river bank is beautiful", (one) => one);
const contextAsked = state.param("cx", false, (one) => one === "1", (on) => (on ? "1" : "0"));

/** One word in two texts: how alike its vectors are, layer by layer. */
function Contexts({ model }: { model: string }) {
  const [asked, ask] = useState<[string, string, string]>([contextWord.value, contextOne.value, contextTwo.value]);
  const loaded = useLoaded(() => (contextAsked.value ? transport.post<InContexts>("api/contexts", { model, word: asked[0], texts: asked.slice(1) }) : null), [model, asked]);
  const told = loaded.data, box = (signal: typeof contextWord, name: string, size: number) => <input aria-label={name} placeholder={name} size={size} style={{ flex: size > 12 ? 1 : undefined }} value={signal.value} onInput={(event) => (signal.value = event.currentTarget.value)} />;
  return (
    <section class="card stack" aria-label="one word in two texts">
      <h2>One word in two texts <span class="soft mono">{model}</span></h2>
      <form class="row" onSubmit={(event) => (event.preventDefault(), (contextAsked.value = true), ask([contextWord.value, contextOne.value, contextTwo.value]))}>
        {box(contextWord, "the word", 10)} in {box(contextOne, "one text", 28)} and in {box(contextTwo, "another text", 28)} <button>compare</button>
      </form>
      {loaded.error && <p class="failure" role="alert">{loaded.error}</p>}
      {told && (
        <table>
          <thead><tr><th class="left">after</th><th class="left">cosine of its two vectors</th><th /><th title="the mean cosine of the word in one text with each other token of the other">with other words</th></tr></thead>
          <tbody>{told.depths.map((path, at) => <tr key={path}><th scope="row" class="left" title={path}>{short(path)}</th><td class="meter"><i style={{ width: `${Math.max(0, 100 * told.cosine[at])}%` }} /></td><td><Num addr={`contexts(${model}).${path}`} v={told.cosine[at]} digits={4} /></td><td><Num addr={`contexts(${model}).${path} others`} v={told.others[at]} digits={4} /></td></tr>)}</tbody>
        </table>
      )}
      {told && <p class="soft">read as {told.pieces.map((some, at) => `${some.map(readable).join(" ")} at ${told.positions[at].join(", ")}`).join(" and ")}. {told.notes.join(" ")}</p>}
    </section>
  );
}

/** Cosine of the states after each block at the last token, and the heads that differ most; for models of one shape. */
async function apart(a: Run, b: Run) {
  const known = new Map(b.plan.map((op) => [op.id, op])), at = a.tokens.length - 1;
  const blocks = a.plan.filter((op) => op.id.endsWith(".resid") && op.id.startsWith("decoder") === !!a.plan.some((one) => one.id.startsWith("decoder")) && String(known.get(op.id)?.shape) === String(op.shape));
  const cosines = await Promise.all(blocks.map(async (op) => {
    const [x, y] = await Promise.all([values(a.run, `${op.id}[${at}]`), values(b.run, `${op.id}[${at}]`)]);
    let xy = 0, xx = 0, yy = 0;
    x.data.forEach((v, i) => ((xy += v * y.data[i]), (xx += v * v), (yy += y.data[i] ** 2)));
    return { address: `${op.id}[${at}]`, layer: op.layer, cosine: xy / Math.sqrt(xx * yy) };
  }));
  const heads: { address: string; layer: number | null; head: number; mean: number }[] = [];
  const patterns = a.plan.filter(isAttention);
  for (const [nth, op] of patterns.entries()) {
    if (String(known.get(op.id)?.shape) !== String(op.shape)) continue;
    const [x, y] = (await Promise.all([thumbs(a.run, nth, nth + 1), thumbs(b.run, nth, nth + 1)])).map((one) => one.tensors[op.id]);
    const size = x.data.length / x.shape[0];
    for (let head = 0; head < x.shape[0]; head++) {
      let sum = 0;
      for (let i = head * size; i < (head + 1) * size; i++) sum += Math.abs((x.data[i] / 255) ** 2 - (y.data[i] / 255) ** 2);
      heads.push({ address: place(op, head), layer: op.layer, head, mean: sum / x.shape[1] });
    }
  }
  return { cosines, heads: heads.sort((one, two) => two.mean - one.mean).slice(0, 10) };
}

function Apart({ a, b }: { a: Run; b: Run }) {
  const loaded = useLoaded(async () => ({ told: await apart(a, b).catch(() => null), runs: a.run + b.run }), [a.run, b.run]);
  const told = loaded.data?.runs === a.run + b.run ? loaded.data.told : null;
  if (!told) return null;
  return (
    <div class="halves">
      {told.cosines.length > 0 && (
        <section class="card" aria-label="states">
          <h2>Cosine of the two residual streams, last token</h2>
          <table>
            <tbody>{told.cosines.map((one) => <tr key={one.address}><th scope="row" class="left" title={one.address}>{short(one.address)}</th><td class="meter"><i style={{ width: `${Math.max(0, 100 * one.cosine)}%` }} /></td><td><Num addr={`cosine(${a.run},${b.run}) ${one.address}`} v={one.cosine} digits={4} /></td></tr>)}</tbody>
          </table>
        </section>
      )}
      {told.heads.length > 0 && (
        <section class="card" aria-label="heads that differ">
          <h2>Heads that differ most</h2>
          <p class="soft">summed |A − B| of a row's weights, mean of all rows; 2 is nothing in common</p>
          <table>
            <tbody>{told.heads.map((one) => (
              <tr key={one.address}>
                <th scope="row" class="left"><button class="quiet" title={one.address} onClick={() => ((state.layer.value = one.layer), (state.head.value = one.head), (state.view.value = "attention"))}>layer {one.layer}, head {one.head}</button></th>
                <td class="meter"><i style={{ width: `${50 * one.mean}%` }} /></td>
                <td><Num addr={`difference(${a.run},${b.run}) ${one.address}`} v={one.mean} digits={3} /></td>
              </tr>
            ))}</tbody>
          </table>
        </section>
      )}
    </div>
  );
}
