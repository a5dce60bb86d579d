// One line a screen: its place, its title, which models have it. Playground is in the first file; the others come on their
// own, when they are opened or the page has nothing else to do.
import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { isAttention } from "../core/address";
import { transport } from "../core/transport";
import type { ModelCard } from "../core/types";
import { Playground } from "./playground";
import type { Screen } from "./screen";

const waiting = new Map<string, () => void>();

function later(name: string, load: () => Promise<ComponentType>): ComponentType {
  const found = signal<ComponentType | null>(null), failed = signal("");
  let asked = false;
  const fetch = () => {
    if (asked) return;
    asked = true;
    load().then((one) => (found.value = one), () => ((asked = false), (failed.value = "This screen did not come from the server. Is “glassformer page” still running?")));
  };
  waiting.set(name, fetch);
  return function Later() {
    useEffect(fetch, []);
    const Component = found.value;
    return Component ? <Component /> : failed.value ? <p class="failure" role="alert">{failed.value}</p> : null;
  };
}

/** Fetch a screen before it is drawn. */
export const fetchScreen = (name: string): void => waiting.get(name)?.();

/** Fetch the screens that nobody has opened yet. */
export function fetchAll(): void {
  for (const fetch of waiting.values()) fetch();
}

/** Of what the model has and a saved file leaves out. */
const unsaved = (card: ModelCard, ability: string) => (card.unsaved?.includes(ability) ? `This saved file does not hold the ${ability}: it needs the model. Open the model with “glassformer page” to see it.` : null);

/** Whether an answer can be followed back through the model. */
const answers = ({ abilities, labels, kind }: ModelCard) => abilities.attribution || (labels.length > 0 && abilities.edits && kind !== "recurrent");

/** Of a model that was opened by its own code. */
const foreign = (card: ModelCard) => (card.abilities.edits || card.unsaved?.includes("edits") ? null : "This model was opened by its own code, and this screen reads models of Glassformer's own families.");

/** Of a model that is not talked with. */
function silent(card: ModelCard): string | null {
  if (card.abilities.chat) return null;
  if (!transport?.live) return "A saved file does not answer. Open the model with “glassformer page” to talk with it.";
  if (!card.abilities.generate || card.abilities.source) return "This model does not talk: it has no chat template.";
  return "This is a base model: it has no chat template, so it continues texts, as in the Playground. Train it on conversations (docs/chat.md) to talk with it.";
}

export const screens: readonly Screen[] = [
  { name: "playground", title: "Playground", order: 1, component: Playground },
  { name: "inside", title: "Inside", order: 2, component: later("inside", () => import("./inside").then((one) => one.Inside)) },
  {
    name: "attention", title: "Attention", order: 3, component: later("attention", () => import("./attention").then((one) => one.Attention)),
    absent: (card, made) => (!card.abilities.attention || (made && !made.plan.some(isAttention)) ? "No attention with heads was found in this model: its tokens meet in another way. Inside shows how." : null),
  },
  {
    name: "lens", title: "Lens", order: 4, component: later("lens", () => import("./lens").then((one) => one.LensScreen)),
    absent: (card) => (card.abilities.lens ? null : unsaved(card, "lens") ?? foreign(card) ?? "This model has no head over words, so its depths cannot be read as words."),
  },
  {
    name: "circuit", title: "Circuit", order: 9, component: later("circuit", () => import("./circuit").then((one) => one.CircuitScreen)),
    absent: (card) => (answers(card) ? null : unsaved(card, "attribution") ?? foreign(card) ?? (card.kind === "recurrent" ? "A recurrent model has no residual stream, so no answer can be followed back along it." : "This model has no head over words and no labels, so there is no answer to follow back.")),
  },
  { name: "tokens", title: "Tokens", order: 5, component: later("tokens", () => import("./tokens").then((one) => one.Tokens)), alone: true },
  {
    name: "experts", title: "Experts", order: 6, component: later("experts", () => import("./experts").then((one) => one.Experts)),
    absent: (card) => (card.abilities.experts ? null : "Every token takes the same way through this model: it has no router and no experts."),
  },
  { name: "train", title: "Train", order: 7, component: later("train", () => import("./train").then((one) => one.Train)), alone: true },
  { name: "compare", title: "Compare", order: 8, component: later("compare", () => import("./compare").then((one) => one.Compare)) },
  {
    name: "chat", title: "Chat", order: 0, component: later("chat", () => import("./chat").then((one) => one.Chat)), alone: true,
    absent: silent,
  },
];
