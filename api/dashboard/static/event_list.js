// The list of events on the pages that have one.

import { byId, element, keyed, when, words } from "./dom.js";

/**
 * Shows events, the newest first.
 * @param {object[]} events of the API
 * @param {Map<string, string | null>} names of jobs by id, for the job of each event; null for a deleted job
 */
export function showEvents(events, names = new Map()) {
  keyed(byId("events"), events, (event) => event.id,
    (event) => element("li", {},
      element("span", { class: "soft nowrap" }, when(event.at_ms)),
      element("span", {}, element("strong", {}, words(event.kind)), " ", element("span", { class: "soft" }, `by ${event.actor}`)),
      element("span", {}, ...jobOf(event, names), event.message)),
    () => {});
}

function jobOf({ job_id: id }, names) {
  if (!names.has(id)) return [];
  const name = names.get(id);
  return [name === null ? element("span", { class: "mono soft" }, id)
    : element("a", { href: `/ui/jobs/${encodeURIComponent(id)}/overview` }, name), ": "];
}
