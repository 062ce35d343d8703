// The two panels of maps, with what grows and shrinks them.
import { card } from "./card";
import { circuitHeads, importance, needed, promptOf, ranking, taskOf, thresholdOf } from "./chosen";
import type { Prompt, Task } from "./data";
import { el, replace, segments, select, svg } from "./dom";
import { HeadDetail } from "./head-detail";
import { MapPanel } from "./map-panel";
import { Maps, parseHead } from "./maps";
import type { Cell } from "./save";
import type { State } from "./store";
import { promptField, taskField, touches, type Context, type View } from "./view";
import { percent, quoted, titles, visible } from "./words";

export function mapsView(context: Context): View {
  const { report, store } = context;
  const task = () => taskOf(report, store.state)!;
  const prompt = () => promptOf(task(), store.state);
  const most = Math.max(1, ...report.tasks.map((each) => each.models.length));
  const choose = (head: string) =>
    store.set(store.state.head === head && store.state.open ? { head: "", open: false } : { head, open: true });
  const panels = Array.from({ length: most }, () => new MapPanel(choose));
  const detail = new HeadDetail(store, most, (by) => {
    const heads = headsShown(task(), prompt()!, task().models.length - 1, store.state);
    const place = heads.indexOf(store.state.head) + by;
    if (heads.length) store.set({ head: heads[(place + heads.length) % heads.length]! });
  });
  const { section, body } = card(
    store,
    "Attention maps",
    "One map for each head of the circuit: query down, key right; blank is exactly 0, the strongest colour 1. Slide the threshold: the more of the effect shall be explained, the more heads it takes.",
    "maps",
    {
      pictures: () => [gridPicture(panels)],
      rows: () => mapRows(task(), prompt(), store.state),
      value: () => promptValue(task(), prompt(), store.state),
    },
  );
  const controls = el("div", { class: "controls" });
  const slider = thresholdSlider(context);
  const line = el("p", { class: "prompt" });
  body.append(
    controls,
    line,
    el(
      "div",
      { class: "stage" },
      el("div", { class: "panels" }, ...panels.map((panel) => panel.element)),
      detail.element,
    ),
  );

  const update: View["update"] = (changed) => {
    const shown = prompt();
    body.classList.toggle("empty", !shown);
    if (touches(changed, "task", "prompt", "type", "sort"))
      replace(
        controls,
        taskField(context),
        promptField(context),
        slider.element,
        typeField(context, task(), shown),
        segments<State["sort"]>(
          "Order",
          [
            { value: "importance", label: "Importance" },
            { value: "layer", label: "Layer" },
          ],
          store.state.sort,
          (sort) => store.set({ sort }),
        ),
      );
    slider.update();
    if (!shown) return replace(line, `There are no maps of ${quoted(task().task)} in this report.`);
    replace(line, ...promptLine(shown));
    const names = titles(task().models);
    panels.forEach((panel, i) => {
      const [model, packed] = [task().models[i], shown.maps[i]];
      panel.element.hidden = !model || !packed;
      if (!model || !packed) return;
      const maps = Maps.of(packed);
      const heads = headsShown(task(), shown, i, store.state);
      const threshold = thresholdOf(task(), store.state);
      const kept = model.head_circuit ? needed(model.head_circuit, threshold) : maps.layers * maps.heads;
      const filtered = store.state.type ? `, ${heads.length} of them ${store.state.type}` : "";
      panel.update({
        maps,
        heads,
        tokens: shown.tokens,
        types: shown.types[i] ?? [],
        share: (head) => importance(model, head),
        title: names[i]!,
        lit: store.state.head,
        summary: model.head_circuit
          ? `${kept} of ${model.head_circuit.total} heads carry ${percent(threshold)} of ${visible(task().task, 30)}${filtered}`
          : `${heads.length} heads; no circuit was looked for`,
        empty: store.state.type
          ? `None of ${kept} heads is ${store.state.type} on this prompt`
          : `No head is needed for ${percent(threshold)}`,
      });
    });
    if (touches(changed, "task", "prompt", "head", "open", "query")) {
      const left = detail.element.contains(document.activeElement);
      detail.update(task(), shown);
      // the keyboard goes back to where it came from
      if (left && detail.element.hidden) panels.some((panel) => panel.focus(store.state.head));
    }
    body.classList.toggle("opened", !detail.element.hidden);
    if (changed?.has("open") && store.state.open && innerWidth < 1100)
      detail.element.scrollIntoView({ block: "start" });
  };
  return { element: section, update };
}

function headsShown(task: Task, prompt: Prompt, place: number, state: State): string[] {
  const model = task.models[place]!;
  const maps = Maps.of(prompt.maps[place]!);
  const heads = circuitHeads(model, thresholdOf(task, state), maps.layers, maps.heads).filter((name) => {
    const at = parseHead(name);
    if (!at || at.layer >= maps.layers || at.head >= maps.heads) return false;
    return !state.type || partsOf(prompt.types[place]?.[at.layer]?.[at.head]).includes(state.type);
  });
  if (state.sort === "importance") return heads;
  const order = (name: string) => {
    const at = parseHead(name)!;
    return at.layer * 10_000 + at.head;
  };
  return heads.sort((a, b) => order(a) - order(b));
}

/** "diffuse + 7 back" is of two types. */
const partsOf = (type: string | undefined): string[] =>
  (type ?? "").split(" + ").map((part) => (/^\d+ back$/.test(part) ? "fixed-offset" : part));

function typeField({ store }: Context, task: Task, prompt: Prompt | undefined): HTMLElement {
  const counts = new Map<string, number>();
  prompt?.types
    .slice(0, task.models.length)
    .flat(2)
    .flatMap(partsOf)
    .forEach((type) => counts.set(type, (counts.get(type) ?? 0) + 1));
  const types = [...counts]
    .sort((a, b) => b[1] - a[1])
    .map(([value, many]) => ({ value, label: `${value} (${many})` }));
  if (store.state.type && !counts.has(store.state.type))
    types.push({ value: store.state.type, label: `${visible(store.state.type, 30)} (0)` });
  return select("Head type", [{ value: "", label: "All types" }, ...types], store.state.type, (type) =>
    store.set({ type }),
  );
}

export function thresholdSlider({ report, store }: Context): { element: HTMLElement; update(): void } {
  const output = el("output", {});
  const input = el("input", {
    type: "range",
    min: 0.05,
    max: 1,
    step: 0.01,
    "aria-label": "Threshold: share of the effect",
    oninput: () => store.set({ threshold: Number(input.value) }),
  });
  const element = el("label", { class: "field slider" }, el("span", {}, "Threshold ", output), input);
  return {
    element,
    update: () => {
      const threshold = thresholdOf(taskOf(report, store.state), store.state);
      if (Number(input.value) !== threshold) input.value = String(threshold);
      output.textContent = percent(threshold);
      input.setAttribute("aria-valuetext", `${percent(threshold)} of the effect`);
    },
  };
}

export function promptLine(prompt: Prompt): (HTMLElement | string)[] {
  const text = visible(prompt.text, 600);
  return [
    el("span", { class: "words" }, text),
    ...(prompt.answers.length
      ? [" → ", el("b", {}, prompt.answers.map((answer) => visible(answer, 40)).join(", "))]
      : []),
  ];
}

// --------------------------------------------------------------------------------------------------------- downloads

function gridPicture(panels: MapPanel[]): SVGSVGElement {
  let left = 12;
  const drawn = panels
    .filter((panel) => !panel.element.hidden)
    .map((panel) => {
      const part = panel.picture(left);
      left += part.width + 24;
      return part;
    });
  const height = Math.max(60, ...drawn.map((part) => part.height));
  return svg("svg", { viewBox: `0 0 ${left} ${height + 16}` }, ...drawn.map((part) => part.drawn));
}

function mapRows(task: Task, prompt: Prompt | undefined, state: State): Cell[][] {
  const rows: Cell[][] = [
    ["model", "head", "type", "importance", "query", "query_token", "key", "key_token", "weight"],
  ];
  prompt?.maps.forEach((packed, i) => {
    const [maps, model] = [Maps.of(packed), task.models[i]];
    if (!model) return;
    for (const name of headsShown(task, prompt, i, state)) {
      const { layer, head } = parseHead(name)!;
      for (let query = 0; query < maps.length; query++)
        for (let key = 0; key <= query; key++) {
          const weight = maps.weight(layer, head, query, key);
          if (weight)
            rows.push([
              model.model,
              name,
              prompt.types[i]?.[layer]?.[head],
              importance(model, name),
              query + 1,
              prompt.tokens[query],
              key + 1,
              prompt.tokens[key],
              Number(weight.toFixed(3)),
            ]);
        }
    }
  });
  return rows;
}

const promptValue = (task: Task, prompt: Prompt | undefined, state: State): unknown =>
  prompt && {
    task: task.task,
    text: prompt.text,
    tokens: prompt.tokens,
    threshold: thresholdOf(task, state),
    models: task.models.map((model, i) => {
      const maps = Maps.of(prompt.maps[i]!);
      return {
        model: model.model,
        heads: headsShown(task, prompt, i, state),
        ranking: ranking(model, maps.layers, maps.heads),
      };
    }),
  };
