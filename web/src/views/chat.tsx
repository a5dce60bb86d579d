// A conversation with the model. A click on a token of an answer opens the logit that it was drawn by, as /why of the terminal's chat does.
import { batch, effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { at } from "../core/address";
import { percent } from "../core/format";
import { card, headOf, run, submit } from "../core/run";
import { bytes } from "../core/safetensors";
import * as state from "../core/state";
import { transport } from "../core/transport";
import type { Generated } from "../core/types";
import { actions } from "../frame/keys";
import { save } from "../kernel/takeout";
import { open } from "./cell";
import "./chat.css";

interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

interface Turn {
  question: string;
  prompt: number[]; // ids of all that the answer follows
  answer: Generated[];
  end: string;
}

const DRAWN = 1200; // tokens that can be clicked, the latest
const LONGEST = 4096;
const ENDS: Record<string, string> = { stopped: "The answer was stopped; what was written stays in the chat.", context: "The answer ends where the model's context ends.", length: `The answer ends after ${LONGEST} tokens.` };
const turns = signal<Turn[]>([]), system = signal(""), draft = signal(""), trouble = signal("");
const stopper = signal<AbortController | null>(null); // of the answer that is being written
let owner = "";

const decoder = new TextDecoder();
const words = (turn: Turn) => turn.answer.map((one) => one.text).join("");
const said = (role: Message["role"], content: string): Message => ({ role, content });

function stop() {
  stopper.value?.abort();
}

function clear() {
  stop();
  batch(() => {
    stopper.value = null;
    turns.value = [];
    trouble.value = "";
  });
}

// what one model said is no other's to go on with
effect(() => {
  const name = state.model.value;
  if (owner && owner !== name) clear();
  owner = name;
});

function messages(list: readonly Turn[]): Message[] {
  const before = system.value.trim() ? [said("system", system.value)] : [];
  return [...before, ...list.flatMap((one) => [said("user", one.question), said("assistant", words(one))])];
}

/** Let the model answer; without an answer the chat stays as it was. */
async function ask(question: string, earlier: readonly Turn[]) {
  const had = turns.value, mine = new AbortController(), body = { model: state.model.value, max_new: LONGEST, messages: [...messages(earlier), said("user", question)] };
  let own: Turn = { question, prompt: [], answer: [], end: "" };
  const change = (made: Partial<Turn>) => {
    if (stopper.value !== mine) return; // another chat has begun
    own = { ...own, ...made };
    turns.value = [...earlier, own];
  };
  batch(() => {
    stopper.value = mine;
    trouble.value = draft.value = "";
    change({});
  });
  try {
    await transport.stream("api/generate", body, (data, _, event) => {
      if (event === "start") change({ prompt: data.ids });
      else if (event === "message") change({ answer: [...own.answer, data] });
      else if (event === "error") trouble.value = data.error;
      else if (event === "end") change({ end: data.finish ?? "" });
    }, mine.signal);
  } catch (error) {
    if ((error as Error).name === "AbortError") change({ end: "stopped" });
    else if (stopper.value === mine) trouble.value = (error as Error).message;
  }
  if (stopper.value !== mine) return;
  batch(() => {
    stopper.value = null;
    state.announcement.value = words(own);
    if (words(own).trim()) return;
    turns.value = had;
    if (had.length === earlier.length) draft.value = question;
    trouble.value ||= "There is no answer, so the chat stays as it was.";
  });
}

function send() {
  if (stopper.value) stop();
  else if (draft.value.trim()) void ask(draft.value.trim(), turns.value);
}

/** The logit of a token of an answer, with what it was computed from. */
async function why(turn: Turn, nth: number) {
  const ids = [...turn.prompt, ...turn.answer.slice(0, nth).map((one) => one.id)];
  batch(() => {
    state.ids.value = ids;
    state.edits.value = [];
    state.query.value = state.key.value = null;
  });
  await submit();
  const made = run.value, head = made && headOf(made);
  if (!head || made.tokens.length !== ids.length) return;
  open(at(head, ids.length - 1, turn.answer[nth].id));
  state.view.value = "inside";
}

export function Chat() {
  useEffect(() => {
    actions.stop = stop;
    return () => {
      delete actions.stop;
    };
  }, []);
  const list = turns.value, last = list.length - 1, writes = !!stopper.value;
  let left = DRAWN;
  const drawn = [...list].reverse().map((one) => (left -= one.answer.length) >= 0).reverse();
  return (
    <div class="stack chat">
      <section class="card stack" aria-label="chat">
        <div class="row">
          <h2>Chat with {card.value?.name}</h2>
          <button disabled={!list.length} onClick={clear}>Begin anew</button>
          <button disabled={!list.length || writes} onClick={() => save(`${JSON.stringify({ messages: messages(list) })}\n`, "chat", "jsonl", "application/jsonl")}>Save</button>
        </div>
        <label class="row">system <textarea aria-label="system message" rows={1} value={system.value} onInput={(event) => (system.value = event.currentTarget.value)} /></label>
        {list.map((one, nth) => [
          <p key={`q${nth}`} class="question">{one.question}</p>,
          <Answer key={`a${nth}`} turn={one} nth={nth} drawn={drawn[nth]} />,
          ENDS[one.end] && <p key={`e${nth}`} class="note">{ENDS[one.end]}</p>,
        ])}
        {trouble.value && <p class="failure" role="alert">{trouble.value}</p>}
        <div class="row">
          <textarea
            aria-label="message" rows={1} placeholder="a message" value={draft.value} onInput={(event) => (draft.value = event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
              event.preventDefault();
              if (!writes) send();
            }}
          />
          <button class="primary" onClick={send}>{writes ? "Stop" : "Send ⏎"}</button>
          <button disabled={!list.length || writes} onClick={() => void ask(list[last].question, list.slice(0, -1))}>Regenerate</button>
        </div>
        <p class="note">The model's own chat template makes one text of the messages. A click on a token of an answer opens what it was computed from.</p>
      </section>
    </div>
  );
}

function Answer({ turn, nth, drawn }: { turn: Turn; nth: number; drawn: boolean }) {
  if (!drawn) return <div class="answer">{words(turn)}</div>;
  return (
    <div class="answer" role="group" aria-label={`answer ${nth + 1}`} onKeyDown={step}>
      {turn.answer.map((one, place) => (
        <button key={place} data-id={one.id} class={one.special ? "special" : ""} tabIndex={place ? -1 : 0} title={`${percent(Math.exp(one.logprob))}; click: why`} onClick={() => void why(turn, place)}>
          {one.text || (one.special ? decoder.decode(bytes(one.bytes)) : "﹋")}
        </button>
      ))}
    </div>
  );
}

/** The arrows move along the tokens. */
function step(event: KeyboardEvent) {
  const target = event.target as HTMLElement, next = event.key === "ArrowRight" ? target.nextElementSibling : event.key === "ArrowLeft" ? target.previousElementSibling : null;
  if (!next) return;
  (next as HTMLElement).focus();
  event.preventDefault();
}
