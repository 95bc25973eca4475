package mcp

import (
	"bytes"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// onlyID returns the raw id of a message that was refused, so that the client
// can tell which of its calls failed: some end their session over an error
// without one. It returns nil unless every reader would find the same id: the
// text is one object of JSON's grammar with nothing after it and exactly one
// name that is or folds to "id", and its value is a string or an integer.
func onlyID(body []byte) []byte {
	a := answerScanner{b: body}
	a.space()
	if a.peek() != '{' {
		return nil
	}
	var m Message
	var ids int
	for more := a.enter(); more; more = a.next() {
		key, ok := a.name()
		at := a.i
		if !ok || !a.value() {
			return nil
		}
		if bytes.EqualFold(key, []byte("id")) {
			ids++
			if string(key) == "id" {
				m.ID = Span{at, a.i}
			}
		}
	}
	if !a.leave('}') {
		return nil
	}
	a.space()
	if a.i < len(body) || ids != 1 || m.classifyID(body) != nil {
		return nil
	}
	switch token := m.ID.Of(body); m.IDType {
	case IDNumber:
		return token
	case IDString:
		if n, _, v := canon.ScanString(token); v == canon.None && n == len(token) {
			return token
		}
	}
	return nil
}
