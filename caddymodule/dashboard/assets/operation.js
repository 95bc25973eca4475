import { el, fill, name, time, millis, count } from "./dom.js";
import { get } from "./api.js";
import { outcome, fromServer } from "./rows.js";

function facts(pairs) {
  return el("dl", {}, pairs.filter(([, v]) => v !== undefined && v !== null && v !== "" && v !== false).map(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
}
function mono(text) { return el("code", {}, text); }
function mark(good, yes, no) { return el("span", { class: good ? "good" : "bad" }, good ? "✓ " + yes : "✗ " + no); }

const titles = { params: "Request", result: "Result", error: "Error", client_info: "What the client says of itself", policy: "Policy", principal: "Principal", anomaly: "Anomalies", counts: "Counts" };
const pinned = {
  pinned: "Its definition is pinned.", changed: "Its definition was changed: mcp-audit pins approve lets it be used again.", renamed: "It was renamed: mcp-audit pins approve lets it be used.",
  rejected: "A changed definition of it was rejected.", gone: "The server does not list it any more.", unknown: "The pin file cannot be read.",
};
const decided = {
  allow: "The policy allowed it.", deny: "The policy denied it: it did not reach the server.",
};

export class Operation {
  constructor(app, parameters, id) {
    this.app = app;
    this.id = id;
    this.node = el("article", { class: "operation" });
  }
  async open() {
    const a = await get("operations/" + encodeURIComponent(this.id));
    if (this.closed) return;
    this.show(a);
  }
  show(a) {
    const e = a.entry;
    const what = [e.method || e.kind, e.tool_name || e.mcp_name].filter(Boolean).join(" ");
    const proof = "api/operations/" + encodeURIComponent(this.id) + "/proof";
    fill(this.node,
      el("div", { class: "bar" }, el("h2", {}, name(what)), " ", outcome({ ...e, kind: a.kind }), el("span", { class: "grow" }),
        el("a", { class: "button", id: "proof", href: proof, download: "" }, "Download proof")),
      facts([
        ["Operation", e.audit_operation_id && mono(e.audit_operation_id)], ["Time", time(e.timestamp, "ms")], ["Took", e.duration_ms !== undefined ? millis(e.duration_ms) : null],
        ["Sent by", e.direction ? (fromServer({ ...e, kind: a.kind }) ? "the server" : "the client") : null], ["Transport", e.transport], ["Protocol", e.protocol_version], ["Request id", e.request_id !== undefined ? [mono(e.request_id), " ", e.request_id_type] : null],
        ["Client", e.client_id && name(e.client_id)], ["Server", e.server_id && name(e.server_id)],
        ["Principal", e.principal && [name(e.principal.subject || ""), e.principal.issuer ? [" of ", name(e.principal.issuer)] : ""]],
        ["HTTP status", e.http_status], ["Trace", e.traceparent && mono(e.traceparent)], ["Request", e.request_bytes !== undefined ? count(e.request_bytes) + " bytes" : null],
        ["Answer", e.response_bytes !== undefined ? count(e.response_bytes) + " bytes" : null], ["Origin", mono(e.origin || "")],
      ]),
      el("section", { id: "decision" }, el("h3", {}, "Decision"), e.policy || e.reason || e.outcome === "denied" ? facts([
        ["Decision", e.policy ? decided[e.policy.decision] || name(e.policy.decision || "") : e.outcome === "denied" ? "It was refused before the policy was asked." : "No policy was asked."],
        ["Rule", e.policy && e.policy.rule_id && name(e.policy.rule_id)], ["Reason", (e.policy && e.policy.reason && name(e.policy.reason)) || (e.reason && name(e.reason))],
        ["Policy", e.policy && e.policy.digest && mono(e.policy.digest)], ["Pins", /^definition_changed/.test(e.reason || "") || (e.policy && e.policy.rule_id === "pin_tools") ? "The definition of the tool was not the one that is pinned." : null],
      ]) : el("p", { class: "dim" }, "No policy was asked.")),
      a.pin ? el("section", { id: "pin" }, el("h3", {}, "Pin of the tool, now"), facts([["State", pinned[a.pin.state] || name(a.pin.state)], ["Definition", a.pin.digest && mono(a.pin.digest)],
        ["Since", a.pin.since && time(a.pin.since)], ["Waiting", a.pin.pending_digest && mono(a.pin.pending_digest)], ["Former name", a.pin.from && name(a.pin.from)], ["Fault", a.pin.error && name(a.pin.error)]])) : null,
      a.payloads.map((p) => el("section", { id: "payload-" + p.name }, el("h3", {}, titles[p.name] || p.name), el("pre", { tabindex: "0" }, p.text), p.cut ? el("p", { class: "dim" }, "Only the beginning is shown; the proof has the record in full.") : null)),
      el("section", { id: "timeline" }, el("h3", {}, "Messages"), el("ol", { class: "timeline" }, a.timeline.map((m) => el("li", {},
        time(m.timestamp, "ms"), " ", el("span", { class: "dir" }, m.direction === "server→client" ? "←" : "→"), " ",
        m.audit_operation_id && m.audit_operation_id !== e.audit_operation_id ? el("a", { href: "#/operations/" + encodeURIComponent(m.audit_operation_id) }, name(m.what)) : name(m.what),
        " ", el("span", { class: "dim" }, m.kind, m.detail ? [", ", name(m.detail)] : null, " ", el("a", { href: "#/operations/seq-" + m.seq }, "#" + m.seq))))),
        a.timeline_cut ? el("p", { class: "dim" }, "There are more messages than are listed.") : null),
      el("section", { id: "integrity" }, el("h3", {}, "Integrity"), this.integrity(a.integrity),
        a.records.map((r) => el("div", { class: "record" }, el("h4", {}, "Record ", String(r.seq), " (", r.kind, ")"), facts([
          ["Content", r.erased ? "erased on purpose" : mark(r.leaf_fits, "fits its hash", "does not fit its hash: it was changed after it was written")],
          ["Chain", r.chain_fits === null ? "the record before is not there" : mark(r.chain_fits, "follows the record before", "does not follow the record before")],
          ["Hash", mono(r.leaf)], ["Chain value", mono(r.chain)], ["Seal", [mono(r.mac), " key ", name(r.key_id), r.epoch ? " epoch " + r.epoch : ""]],
          ["Before", r.before && el("a", { href: "#/operations/seq-" + r.before.seq }, "record " + r.before.seq + " (" + r.before.kind + ")")],
          ["After", r.after ? el("a", { href: "#/operations/seq-" + r.after.seq }, "record " + r.after.seq + " (" + r.after.kind + ")") : "it is the newest"],
          ["Place", [name(r.file), " line ", count(r.line)]],
        ]), r.body ? el("details", {}, el("summary", {}, "The record as it is"), el("pre", { tabindex: "0" }, JSON.stringify(r.body, null, 2))) : null))));
  }
  integrity(i) {
    const c = i.checkpoint;
    return facts([
      ["Verified", i.verified === "yes" ? [el("span", { class: "good" }, "✓ by the verification of "), time(i.verified_at)] : i.verified === "no" ? el("span", { class: "bad" }, "✗ the verification found a fault at or before it") : ["not yet; see ", el("a", { href: "#/verify" }, "Verification")]],
      ["Checkpoint", c ? ["of " + count(c.size) + " records, ", time(c.timestamp), ", in ", el("a", { href: "#/operations/seq-" + c.seq }, "record " + c.seq), " ", c.vkey ? mark(c.signature_fits, "signed", "the signature does not fit") : ""] : "no checkpoint covers it yet"],
      ["Anchors", i.anchors.length ? i.anchors.map((a) => el("div", {}, name(a.name), " (", count(a.size), " records) ", mark(a.covers, "covers it", "does not cover it yet"))) : "none"],
    ]);
  }
  back() { history.back(); }
  close() { this.closed = true; }
}
