// Attention maps of all heads in eight bits, unpacked on first use; names of heads.
import type { PackedMaps } from "../data";

export class AttentionMaps {
  private constructor(
    readonly layers: number,
    readonly heads: number,
    readonly length: number, // tokens
    private readonly bytes: Uint8Array, // [layers, heads, lower triangle]
  ) {}

  private static readonly unpacked = new WeakMap<PackedMaps, AttentionMaps>();

  static of(packed: PackedMaps): AttentionMaps {
    let maps = AttentionMaps.unpacked.get(packed);
    if (!maps) {
      const [layers, heads, cells] = packed.shape;
      const length = Math.round((Math.sqrt(8 * cells + 1) - 1) / 2);
      maps = new AttentionMaps(layers, heads, length, unpack(packed));
      AttentionMaps.unpacked.set(packed, maps);
    }
    return maps;
  }

  /** Attention weight from 0 to 255; 0 only if the edge is closed. */
  byte(layer: number, head: number, query: number, key: number): number {
    if (key > query) return 0;
    const triangle = (this.length * (this.length + 1)) / 2;
    return this.bytes[(layer * this.heads + head) * triangle + (query * (query + 1)) / 2 + key] ?? 0;
  }

  weight(layer: number, head: number, query: number, key: number): number {
    return this.byte(layer, head, query, key) / 255;
  }

  /** Flow from 0 to 1. A byte of 1 stands for anything above 0 and below 1.5 steps, so it counts as a quarter of a step. */
  flow(layer: number, head: number, query: number, key: number): number {
    const byte = this.byte(layer, head, query, key);
    return (byte === 1 ? 0.25 : byte) / 255;
  }

  /** Attention weights of a query over its keys. */
  row(layer: number, head: number, query: number): number[] {
    return Array.from({ length: query + 1 }, (_, key) => this.weight(layer, head, query, key));
  }

  /** Number of open edges. */
  open(layer: number, head: number): number {
    let count = 0;
    const triangle = (this.length * (this.length + 1)) / 2;
    const begin = (layer * this.heads + head) * triangle;
    for (let i = begin; i < begin + triangle; i++) if (this.bytes[i]) count++;
    return count;
  }
}

function unpack(packed: PackedMaps): Uint8Array {
  const data = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
  if (packed.kind === "whole") return data;
  // a list of open edges: their indices as 32-bit little-endian integers, then their weights
  const bytes = new Uint8Array(packed.shape.reduce((a, b) => a * b, 1));
  const indices = new DataView(data.buffer, 0, 4 * packed.count);
  for (let i = 0; i < packed.count; i++) bytes[indices.getUint32(4 * i, true)] = data[4 * packed.count + i] ?? 0;
  return bytes;
}

export interface Head {
  layer: number;
  head: number;
}

export const headName = ({ layer, head }: Head): string => `L${layer}H${head}`;

export function parseHead(name: string | null): Head | null {
  const match = /^L(\d+)H(\d+)$/.exec(name ?? "");
  return match ? { layer: Number(match[1]), head: Number(match[2]) } : null;
}
