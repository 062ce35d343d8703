// Maps: attention maps of the heads of each model's circuit, side by side.
import type { ModelCircuit, PackedMaps, Prompt } from "../data";
import { circuitSize, importance, selectedPrompt, selectedTask, selectedThreshold } from "../selection";
import type { Changed, State } from "../store";
import { card } from "../ui/card";
import { promptField, promptLine, taskField, thresholdSlider } from "../ui/controls";
import { el, replace, segments, svg } from "../ui/dom";
import { modelTitles, percent, quoted, visible } from "../ui/format";
import { anyChanged, type Context, type View } from "../ui/view";
import { AttentionMaps } from "./attention-maps";
import { HeadDetail } from "./head-detail";
import { edgeRows, headLists, headTypeField, shownHeads } from "./head-list";
import { MapPanel, type PanelContent } from "./map-panel";

export const mapsView = (context: Context): View => new MapsView(context);

class MapsView implements View {
  readonly element: HTMLElement;
  private readonly body: HTMLElement;
  private readonly controls = el("div", { class: "controls" });
  private readonly line = el("p", { class: "prompt" });
  private readonly threshold: ReturnType<typeof thresholdSlider>;
  private readonly panels: MapPanel[];
  private readonly detail: HeadDetail;

  constructor(private readonly context: Context) {
    const { report, store } = context;
    const models = Math.max(1, ...report.tasks.map((task) => task.models.length));
    this.threshold = thresholdSlider(context);
    this.panels = Array.from({ length: models }, () => new MapPanel((head) => this.toggleHead(head)));
    this.detail = new HeadDetail(store, models, (step) => this.moveHead(step));
    const { section, body } = card(
      store,
      "Attention maps",
      "One map per head of the circuit: queries down, keys across; blank is exactly 0, the strongest colour an attention weight of 1. Move the threshold: the more of the effect is to be explained, the more heads it takes.",
      "maps",
      {
        pictures: () => [joinPanels(this.panels)],
        rows: () => edgeRows(this.task, this.prompt, store.state),
        value: () => headLists(this.task, this.prompt, store.state),
      },
    );
    const panels = el("div", { class: "panels" }, ...this.panels.map((panel) => panel.element));
    body.append(this.controls, this.line, el("div", { class: "stage" }, panels, this.detail.element));
    [this.element, this.body] = [section, body];
  }

  private get task() {
    return selectedTask(this.context.report, this.context.store.state)!;
  }

  private get prompt() {
    return selectedPrompt(this.task, this.context.store.state);
  }

  update(changed: Changed | null): void {
    const { prompt } = this;
    this.body.classList.toggle("empty", !prompt);
    if (anyChanged(changed, "task", "prompt", "type", "sort")) this.updateControls();
    this.threshold.update();
    if (!prompt) return replace(this.line, `There are no maps of ${quoted(this.task.task)} in this report.`);
    replace(this.line, ...promptLine(prompt));
    this.panels.forEach((panel, i) => {
      const [model, packed] = [this.task.models[i], prompt.maps[i]];
      panel.element.hidden = !model || !packed;
      if (model && packed) panel.update(this.panelContent(prompt, model, packed, i));
    });
    if (anyChanged(changed, "task", "prompt", "head", "open", "query")) this.updateDetail(prompt);
    this.body.classList.toggle("opened", !this.detail.element.hidden);
    if (changed?.has("open") && this.context.store.state.open && innerWidth < 1100)
      this.detail.element.scrollIntoView({ block: "start" });
  }

  private updateControls(): void {
    const { context, task, prompt } = this;
    const { store } = context;
    const orders = [
      { value: "importance", label: "Importance" },
      { value: "layer", label: "Layer" },
    ] as const;
    replace(
      this.controls,
      taskField(context),
      promptField(context),
      this.threshold.element,
      headTypeField(context, task, prompt),
      segments<State["sort"]>("Order", [...orders], store.state.sort, (sort) => store.set({ sort })),
    );
  }

  private updateDetail(prompt: Prompt): void {
    const focused = this.detail.element.contains(document.activeElement);
    this.detail.update(this.task, prompt);
    // when it closes, the focus returns to the head's map
    if (focused && this.detail.element.hidden)
      this.panels.some((panel) => panel.focus(this.context.store.state.head));
  }

  private panelContent(prompt: Prompt, model: ModelCircuit, packed: PackedMaps, i: number): PanelContent {
    const { task } = this;
    const { state } = this.context.store;
    const maps = AttentionMaps.of(packed);
    const heads = shownHeads(task, prompt, i, state);
    const threshold = selectedThreshold(task, state);
    const circuit = model.head_circuit;
    const size = circuit ? circuitSize(circuit, threshold) : maps.layers * maps.heads;
    const filtered = state.type ? `, ${heads.length} of them ${state.type}` : "";
    return {
      maps,
      heads,
      tokens: prompt.tokens,
      types: prompt.types[i] ?? [],
      importance: (head) => importance(model, head),
      title: modelTitles(task.models)[i]!,
      selected: state.head,
      summary: circuit
        ? `${size} of ${circuit.total} heads explain ${percent(threshold)} of the effect on ${visible(task.task, 30)}${filtered}`
        : `${heads.length} heads; no circuit was computed`,
      empty: state.type
        ? `None of ${size} heads is ${state.type} on this prompt`
        : `No head is needed for ${percent(threshold)}`,
    };
  }

  private toggleHead(head: string): void {
    const { store } = this.context;
    const isOpen = store.state.head === head && store.state.open;
    store.set(isOpen ? { head: "", open: false } : { head, open: true });
  }

  /** Enlarge the next or the previous head of the last model. */
  private moveHead(step: number): void {
    const { store } = this.context;
    const heads = shownHeads(this.task, this.prompt!, this.task.models.length - 1, store.state);
    const next = heads.indexOf(store.state.head) + step;
    if (heads.length) store.set({ head: heads[(next + heads.length) % heads.length]! });
  }
}

function joinPanels(panels: MapPanel[]): SVGSVGElement {
  let left = 12;
  const pictures = panels
    .filter((panel) => !panel.element.hidden)
    .map((panel) => {
      const picture = panel.picture(left);
      left += picture.width + 24;
      return picture;
    });
  const height = Math.max(60, ...pictures.map((picture) => picture.height));
  return svg("svg", { viewBox: `0 0 ${left} ${height + 16}` }, ...pictures.map((picture) => picture.group));
}
