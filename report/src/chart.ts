// Lines over a count: curves of circuits and of a post-training.
import { scaleLinear, scaleSymlog } from "d3-scale";
import { area, line } from "d3-shape";
import { svg } from "./dom";
import { hideTip, say, showTip } from "./tip";
import { short } from "./words";

export interface Series {
  name: string;
  colour: string;
  points: [number, number][];
  band?: [number, number, number][];
}

export interface ChartOptions {
  width: number;
  label: string;
  xLabel: string;
  yLabel: string;
  series: Series[];
  steep?: boolean; // the small counts matter most
  y?: [number, number];
  mark?: { at: number; label: string };
  format?: (value: number) => string;
}

export function chart(options: ChartOptions): SVGSVGElement {
  const { series, mark, format = short } = options;
  const width = Math.max(260, options.width);
  const height = Math.round(Math.min(300, Math.max(190, width * 0.5)));
  const edge = { top: 26, right: 14, bottom: 36, left: 48 };
  const all = series.flatMap(({ points }) => points);
  const values = [...all.map(([, y]) => y), ...(mark ? [mark.at] : [])];
  const [low, high] = options.y ?? [Math.min(0, ...values), Math.max(...values, 1e-9) * 1.05];
  const range: [number, number] = [edge.left, width - edge.right];
  const most = Math.max(1, ...all.map(([x]) => x));
  const x = options.steep
    ? scaleSymlog().constant(3).domain([0, most]).range(range)
    : scaleLinear().domain([0, most]).range(range);
  const y = scaleLinear()
    .domain([low, high])
    .range([height - edge.bottom, edge.top])
    .clamp(true);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "chart",
    role: "img",
    "aria-label": `${options.label}. ${summary(options)}`,
    tabindex: 0,
  });
  const xTicks = options.steep ? steepTicks(most) : x.ticks(Math.max(2, Math.floor(width / 110)));
  picture.append(
    ...y
      .ticks(4)
      .map((at) =>
        svg(
          "g",
          { class: "tick" },
          svg("line", { x1: range[0], x2: range[1], y1: y(at), y2: y(at) }),
          svg("text", { x: range[0] - 6, y: y(at) + 4, "text-anchor": "end" }, format(at)),
        ),
      ),
    ...xTicks.map((at) =>
      svg("text", { class: "tick", x: x(at), y: height - edge.bottom + 16, "text-anchor": "middle" }, large(at)),
    ),
    svg("text", { class: "axis", x: range[1], y: height - 4, "text-anchor": "end" }, options.xLabel),
    svg("text", { class: "axis", x: 2, y: 12 }, options.yLabel),
  );
  if (mark) {
    picture.append(
      svg("line", { class: "target", x1: range[0], x2: range[1], y1: y(mark.at), y2: y(mark.at) }),
      svg("text", { class: "target", x: range[0] + 4, y: y(mark.at) - 5 }, mark.label),
    );
  }
  for (const each of series) {
    if (each.band?.length) {
      const shape = area<[number, number, number]>()
        .x((p) => x(p[0]))
        .y0((p) => y(p[1]))
        .y1((p) => y(p[2]));
      picture.append(svg("path", { d: shape(each.band) ?? "", fill: each.colour, "fill-opacity": 0.14 }));
    }
    const path = line<[number, number]>()
      .x((p) => x(p[0]))
      .y((p) => y(p[1]));
    picture.append(svg("path", { d: path(each.points) ?? "", fill: "none", stroke: each.colour, "stroke-width": 2 }));
  }
  picture.append(...names(series, width - edge.right));
  const dot = svg("circle", { r: 4, class: "dot", visibility: "hidden" });
  picture.append(dot);
  const point = (place: number, spoken: boolean) => {
    const points = series.flatMap((each) => each.points.map((p) => ({ each, p }))).sort((a, b) => a.p[0] - b.p[0]);
    const found = points[Math.min(Math.max(0, place), points.length - 1)];
    if (!found) return;
    const [px, py] = [x(found.p[0]), y(found.p[1])];
    dot.setAttribute("cx", String(px));
    dot.setAttribute("cy", String(py));
    dot.setAttribute("fill", found.each.colour);
    dot.setAttribute("visibility", "visible");
    const said = `${found.each.name}: ${format(found.p[1])} at ${found.p[0].toLocaleString("en")} ${options.xLabel}`;
    const box = picture.getBoundingClientRect();
    showTip(box.left + (px * box.width) / width, box.top + (py * box.height) / height, said);
    if (spoken) say(said);
  };
  const sorted = series.flatMap((each) => each.points).sort((a, b) => a[0] - b[0]);
  let at = 0;
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const [mx, my] = [
      ((event.clientX - box.left) * width) / box.width,
      ((event.clientY - box.top) * height) / box.height,
    ];
    const far = (p: [number, number]) => Math.hypot(x(p[0]) - mx, (y(p[1]) - my) / 2);
    sorted.forEach((p, i) => (at = far(p) < far(sorted[at]!) ? i : at));
    point(at, false);
  });
  picture.addEventListener("pointerleave", () => (hideTip(), dot.setAttribute("visibility", "hidden")));
  picture.addEventListener("blur", () => (hideTip(), dot.setAttribute("visibility", "hidden")));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.min(Math.max(0, at + step), sorted.length - 1);
    point(at, true);
  });
  return picture;
}

function names(series: Series[], right: number): SVGElement[] {
  let end = right;
  return series.length < 2
    ? []
    : [...series].reverse().map((each) => {
        const text = svg(
          "text",
          { class: "series", x: end, y: 12, "text-anchor": "end", fill: each.colour },
          each.name,
        );
        end -= 7 * each.name.length + 16;
        return text;
      });
}

const large = (value: number): string =>
  value >= 1e6 ? `${short(value / 1e6)} M` : value >= 1e4 ? `${short(value / 1e3)} k` : short(value);

function steepTicks(most: number): number[] {
  const ticks = [0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000].filter((at) => at < 0.8 * most);
  return [...ticks, most];
}

const summary = ({ series, format = short, xLabel }: ChartOptions): string =>
  series
    .filter((each) => each.points.length)
    .map(({ name, points }) => {
      const [x, y] = points[points.length - 1]!;
      return `${name} ends at ${format(y)} after ${x.toLocaleString("en")} ${xLabel}`;
    })
    .join("; ");
