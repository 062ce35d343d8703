// What is known of a head in a trace: what it carries, and why it looks where it looks.
import type { Trace, TraceLink } from "./data";
import { el, svg, type Child } from "./dom";
import { bars, headFlows, linkName, title, trial, type Choose } from "./inspect-parts";
import { headName, Maps, parseHead } from "./maps";
import { mapImage } from "./paint";
import { nodesById, sourceName } from "./trace-names";
import { percent, quoted, signed } from "./words";

export function headPart(trace: Trace, name: string, choose: Choose): Child[] {
  const { layer, head } = parseHead(name)!;
  const maps = Maps.of(trace.maps);
  const looks = trace.looks.filter((each) => each.layer === layer && each.head === head);
  const nodes = nodesById(trace);
  const share = headFlows(trace).find(([each]) => each === name)?.[1] ?? 0;
  const tried = trace.interventions.find((each) => each.what === name);
  const carried = trace.links.flatMap((link, i) =>
    link.heads
      .filter(([each]) => each === name)
      .map(([, value]): [number, TraceLink, number] => [
        i,
        link,
        (value / Math.max(1e-12, Math.abs(link.weight))) * link.flow,
      ]),
  );
  if (layer >= maps.layers || head >= maps.heads)
    return [title(name, "Head"), el("p", {}, "This model has no such head.")];
  const known = [...new Set(trace.looks.map((each) => headName(each)))];
  return [
    title(name, "Head"),
    el("p", {}, `It carries ${percent(share, 1)} of the output.`),
    tried ? trial(tried) : null,
    ...looks.map((look) => {
      const cell = 96 / maps.length;
      const small = svg(
        "svg",
        { viewBox: "0 0 96 96", width: 96, height: 96, class: "minimap", role: "img", "aria-label": `Map of ${name}` },
        mapImage(maps, layer, head, 0, 0, 96),
        svg("rect", {
          class: "markcell",
          x: look.key * cell,
          y: look.query * cell,
          width: Math.max(3, cell),
          height: Math.max(3, cell),
        }),
      );
      return el(
        "div",
        { class: "look" },
        el(
          "div",
          {},
          small,
          el(
            "p",
            {},
            `${look.query + 1} ${quoted(trace.tokens[look.query], 16)} looks at ${look.key + 1} ${quoted(trace.tokens[look.key], 16)} with weight ${look.weight.toFixed(2)}; score ${signed(look.score, 1)}.`,
          ),
        ),
        bars("Why: what the query has, with what the key has", [
          ...look.pairs.map(([query, key, value]): [Child, number, null, string] => [
            `${sourceName(trace, query, nodes)} × ${sourceName(trace, key, nodes)}`,
            value,
            null,
            signed(value, 1),
          ]),
          ["all other pairs", look.rest, null, signed(look.rest, 1)],
        ]),
      );
    }),
    looks.length
      ? null
      : el(
          "p",
          { class: "quiet" },
          known.length
            ? `Why it looks where it does was worked out for ${known.join(", ")} only.`
            : "Why heads look where they do was not worked out.",
        ),
    bars(
      "Links it carries",
      carried
        .sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]))
        .slice(0, 8)
        .map(([i, link, value]) => [
          linkName(trace, link),
          value,
          () => choose(`link:${i}`),
          percent(Math.abs(value), 1),
        ]),
    ),
  ];
}
