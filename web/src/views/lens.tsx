// What the model would say if it stopped at each depth; words followed through the depths; and who wrote the answer.
import { useMemo, useState } from "preact/hooks";
import { number, signed, visible } from "../core/format";
import { label } from "../core/pieces";
import { card, run, tokens, useLoaded, vocabulary } from "../core/run";
import * as state from "../core/state";
import { shown } from "../core/whatif";
import { transport } from "../core/transport";
import type { Attribution, Lens, Run } from "../core/types";
import { Legend } from "../kernel/matrix";
import { Num } from "../kernel/Num";
import { css, ink, sequential } from "../kernel/palette";
import { CATEGORIES as LIGHT, CATEGORIES_DARK } from "../kernel/palettes";
import "./lens.css";

type Shade = "probability" | "entropy" | "kl";
const SHADES: Record<Shade, string> = { probability: "probability of the word shown", entropy: "entropy (nats)", kl: "KL to the model's own answer (nats)" };
const COLUMNS = 16; // positions of one request
const TOP = 5;

const shade = state.param<Shade>("ls", "probability", (one) => (one in SHADES ? (one as Shade) : "probability"));
const depthAt = state.param<number | null>("ld", null, (one) => (/^\d+$/.test(one) ? Number(one) : null));
const tracked = state.param<(string | number)[]>("lt", [], (one) => {
  try {
    return JSON.parse(one);
  } catch {
    return [];
  }
}, (list) => JSON.stringify(list ?? []));

const depthName = (path: string) => path.replace(/^(?:encoder|decoder)\.(?:blocks|cells)\.(\d+).*$/, "L$1").replace(/^(?:encoder|decoder)\.(embed|out)$/, "$1").replace(/^(encoder|decoder)$/, "out");

export function LensScreen() {
  const made = run.value!;
  const length = made.tokens.length;
  const [from, setFrom] = useState<number | null>(null);
  const asked = state.query.value ?? length - 1;
  const start = Math.max(0, Math.min(from ?? (asked >= length - COLUMNS ? length - COLUMNS : asked - COLUMNS / 2), length - COLUMNS));
  const positions = useMemo(() => Array.from({ length: Math.min(COLUMNS, length) }, (_, i) => start + i), [start, length]);
  const follow = tracked.value;
  const loaded = useLoaded(
    async () => {
      const [lens, words] = await Promise.all([transport.post<Lens>(`api/runs/${made.run}/lens`, { positions, track: follow, top: TOP }), vocabulary(made.model).catch(() => [])]);
      // Words as the tokenizer's bytes have them: a piece may write its space in another way.
      const word = (id: number, piece: string) => (words[id] ? shown(words[id]) : visible(piece));
      lens.top_pieces = lens.top_pieces.map((row, d) => row.map((cell, p) => cell.map((piece, n) => word(lens.top[d][p][n], piece))));
      lens.tracked = lens.tracked.map((one) => ({ ...one, piece: word(one.token, one.piece) }));
      return { lens, run: made.run };
    },
    [made.run, start, JSON.stringify(follow)],
  );
  const lens = loaded.data?.run === made.run ? loaded.data.lens : null;
  return (
    <div class="stack lens">
      {loaded.error && (
        <p class="failure" role="alert">
          {loaded.error} {follow.length > 0 && <button class="quiet" onClick={() => (tracked.value = [])}>follow no words</button>}
        </p>
      )}
      {!lens && !loaded.error && <p class="note">Each depth is read …</p>}
      {lens && <Shown made={made} lens={lens} start={start} move={setFrom} />}
    </div>
  );
}

function Shown({ made, lens, start, move }: { made: Run; lens: Lens; start: number; move: (at: number) => void }) {
  const length = made.tokens.length;
  const last = lens.depths.length - 1;
  const query = state.query.value ?? length - 1, column = Math.max(0, lens.positions.indexOf(query));
  const depth = Math.min(last, depthAt.value ?? last);
  return (
    <>
      <section class="card" aria-label="the lens">
        <div class="row">
          <h2>{lens.lens === "tuned lens" ? "Tuned lens" : "Logit lens"}: the likeliest word at each depth</h2>
          <label>shade{" "}
            <select value={shade.value} onChange={(event) => (shade.value = event.currentTarget.value as Shade)}>
              {Object.entries(SHADES).map(([key, said]) => <option key={key} value={key}>{said}</option>)}
            </select>
          </label>
          {length > COLUMNS && (
            <span class="row">
              <button disabled={start === 0} onClick={() => move(Math.max(0, start - COLUMNS))}>← earlier</button>
              <span class="soft">positions {start} to {start + lens.positions.length - 1} of {length}</span>
              <button disabled={start + COLUMNS >= length} onClick={() => move(Math.min(length - COLUMNS, start + COLUMNS))}>later →</button>
            </span>
          )}
        </div>
        <Grid lens={lens} depth={depth} column={column} />
        <ul class="notes">
          {lens.notes.map((one) => <li key={one}>{one}</li>)}
          {lens.lens === "logit lens" && <li>Early depths were never trained to be read this way; a tuned lens can be fitted with glassformer lens --fit.</li>}
        </ul>
      </section>
      <div class="halves">
        <Depths lens={lens} depth={depth} column={column} />
        <Attributed made={made} lens={lens} depth={depth} column={column} />
      </div>
    </>
  );
}

function Grid({ lens, depth, column }: { lens: Lens; depth: number; column: number }) {
  const kind = shade.value, table = sequential.value;
  const value = (d: number, p: number) => (kind === "probability" ? lens.probability[d][p][0] : lens[kind][d][p]);
  const most = kind === "probability" ? 1 : Math.max(1e-9, ...lens[kind].flat().filter(Number.isFinite));
  const last = lens.depths.length - 1;
  const rows = Array.from(lens.depths, (_, d) => last - d);
  function keys(event: KeyboardEvent) {
    const step: Record<string, [number, number]> = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in step)) return;
    const [dd, dp] = step[event.key], d = Math.max(0, Math.min(last, depth + dd)), p = Math.max(0, Math.min(lens.positions.length - 1, column + dp));
    choose(d, p);
    (event.currentTarget as HTMLElement).querySelector<HTMLElement>(`[data-cell="${d},${p}"]`)?.focus();
    event.preventDefault();
    event.stopPropagation();
  }
  function choose(d: number, p: number) {
    depthAt.value = d === last ? null : d;
    state.query.value = lens.positions[p];
  }
  return (
    <>
      <div class="scroll tall" role="region" aria-label="likeliest words by depth and position" tabIndex={0}>
        <table class="lensgrid" onKeyDown={keys}>
          <thead>
            <tr><td />{lens.positions.map((at) => <th key={at} scope="col" title={`position ${at}`}>{label(tokens.value[at])}</th>)}</tr>
          </thead>
          <tbody>
            {rows.map((d) => (
              <tr key={d}>
                <th scope="row" class="depth" title={lens.depths[d]}>{depthName(lens.depths[d])}</th>
                {lens.positions.map((at, p) => {
                  const v = value(d, p), share = v / most, on = d === depth && p === column;
                  const word = lens.top_pieces[d][p][0];
                  return (
                    <td key={at}>
                      <button
                        data-cell={`${d},${p}`} tabIndex={on ? 0 : -1} aria-pressed={on} onClick={() => choose(d, p)} class={lens.top[d][p][0] === lens.top[last][p][0] ? "isanswer" : ""}
                        style={{ background: css(table, share), color: ink(table, share) }}
                        data-addr={`lens.${kind}[${lens.depths[d]},${at}]`} data-v={v} title={`${depthName(lens.depths[d])}, after “${label(tokens.value[at])}”: “${word}”, ${SHADES[kind]} ${number(v, 4)}`}
                      >{word}</button>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="legend"><Legend scale="sequential" low={0} high={most} /><span>{SHADES[kind]}; bold: already the model's final answer</span></div>
    </>
  );
}

/** One column: the likeliest words of a depth, and the followed ones through all depths. */
function Depths({ lens, depth, column }: { lens: Lens; depth: number; column: number }) {
  const [word, setWord] = useState("");
  const at = lens.positions[column], path = lens.depths[depth];
  function add(one: string | number) {
    if (one !== "" && !tracked.value.includes(one)) tracked.value = [...tracked.value, one].slice(-LIGHT.length);
  }
  return (
    <section class="card" aria-label="one position">
      <h2>After “<span class="mono">{label(tokens.value[at])}</span>” ({at}), at {depthName(path)}</h2>
      <div class="bars">
        {lens.top[depth][column].map((id, nth) => {
          const p = lens.probability[depth][column][nth], text = lens.top_pieces[depth][column][nth];
          return [
            <button key={`w${id}`} class="name" title={`follow “${text}” through the depths`} onClick={() => add(id)}>{text}</button>,
            <span key={`b${id}`} class="track"><i class="final" style={{ width: `${100 * p}%` }} /></span>,
            <Num key={`n${id}`} addr={`lens.probability[${path},${at},${id}]`} v={p} as="percent" />,
          ];
        })}
      </div>
      <p class="soft">entropy <Num addr={`lens.entropy[${path},${at}]`} v={lens.entropy[depth][column]} digits={4} /> nats · KL(own ‖ depth) <Num addr={`lens.kl[${path},${at}]`} v={lens.kl[depth][column]} digits={4} /> nats</p>
      <h3>Followed words</h3>
      {lens.tracked.length > 0 ? <Chart lens={lens} column={column} depth={depth} /> : <p class="soft">Click a word above, or name one, to follow it through all depths.</p>}
      <form class="row" onSubmit={(event) => (event.preventDefault(), add(word), setWord(""))}>
        <input aria-label="a word to follow" placeholder="a word, with its space: “ tired”" value={word} onInput={(event) => setWord(event.currentTarget.value)} />
        <button disabled={!word}>follow</button>
        {lens.tracked.map((one, nth) => (
          <button key={one.token} type="button" class="chip" title="no longer follow it" onClick={() => (tracked.value = tracked.value.filter((_, other) => other !== nth))}>{one.piece} ✕</button>
        ))}
      </form>
    </section>
  );
}

const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2", "10 4", "4 4", "6 2 1 2"];

function Chart({ lens, column, depth }: { lens: Lens; column: number; depth: number }) {
  const wide = 560, tall = 200, left = 36, right = 110, top = 8, bottom = 24, count = lens.depths.length;
  const x = (d: number) => left + (count === 1 ? 0 : (d / (count - 1)) * (wide - left - right)), y = (p: number) => top + (1 - p) * (tall - top - bottom);
  const ends = lens.tracked.map((one, nth) => ({ nth, y: y(one.probability[count - 1][column]) })).sort((a, b) => a.y - b.y);
  for (let i = 1; i < ends.length; i++) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + 13);
  const low = Math.max(0, (ends.at(-1)?.y ?? 0) - (tall - bottom));
  const every = Math.ceil(count / 9), colours = state.dark.value ? CATEGORIES_DARK : LIGHT;
  return (
    <>
      <svg class="chart" viewBox={`0 0 ${wide} ${tall}`} role="img" aria-label={`probability by depth of ${lens.tracked.map((one) => one.piece).join(", ")}`}>
        {[0, 0.25, 0.5, 0.75, 1].map((p) => <g key={p}><line class="axis" x1={left} x2={wide - right} y1={y(p)} y2={y(p)} /><text x={left - 5} y={y(p) + 4} text-anchor="end">{p}</text></g>)}
        {lens.depths.map((path, d) => (d % every === 0 || d === count - 1) && <text key={path} x={x(d)} y={tall - 8} text-anchor="middle">{depthName(path)}</text>)}
        <line x1={x(depth)} x2={x(depth)} y1={top} y2={tall - bottom} stroke="var(--accent)" stroke-dasharray="2 2" />
        {lens.tracked.map((one, nth) => (
          <g key={one.token}>
            <polyline fill="none" stroke={colours[nth]} stroke-width="2.2" stroke-dasharray={DASHES[nth]} points={one.probability.map((row, d) => `${x(d)},${y(row[column])}`).join(" ")} />
            {one.probability.map((row, d) => <circle key={d} cx={x(d)} cy={y(row[column])} r="3" fill={colours[nth]} data-addr={`lens.probability[${lens.depths[d]},${lens.positions[column]},${one.token}]`} data-v={row[column]}><title>{`${depthName(lens.depths[d])}: ${number(row[column], 4)}, rank ${one.rank[d][column]}`}</title></circle>)}
          </g>
        ))}
        {ends.map(({ nth, y: at }) => <text key={nth} class="series" x={wide - right + 8} y={at - low + 4} style={{ fill: "var(--ink)" }}><tspan fill={colours[nth]}>■ </tspan>{lens.tracked[nth].piece.slice(0, 12)}</text>)}
      </svg>
      <p class="soft">
        rank at {depthName(lens.depths[depth])}: {lens.tracked.map((one) => <span key={one.token} class="look"><span class="mono">{one.piece}</span> <Num addr={`lens.rank[${lens.depths[depth]},${lens.positions[column]},${one.token}]`} v={one.rank[depth][column]} /></span>)}
      </p>
    </>
  );
}

/** What each part added to the logit of a word at this position; the sum is the logit. */
function Attributed({ made, lens, depth, column }: { made: Run; lens: Lens; depth: number; column: number }) {
  const [all, setAll] = useState(false);
  const possible = (card.value?.abilities as Record<string, boolean> | undefined)?.attribution !== false;
  const token = lens.top[depth][column][0], at = lens.positions[column];
  const loaded = useLoaded(() => (possible ? transport.json<Attribution>(`api/runs/${made.run}/attribution?token=${token}&position=${at}`) : null), [made.run, token, at]);
  if (!possible) return null;
  const told = loaded.data;
  const sorted = told ? [...told.parts].sort((a, b) => Math.abs(b.value) - Math.abs(a.value)) : [];
  const most = Math.max(1e-9, ...sorted.map((one) => Math.abs(one.value)));
  const shown = all ? sorted : sorted.slice(0, 14), rest = sorted.slice(shown.length).reduce((sum, one) => sum + one.value, 0);
  return (
    <section class="card" aria-label="who wrote it">
      <h2>Who wrote “<span class="mono">{lens.top_pieces[depth][column][0]}</span>” here?</h2>
      {loaded.error && <p class="failure" role="alert">{loaded.error}</p>}
      {told && (
        <>
          <div class="scroll" tabIndex={0} role="region" aria-label="what each part added to the logit">
            <table class="parts">
              <tbody>
                {shown.map((one) => (
                  <tr key={one.address + one.kind}>
                    <td class="left" title={one.address}>{one.block === null ? "" : `L${one.block} `}{one.kind}{one.index === null ? "" : ` ${one.index}`}</td>
                    <td class="bar"><i class={one.value < 0 ? "minus" : ""} style={one.value < 0 ? { right: "50%", width: `${(50 * -one.value) / most}%` } : { left: "50%", width: `${(50 * one.value) / most}%` }} /></td>
                    <td><Num addr={`attribution(${told.token},${told.position}) ${one.address} ${one.kind}`} v={one.value} as="signed" digits={4} /></td>
                  </tr>
                ))}
                {shown.length < sorted.length && <tr><td class="left"><button class="quiet" onClick={() => setAll(true)}>{sorted.length - shown.length} more</button></td><td class="bar" /><td class="num">{signed(rest, 4)}</td></tr>}
              </tbody>
            </table>
          </div>
          <p>Σ <Num addr={`attribution(${told.token},${told.position}).sum`} v={told.sum} digits={6} /> = logit <Num addr={`${told.capped === null ? "logits" : "head.uncapped"}[${told.position},${told.token}]`} v={told.logit} digits={6} /> <span class="soft">(difference {number(told.difference, 2)}, every norm held at the scale it had)</span></p>
          <ul class="notes">{told.notes.map((one) => <li key={one}>{one}</li>)}</ul>
        </>
      )}
    </section>
  );
}
