// The page of all jobs.

import { get } from "./api.js";
import { byId, element, keyed, setPill, setText } from "./dom.js";
import { ago, duration, NONE, rate } from "./format.js";
import { poll } from "./poll.js";

const COLUMNS = ["Status", "Parallelism", "Last checkpoint", "Input rate", "Uptime"];
const ENDED = new Set(["CREATED", "STOPPED", "FAILED", "FINISHED"]);
poll(async () => {
  const jobs = await allJobs();
  byId("loading").hidden = true;
  byId("table").hidden = jobs.length === 0;
  byId("empty").hidden = jobs.length > 0;
  const running = jobs.filter((job) => job.status === "RUNNING").length;
  setText(byId("summary"), jobs.length ? `${running} of ${jobs.length} running` : "");
  keyed(byId("jobs"), jobs, (job) => job.id, createRow, updateRow);
});

async function allJobs() {
  const jobs = [];
  for (let after = ""; after !== null;) {
    const page = await get(`/jobs?limit=500${after && `&after=${after}`}`);
    jobs.push(...page.jobs);
    after = page.next;
  }
  return jobs;
}

function createRow(job) {
  const name = element("th", { scope: "row", role: "rowheader" },
    element("a", { href: `/ui/jobs/${encodeURIComponent(job.id)}` }, job.name));
  const cells = COLUMNS.map((column) => element("td", {
    role: "cell", dataset: { column },
    class: ["Parallelism", "Input rate", "Uptime"].includes(column) ? "number" : null,
  }));
  cells[0].append(element("span", { class: "pill" }));
  return element("tr", { role: "row" }, name, ...cells);
}

function updateRow(row, job) {
  const [name, status, parallelism, checkpoint, input, uptime] = row.children;
  const ended = ENDED.has(job.status);
  setText(name.firstElementChild, job.name);
  setPill(status.firstElementChild, job.status);
  setText(parallelism, job.parallelism);
  const completed = job.latest_checkpoint;
  setText(checkpoint, completed ? `#${completed.id}, ${ago(completed.completed_at_ms)}` : NONE);
  setText(input, ended ? NONE : rate(job.attempt?.metrics?.input_records_per_second));
  setText(uptime, ended || !job.started_at_ms ? NONE : duration(Date.now() - job.started_at_ms));
}
