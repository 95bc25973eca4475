import { el, fill, name, count, plural, percent, millis, clock } from "./dom.js";
import { get, Stream } from "./api.js";
import { table, row, prepend } from "./rows.js";
import { Charts } from "./charts.js";

const mostRecent = 12;

function card(title, value, detail, href) {
  return el(href ? "a" : "div", { class: "card", href }, el("span", { class: "label" }, title), el("strong", {}, value), el("span", { class: "dim" }, detail || ""));
}

export class Overview {
  constructor(app, parameters) {
    this.app = app;
    this.by = parameters.get("by") || "all";
    this.hours = parameters.get("hours") || "24";
    this.quantile = parameters.get("latency") || "p95_ms";
    this.charts = new Charts();
    this.cards = el("div", { class: "cards", id: "cards" });
    this.top = el("div", { id: "top-tools" });
    this.body = el("tbody", { id: "recent" });
    const choice = (label, key, options) => el("label", {}, label + " ", el("select", { id: "chart-" + key, onchange: (e) => { this[key] = e.target.value; this.remember(); this.chart(); } },
      options.map(([value, text]) => el("option", { value, selected: value === this[key] }, text))));
    this.node = el("div", { class: "overview" }, this.cards,
      el("section", {}, el("div", { class: "bar" }, el("h2", {}, "Over time"), el("span", { class: "grow" }),
        choice("By", "by", [["all", "all"], ["tool", "tool"], ["server", "server"], ["principal", "principal"], ["client", "client"], ["method", "method"]]),
        choice("Time", "hours", [["6", "6 hours"], ["24", "24 hours"], ["168", "7 days"], ["720", "30 days"], ["2160", "90 days"], ["8760", "a year"]]),
        choice("Latency", "quantile", [["p50_ms", "median"], ["p95_ms", "95th percentile"], ["p99_ms", "99th percentile"]])),
      this.charts.node, this.charts.legend),
      el("div", { class: "two" },
        el("section", {}, el("h2", {}, "Top tools"), this.top),
        el("section", {}, el("div", { class: "bar" }, el("h2", {}, "Newest"), el("span", { class: "grow" }), el("a", { href: "#/entries" }, "all entries")), table(this.body))));
  }
  remember() {
    const query = new URLSearchParams({ by: this.by, hours: this.hours, latency: this.quantile });
    history.replaceState(null, "", "#/overview?" + query);
    document.querySelector("main").dataset.at = location.hash;
  }
  async open() {
    const entries = await get("entries", { limit: mostRecent });
    fill(this.body, entries.entries.map(row));
    await Promise.all([this.figures(), this.chart()]);
    if (this.closed) return;
    this.stream = new Stream({ after: entries.newest }, (m) => {
      prepend(this.body, m.entries, mostRecent);
      this.app.status(m.status);
      this.later();
    }, (broken) => this.app.broken(broken));
  }
  // later refreshes the figures soon, and not more often than they are worth.
  later() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.figures().catch(() => {});
      if (!this.drawn || Date.now() - this.drawn > 15000) this.chart().catch(() => {});
    }, 1500);
  }
  async figures() {
    const s = await get("stats");
    fill(this.cards,
      card("Calls today", count(s.total_today), plural(s.errors_today, "error") + ", " + count(s.denied_today) + " denied", "#/entries?" + new URLSearchParams({ from: s.day })),
      card("Error rate", percent(s.error_rate), "of all retained calls"),
      card("Calls", count(s.total), s.from ? "since " + clock(s.from).slice(0, 10) : ""),
      card("Denied", count(s.denied), count(s.rate_limited) + " rate limited", "#/entries?outcome=denied"),
      card("Latency", millis(s.p50_ms), "95 %: " + millis(s.p95_ms) + ", 99 %: " + millis(s.p99_ms)),
      card("Records", count(s.records), s.behind ? "the index is catching up" : "indexed"));
    const most = s.top_tools.length ? s.top_tools[0].count : 1;
    fill(this.top, s.top_tools.length === 0 ? el("p", { class: "dim" }, "No tool was called yet.") : el("table", { class: "top" }, el("tbody", {}, s.top_tools.map((t) => {
      const bar = el("span", { class: "fill" });
      bar.style.width = Math.max(100 * t.count / most, 1) + "%";
      return el("tr", {}, el("td", {}, el("a", { href: "#/entries?" + new URLSearchParams({ tool_name: t.name }) }, name(t.name))), el("td", { class: "barcell" }, bar), el("td", { class: "num" }, count(t.count)));
    }))));
  }
  async chart() {
    this.drawn = Date.now();
    const answer = await get("series", { by: this.by, hours: this.hours });
    if (!this.closed) this.charts.show(answer, this.quantile);
  }
  themed() { this.charts.redraw(); }
  close() {
    this.closed = true;
    clearTimeout(this.timer);
    if (this.stream) this.stream.close();
    this.charts.close();
  }
}
