// All that the log says reaches the page through these functions, as text.

// Characters that cannot be seen, or turn around what can, are spelled out.
const unseen = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
export function visible(text) {
  return String(text).replace(unseen, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

// el makes an element. Text children are text; attributes are only those named
// here or aria-*, data-*.
const allowed = new Set(["class", "id", "href", "type", "name", "value", "title", "for", "role", "placeholder", "download", "tabindex", "scope", "colspan", "disabled", "checked", "hidden", "selected", "datetime", "autocomplete", "step", "list"]);
export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on") && typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (allowed.has(name) || name.startsWith("aria-") || name.startsWith("data-")) node.setAttribute(name, value === true ? "" : String(value));
    else throw new Error("attribute " + name);
  }
  add(node, children);
  return node;
}
export function add(node, children) {
  for (const child of children.flat(3)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}
export function fill(node, ...children) {
  node.replaceChildren();
  return add(node, children);
}
// name is text that somebody else chose.
export function name(text, cls) {
  return el("bdi", { class: cls, title: String(text).length > 60 ? visible(text) : undefined }, text);
}

const numbers = new Intl.NumberFormat();
export function count(n) { return n === null || n === undefined ? "–" : numbers.format(n); }
export function plural(n, one) { return count(n) + " " + one + (n === 1 ? "" : "s"); }
export function percent(x) { return (100 * (x || 0)).toFixed(x > 0 && x < 0.1 ? 2 : 1) + " %"; }
export function millis(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return (Math.round(ms * 10) / 10) + " ms";
  return ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(ms < 10000 ? 2 : 1) + " s";
}
const two = (n) => String(n).padStart(2, "0");
export function clock(text, parts) {
  const t = new Date(text);
  if (isNaN(t)) return "–";
  const day = t.getFullYear() + "-" + two(t.getMonth() + 1) + "-" + two(t.getDate());
  const time = two(t.getHours()) + ":" + two(t.getMinutes()) + ":" + two(t.getSeconds());
  return parts === "time" ? time : day + " " + time + (parts === "ms" ? "." + String(t.getMilliseconds()).padStart(3, "0") : "");
}
export function time(text, parts) { return el("time", { datetime: text, title: text }, clock(text, parts)); }
