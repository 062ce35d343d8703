// Names of nodes, links and clusters of a trace.
import type { Cluster, Trace, TraceLink, TraceNode } from "../data";
import { quoted, visible } from "../ui/format";

export const nodesById = (trace: Trace): Map<string, TraceNode> => new Map(trace.nodes.map((node) => [node.id, node]));

export const tokenAt = (trace: Trace, position: number): string =>
  `${position + 1} ${quoted(trace.tokens[position], 16)}`;

export function nodeName(trace: Trace, node: TraceNode): string {
  if (node.kind === "token") return `token ${tokenAt(trace, node.position)}`;
  if (node.kind === "logit") return `output ${quoted(node.label || trace.logits[0]?.[0], 16)}`;
  if (node.kind === "error") return `error L${node.layer} at ${tokenAt(trace, node.position)}`;
  return featureName(trace, node.layer, node.number, node.position);
}

/** Where a node is, without what it responds to. */
export function placeName(trace: Trace, id: string): string {
  const match = /^(\d+)_(\d+)_(\d+)$/.exec(id);
  const kind = trace.nodes.find((node) => node.id === id)?.kind ?? "feature";
  if (!match || kind !== "feature") return sourceName(trace, id, nodesById(trace));
  return `L${match[1]}/${match[2]} at ${tokenAt(trace, Number(match[3]))}`;
}

/** What a feature responds to and promotes; "" if that is not known, or if it is no feature. */
export const featureWords = (trace: Trace, id: string): string => {
  const match = /^(\d+)_(\d+)_\d+$/.exec(id);
  return (match && trace.names?.[`${match[1]}_${match[2]}`]) || "";
};

const featureName = (trace: Trace, layer: number | string, number: number | string, position: number): string => {
  const name = trace.names?.[`${layer}_${number}`];
  return `feature L${layer}/${number}${name ? ` (${visible(name, 40)})` : ""} at ${tokenAt(trace, position)}`;
};

/** The name of a node that may have been pruned. */
export function sourceName(trace: Trace, id: string, nodes: Map<string, TraceNode>): string {
  const node = nodes.get(id);
  if (node) return nodeName(trace, node);
  if (id === "rest") return "all other sources";
  const match = /^(error|E|\d+)_(\d+)_(\d+)$/.exec(id);
  if (!match) return visible(id, 40);
  const token = tokenAt(trace, Number(match[3]));
  if (match[1] === "E") return `token ${token}`;
  return match[1] === "error" ? `error L${match[2]} at ${token}` : featureName(trace, match[1]!, match[2]!, Number(match[3]));
}

export function linkName(trace: Trace, link: TraceLink): string {
  const nodes = nodesById(trace);
  return `${sourceName(trace, link.source, nodes)} → ${sourceName(trace, link.target, nodes)}`;
}

export function layerRange(cluster: Cluster): string {
  if (cluster.first_layer === null) return "embedding";
  return cluster.first_layer === cluster.last_layer
    ? `layer ${cluster.first_layer}`
    : `layers ${cluster.first_layer}–${cluster.last_layer}`;
}
