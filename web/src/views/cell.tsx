// One number and the arithmetic behind it: every operand can be clicked, and is then the number that is asked about.
import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { parse, short } from "../core/address";
import { number, signed } from "../core/format";
import { label } from "../core/pieces";
import { along, explain, ops, run, useLoaded } from "../core/run";
import * as state from "../core/state";
import { columns, side } from "../core/terms";
import { transport } from "../core/transport";
import { wordsOf } from "../core/whatif";
import type { Cell } from "../core/types";
import { actions } from "../frame/keys";
import { Num } from "../kernel/Num";

const MOST = 20_000; // terms that the server gives at most
const trail = signal<string[]>([]);

/** Ask about a number: the way back is kept. */
export function open(address: string): void {
  if (state.cell.value && state.cell.value !== address) trail.value = [...trail.value.slice(-40), state.cell.value];
  state.cell.value = address;
  const { name, index } = parse(address), op = ops.value.get(name);
  if (!op) return;
  state.op.value = op.id;
  if (op.layer !== null) state.layer.value = op.layer;
  const axes = op.axes.slice(op.axes.length - (index?.length ?? 0));
  axes.forEach((axis, i) => {
    const place = index![i];
    if (axis === "T") state.query.value = place;
    if (axis === "S") state.key.value = place;
    if (axis === "H") state.head.value = place;
    if (axis === "F") state.neuron.value = place;
  });
}

export function back(): void {
  const before = trail.value[trail.value.length - 1];
  trail.value = trail.value.slice(0, -1);
  if (before === undefined) state.cell.value = "";
  else {
    const rest = trail.value;
    state.cell.value = "";
    open(before);
    trail.value = rest;
  }
}

export function CellCard() {
  const made = run.value, address = state.cell.value, most = useSignal(64);
  useEffect(() => {
    most.value = 64;
  }, [address]);
  const loaded = useLoaded(() => (made && address ? explain(made.run, address, most.value) : null), [made?.run, address, most.value]);
  if (!address) return <p class="note">Open a cell (click, or Enter) to see the arithmetic behind it.</p>;
  if (loaded.error) return <p class="failure" role="alert">{loaded.error}</p>;
  const one = loaded.data;
  if (!one) return <p class="note">…</p>;
  return (
    <section class="cell stack" aria-label="the arithmetic of one number" aria-busy={loaded.loading}>
      <div class="row">
        {trail.value.length > 0 && <button class="quiet" title="Backspace" onClick={back}>← {short(trail.value[trail.value.length - 1])}</button>}
        <button class="quiet" title="close" aria-label="close the cell" onClick={() => ((trail.value = []), (state.cell.value = ""))}>✕</button>
      </div>
      <div>
        <code>{one.address}</code>
        {one.place && <p class="note">{one.place}</p>}
        <div class="value"><Num addr={one.address} v={one.value} digits={8} /> <span class="tag">{one.kind}</span> {one.edited && <span class="tag">changed by an edit</span>}</div>
      </div>
      <Depths one={one} />
      <Terms one={one} more={transport.reads && one.count > one.terms.length && one.terms.length < MOST ? () => (most.value = Math.min(4 * one.terms.length, MOST)) : undefined} />
      <Others one={one} />
      <Check one={one} />
      <Python address={one.address} />
    </section>
  );
}

function Depths({ one }: { one: Cell }) {
  if (state.depth.value === "maths") return <p class="formula">{one.equation}</p>;
  if (state.depth.value === "code") return <p><code>{one.source || "given"}</code></p>;
  return <p>{one.sentence}</p>;
}

const PLAIN = new Set(["softmax"]); // shares of a whole: the terms are shares, their operands the numbers they are made of

/** The words that the terms are of: tokens of the vocabulary or of the text; null where their side has none. */
async function named(one: Cell): Promise<string[] | null> {
  const found = side(one.terms, (name) => ops.value.get(name)?.axes);
  if (found?.axis === "V") return wordsOf(found.places, run.value!.model);
  const pieces = found && along(ops.value.get(found.name)!, found.axis);
  return pieces ? found.places.map((at) => label(pieces[at])) : null;
}

function Terms({ one, more }: { one: Cell; more: (() => void) | undefined }) {
  const sort = useSignal<"size" | "index">("size");
  const loaded = useLoaded(() => named(one).then((said) => ({ one, said })), [one]); // without the vocabulary: ids alone
  const said = loaded.data?.one === one ? loaded.data.said : null, words = new Map(said?.map((word, at) => [one.terms[at].term, word]));
  if (!one.terms.length) return null;
  const rows = [...one.terms];
  if (sort.value === "index") rows.sort((a, b) => a.term - b.term);
  const most = Math.max(...rows.map((row) => Math.abs(row.value ?? 0)), 1e-30);
  const names = columns(rows), factors = names.length;
  const extra = one.numbers.bias ?? 0, shown = rows.reduce((sum, row) => sum + (row.value ?? 0), 0);
  const total = PLAIN.has(one.kind) ? 1 : (one.recomputed ?? NaN) - (extra ?? 0), rest = total - shown;
  let running = 0;
  return (
    <div>
      <div class="row">
        <h3>{one.count} {one.count === 1 ? "term" : "terms"}</h3>
        {one.count > 1 && (
          <span class="switch" role="group" aria-label="order of the terms">
            {(["size", "index"] as const).map((by) => <button key={by} aria-pressed={sort.value === by} onClick={() => (sort.value = by)}>by {by}</button>)}
          </span>
        )}
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="terms">
        <table class="terms">
          <thead>
            <tr>
              <th scope="col">#</th>
              {said && <th scope="col" class="left">token</th>}
              {names.map((name, i) => <th scope="col" key={i}>{name || "of"}</th>)}
              <th scope="col">{factors > 1 ? "product" : PLAIN.has(one.kind) ? "share" : "term"}</th>
              <th scope="col">running</th>
              <th scope="col"><span class="hidden">size</span></th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => {
              running += row.value ?? 0;
              const share = Math.abs(row.value ?? 0) / most, minus = (row.value ?? 0) < 0;
              return (
                <tr key={row.term}>
                  <td>{row.term}</td>
                  {said && <td class="left mono">{words.get(row.term)}</td>}
                  {names.map((name, i) => <td key={i}>{!name && row.operands[i] && <code>{short(parse(row.operands[i].address).name)} </code>}{row.operands[i] && <Num addr={row.operands[i].address} v={row.operands[i].value} open={open} />}</td>)}
                  <td><span class="num" data-term={row.term} data-v={row.value ?? ""}>{signed(row.value)}</span></td>
                  <td class="num">{number(running)}</td>
                  <td class="bar"><i class={minus ? "minus" : ""} style={minus ? { right: "50%", width: `${share * 50}%` } : { left: "50%", width: `${share * 50}%` }} /></td>
                </tr>
              );
            })}
            {one.count > rows.length && (
              <tr>
                <td />
                <td class="left" colSpan={factors + (said ? 1 : 0)}>{more ? <button onClick={more}>show more of {one.count - rows.length} ▾</button> : `${one.count - rows.length} more${transport.reads ? "" : ", not in this file"}`}</td>
                <td class="num">{signed(rest)}</td>
                <td class="num">{number(total)}</td>
                <td />
              </tr>
            )}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function Others({ one }: { one: Cell }) {
  const used = new Set(one.terms.flatMap((row) => row.operands.map((each) => each.address)));
  const others = one.others.filter((each) => !used.has(each.address)), numbers = Object.entries(one.numbers);
  if (!others.length && !numbers.length) return null;
  return (
    <table>
      <tbody>
        {others.map((each) => (
          <tr key={each.address}>
            <th scope="row" class="left"><code>{short(each.address)}</code></th>
            <td><Num addr={each.address} v={each.value} open={open} /></td>
          </tr>
        ))}
        {numbers.map(([name, v]) => (
          <tr key={name}>
            <th scope="row" class="left">{name}</th>
            <td><span class="num" data-number={name} data-v={v ?? ""}>{number(v, 7)}</span></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Check({ one }: { one: Cell }) {
  if (one.kind === "leaf" || one.kind === "weight") return <p class="note">Here the arithmetic begins.</p>;
  return (
    <p>
      again, in float64: <span class="num" data-recomputed={one.recomputed ?? ""}>{number(one.recomputed, 8)}</span><br />
      the model stored <span class="num">{number(one.value, 8)}</span> ({one.dtype}) · |Δ| <span class="num" data-difference={one.difference ?? ""}>{number(Math.abs(one.difference ?? 0), 2)}</span>
    </p>
  );
}

function Python({ address }: { address: string }) {
  const line = `trace.explain(${JSON.stringify(address)})`, done = useSignal(false);
  return (
    <div class="row">
      <code>{line}</code>
      <button class="quiet" onClick={() => navigator.clipboard?.writeText(line).then(() => (done.value = true), () => (done.value = false))}>{done.value ? "copied" : "copy Python"}</button>
    </div>
  );
}

actions.up = back;
