import { batch } from "@preact/signals";
import { render } from "preact";
import "./style.css";
import { Ahead, example, json, prebaked, type Example } from "./core/example";
import { AFTER_MS, explain, failure, models, run, stand, submit, values } from "./core/run";
import { FIRST, fillIn } from "./core/openings";
import { arrived, edits, ids, mirror, model, notice, prompt, source, view } from "./core/state";
import { canonical, connect, HttpTransport, transport, use } from "./core/transport";
import type { ModelCard } from "./core/types";
import { Frame } from "./frame/Frame";
import { listen } from "./frame/keys";
import { install } from "./kernel/probe";
import { fetchAll, fetchScreen, screens } from "./views";

async function begin() {
  install();
  Object.assign((globalThis as any).__glassformer, { // numbers of the run on the page, and the arithmetic of one: for tests
    values: async (address: string) => Array.from((await values(run.value!.run, address)).data),
    cell: (address: string, terms = 64) => explain(run.value!.run, address, terms),
    run: () => run.value,
  });
  await connect();
  const listed = transport.json<ModelCard[]>("api/models");
  const soon: { list?: ModelCard[] } = {};
  listed.then((list) => (soon.list = list), () => undefined);
  fetchScreen(view.value); // while the model reads
  const held = transport.live && !ids.value && !edits.value.length && ["", FIRST].includes(prompt.value) ? await example() : null;
  const others = soon.list && soon.list[0]?.name !== held?.model && soon.list[0]?.loaded; // it answers at once itself
  if (held && !others && ["", held.model].includes(model.value) && ["", held.text].includes(prompt.value)) show(held, listed);
  listen(screens);
  mirror();
  arrived.then = () => void submit();
  arrived.settle = (had, screen) => models.value && settle(models.value, had, screen);
  render(<Frame />, document.getElementById("app")!);
  try {
    const list = await listed, stays = models.value?.[0]; // the example's model may be none of the server's
    models.value = stays && !list.some((one) => one.name === stays.name) ? [stays, ...list] : list;
  } catch (error) {
    failure.value = (error as Error).message;
    return;
  }
  settle(models.value);
  if (model.value) await submit();
  setTimeout(fetchAll, AFTER_MS);
}

/** The link's model and screen; where they are not here the ones that were open, else the first, and a sentence that says so. */
function settle(list: ModelCard[], had = "", screen = screens[0].name) {
  const said: string[] = [];
  let card = list.find((one) => one.name === model.value);
  if (!card && list.length) {
    card = list.find((one) => one.name === had) ?? list[0];
    if (model.value || had) said.push(`${model.value ? `There is no model ${model.value} here` : "The link names no model"}; ${card.name} ${card.name === had ? "stays" : "is open"}.`);
    model.value = card.name;
  }
  if (!screens.some((one) => one.name === view.value)) {
    said.push(`There is no screen ${view.value}; ${screen} ${had ? "stays" : "is open"}.`);
    view.value = screen;
  }
  notice.value = said.join(" ");
  if (!card) failure.value = "There is no model here. Start the page with one: glassformer page MODEL.";
  fillIn(!!card?.abilities.source);
  if (card?.abilities.source && !source.value) source.value = prompt.value;
}

/** The example on the screen, until a model of the server has read the text that stands there then. */
function show(held: Example, listed: Promise<ModelCard[]>) {
  const cards = held.answer("GET api/models");
  const read = held.answer(`POST api/runs ${canonical({ model: held.model, cut: true, text: held.text })}`);
  if (!cards || !read) return;
  let ready = () => {};
  use(new Ahead(held, new Promise((done) => (ready = done))));
  batch(() => {
    models.value = json(cards);
    model.value = prebaked.value = held.model;
    prompt.value = held.text;
    run.value = json(read);
  });
  stand.in = {
    model: async () => {
      const list = await listed;
      return model.value !== held.model || list.some((one) => one.name === held.model) ? model.value : list[0].name;
    },
    done() {
      stand.in = null;
      prebaked.value = "";
      void listed.then((list) => (models.value = list));
      use(new HttpTransport());
      ready();
    },
  };
}

void begin();
