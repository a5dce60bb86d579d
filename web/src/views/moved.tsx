// How an edit moves the answer.
import { percent, points } from "../core/format";
import type { Answer } from "../core/whatif";
import { Num } from "../kernel/Num";

/** Probabilities before and after an edit, of the likeliest words of both and of those that gained the most. */
export function Moved({ edit, answers, words, keep }: { edit: string; answers: [Answer, Answer]; words: Map<number, string>; keep: () => void }) {
  const [before, after] = answers;
  const ids = [...words.keys()].sort((a, b) => before.probabilities[b] - before.probabilities[a]);
  const left = answers.map((one) => Math.max(0, 1 - ids.reduce((sum, id) => sum + one.probabilities[id], 0)));
  const best = before.top[0], shift = after.probabilities[best] - before.probabilities[best];
  const told = (one: Answer, id: number) => <Num addr={`softmax(${one.run.run}:logits[${one.position}])[${id}]`} v={one.probabilities[id]} as="percent" />;
  return (
    <>
      <p class="moved">
        “<span class="mono">{words.get(best)}</span>” {told(before, best)} → {told(after, best)}{" "}
        <span class={`tag ${Math.abs(shift) < 0.00005 ? "" : shift < 0 ? "less" : "more"}`}>{points(shift)}</span>
        {after.top[0] !== best && <> the answer becomes “<b class="mono">{words.get(after.top[0])}</b>”</>}
      </p>
      <div class="scroll" tabIndex={0} role="region" aria-label="answers with and without the edit">
        <table class="answers">
          <thead><tr><th class="left">next word</th><th>now</th><th>with the edit</th><th class="left">change</th></tr></thead>
          <tbody>
            {ids.map((id) => {
              const change = after.probabilities[id] - before.probabilities[id];
              return (
                <tr key={id}>
                  <td class="left mono">{words.get(id)}</td>
                  <td>{told(before, id)}</td>
                  <td>{told(after, id)}</td>
                  <td class="left change"><i class={change < 0 ? "less" : "more"} style={{ width: `${Math.max(1, 100 * Math.abs(change))}px` }} /> {points(change)}</td>
                </tr>
              );
            })}
            <tr>
              <td class="left">all others</td>
              <td><span class="num" data-rest={left[0]}>{percent(left[0])}</span></td>
              <td><span class="num" data-rest={left[1]}>{percent(left[1])}</span></td>
              <td class="left change">{points(left[1] - left[0])}</td>
            </tr>
          </tbody>
        </table>
      </div>
      <div class="row">
        <code>{edit}</code>
        <button class="quiet" onClick={keep}>keep it on the page</button>
      </div>
    </>
  );
}
