package legacy

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// The constants of `integrity`.
const (
	v2Version   = "2"
	v2Algorithm = "hmac-sha256"
)

// signedV2 is what Integrity v2 signs: the RFC 8785 form of all members but
// the two signatures. Every value that goes in has passed the gate.
func (e *entry) signedV2() ([]byte, error) {
	if e.repeats != "" {
		return nil, fmt.Errorf("a name is repeated in its %s", e.repeats)
	}
	w := writer{b: make([]byte, 0, 512+len(e.params)+len(e.result))}
	w.text("id", e.text["id"])
	w.text("timestamp", e.stamp())
	w.optional("audit_operation_id", e.text["audit_operation_id"])
	w.optional("outcome", e.text["outcome"])
	for _, name := range []string{"direction", "transport", "method"} {
		w.text(name, e.text[name])
	}
	for _, name := range []string{"request_id", "mcp_name", "tool_name"} {
		w.optional(name, e.text[name])
	}
	w.json("params", e.params)
	w.json("result", e.result)
	if e.rpcError != nil {
		if _, ok := safeInteger(e.rpcError.code); !ok {
			return nil, errors.New("its error.code is beyond what Integrity v2 can sign")
		}
		w.open("error")
		w.json("code", e.rpcError.code)
		w.text("message", e.rpcError.message)
		w.json("data", e.rpcError.data)
		w.close()
	}
	if _, ok := safeInteger(e.duration); !ok {
		return nil, errors.New("its duration_ms is beyond what Integrity v2 can sign")
	}
	w.json("duration_ms", e.duration)
	w.text("client_id", e.text["client_id"])
	w.text("server_id", e.text["server_id"])
	w.identity(e)
	out, err := jsoncanonicalizer.Transform(append(w.b, '}'))
	if err != nil {
		// Only numbers beyond the range of doubles get here.
		return nil, fmt.Errorf("it has no RFC 8785 form: %w", err)
	}
	return out, nil
}

// signV2 is the hex signature of Integrity v2.
func signV2(secret []byte, e *entry) (string, error) {
	text, err := e.signedV2()
	if err != nil {
		return "", err
	}
	return hexMAC(secret, text), nil
}

// signV1 is the hex form of the older signature, over params in a given spelling.
func signV1(secret []byte, e *entry, params []byte) string {
	return hexMAC(secret, []byte(e.text["id"]), []byte(e.stamp()), []byte(e.text["method"]), []byte(e.text["tool_name"]), params)
}

// fitsV1 reports whether the older signature fits. Entries were signed before
// they were stored, so params are also tried as they were before that.
func fitsV1(secret []byte, e *entry) bool {
	compact := compacted(e.params)
	for _, params := range [][]byte{e.params, compact, unescapedHTML(e.params), unescapedHTML(compact)} {
		if sameHex(e.text["signature"], signV1(secret, e, params)) {
			return true
		}
	}
	return false
}

func hexMAC(secret []byte, parts ...[]byte) string {
	m := hmac.New(sha256.New, secret)
	for _, p := range parts {
		m.Write(p)
	}
	return hex.EncodeToString(m.Sum(nil))
}

// sameHex compares two hex texts in constant time; the case of digits does not
// count.
func sameHex(a, b string) bool {
	x, err := hex.DecodeString(a)
	if err != nil {
		return false
	}
	y, err := hex.DecodeString(b)
	return err == nil && hmac.Equal(x, y)
}

// compacted is a JSON text without white space between its tokens.
func compacted(value []byte) []byte {
	out := make([]byte, 0, len(value))
	for i := 0; i < len(value); {
		switch value[i] {
		case ' ', '\t', '\n', '\r':
			i++
		case '"':
			n, _, v := canon.ScanString(value[i:])
			if v != canon.None {
				return value
			}
			out = append(out, value[i:i+n]...)
			i += n
		default:
			out = append(out, value[i])
			i++
		}
	}
	return out
}

// unescapedHTML undoes the escapes that Go's encoder puts in place of <, >, &,
// U+2028 and U+2029. An escaped backslash before them is left alone.
func unescapedHTML(value []byte) []byte {
	if !bytes.Contains(value, []byte(`\u`)) {
		return value
	}
	out := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] != '\\' || i+1 == len(value) {
			out = append(out, value[i])
			continue
		}
		if i+6 <= len(value) {
			if plain, ok := htmlEscapes[string(value[i:i+6])]; ok {
				out = append(out, plain...)
				i += 5
				continue
			}
		}
		out = append(out, value[i], value[i+1])
		i++
	}
	return out
}

var htmlEscapes = map[string]string{
	`\u003c`: "<", `\u003e`: ">", `\u0026`: "&", `\u2028`: "\u2028", `\u2029`: "\u2029",
}
