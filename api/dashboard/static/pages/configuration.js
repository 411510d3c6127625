// The stored specification of a job.

import { get } from "../api.js";
import { byId, copyable, definitions, element, row, setChildren, when } from "../dom.js";
import { number } from "../format.js";
import { jobPage } from "../job_page.js";
import { CHANGES, labelOf, readSettings, settingsOf, shownValue, valueAt } from "../settings.js";

/** The names of artifacts by id; read once. @type {Map<string, string> | null} */
let artifacts = null;
let settings = [];

jobPage(async () => {
  settings = await readSettings();
  artifacts ??= new Map((await get("/v1/artifacts?limit=1000")).artifacts.map((one) => [one.id, `${one.name}, version ${number(one.version)}`]));
}, (job) => {
  // A strategy that the program sets is known from its driver.
  const spec = { ...job.spec, restart: job.spec.restart ?? job.status.attempt?.metrics?.restart ?? null };
  const own = settingsOf(settings, spec);
  const inGroups = Map.groupBy(own.filter((one) => !hasTable(one)),
    ({ path }) => (path.includes(".") ? path.split(".")[0] : ""));
  setChildren(byId("configuration"),
    ...[...inGroups].map(([group, members]) => panel(group ? labelOf(group) : "Settings", [
      ...members.map((one) => [labelOf(group ? one.path.slice(group.length + 1) : one.path).replace(/ \(ms\)$/, ""),
        shown(one, spec), `${one.description} (${CHANGES[one.change_class]})`]),
      ...(group ? [] : [["Created", when(job.created_at_ms)], ["Store", copyable(job.status.store_url)]]),
    ])),
    ...own.filter((one) => one.type === "object").map((one) =>
      table(labelOf(one.path), Object.entries(valueAt(spec, one.path) ?? {}).map(([name, value]) => [name, shownValue(name, value)]))),
    ...own.filter((one) => one.type === "array" && hasTable(one)).map((one) =>
      table(labelOf(one.path), (valueAt(spec, one.path) ?? []).map((each) => [artifacts.get(each) ?? each, each]))));
});

/** Parameters and libraries have tables of their own. */
const hasTable = ({ path, type }) => type === "object" || (type === "array" && !path.includes("."));

function shown({ path }, spec) {
  const value = valueAt(spec, path);
  return artifacts.get(value) ?? shownValue(path, value);
}

function panel(title, pairs) {
  return section(title, element("dl", { class: "definitions wide" }, ...definitions(pairs)));
}

function table(title, rows) {
  return section(title, rows.length
    ? element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": title },
      element("table", { class: "pairs" }, element("tbody", {}, ...rows.map(([name, value]) => row([name, [value, "mono"]])))))
    : element("p", { class: "soft" }, "None."));
}

function section(title, content) {
  const id = `head-${title.replaceAll(/\W+/g, "-").toLowerCase()}`;
  return element("section", { class: "panel", "aria-labelledby": id },
    element("div", { class: "panel-head" }, element("h2", { id }, title)), content);
}
