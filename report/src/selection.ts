// The part of the report that the state selects. Indices out of range, as in a link to another report, are clamped.
import type { ComponentCircuit, ModelCircuit, Prompt, Report, Task, Trace, Training } from "./data";
import { headName } from "./maps/attention-maps";
import type { State } from "./store";

const clampIndex = (index: number, length: number): number =>
  Math.min(Math.max(0, Math.trunc(index) || 0), Math.max(0, length - 1));

export const selectedTask = (report: Report, state: State): Task | undefined =>
  report.tasks[clampIndex(state.task, report.tasks.length)];

export const selectedPrompt = (task: Task | undefined, state: State): Prompt | undefined =>
  task?.prompts[clampIndex(state.prompt, task.prompts.length)];

export const selectedTraces = (report: Report, state: State): Trace[] =>
  report.traces[clampIndex(state.trace, report.traces.length)] ?? [];

export const selectedTraining = (report: Report, state: State): Training | undefined =>
  report.trainings[clampIndex(state.training, report.trainings.length)];

export const selectedSide = (traces: Trace[], state: State): number => clampIndex(state.side, traces.length);

/** The explained effect at which circuits are cut off: the slider's, or else the task's own. */
export const selectedThreshold = (task: Task | undefined, state: State): number =>
  state.threshold > 0 ? Math.min(1, state.threshold) : (task?.threshold ?? 0.9);

/** Components of the circuit at the threshold: at the task's own the minimal one, if it was searched for. */
export function circuitSize(circuit: ComponentCircuit, threshold: number): number {
  const isOwn = threshold === circuit.threshold;
  return isOwn && typeof circuit.minimal === "number" ? circuit.minimal : prefixSize(circuit, threshold);
}

/** The names of these components; of many edges, those that were kept. */
export function circuitComponents(circuit: ComponentCircuit, threshold: number): string[] {
  if (threshold === circuit.threshold && circuit.components) return circuit.components;
  return circuit.ranking.slice(0, prefixSize(circuit, threshold)).map(([name]) => name);
}

/** How many of the most important components explain the threshold's share of the effect: the first such count on the curve. */
export function prefixSize(circuit: ComponentCircuit, threshold: number): number {
  if (threshold === circuit.threshold) return circuit.needed;
  const index = circuit.curve.explained.findIndex((share) => share >= threshold);
  return index < 0 ? circuit.total : (circuit.curve.counts[index] ?? circuit.total);
}

/** All heads, most important first; without a ranking, by layer. */
export function rankedHeads(model: ModelCircuit, layers: number, heads: number): string[] {
  if (model.head_circuit?.ranking.length) return model.head_circuit.ranking.map(([name]) => name);
  return Array.from({ length: layers * heads }, (_, i) => headName({ layer: Math.floor(i / heads), head: i % heads }));
}

/** The heads of a model's circuit at the threshold; without a circuit, all heads. */
export function circuitHeads(model: ModelCircuit, threshold: number, layers: number, heads: number): string[] {
  if (model.shown) return model.shown;
  return model.head_circuit ? circuitComponents(model.head_circuit, threshold) : rankedHeads(model, layers, heads);
}

/** Importance of a head: share of the effect, mean over prompts. */
export function importance(model: ModelCircuit | undefined, head: string): number | undefined {
  const circuit = model?.head_circuit;
  if (!circuit) return undefined;
  let byHead = importances.get(circuit);
  if (!byHead) importances.set(circuit, (byHead = new Map(circuit.ranking)));
  return byHead.get(head);
}

const importances = new WeakMap<ComponentCircuit, Map<string, number>>();
