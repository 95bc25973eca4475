package bridge

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// subscriptionMember names the request a notification belongs to, in a
// notification's _meta (revision 2026-07-28, subscriptions/listen).
const subscriptionMember = "io.modelcontextprotocol/subscriptionId"

// member returns the raw value at a path of member names in an object, nil if
// there is none. Of a repeated name the last value counts, as most clients
// read it. It is lenient: what it reads has been sent already.
func member(object []byte, path ...string) []byte {
	for _, name := range path {
		object = direct(object, name)
		if object == nil {
			return nil
		}
	}
	return object
}

func direct(object []byte, name string) []byte {
	d := jsontext.NewDecoder(bytes.NewReader(object), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if open, err := d.ReadToken(); err != nil || open.Kind() != '{' {
		return nil
	}
	var found []byte
	for d.PeekKind() == '"' {
		key, err := d.ReadToken()
		if err != nil {
			return found
		}
		match := key.String() == name
		value, err := d.ReadValue()
		if err != nil {
			return found
		}
		if match {
			found = bytes.Clone(value)
		}
	}
	return found
}
