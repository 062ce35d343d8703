// What all views share.
import { taskOf } from "./chosen";
import type { Report } from "./data";
import { select } from "./dom";
import type { Changed, Store, Tab } from "./store";
import { choices, visible } from "./words";

export interface Context {
  report: Report;
  store: Store;
  tabs: Tab[];
}

export interface View {
  element: HTMLElement;
  /** Nothing given: draw everything. */
  update(changed: Changed | null): void;
}

/** Whether something that was drawn from these has to be drawn again. */
export const touches = (changed: Changed | null, ...keys: Parameters<Changed["has"]>[0][]): boolean =>
  changed === null || keys.some((key) => changed.has(key));

export function taskField({ report, store }: Context): HTMLElement {
  const names = report.tasks.map((task) => visible(task.task, 40));
  return select("Task", choices(names), Math.min(store.state.task, names.length - 1), (task) =>
    store.set({ task, prompt: 0, query: -1, token: -1 }),
  );
}

export function promptField({ report, store }: Context): HTMLElement {
  const prompts = taskOf(report, store.state)?.prompts ?? [];
  const names = prompts.map((prompt, i) => `${i + 1}. ${visible(prompt.text, 60)}`);
  return select("Prompt", choices(names), Math.min(store.state.prompt, names.length - 1), (prompt) =>
    store.set({ prompt, query: -1, token: -1 }),
  );
}
