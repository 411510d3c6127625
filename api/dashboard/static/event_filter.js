// The filter above a list of events. The address holds it, so that a filtered list can be linked.

import { byId } from "./dom.js";

const FIELDS = ["kind", "actor", "job"];
const DAY_MS = 86_400_000;
const query = new URLSearchParams(location.search);

/** The query of the API for the events that the address names. */
export function filterQuery() {
  const wanted = new URLSearchParams();
  for (const name of FIELDS) for (const value of query.getAll(name)) if (value) wanted.append(name, name === "kind" ? kindOf(value) : value);
  const days = Number(query.get("days"));
  if (days > 0) wanted.set("from_ms", String(Math.floor(Date.now() - days * DAY_MS)));
  const text = wanted.toString();
  return text && `&${text}`;
}

/** A kind as the API writes it, also when it was written as pages show it. */
const kindOf = (text) => text.trim().toUpperCase().replaceAll(/[ -]+/g, "_");

/** Whether the address names some events only. */
export const isFiltered = () => [...FIELDS, "days"].some((name) => query.get(name));

/** Shows the filter in its form. */
export function showFilter() {
  for (const name of [...FIELDS, "days"]) {
    const field = document.getElementById(`event-${name}`);
    if (field instanceof HTMLInputElement || field instanceof HTMLSelectElement) field.value = query.get(name) ?? "";
  }
  byId("event-all").hidden = !isFiltered();
}
