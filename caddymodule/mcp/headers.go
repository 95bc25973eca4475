package mcp

import (
	"encoding/base64"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"
)

// The headers that mirror a message's body.
const (
	headerVersion = "Mcp-Protocol-Version"
	headerMethod  = "Mcp-Method"
	headerName    = "Mcp-Name"
	headerSession = "Mcp-Session-Id"
)

// HeaderFault says how the headers of a request contradict its body or each
// other.
type HeaderFault struct {
	Status    int    // HTTP status
	Code      int    // JSON-RPC code
	Why       string // one word, for the record
	Header    string
	Want, Got string // of a mismatch: what the body says and what the header says
}

// Error implements error. The text repeats nothing of the request.
func (f *HeaderFault) Error() string {
	return fmt.Sprintf("header %s: %s", f.Header, strings.ReplaceAll(f.Why, "_", " "))
}

// Detail is the record's view of a fault, with both values of a mismatch.
func (f *HeaderFault) Detail() string {
	if f.Want == "" && f.Got == "" {
		return fmt.Sprintf("%s: %s", f.Why, f.Header)
	}
	return fmt.Sprintf("%s: %s is %q, the body says %q", f.Why, f.Header, f.Got, f.Want)
}

func badRequest(why, header string) *HeaderFault {
	return &HeaderFault{Status: http.StatusBadRequest, Code: CodeInvalidRequest, Why: why, Header: header}
}

// singletons may stand once; a second value would let two readers differ.
var singletons = []string{headerVersion, headerMethod, headerName, headerSession}

// CheckConnection refuses a Connection header that nominates a header which
// carries meaning or identity: proxies drop what it names (RFC 9110 section
// 7.6.1), so that the server would see another request than the one that was
// judged. It also refuses a second value of a header that may stand only once.
func CheckConnection(h http.Header) *HeaderFault {
	for _, line := range h["Connection"] {
		for nominated := range strings.SplitSeq(line, ",") {
			if endToEnd(strings.ToLower(strings.TrimSpace(nominated))) {
				return badRequest("connection_nominates", "Connection")
			}
		}
	}
	for _, name := range singletons {
		if len(h[name]) > 1 {
			return badRequest("repeated_header", name)
		}
	}
	return nil
}

// endToEnd reports whether a header, in lower case, must reach the server if
// the client sent it: what identifies the caller, the message or its coding.
// Identity headers have no fixed names; the prefixes cover those in use.
func endToEnd(name string) bool {
	for _, prefix := range []string{"mcp-", "x-", "remote-", "cf-", "content-", "impersonate-", "ssl-client-", "tailscale-", "client-cert"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	switch name {
	case "authorization", "dpop", "cookie", "forwarded", "host", "origin", "accept", "last-event-id":
		return true
	}
	return false
}

// CheckContent accepts application/json in UTF-8 without a content coding.
func CheckContent(h http.Header) *HeaderFault {
	fault := func(why, header string) *HeaderFault {
		return &HeaderFault{Status: http.StatusUnsupportedMediaType, Code: CodeInvalidRequest, Why: why, Header: header}
	}
	for _, coding := range h["Content-Encoding"] {
		if !strings.EqualFold(strings.TrimSpace(coding), "identity") {
			return fault("content_encoding", "Content-Encoding")
		}
	}
	types := h["Content-Type"]
	if len(types) != 1 {
		return fault("content_type", "Content-Type")
	}
	media, params, err := mime.ParseMediaType(types[0])
	if err != nil || media != "application/json" {
		return fault("content_type", "Content-Type")
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return fault("charset", "Content-Type")
	}
	return nil
}

// CheckHeaders compares the mirrored headers with the message. In revision
// 2026-07-28 a request must have them (SEP-2243); before, one that is absent is
// no mismatch, and one that is there must agree. A notification need not have
// them in any revision. What Mcp-Name mirrors in an unknown method is the
// extension's business. h must hold canonical names, as net/http makes them.
func CheckHeaders(h http.Header, m *Message, body []byte, revision string) *HeaderFault {
	modern := Modern(revision)
	mismatch := func(why, header, want, got string) *HeaderFault {
		f := &HeaderFault{Status: http.StatusBadRequest, Code: CodeInvalidRequest, Why: why, Header: header, Want: want, Got: got}
		if modern {
			f.Code = CodeHeaderMismatch
		}
		return f
	}
	if m.Kind != KindRequest && m.Kind != KindNotification {
		return nil
	}
	method := Text(m.Method.Of(body))
	initialize := method == methodInitialize
	if stated := Text(m.ProtocolVersion.Of(body)); !initialize {
		got, present := single(h, headerVersion)
		switch {
		case modern && m.Kind == KindRequest && !present:
			return mismatch("header_missing", headerVersion, stated, "")
		case present && stated != "" && got != stated:
			return mismatch("header_mismatch", headerVersion, stated, got)
		}
	}
	if modern {
		if fault := checkParamValues(h); fault != nil {
			return fault
		}
	}
	got, present := single(h, headerMethod)
	switch {
	case modern && m.Kind == KindRequest && !present:
		return mismatch("header_missing", headerMethod, method, "")
	case present && got != method:
		return mismatch("header_mismatch", headerMethod, method, got)
	}
	if m.Kind != KindRequest {
		return nil
	}
	name := Text(m.Name.Of(body))
	got, present = single(h, headerName)
	if _, known := methods[method]; present && known {
		decoded, ok := DecodeHeaderValue(got)
		if !ok {
			return mismatch("header_sentinel", headerName, "", "")
		}
		if decoded != name {
			return mismatch("header_mismatch", headerName, name, decoded)
		}
	} else if !present && modern && mirrorsName(method) && m.Name.Present() {
		return mismatch("header_missing", headerName, name, "")
	}
	return nil
}

// CheckBatchHeaders refuses headers that mirror one message on a batch: they
// cannot agree with all of them.
func CheckBatchHeaders(h http.Header) *HeaderFault {
	for _, name := range []string{headerMethod, headerName} {
		if len(h[name]) > 0 {
			return badRequest("header_mismatch", name)
		}
	}
	return nil
}

// mirrorsName reports whether Mcp-Name is required for the method.
func mirrorsName(method string) bool {
	switch method {
	case "tools/call", "prompts/get", "resources/read", "tasks/get", "tasks/update", "tasks/cancel":
		return true
	}
	return false
}

func single(h http.Header, name string) (string, bool) {
	values := h[name]
	if len(values) == 0 {
		return "", false
	}
	return strings.Trim(values[0], " \t"), true
}

const (
	sentinelStart = "=?base64?"
	sentinelEnd   = "?="
)

// DecodeHeaderValue decodes a mirrored value: literal, or base64 of UTF-8
// between lower-case markers. It reports false for bad base64 inside them.
func DecodeHeaderValue(v string) (string, bool) {
	inner, found := strings.CutPrefix(v, sentinelStart)
	if !found || len(v) < len(sentinelStart)+len(sentinelEnd) {
		return v, true
	}
	inner, found = strings.CutSuffix(inner, sentinelEnd)
	if !found {
		return v, true
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(inner)
	// The decoder skips line ends, which are no base64.
	if err != nil || strings.ContainsAny(inner, "\r\n") || !utf8.Valid(raw) {
		return "", false
	}
	return string(raw), true
}

// EncodeHeaderValue is the mirrored form of a value: literal if it is plain
// visible ASCII without outer white space and no sentinel itself, else base64.
func EncodeHeaderValue(v string) string {
	plain := v == strings.Trim(v, " \t") && !(strings.HasPrefix(v, sentinelStart) && strings.HasSuffix(v, sentinelEnd))
	for i := 0; plain && i < len(v); i++ {
		plain = v[i] >= 0x20 && v[i] < 0x7f || v[i] == '\t'
	}
	if plain {
		return v
	}
	return sentinelStart + base64.StdEncoding.EncodeToString([]byte(v)) + sentinelEnd
}
