package tests

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/collector"
	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

const plantedKey = "AKIAIOSFODNN7EXAMPLE"

// fivePlaces is the answer of RDC-1.
var fivePlaces = fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"k=%[1]s"},{"type":"resource","resource":{"uri":"x://y","text":"%[1]s","blob":%[2]q}}],"structuredContent":{"k":"%[1]s"},"_meta":{"note":"%[1]s"}}}`,
	plantedKey, base64.StdEncoding.EncodeToString([]byte(plantedKey)))

// filteredLogs are the log options of Caddyfile.example, at debug level.
const filteredLogs = `metrics
log {
	level DEBUG
	format filter {
		request>headers delete
		resp_headers delete
		headers delete
	}
}`

// planting is a server that has the key in each of its answers.
func planting(t *testing.T) *upstream.Scripted {
	return upstream.Script(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		switch {
		case !strings.Contains(string(body), `"id"`):
			w.WriteHeader(http.StatusAccepted)
		case strings.Contains(string(body), `"stream"`):
			w.Header().Set("Content-Type", "text/event-stream")
			upstream.Push(w, `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"with `+plantedKey+`"}}`+"\n\n")
			upstream.Push(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"`+plantedKey+`","data":"key=`+plantedKey+`"}}`+"\n\n")
			upstream.Push(w, `data: `+fivePlaces+"\n\n")
		case strings.Contains(string(body), "resources/read"):
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"no `+plantedKey+` here","data":{"uri":"x://`+plantedKey+`"}}}`)
		default:
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, fivePlaces)
		}
	})
}

// RDC-1 and RDC-4: one secret in every place that a message has is in no file
// that the product writes, nor in what it prints or shows, at debug level.
func TestPlantedSecretIsOnNoSurface(t *testing.T) {
	server := planting(t)
	spans := collector.Start(t)
	for _, wire := range []string{"off", "on"} {
		t.Run("wire "+wire, func(t *testing.T) {
			caddy := harness.StartCaddy(t, harness.Site{
				Upstream: server.Address, Global: filteredLogs, Routes: "log\nmetrics /metrics\ntracing\nroute /audit/* {\nmcp_audit_dashboard\n}",
				Handler: "headers record\nexplain\nredact {\nwire " + wire + "\n}",
			}, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+spans.Address, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_BSP_SCHEDULE_DELAY=50")
			before := len(spans.Spans())
			var answers strings.Builder
			post := func(body string, header ...string) {
				t.Helper()
				answers.WriteString(caddy.Post(t, body, header...).Body)
			}
			request := func(id, method, params string) string {
				return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`
			}
			quoted := `"` + plantedKey + `"`
			post(request("1", "initialize", `{"protocolVersion":"2025-11-25","clientInfo":{"name":`+quoted+`,"version":"1"},"capabilities":{}}`))
			post(request("1", "tools/call", `{"name":`+quoted+`,"arguments":{"a":`+quoted+`,`+quoted+`:1,"j":"{\"b\":\"`+plantedKey+`\"}"},"_meta":{"progressToken":1,"x":`+quoted+`}}`))
			post(request(quoted, "tools/call", `{"name":"echo"}`))
			post(request("1", "tools/call", `{"name":"stream","_meta":{"progressToken":1}}`))
			post(request("1", "prompts/get", `{"name":`+quoted+`,"arguments":{"x":`+quoted+`}}`))
			post(request("1", "resources/read", `{"uri":"https://user:`+plantedKey+`@host/a?key=`+plantedKey+`"}`))
			post(request("1", plantedKey, `{"a":`+quoted+`}`))
			post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9,"reason":` + quoted + `}}`)
			post(request("1", "tools/call", `{"name":"echo"}`), "Mcp-Method", "tools/call", "Mcp-Name", plantedKey, "Mcp-Param-Key", plantedKey)
			post(`not JSON at all ` + plantedKey)
			post(request("1", "tools/call", `{"name":"echo"},"name":`+quoted+`,"Name":1`))
			shown := dashboardText(t, caddy)
			_, config := caddy.AdminGet(t, "/config/")
			_, metrics := caddy.AdminGet(t, "/metrics")
			caddy.Stop(t)
			harness.VerifyClean(t, caddy.Log)

			wantNoTrace(t, plantedKey, "what it printed", caddy.Err.String())
			wantNoTrace(t, plantedKey, "/config/", config)
			wantNoTrace(t, plantedKey, "the dashboard", shown)
			traced := spans.Spans()[before:]
			if len(traced) < 10 {
				t.Errorf("%d spans", len(traced))
			}
			for _, s := range traced {
				wantNoTrace(t, plantedKey, "a span", fmt.Sprint(s.Name(), s.Attributes().AsRaw(), s.Status().Message()))
			}
			wantNoTrace(t, plantedKey, "/metrics", metrics)
			wantNoTraceInFiles(t, plantedKey, caddy.Dir)
			if wire == "on" {
				// What could not be read was refused, and the refusals are ours.
				wantNoTrace(t, plantedKey, "an answer", answers.String())
			} else if !strings.Contains(answers.String(), fivePlaces) {
				t.Error("the answer was changed")
			}
		})
	}
}

// dashboardText is what the dashboard shows of a log: lists, figures and each
// operation.
func dashboardText(t *testing.T, caddy *harness.Caddy) string {
	t.Helper()
	base := strings.TrimSuffix(caddy.URL, "/mcp") + "/audit/"
	get := func(path string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := caddy.Do(t, r)
		if a.Status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, a.Status, a.Body)
		}
		return a.Body
	}
	var text strings.Builder
	harness.Eventually(t, "the dashboard has the calls", func() bool {
		return strings.Count(get("api/entries?limit=100"), "audit_operation_id") >= 10
	})
	entries := get("api/entries?limit=100")
	text.WriteString(entries + get("api/stats") + get("api/status"))
	ids := regexp.MustCompile(`"audit_operation_id":"([0-9a-f-]{36})"`).FindAllStringSubmatch(entries, -1)
	for _, id := range ids {
		text.WriteString(get("api/operations/" + id[1]))
	}
	return text.String()
}

// wantNoTrace looks for a secret as it is, its beginning, its hex and its base64
// at any offset.
func wantNoTrace(t *testing.T, secret, where, text string) {
	t.Helper()
	forms := []string{secret[:12], hex.EncodeToString([]byte(secret)), url.QueryEscape(secret)}
	for shift := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(" ", shift) + secret))
		forms = append(forms, encoded[4:len(encoded)-4])
	}
	for _, form := range forms {
		if at := strings.Index(text, form); at >= 0 {
			t.Errorf("%s has the secret: …%.160s…", where, text[max(0, at-100):])
		}
	}
}

func wantNoTraceInFiles(t *testing.T, secret, dir string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		files++
		wantNoTrace(t, secret, path, string(data))
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files: %v", files, err)
	}
}

// RDC-2 and RDC-3, on the wire: what goes, what stays, and that nothing else of
// a message changes.
func TestWireRedactionChangesWhatIsSecretAndNothingElse(t *testing.T) {
	server := upstream.Script(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(body) // what arrives is what comes back
	})
	caddy := harness.StartCaddy(t, harness.Site{Upstream: server.Address, Handler: "redact {\nwire on\n}"})
	for _, c := range []struct{ sent, goes string }{
		{`{"max_tokens":100}`, `{"max_tokens":100}`},
		{`{"t":"secretary","at":1755302400}`, `{"t":"secretary","at":1755302400}`},
		{`{"k":"YOUR_API_KEY_HERE","id":"0189f7ea-ae2c-7df3-8d4a-9f2b6d1c0e5a"}`, `{"k":"YOUR_API_KEY_HERE","id":"0189f7ea-ae2c-7df3-8d4a-9f2b6d1c0e5a"}`},
		{`{"card":"4111 1111 1111 1111"}`, `{"card":"[REDACTED:card]"}`},
		{`{"to":"DE89370400440532013000"}`, `{"to":"[REDACTED:iban]"}`},
		{
			`{"n":9007199254740993,"f":1e3,"z":-0,"a":[],"o":{},"u":"\u00e9","password":"x","k":{"b":1,"a":2}}`,
			`{"n":9007199254740993,"f":1e3,"z":-0,"a":[],"o":{},"u":"\u00e9","password":"[REDACTED]","k":{"b":1,"a":2}}`,
		},
		{`{ "n" : 9007199254740993 , "f":1E3,"u":"\u00E9\/" }`, `{ "n" : 9007199254740993 , "f":1E3,"u":"\u00E9\/" }`},
	} {
		caddy.Post(t, call("1", "echo", c.sent))
		requests := server.Requests()
		if got, want := string(requests[len(requests)-1].Body), call("1", "echo", c.goes); got != want {
			t.Errorf("the server got %s\nwant           %s", got, want)
		}
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}
