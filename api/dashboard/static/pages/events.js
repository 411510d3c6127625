// The events of a job, and who caused them.

import { get } from "../api.js";
import { byId, setText } from "../dom.js";
import { filterQuery, isFiltered, showFilter } from "../event_filter.js";
import { showEvents } from "../event_list.js";
import { jobPage, path } from "../job_page.js";
import { isFirstPage, pageQuery, showPages } from "../paging.js";

jobPage(() => get(`${path}/events?${pageQuery(100)}${filterQuery()}`), (job, { events, next }) => {
  byId("no-events").hidden = events.length > 0 || !isFirstPage();
  if (isFiltered()) setText(byId("no-events"), "No such events.");
  showEvents(events);
  showPages(next);
}, ["events"], 2000);

showFilter();
