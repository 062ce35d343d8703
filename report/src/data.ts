// The report's data, as edgewise.reporting.collect writes it.

/** Maps in eight bits, in base64 (edgewise.reporting.packing). */
export interface PackedMaps {
  kind: "list" | "whole";
  shape: [number, number, number]; // layers, heads, cells of the lower triangle
  count: number;
  data: string;
}

/** Effect explained by the most important components, with quartiles over prompts. */
export interface Curve {
  counts: number[];
  explained: number[];
  lower: number[];
  upper: number[];
}

/** The smallest circuit of heads, or of edges. */
export interface ComponentCircuit {
  total: number;
  needed: number;
  threshold?: number; // the task's own, at which the circuit is this one:
  components?: string[] | null; // of the smallest circuit that a joint search found
  minimal?: number | null; // components of the smallest circuit that a joint search found
  held_out?: number | null; // what it explains of the held-out prompts
  faithfulness: number;
  curve: Curve;
  ranking: [string, number][];
}

export interface ModelCircuit {
  model: string;
  kind: string;
  layers: number;
  heads: number;
  accuracy: number | null;
  prompts: number;
  warnings: string[];
  counts: Record<string, number | null>;
  head_circuit: ComponentCircuit | null;
  edge_circuit: ComponentCircuit | null;
  shown?: string[]; // the heads whose maps there are, if not all
}

export interface Prompt {
  text: string;
  tokens: string[];
  answers: string[];
  maps: PackedMaps[]; // [models]
  types: string[][][]; // [models][layers][heads]
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
  origin: number | null; // position of the token that a feature responds to
}

export interface TraceLink {
  source: string;
  target: string;
  weight: number;
  flow: number; // share of the output
  straight: number; // direct, along the residual stream
  heads: [string, number][];
}

export interface Cluster {
  label: string;
  nodes: string[];
  first_layer: number | null;
  last_layer: number | null;
  influence: number;
}

/** An attention score, attributed to pairs of a source at the query and one at the key. */
export interface QKAttribution {
  layer: number;
  head: number;
  query: number;
  key: number;
  weight: number;
  score: number;
  rest: number; // all pairs that are not listed
  pairs: [string, string, number][];
}

export interface FeatureContexts {
  contexts: { tokens: string[]; activations: number[]; peak: number }[];
  raised?: [string, number][];
  lowered?: [string, number][];
}

/** Change of the log odds when a feature, head or token is ablated: predicted, measured, and its parts. */
export interface Intervention {
  what: string; // the id of a feature or token, or L5H1
  kind?: string;
  predicted: number; // by the graph
  replaced?: number; // in the replaced model
  actual: number;
  frozen: number; // with attention patterns and norm denominators frozen
  values?: number; // parts of what is measured
  attention?: number;
  norms?: number;
  errors?: number;
  moved?: [string, number][]; // heads whose moving patterns do most
}

/** All clusters that respond to one word, as boxes of the diagram. */
export interface WordCluster {
  label: string;
  layers: string;
  words: number[];
  positions: number[];
  influence: number;
  direct: number;
}

export interface Trace {
  model: string;
  kind: string;
  transcoder: string;
  prompt: string;
  label?: string; // the prompt, and the run if prompts are the same
  tokens: string[];
  logits: [string, number][];
  words?: WordCluster[];
  nodes: TraceNode[];
  links: TraceLink[];
  clusters: Cluster[];
  strengths: number[][];
  origins: number[]; // [positions]: share of the output attributed to each token embedding
  paths: { link: number; paths: [string, number][]; longer: number }[];
  looks: QKAttribution[]; // of the attention edges with most flow
  interventions: Intervention[];
  contexts: Record<string, FeatureContexts>;
  names?: Record<string, string>; // of features: what they respond to → what they promote
  figures: Record<string, number | null>;
  warnings: string[];
  cells: PackedMaps; // flow through each attention edge, relative to the largest
  cells_largest: number;
  arriving?: number[][][]; // [layers][heads][keys]: flow to the last query
  head_flow?: number[][]; // [layers][heads]: flow through all edges
  maps: PackedMaps;
  main_key: number;
}

export interface Training {
  model: string;
  run?: string; // its folder
  recipe: string | null;
  seed: number | null;
  tolerance: number | null;
  constraint?: string | null; // what is held within the tolerance: "loss", or loss and KL
  kl?: number | null; // from the dense model, at the end
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
  pressure: [number, number][]; // tokens, multiplier of the sparsity penalty
  checks: [number, number, number, (number | null)?][]; // validations: tokens, density, loss above the dense model's, KL
}

/** Loss and density of a model on held-out text. */
export interface Evaluation {
  ce: number | null;
  density: number | null;
  edges_per_query: number | null;
}

export interface Report {
  version: number;
  made: string;
  title: string;
  notes: string[];
  trainings: Training[];
  evaluations: Record<string, Evaluation>;
  tasks: Task[];
  traces: Trace[][];
}

export function readReport(): Report {
  return JSON.parse(document.getElementById("data")?.textContent ?? "") as Report;
}
