import { el, fill, name, time, count, clock } from "./dom.js";
import { get } from "./api.js";

const words = {
  intact: ["good", "The log is intact, as far as it was checked."],
  incomplete: ["warn", "The log cannot be judged in full."],
  diverges: ["bad", "The log differs from proof that is kept elsewhere."],
  tampered: ["bad", "The log is not what was written."],
  unknown: ["dim", "The log was not verified yet."],
};

export class Verify {
  constructor(app) {
    this.app = app;
    this.marks = el("div", { class: "cards", id: "watermarks" });
    this.state = el("p", { id: "verify-state", role: "status" });
    this.findings = el("div", { id: "findings" });
    this.again = el("button", { type: "button", id: "verify-again", onclick: () => this.ask(true) }, "Verify now");
    this.node = el("div", {}, el("div", { class: "bar" }, el("h2", {}, "Verification"), el("span", { class: "grow" }), this.again), this.state, this.marks, this.findings,
      el("p", { class: "dim" }, "The verification runs in the background on this machine. Who does not trust this machine runs mcp-audit verify on a copy, with the public key and an anchor."));
  }
  async open() { await this.ask(false); }
  async ask(again) {
    clearTimeout(this.timer);
    const v = await get("verify", again ? { again: "1" } : {});
    if (this.closed) return;
    this.show(v);
    this.timer = setTimeout(() => this.ask(false).catch((e) => this.app.fault(e)), v.running ? 500 : 5000);
  }
  show(v) {
    const w = v.watermarks;
    const [cls, text] = words[v.integrity] || words.unknown;
    this.state.dataset.integrity = v.integrity;
    this.state.dataset.state = v.state;
    fill(this.state, el("span", { class: "verdict " + cls }, text), " ",
      v.running ? el("span", { class: "dim" }, "A verification is running.") : v.at ? el("span", { class: "dim" }, "Verified ", time(v.at), v.full_at && v.full_at !== v.at ? ", in full " + clock(v.full_at) : "", ", in " + v.took_s.toFixed(1) + " s.") : "",
      v.error ? el("span", { class: "bad" }, " ", name(v.error)) : "");
    const card = (title, n, detail) => el("div", { class: "card" }, el("span", { class: "label" }, title), el("strong", {}, n === null ? "–" : count(n)), el("span", { class: "dim" }, detail));
    fill(this.marks, card("Recorded", w.recorded, "records"), card("Durable", w.durable, w.durable === null ? "the writer is in another process" : "on the disk"),
      card("Checkpointed", w.checkpointed, "covered by a signed checkpoint"), card("Anchored", w.anchored, "covered by an anchor elsewhere"));
    fill(this.findings, v.not_covered ? el("p", {}, v.not_covered[0].toUpperCase() + v.not_covered.slice(1) + ".") : null,
      v.report ? el("h3", {}, v.findings.length ? "Findings" : "No findings") : null,
      v.findings.map((f) => el("div", { class: "finding c-" + String(f.class || "").replace(/[^a-zA-Z]/g, "") }, el("h4", {}, f.finding || "", f.seq !== undefined && f.seq !== null ? [" at ", el("a", { href: "#/operations/seq-" + f.seq }, "record " + f.seq)] : ""),
        f.what ? el("p", {}, f.what) : null, f.detail ? el("p", { class: "dim" }, name(f.detail)) : null, f.do ? el("p", {}, "To do: " + f.do) : null)),
      v.omitted_findings ? el("p", {}, count(v.omitted_findings) + " more findings are not listed.") : null);
  }
  close() { this.closed = true; clearTimeout(this.timer); }
}
