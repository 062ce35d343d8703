// Trace: one prediction explained, from the heads that carry it down to the features it is made of.
import { card } from "./card";
import { sideOf, tracesOf } from "./chosen";
import { carrying } from "./carrying";
import type { Trace } from "./data";
import { el, onResize, replace, segments, select, zoom } from "./dom";
import { headName, parseHead } from "./maps";
import type { State } from "./store";
import { traceDiagram } from "./trace-diagram";
import { traceGraph } from "./trace-graph";
import { inspect } from "./trace-inspector";
import { touches, type Context, type View } from "./view";
import { choices, percent, quoted, titles, visible } from "./words";

export function traceView(context: Context): View {
  const { report, store } = context;
  const traces = () => tracesOf(report, store.state);
  const trace = () => traces()[sideOf(traces(), store.state)]!;
  let diagram: SVGSVGElement | null = null;
  let graph: SVGSVGElement | null = null;

  const choose = (pick: string) => {
    const head = /^head:(L\d+H\d+)$/.exec(pick)?.[1];
    store.set(head ? { pick, head } : { pick });
  };
  const boxes = card(
    store,
    "Attribution diagram",
    "Maps of the fewest heads that bring the red word to the last position, the most important first. The red cell is that query and key, filled if the head looks there most. Below: the prompt, the clusters of features that respond to its words, the output. Click a word to make it the key.",
    "diagram",
    {
      pictures: () => (diagram ? [diagram] : []),
      rows: () => [
        ["model", "head", "part", "looks_there"],
        ...traces().flatMap((each) =>
          carrying(each, keyOf(each, store.state), shareOf(store.state)).heads.map((head) => [
            each.model,
            headName(head),
            head.part,
            head.looks ? 1 : 0,
          ]),
        ),
      ],
      value: () =>
        traces().map((each) => ({
          model: each.model,
          clusters: each.clusters,
          origins: each.origins,
          carrying: carrying(each, keyOf(each, store.state), shareOf(store.state)),
        })),
    },
  );
  const nets = card(
    store,
    "Attribution graph",
    "From the tokens below to the output above, each in its token's column and its layer's row: circles are features, diamonds errors of the transcoder. Nodes are as large as their influence, links as wide as their share of the output; blue adds, orange takes away, red is carried by the lit head.",
    "graph",
    {
      pictures: () => (graph ? [graph] : []),
      rows: () => [
        ["source", "target", "weight", "flow", "straight", "heads"],
        ...trace().links.map((link) => [
          link.source,
          link.target,
          link.weight,
          link.flow,
          link.straight,
          link.heads
            .slice(0, 8)
            .map(([name, value]) => `${name} ${value}`)
            .join("; "),
        ]),
      ],
      value: () => ({ ...trace(), cells: undefined, maps: undefined }),
    },
  );
  const controls = el("div", { class: "controls" });
  const share = el("input", {
    type: "range",
    min: 0.1,
    max: 1,
    step: 0.05,
    "aria-label": "Share of what the key brings",
    oninput: () => store.set({ share: Number(share.value) }),
  });
  const output = el("output", {});
  const shareField = el("label", { class: "field slider" }, el("span", {}, "Heads that carry ", output), share);
  const links = el("input", {
    type: "range",
    min: 1,
    step: 1,
    "aria-label": "Links drawn",
    oninput: () => store.set({ links: Number(links.value) }),
  });
  const linksSaid = el("output", {});
  const linksField = el("label", { class: "field slider" }, el("span", {}, "Links ", linksSaid), links);
  const warned = el("div", {});
  const diagramStage = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Attribution diagram" });
  const graphControls = el("div", { class: "controls" });
  const graphStage = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Attribution graph" });
  const inspector = el("aside", { class: "inspector", "aria-label": "What was chosen", "aria-live": "off" });
  boxes.body.append(diagramStage);
  nets.body.append(graphControls, el("div", { class: "with-inspector" }, graphStage, inspector));

  const drawDiagram = (width: number) => {
    diagram = traceDiagram({
      traces: traces(),
      titles: titles(traces()),
      key: keyOf(traces()[traces().length - 1]!, store.state),
      share: shareOf(store.state),
      width: Math.max(300, Math.min(width / zoom(), 1400)),
      lit: store.state.head,
      choose: (head, side) => store.set({ head, side, pick: `head:${head}` }),
      pickKey: (key) => store.set({ key }),
    });
    replace(diagramStage, diagram);
  };
  const drawGraph = (width: number) => {
    graph = traceGraph({
      trace: trace(),
      width: Math.max(300, (width - 2) / zoom()),
      links: linksOf(trace(), store.state),
      pick: store.state.pick,
      lit: store.state.head,
      title: titles(traces())[sideOf(traces(), store.state)]!,
      choose,
    });
    const [left, top] = [graphStage.scrollLeft, graphStage.scrollTop];
    const first = !graphStage.firstChild;
    replace(graphStage, graph);
    graphStage.scrollTo(first ? graphStage.scrollWidth : left, top); // the output stands at the right
  };
  onResize(diagramStage, drawDiagram);
  onResize(graphStage, drawGraph);

  const update: View["update"] = (changed) => {
    const { state } = store;
    const last = traces()[traces().length - 1]!;
    if (touches(changed, "trace", "key"))
      replace(
        controls,
        report.traces.length > 1
          ? select(
              "Prompt",
              choices(report.traces.map((pair) => visible(pair[0]?.prompt, 70))),
              Math.min(state.trace, report.traces.length - 1),
              (place) => store.set({ trace: place, key: -1, pick: "" }),
            )
          : null,
        select(
          "Key",
          last.tokens
            .slice(0, Math.max(1, last.tokens.length - 1))
            .map((token, value) => ({ value, label: `${value + 1} ${visible(token, 20)}` })),
          keyOf(last, state),
          (key) => store.set({ key }),
        ),
        shareField,
        el(
          "p",
          { class: "prompt" },
          el("span", { class: "words" }, visible(last.prompt, 400)),
          " → ",
          el("b", {}, quoted(last.logits[0]?.[0], 20)),
          ` ${percent(last.logits[0]?.[1])}`,
        ),
      );
    share.value = String(shareOf(state));
    output.textContent = percent(shareOf(state));
    links.max = String(trace().links.length);
    links.value = String(linksOf(trace(), state));
    linksSaid.textContent = `${linksOf(trace(), state)} of ${trace().links.length}`;
    if (touches(changed, "trace", "side"))
      replace(
        graphControls,
        traces().length > 1
          ? segments("Model", choices(titles(traces())), sideOf(traces(), state), (side) =>
              store.set({ side, pick: /^head:/.test(state.pick) ? state.pick : "" }),
            )
          : null,
        linksField,
      );
    replace(
      warned,
      ...traces().flatMap((each) =>
        each.warnings.map((text) => el("p", { class: "note" }, `${visible(each.model, 40)}: ${visible(text, 300)}`)),
      ),
    );
    if (diagramStage.clientWidth && touches(changed, "trace", "key", "share", "head"))
      drawDiagram(diagramStage.clientWidth);
    if (graphStage.clientWidth && touches(changed, "trace", "side", "pick", "head", "links"))
      drawGraph(graphStage.clientWidth);
    if (touches(changed, "trace", "side", "pick", "head"))
      replace(
        inspector,
        ...inspect(trace(), shownPick(state), (pick) => choose(pick)),
        state.pick
          ? el("button", { type: "button", onclick: () => store.set({ pick: "" }) }, "Back to the whole")
          : null,
      );
  };
  return { element: el("div", {}, controls, warned, boxes.section, nets.section), update };
}

/** A head that was lit elsewhere is shown here too, unless something else was chosen. */
const shownPick = (state: State): string => state.pick || (parseHead(state.head) ? `head:${state.head}` : "");

const shareOf = (state: State): number => Math.min(1, Math.max(0.05, state.share));

const linksOf = (trace: Trace, state: State): number =>
  Math.min(Math.max(1, Math.round(state.links)), Math.max(1, trace.links.length));

const keyOf = (trace: Trace, state: State): number =>
  state.key >= 0 && state.key < Math.max(1, trace.tokens.length - 1) ? Math.trunc(state.key) : trace.main_key;
