// Package dashboard shows an audit log in a browser, and offers what it shows
// as JSON. It only reads: the log by its index and by the places of records,
// without any lock. It knows nothing of Caddy; the handler works under any
// path, since its page uses relative addresses alone.
package dashboard
