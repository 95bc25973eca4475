// Package index finds records of a log without reading it: <log>.index is a
// SQLite file that holds, for each record, where it lies and what can be asked
// for: time, operation, method, tool, client, server, principal, outcome and
// decision. It has no payloads and is no evidence; it can be deleted at any
// time and is made anew from the log.
//
// The log is read without any lock, so that an update never delays a writer.
// The package needs cgo; without it every function that opens an index returns
// ErrNoCGO.
package index
