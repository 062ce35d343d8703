// Search in a trace: nodes by their token, their feature's number, what it responds to and what it promotes.
import type { Trace, TraceNode } from "../data";
import { nodeName } from "./node-names";

const MAX_WORDS = 10; // that a feature promotes

/** Ids of the nodes that match, most influential first; null if nothing is searched for. */
export function findNodes(trace: Trace, text: string): string[] | null {
  const words = text.trim().toLowerCase();
  if (!words) return null;
  return trace.nodes
    .filter((node) => textOf(trace, node).includes(words))
    .sort((a, b) => b.influence - a.influence)
    .map(({ id }) => id);
}

function textOf(trace: Trace, node: TraceNode): string {
  const of = node.kind === "feature" ? trace.contexts[`${node.layer}_${node.number}`] : undefined;
  const promoted = (of?.raised ?? []).slice(0, MAX_WORDS).map(([word]) => word);
  const peaks = (of?.contexts ?? []).map(({ tokens, peak }) => tokens[peak] ?? "");
  return [nodeName(trace, node), node.label, ...promoted, ...peaks].join("\n").toLowerCase();
}
