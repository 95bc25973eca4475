import { el, name, time, millis } from "./dom.js";

// place is where an entry is shown by itself.
export function place(e) {
  return "#/operations/" + encodeURIComponent(e.audit_operation_id || "seq-" + e.seq);
}

// fromServer tells requests and messages of the server. The direction of an
// operation is that of its closing record, the answer.
export function fromServer(e) {
  return e.direction === (e.kind === "operation" ? "client→server" : "server→client");
}

export function outcome(e) {
  const text = e.kind === "open" ? "open" : e.outcome || (e.kind === "event" ? "message" : e.kind);
  return el("span", { class: "outcome o-" + text.replace(/[^a-z_]/g, "") }, text);
}

export const columns = ["Time", "Method", "Name", "Client", "Principal", "Server", "Outcome", "Decision", "Took"];

export function row(e) {
  const what = e.tool_name || e.mcp_name || "";
  return el("tr", { "data-mark": e.mark, "data-op": e.audit_operation_id || undefined, class: "entry" },
    el("td", {}, el("a", { href: place(e), class: "open-entry" }, time(e.timestamp, "ms"))),
    el("td", {}, fromServer(e) ? el("span", { class: "dir", title: "from the server to the client" }, "← ") : null, name(e.method || (e.kind === "event" ? "" : e.kind))),
    el("td", { class: "what" }, name(what)),
    el("td", {}, name(e.client_id || "")),
    el("td", {}, name(e.principal ? e.principal.subject : "")),
    el("td", {}, name(e.server_id || "")),
    el("td", {}, outcome(e)),
    el("td", {}, e.policy ? [e.policy.decision, e.policy.rule_id ? [" ", name(e.policy.rule_id, "rule")] : null] : ""),
    el("td", { class: "num" }, e.duration_ms === undefined ? "" : millis(e.duration_ms)));
}

export function table(body) {
  return el("div", { class: "scroll" }, el("table", { class: "entries" },
    el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: c === "Took" ? "num" : undefined }, c)))), body));
}

// prepend puts new entries, newest first, above the others. What was open and
// has ended is shown where it ended.
export function prepend(body, entries, most) {
  for (const e of [...entries].reverse()) {
    for (const old of [...body.children]) {
      if (old.dataset.mark === e.mark || (e.audit_operation_id && old.dataset.op === e.audit_operation_id && e.kind === "operation")) old.remove();
    }
    const r = row(e);
    r.classList.add("fresh");
    body.prepend(r);
  }
  while (most && body.children.length > most) body.lastElementChild.remove();
}
