// The whole model as one drawing: what `core/flow` makes of the plan, and arrows between boxes where they were laid out.
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { inEncoder } from "../core/address";
import { type Flow as Drawing, type Item, type Part } from "../core/flow";
import { logits, run, useLoaded } from "../core/run";
import type { Run } from "../core/types";
import { answerPlace, hasWords, highest, softmax, wordsOf } from "../core/whatif";
import { Num } from "../kernel/Num";
import "./flow.css";

const LEAST = 96, GROWTH = 26; // pixels of a box, and for each doubling of the numbers that a token has in it
const MANY = 12, SHOWN = 3; // blocks of a stack that are drawn, and at each end where they are more

interface Arrow {
  path: string;
  cross: boolean;
  key: string;
}

interface Props {
  drawing: Drawing;
  open: (item: Item, part: Part | null) => void;
}

export function Flow({ drawing, open }: Props) {
  const made = run.value!, frame = useRef<HTMLDivElement>(null), whole = useSignal(false), [arrows, setArrows] = useState<Arrow[]>([]);
  const [narrow, setNarrow] = useState(false);
  const least = Math.min(...drawing.columns.flat().flatMap((one) => one.parts.map((part) => part.widest)).filter((wide) => wide > 1), 1e9);
  const columns = useMemo(() => drawing.columns.map((items) => (whole.value ? items : shortened(items))), [drawing, whole.value]);
  useLayoutEffect(() => {
    const lay = () => {
      setNarrow(frame.current!.clientWidth < 560);
      setArrows(between(frame.current!, columns.map((list) => list.filter((one): one is Item => typeof one !== "number")), drawing));
    };
    const observer = new ResizeObserver(lay);
    observer.observe(frame.current!);
    for (const one of frame.current!.querySelectorAll(".column")) observer.observe(one);
    return () => observer.disconnect();
  }, [columns, drawing, narrow]);
  return (
    <div class="flow" ref={frame} role="group" aria-label="the whole model">
      {columns.map((list, at) => (
        <div class={`column ${narrow || columns.length > 1 ? "narrow" : ""}`} key={at} role="group" aria-label={columns.length > 1 ? (at ? "decoder" : "encoder") : "stack"}>
          {list.map((item) => {
            if (typeof item === "number") return <button key="more" class="quiet" onClick={() => (whole.value = true)}>{item} more blocks of the same parts</button>;
            const box = (part: Part) => {
              const width = (LEAST + GROWTH * Math.max(0, Math.log2(part.widest / least))) * (narrow ? 0.75 : 1);
              return (
                <button key={part.key} class="part" data-part={part.key} style={{ width: `${width}px` }} title={`${part.ops.length} ${part.ops.length === 1 ? "step" : "steps"}: open them`} onClick={() => open(item, part)}>
                  <b>{part.title}</b>
                  <small>{part.shape.join("×")}{part.widest > (part.shape.at(-1) ?? 0) && part.title !== "Head" ? ` (${part.widest})` : ""}</small>
                  {part.title === "Answer" && <Best made={made} />}
                </button>
              );
            };
            if (item.layer === null) return <div key={item.key} data-item={item.key}>{box(item.parts[0])}</div>;
            return (
              <div key={item.key} class="block" data-item={item.key} role="group" aria-label={blockName(item)}>
                <button class="quiet label" aria-label={`open ${blockName(item)}`} onClick={() => open(item, null)}>{inEncoder(item.stack) ? "E" : "L"}{item.layer}</button>
                {item.parts.map(box)}
              </div>
            );
          })}
        </div>
      ))}
      <svg aria-hidden="true">
        <defs>
          <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" style={{ fill: "var(--soft)", stroke: "none" }} /></marker>
        </defs>
        {arrows.map((one) => <path key={one.key} d={one.path} data-arrow={one.key} class={one.cross ? "cross" : ""} marker-end="url(#tip)" />)}
      </svg>
    </div>
  );
}

const blockName = (item: Item) => `${inEncoder(item.stack) ? "encoder" : "decoder"} block ${item.layer}`;

/** The first and last blocks of a long stack whose blocks have the same parts, and how many are between. */
function shortened(items: readonly Item[]): (Item | number)[] {
  const blocks = items.filter((one) => one.layer !== null), like = (one: Item) => one.parts.map((part) => part.title + part.widest).join();
  if (blocks.length <= MANY || blocks.some((one) => like(one) !== like(blocks[0]))) return [...items];
  const left = new Set(blocks.slice(SHOWN, -SHOWN));
  return items.flatMap((one): (Item | number)[] => (!left.has(one) ? [one] : one === blocks[SHOWN] ? [left.size] : []));
}

/** Arrows of what reads what, from box to box as they stand. */
function between(frame: HTMLElement, columns: readonly Item[][], drawing: Drawing): Arrow[] {
  const zero = frame.getBoundingClientRect(), found: Arrow[] = [];
  const at = (kind: "item" | "part", key: string) => {
    const box = [...frame.querySelectorAll<HTMLElement>(`[data-${kind}]`)].find((one) => one.dataset[kind] === key)?.getBoundingClientRect();
    return box && { left: box.left - zero.left, right: box.right - zero.left, top: box.top - zero.top, bottom: box.bottom - zero.top, x: (box.left + box.right) / 2 - zero.left, y: (box.top + box.bottom) / 2 - zero.top };
  };
  for (const list of columns)
    list.forEach((item, nth) => {
      const to = at("item", item.key);
      item.reads.forEach((from) => {
        const back = list.findIndex((one) => one.key === from), start = at("item", from);
        if (back < 0 || back > nth || !start || !to || list[back].parts[0].ops.every((op) => op.kind === "leaf") && back !== nth - 1) return;
        const side = Math.max(...list.slice(back, nth + 1).map((one) => at("item", one.key)!.right)) + 8;
        const path = back === nth - 1 ? `M${start.x} ${start.bottom}L${to.x} ${to.top}` : `M${start.right} ${start.y}H${side}V${to.y}H${to.right}`;
        found.push({ key: `${from} > ${item.key}`, cross: false, path });
      });
      item.parts.forEach((part, inner) => {
        const before = inner && part.after ? at("part", item.parts[inner - 1].key) : null, here = at("part", part.key);
        if (!before || !here) return;
        const row = Math.abs(before.y - here.y) < 8;
        found.push({ key: `${item.parts[inner - 1].key} > ${part.key}`, cross: false, path: row ? `M${before.right} ${before.y}H${here.left}` : `M${before.x} ${before.bottom}L${here.x} ${here.top}` });
      });
    });
  for (const { item, part, from } of drawing.cross) {
    const start = at("item", from), to = at("part", part), box = at("item", item);
    if (!start || !to || !box) continue;
    const encoder = frame.querySelector(".column")!.getBoundingClientRect().right - zero.left, trunk = encoder + 14;
    found.push({ key: `${from} > ${part}`, cross: true, path: `M${start.right} ${start.y}H${trunk}V${to.y}H${to.left}` });
  }
  return found;
}

/** The likeliest word of the answer, and how likely it is. */
function Best({ made }: { made: Run }) {
  const place = answerPlace(made);
  const loaded = useLoaded(async () => {
    if (!hasWords(made)) return null;
    const shares = softmax(await logits(made.run, place)), [id] = highest(shares, 1);
    return { run: made.run, place, id, p: shares[id], word: (await wordsOf([id], made.model))[0] };
  }, [made.run, place]);
  const told = loaded.data;
  if (told?.run !== made.run || told.place !== place) return null;
  return <span class="mono">“{told.word}” <Num addr={`probs[${place},${told.id}]`} v={told.p} as="percent" /></span>;
}
