// Positions of nodes in the attribution graph: a column for each token, a row for each layer.
import type { Trace, TraceNode } from "../data";
import { visible } from "../ui/format";

const SLOT = 22; // of a node
const LEFT = 30;

export interface Column {
  left: number;
  width: number;
}

export interface GraphLayout {
  width: number;
  height: number;
  columns: Column[]; // of the tokens
  rowY: (layer: number) => number; // -1 for tokens
  nodes: Map<string, { x: number; y: number }>;
}

type Cells = (position: number, layer: number) => TraceNode[];

/** A column is at least as wide as its token; many nodes in one cell stand in several rows. */
export function layOutGraph(trace: Trace, layers: number, minWidth: number): GraphLayout {
  const byCell = new Map<string, TraceNode[]>();
  for (const node of trace.nodes) {
    const key = `${node.position} ${Math.min(node.layer, layers)}`;
    byCell.set(key, [...(byCell.get(key) ?? []), node]);
  }
  const cells: Cells = (position, layer) => byCell.get(`${position} ${layer}`) ?? [];
  const columns = layOutColumns(trace, cells, layers, minWidth);
  const { height, rowY } = layOutRows(trace, cells, layers);
  const nodes: GraphLayout["nodes"] = new Map();
  for (const cell of byCell.values()) {
    const column = columns[cell[0]!.position] ?? { left: LEFT, width: 40 };
    placeCell(nodes, cell, column, rowY(cell[0]!.layer));
  }
  const last = columns[columns.length - 1];
  return { width: Math.max(last ? last.left + last.width : LEFT, 60), height, columns, rowY, nodes };
}

/** Nodes beside each other in a cell. */
const across = (cell: TraceNode[]): number =>
  cell[0]?.kind === "logit"
    ? cell.length
    : Math.min(cell.length, Math.max(3, Math.ceil(Math.sqrt(1.5 * cell.length))));

const rowsOf = (cell: TraceNode[]): number => Math.ceil(cell.length / Math.max(1, across(cell)));

const allLayers = (layers: number): number[] => Array.from({ length: layers + 2 }, (_, i) => i - 1);

function layOutColumns({ tokens }: Trace, cells: Cells, layers: number, minWidth: number): Column[] {
  const labelWidth = (text: string) => 7 * visible(text, 12).length + 24;
  const needs = tokens.map((token, position) => {
    const outputs = cells(position, layers).map((node) => labelWidth(node.label));
    const fullest = Math.max(1, ...allLayers(layers).map((layer) => across(cells(position, layer))));
    return Math.max(labelWidth(token), fullest * SLOT + 10, outputs.length * Math.max(0, ...outputs));
  });
  const spare = Math.max(0, minWidth - LEFT - needs.reduce((a, b) => a + b, 0)) / needs.length;
  let left = LEFT;
  return needs.map((need) => {
    const column = { left, width: need + spare };
    left += column.width;
    return column;
  });
}

function layOutRows({ tokens }: Trace, cells: Cells, layers: number) {
  const minHeight = Math.min(58, Math.max(40, 400 / (layers + 2)));
  const heights = allLayers(layers).map((layer) =>
    Math.max(minHeight, 20 + SLOT * Math.max(...tokens.map((_, position) => rowsOf(cells(position, layer))))),
  );
  const height = heights.reduce((a, b) => a + b, 0) + 24;
  const middles = heights.map((row, i) => height - 24 - heights.slice(0, i).reduce((a, b) => a + b, 0) - row / 2);
  return { height, rowY: (layer: number): number => middles[Math.min(layer, layers) + 1] ?? 0 };
}

/** Place the nodes of one token and layer, most influential first, around the middle of their cell. */
function placeCell(nodes: GraphLayout["nodes"], cell: TraceNode[], column: Column, y: number): void {
  const [perRow, rows] = [across(cell), rowsOf(cell)];
  const step = cell[0]!.kind === "logit" ? column.width / perRow : Math.min(SLOT + 4, column.width / perRow);
  cell.sort((a, b) => b.influence - a.influence);
  cell.forEach((node, i) => {
    const row = Math.floor(i / perRow);
    const inRow = Math.min(perRow, cell.length - perRow * row);
    nodes.set(node.id, {
      x: column.left + column.width / 2 + ((i % perRow) - (inRow - 1) / 2) * step,
      y: y - (row - (rows - 1) / 2) * SLOT,
    });
  });
}
