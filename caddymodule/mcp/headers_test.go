package mcp_test

import (
	"bufio"
	"net/http"
	"net/textproto"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// header reads header lines as a server does.
func header(t testing.TB, lines ...string) http.Header {
	t.Helper()
	h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(strings.Join(lines, "\r\n") + "\r\n\r\n"))).ReadMIMEHeader()
	if err != nil {
		t.Fatal(err)
	}
	return http.Header(h)
}

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`

func TestMirroredHeadersMustAgreeWithTheBody(t *testing.T) {
	echo := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`
	echoModern := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo",` + modernMeta + `}}`
	version, method, name := "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: echo"
	for _, c := range []struct {
		title, body string
		lines       []string
		why, header string // none: accepted
		code        int
	}{
		{"modern, all there", echoModern, []string{version, method, name}, "", "", 0},
		{"modern, names in any case, white space around values", echoModern, []string{"mcp-protocol-version:2026-07-28 ", "MCP-METHOD:\ttools/call", "mcp-name:  echo\t"}, "", "", 0},
		{"modern, another tool", echoModern, []string{version, method, "Mcp-Name: delete_file"}, "header_mismatch", "Mcp-Name", -32020},
		{"modern, the name in another case", echoModern, []string{version, method, "Mcp-Name: Echo"}, "header_mismatch", "Mcp-Name", -32020},
		{"modern, no name", echoModern, []string{version, method}, "header_missing", "Mcp-Name", -32020},
		{"modern, no method", echoModern, []string{version, name}, "header_missing", "Mcp-Method", -32020},
		{"modern, the method in another case", echoModern, []string{version, "Mcp-Method: TOOLS/CALL", name}, "header_mismatch", "Mcp-Method", -32020},
		{"modern, no version", echoModern, []string{method, name}, "header_missing", "Mcp-Protocol-Version", -32020},
		{"modern body, older version", echoModern, []string{"Mcp-Protocol-Version: 2025-11-25", method, name}, "header_mismatch", "Mcp-Protocol-Version", -32020},
		{"modern version, body without one", echo, []string{version, method, name}, "", "", 0},
		{"modern, base64 name", echoModern, []string{version, method, "Mcp-Name: =?base64?ZWNobw==?="}, "", "", 0},
		{"modern, base64 of another name", echoModern, []string{version, method, "Mcp-Name: =?base64?RWNobw==?="}, "header_mismatch", "Mcp-Name", -32020},
		{"modern, bad base64", echoModern, []string{version, method, "Mcp-Name: =?base64?ZWNo*w==?="}, "header_sentinel", "Mcp-Name", -32020},
		{"modern, base64 without padding", echoModern, []string{version, method, "Mcp-Name: =?base64?ZWNobw?="}, "header_sentinel", "Mcp-Name", -32020},
		{"modern, markers in another case", echoModern, []string{version, method, "Mcp-Name: =?BASE64?ZWNobw==?="}, "header_mismatch", "Mcp-Name", -32020},
		{"modern, name with escapes in the body", strings.Replace(echoModern, `"echo"`, `"\u0065ch\u00f6"`, 1), []string{version, method, "Mcp-Name: =?base64?ZWNow7Y=?="}, "", "", 0},
		{"modern, resource by its uri", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///a",` + modernMeta + `}}`, []string{version, "Mcp-Method: resources/read", "Mcp-Name: file:///b"}, "header_mismatch", "Mcp-Name", -32020},
		{"modern, task by its id", `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t1",` + modernMeta + `}}`, []string{version, "Mcp-Method: tasks/get", "Mcp-Name: t1"}, "", "", 0},
		{"modern, task without its header", `{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"t1",` + modernMeta + `}}`, []string{version, "Mcp-Method: tasks/cancel"}, "header_missing", "Mcp-Name", -32020},
		{"modern, a list needs no name", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + modernMeta + `}}`, []string{version, "Mcp-Method: tools/list"}, "", "", 0},
		{"modern, a name where there is none", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + modernMeta + `}}`, []string{version, "Mcp-Method: tools/list", name}, "header_mismatch", "Mcp-Name", -32020},
		{"modern, a name of an extension's method", `{"jsonrpc":"2.0","id":1,"method":"skills/run","params":{"skill":"s",` + modernMeta + `}}`, []string{version, "Mcp-Method: skills/run", "Mcp-Name: s"}, "", "", 0},
		{"modern notification without headers", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{` + modernMeta + `}}`, []string{version}, "", "", 0},
		{"modern notification with another method", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{` + modernMeta + `}}`, []string{version, method}, "header_mismatch", "Mcp-Method", -32020},
		{"legacy, none there", echo, nil, "", "", 0},
		{"legacy, all agree", echo, []string{"MCP-Protocol-Version: 2025-06-18", method, name}, "", "", 0},
		{"legacy, another tool", echo, []string{"MCP-Protocol-Version: 2025-11-25", "Mcp-Name: delete_file"}, "header_mismatch", "Mcp-Name", -32600},
		{"legacy, another method", echo, []string{"Mcp-Method: tools/list"}, "header_mismatch", "Mcp-Method", -32600},
		{"legacy, bad base64", echo, []string{"Mcp-Name: =?base64?!?="}, "header_sentinel", "Mcp-Name", -32600},
		{"initialize asks for a version", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`, []string{"MCP-Protocol-Version: 2025-11-25"}, "", "", 0},
		{"an answer", `{"jsonrpc":"2.0","id":1,"result":{}}`, []string{method, name}, "", "", 0},
	} {
		h := header(t, c.lines...)
		body := []byte(c.body)
		msgs, _, err := mcp.Scan(body, nil)
		if err != nil {
			t.Fatal(c.title, err)
		}
		fault := mcp.CheckHeaders(h, &msgs[0], body, mcp.Revision(&msgs[0], body, h.Get("Mcp-Protocol-Version"), ""))
		switch {
		case fault == nil && c.why != "":
			t.Errorf("%s: accepted", c.title)
		case fault != nil && (fault.Why != c.why || fault.Header != c.header || fault.Code != c.code || fault.Status != http.StatusBadRequest):
			t.Errorf("%s: %+v, want %s %s %d", c.title, *fault, c.why, c.header, c.code)
		}
	}
}

func TestAMismatchNamesBothValuesInTheRecordOnly(t *testing.T) {
	body := []byte(call(`{"name":"delete_file"}`))
	msgs, _, _ := mcp.Scan(body, nil)
	fault := mcp.CheckHeaders(header(t, "Mcp-Name: echo"), &msgs[0], body, mcp.Revision20251125)
	if fault == nil || fault.Want != "delete_file" || fault.Got != "echo" {
		t.Fatalf("%+v", fault)
	}
	for _, tool := range []string{"delete_file", "echo"} {
		if !strings.Contains(fault.Detail(), tool) || strings.Contains(fault.Error(), tool) {
			t.Errorf("detail %q, error %q", fault.Detail(), fault.Error())
		}
	}
}

func TestHeadersThatTwoReadersCouldReadDifferentlyAreRefused(t *testing.T) {
	for _, c := range []struct {
		lines []string
		why   string
	}{
		{nil, ""},
		{[]string{"Connection: close"}, ""},
		{[]string{"Connection: keep-alive, Upgrade, HTTP2-Settings, TE"}, ""},
		{[]string{"Connection: close, Mcp-Name"}, "connection_nominates"},
		{[]string{"Connection: close", "Connection: keep-alive , MCP-SESSION-ID"}, "connection_nominates"},
		{[]string{"Connection: Authorization"}, "connection_nominates"},
		{[]string{"Connection: dpop"}, "connection_nominates"},
		{[]string{"Connection: x-user"}, "connection_nominates"},
		{[]string{"Connection: Remote-User"}, "connection_nominates"},
		{[]string{"Connection: content-encoding"}, "connection_nominates"},
		{[]string{"Mcp-Name: a", "mcp-name: b"}, "repeated_header"},
		{[]string{"Mcp-Name: a", "Mcp-Name: a"}, "repeated_header"},
		{[]string{"Mcp-Method: a", "Mcp-Method: a"}, "repeated_header"},
		{[]string{"Mcp-Session-Id: a", "MCP-Session-Id: b"}, "repeated_header"},
		{[]string{"MCP-Protocol-Version: a", "Mcp-Protocol-Version: b"}, "repeated_header"},
		{[]string{"Mcp-Param-Region: a", "Mcp-Param-Region: b"}, ""},
	} {
		fault := mcp.CheckConnection(header(t, c.lines...))
		if got := whyOf(fault); got != c.why || fault != nil && (fault.Status != 400 || fault.Code != -32600) {
			t.Errorf("%q: %+v, want %q", c.lines, fault, c.why)
		}
	}
}

func whyOf(f *mcp.HeaderFault) string {
	if f == nil {
		return ""
	}
	return f.Why
}

func TestOnlyUncodedJSONInUTF8IsAccepted(t *testing.T) {
	for _, c := range []struct {
		lines []string
		why   string
	}{
		{[]string{"Content-Type: application/json"}, ""},
		{[]string{"Content-Type: Application/JSON"}, ""},
		{[]string{"Content-Type: application/json ; charset=utf-8"}, ""},
		{[]string{`Content-Type: application/json; charset="UTF-8"`}, ""},
		{[]string{"Content-Type: application/json", "Content-Encoding: identity"}, ""},
		{nil, "content_type"},
		{[]string{"Content-Type:"}, "content_type"},
		{[]string{"Content-Type: text/plain"}, "content_type"},
		{[]string{"Content-Type: application/json+x"}, "content_type"},
		{[]string{"Content-Type: application/json, text/plain"}, "content_type"},
		{[]string{"Content-Type: application/json", "Content-Type: application/json"}, "content_type"},
		{[]string{"Content-Type: application/json; charset=utf-16le"}, "charset"},
		{[]string{"Content-Type: application/json; charset=iso-8859-1"}, "charset"},
		{[]string{"Content-Type: application/json; charset=utf-8; charset=utf-16"}, "content_type"},
		{[]string{"Content-Type: application/json", "Content-Encoding: gzip"}, "content_encoding"},
		{[]string{"Content-Type: application/json", "Content-Encoding: identity", "Content-Encoding: br"}, "content_encoding"},
	} {
		fault := mcp.CheckContent(header(t, c.lines...))
		if got := whyOf(fault); got != c.why || fault != nil && fault.Status != http.StatusUnsupportedMediaType {
			t.Errorf("%q: %+v, want %q", c.lines, fault, c.why)
		}
	}
}

func TestHeaderValuesOfTheSpecification(t *testing.T) {
	// The examples of SEP-2243.
	for value, encoded := range map[string]string{
		"us-west1":           "us-west1",
		"Hello, 世界":          "=?base64?SGVsbG8sIOS4lueVjA==?=",
		" padded ":           "=?base64?IHBhZGRlZCA=?=",
		"line1\nline2":       "=?base64?bGluZTEKbGluZTI=?=",
		"=?base64?literal?=": "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
	} {
		if got := mcp.EncodeHeaderValue(value); got != encoded {
			t.Errorf("%q: %s, want %s", value, got, encoded)
		}
		if got, ok := mcp.DecodeHeaderValue(encoded); !ok || got != value {
			t.Errorf("%s: %q %v, want %q", encoded, got, ok, value)
		}
	}
	for encoded, value := range map[string]string{
		"=?base64?=": "=?base64?=", "=?base64?YQ==": "=?base64?YQ==", "=?Base64?YQ==?=": "=?Base64?YQ==?=", "=?base64??=": "", "x=?base64?YQ==?=": "x=?base64?YQ==?=",
	} {
		if got, ok := mcp.DecodeHeaderValue(encoded); !ok || got != value {
			t.Errorf("%s: %q %v, want %q", encoded, got, ok, value)
		}
	}
	for _, bad := range []string{"=?base64?YQ?=", "=?base64?YR==?=", "=?base64?_w==?=", "=?base64?/w==?=", "=?base64?YQ==YQ==?=", "=?base64?YQ=\n=?="} {
		if got, ok := mcp.DecodeHeaderValue(bad); ok {
			t.Errorf("%s: decoded to %q", bad, got)
		}
	}
}

func FuzzHeaderValue(f *testing.F) {
	for _, seed := range []string{"", "a", " a", "ö", "=?base64?YQ==?=", "=?base64??=", "=?base64?=", "=?base64?Y\r\nQ==?=", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if utf8.ValidString(value) {
			encoded := mcp.EncodeHeaderValue(value)
			for _, b := range []byte(encoded) {
				if b < 0x20 && b != '\t' || b > 0x7e {
					t.Fatalf("%q: the header %q holds byte %#x", value, encoded, b)
				}
			}
			if got, ok := mcp.DecodeHeaderValue(encoded); !ok || got != value {
				t.Fatalf("%q: encoded %q, decoded %q %v", value, encoded, got, ok)
			}
		}
		// A value reads in one way only: decoded, it is either itself or has
		// exactly this sentinel form.
		got, ok := mcp.DecodeHeaderValue(value)
		if !ok || got == value {
			return
		}
		sentinel := strings.HasPrefix(value, "=?base64?") && strings.HasSuffix(value, "?=")
		if !sentinel || !utf8.ValidString(got) || strings.ContainsAny(value, "\r\n") {
			t.Fatalf("%q is read as %q", value, got)
		}
	})
}
