// What the nodes of a trace are called.
import type { Trace, TraceNode } from "./data";
import { quoted, visible } from "./words";

export const nodesById = (trace: Trace): Map<string, TraceNode> => new Map(trace.nodes.map((node) => [node.id, node]));

const at = (trace: Trace, position: number): string => `${position + 1} ${quoted(trace.tokens[position], 16)}`;

export function nodeName(trace: Trace, node: TraceNode): string {
  if (node.kind === "token") return `token ${at(trace, node.position)}`;
  if (node.kind === "logit") return `output ${quoted(node.label || trace.logits[0]?.[0], 16)}`;
  if (node.kind === "error") return `error L${node.layer} at ${at(trace, node.position)}`;
  return `feature L${node.layer}/${node.number} at ${at(trace, node.position)}`;
}

/** Of a source that may have been pruned away. */
export function sourceName(trace: Trace, id: string, nodes: Map<string, TraceNode>): string {
  const node = nodes.get(id);
  if (node) return nodeName(trace, node);
  if (id === "rest") return "everything else";
  const found = /^(error|E|\d+)_(\d+)_(\d+)$/.exec(id);
  if (!found) return visible(id, 40);
  const position = Number(found[3]);
  if (found[1] === "E") return `token ${at(trace, position)}`;
  return found[1] === "error"
    ? `error L${found[2]} at ${at(trace, position)}`
    : `feature L${found[1]}/${found[2]} at ${at(trace, position)}`;
}

export const layersOf = (cluster: { first_layer: number | null; last_layer: number | null }): string => {
  if (cluster.first_layer === null) return "embedding";
  return cluster.first_layer === cluster.last_layer
    ? `layer ${cluster.first_layer}`
    : `layers ${cluster.first_layer}–${cluster.last_layer}`;
};
