// What a state means for the data at hand. A link may ask for what this report does not have: then the nearest is shown.
import type { Found, ModelCircuit, Prompt, Report, Task, Trace } from "./data";
import { headName } from "./maps";
import type { State } from "./store";

const within = (place: number, length: number): number =>
  Math.min(Math.max(0, Math.trunc(place) || 0), Math.max(0, length - 1));

export const taskOf = (report: Report, state: State): Task | undefined =>
  report.tasks[within(state.task, report.tasks.length)];

export const promptOf = (task: Task | undefined, state: State): Prompt | undefined =>
  task?.prompts[within(state.prompt, task.prompts.length)];

export const tracesOf = (report: Report, state: State): Trace[] =>
  report.traces[within(state.trace, report.traces.length)] ?? [];

export const sideOf = (traces: Trace[], state: State): number => within(state.side, traces.length);

/** The share of the effect that heads shall carry: the slider's, or else the task's own. */
export const thresholdOf = (task: Task | undefined, state: State): number =>
  state.threshold > 0 ? Math.min(1, state.threshold) : (task?.threshold ?? 0.9);

/** How many of a ranking are needed to explain a share: the first count on the curve that does. */
export function needed(found: Found, threshold: number): number {
  const place = found.curve.explained.findIndex((share) => share >= threshold);
  return place < 0 ? found.total : (found.curve.counts[place] ?? found.total);
}

/** All heads, the most important first; without a ranking, by layer. */
export function ranking(model: ModelCircuit, layers: number, heads: number): string[] {
  if (model.head_circuit?.ranking.length) return model.head_circuit.ranking.map(([name]) => name);
  return Array.from({ length: layers * heads }, (_, i) => headName({ layer: Math.floor(i / heads), head: i % heads }));
}

/** The heads of a model's circuit at the threshold; all, if it has none. */
export function circuitHeads(model: ModelCircuit, threshold: number, layers: number, heads: number): string[] {
  const all = ranking(model, layers, heads);
  return model.head_circuit ? all.slice(0, needed(model.head_circuit, threshold)) : all;
}

/** The share of the effect that goes with one head, as a mean over prompts. */
export function importance(model: ModelCircuit | undefined, head: string): number | undefined {
  const found = model?.head_circuit;
  if (!found) return undefined;
  let shares = known.get(found);
  if (!shares) known.set(found, (shares = new Map(found.ranking)));
  return shares.get(head);
}

const known = new WeakMap<Found, Map<string, number>>();
