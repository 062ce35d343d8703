// The heads whose maps are shown: those of the circuit, filtered by type and sorted.
import type { Prompt, Task } from "../data";
import { circuitHeads, importance, rankedHeads, selectedThreshold } from "../selection";
import type { State } from "../store";
import { select } from "../ui/dom";
import type { Cell } from "../ui/download";
import { visible } from "../ui/format";
import type { Context } from "../ui/view";
import { AttentionMaps, parseHead } from "./attention-maps";

export function shownHeads(task: Task, prompt: Prompt, modelIndex: number, state: State): string[] {
  const maps = AttentionMaps.of(prompt.maps[modelIndex]!);
  const circuit = circuitHeads(task.models[modelIndex]!, selectedThreshold(task, state), maps.layers, maps.heads);
  const heads = circuit.filter((name) => {
    const at = parseHead(name);
    if (!at || at.layer >= maps.layers || at.head >= maps.heads) return false;
    return !state.type || simpleTypes(prompt.types[modelIndex]?.[at.layer]?.[at.head]).includes(state.type);
  });
  if (state.sort === "importance") return heads;
  const order = (name: string) => {
    const at = parseHead(name)!;
    return at.layer * 10_000 + at.head;
  };
  return heads.sort((a, b) => order(a) - order(b));
}

/** The types that a head's type combines: "diffuse + 7 back" is diffuse and fixed-offset. */
const simpleTypes = (type: string | undefined): string[] =>
  (type ?? "").split(" + ").map((simple) => (/^\d+ back$/.test(simple) ? "fixed-offset" : simple));

export function headTypeField({ store }: Context, task: Task, prompt: Prompt | undefined): HTMLElement {
  const counts = new Map<string, number>();
  prompt?.types
    .slice(0, task.models.length)
    .flat(2)
    .flatMap(simpleTypes)
    .forEach((type) => counts.set(type, (counts.get(type) ?? 0) + 1));
  const types = [...counts]
    .sort((a, b) => b[1] - a[1])
    .map(([value, count]) => ({ value, label: `${value} (${count})` }));
  if (store.state.type && !counts.has(store.state.type))
    types.push({ value: store.state.type, label: `${visible(store.state.type, 30)} (0)` });
  return select("Head type", [{ value: "", label: "All types" }, ...types], store.state.type, (type) =>
    store.set({ type }),
  );
}

/** The open edges of the shown heads, for a download. */
export function edgeRows(task: Task, prompt: Prompt | undefined, state: State): Cell[][] {
  const rows: Cell[][] = [
    ["model", "head", "type", "importance", "query", "query_token", "key", "key_token", "weight"],
  ];
  prompt?.maps.forEach((packed, i) => {
    const [maps, model] = [AttentionMaps.of(packed), task.models[i]];
    if (!model) return;
    for (const name of shownHeads(task, prompt, i, state)) {
      const { layer, head } = parseHead(name)!;
      const columns = [model.model, name, prompt.types[i]?.[layer]?.[head], importance(model, name)];
      for (let query = 0; query < maps.length; query++)
        for (let key = 0; key <= query; key++) {
          const weight = maps.weight(layer, head, query, key);
          if (!weight) continue;
          const edge = [query + 1, prompt.tokens[query], key + 1, prompt.tokens[key], Number(weight.toFixed(3))];
          rows.push([...columns, ...edge]);
        }
    }
  });
  return rows;
}

/** The prompt and its heads, for a download. */
export const headLists = (task: Task, prompt: Prompt | undefined, state: State): unknown =>
  prompt && {
    task: task.task,
    text: prompt.text,
    tokens: prompt.tokens,
    threshold: selectedThreshold(task, state),
    models: task.models.map((model, i) => {
      const maps = AttentionMaps.of(prompt.maps[i]!);
      return {
        model: model.model,
        heads: shownHeads(task, prompt, i, state),
        ranking: rankedHeads(model, maps.layers, maps.heads),
      };
    }),
  };
