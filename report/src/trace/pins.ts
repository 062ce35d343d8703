// Pinned nodes of a trace and their groups: as text for the link, and as the supernodes of other graph viewers.
import type { Trace, TraceNode } from "../data";

export interface Group {
  name: string; // "": pinned nodes of no group
  nodes: string[];
}

const MAX_NAME = 40;

/** `small words:1_12_4,1_7_4;:4_7_7`, names URI-encoded; anyone can have written it, so unknown nodes are ignored. */
export function readPins(text: string, trace: Trace): Group[] {
  const known = new Set(trace.nodes.map(({ id }) => id));
  let groups: Group[] = [];
  for (const part of text.split(";")) {
    const colon = part.indexOf(":");
    if (colon < 0) continue;
    const name = decoded(part.slice(0, colon));
    for (const id of part.slice(colon + 1).split(",")) if (known.has(id)) groups = pinned(groups, id, name);
  }
  return groups;
}

export const writePins = (groups: Group[]): string =>
  groups.map(({ name, nodes }) => `${encodeURIComponent(name)}:${nodes.join(",")}`).join(";");

/** With a node in the group of this name, and in no other. */
export function pinned(groups: Group[], id: string, name: string): Group[] {
  const short = [...name.trim()].slice(0, MAX_NAME).join("");
  const others = unpinned(groups, id);
  if (!others.some((group) => group.name === short)) return [...others, { name: short, nodes: [id] }];
  return others.map((group) => (group.name === short ? { ...group, nodes: [...group.nodes, id] } : group));
}

export const unpinned = (groups: Group[], id: string): Group[] =>
  groups
    .map(({ name, nodes }) => ({ name, nodes: nodes.filter((node) => node !== id) }))
    .filter(({ nodes }) => nodes.length);

export const groupOf = (groups: Group[], id: string): Group | undefined =>
  groups.find(({ nodes }) => nodes.includes(id));

/** The pins as `qParams` of circuit-tracer's front end and Neuronpedia, with the ids of the exported graph. */
export function queryParameters(trace: Trace, groups: Group[]): Record<string, unknown> {
  const byId = new Map(trace.nodes.map((node) => [node.id, node]));
  const exported = (ids: string[]) => ids.map((id) => exportedId(byId.get(id)!));
  return {
    pinnedIds: groups.flatMap(({ nodes }) => exported(nodes)),
    supernodes: groups.filter(({ name }) => name).map(({ name, nodes }) => [name, ...exported(nodes)]),
    linkType: "both",
    clickedId: "",
    sg_pos: "",
  };
}

const exportedId = ({ id, kind, layer, position }: TraceNode): string =>
  kind === "error" ? `${layer}_-1_${position}` : id;

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}
