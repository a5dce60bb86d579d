// A model without words answers with a vector: how far an edit turns it, and how near it is to a second text's.
import { useSignal } from "@preact/signals";
import { cosine, vectorOf } from "../core/whatif";
import { request, useLoaded, values } from "../core/run";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { Run } from "../core/types";
import { Num } from "../kernel/Num";

const second = state.param("t2", "", String);

const vector = (made: Run) => values(made.run, vectorOf(made)!.id).then((one) => one.data);

/** The second text, read by the same model without an edit. */
function other(made: Run): Promise<Run> | null {
  const { source, ...rest } = request([], second.value, made.model) as Record<string, unknown>;
  delete rest.ids;
  return second.value.trim() ? transport.post<Run>("api/runs", { ...rest, text: second.value, ...(source ? { source } : {}) }) : null;
}

/** The vector without and with an edit; the same run twice where nothing is edited. */
export function Alike({ before, after, keep }: { before: Run; after: Run; keep?: () => void }) {
  const typed = useSignal(second.value), edited = before.run !== after.run;
  const turned = useLoaded(async () => ({ of: before.run + after.run, v: cosine(await vector(before), await vector(after)) }), [before.run, after.run]);
  const near = useLoaded(() => {
    const run = other(before);
    if (!run) return null;
    return run.then(async (two) => {
      const [a, b, c] = await Promise.all([before, after, two].map(vector));
      return { of: before.run + after.run, text: second.value, run: two.run, now: cosine(a, c), then: cosine(b, c) };
    });
  }, [before.run, after.run, second.value]);
  const name = vectorOf(before)!.id, told = turned.data?.of === before.run + after.run ? turned.data : null;
  const alike = near.data?.of === before.run + after.run && near.data.text === second.value ? near.data : null;
  const shown = (a: string, b: string, v: number) => <Num addr={`cosine(${a}:${name},${b}:${name})`} v={v} digits={4} />;
  return (
    <div class="stack">
      {edited && told && <p class="moved">With the edit the text's vector has the cosine {shown(before.run, after.run, told.v)} to what it was <span class="soft">(1: it did not turn)</span></p>}
      <form class="row" onSubmit={(event) => (event.preventDefault(), (second.value = typed.value))}>
        <label class="row" style={{ flex: 1 }}>a second text <input style={{ flex: 1 }} aria-label="a second text" placeholder="how alike are the two?" value={typed.value} onInput={(event) => (typed.value = event.currentTarget.value)} /></label>
        <button>compare</button>
      </form>
      {(turned.error || near.error) && <p class="failure" role="alert">{turned.error || near.error}</p>}
      {alike && <p>Cosine of the two texts: {shown(before.run, alike.run, alike.now)}{edited && <> → {shown(after.run, alike.run, alike.then)} with the edit</>}</p>}
      {keep && <div class="row"><button class="quiet" onClick={keep}>keep it on the page</button></div>}
    </div>
  );
}
