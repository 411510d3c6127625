// The uploaded programs and libraries.

import { ApiError, get, remove, upload } from "../api.js";
import { ask } from "../ask.js";
import { actionButton, byId, element, setChildren, setRefused, tell, when } from "../dom.js";
import { bytes, NONE, number } from "../format.js";
import { live } from "../live.js";
import { isFirstPage, pageQuery, showPages } from "../paging.js";
import { mayActAs, viewer } from "../viewer.js";

const page = live(async () => {
  const [user, { artifacts, next }] = await Promise.all([viewer(), get(`/v1/artifacts?${pageQuery(100)}`)]);
  byId("loading").hidden = true;
  byId("table").hidden = artifacts.length === 0;
  byId("empty").hidden = artifacts.length > 0 || !isFirstPage();
  const mayOperate = mayActAs(user, "OPERATOR");
  byId("upload").hidden = !mayOperate;
  setChildren(byId("artifacts"), ...artifacts.map((one) => artifactRow(one, mayOperate)));
  showPages(next);
}, { everyMs: 5000 });

function artifactRow(one, mayOperate) {
  const cell = (column, content, kind) => element("td", { role: "cell", dataset: { column }, class: kind }, content);
  return element("tr", { role: "row", dataset: { key: one.id } },
    element("th", { scope: "row", role: "rowheader" }, one.name),
    cell("Version", number(one.version), "number"),
    cell("File", element("code", { title: `SHA-256 ${one.sha256}` }, one.filename)),
    cell("Size", bytes(one.size_bytes), "number"),
    cell("Uploaded", element("span", {}, when(one.created_at_ms), one.uploaded_by ? ` by ${one.uploaded_by}` : "")),
    cell("Used by", one.used_by.length ? element("span", {}, ...one.used_by.flatMap((name, index) => [index ? ", " : "",
      element("a", { href: `/ui/jobs/${encodeURIComponent(name)}/overview` }, name)])) : NONE),
    element("td", { role: "cell" },
      mayOperate ? deleteButton(one) : null));
}

function deleteButton(one) {
  const button = actionButton("Delete…", () => removeArtifact(one), { class: "plain danger" });
  setRefused(button, one.used_by.length ? "A job uses it." : "");
  return button;
}

async function removeArtifact(one) {
  const agreed = await ask({
    title: `Delete ${one.name}, version ${one.version}?`,
    text: "The file is deleted. To undo this, upload it again.",
    action: "Delete the artifact",
  });
  if (!agreed) return;
  await attempt(`${one.name}, version ${one.version}: deleted.`, () => remove(`/v1/artifacts/${one.id}`));
}

byId("upload").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", async () => {
  const [file] = byId("file").files;
  if (!file) return;
  setRefused(byId("upload"), "The file is being uploaded.");
  await attempt(`${file.name}: uploaded.`, () => upload(file));
  byId("file").value = "";
  setRefused(byId("upload"));
});

async function attempt(done, act) {
  try {
    await act();
    tell(done, "good");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(error.text, "bad");
  }
  page.now();
}
