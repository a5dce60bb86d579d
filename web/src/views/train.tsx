// A training as it runs: curves from its log, what it wrote, and one sentence read by each of its checkpoints.
import { effect, type Signal, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, number, visible } from "../core/format";
import { failure, models, submit, thumbs, useLoaded } from "../core/run";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { ModelCard } from "../core/types";
import { Chart, type Line } from "../kernel/chart";
import { Num } from "../kernel/Num";
import { sequential } from "../kernel/palette";
import "./train.css";
import type { Screen } from "./screen";

interface Training {
  name: string;
  title: string;
  step: number;
  steps: number | null;
  rows: number;
  age_s: number | null;
  live: boolean;
  done: boolean;
  objective: string | null;
  checkpoints: { step: number; model: string }[];
}

type Column = { min: (number | null)[]; max: (number | null)[]; mean: (number | null)[] };
interface Series {
  cursor: number;
  since: number;
  reset: boolean;
  turn: number;
  bucket: number;
  first: number[];
  last: number[];
  columns: Record<string, Column>;
}

const MANY = 6000; // buckets on the page beyond which the whole is asked for again, coarser
const chosen = state.param("rn", "", (one) => one);
const smoothing = state.param("sm", 0.9, Number);
const SKIPPED = new Set(["loss", "valid", "epoch", "tokens", "seconds"]);

/** What there was, and what came since, in one. */
export function joined(before: Series | null, more: Series): Series {
  if (!before || more.reset || more.turn !== before.turn || more.since !== before.cursor) return more;
  const had = before.first.length, came = more.first.length, names = new Set([...Object.keys(before.columns), ...Object.keys(more.columns)]);
  const none = (length: number): Column => ({ min: Array(length).fill(null), max: Array(length).fill(null), mean: Array(length).fill(null) });
  const columns: Record<string, Column> = {};
  for (const name of names) {
    const a = before.columns[name] ?? none(had), b = more.columns[name] ?? none(came);
    columns[name] = { min: [...a.min, ...b.min], max: [...a.max, ...b.max], mean: [...a.mean, ...b.mean] };
  }
  return { ...more, since: before.since, first: [...before.first, ...more.first], last: [...before.last, ...more.last], columns };
}

/** The numbers of a training, kept up to date while the page is seen. */
function useSeries(name: string): { series: Series | null; error: string } {
  const [now, set] = useState<{ series: Series | null; error: string; name: string }>({ series: null, error: "", name: "" });
  useEffect(() => {
    if (!name) return;
    let held: Series | null = null, asking: AbortController | null = null, gone = false;
    const show = (series: Series) => {
      held = series;
      if (!gone) set({ series, error: "", name });
    };
    const whole = async () => show(await transport.json<Series>(`api/train/${encodeURIComponent(name)}/series?since=0&most=2000`));
    async function follow() {
      while (!gone && !document.hidden) {
        asking = new AbortController();
        try {
          if (!held) await whole();
          await transport.stream(`api/events?topics=train:${encodeURIComponent(name)}&since=${encodeURIComponent(`${name}:${held!.cursor}`)}`, null, (data) => {
            const more = data.trainings?.[name] as Series | undefined;
            if (!more) return;
            if (more.since !== held!.cursor || more.turn !== held!.turn || held!.first.length > MANY) void whole();
            else show(joined(held, more));
          }, asking.signal);
        } catch (error) {
          if ((error as Error).name === "AbortError") return;
          if (!gone) set({ series: held, error: (error as Error).message, name });
        }
        await new Promise((done) => setTimeout(done, 2000));
      }
    }
    const seen = () => (document.hidden ? asking?.abort() : void follow());
    document.addEventListener("visibilitychange", seen);
    void follow();
    return () => {
      gone = true;
      asking?.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [name]);
  return now.name === name ? now : { series: null, error: "" };
}

function Train() {
  const [list, setList] = useState<Training[] | null>(null), [error, setError] = useState("");
  useEffect(() => {
    let gone = false;
    const look = () => transport.json<Training[]>("api/train").then((one) => !gone && (setList(one), setError("")), (problem) => !gone && setError((problem as Error).message));
    void look();
    const timer = setInterval(() => !document.hidden && void look(), 4000);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, []);
  const one = list?.find((training) => training.name === chosen.value) ?? list?.[0];
  const { series, error: lost } = useSeries(one?.name ?? "");
  const cursor = useSignal<number | null>(null);
  if (error) return <p class="failure" role="alert">{error}</p>;
  if (!list) return <p class="note">…</p>;
  if (!one) return <p class="note">No training is here. Start the page with <code>glassformer page --run DIR</code>, where DIR is what <code>glassformer train --out DIR</code> writes, or a folder of such; it may come later.</p>;
  return (
    <div class="stack train">
      <div class="row">
        <h2>Training</h2>
        <select aria-label="training" value={one.name} onChange={(event) => (chosen.value = event.currentTarget.value)}>{list.map((other) => <option key={other.name} value={other.name}>{other.name}</option>)}</select>
        <span class={one.live ? "live" : "soft"}>{one.live ? "● live" : one.done ? "finished" : "not running"}</span>
        <span>step <Num addr={`train.${one.name}.step`} v={series?.last.at(-1) ?? one.step} />{one.steps !== null && <> of <Num addr={`train.${one.name}.steps`} v={one.steps} /></>}</span>
        <Speed series={series} one={one} />
        {one.objective && <span class="soft">{one.objective}</span>}
        <label>smooth <input type="range" min="0" max="0.99" step="0.01" value={smoothing.value} onInput={(event) => (smoothing.value = Number(event.currentTarget.value))} /> {smoothing.value}</label>
      </div>
      {lost && <p class="failure" role="alert">{lost} The curves stay as they were; the page asks again.</p>}
      {series && <Curves one={one} series={series} cursor={cursor} />}
      <div class="halves">
        <Probe one={one} />
        <Samples one={one} />
      </div>
    </div>
  );
}

function Speed({ series, one }: { series: Series | null; one: Training }) {
  const seconds = series?.columns.seconds?.mean, tokens = series?.columns.tokens?.mean;
  if (!series || !seconds || seconds.length < 2) return null;
  const recent = seconds.slice(-20).filter((v): v is number => v !== null), each = recent.reduce((a, v) => a + v, 0) / recent.length;
  const rate = tokens?.at(-1), left = one.steps !== null && one.live ? (one.steps - (series.last.at(-1) ?? 0)) * each : null;
  return <span class="soft">{rate ? `${count(Math.round(rate / each))} tokens/s` : ""}{left !== null && ` · ${left > 90 ? `${Math.round(left / 60)} min` : `${Math.round(left)} s`} left`}</span>;
}

/** Points of a column; steps at which it has no number are left out. */
function lineOf(series: Series, name: string, dots = false): Line {
  const column = series.columns[name], keep = column.mean.map((v, at) => (v === null ? -1 : at)).filter((at) => at >= 0);
  const of = <T,>(list: readonly T[]) => keep.map((at) => list[at]);
  return { name, steps: of(series.last), min: of(column.min), max: of(column.max), mean: of(column.mean), dots };
}

function Curves({ one, series, cursor }: { one: Training; series: Series; cursor: Signal<number | null> }) {
  const names = Object.keys(series.columns);
  const loss = useMemo(() => [...(series.columns.loss ? [lineOf(series, "loss")] : []), ...(series.columns.valid ? [lineOf(series, "valid", true)] : [])], [series]);
  const others = useMemo(() => names.filter((name) => !SKIPPED.has(name)).slice(0, 9).map((name) => [name, [lineOf(series, name)]] as const), [series]);
  function open(step: number) {
    const best = one.checkpoints.reduce<Training["checkpoints"][number] | null>((near, other) => (!near || Math.abs(other.step - step) < Math.abs(near.step - step) ? other : near), null);
    if (!best) return;
    void openModel(best.model);
  }
  return (
    <section class="card" aria-label="curves">
      <Chart title="loss" address={`train.${one.name}`} lines={loss} cursor={cursor} until={one.steps ?? undefined} keep={smoothing.value} onPick={one.checkpoints.length ? open : undefined} />
      <p class="soft">
        last loss <Num addr={`train.${one.name}.loss[${series.last.at(-1)}]`} v={series.columns.loss?.mean.at(-1) ?? null} />
        {loss[1]?.mean.length ? <> · last validation <Num addr={`train.${one.name}.valid[${loss[1].steps.at(-1)}]`} v={loss[1].mean.at(-1) ?? null} /></> : null}
        {series.bucket > 1 && ` · each point is the least, greatest and mean of ${series.bucket} steps`}
        {one.checkpoints.length > 0 && " · a click opens the nearest checkpoint in Inside"}
      </p>
      <div class="small">
        {others.map(([name, lines]) => <Chart key={name} title={name === "norm" ? "gradient norm" : name === "rate" ? "learning rate" : name} address={`train.${one.name}`} lines={lines} cursor={cursor} until={one.steps ?? undefined} height={120} />)}
      </div>
    </section>
  );
}

async function openModel(name: string): Promise<void> {
  try {
    if (!models.value?.some((one) => one.name === name)) {
      const cards = await transport.json<ModelCard[]>("api/models"), like = cards.find((one) => one.name === name) ?? cards.find((one) => one.name === name.split("@")[0]);
      models.value = [...cards, ...(like && like.name !== name ? [{ ...like, name, title: name }] : [])];
    }
    state.model.value = name;
    state.view.value = "inside";
    await submit();
  } catch (error) {
    failure.value = (error as Error).message;
  }
}

// ----------------------------------------------------------------------------------------- the probe

interface Probed {
  text: string;
  steps: { step: number; model: string; run: string }[];
}

function Probe({ one }: { one: Training }) {
  const text = useSignal("");
  const last = one.checkpoints.at(-1)?.step ?? -1;
  const [asked, setAsked] = useState("");
  const loaded = useLoaded(() => (last >= 0 ? transport.json<Probed>(`api/train/${encodeURIComponent(one.name)}/probe?text=${encodeURIComponent(asked)}`) : null), [one.name, last, asked]);
  const [at, setAt] = useState(-1);
  const told = loaded.data, step = told?.steps.at(at < 0 ? -1 : Math.min(at, told.steps.length - 1));
  return (
    <section class="card" aria-label="probe">
      <h2>One sentence, checkpoint by checkpoint</h2>
      {last < 0 && <p class="soft">No checkpoint was saved yet.</p>}
      {loaded.error && <p class="failure" role="alert">{loaded.error}</p>}
      {last >= 0 && (
        <form class="row" onSubmit={(event) => (event.preventDefault(), setAsked(text.value))}>
          <input aria-label="the probe's sentence" style={{ flex: 1 }} placeholder={told?.text ?? ""} value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} /> <button>read</button>
        </form>
      )}
      {told && step && (
        <>
          <label class="row">step <input type="range" min="0" max={told.steps.length - 1} value={at < 0 ? told.steps.length - 1 : at} onInput={(event) => setAt(Number(event.currentTarget.value))} style={{ flex: 1 }} /> <Num addr={`train.${one.name}.probe.step`} v={step.step} /></label>
          <Heads run={step.run} />
          <Answers run={step.run} text={told.text} />
          <button class="quiet" onClick={() => ((state.prompt.value = told.text), void openModel(step.model))}>open {step.model} in Inside</button>
        </>
      )}
    </section>
  );
}

/** Every head of a run in one picture: a row a layer. */
export function Heads({ run }: { run: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const loaded = useLoaded(async () => {
    const first = await thumbs(run, 0, 1, 32);
    const total = Number(first.metadata.total ?? 1);
    return total > 1 ? (await thumbs(run, 0, total, 32)).tensors : first.tensors;
  }, [run]);
  useEffect(() => effect(() => {
    const table = sequential.value, tensors = Object.values(loaded.data ?? {}), g = canvas.current?.getContext("2d");
    if (!g || !tensors.length) return;
    const [H, rows, cols] = tensors[0].shape;
    canvas.current!.width = H * (cols + 1);
    canvas.current!.height = tensors.length * (rows + 1);
    tensors.forEach(({ data, shape: [heads, r, c] }, layer) => {
      for (let h = 0; h < heads; h++) {
        const image = g.createImageData(c, r), words = new Uint32Array(image.data.buffer);
        for (let i = 0; i < words.length; i++) words[i] = table[data[h * r * c + i]];
        g.putImageData(image, h * (cols + 1), layer * (rows + 1));
      }
    });
  }), [loaded.data]);
  if (loaded.error) return null; // a model without heads
  return <canvas ref={canvas} class="heads" role="img" aria-label="attention of every head at this step: a row a layer, a column a head" />;
}

function Answers({ run, text }: { run: string; text: string }) {
  const loaded = useLoaded(async () => {
    const told = await transport.post<{ top: number[][][]; top_pieces: string[][][]; probability: number[][][] }>(`api/runs/${run}/lens`, { positions: [-1], top: 4 });
    const last = told.top.length - 1;
    return { run, best: told.top[last][0].map((id, n) => ({ id, word: visible(told.top_pieces[last][0][n]).replace("▁", "·"), p: told.probability[last][0][n] })) };
  }, [run]);
  if (loaded.data?.run !== run) return null;
  return (
    <p>after “<span class="mono">{visible(text.slice(-24))}</span>”: {loaded.data.best.map((one) => <span key={one.id} class="look"><span class="mono">{one.word}</span> <Num addr={`softmax(${run}:logits[-1])[${one.id}]`} v={one.p} as="percent" /></span>)}</p>
  );
}

function Samples({ one }: { one: Training }) {
  const loaded = useLoaded(() => transport.json<{ step: number; text: string }[]>(`api/train/${encodeURIComponent(one.name)}/samples`), [one.name, one.step]);
  const list = loaded.data ?? [];
  if (!list.length) return null;
  return (
    <section class="card" aria-label="samples">
      <h2>What it wrote on its way</h2>
      <dl class="samples" tabIndex={0}>{[...list].reverse().map((sample, at) => <div key={at}><dt>step {number(sample.step)}</dt><dd>{sample.text}</dd></div>)}</dl>
    </section>
  );
}

export const train: Screen = { name: "train", title: "Train", order: 7, component: Train, alone: true };
