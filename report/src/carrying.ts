// The fewest heads that carry a share of what attention brings from a key to the last query (Trace.heads_at in Python).
import type { Trace } from "./data";
import { Maps, type Head } from "./maps";

export interface Carried extends Head {
  part: number;
  looks: boolean; // the query gives this key more weight than any other
}

export interface Carrying {
  heads: Carried[]; // the most important first
  total: number;
  key: number;
  query: number;
  share: number;
}

export function carrying(trace: Trace, key: number, share: number): Carrying {
  const cells = Maps.of(trace.cells);
  const maps = Maps.of(trace.maps);
  const query = trace.tokens.length - 1;
  const all: Carried[] = [];
  for (let layer = 0; layer < cells.layers; layer++)
    for (let head = 0; head < cells.heads; head++)
      all.push({
        layer,
        head,
        part: trace.arriving?.[layer]?.[head]?.[key] ?? cells.flow(layer, head, query, key),
        looks: looksThere(maps, layer, head, query, key),
      });
  const sum = all.reduce((sum, each) => sum + each.part, 0);
  const heads: Carried[] = [];
  let before = 0;
  for (const each of all.sort((a, b) => b.part - a.part)) {
    if (!(sum > 0) || before >= share * sum * (1 - 1e-9)) break;
    before += each.part;
    heads.push({ ...each, part: each.part / sum });
  }
  return { heads, total: cells.layers * cells.heads, key, query, share };
}

function looksThere(maps: Maps, layer: number, head: number, query: number, key: number): boolean {
  const row = maps.row(layer, head, query);
  const own = row[key] ?? 0;
  return own > 0 && row.filter((weight) => weight >= own).length === 1;
}

/** What they do; "All heads map ..." only if that is so. */
export function sentence({ heads, key, query }: Carrying): string {
  const cell = `key pos ${key + 1} to query pos ${query + 1}`;
  const looking = heads.filter((each) => each.looks).length;
  if (!heads.length) return `No head carries anything from ${cell}`;
  if (heads.length === 1) return `The only head ${looking ? "maps" : "does not map"} ${cell}`;
  if (looking === heads.length) return `${looking === 2 ? "Both" : "All"} heads map ${cell}`;
  return `${looking || "None"} of ${heads.length} heads map${looking < 2 ? "s" : ""} ${cell}`;
}
