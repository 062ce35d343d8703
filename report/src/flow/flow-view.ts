// Flow: the attention edges along which information can move, token by token and layer by layer.
import type { Prompt } from "../data";
import { AttentionMaps } from "../maps/attention-maps";
import { selectedPrompt, selectedTask } from "../selection";
import type { Changed } from "../store";
import { card } from "../ui/card";
import { modelColours } from "../ui/colour";
import { promptField, promptLine, taskField, thresholdSlider } from "../ui/controls";
import { el, onResize, replace, segments, zoom } from "../ui/dom";
import type { Cell } from "../ui/download";
import { modelTitles, plural, quoted } from "../ui/format";
import { hideTooltip, showTooltip } from "../ui/tooltip";
import { anyChanged, type Context, type View } from "../ui/view";
import { edgeLists, readsOf } from "./edge-list";
import { ancestorsOf, heaviestEdges, MAX_LINES, selectedEdges, type FlowEdge } from "./flow-edges";
import { FlowPicture } from "./flow-picture";

export const flowView = (context: Context): View => new FlowView(context);

class FlowView implements View {
  readonly element: HTMLElement;
  private readonly controls = el("div", { class: "controls" });
  private readonly line = el("p", { class: "prompt" });
  private readonly stage = el("div", { class: "flows" });
  private readonly lists = el("div", { class: "edge-lists" });
  private readonly threshold: ReturnType<typeof thresholdSlider>;
  private pictures: FlowPicture[] = [];

  constructor(private readonly context: Context) {
    this.threshold = thresholdSlider(context);
    const { section, body } = card(
      context.store,
      "Flow",
      "Tokens are at the bottom, layers go up. A line runs from a key to a query that attends to it, stronger for a larger attention weight. Hover over a token to see what it reads (red) and which queries read it (orange); step back from the output to see what can have reached it.",
      "flow",
      {
        pictures: () => this.pictures.map((picture) => picture.element),
        rows: () => this.rows(),
        value: () =>
          this.task.models.map(({ model }, i) => ({
            model,
            tokens: this.prompt?.tokens,
            edges: selectedEdges(context, i),
          })),
      },
    );
    body.append(this.controls, this.line, this.stage, this.lists);
    this.element = section;
    onResize(this.stage, () => this.draw());
  }

  private get task() {
    return selectedTask(this.context.report, this.context.store.state)!;
  }

  private get prompt() {
    return selectedPrompt(this.task, this.context.store.state);
  }

  update(changed: Changed | null): void {
    if (anyChanged(changed, "task", "prompt", "all", "steps", "token")) this.updateControls();
    this.threshold.update();
    if (this.prompt) replace(this.line, ...promptLine(this.prompt));
    if (anyChanged(changed, "task", "prompt", "all", "steps", "token", "threshold", "head")) this.draw();
  }

  private updateControls(): void {
    const { context, task } = this;
    const { store } = context;
    const hasCircuit = task.models.some((model) => model.head_circuit);
    const choices = [
      { value: false, label: "Circuit" },
      { value: true, label: "All" },
    ];
    replace(
      this.controls,
      taskField(context),
      promptField(context),
      hasCircuit && segments("Heads", choices, store.state.all, (all) => store.set({ all })),
      hasCircuit && !store.state.all && this.threshold.element,
      this.stepField(),
    );
  }

  private stepField(): HTMLElement {
    const { store } = this.context;
    const layers = this.prompt?.maps[0]?.shape[0] ?? 0;
    const steps = Math.min(store.state.steps, layers);
    const button = (name: string, disabled: boolean, next: number) =>
      el("button", { type: "button", disabled, onclick: () => store.set({ steps: next }) }, name);
    const all = {
      type: "button",
      "aria-pressed": String(steps <= 0 && store.state.token < 0),
      onclick: () => store.set({ steps: -1, token: -1 }),
    };
    return el(
      "div",
      { class: "field", role: "group", "aria-label": "Step back from the output" },
      el("span", {}, steps > 0 ? `${steps} of ${plural(layers, "layer")} back` : "From the output"),
      el(
        "div",
        { class: "segments" },
        button("Step back", steps >= layers, Math.max(0, steps) + 1),
        button("Forward", steps <= 0, steps > 1 ? steps - 1 : -1),
        el("button", all, "All"),
      ),
    );
  }

  private draw(): void {
    if (!this.stage.clientWidth) return;
    const { prompt, task } = this;
    if (!prompt) {
      replace(this.stage, el("p", { class: "quiet" }, `There are no maps of ${quoted(task.task)} in this report.`));
      return;
    }
    const width = this.stage.clientWidth / zoom();
    const sideBySide = width > 1000 && task.models.length > 1 && prompt.tokens.length <= 40;
    this.pictures = [];
    replace(
      this.stage,
      ...task.models.map((_, i) => prompt.maps[i] && this.figure(prompt, i, sideBySide ? (width - 32) / 2 : width)),
    );
    replace(this.lists, ...edgeLists(this.context, prompt));
  }

  private figure(prompt: Prompt, i: number, width: number): HTMLElement {
    const { context, task } = this;
    const { store } = context;
    const { state } = store;
    const name = modelTitles(task.models)[i]!;
    const { layers } = AttentionMaps.of(prompt.maps[i]!);
    const edges = selectedEdges(context, i);
    const last = prompt.tokens.length - 1;
    const target = state.token >= 0 && state.token <= last ? state.token : last;
    const steps = state.steps < 0 ? (state.token < 0 ? 0 : layers) : Math.min(state.steps, layers);
    const ancestors = steps ? ancestorsOf(edges, target, layers, steps) : null;
    const picture = new FlowPicture(
      {
        tokens: prompt.tokens,
        answer: prompt.answers[0] ?? "",
        layers,
        edges: heaviestEdges(edges),
        width,
        colour: modelColours(task.models.map((model) => model.kind))[i]!,
        selected: state.head,
        ancestors,
        label: `Flow in ${name}; arrow keys move through the tokens, Enter selects one`,
      },
      {
        hover: (token, at) => this.hover(token, at, edges, prompt),
        select: (token) => store.set({ token: store.state.token === token ? -1 : token }),
      },
    );
    this.pictures.push(picture);
    const drawn = edges.length > MAX_LINES ? `, the ${MAX_LINES.toLocaleString("en")} of largest weight drawn` : "";
    const caption = ancestors
      ? `${plural(ancestors.tokens.size, "token")} can reach ${quoted(prompt.tokens[target], 20)} in ${plural(steps, "layer")}, along ${plural(ancestors.edges.size, "line")}`
      : `${plural(edges.length, "line")} between tokens${drawn}`;
    return el(
      "figure",
      {},
      el("figcaption", {}, el("b", {}, name), ` ${caption}`),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Flow in ${name}` }, picture.element),
    );
  }

  /** Highlight a token in all models, and list what it reads. */
  private hover(token: number | null, at: Element, edges: FlowEdge[], prompt: Prompt): void {
    this.pictures.forEach((picture) => picture.highlight(token));
    if (token === null) return hideTooltip();
    const reads = readsOf(edges, token);
    const items = reads
      .slice(0, 6)
      .map(({ head, key, weight }) => el("li", {}, `${head} ${quoted(prompt.tokens[key], 16)} ${weight.toFixed(2)}`));
    const box = at.getBoundingClientRect();
    showTooltip(
      box.right,
      box.bottom - 26,
      el("b", {}, `${token + 1} ${quoted(prompt.tokens[token])}`),
      ` reads through ${plural(reads.length, "open edge")}`,
      el("ul", {}, ...items),
    );
  }

  private rows(): Cell[][] {
    const tokens = this.prompt?.tokens;
    return [
      ["model", "layer", "query", "query_token", "key", "key_token", "head", "weight"],
      ...this.task.models.flatMap(({ model }, i) =>
        selectedEdges(this.context, i).flatMap(({ layer, query, key, heads }) =>
          heads.map(([head, weight]) => {
            const edge = [layer, query + 1, tokens?.[query], key + 1, tokens?.[key]];
            return [model, ...edge, head, Number(weight.toFixed(3))];
          }),
        ),
      ),
    ];
  }
}
