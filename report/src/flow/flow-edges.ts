// Open attention edges of some heads on a prompt, and those from which a position can be reached.
import type { Context } from "../ui/view";
import { AttentionMaps, parseHead } from "../maps/attention-maps";
import { circuitHeads, rankedHeads, selectedPrompt, selectedTask, selectedThreshold } from "../selection";

/** An edge from a key to a query in a layer, through one or more heads. */
export interface FlowEdge {
  layer: number;
  query: number;
  key: number;
  weight: number; // largest attention weight
  heads: [string, number][]; // with attention weights, largest first
}

/** The smallest attention weight that is drawn: a dense model's weaker edges could not be seen. */
export const MIN_WEIGHT = 0.01;

/** Lines in one picture; of more edges, those of largest weight. */
export const MAX_LINES = 4000;

/** The edges of a model's circuit, or of all heads, on the selected prompt. */
export function selectedEdges({ report, store }: Context, modelIndex: number): FlowEdge[] {
  const task = selectedTask(report, store.state)!;
  const packed = selectedPrompt(task, store.state)?.maps[modelIndex];
  const model = task.models[modelIndex];
  if (!packed || !model) return [];
  const maps = AttentionMaps.of(packed);
  const heads = store.state.all
    ? rankedHeads(model, maps.layers, maps.heads)
    : circuitHeads(model, selectedThreshold(task, store.state), maps.layers, maps.heads);
  return flowEdges(maps, heads);
}

const cache = new WeakMap<AttentionMaps, { key: string; edges: FlowEdge[] }>();

function flowEdges(maps: AttentionMaps, heads: string[]): FlowEdge[] {
  const key = heads.join(" ");
  const cached = cache.get(maps);
  if (cached?.key === key) return cached.edges;
  const edges = findEdges(maps, heads);
  cache.set(maps, { key, edges });
  return edges;
}

function findEdges(maps: AttentionMaps, names: string[]): FlowEdge[] {
  const edges: FlowEdge[] = [];
  const byLayer = new Map<number, { head: number; name: string }[]>();
  for (const name of names) {
    const at = parseHead(name);
    if (at && at.layer < maps.layers && at.head < maps.heads)
      byLayer.set(at.layer, [...(byLayer.get(at.layer) ?? []), { head: at.head, name }]);
  }
  for (const [layer, layerHeads] of byLayer)
    for (let query = 0; query < maps.length; query++)
      for (let key = 0; key <= query; key++) {
        const heads: [string, number][] = [];
        for (const { head, name } of layerHeads) {
          const weight = maps.weight(layer, head, query, key);
          if (weight >= MIN_WEIGHT) heads.push([name, weight]);
        }
        if (!heads.length) continue;
        heads.sort((a, b) => b[1] - a[1]);
        edges.push({ layer, query, key, weight: heads[0]![1], heads });
      }
  return edges;
}

export function heaviestEdges(edges: FlowEdge[]): FlowEdge[] {
  return edges.length <= MAX_LINES ? edges : [...edges].sort((a, b) => b.weight - a.weight).slice(0, MAX_LINES);
}

export interface Ancestors {
  edges: Set<FlowEdge>;
  tokens: Set<number>;
}

/** Edges and tokens that can reach a position of the last layer in so many layers; the residual stream keeps a token's own. */
export function ancestorsOf(edges: FlowEdge[], position: number, layers: number, steps: number): Ancestors {
  const used = new Set<FlowEdge>();
  const tokens = new Set([position]);
  for (let layer = layers - 1; layer >= Math.max(0, layers - steps); layer--) {
    const above = new Set(tokens);
    for (const edge of edges)
      if (edge.layer === layer && above.has(edge.query)) {
        used.add(edge);
        tokens.add(edge.key);
      }
  }
  return { edges: used, tokens };
}
