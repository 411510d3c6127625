// A job's exceptions, including recovered ones: type, place, message, and the user's traceback.

import { get } from "../api.js";
import { byId, element, setChildren, since, when } from "../dom.js";
import { number } from "../format.js";
import { failureParts, jobPage, path } from "../job_page.js";
import { isFirstPage, pageQuery, showPages } from "../paging.js";

const PAGE = 50;

jobPage(() => get(`${path}/exceptions?${pageQuery(PAGE)}`), (job, { exceptions, next }) => {
  byId("no-exceptions").hidden = exceptions.length > 0 || !isFirstPage();
  setChildren(byId("exceptions"), ...exceptions.map((one, index) => element("li", { dataset: { key: one.id } },
    element("p", { class: "soft" }, when(one.at_ms), ", ", since(one.at_ms), ", in attempt ",
      element("a", { href: `logs?attempt=${one.attempt}` }, number(one.attempt))),
    element("div", { class: "notice", "data-tone": "bad" },
      one.type && !one.message.includes(one.type.split(".").at(-1)) ? element("strong", { class: "mono" }, `${one.type} `) : "",
      ...failureParts(one, isFirstPage() && index === 0)))));
  showPages(next);
}, ["events"]);
