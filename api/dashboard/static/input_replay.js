// The replay of a job's past input at another parallelism: what would have waited, beside what waited.

import { ApiError, get } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { duration, number, percent, plural } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600, HEIGHT = 120;
const LINES = [["lag_records", "measured"], ["replayed", "replayed"]];

/**
 * Lets the form replay the input of a job.
 * @param {string} path the path of the autoscaler in the API
 */
export function offerReplay(path) {
  byId("replay").addEventListener("submit", (event) => {
    event.preventDefault();
    const query = `parallelism=${byId("replay-parallelism").value}&hours=${byId("replay-hours").value}`;
    get(`${path}/replay?${query}`).then(show, (error) => {
      if (!(error instanceof ApiError)) throw error; // the page says that the control plane does not answer
      setText(byId("replay-said"), error.message);
    });
  });
}

function show({ parallelism, reason, peaks, error, points }) {
  const drawn = peaks === null ? [] : [drawing(points), element("p", { class: "soft" }, "Solid: what waited. Dashed: what would have waited.")];
  byId("replay-lines").replaceChildren(...drawn);
  setText(byId("replay-said"), peaks === null ? `Nothing can be replayed: ${reason}.` : sentence(parallelism, peaks, error));
}

function sentence(parallelism, { measured_ms: measured, replayed_ms: replayed }, error) {
  if (measured === null) return "No record arrived in this time.";
  const missed = error === null ? "" : ` At the parallelism that the job had, the model misses the peak by ${percent(error)}.`;
  return `With ${plural(parallelism, "subtask")}, the input of at most ${duration(replayed)} would have waited; the input of` +
    ` ${duration(measured)} waited.${missed}`;
}

/** Draws what waited and what would have waited, by time. */
function drawing(points) {
  const most = Math.max(1, ...points.flatMap((point) => LINES.map(([name]) => point[name])));
  const begin = points[0].at_ms, span = Math.max(1, points.at(-1).at_ms - begin);
  const svg = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "replay", role: "img", preserveAspectRatio: "none",
    "aria-label": `Records that waited, and that would have waited; at most ${number(most)}` });
  for (const [name, kind] of LINES) {
    const places = points.map((point) =>
      `${(WIDTH * (point.at_ms - begin) / span).toFixed(1)},${(HEIGHT * (1 - point[name] / most)).toFixed(1)}`);
    svg.append(node("polyline", { points: places.join(" "), "data-line": kind }));
  }
  return svg;
}

function node(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
