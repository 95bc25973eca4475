// Requests to the JSON API, beside the page.
let ask = () => {};
export function onLogin(f) { ask = f; }

export class Fault extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

export async function get(path, parameters, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters || {})) if (value !== "" && value !== null && value !== undefined) query.append(name, value);
  const text = query.toString();
  const response = await fetch("api/" + path + (text ? "?" + text : ""), { signal, headers: { Accept: "application/json" } });
  if (response.status === 401) { ask(); throw new Fault(401, "log in first"); }
  let body;
  try { body = await response.json(); } catch (e) { throw new Fault(response.status, "the answer is not readable"); }
  if (!response.ok) throw new Fault(response.status, body.error || "status " + response.status);
  return body;
}

// Stream follows the log until it is closed.
export class Stream {
  constructor(parameters, take, broken) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters || {})) if (value) query.append(name, value);
    const text = query.toString();
    this.source = new EventSource("api/stream" + (text ? "?" + text : ""));
    this.source.onmessage = (e) => { broken(false); take(JSON.parse(e.data)); };
    this.source.onerror = () => {
      broken(true);
      if (this.source.readyState === EventSource.CLOSED) {
        // The server refused: why, an ordinary request is told.
        this.timer = setTimeout(() => { get("status").catch(() => {}); }, 500);
      }
    };
  }
  close() { this.source.close(); clearTimeout(this.timer); }
}
