// A training as it runs: curves from its log, what it wrote, and one sentence read by each of its checkpoints.
import { effect, type Signal, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { nameRun, short } from "../core/address";
import { count, number, percent, readable, visible } from "../core/format";
import { failure, logits, models, submit, thumbs, useLoaded } from "../core/run";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { Column, Heads as Scores, Lens, Measured, ModelCard, Probed, Routing as Routes, Sample, Series, Training } from "../core/types";
import { highest, softmax, wordsOf } from "../core/whatif";
import { Chart, type Line } from "../kernel/chart";
import { Matrix } from "../kernel/matrix";
import { Num } from "../kernel/Num";
import { sequential } from "../kernel/palette";
import "./train.css";

const MANY = 6000; // buckets on the page beyond which the whole is asked for again, coarser
const chosen = state.param("rn", "", (one) => one);
const smoothing = state.param("sm", 0.9, Number);
const SKIPPED = new Set(["loss", "valid", "valid_loss", "epoch", "tokens", "seconds"]);
const TITLES: Record<string, string> = { norm: "gradient norm", grad_norm: "gradient norm", rate: "learning rate", lr: "learning rate" };

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
    let held: Series | null = null, asking: AbortController | null = null, gone = false, following = false;
    const show = (series: Series) => {
      held = series;
      if (!gone) set({ series, error: "", name });
    };
    const whole = async () => show(await transport.json<Series>(`api/train/${encodeURIComponent(name)}/series?since=0&most=2000`));
    async function follow() {
      if (following) return;
      following = true;
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
          if (!gone && (error as Error).name !== "AbortError") set({ series: held, error: (error as Error).message, name });
        }
        if (!document.hidden) await new Promise((done) => setTimeout(done, 1000));
      }
      following = false;
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

export function Train() {
  const [list, setList] = useState<Training[] | null>(null), [error, setError] = useState("");
  useEffect(() => {
    let gone = false;
    let timer = 0;
    const look = async () => {
      let soon = true; // nothing is here yet, or something moves
      try {
        const told = document.hidden ? null : await transport.json<Training[]>("api/train");
        if (told && !gone) (setList(told), setError(""));
        soon = !told?.length || told.some((one) => one.live);
      } catch (problem) {
        if (!gone) setError((problem as Error).message);
      }
      if (!gone) timer = window.setTimeout(look, soon ? 1000 : 4000);
    };
    void look();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, []);
  const one = list?.find((training) => training.name === chosen.value) ?? list?.[0];
  const { series, error: lost } = useSeries(one?.name ?? "");
  const cursor = useSignal<number | null>(null);
  if (error && !list) return <p class="failure" role="alert">{error}</p>;
  if (!list) return <p class="note">…</p>;
  if (!one) return <p class="note">No training is here. Start the page with <code>glassformer page --run DIR</code>, where DIR is what <code>glassformer train --out DIR</code> writes, or a folder of such; it may come later.</p>;
  return (
    <div class="stack train">
      <div class="row">
        <h2>Training</h2>
        <select aria-label="training" value={one.name} onChange={(event) => (chosen.value = event.currentTarget.value)}>{list.map((other) => <option key={other.name} value={other.name}>{other.name}</option>)}</select>
        <span class={one.live ? "live" : "soft"}>{one.live ? (one.paused ? "❚❚ paused" : "● live") : one.done ? "finished" : "not running"}</span>
        <span>step <Num addr={`train.${one.name}.step`} v={series?.last.at(-1) ?? one.step} />{one.steps !== null && <> of <Num addr={`train.${one.name}.steps`} v={one.steps} /></>}</span>
        <Speed series={series} one={one} />
        {one.objective && <span class="soft">{one.objective}</span>}
        {one.live && <Controls one={one} />}
        <label>smooth <input type="range" min="0" max="0.99" step="0.01" value={smoothing.value} onInput={(event) => (smoothing.value = Number(event.currentTarget.value))} /> {smoothing.value}</label>
      </div>
      {(lost || error) && <p class="failure" role="alert">{lost || error} The curves stay as they were; the page asks again.</p>}
      {series && <Curves one={one} series={series} cursor={cursor} />}
      {series && one.checkpoints.length > 0 && <OverTime key={one.name} one={one} series={series} cursor={cursor} />}
      <div class="halves">
        <Probe one={one} />
        <Samples one={one} />
      </div>
      {one.routing > 0 && <Routing one={one} />}
    </div>
  );
}

/** Asks the training by files in its folder, wherever it runs: after its step it waits, or saves and ends. */
function Controls({ one }: { one: Training }) {
  const [said, say] = useState("");
  const ask = (what: string, asked: object) => void transport.post(`api/train/${encodeURIComponent(one.name)}/${what}`, asked).then(() => say(""), (problem) => say((problem as Error).message));
  if (one.stopping) return <span class="soft">saves and stops after this step …</span>;
  const held = one.paused || one.pausing;
  return (
    <>
      <button title={held ? "it goes on with its next step" : "it waits after its step until it is told to go on"} onClick={() => ask("pause", { paused: !held })}>{held ? "Go on" : "Pause"}</button>
      {one.pausing && <span class="soft">pauses after this step …</span>}
      <button title="it saves after its step and ends; --resume goes on from there" onClick={() => ask("stop", {})}>Stop &amp; save</button>
      {said && <span class="failure">{said}</span>}
    </>
  );
}

function Speed({ series, one }: { series: Series | null; one: Training }) {
  const seconds = series?.columns.seconds?.mean, tokens = series?.columns.tokens?.mean;
  if (!series || !seconds || seconds.length < 2) return null;
  const recent = seconds.slice(-20).filter((v): v is number => v !== null), each = recent.reduce((a, v) => a + v, 0) / recent.length;
  const rate = tokens?.at(-1), left = one.steps !== null && one.live && !one.paused ? (one.steps - (series.last.at(-1) ?? 0)) * each : null;
  return <span class="soft">{rate ? `${count(Math.round(rate / each))} tokens/s` : ""}{left !== null && ` · ${left > 90 ? `${Math.round(left / 60)} min` : `${Math.round(left)} s`} left`}</span>;
}

/** Points of a column; steps at which it has no number are left out. */
function lineOf(series: Series, name: string, dots = false): Line {
  const column = series.columns[name], keep = column.mean.map((v, at) => (v === null ? -1 : at)).filter((at) => at >= 0);
  const of = <T,>(list: readonly T[]) => keep.map((at) => list[at]);
  return { name, steps: of(series.last), min: of(column.min), max: of(column.max), mean: of(column.mean), dots };
}

function Curves({ one, series, cursor }: { one: Training; series: Series; cursor: Signal<number | null> }) {
  const names = Object.keys(series.columns), validation = series.columns.valid_loss ? "valid_loss" : "valid";
  const loss = useMemo(() => [...(series.columns.loss ? [lineOf(series, "loss")] : []), ...(series.columns[validation] ? [lineOf(series, validation, true)] : [])], [series]);
  const others = useMemo(() => names.filter((name) => !SKIPPED.has(name)).slice(0, 9).map((name) => [name, [lineOf(series, name)]] as const), [series]);
  function open(step: number) {
    const best = one.checkpoints.reduce<Training["checkpoints"][number] | null>((near, other) => (!near || Math.abs(other.step - step) < Math.abs(near.step - step) ? other : near), null);
    if (!best) return;
    void openModel(best.model);
  }
  return (
    <section class="card" aria-label="curves">
      <Chart title="loss" address={`train.${one.name}`} lines={loss} cursor={cursor} until={one.steps ?? undefined} keep={smoothing.value} level={one.chance === null ? undefined : [one.chance, `ln V = ${number(one.chance, 4)}: a guess at random`]} onPick={one.checkpoints.length ? open : undefined} />
      <p class="soft">
        last loss <Num addr={`train.${one.name}.loss[${series.last.at(-1)}]`} v={series.columns.loss?.mean.at(-1) ?? null} />
        {loss[1]?.mean.length ? <> · last validation <Num addr={`train.${one.name}.${validation}[${loss[1].steps.at(-1)}]`} v={loss[1].mean.at(-1) ?? null} /></> : null}
        {series.bucket > 1 && ` · each point is the least, greatest and mean of ${series.bucket} steps`}
        {one.checkpoints.length > 0 && " · a click opens the nearest checkpoint in Inside"}
      </p>
      <div class="small">
        {others.map(([name, lines]) => <Chart key={name} title={TITLES[name] ?? name} address={`train.${one.name}`} lines={lines} cursor={cursor} until={one.steps ?? undefined} height={120} />)}
      </div>
    </section>
  );
}

const COUNT = 4; // heads whose curves are drawn: those that end highest
const measured = new Map<string, Measured[]>(); // heads by checkpoint

/** What each head does at every checkpoint: the scores of `glassformer heads`, below the loss and on its steps. */
function OverTime({ one, series, cursor }: { one: Training; series: Series; cursor: Signal<number | null> }) {
  const score = useSignal("induction"), done = useSignal(0), asking = useSignal<AbortController | null>(null), problem = useSignal("");
  useEffect(() => () => asking.value?.abort(), []);
  const steps = one.checkpoints.filter(({ model }) => measured.has(model)), all = one.checkpoints.length;
  const last = steps.length ? measured.get(steps[steps.length - 1].model)! : [];
  const highest = last.map((head, at) => [head.scores[score.value] ?? -1, at]).sort((a, b) => b[0] - a[0]).slice(0, COUNT).map(([, at]) => at);
  const name = (at: number) => `${short(last[at].path)} head ${last[at].head}`;
  const values = (at: number) => steps.map(({ model }) => measured.get(model)![at]?.scores[score.value] ?? null);
  const lines = useMemo(() => highest.map((at): Line => ({ name: name(at), steps: steps.map((each) => each.step), min: values(at), max: values(at), mean: values(at), dots: true })), [done.value, score.value, steps.length]);
  const loss = (step: number, column: string) => {
    const at = series.last.indexOf(step); // of this step alone, not the mean of several
    return at >= 0 && series.first[at] === step ? series.columns[column]?.mean[at] ?? null : null;
  };
  async function ask() {
    const mine = (asking.value = new AbortController());
    problem.value = "";
    try {
      for (const { model } of [...one.checkpoints].reverse()) {
        if (!measured.has(model)) measured.set(model, (await transport.json<Scores>(`api/heads/${encodeURIComponent(model)}`, mine.signal)).heads);
        done.value += 1;
      }
    } catch (failed) {
      if ((failed as Error).name !== "AbortError") problem.value = (failed as Error).message;
    } finally {
      asking.value = null;
    }
  }
  return (
    <section class="card" aria-label="heads over time">
      <div class="row">
        <h2>When did a head become what it is?</h2>
        {steps.length < all && (asking.value ? <button onClick={() => asking.value?.abort()}>Stop</button> : <button onClick={() => void ask()}>Score the heads of {all - steps.length} {all - steps.length === 1 ? "checkpoint" : "checkpoints"}</button>)}
        {asking.value && <span class="soft">{steps.length} of {all} …</span>}
        {last.length > 0 && <label>score <select aria-label="score" value={score.value} onChange={(event) => (score.value = event.currentTarget.value)}>{Object.keys(last[0].scores).map((key) => <option key={key}>{key}</option>)}</select></label>}
      </div>
      {problem.value && <p class="failure" role="alert">{problem.value}</p>}
      {!steps.length && <p class="soft">Each checkpoint that the run kept (--save-at) reads eight texts of random tokens that come twice, as in glassformer heads --over-time.</p>}
      {lines.length > 0 && (
        <>
          <Chart title={score.value} address={`train.${one.name}.heads`} lines={lines} cursor={cursor} until={one.steps ?? undefined} height={160} />
          <div class="scroll" tabIndex={0} role="region" aria-label="scores by step">
            <table>
              <thead><tr><th>step</th><th>loss</th><th>validation</th>{highest.map((at) => <th key={at}>{name(at)}</th>)}</tr></thead>
              <tbody>
                {steps.map(({ step, model }) => (
                  <tr key={step}>
                    <th scope="row">{step}</th>
                    {["loss", "valid_loss"].map((column) => <td key={column} class="num">{loss(step, column) === null ? "" : number(loss(step, column), 4)}</td>)}
                    {highest.map((at) => {
                      const head = measured.get(model)![at];
                      return <td key={at}><Num addr={`train.${one.name}.heads[${step}].${head.path}[${head.head}].${score.value}`} v={head.scores[score.value]} digits={3} />{head.labels.includes(score.value) ? "*" : ""}</td>;
                    })}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p class="soft">* more than 3 deviations above its baseline. A step between two checkpoints comes back with glassformer train --out RUN --at STEP.</p>
        </>
      )}
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

function Probe({ one }: { one: Training }) {
  const text = useSignal("");
  const last = one.checkpoints.at(-1)?.step ?? -1;
  const [asked, setAsked] = useState("");
  const loaded = useLoaded(() => (last >= 0 ? transport.json<Probed>(`api/train/${encodeURIComponent(one.name)}/probe?text=${encodeURIComponent(asked)}`).then((probed) => (probed.steps.forEach(nameRun), probed)) : null), [one.name, last, asked]);
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
          <div class="film" tabIndex={0} role="group" aria-label="every head at each checkpoint">
            {told.steps.map((each, nth) => <button key={each.run} aria-pressed={each === step} title={`step ${each.step}`} onClick={() => setAt(nth)}><Heads run={each.run} /><small>{each.step}</small></button>)}
          </div>
          <Heads run={step.run} />
          <Course told={told} one={one} />
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
    const told = await transport.post<Lens>(`api/runs/${run}/lens`, { positions: [-1], top: 4 });
    const last = told.top.length - 1;
    return { run, best: told.top[last][0].map((id, n) => ({ id, word: readable(told.top_pieces[last][0][n]), p: told.probability[last][0][n] })) };
  }, [run]);
  if (loaded.data?.run !== run) return null;
  return (
    <p>after “<span class="mono">{visible(text.slice(-24))}</span>”: {loaded.data.best.map((one) => <span key={one.id} class="look"><span class="mono">{one.word}</span> <Num addr={`softmax(${run}:logits[-1])[${one.id}]`} v={one.p} as="percent" /></span>)}</p>
  );
}

const FOLLOWED = 3; // of the last checkpoint's likeliest words

/** How likely the last checkpoint's words were at each before it. */
function Course({ told, one }: { told: Probed; one: Training }) {
  const loaded = useLoaded(async () => {
    const rows = await Promise.all(told.steps.map(async (each) => softmax(await logits(each.run, -1))));
    const ids = highest(rows[rows.length - 1], FOLLOWED), words = await wordsOf(ids, told.steps[told.steps.length - 1].model);
    return { told, lines: ids.map((id, at) => ({ id, word: words[at], p: rows.map((row) => row[id]) })) };
  }, [told]);
  if (loaded.data?.told !== told) return null;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="probability of the next word at each checkpoint">
      <table>
        <thead><tr><th class="left">p of</th>{told.steps.map((each) => <th key={each.run}>{each.step}</th>)}</tr></thead>
        <tbody>{loaded.data.lines.map((line) => <tr key={line.id}><th scope="row" class="left mono">{line.word}</th>{line.p.map((p, at) => <td key={at}><Num addr={`train.${one.name}.probe[${told.steps[at].step}].softmax(logits[-1])[${line.id}]`} v={p} as="percent" /></td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}

/** Which share of all choices each expert got at each validation, and the tokens that come to it most. */
function Routing({ one }: { one: Training }) {
  const loaded = useLoaded(() => transport.json<Routes[]>(`api/train/${encodeURIComponent(one.name)}/routing`), [one.name, one.routing]);
  const [at, setAt] = useState(0);
  const all = loaded.data ?? [], mine = all[Math.min(at, all.length - 1)];
  const data = useMemo(() => (mine ? Float32Array.from(mine.tokens.flatMap((_, expert) => mine.share.map((row) => row[expert] ?? 0))) : new Float32Array()), [mine]);
  if (!mine) return loaded.error ? <p class="failure" role="alert">{loaded.error}</p> : null;
  const address = `train.${one.name}.routing.${mine.address}`, last = mine.share[mine.share.length - 1];
  return (
    <section class="card" aria-label="expert load">
      <div class="row">
        <h2>Expert load at each validation</h2>
        <select aria-label="mixture" value={at} onChange={(event) => setAt(Number(event.currentTarget.value))}>{all.map((other, nth) => <option key={nth} value={nth}>{other.address}</option>)}</select>
        <span class="soft">an even share is <span class="num" data-v={1 / last.length}>{percent(1 / last.length)}</span></span>
      </div>
      <Matrix data={data} rows={last.length} cols={mine.steps.length} scale="sequential" height={160} label={`share of each expert: ${mine.address}`} title={address} rowName="expert" colName="step"
        rowLabels={last.map((_, expert) => `e${expert}`)} colLabels={mine.steps.map(String)} addr={(row, col) => `${address}[${row},${mine.steps[col]}]`} say={(row, col, v) => `expert ${row} at step ${mine.steps[col]}: ${percent(v)}`} />
      <table>
        <thead><tr><th class="left">expert</th><th>share</th><th class="left">tokens that come to it most beyond that</th></tr></thead>
        <tbody>{last.slice(0, 64).map((share, expert) => <tr key={expert}><th scope="row" class="left">e{expert}</th><td><Num addr={`${address}[${expert},${mine.steps[mine.steps.length - 1]}]`} v={share} as="percent" /></td><td class="left mono">{mine.tokens[expert].map(([word, times], nth) => <span key={nth} class="look" title={`${times} times`}>{readable(word)}</span>)}</td></tr>)}</tbody>
      </table>
    </section>
  );
}

function Samples({ one }: { one: Training }) {
  const loaded = useLoaded(() => transport.json<Sample[]>(`api/train/${encodeURIComponent(one.name)}/samples`), [one.name, one.samples]);
  const list = loaded.data ?? [];
  if (!list.length) return null;
  return (
    <section class="card" aria-label="samples">
      <h2>What it wrote on its way</h2>
      <dl class="samples" tabIndex={0}>{[...list].reverse().map((sample, at) => <div key={at}><dt>step {number(sample.step)}</dt><dd>{sample.text}</dd></div>)}</dl>
    </section>
  );
}
