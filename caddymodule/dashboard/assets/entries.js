import { el, fill, count } from "./dom.js";
import { get, Stream } from "./api.js";
import { table, row, prepend } from "./rows.js";

const outcomes = ["success", "tool_error", "rpc_error", "input_required", "denied", "rate_limited", "upstream_error", "timeout", "client_disconnect", "cancelled", "malformed_upstream_response", "internal_error", "unknown"];
const fields = ["from", "to", "method", "tool_name", "client_id", "principal", "server_id", "outcome", "decision", "text"];
const mostRows = 1000;

// localTime is a time as an input of the type datetime-local takes it.
function localTime(text) {
  const t = new Date(text);
  if (!text || isNaN(t)) return "";
  return new Date(t.getTime() - t.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

export class Entries {
  constructor(app, parameters) {
    this.app = app;
    this.filter = {};
    for (const f of fields) if (parameters.get(f)) this.filter[f] = parameters.get(f);
    if (parameters.get("own")) this.filter.own = "1";
    this.live = parameters.get("live") !== "0";
    this.body = el("tbody", { id: "entries" });
    this.more = el("button", { type: "button", id: "older", hidden: true, onclick: () => this.older() }, "Older entries");
    this.note = el("p", { class: "dim", id: "entries-note", role: "status" });
    const input = (label, field, type) => el("label", {}, label, el("input", { id: "f-" + field, name: field, type: type || "text", step: type === "datetime-local" ? "1" : undefined, autocomplete: "off", value: type === "datetime-local" ? localTime(this.filter[field]) : this.filter[field] || "" }));
    const select = (label, field, options) => el("label", {}, label, el("select", { id: "f-" + field, name: field }, el("option", { value: "" }, "any"), options.map((o) => el("option", { value: o, selected: o === this.filter[field] }, o))));
    this.form = el("form", { class: "filters", id: "filters", onsubmit: (e) => { e.preventDefault(); this.apply(); } },
      input("From", "from", "datetime-local"), input("To", "to", "datetime-local"), input("Method", "method"), input("Tool", "tool_name"),
      input("Client", "client_id"), input("Principal", "principal"), input("Server", "server_id"),
      select("Outcome", "outcome", outcomes), select("Decision", "decision", ["allow", "deny"]), input("Text", "text", "search"),
      el("label", { class: "check" }, el("input", { type: "checkbox", name: "own", id: "f-own", checked: !!this.filter.own }), "the log's own records"),
      el("span", { class: "buttons" }, el("button", { type: "submit", id: "apply" }, "Filter"),
        el("button", { type: "button", id: "clear", onclick: () => { location.hash = "#/entries"; } }, "Clear"),
        el("label", { class: "check" }, el("input", { type: "checkbox", id: "live", checked: this.live, onchange: (e) => this.setLive(e.target.checked) }), "live")));
    this.node = el("div", {}, this.form, this.note, table(this.body), this.more);
  }
  apply() {
    const query = new URLSearchParams();
    for (const f of fields) {
      let value = this.form.elements[f].value;
      if ((f === "from" || f === "to") && value) value = new Date(value).toISOString();
      if (value) query.set(f, value);
    }
    if (this.form.elements.own.checked) query.set("own", "1");
    if (!this.live) query.set("live", "0");
    const hash = "#/entries" + (query.size ? "?" + query : "");
    if (hash === location.hash) this.app.route();
    else location.hash = hash;
  }
  setLive(on) {
    this.live = on;
    this.form.querySelector("#live").checked = on;
    if (on) { this.app.route(); return; }
    if (this.stream) this.stream.close();
    this.stream = null;
  }
  async open() {
    this.abort = new AbortController();
    await this.page({});
    if (this.closed || !this.live || this.filter.text || this.filter.to) return;
    this.stream = new Stream({ ...this.filter, after: this.newest }, (m) => {
      prepend(this.body, m.entries, mostRows);
      if (m.skipped) this.say("There were more entries than could be shown as they came. Filter again to see them all.");
      this.app.status(m.status);
    }, (broken) => this.app.broken(broken));
  }
  say(text) { fill(this.note, text || count(this.body.children.length) + " entries shown"); }
  async older() { this.more.disabled = true; try { await this.page({ before: this.next }); } finally { this.more.disabled = false; } }
  async page(where) {
    // A search for what is rare comes back in parts.
    for (let answer, got = 0; ;) {
      this.say("Looking …");
      answer = await get("entries", { ...this.filter, limit: 100, ...where }, this.abort.signal);
      if (this.closed) return;
      this.body.append(...answer.entries.map(row));
      got += answer.entries.length;
      this.next = answer.next;
      this.newest = this.newest || answer.newest;
      this.more.hidden = answer.complete;
      this.say(answer.complete && !this.body.children.length ? "No entry fits." : "");
      if (answer.complete || got >= 100) return;
      where = { before: answer.next };
    }
  }
  focusSearch() { this.form.elements.text.focus(); }
  toggleLive() { this.setLive(!this.live); }
  close() {
    this.closed = true;
    if (this.abort) this.abort.abort();
    if (this.stream) this.stream.close();
  }
}
