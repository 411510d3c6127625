// Failures: the attempts that ended with a failure, with the user's traceback.

import { get } from "../api.js";
import { byId, element, setChildren, since, when, words } from "../dom.js";
import { number } from "../format.js";
import { failureParts, jobPage, path } from "../job_page.js";
import { pageQuery, showPages } from "../paging.js";

const PAGE = 50;

jobPage(() => get(`${path}/attempts?${pageQuery(PAGE)}`), (job, { attempts, next }) => {
  const failed = attempts.filter((attempt) => attempt.failure);
  byId("no-exceptions").hidden = failed.length > 0;
  setChildren(byId("exceptions"), ...failed.map((attempt) => element("li", {},
    element("p", { class: "soft" }, element("strong", {}, `Attempt ${number(attempt.number)}`), " ",
      when(attempt.ended_at_ms), ", ", since(attempt.ended_at_ms), `. It had begun by: ${words(attempt.cause).toLowerCase()}.`),
    element("div", { class: "notice", "data-tone": "bad" }, ...failureParts(attempt.failure, attempt === failed[0])))));
  showPages(next);
}, ["events"]);
