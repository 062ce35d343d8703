// The open attention edges of some heads on a prompt, and which of them can reach the output.
import { Maps, parseHead } from "./maps";

export interface FlowEdge {
  layer: number;
  query: number;
  key: number;
  weight: number; // of the heaviest head
  heads: [string, number][]; // heaviest first
}

/** A dense model's edges with less weight are not drawn: they could not be seen. */
export const CUT = 0.01;

const known = new WeakMap<Maps, { names: string; edges: FlowEdge[] }>();

export function flowEdges(maps: Maps, names: string[]): FlowEdge[] {
  const said = names.join(" ");
  const before = known.get(maps);
  if (before?.names === said) return before.edges;
  const edges = findEdges(maps, names);
  known.set(maps, { names: said, edges });
  return edges;
}

function findEdges(maps: Maps, names: string[]): FlowEdge[] {
  const edges: FlowEdge[] = [];
  const byLayer = new Map<number, { head: number; name: string }[]>();
  for (const name of names) {
    const at = parseHead(name);
    if (at && at.layer < maps.layers && at.head < maps.heads)
      byLayer.set(at.layer, [...(byLayer.get(at.layer) ?? []), { head: at.head, name }]);
  }
  for (const [layer, heads] of byLayer)
    for (let query = 0; query < maps.length; query++)
      for (let key = 0; key <= query; key++) {
        const found: [string, number][] = [];
        for (const { head, name } of heads) {
          const weight = maps.weight(layer, head, query, key);
          if (weight >= CUT) found.push([name, weight]);
        }
        if (!found.length) continue;
        found.sort((a, b) => b[1] - a[1]);
        edges.push({ layer, query, key, weight: found[0]![1], heads: found });
      }
  return edges;
}

/** Lines in one picture; of more, the heaviest. */
export const MOST = 4000;

export function heaviest(edges: FlowEdge[]): FlowEdge[] {
  return edges.length <= MOST ? edges : [...edges].sort((a, b) => b.weight - a.weight).slice(0, MOST);
}

/** What leads to a position at the top, so many layers back. What a token holds stays with it from layer to layer. */
export function leadingTo(
  edges: FlowEdge[],
  position: number,
  layers: number,
  steps: number,
): { edges: Set<FlowEdge>; tokens: Set<number> } {
  const used = new Set<FlowEdge>();
  const tokens = new Set([position]);
  for (let layer = layers - 1; layer >= Math.max(0, layers - steps); layer--) {
    const before = new Set(tokens);
    for (const edge of edges)
      if (edge.layer === layer && before.has(edge.query)) {
        used.add(edge);
        tokens.add(edge.key);
      }
  }
  return { edges: used, tokens };
}
