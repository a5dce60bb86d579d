// One text under several tokenizers, side by side: where each cuts, what it costs, what it loses; and their vocabularies.
import { useMemo, useState } from "preact/hooks";
import { number, visible } from "../core/format";
import { label, pieces } from "../core/pieces";
import { models, useLoaded, vocabulary } from "../core/run";
import { bytes } from "../core/safetensors";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { Cut, KnownTokenizer, Steps as Told } from "../core/types";
import { shown } from "../core/whatif";
import { Num } from "../kernel/Num";
import "./tokens.css";

const MOST = 800; // tokens that are drawn of each
const SHOW_TOKENS = 'English and CAPITALIZATION\n🎵 鸟\nshow_tokens False None elif == >= else: two tabs:"\t\t" Three tabs: "\t\t\t"\n12.0*50=600';
const PRESETS: [string, string][] = [
  ["test text", SHOW_TOKENS],
  ["raw text", "This raw text will be tokenized"],
  ["a sentence", "The animal didn't cross the street because it was too tired"],
  ["numbers", "3.14159 + 2,718 = 2721.14159; 1,000,000 / 7 = 142857.14"],
  ["languages", "Ein Mann fährt Rad. Привет, мир! 你好，世界。 مرحبا بالعالم"],
  ["code", "def add(a: int, b: int) -> int:\n    return a + b  # sum\n"],
];
const text = state.param("tt", SHOW_TOKENS, (one) => one);
const chosen = state.param<string[]>("tn", [], (one) => (one ? one.split(",") : []), (list) => (list ?? []).join(","));

type Read = Cut & { text: string; refused?: string }; // what was read

/** A text under one tokenizer; what cannot be is said in its own panel. */
async function cut(name: string, whole: string): Promise<Read> {
  try {
    return { ...(await transport.post<Cut[]>("api/tokenize", { text: whole, tokenizers: [name] }))[0], text: whole };
  } catch (error) {
    return { name, vocab: 0, algorithm: "", tokens: [], text: whole, refused: (error as Error).message };
  }
}

export function Tokens() {
  const listing = useLoaded(() => transport.json<KnownTokenizer[]>("api/tokenizers"), []);
  const [ids, setIds] = useState(true), [raw, setRaw] = useState(false);
  const asked = chosen.value.length ? chosen.value : (models.value ?? []).slice(0, 3).map((one) => one.name);
  const loaded = useLoaded(() => (asked.length && text.value ? Promise.all(asked.map((name) => cut(name, text.value))) : null), [text.value, asked.join()]);
  const all = loaded.data ?? [];
  const counts = all.filter((one) => one.tokens.length && one.text === text.value).map((one) => one.tokens.length);
  const spread = counts.length > 1 ? Math.max(...counts) / Math.min(...counts) - 1 : null;
  const edges = useMemo(() => all.map((one) => new Set(one.tokens.filter((token) => token.end).map((token) => token.start!))), [all]);
  return (
    <div class="stack tokenscreen">
      <section class="card" aria-label="text">
        <div class="row">
          <h2>One text, several tokenizers</h2>
          {PRESETS.map(([name, one]) => <button key={name} class="quiet" aria-pressed={text.value === one} onClick={() => (text.value = one)}>{name}</button>)}
        </div>
        <textarea aria-label="the text to cut" value={text.value} spellcheck={false} dir="auto" onInput={(event) => (text.value = event.currentTarget.value)} />
        <div class="row">
          {(listing.data ?? []).map((one) => (
            <button
              key={one.name} disabled={!one.available} aria-pressed={asked.includes(one.name)} title={one.available ? one.title : `not on this machine; get it with: ${one.command}`}
              onClick={() => (chosen.value = asked.includes(one.name) ? asked.filter((other) => other !== one.name) : [...asked, one.name].slice(-12))}
            >{one.name}</button>
          ))}
        </div>
        <div class="row">
          <label><input type="checkbox" checked={ids} onChange={(event) => setIds(event.currentTarget.checked)} /> ids</label>
          <label><input type="checkbox" checked={raw} onChange={(event) => setRaw(event.currentTarget.checked)} /> bytes</label>
          {spread !== null && <span>the longest has <Num addr="tokenize.spread" v={spread} as="percent" /> more tokens than the shortest</span>}
          <span class="soft">thick orange edge: nobody else cuts here</span>
        </div>
        {!listing.data && !listing.error && <p class="note">The tokenizers on this machine are looked up …</p>}
        {(loaded.error || listing.error) && <p class="failure" role="alert">{loaded.error || listing.error}</p>}
      </section>
      <div class="panels">
        {all.map((one, at) => <Panel key={one.name} read={one} ids={ids} raw={raw} others={edges.filter((_, other) => other !== at)} />)}
      </div>
      {asked.length > 0 && <Vocabulary names={asked} />}
    </div>
  );
}

function Panel({ read, ids, raw, others }: { read: Read; ids: boolean; raw: boolean; others: Set<number>[] }) {
  const made = useMemo(() => pieces(read.tokens), [read]), [at, pick] = useState<number | null>(null);
  const characters = Array.from(read.text).length, late = read.text !== text.value, unknown = read.tokens.filter((one) => one.unk).length;
  return (
    <section class={`card ${late ? "late" : ""}`} aria-label={`tokenizer ${read.name}`} aria-busy={late}>
      <h2 class="mono">{read.name}</h2>
      <div class="facts">
        <span>{read.algorithm}</span>
        {read.vocab > 0 && <span>vocabulary <Num addr={`tokenizer.${read.name}.vocab`} v={read.vocab} /></span>}
        {late ? <span>reads the new text …</span> : <>
        {!read.refused && <span><Num addr={`tokenize.${read.name}.tokens`} v={read.tokens.length} /> tokens</span>}
        {read.tokens.length > 0 && <span><Num addr={`tokenize.${read.name}.characters_per_token`} v={characters / read.tokens.length} digits={3} /> characters each</span>}
        {unknown > 0 && <span class="lost">{unknown} unknown: text is lost</span>}
        {read.round_trip === false && unknown === 0 && <span class="lost">decoding does not give the same text back</span>}
        {read.round_trip && <span>✓ decodes to the same text</span>}
        </>}
      </div>
      {read.refused && <p class="failure">{read.refused}</p>}
      <div class="pieces" role="group" aria-label={`tokens of ${read.name}`} onKeyDown={arrows}>
        {made.slice(0, MOST).map((one) => {
          const token = one.token, alone = others.length > 0 && !!token.end && !!token.start && others.every((edges) => !edges.has(token.start!));
          return (
            <button key={one.at} tabIndex={one.at === (at ?? 0) ? 0 : -1} aria-pressed={one.at === at} onClick={() => pick(one.at === at ? null : one.at)} class={`piece ${token.special ? "special" : ""} ${token.unk ? "unk" : ""} ${alone ? "alone" : ""}`} data-addr={`tokenize.${read.name}[${one.at}]`} data-v={token.id} title={`token ${one.at}: id ${token.id}, characters ${token.start} to ${token.end}; click: how it came to be`}>
              {label(one)}
              {ids && <small>{token.id}</small>}
              {raw && <small>{Array.from(bytes(token.bytes), (byte) => byte.toString(16).padStart(2, "0")).join(" ")}</small>}
            </button>
          );
        })}
      </div>
      {at !== null && at < read.tokens.length && transport.live && <Steps name={read.name} at={at} whole={read.text} />}
      {made.length > MOST && <p class="soft">the first {MOST} of {made.length}</p>}
    </section>
  );
}

function arrows(event: KeyboardEvent) {
  const next = (event.target as HTMLElement)[event.key === "ArrowRight" ? "nextElementSibling" : "previousElementSibling"] as HTMLElement | null;
  if (!/^Arrow(Left|Right)$/.test(event.key)) return;
  next?.focus();
  event.preventDefault();
  event.stopPropagation();
}

/** How the word that a token stands in came to its pieces. */
function Steps({ name, at, whole }: { name: string; at: number; whole: string }) {
  const loaded = useLoaded(() => transport.post<Told>("api/tokenize/steps", { tokenizer: name, text: whole, at }).then((told) => told, (problem) => ({ refused: (problem as Error).message })), [name, at, whole]);
  const told = loaded.data;
  if (!told) return <p class="soft">…</p>;
  if ("refused" in told) return <p class="failure" role="alert">{told.refused}</p>;
  const say = (piece: string) => visible(told.shown[piece] ?? piece) || "∅", row = (some: readonly string[], mark = "") => some.map((piece, nth) => <span key={nth} class={`piece ${piece === mark ? "now" : ""}`}>{say(piece)}</span>);
  return (
    <div class="scroll tall" tabIndex={0} role="region" aria-label={`steps to ${told.word}`}>
      <table class="steps">
        <tbody>
          <tr><th scope="row" class="left">{told.algorithm}</th><td class="left">{row(told.start)}</td></tr>
          {told.steps.map((step, nth) => (
            <tr key={nth}>
              {step.left !== undefined && <><th scope="row" class="left">merge <span class="num" data-v={step.rank}>{step.rank}</span>: {say(step.left)} + {say(step.right!)}</th><td class="left">{row(step.pieces!, (told.steps[nth].pieces ?? []).find((piece) => !(nth ? told.steps[nth - 1].pieces! : told.start).includes(piece)))}</td></>}
              {step.rest !== undefined && <><th scope="row" class="left"><span class="mono">{step.rest}</span>: the longest entry at its head, {step.tried} tried</th><td class="left">{step.piece === null ? "none: unknown" : row([step.piece!], step.piece!)}</td></>}
              {step.score !== undefined && <><th scope="row" class="left">{nth ? "another way" : "the best way"}, log p <span class="num" data-v={step.score}>{number(step.score, 5)}</span></th><td class="left">{row(step.pieces!, "")}</td></>}
            </tr>
          ))}
          <tr><th scope="row" class="left">{told.whole ? "the word is an entry of its own" : "ids"}</th><td class="left">{told.ids.join(" ")}</td></tr>
        </tbody>
      </table>
    </div>
  );
}

const LISTED = 120;

function Vocabulary({ names }: { names: string[] }) {
  const [name, setName] = useState(names[0]), [sought, setSought] = useState("");
  const now = names.includes(name) ? name : names[0];
  const loaded = useLoaded(async () => ({ words: await vocabulary(now), name: now }), [now]);
  const words = loaded.data?.name === now ? loaded.data.words : null;
  const found = useMemo(() => {
    if (!words) return [];
    const all = words.map((one, id) => ({ id, word: shown(one), length: one.length }));
    if (!sought) return all.sort((a, b) => b.length - a.length).slice(0, LISTED);
    const what = visible(sought);
    return all.filter((one) => one.word.includes(what) || String(one.id) === sought).sort((a, b) => a.length - b.length);
  }, [words, sought]);
  return (
    <section class="card" aria-label="vocabulary">
      <div class="row">
        <h2>Vocabulary of</h2>
        <select aria-label="whose vocabulary" value={now} onChange={(event) => setName(event.currentTarget.value)}>{names.map((one) => <option key={one}>{one}</option>)}</select>
        <input aria-label="find in the vocabulary" placeholder="find: a text, or an id" value={sought} onInput={(event) => setSought(event.currentTarget.value)} />
        {words && <span class="soft">{sought ? `${number(found.length)} of ${number(words.length)} hold it` : "the longest"}</span>}
      </div>
      {loaded.error && <p class="failure" role="alert">{loaded.error}</p>}
      <div class="found" tabIndex={0} role="region" aria-label="tokens found">
        {found.slice(0, LISTED).map((one) => <span key={one.id}>{one.word} <small>{one.id}</small></span>)}
      </div>
    </section>
  );
}
