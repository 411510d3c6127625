// A link may carry the token behind its `#`, which browsers never send anywhere. It moves into the field, out of the address.

const match = /^#token=([\w.~-]+)$/.exec(location.hash);
if (match) {
  document.getElementById("token").value = match[1];
  history.replaceState(null, "", location.pathname + location.search);
  document.querySelector("button[type=submit]").focus();
}
