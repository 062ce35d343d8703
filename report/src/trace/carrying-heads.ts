// The fewest heads that carry a share of the flow from a key to the last query (Trace.heads_at in Python).
import type { Trace } from "../data";
import { AttentionMaps, type Head } from "../maps/attention-maps";

export interface CarryingHead extends Head {
  share: number; // of the flow from the key to the last query
  mapsKey: boolean; // the query gives this key more attention weight than any other
}

export interface CarryingHeads {
  heads: CarryingHead[]; // largest share first
  total: number; // heads of the model
  key: number;
  query: number;
  share: number; // that the heads carry together, at least
}

export function carryingHeads(trace: Trace, key: number, share: number): CarryingHeads {
  const flows = AttentionMaps.of(trace.cells);
  const maps = AttentionMaps.of(trace.maps);
  const query = trace.tokens.length - 1;
  const all: (Head & { flow: number })[] = [];
  for (let layer = 0; layer < flows.layers; layer++)
    for (let head = 0; head < flows.heads; head++) {
      const flow = trace.arriving?.[layer]?.[head]?.[key] ?? flows.flow(layer, head, query, key);
      all.push({ layer, head, flow });
    }
  const sum = all.reduce((total, { flow }) => total + flow, 0);
  const heads: CarryingHead[] = [];
  let carried = 0;
  for (const { layer, head, flow } of all.sort((a, b) => b.flow - a.flow)) {
    if (!(sum > 0) || carried >= share * sum * (1 - 1e-9)) break;
    carried += flow;
    heads.push({ layer, head, share: flow / sum, mapsKey: mapsKey(maps.row(layer, head, query), key) });
  }
  return { heads, total: flows.layers * flows.heads, key, query, share };
}

function mapsKey(weights: number[], key: number): boolean {
  const own = weights[key] ?? 0;
  return own > 0 && weights.filter((weight) => weight >= own).length === 1;
}

/** How many of the heads map the key to the query; "All heads map ..." only if all do. */
export function sentence({ heads, key, query }: CarryingHeads): string {
  const edge = `key pos ${key + 1} to query pos ${query + 1}`;
  const mapping = heads.filter((head) => head.mapsKey).length;
  if (!heads.length) return `No head carries anything from ${edge}`;
  if (heads.length === 1) return `The only head ${mapping ? "maps" : "does not map"} ${edge}`;
  if (mapping === heads.length) return `${mapping === 2 ? "Both" : "All"} heads map ${edge}`;
  return `${mapping || "None"} of ${heads.length} heads map${mapping < 2 ? "s" : ""} ${edge}`;
}
