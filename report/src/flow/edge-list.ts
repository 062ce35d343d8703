// The open edges of one query in words, by attention weight.
import type { Prompt } from "../data";
import { selectedTask } from "../selection";
import { el } from "../ui/dom";
import { modelTitles, percent, plural, quoted, shortNumber, visible } from "../ui/format";
import type { Context } from "../ui/view";
import { selectedEdges, type FlowEdge } from "./flow-edges";

const MAX_LISTED = 24;

/** What a token reads: heads and keys with attention weights, largest first. */
export const readsOf = (edges: FlowEdge[], token: number): { head: string; key: number; weight: number }[] =>
  edges
    .filter((edge) => edge.query === token)
    .flatMap(({ key, heads }) => heads.map(([head, weight]) => ({ head, key, weight })))
    .sort((a, b) => b.weight - a.weight);

/** For each model, what the selected token (or the last) reads. */
export function edgeLists(context: Context, prompt: Prompt): HTMLElement[] {
  const { store, report } = context;
  const { models } = selectedTask(report, store.state)!;
  const { token } = store.state;
  const last = prompt.tokens.length - 1;
  const query = token >= 0 && token <= last ? token : last;
  const names = modelTitles(models);
  return models.map((_, i) => {
    const reads = readsOf(selectedEdges(context, i), query);
    const summary = `${names[i]}: what ${quoted(prompt.tokens[query], 20)} reads, ${plural(reads.length, "open edge")}`;
    const chips = reads.slice(0, MAX_LISTED).map(({ head, key, weight }) => {
      const onclick = () => store.set({ head: store.state.head === head ? "" : head });
      const text = ` ${visible(prompt.tokens[key], 16)} ${shortNumber(weight)}`;
      const style = head === store.state.head ? "chip on" : "chip";
      return el("li", {}, el("button", { type: "button", class: style, onclick }, el("b", {}, head), text));
    });
    const others = reads.slice(MAX_LISTED);
    const share = sum(others) / sum(reads);
    return el(
      "details",
      { open: i === models.length - 1 },
      el("summary", {}, summary),
      el("ul", { class: "chips" }, ...chips),
      others.length > 0 &&
        el("p", { class: "quiet" }, `and ${others.length} more with ${percent(share)} of the attention weight`),
    );
  });
}

const sum = (reads: { weight: number }[]): number => reads.reduce((total, { weight }) => total + weight, 0);
