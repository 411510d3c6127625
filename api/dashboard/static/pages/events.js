// The events of a job, and who caused them.

import { get } from "../api.js";
import { byId } from "../dom.js";
import { showEvents } from "../event_list.js";
import { jobPage, path } from "../job_page.js";
import { isFirstPage, pageQuery, showPages } from "../paging.js";

jobPage(() => get(`${path}/events?${pageQuery(100)}`), (job, { events, next }) => {
  byId("no-events").hidden = events.length > 0 || !isFirstPage();
  showEvents(events);
  showPages(next);
}, ["events"], 2000);
