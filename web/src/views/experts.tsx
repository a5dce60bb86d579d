// Which expert reads which token, how the router weighed them, and what the answer is without one.
import { useEffect, useState } from "preact/hooks";
import { percent } from "../core/format";
import { label } from "../core/pieces";
import { along, ops, run, submit, useLoaded } from "../core/run";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { Experts as Told, Mixture, Run } from "../core/types";
import { type Answer, hasWords, moved, telling, wordsOf } from "../core/whatif";
import { Num } from "../kernel/Num";
import { css, ink, sequential } from "../kernel/palette";
import { Moved } from "./moved";
import "./experts.css";

const MOST = 200; // tokens of the table

export function Experts() {
  const made = run.value!;
  const loaded = useLoaded(async () => ({ told: await transport.json<Told>(`api/runs/${made.run}/experts`), run: made.run }), [made.run]);
  const told = loaded.data?.run === made.run ? loaded.data.told : null;
  if (loaded.error) return <p class="failure" role="alert">{loaded.error}</p>;
  if (!told) return <p class="note">…</p>;
  const at = Math.max(0, told.layers.findIndex((one) => one.layer === state.layer.value)), mixture = told.layers[at];
  return (
    <div class="stack experts">
      <section class="card" aria-label="all layers">
        <div class="row"><h2>All layers: load of each expert on this text</h2><span class="soft"><Num addr="experts.idle" v={told.idle} /> of <Num addr="experts.of" v={told.of} /> read none of its tokens</span></div>
        <Loads layers={told.layers} chosen={at} />
      </section>
      <div class="halves">
        <Routing made={made} mixture={mixture} />
        <div class="stack">
          <Router made={made} mixture={mixture} />
          <WithoutExpert made={made} mixture={mixture} />
        </div>
      </div>
    </div>
  );
}

function Loads({ layers, chosen }: { layers: Mixture[]; chosen: number }) {
  const table = sequential.value, most = Math.max(...layers.flatMap((one) => one.load.map((n) => n / one.chosen.length)));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="load by layer and expert">
      <table class="lensgrid">
        <thead><tr><td />{Array.from({ length: Math.max(...layers.map((one) => one.experts)) }, (_, e) => <th key={e} scope="col">e{e}</th>)}</tr></thead>
        <tbody>
          {layers.map((one, at) => (
            <tr key={one.address}>
              <th scope="row" class="depth">L{one.layer}</th>
              {one.load.map((n, e) => {
                const share = n / one.chosen.length;
                return (
                  <td key={e}>
                    <button style={{ background: css(table, share / most), color: ink(table, share / most) }} aria-pressed={at === chosen && e === (state.expert.value ?? -1)} data-addr={`experts.load[${one.address},${e}]`} data-v={n} title={`layer ${one.layer}, expert ${e}: ${n} of ${one.chosen.length} tokens`} onClick={() => ((state.layer.value = one.layer), (state.expert.value = e))}>
                      {n === 0 ? "idle" : n}
                    </button>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function tokensOf(mixture: Mixture) {
  return along(ops.value.get(`${mixture.address}.router`)!, "T");
}

function Routing({ made, mixture }: { made: Run; mixture: Mixture }) {
  const words = tokensOf(mixture), tokens = mixture.chosen.length, shown = Math.min(tokens, MOST);
  const query = Math.min(tokens - 1, state.query.value ?? tokens - 1);
  const heaviest = Math.max(...mixture.load, 1);
  return (
    <section class="card" aria-label="tokens and experts">
      <h2>Layer {mixture.layer}: {mixture.chosen[0]?.length} of {mixture.experts} experts read each token</h2>
      <div class="scroll tall" tabIndex={0} role="region" aria-label="which expert reads which token">
        <table class="routing">
          <thead>
            <tr><td />{Array.from({ length: shown }, (_, t) => <th key={t} scope="col" class={t === query ? "on" : ""}>{words ? label(words[t]) : t}</th>)}<th class="left">load</th></tr>
          </thead>
          <tbody>
            {Array.from({ length: mixture.experts }, (_, e) => (
              <tr key={e}>
                <th scope="row" class="expert"><button class="quiet" aria-pressed={state.expert.value === e} onClick={() => (state.expert.value = state.expert.value === e ? null : e)}>e{e}</button></th>
                {Array.from({ length: shown }, (_, t) => {
                  const nth = mixture.chosen[t].indexOf(e);
                  if (nth < 0) return <td key={t} />;
                  const weight = mixture.weight[t][nth];
                  return <td key={t} class={nth === 0 ? "first" : "other"} data-addr={`${mixture.address}.weight[${t},${nth}]`} data-v={weight} title={`token ${t}, choice ${nth + 1}: weight ${weight}`}>{nth + 1}</td>;
                })}
                <td class="load"><i style={{ width: `${(60 * mixture.load[e]) / heaviest}px` }} /><Num addr={`experts.share[${mixture.address},${e}]`} v={mixture.load[e] / (tokens * mixture.chosen[0].length)} as="percent" />{mixture.load[e] === 0 && " idle"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="soft">filled 1: the expert with the highest share; ring: the other choices{tokens > shown && ` · the first ${shown} of ${tokens} tokens of ${made.model}`}</p>
    </section>
  );
}

function Router({ made, mixture }: { made: Run; mixture: Mixture }) {
  const words = tokensOf(mixture), tokens = mixture.chosen.length, t = Math.min(tokens - 1, state.query.value ?? tokens - 1);
  const chances = mixture.probabilities?.[t];
  if (!chances) return null;
  const order = chances.map((_, e) => e).sort((a, b) => chances[b] - chances[a]);
  const open = (cell: string) => {
    state.cell.value = cell;
    state.op.value = cell.split("[")[0];
    state.view.value = "inside";
  };
  return (
    <section class="card" aria-label="router">
      <h2>Router for “<span class="mono">{words ? label(words[t]) : t}</span>” ({t})</h2>
      <div class="bars">
        {order.slice(0, 12).map((e) => {
          const nth = mixture.chosen[t].indexOf(e);
          return [
            <span key={`n${e}`} class="name">e{e}</span>,
            <span key={`b${e}`} class="track"><i class={nth >= 0 ? "final" : "warm"} style={{ width: `${100 * chances[e]}%` }} /></span>,
            <span key={`v${e}`}><Num addr={`${mixture.address}.router_probs[${t},${e}]`} v={chances[e]} as="percent" open={open} /> {nth >= 0 ? <>→ weight <Num addr={`${mixture.address}.weight[${t},${nth}]`} v={mixture.weight[t][nth]} digits={3} open={open} /></> : <span class="soft">cut</span>}</span>,
          ];
        })}
      </div>
      <p class="soft">of run {made.run.slice(0, 10)}; shares sum to {percent(chances.reduce((sum, one) => sum + one, 0))}</p>
    </section>
  );
}

function WithoutExpert({ made, mixture }: { made: Run; mixture: Mixture }) {
  const [change, setChange] = useState<{ edit: string; answers: [Answer, Answer]; words: Map<number, string> } | null>(null);
  const [error, setError] = useState(""), [waiting, setWaiting] = useState(false);
  const expert = Math.min(mixture.experts - 1, state.expert.value ?? mixture.load.indexOf(Math.max(...mixture.load)));
  useEffect(() => {
    setChange(null);
    setError("");
  }, [made.run, mixture.address, expert]);
  if (!hasWords(made)) return null;
  const edit = `expert_off(${JSON.stringify(mixture.address)}, ${expert})`;
  async function ask() {
    setWaiting(true);
    setError("");
    try {
      const answers = await moved(edit), ids = telling(answers), said = await wordsOf(ids);
      setChange({ edit, answers, words: new Map(ids.map((id, at) => [id, said[at]])) });
    } catch (problem) {
      setError((problem as Error).message);
    } finally {
      setWaiting(false);
    }
  }
  return (
    <section class="card" aria-label="what if">
      <h2>What if</h2>
      <button disabled={waiting} aria-pressed={!!change} onClick={() => void ask()}>{waiting ? "…" : `switch expert ${expert} of layer ${mixture.layer} off`}</button>
      {error && <p class="failure" role="alert">{error}</p>}
      {change && <Moved {...change} keep={() => ((state.edits.value = [...state.edits.value, edit]), void submit())} />}
    </section>
  );
}
