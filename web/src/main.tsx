import { render } from "preact";
import "./style.css";
import { models, submit } from "./core/run";
import { announcement, arrived, mirror, model, prompt, source } from "./core/state";
import { connect } from "./core/transport";
import type { ModelCard } from "./core/types";
import { Frame, screens } from "./frame/Frame";
import { failure } from "./core/run";
import { listen } from "./frame/keys";
import { install } from "./kernel/probe";

async function begin() {
  install();
  const transport = await connect();
  listen(screens);
  mirror();
  arrived.then = () => void submit();
  render(<Frame />, document.getElementById("app")!);
  try {
    models.value = await transport.json<ModelCard[]>("api/models");
  } catch (error) {
    failure.value = (error as Error).message;
    return;
  }
  const known = models.value.find((one) => one.name === model.value);
  if (!known && models.value.length) {
    if (model.value) announcement.value = `There is no model ${model.value} here; the first is open.`;
    model.value = models.value[0].name;
  }
  const card = models.value.find((one) => one.name === model.value);
  if (!card) {
    failure.value = "There is no model here. Start the page with one: glassformer page MODEL.";
    return;
  }
  if (!prompt.value) prompt.value = "The animal didn't cross the street because it was too tired";
  if (card.abilities.source && !source.value) source.value = prompt.value;
  await submit();
}

void begin();
