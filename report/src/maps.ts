// Attention maps in eight bits, unpacked when they are first looked at.
import type { Packed } from "./data";

export class Maps {
  private constructor(
    readonly layers: number,
    readonly heads: number,
    readonly length: number, // tokens
    private readonly bytes: Uint8Array, // [layers, heads, lower triangle]
  ) {}

  private static readonly known = new WeakMap<Packed, Maps>();

  static of(packed: Packed): Maps {
    let maps = Maps.known.get(packed);
    if (!maps) {
      const [layers, heads, cells] = packed.shape;
      const length = Math.round((Math.sqrt(8 * cells + 1) - 1) / 2);
      maps = new Maps(layers, heads, length, unpack(packed));
      Maps.known.set(packed, maps);
    }
    return maps;
  }

  /** 0 to 255; 0 is exactly closed. */
  byte(layer: number, head: number, query: number, key: number): number {
    if (key > query) return 0;
    const triangle = (this.length * (this.length + 1)) / 2;
    return this.bytes[(layer * this.heads + head) * triangle + (query * (query + 1)) / 2 + key] ?? 0;
  }

  weight(layer: number, head: number, query: number, key: number): number {
    return this.byte(layer, head, query, key) / 255;
  }

  /** What a cell of flow stands for. Eight bits keep an open cell at 1, however small: less than half a step, in the mean. */
  flow(layer: number, head: number, query: number, key: number): number {
    const byte = this.byte(layer, head, query, key);
    return (byte === 1 ? 0.25 : byte) / 255;
  }

  /** The row of a query, as weights. */
  row(layer: number, head: number, query: number): number[] {
    return Array.from({ length: query + 1 }, (_, key) => this.weight(layer, head, query, key));
  }

  open(layer: number, head: number): number {
    let count = 0;
    const triangle = (this.length * (this.length + 1)) / 2;
    const begin = (layer * this.heads + head) * triangle;
    for (let place = begin; place < begin + triangle; place++) if (this.bytes[place]) count++;
    return count;
  }
}

function unpack(packed: Packed): Uint8Array {
  const text = atob(packed.data);
  const read = Uint8Array.from(text, (c) => c.charCodeAt(0));
  if (packed.kind === "whole") return read;
  // a list of open edges: places as 32-bit numbers, least byte first, then their weights
  const bytes = new Uint8Array(packed.shape.reduce((a, b) => a * b, 1));
  const places = new DataView(read.buffer, 0, 4 * packed.count);
  for (let i = 0; i < packed.count; i++) bytes[places.getUint32(4 * i, true)] = read[4 * packed.count + i] ?? 0;
  return bytes;
}

export interface Head {
  layer: number;
  head: number;
}

export const headName = ({ layer, head }: Head): string => `L${layer}H${head}`;

export function parseHead(name: string | null): Head | null {
  const found = /^L(\d+)H(\d+)$/.exec(name ?? "");
  return found ? { layer: Number(found[1]), head: Number(found[2]) } : null;
}
