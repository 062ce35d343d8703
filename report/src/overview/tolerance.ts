// Whether a run has kept what it was held to.
import type { Training } from "../data";
import { shortNumber } from "../ui/format";

/** What is above the tolerance at the end of a run: the loss, KL from the dense model. */
export function missedBy({ delta_ce: delta, kl, tolerance, constraint }: Training): { loss: boolean; kl: boolean } {
  const above = (value: number | null | undefined) =>
    typeof value === "number" && typeof tolerance === "number" && value > tolerance;
  return { loss: above(delta), kl: constraint !== "loss" && above(kl) };
}

/** The same in words, "" if nothing is. */
export function missedText(training: Training): string {
  const missed = missedBy(training);
  const tolerance = `tolerance of ${shortNumber(training.tolerance)}`;
  const kl = `KL ${shortNumber(training.kl)}`;
  if (missed.loss && missed.kl) return `misses its ${tolerance}, as does ${kl}`;
  return missed.loss ? `misses its ${tolerance}` : missed.kl ? `${kl} misses its ${tolerance}` : "";
}
