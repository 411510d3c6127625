// Draws charts with Plotly, which is fetched when the first chart is drawn, and kept by the browser.

import { byId, element, setText } from "./dom.js";
import { bytes, decimal, duration, NONE, number, rate } from "./format.js";

const FORMATS = { bytes, decimal, duration, number, rate };
/** The units of a chart's axis, by its largest value: [least, divisor, suffix]. */
const SCALES = {
  bytes: [[2 ** 40, 2 ** 40, " TiB"], [2 ** 30, 2 ** 30, " GiB"], [2 ** 20, 2 ** 20, " MiB"], [1024, 1024, " KiB"],
    [0, 1, " B"]],
  duration: [[7_200_000, 3_600_000, " h"], [120_000, 60_000, " min"], [1000, 1000, " s"], [0, 1, " ms"]],
  rate: [[0, 1, "/s"]],
  number: [[0, 1, ""]],
  decimal: [[0, 1, ""]],
};
let library = null;
const scheme = matchMedia("(prefers-color-scheme: dark)");
/** The latest drawing of each figure. @type {WeakMap<Element, Promise<unknown>>} */
const turns = new WeakMap();
const LATE_POINTS = 3;
const POINT_PX = 7, LONE_POINT_PX = 6;
/** The content of each figure. @type {WeakMap<Element, string>} */
const drawn = new WeakMap();

/** Fetches the library once per page. While it is missing (null), pages show their metrics without charts. */
function loadLibrary() {
  library ??= new Promise((resolve) => {
    // Plotly would add style elements, which the page's policy refuses; what it needs of them is in our style sheet.
    if (!byId("plotly.js-style-global")) document.head.append(element("meta", { id: "plotly.js-style-global", class: "no-inline-styles" }));
    const append = Node.prototype.appendChild;
    document.head.appendChild = (node) => (node instanceof HTMLStyleElement ? node : append.call(document.head, node));
    const script = element("script", { src: `/ui/static/${byId("charts").dataset.library}` });
    script.addEventListener("load", () => {
      delete document.head.appendChild;
      resolve(window.Plotly);
    });
    script.addEventListener("error", () => {
      delete document.head.appendChild;
      script.remove();
      library = null;
      resolve(null);
    });
    document.body.append(script);
  });
  return library;
}

/** Shows only the charts of these titles, in this order. @param {string[]} titles */
export function arrangeCharts(titles) {
  const charts = byId("charts");
  const figures = titles.map(figureOf);
  for (const figure of charts.children) {
    figure.hidden = !figures.includes(figure);
    if (figure.hidden) drawn.delete(figure);
  }
  if (figures.some((figure, index) => charts.children[index] !== figure)) charts.prepend(...figures);
}

/**
 * Draws a chart, or draws it again with other values.
 * @param {string} title
 * @param {{kind: "bytes"|"decimal"|"duration"|"rate"|"number", lines: {name: string, points: [number, number|null][], now?: number|null, mode?: string, symbols?: string[], joined?: boolean, over?: boolean}[], span?: [number, number], annotations?: {at_ms: number,
 *   tone?: string}[]}} chart points are [ms since the epoch, value]; null is a gap, unless the line is `joined`. A line's value
 *   is `now`, or its last value; a line that is `over` has no value.
 */
export async function drawChart(title, { kind, lines, span, annotations = [] }) {
  const figure = figureOf(title);
  const content = JSON.stringify([kind, lines, span, annotations, scheme.matches]);
  if (drawn.get(figure) === content) return;
  drawn.set(figure, content);
  const values = lines.flatMap((line) => line.points.map(([, value]) => value)).filter((value) => value !== null);
  const largest = Math.max(0, ...values);
  const [, divisor, suffix] = SCALES[kind].find(([least]) => largest >= least);
  const format = FORMATS[kind];
  describe(figure, title, lines, format);
  const Plotly = await loadLibrary();
  if (!Plotly) {
    drawn.delete(figure); // the next drawing fetches the library again
    return;
  }
  const colours = getComputedStyle(document.documentElement);
  const colour = (name) => colours.getPropertyValue(`--${name}`).trim();
  const traces = lines.map((line, index) => ({
    type: "scatter",
    mode: line.mode ?? "lines+markers",
    name: line.name,
    x: line.points.map(([at]) => new Date(at)),
    y: line.points.map(([, value]) => (value === null ? null : value / divisor)),
    text: line.points.map(([, value]) => format(value)),
    hovertemplate: "%{text}",
    line: { color: colour(["accent", "second", "busy"][index] ?? "calm"), width: 1.8 },
    marker: { color: colour(["accent", "second", "busy"][index] ?? "calm"), line: { width: 0 },
      size: line.mode ? POINT_PX : sizesOf(line), symbol: line.symbols },
    connectgaps: Boolean(line.joined),
  }));
  const layout = {
    height: 180,
    margin: { l: 62, r: 8, t: 6, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("ink-soft") },
    showlegend: lines.length > 1,
    legend: { orientation: "h", y: 1.18, x: 0 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line-strong"), font: { color: colour("ink") } },
    dragmode: false,
    xaxis: { type: "date", range: span?.map((at) => new Date(at)), gridcolor: colour("line"), fixedrange: true,
      hoverformat: "%d %b %H:%M:%S", nticks: 5, tickangle: 0, zeroline: false,
      // Invisible ticks keep the times clear of the lowest label of the other axis.
      ticks: "outside", ticklen: 5, tickcolor: "rgba(0,0,0,0)" },
    yaxis: { rangemode: "tozero", ticksuffix: suffix, gridcolor: colour("line"), fixedrange: true, nticks: 4,
      zeroline: false, range: largest ? undefined : [0, 1], ...(kind === "number" && largest < 4 ? { dtick: 1 } : {}) },
    shapes: annotations.map(({ at_ms: at, tone = "calm" }) => ({
      type: "line", x0: new Date(at), x1: new Date(at), yref: "paper", y0: 0, y1: 1,
      line: { color: colour(tone), width: 1.5, dash: "dot" },
    })),
  };
  // One drawing of a figure at a time: Plotly fails if it is asked again before its first drawing is complete.
  const draw = () => Plotly.react(figure.querySelector(".plot"), traces, layout, { displayModeBar: false, responsive: true });
  const turn = (turns.get(figure) ?? Promise.resolve()).then(draw);
  turns.set(figure, turn);
  await turn;
}

/** Draws only the points of a line without a neighbour. */
function sizesOf({ points, joined }) {
  const isKnown = (index) => (points[index]?.[1] ?? null) !== null;
  const isOnly = points.filter((_, index) => isKnown(index)).length === 1;
  return points.map((_, index) => (isOnly || (!joined && !isKnown(index - 1) && !isKnown(index + 1)) ? LONE_POINT_PX : 0));
}

function figureOf(title) {
  const charts = byId("charts");
  let figure = Array.from(charts.children).find((one) => one.dataset.title === title);
  if (!figure) {
    figure = element("figure", { dataset: { title } },
      element("figcaption", {}, element("strong", {}, title), element("span", { class: "soft" })),
      element("div", { class: "plot", role: "img" }));
    charts.append(figure);
  }
  return figure;
}

/** Describes the chart in words: the last value, for every reader; and the spread, for screen readers. */
function describe(figure, title, lines, format) {
  const now = [], spoken = [];
  for (const line of lines) {
    const known = line.points.map(([, value]) => value).filter((value) => value !== null);
    const named = lines.length > 1 ? `${line.name.toLowerCase()} ` : "";
    // A line with momentary values has a current value only if one of its latest points has a value: the last value may still arrive.
    const lasts = line.joined ? known : line.points.slice(-LATE_POINTS).map(([, value]) => value).filter((value) => value !== null);
    const value = line.now ?? lasts.at(-1);
    if (!line.over) now.push(`${named}${value === undefined ? NONE : format(value)}`);
    if (known.length) {
      const [least, most] = [Math.min(...known), Math.max(...known)].map(format);
      spoken.push(`${line.name}: from ${least} to ${most}, last ${format(known.at(-1))}`);
    }
  }
  setText(figure.querySelector("figcaption span"), now.join(", "));
  figure.querySelector(".plot").setAttribute("aria-label", `${title}. ${spoken.join(". ") || "No values."}`);
}
