// What the Python side collects (edgewise.report.collect): the types say what is there, and what may be missing.

export interface Packed {
  kind: "list" | "whole";
  shape: [number, number, number]; // layers, heads, cells of the lower triangle
  count: number;
  data: string;
}

export interface Curve {
  counts: number[];
  explained: number[];
  lower: number[];
  upper: number[];
}

export interface Found {
  total: number;
  needed: number;
  faithfulness: number;
  curve: Curve;
  ranking: [string, number][];
}

export interface ModelCircuit {
  model: string;
  kind: string;
  layers: number;
  heads: number;
  accuracy: number;
  prompts: number;
  warnings: string[];
  counts: Record<string, number | null>;
  head_circuit: Found | null;
  edge_circuit: Found | null;
}

export interface Prompt {
  text: string;
  tokens: string[];
  answers: string[];
  maps: Packed[]; // of each model
  types: string[][][]; // of each model, layer and head
}

export interface Task {
  task: string;
  metric: string;
  threshold: number;
  method: string;
  ratios: Record<string, number | null>;
  models: ModelCircuit[];
  prompts: Prompt[];
}

export interface TraceNode {
  id: string;
  kind: string; // token, feature, error or logit
  layer: number;
  number: number;
  position: number;
  label: string;
  influence: number;
  value: number | null;
  origin: number | null;
}

export interface TraceLink {
  source: string;
  target: string;
  weight: number;
  flow: number;
  straight: number;
  heads: [string, number][];
}

export interface Cluster {
  label: string;
  nodes: string[];
  first_layer: number | null;
  last_layer: number | null;
  influence: number;
}

export interface Look {
  layer: number;
  head: number;
  query: number;
  key: number;
  weight: number;
  score: number;
  rest: number;
  pairs: [string, string, number][];
}

export interface FeatureContexts {
  contexts: { tokens: string[]; activations: number[]; peak: number }[];
  raised?: [string, number][];
  lowered?: [string, number][];
}

export interface Intervention {
  what: string;
  predicted: number;
  actual: number;
  frozen_attention: number;
}

export interface Trace {
  model: string;
  kind: string;
  transcoder: string;
  prompt: string;
  tokens: string[];
  logits: [string, number][];
  nodes: TraceNode[];
  links: TraceLink[];
  clusters: Cluster[];
  strengths: number[][];
  origins: number[];
  paths: { link: number; paths: [string, number][]; longer: number }[];
  looks: Look[];
  interventions: Intervention[];
  contexts: Record<string, FeatureContexts>;
  figures: Record<string, number | null>;
  warnings: string[];
  cells: Packed;
  cells_largest: number;
  arriving?: number[][][]; // of each layer, head and key: the flow into the last query
  head_flow?: number[][]; // of each layer and head: the flow in all
  maps: Packed;
  main_key: number;
}

export interface Training {
  model: string;
  recipe: string | null;
  seed: number | null;
  tolerance: number | null;
  dense_ce: number | null;
  sparse_ce: number | null;
  delta_ce: number;
  density: number;
  edges_per_query: number | null;
  heads_closed: number | null;
  heads: number | null;
  tokens: number | null;
  steps: number | null;
  seconds: number | null;
  tasks: { dense?: Record<string, number>; sparse?: Record<string, number> } | null;
  pressure: [number, number][]; // tokens, pressure
  checks: [number, number, number][]; // tokens, density, loss above the dense model's
}

export interface Report {
  version: number;
  made: string;
  title: string;
  notes: string[];
  training: Training | null;
  tasks: Task[];
  traces: Trace[][];
}

export function readReport(): Report {
  return JSON.parse(document.getElementById("data")?.textContent ?? "") as Report;
}
