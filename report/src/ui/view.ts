// What all views share.
import type { Report } from "../data";
import type { Changed, Store, Tab } from "../store";

export interface Context {
  report: Report;
  store: Store;
  tabs: Tab[];
}

export interface View {
  element: HTMLElement;
  /** Draw again what depends on the changed fields of the state; null: everything. */
  update(changed: Changed | null): void;
}

/** Whether something that depends on these fields of the state has to be drawn again. */
export const anyChanged = (changed: Changed | null, ...keys: Parameters<Changed["has"]>[0][]): boolean =>
  changed === null || keys.some((key) => changed.has(key));
