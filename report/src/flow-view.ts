// Flow: where information can go, token by token and layer by layer.
import { card } from "./card";
import { promptOf, taskOf } from "./chosen";
import { modelColours } from "./colour";
import type { Prompt } from "./data";
import { el, onResize, replace, segments, zoom } from "./dom";
import { heaviest, leadingTo, MOST, type FlowEdge } from "./flow-edges";
import { FlowPicture } from "./flow-picture";
import { edgesOf, edgeTable } from "./flow-table";
import { Maps } from "./maps";
import { promptLine, thresholdSlider } from "./maps-view";
import { hideTip, showTip } from "./tip";
import { promptField, taskField, touches, type Context, type View } from "./view";
import { count, quoted, titles } from "./words";

export function flowView(context: Context): View {
  const { report, store } = context;
  const task = () => taskOf(report, store.state)!;
  const prompt = () => promptOf(task(), store.state);
  let pictures: FlowPicture[] = [];
  const { section, body } = card(
    store,
    "Flow",
    "Tokens stand below, layers go upward. A line goes from a key to a query that looks at it; the stronger, the heavier. Hover a token for what it reads (red) and who reads it (orange); step back from the output to see what can have reached it.",
    "flow",
    {
      pictures: () => pictures.map((picture) => picture.element),
      rows: () => [
        ["model", "layer", "query", "query_token", "key", "key_token", "head", "weight"],
        ...task().models.flatMap((model, i) =>
          edgesOf(context, i).flatMap((edge) =>
            edge.heads.map(([name, weight]) => [
              model.model,
              edge.layer,
              edge.query + 1,
              prompt()?.tokens[edge.query],
              edge.key + 1,
              prompt()?.tokens[edge.key],
              name,
              Number(weight.toFixed(3)),
            ]),
          ),
        ),
      ],
      value: () =>
        task().models.map((model, i) => ({ model: model.model, tokens: prompt()?.tokens, edges: edgesOf(context, i) })),
    },
  );
  const controls = el("div", { class: "controls" });
  const slider = thresholdSlider(context);
  const line = el("p", { class: "prompt" });
  const stage = el("div", { class: "flows" });
  const table = el("div", { class: "edges-of" });
  body.append(controls, line, stage, table);

  const draw = (whole: number) => {
    const width = whole / zoom();
    const shown = prompt();
    if (!shown)
      return replace(stage, el("p", { class: "quiet" }, `There are no maps of ${quoted(task().task)} in this report.`));
    const { state } = store;
    const names = titles(task().models);
    const colours = modelColours(task().models.map((model) => model.kind));
    const wide = width > 1000 && task().models.length > 1 && shown.tokens.length <= 40 ? (width - 32) / 2 : width;
    pictures = [];
    replace(
      stage,
      ...task().models.map((_, i) => {
        const packed = shown.maps[i];
        if (!packed) return null;
        const maps = Maps.of(packed);
        const edges = edgesOf(context, i);
        const target = state.token >= 0 && state.token < shown.tokens.length ? state.token : shown.tokens.length - 1;
        const steps = state.steps < 0 ? (state.token < 0 ? 0 : maps.layers) : Math.min(state.steps, maps.layers);
        const kept = steps ? leadingTo(edges, target, maps.layers, steps) : null;
        const picture = new FlowPicture(
          {
            tokens: shown.tokens,
            answer: shown.answers[0] ?? "",
            layers: maps.layers,
            edges: heaviest(edges),
            width: wide,
            colour: colours[i]!,
            lit: state.head,
            kept,
            label: `Flow in ${names[i]}; arrow keys move through the tokens, Enter keeps one`,
          },
          (token, at) => look(token, at, edges, shown),
          (token) => store.set({ token: store.state.token === token ? -1 : token }),
        );
        pictures.push(picture);
        const said = kept
          ? `${count(kept.tokens.size, "token")} can reach ${quoted(shown.tokens[target], 20)} in ${count(steps, "layer")}, by ${count(kept.edges.size, "line")}`
          : `${count(edges.length, "line")} between tokens${edges.length > MOST ? `, the heaviest ${MOST.toLocaleString("en")} drawn` : ""}`;
        return el(
          "figure",
          {},
          el("figcaption", {}, el("b", {}, names[i]!), ` ${said}`),
          el(
            "div",
            { class: "scroll", tabindex: 0, role: "region", "aria-label": `Flow in ${names[i]}` },
            picture.element,
          ),
        );
      }),
    );
    replace(table, ...edgeTable(context, shown));
  };

  const look = (token: number | null, at: Element, edges: FlowEdge[], shown: Prompt) => {
    pictures.forEach((picture) => picture.light(token));
    if (token === null) return hideTip();
    const reads = edges
      .filter((edge) => edge.query === token)
      .flatMap((edge) => edge.heads.map(([name, weight]) => ({ name, weight, key: edge.key })))
      .sort((a, b) => b.weight - a.weight);
    const box = at.getBoundingClientRect();
    showTip(
      box.right,
      box.bottom - 26,
      el("b", {}, `${token + 1} ${quoted(shown.tokens[token])}`),
      ` reads ${count(reads.length, "open edge")}`,
      el(
        "ul",
        {},
        ...reads
          .slice(0, 6)
          .map((read) => el("li", {}, `${read.name} ${quoted(shown.tokens[read.key], 16)} ${read.weight.toFixed(2)}`)),
      ),
    );
  };

  const update: View["update"] = (changed) => {
    const { state } = store;
    const layers = prompt()?.maps[0]?.shape[0] ?? 0;
    const circuit = task().models.some((model) => model.head_circuit);
    const to = (steps: number) => store.set({ steps });
    const now = Math.min(state.steps, layers);
    if (touches(changed, "task", "prompt", "all", "steps", "token"))
      replace(
        controls,
        taskField(context),
        promptField(context),
        circuit
          ? segments(
              "Heads",
              [
                { value: false, label: "Circuit" },
                { value: true, label: "All" },
              ],
              state.all,
              (all) => store.set({ all }),
            )
          : null,
        circuit && !state.all ? slider.element : null,
        el(
          "div",
          { class: "field", role: "group", "aria-label": "Step back from the output" },
          el("span", {}, now > 0 ? `${now} of ${count(layers, "layer")} back` : "From the output"),
          el(
            "div",
            { class: "segments" },
            el(
              "button",
              { type: "button", disabled: now >= layers, onclick: () => to(Math.max(0, now) + 1) },
              "Step back",
            ),
            el("button", { type: "button", disabled: now <= 0, onclick: () => to(now > 1 ? now - 1 : -1) }, "Forward"),
            el(
              "button",
              {
                type: "button",
                "aria-pressed": String(now <= 0 && state.token < 0),
                onclick: () => store.set({ steps: -1, token: -1 }),
              },
              "All",
            ),
          ),
        ),
      );
    slider.update();
    if (prompt()) replace(line, ...promptLine(prompt()!));
    if (stage.clientWidth && touches(changed, "task", "prompt", "all", "steps", "token", "threshold", "head"))
      draw(stage.clientWidth);
  };
  onResize(stage, draw);
  return { element: section, update };
}
