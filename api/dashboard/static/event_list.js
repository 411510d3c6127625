// The list of events on the pages that have one.

import { byId, element, keyed, when, words } from "./dom.js";

/** Shows events, the newest first. */
export function showEvents(events) {
  keyed(byId("events"), events, (event) => event.id,
    (event) => element("li", {},
      element("span", { class: "soft nowrap" }, when(event.at_ms)),
      element("span", {}, element("strong", {}, words(event.kind)), " ", element("span", { class: "soft" }, `by ${event.actor}`)),
      element("span", {}, event.message)),
    () => {});
}
