// Circuits: how many heads and edges it takes, which, and how they are joined.
import { taskOf } from "./chosen";
import { curveCard } from "./circuit-curves";
import { el, replace } from "./dom";
import { headCard } from "./head-grid";
import { thresholdSlider } from "./maps-view";
import { taskField, touches, type Context, type View } from "./view";
import { wiringCard } from "./wiring-card";
import { visible } from "./words";

export function circuitView(context: Context): View {
  const { report, store } = context;
  const task = () => taskOf(report, store.state)!;
  const choose = (head: string) => store.set({ head: store.state.head === head ? "" : head });
  const controls = el("div", { class: "controls" });
  const slider = thresholdSlider(context);
  const warned = el("div", {});
  const curves = curveCard(context, task);
  const heads = headCard(context, task, choose);
  const wires = wiringCard(context, task, choose);
  const element = el("div", {}, controls, warned, curves.element, heads.element, wires.element);
  const update: View["update"] = (changed) => {
    if (touches(changed, "task")) replace(controls, taskField(context), slider.element);
    const notes = task().models.flatMap((model) =>
      model.warnings.map((text) => el("p", { class: "note" }, `${visible(model.model, 40)}: ${visible(text, 300)}`)),
    );
    replace(warned, ...notes);
    slider.update();
    curves.update(changed);
    heads.update(changed);
    wires.update(changed);
  };
  return { element, update };
}
