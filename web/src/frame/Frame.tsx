// What stands round every screen: model, tabs, text and its tokens, layers, and the line at the foot that says what was measured.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { at, inEncoder } from "../core/address";
import { count, number, size } from "../core/format";
import { busy, card, checked, failure, layers, models, ops as known, run, sourceTokens, submit, tokens, useLoaded, values } from "../core/run";
import { prebaked } from "../core/example";
import { fillIn } from "../core/openings";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { Run } from "../core/types";
import { Strip } from "../kernel/strip";
import { screens } from "../views";
import type { Screen } from "../views/screen";
import { help, KEYS } from "./keys";
import { Tour, TourButton } from "./Tour";

export function Frame() {
  const screen = screens.find((one) => one.name === state.view.value) ?? screens[0];
  const why = card.value && screen.absent?.(card.value, run.value);
  const Component = screen.component;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>to the screen</a>
      <Header screen={screen} />
      {!screen.alone && <TextBox />}
      <div class="body">
        {!screen.alone && <Rail />}
        <main id="main" tabIndex={-1} aria-label={screen.title}>
          {state.notice.value && <p class="note" role="status">{state.notice.value}</p>}
          {failure.value && !(screen.alone && models.value) && <p class="failure" role="alert">{failure.value}</p>}
          {why ? <p class="note">{why}</p> : screen.alone || run.value ? <Component /> : <p class="note">{busy.value ? "The model reads the text …" : models.value ? "Type a text and press Run." : "Looking for models …"}</p>}
        </main>
      </div>
      <Footer />
      {help.value && <Help />}
      <Tour />
      <p class="hidden" role="status" aria-live="polite">{state.announcement.value}</p>
    </>
  );
}

function Header({ screen }: { screen: Screen }) {
  const depths: state.Depth[] = ["plain", "maths", "code"];
  const themes: state.Theme[] = ["system", "light", "dark"];
  return (
    <header>
      <h1>glassformer</h1>
      <select aria-label="model" value={state.model.value} onChange={(event) => choose(event.currentTarget.value)}>
        {models.value?.map((one) => (
          <option key={one.name} value={one.name} title={one.title}>{one.name} · {count(one.parameters)}</option>
        ))}
      </select>
      <nav aria-label="screens">
        {screens.map((one) => {
          const why = card.value && one.absent?.(card.value, run.value);
          return (
            <button key={one.name} class={`tab ${why ? "off" : ""}`} aria-current={one === screen ? "page" : undefined} title={why ?? `${one.title} (${one.order})`} onClick={() => (state.view.value = one.name)}>
              {one.title}
            </button>
          );
        })}
      </nav>
      <div class="tools">
        {screen.alone ? null : <TourButton />}
        <div class="switch" role="group" aria-label="depth of the explanations">
          {depths.map((one) => (
            <button key={one} aria-pressed={state.depth.value === one} onClick={() => (state.depth.value = one)}>{one[0].toUpperCase() + one.slice(1)}</button>
          ))}
        </div>
        <button class="quiet" title="colours: like the system, light, dark" onClick={() => (state.theme.value = themes[(themes.indexOf(state.theme.value) + 1) % 3])}>
          <span aria-hidden="true">◐</span> {state.theme.value}
        </button>
        <button class="quiet" aria-label="keys" title="keys (?)" onClick={() => (help.value = !help.value)}>?</button>
      </div>
    </header>
  );
}

function choose(name: string) {
  state.model.value = name;
  state.notice.value = "";
  state.op.value = "";
  state.cell.value = "";
  state.ids.value = null;
  state.edits.value = [];
  state.layer.value = state.head.value = state.query.value = state.key.value = null;
  run.value = null; // no screen shows one model's numbers under another's name
  const pair = card.value?.abilities.source;
  fillIn(!!pair);
  if (pair && !state.source.value) {
    state.source.value = state.prompt.value; // the target begins empty
    state.prompt.value = "";
  }
  void submit();
}

/** What was left out of a text that was pasted: laying out megabytes would stop the page. */
const cut = signal("");

function TextBox() {
  const pair = card.value?.abilities.source;
  const most = Math.min(1 << 20, 40 * (card.value?.context ?? 1024)); // a token is seldom as long
  const box = (id: string, signal: typeof state.prompt, name: string) => (
    <textarea
      id={id} rows={1} value={signal.value} aria-label={name} placeholder={name} spellcheck={false} dir="auto" maxLength={most}
      onPaste={(event) => {
        const given = event.clipboardData?.getData("text").length ?? 0, { value, selectionStart, selectionEnd } = event.currentTarget;
        const room = most - value.length + selectionEnd - selectionStart;
        cut.value = given > room ? `The text that was pasted has ${given.toLocaleString("en")} characters; its first ${room.toLocaleString("en")} are here: this model reads ${card.value?.context} tokens.` : "";
      }}
      onInput={(event) => ((signal.value = event.currentTarget.value), (state.ids.value = null))}
      onKeyDown={(event) => {
        if (event.key === "Enter" && !event.shiftKey) {
          event.preventDefault();
          void submit();
        }
      }}
    />
  );
  const made = run.value;
  return (
    <section class="text" aria-label="the text">
      <div class="line">
        {pair && box("source", state.source, "source text")}
        {box("prompt", state.prompt, pair ? "target text so far" : "a text")}
        <button class="primary" disabled={!transport?.reads} onClick={() => void submit()}>{busy.value ? "…" : "Run ⏎"}</button>
      </div>
      {cut.value && <p class="note" role="status">{cut.value}</p>}
      {made?.cut && <p class="note" role="status">{made.left_out?.tokens || made.left_out?.source_tokens ? `The text is longer than this model can read, ${card.value?.context} tokens, and its end is left out. ` : ""}{made.cut}</p>}
      {sourceTokens.value.length > 0 && <Strip name="source tokens" pieces={sourceTokens.value} hover={state.hover.key} locked={state.key.value} onLock={(at) => (state.key.value = state.key.value === at ? null : at)} />}
      {made && <Strip pieces={tokens.value} locked={state.query.value} onLock={(at) => (state.query.value = state.query.value === at ? null : at)} onTwice={(at) => card.value?.abilities.edits && offer(at)} />}
      <Edits />
    </section>
  );
}

function offer(at: number) {
  const edit = `mask_token(${at})`;
  state.edits.value = state.edits.value.includes(edit) ? state.edits.value.filter((one) => one !== edit) : [...state.edits.value, edit];
  void submit();
}

/** What was changed in this run, each with a way back. */
function Edits() {
  if (!state.edits.value.length) return null;
  return (
    <div class="edits" role="group" aria-label="edits of this run">
      <b>what if</b>
      {state.edits.value.map((one) => (
        <button key={one} class="chip" title="take this edit back" onClick={() => ((state.edits.value = state.edits.value.filter((other) => other !== one)), void submit())}>
          {one} ✕
        </button>
      ))}
    </div>
  );
}

interface Share {
  stack: string;
  layer: number;
  share: number | null;
  addr: string;
}

const LATER_MS = 50; // the screen asks first

/** For every layer the length of what it added, over that of what it gave on, at one token. */
async function shares(made: Run): Promise<Share[]> {
  const place = state.query.value ?? made.tokens.length - 1, before = new Map<string, string>(), all = layers.value;
  await new Promise((done) => setTimeout(done, LATER_MS));
  return Promise.all(all.map(async ({ stack, layer, ops }) => {
    const out = [...ops].reverse().find((one) => one.id.endsWith(".resid"))?.id ?? ops[ops.length - 1].id;
    const into = before.get(stack) ?? ops.find((one) => one.kind === "residual")?.in[0];
    before.set(stack, out);
    const [x, y] = [into && known.value.get(into), known.value.get(out)], row = y?.of_source.includes("T") && made.source_tokens ? made.source_tokens.length - 1 : place;
    if (!x || !y || x.axes.at(-2) !== "T" || String(x.shape) !== String(y.shape)) return { stack, layer, share: null, addr: out };
    try {
      const [a, b] = await Promise.all([values(made.run, at(x, row, ":")), values(made.run, at(y, row, ":"))]);
      let added = 0, whole = 0;
      for (let i = 0; i < b.data.length; i++) {
        added += (b.data[i] - a.data[i]) ** 2;
        whole += b.data[i] ** 2;
      }
      return { stack, layer, share: Math.sqrt(added / whole), addr: at(y, row) };
    } catch {
      return { stack, layer, share: null, addr: out };
    }
  }));
}

function Rail() {
  const made = run.value;
  const loaded = useLoaded(() => (made ? shares(made) : null), [made?.run, state.query.value]);
  if (!made || !layers.value.length) return <div class="rail" />;
  const list: Share[] = loaded.data?.length === layers.value.length ? loaded.data : layers.value.map(({ stack, layer }) => ({ stack, layer, share: null, addr: "" }));
  const most = Math.max(1e-9, ...list.map((one) => one.share ?? 0));
  const two = new Set(list.map((one) => one.stack)).size > 1;
  return (
    <nav class="rail" aria-label="layers" title="bar: length of what the layer added, over the length of what it gave on, at the locked token (else the last)">
      {list.map((one) => (
        <button key={`${one.stack}${one.layer}`} aria-pressed={state.layer.value === one.layer && (!two || chosenStack.value === one.stack)} onClick={() => {
          chosenStack.value = one.stack;
          state.layer.value = one.layer;
        }}>
          <span>{two && inEncoder(one.stack) ? "E" : "L"}{one.layer}</span>
          <span class="bar" aria-hidden="true" style={{ width: `${((one.share ?? 0) / most) * 100}%` }} />
          {one.share !== null && <span class="num" data-share={one.addr} data-v={one.share}>{number(one.share, 2)}</span>}
        </button>
      ))}
    </nav>
  );
}

export const chosenStack = state.param("stk", "decoder", String);

function Footer() {
  const made = run.value, late = checked.value?.run === made?.run ? checked.value?.difference : null;
  const check = made?.check.captured_vs_fast_max_abs ?? late;
  return (
    <footer>
      {made ? (
        <>
          {prebaked.value ? <span class="tag" data-prebaked>an example from the build: {prebaked.value}, our small model, read this text; the server is loading its own …</span> : <span>forward {made.ms.toFixed(1)} ms</span>}
          <span>kept {size(made.kept.bytes)} ({made.kept.tier})</span>
          <span>{made.dtype}</span>
          {check !== null && check !== undefined && (
            <span class="badge" title="The same text was read twice: with everything recorded, and as fast as the model can. This is the largest difference of a logit.">
              captured = fast path (max Δ <span class="num" data-addr="check.captured_vs_fast_max_abs" data-v={check}>{number(check, 2)}</span>) {check < 1e-3 ? "✓" : "✗"}
            </span>
          )}
          <span title={made.digest}>{made.digest.slice(0, 15)}</span>
        </>
      ) : (
        <span>nothing was read yet</span>
      )}
      <span class="right">{transport?.live ? `${location.host || "the kernel"} ${busy.value ? "· the model reads …" : "connected"}` : transport?.reads ? "computed in this page: nothing leaves it" : "a saved file: nothing leaves it"}</span>
    </footer>
  );
}

function Help() {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    box.current?.showModal();
  }, []);
  return (
    <dialog ref={box} aria-label="keys" onClose={() => (help.value = false)}>
      <h2>Keys</h2>
      <dl>
        {KEYS.map(([key, what]) => (
          <div key={key}>
            <dt><kbd>{key}</kbd></dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <button class="primary" onClick={() => box.current?.close()}>Close</button>
    </dialog>
  );
}
