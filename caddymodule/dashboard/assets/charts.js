import { el, fill, name, count, millis, percent } from "./dom.js";

const colours = ["#3b82c4", "#d9822b", "#3d9970", "#b05fc0", "#c0433f", "#7a8288", "#9aa61f", "#17a2a8"];

function style() {
  const s = getComputedStyle(document.documentElement);
  return { text: s.getPropertyValue("--dim").trim(), grid: s.getPropertyValue("--line").trim() };
}

const two = (n) => String(n).padStart(2, "0");
// moment names a time on an axis: by the hour within two days, else by the day.
function moment(seconds, span) {
  const t = new Date(seconds * 1000);
  const day = two(t.getMonth() + 1) + "-" + two(t.getDate());
  if (span > 400 * 86400) return t.getFullYear() + "-" + day;
  if (span > 2 * 86400) return day;
  return t.getHours() === 0 && t.getMinutes() === 0 ? day : two(t.getHours()) + ":" + two(t.getMinutes());
}

// draw shows one figure of each series over time.
function draw(box, answer, pick, format) {
  const s = style();
  const axis = { stroke: s.text, grid: { stroke: s.grid, width: 1 }, ticks: { stroke: s.grid, width: 1 }, font: "11px sans-serif" };
  const plot = new uPlot({
    width: Math.max(box.clientWidth, 240), height: 170, legend: { show: false }, cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...axis, values: (u, list) => list.map((t) => moment(t, u.scales.x.max - u.scales.x.min)) }, { ...axis, size: 56, values: (u, list) => list.map(format) }],
    series: [{}, ...answer.series.map((_, i) => ({ stroke: colours[i % colours.length], width: 1.5, spanGaps: true, points: { show: answer.times.length < 60, size: 4 } }))],
  }, [answer.times, ...answer.series.map((one) => pick(one))], box);
  return plot;
}

export class Charts {
  constructor() {
    this.plots = [];
    this.node = el("div", { class: "charts" });
    this.legend = el("div", { class: "legend" });
    this.resize = () => { for (const p of this.plots) p.setSize({ width: Math.max(p.root.parentNode.clientWidth, 240), height: 170 }); };
    window.addEventListener("resize", this.resize);
  }
  show(answer, quantile) {
    this.last = [answer, quantile];
    this.clear();
    const label = { p50_ms: "median", p95_ms: "95th percentile", p99_ms: "99th percentile" }[quantile];
    const all = { p50_ms: "all_p50_ms", p95_ms: "all_p95_ms", p99_ms: "all_p99_ms" }[quantile];
    const kinds = [
      ["Calls", (s) => s.calls, (v) => count(v)],
      ["Errors", (s) => s.errors, (v) => count(v)],
      ["Denials", (s) => s.denied, (v) => count(v)],
      ["Latency, " + label, (s) => s[quantile], (v) => millis(v)],
    ];
    fill(this.node, kinds.map(([title]) => el("figure", {}, el("figcaption", {}, title), el("div", { class: "plot" }))));
    kinds.forEach(([, pick, format], i) => this.plots.push(draw(this.node.children[i].querySelector(".plot"), answer, pick, format)));
    fill(this.legend, answer.series.length === 0 ? el("p", { class: "dim" }, "No calls in this time.") :
      el("table", {}, el("thead", {}, el("tr", {}, ["", "Calls", "Errors", "Error rate", "Denials", "Latency, " + label].map((t, i) => el("th", { scope: "col", class: i ? "num" : undefined }, t)))),
        el("tbody", {}, answer.series.map((s, i) => {
          const key = el("span", { class: "key" });
          key.style.background = colours[i % colours.length];
          return el("tr", {}, el("td", {}, key, answer.by === "all" ? "all calls" : s.name === "" ? "(none)" : name(s.name)),
            [count(s.total), count(s.total_errors), percent(s.total ? s.total_errors / s.total : 0), count(s.total_denied), millis(s[all])].map((t) => el("td", { class: "num" }, t)));
        }))), answer.others ? el("p", { class: "dim" }, "Only those with the most calls are shown.") : null);
  }
  redraw() { if (this.last) this.show(...this.last); }
  clear() { for (const p of this.plots) p.destroy(); this.plots = []; }
  close() { this.clear(); window.removeEventListener("resize", this.resize); }
}
