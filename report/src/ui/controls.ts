// Controls that several views have: task, prompt, threshold, a slider; and the line with the prompt.
import type { Prompt } from "../data";
import { selectedTask, selectedThreshold } from "../selection";
import { el, select } from "./dom";
import { indexChoices, percent, visible } from "./format";
import type { Context } from "./view";

export function taskField({ report, store }: Context): HTMLElement {
  const names = report.tasks.map((task) => visible(task.task, 40));
  return select("Task", indexChoices(names), Math.min(store.state.task, names.length - 1), (task) =>
    store.set({ task, prompt: 0, query: -1, token: -1 }),
  );
}

export function promptField({ report, store }: Context): HTMLElement {
  const prompts = selectedTask(report, store.state)?.prompts ?? [];
  const names = prompts.map((prompt, i) => `${i + 1}. ${visible(prompt.text, 60)}`);
  return select("Prompt", indexChoices(names), Math.min(store.state.prompt, names.length - 1), (prompt) =>
    store.set({ prompt, query: -1, token: -1 }),
  );
}

export interface Slider {
  element: HTMLElement;
  input: HTMLInputElement;
  output: HTMLOutputElement; // its value in words
}

export function slider(
  name: string,
  description: string,
  range: { min: number; max?: number; step: number },
  set: (value: number) => void,
): Slider {
  const output = el("output", {});
  const input = el("input", {
    type: "range",
    ...range,
    "aria-label": description,
    oninput: () => set(Number(input.value)),
  });
  const element = el("label", { class: "field slider" }, el("span", {}, `${name} `, output), input);
  return { element, input, output };
}

/** The explained effect at which a circuit is cut off. */
export function thresholdSlider({ report, store }: Context): { element: HTMLElement; update(): void } {
  const range = { min: 0.05, max: 1, step: 0.01 };
  const { element, input, output } = slider("Threshold", "Threshold: explained effect", range, (threshold) =>
    store.set({ threshold }),
  );
  return {
    element,
    update: () => {
      const threshold = selectedThreshold(selectedTask(report, store.state), store.state);
      if (Number(input.value) !== threshold) input.value = String(threshold);
      output.textContent = percent(threshold);
      input.setAttribute("aria-valuetext", `${percent(threshold)} of the effect`);
    },
  };
}

/** The prompt and its answers. */
export function promptLine(prompt: Prompt): (HTMLElement | string)[] {
  const text = el("span", { class: "words" }, visible(prompt.text, 600));
  if (!prompt.answers.length) return [text];
  return [text, " → ", el("b", {}, prompt.answers.map((answer) => visible(answer, 40)).join(", "))];
}
