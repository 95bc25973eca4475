import { fill, visible, count } from "./dom.js";
import { get, onLogin } from "./api.js";
import { Overview } from "./overview.js";
import { Entries } from "./entries.js";
import { Operation } from "./operation.js";
import { Verify } from "./verify.js";

const byId = (id) => document.getElementById(id);
const main = byId("main"), notice = byId("notice"), login = byId("login");

const app = {
  view: null,
  async route() {
    const [path, query] = location.hash.replace(/^#/, "").split("?");
    const parts = path.split("/").filter(Boolean);
    const page = parts[0] || "overview";
    const parameters = new URLSearchParams(query || "");
    if (this.view) this.view.close();
    this.say("");
    let view;
    if (page === "entries") view = new Entries(this, parameters);
    else if (page === "verify") view = new Verify(this);
    else if (page === "operations" && parts[1]) {
      let id = parts[1];
      try { id = decodeURIComponent(id); } catch (e) { /* it is taken as it is */ }
      view = new Operation(this, parameters, id);
    } else view = new Overview(this, parameters);
    this.view = view;
    main.replaceChildren(view.node);
    main.dataset.page = page;
    main.dataset.at = location.hash;
    delete main.dataset.ready;
    for (const a of document.querySelectorAll("nav a")) {
      if (a.dataset.page === page) a.setAttribute("aria-current", "page");
      else a.removeAttribute("aria-current");
    }
    try {
      this.status(await get("status"));
      if (this.view !== view) return;
      await view.open();
      if (this.view === view) main.dataset.ready = "1";
    } catch (e) {
      if (this.view === view) this.fault(e);
    }
  },
  fault(e) {
    if (e.status === 401 || e.name === "AbortError") return;
    this.say(e.message);
    // An index that is being opened is there in a moment.
    if (e.status === 503) { clearTimeout(this.retry); this.retry = setTimeout(() => this.route(), 2000); }
  },
  say(text) {
    notice.hidden = !text;
    fill(notice, text || "");
  },
  broken(broken) { document.body.classList.toggle("broken", broken); },
  status(s) {
    login.hidden = true;
    main.hidden = false;
    byId("log-name").textContent = visible(s.name);
    byId("log-name").title = visible(s.path);
    byId("logout").hidden = !s.login;
    const w = s.watermarks;
    const parts = [count(w.recorded) + " recorded", count(w.checkpointed) + " checkpointed"];
    if (w.anchored) parts.push(count(w.anchored) + " anchored");
    if (s.behind) parts.push("the index is catching up");
    const bad = s.healthy === false || !!s.index_error;
    if (s.healthy === false) parts.unshift("the log cannot be written");
    if (s.index_error) parts.unshift(s.index_error);
    const state = byId("state");
    state.classList.toggle("bad", bad);
    fill(state, parts.join(" · "));
  },
};

onLogin(() => {
  if (app.view) app.view.close();
  main.hidden = true;
  login.hidden = false;
  byId("token").focus();
});

login.querySelector("form").addEventListener("submit", async (e) => {
  e.preventDefault();
  const fault = byId("login-fault");
  fill(fault, "");
  const response = await fetch("login", { method: "POST", body: new URLSearchParams({ token: byId("token").value }) });
  if (response.ok) {
    byId("token").value = "";
    login.hidden = true;
    main.hidden = false;
    app.route();
    return;
  }
  let text = "status " + response.status;
  try { text = (await response.json()).error; } catch (err) { /* the status says enough */ }
  fill(fault, text);
});

byId("logout").addEventListener("submit", async (e) => {
  e.preventDefault();
  await fetch("logout", { method: "POST" });
  app.route();
});

function theme() {
  const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("mcp-audit-theme", next); } catch (e) { /* it holds for this page */ }
  if (app.view && app.view.themed) app.view.themed();
}
byId("theme").addEventListener("click", theme);
byId("help").addEventListener("click", () => byId("keys").showModal());

// move goes to the next or the previous entry of a table.
function move(by) {
  const links = [...main.querySelectorAll("a.open-entry")];
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  links[Math.min(Math.max(at + by, 0), links.length - 1)].focus();
}

let chord = false;
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || byId("keys").open || !login.hidden) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) {
    if (e.key === "Escape") e.target.blur();
    return;
  }
  const pages = { o: "#/overview", e: "#/entries", v: "#/verify" };
  if (chord && pages[e.key]) { location.hash = pages[e.key]; chord = false; e.preventDefault(); return; }
  chord = e.key === "g";
  const view = app.view || {};
  const keys = {
    j: () => move(1), k: () => move(-1), t: theme, u: () => history.back(), "?": () => byId("keys").showModal(),
    l: () => view.toggleLive && view.toggleLive(),
    "/": () => { if (view.focusSearch) view.focusSearch(); else location.hash = "#/entries"; },
  };
  if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
});

window.addEventListener("hashchange", () => app.route());
window.addEventListener("unhandledrejection", (e) => { if (e.reason && (e.reason.status || e.reason.name === "AbortError")) { e.preventDefault(); app.fault(e.reason); } });
app.route();
