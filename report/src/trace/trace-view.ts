// Trace: one prediction explained, from the heads that carry it to the features it is attributed to.
import type { Trace } from "../data";
import { headName, parseHead } from "../maps/attention-maps";
import { selectedSide, selectedTraces } from "../selection";
import type { Changed, State } from "../store";
import { card, type Card } from "../ui/card";
import { slider, type Slider } from "../ui/controls";
import { el, onResize, replace, segments, select, zoom } from "../ui/dom";
import { indexChoices, modelTitles, percent, quoted, visible } from "../ui/format";
import { anyChanged, type Context, type View } from "../ui/view";
import { carryingHeads } from "./carrying-heads";
import { traceDiagram } from "./diagram";
import { traceGraph } from "./graph";
import { findNodes } from "./find-nodes";
import { inspect } from "./inspector";
import { pinList, type Pinning } from "./inspector-pins";
import { placeName } from "./node-names";
import { queryParameters, readPins, writePins, type Group } from "./pins";
import { effectBars, trustTable } from "./validation";

const MAX_MATCHES = 12; // of a search, as buttons

export const traceView = (context: Context): View => new TraceView(context);

class TraceView implements View {
  readonly element: HTMLElement;
  private diagram: SVGSVGElement | null = null;
  private graph: SVGSVGElement | null = null;
  private readonly controls = el("div", { class: "controls" });
  private readonly graphControls = el("div", { class: "controls" });
  private readonly warnings = el("div", {});
  private readonly trust = el("div", {});
  private readonly effects: Card;
  private readonly diagramStage = scrollable("Attribution diagram");
  private readonly graphStage = scrollable("Attribution graph");
  private readonly inspector = el("aside", { class: "inspector", "aria-label": "Selection", "aria-live": "off" });
  private readonly share: Slider;
  private readonly links: Slider;
  private readonly find: HTMLInputElement;
  private readonly matches = el("div", { class: "chips", "aria-live": "polite" });

  constructor(private readonly context: Context) {
    const { store } = context;
    const shares = { min: 0.1, max: 1, step: 0.05 };
    this.share = slider("Heads that carry", "Share of the flow from the key", shares, (share) => store.set({ share }));
    this.links = slider("Links", "Links drawn", { min: 1, step: 1 }, (links) => store.set({ links }));
    this.find = el("input", {
      type: "search",
      placeholder: "large, or L0/312",
      oninput: () => store.set({ find: this.find.value.slice(0, 80) }),
    });
    const [diagramCard, graphCard] = [this.diagramCard(), this.graphCard()];
    diagramCard.body.append(this.diagramStage);
    graphCard.body.append(this.graphControls, this.matches, el("div", { class: "with-inspector" }, this.graphStage, this.inspector));
    this.effects = this.effectsCard();
    this.element = el(
      "div",
      {},
      this.controls,
      this.trust,
      this.warnings,
      diagramCard.section,
      this.effects.section,
      graphCard.section,
    );
    onResize(this.diagramStage, () => this.drawDiagram());
    onResize(this.graphStage, () => this.drawGraph());
  }

  private get state(): State {
    return this.context.store.state;
  }

  /** The traces of the selected prompt: one, or the dense and the sparse model's. */
  private get traces(): Trace[] {
    return selectedTraces(this.context.report, this.state);
  }

  /** The trace whose graph is shown. */
  private get trace(): Trace {
    return this.traces[selectedSide(this.traces, this.state)]!;
  }

  update(changed: Changed | null): void {
    if (anyChanged(changed, "trace", "key")) this.updateControls();
    this.updateSliders();
    if (anyChanged(changed, "trace", "side")) this.updateGraphControls();
    const notes = this.traces.flatMap(({ model, warnings }) =>
      warnings.map((text) => el("p", { class: "note" }, `${visible(model, 40)}: ${visible(text, 300)}`)),
    );
    replace(this.warnings, ...notes);
    if (anyChanged(changed, "trace")) replace(this.trust, trustTable(this.traces));
    if (anyChanged(changed, "trace", "side")) this.updateEffects();
    if (anyChanged(changed, "trace", "key", "share", "head")) this.drawDiagram();
    if (anyChanged(changed, "trace", "side", "find")) this.updateMatches();
    if (anyChanged(changed, "trace", "side", "pick", "head", "links", "find", "pins0", "pins1")) this.drawGraph();
    if (anyChanged(changed, "trace", "side", "pick", "head", "pins0", "pins1")) this.updateInspector();
  }

  private updateControls(): void {
    const { report, store } = this.context;
    const last = this.traces[this.traces.length - 1]!;
    const prompts = indexChoices(report.traces.map((traces) => visible(traces[0]?.label ?? traces[0]?.prompt, 90)));
    const keys = last.tokens
      .slice(0, Math.max(1, last.tokens.length - 1))
      .map((token, value) => ({ value, label: `${value + 1} ${visible(token, 20)}` }));
    const index = Math.min(this.state.trace, report.traces.length - 1);
    replace(
      this.controls,
      report.traces.length > 1 &&
        select("Prompt", prompts, index, (trace) => store.set({ trace, key: -1, pick: "", find: "", pins0: "", pins1: "" })),
      select("Key", keys, keyOf(last, this.state), (key) => store.set({ key })),
      this.share.element,
      el(
        "p",
        { class: "prompt" },
        el("span", { class: "words" }, visible(last.prompt, 400)),
        " → ",
        el("b", {}, quoted(last.logits[0]?.[0], 20)),
        ` ${percent(last.logits[0]?.[1])}`,
      ),
    );
  }

  private updateSliders(): void {
    const { share, links, state, trace } = this;
    share.input.value = String(shareOf(state));
    share.output.textContent = percent(shareOf(state));
    links.input.max = String(trace.links.length);
    links.input.value = String(linksOf(trace, state));
    links.output.textContent = `${linksOf(trace, state)} of ${trace.links.length}`;
  }

  private updateGraphControls(): void {
    const { traces, state } = this;
    const { store } = this.context;
    const selectSide = (side: number) =>
      store.set({ side, pick: /^head:/.test(this.state.pick) ? this.state.pick : "" });
    replace(
      this.graphControls,
      traces.length > 1 &&
        segments("Model", indexChoices(modelTitles(traces)), selectedSide(traces, state), selectSide),
      this.links.element,
      el("label", { class: "field" }, el("span", {}, "Find a feature or token"), this.find),
    );
  }

  private updateInspector(): void {
    const { state, trace } = this;
    const clear = () => this.context.store.set({ pick: "" });
    const select = (pick: string) => this.select(pick);
    replace(
      this.inspector,
      ...inspect(trace, pickOf(state), select, this.pinning),
      state.pick ? el("button", { type: "button", onclick: clear }, "Clear selection") : null,
      pinList(trace, this.pinning, select),
    );
  }

  /** The pinned nodes of the graph that is shown. */
  private get pinning(): Pinning {
    const field = selectedSide(this.traces, this.state) === 0 ? "pins0" : "pins1";
    return {
      groups: readPins(this.state[field], this.trace),
      set: (groups: Group[]) => this.context.store.set({ [field]: writePins(groups) }),
    };
  }

  /** What the search has found, most influential first. */
  private updateMatches(): void {
    const { trace, state } = this;
    if (this.find.value !== state.find) this.find.value = state.find;
    const found = findNodes(trace, state.find);
    if (!found) return replace(this.matches);
    const chip = (id: string) =>
      el("button", { type: "button", class: "chip", onclick: () => this.select(`node:${id}`) }, placeName(trace, id));
    const count = `${found.length} of ${trace.nodes.length} nodes`;
    replace(this.matches, el("span", { class: "quiet" }, count), ...found.slice(0, MAX_MATCHES).map(chip));
  }

  private updateEffects(): void {
    const { traces, state } = this;
    const choose = (side: number) => this.context.store.set({ side });
    replace(
      this.effects.body,
      traces.length > 1 && segments("Model", indexChoices(modelTitles(traces)), selectedSide(traces, state), choose),
      ...effectBars(this.trace, (pick) => this.select(pick)),
    );
  }

  private effectsCard(): Card {
    return card(
      this.context.store,
      "Effects of ablations",
      "The features, heads and tokens whose ablation in the model changes the answer most, with nothing frozen. Each bar is split into what goes along values (the attribution graph), by moving attention, by the norms, and by what the MLPs do beyond their features; the parts add up to what is measured, pale ones raise the answer.",
      "effects",
      {
        rows: () => [
          ["what", "kind", "predicted", "replaced", "frozen", "measured", "values", "attention", "norms", "errors"],
          ...this.trace.interventions.map((one) => [
            one.what,
            one.kind ?? "",
            one.predicted,
            one.replaced ?? "",
            one.frozen,
            one.actual,
            one.values ?? "",
            one.attention ?? "",
            one.norms ?? "",
            one.errors ?? "",
          ]),
        ],
        value: () => this.trace.interventions,
      },
    );
  }

  private select(pick: string): void {
    const head = /^head:(L\d+H\d+)$/.exec(pick)?.[1];
    this.context.store.set(head ? { pick, head } : { pick });
  }

  private drawDiagram(): void {
    const width = this.diagramStage.clientWidth;
    if (!width) return;
    const { traces, state } = this;
    const { store } = this.context;
    this.diagram = traceDiagram({
      traces,
      titles: modelTitles(traces),
      key: keyOf(traces[traces.length - 1]!, state),
      share: shareOf(state),
      width: Math.max(300, Math.min(width / zoom(), 1400)),
      selected: state.head,
      selectHead: (head, side) => store.set({ head, side, pick: `head:${head}` }),
      selectKey: (key) => store.set({ key }),
    });
    replace(this.diagramStage, this.diagram);
  }

  private drawGraph(): void {
    const stage = this.graphStage;
    if (!stage.clientWidth) return;
    const { trace, traces, state } = this;
    this.graph = traceGraph({
      trace,
      width: Math.max(300, (stage.clientWidth - 2) / zoom()),
      links: linksOf(trace, state),
      pick: state.pick,
      selected: state.head,
      groups: this.pinning.groups,
      found: findNodes(trace, state.find),
      title: modelTitles(traces)[selectedSide(traces, state)]!,
      select: (pick) => this.select(pick),
    });
    const [left, top] = [stage.scrollLeft, stage.scrollTop];
    const isFirst = !stage.firstChild;
    replace(stage, this.graph);
    stage.scrollTo(isFirst ? stage.scrollWidth : left, top); // the output is at the right
  }

  private diagramCard(): Card {
    const carrying = (trace: Trace) => carryingHeads(trace, keyOf(trace, this.state), shareOf(this.state));
    return card(
      this.context.store,
      "Attribution diagram",
      "Attention maps of the fewest heads that carry the chosen share of the flow from the key (red) to the last position, largest share first. The red cell marks this query and key; it is filled if the query attends to this key most. Below: the prompt, the clusters of features that respond to its tokens, and the output. Click a token to make it the key.",
      "diagram",
      {
        pictures: () => (this.diagram ? [this.diagram] : []),
        rows: () => [
          ["model", "head", "share", "attends_most_to_key"],
          ...this.traces.flatMap((trace) =>
            carrying(trace).heads.map((head) => [trace.model, headName(head), head.share, head.mapsKey ? 1 : 0]),
          ),
        ],
        value: () =>
          this.traces.map((trace) => ({
            model: trace.model,
            clusters: trace.clusters,
            origins: trace.origins,
            carrying_heads: carrying(trace),
          })),
      },
    );
  }

  private graphCard(): Card {
    return card(
      this.context.store,
      "Attribution graph",
      "From the tokens (bottom) to the output (top): one column per token, one row per layer. Circles are features, diamonds transcoder errors. Node size is influence; link width is the link's share of the output. Blue links are positive, orange ones negative; red ones are carried by the selected head.",
      "graph",
      {
        pictures: () => (this.graph ? [this.graph] : []),
        rows: () => [
          ["source", "target", "weight", "flow", "straight", "heads"],
          ...this.trace.links.map(({ source, target, weight, flow, straight, heads }) => {
            const shares = heads.slice(0, 8).map(([name, value]) => `${name} ${value}`);
            return [source, target, weight, flow, straight, shares.join("; ")];
          }),
        ],
        value: () => ({
          ...this.trace,
          cells: undefined,
          maps: undefined,
          qParams: queryParameters(this.trace, this.pinning.groups),
        }),
      },
    );
  }
}

const scrollable = (name: string): HTMLElement =>
  el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name });

/** What the inspector shows: the selection in the trace, or else the head that was selected in another view. */
const pickOf = (state: State): string => state.pick || (parseHead(state.head) ? `head:${state.head}` : "");

const shareOf = (state: State): number => Math.min(1, Math.max(0.05, state.share));

const linksOf = (trace: Trace, state: State): number =>
  Math.min(Math.max(1, Math.round(state.links)), Math.max(1, trace.links.length));

const keyOf = (trace: Trace, state: State): number =>
  state.key >= 0 && state.key < Math.max(1, trace.tokens.length - 1) ? Math.trunc(state.key) : trace.main_key;
