// Shared by sdkdiff-client.mjs and sdkdiff-server.mjs: which value an
// application holds, in ASCII, so that texts that only look alike stay apart.

export function show(value) {
  switch (typeof value) {
    case 'undefined':
      return 'absent';
    case 'number':
      return Object.is(value, -0) ? '-0' : String(value);
    case 'string':
      return text(value);
    case 'object':
      if (value === null) return 'null';
      if (Array.isArray(value)) return `[${value.map(show).join(',')}]`;
      return `{${Object.keys(value).map((key) => `${text(key)}:${show(value[key])}`).join(',')}}`;
    default:
      return String(value);
  }
}

// A lone surrogate is escaped as it is, by JSON.stringify already.
const text = (string) =>
  JSON.stringify(string).replace(/[\u007f-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
