// The open edges of what was chosen, and those of one token in words.
import { circuitHeads, promptOf, ranking, taskOf, thresholdOf } from "./chosen";
import type { Prompt, Task } from "./data";
import { el } from "./dom";
import { flowEdges, type FlowEdge } from "./flow-edges";
import { Maps } from "./maps";
import type { Context } from "./view";
import { count, percent, quoted, short, titles, visible } from "./words";

export function edgesOf({ report, store }: Context, place: number): FlowEdge[] {
  const task = taskOf(report, store.state)!;
  const packed = promptOf(task, store.state)?.maps[place];
  const model = task.models[place];
  if (!packed || !model) return [];
  const maps = Maps.of(packed);
  const names = store.state.all
    ? ranking(model, maps.layers, maps.heads)
    : circuitHeads(model, thresholdOf(task, store.state), maps.layers, maps.heads);
  return flowEdges(maps, names);
}

/** In words, what the kept token (or the last) reads. */
export function edgeTable(context: Context, shown: Prompt): HTMLElement[] {
  const { store, report } = context;
  const task: Task = taskOf(report, store.state)!;
  const kept =
    store.state.token >= 0 && store.state.token < shown.tokens.length ? store.state.token : shown.tokens.length - 1;
  return task.models.map((_, i) => {
    const rows = edgesOf(context, i)
      .filter((edge) => edge.query === kept)
      .flatMap((edge) => edge.heads.map(([name, weight]) => ({ edge, name, weight })));
    rows.sort((a, b) => b.weight - a.weight);
    return el(
      "details",
      { open: i === task.models.length - 1 },
      el(
        "summary",
        {},
        `${titles(task.models)[i]}: what ${quoted(shown.tokens[kept], 20)} reads, ${count(rows.length, "open edge")}`,
      ),
      el(
        "ul",
        { class: "chips" },
        ...rows.slice(0, 24).map(({ edge, name, weight }) =>
          el(
            "li",
            {},
            el(
              "button",
              {
                type: "button",
                class: name === store.state.head ? "chip on" : "chip",
                onclick: () => store.set({ head: store.state.head === name ? "" : name }),
              },
              el("b", {}, name),
              ` ${visible(shown.tokens[edge.key], 16)} ${short(weight)}`,
            ),
          ),
        ),
      ),
      rows.length > 24
        ? el(
            "p",
            { class: "quiet" },
            `and ${rows.length - 24} more, ${percent(rows.slice(24).reduce((sum, row) => sum + row.weight, 0) / rows.reduce((sum, row) => sum + row.weight, 0))} of the weight`,
          )
        : null,
    );
  });
}
