// A link may carry the token after its `#`, which browsers never send. The token moves from the address to the field.

const match = /^#token=([\w.~-]+)$/.exec(location.hash);
if (match) {
  document.getElementById("token").value = match[1];
  history.replaceState(null, "", location.pathname + location.search);
  document.querySelector("button[type=submit]").focus();
}
