package legacy

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

const testSecret = "an unpublished secret of the tests, 42"

// memory is a source of some lines.
func memory(name string, lines ...string) auditlog.Source {
	text := ""
	for _, l := range lines {
		text += l + "\n"
	}
	return raw(name, text)
}

func raw(name, text string) auditlog.Source {
	return auditlog.Source{Name: name, Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(text)), nil
	}}
}

// entryLine writes an entry by the format's formulas: the members in order, then
// both signatures over what the format says, without any of this package's
// readers in between.
func entryLine(t testing.TB, n int, change func(members map[string]string)) string {
	t.Helper()
	m := map[string]string{
		"id":                 fmt.Sprintf(`"01KSFJ35VE44H269154RKJGA%02d"`, n),
		"timestamp":          fmt.Sprintf(`"2026-05-25T12:34:%02d.5Z"`, n%60),
		"audit_operation_id": `"019e5f21-975c-70a1-a2a3-a4a5a6a7a8a9"`, "outcome": `"success"`,
		"direction": `"server→client"`, "transport": `"http"`, "method": `"tools/call"`, "request_id": `"7"`,
		"mcp_name": `"read_file"`, "tool_name": `"read_file"`,
		"params": `{"arguments":{"path":"a"},"name":"read_file"}`, "result": `{"content":[]}`,
		"duration_ms": "18", "client_id": `"desktop"`, "server_id": `"filesystem"`,
	}
	if change != nil {
		change(m)
	}
	var names, line []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	var signed []string
	for _, name := range names {
		signed = append(signed, fmt.Sprintf("%q:%s", name, m[name]))
	}
	for _, name := range entryMembers {
		if v, ok := m[name]; ok {
			line = append(line, fmt.Sprintf("%q:%s", name, v))
		}
	}
	unquote := func(s string) []byte { return []byte(strings.Trim(s, `"`)) }
	v1 := hexMAC([]byte(testSecret), unquote(m["id"]), unquote(m["timestamp"]), unquote(m["method"]), unquote(m["tool_name"]), []byte(m["params"]))
	v2 := hexMAC([]byte(testSecret), []byte("{"+strings.Join(signed, ",")+"}"))
	return fmt.Sprintf(`{%s,"signature":%q,"integrity":{"version":2,"algorithm":"hmac-sha256","key_id":"default","signature":%q}}`, strings.Join(line, ","), v1, v2)
}

// stripped is an entry without its integrity.
func stripped(line string) string {
	return line[:strings.Index(line, `,"integrity"`)] + "}"
}

func verify(t testing.TB, format Format, opts Options, sources ...auditlog.Source) *Report {
	t.Helper()
	report, err := Verify(t.Context(), format, sources, opts)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func withSecret() Options { return Options{Keys: Keys{Secret: []byte(testSecret)}} }

// expect checks that a report has exactly these findings, as "kind class".
func expect(t testing.TB, r *Report, exit int, want ...string) {
	t.Helper()
	var got []string
	for _, f := range r.Findings {
		got = append(got, f.Kind+" "+f.Class)
	}
	slices.Sort(got)
	got = slices.Compact(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || r.Exit != exit {
		t.Errorf("findings %q, exit %d; want %q, exit %d\n%+v", got, r.Exit, want, exit, r.Findings)
	}
}

func swap(t testing.TB, line, from, to string) string {
	t.Helper()
	if !strings.Contains(line, from) {
		t.Fatalf("%s has no %s", line, from)
	}
	return string(bytes.Replace([]byte(line), []byte(from), []byte(to), 1))
}
