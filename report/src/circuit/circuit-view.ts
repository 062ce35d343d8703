// Circuit: how many heads and edges it needs, which heads, and how they are joined.
import { selectedTask } from "../selection";
import { taskField, thresholdSlider } from "../ui/controls";
import { el, replace } from "../ui/dom";
import { visible } from "../ui/format";
import { anyChanged, type Context, type View } from "../ui/view";
import { curvesCard } from "./curves-card";
import { headsCard } from "./heads-card";
import { wiringCard } from "./wiring-card";

export function circuitView(context: Context): View {
  const { report, store } = context;
  const task = () => selectedTask(report, store.state)!;
  const toggleHead = (head: string) => store.set({ head: store.state.head === head ? "" : head });
  const controls = el("div", { class: "controls" });
  const threshold = thresholdSlider(context);
  const warnings = el("div", {});
  const cards = [
    curvesCard(context, task),
    headsCard(context, task, toggleHead),
    wiringCard(context, task, toggleHead),
  ];
  const element = el("div", {}, controls, warnings, ...cards.map((each) => each.element));
  const update: View["update"] = (changed) => {
    if (anyChanged(changed, "task")) replace(controls, taskField(context), threshold.element);
    const notes = task().models.flatMap((model) =>
      model.warnings.map((text) => el("p", { class: "note" }, `${visible(model.model, 40)}: ${visible(text, 300)}`)),
    );
    replace(warnings, ...notes);
    threshold.update();
    cards.forEach((each) => each.update(changed));
  };
  return { element, update };
}
