//go:build cgo

package caddymodule_test

import (
	"archive/zip"
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/logging"
)

// board starts Caddy with an audited route and, under /audit/, a dashboard.
func board(t *testing.T, subdirectives, options string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: newUpstream(t, ok)}
	r.boot(r.withBoard(subdirectives, options))
	return r
}

// boardPorts are where the dashboards of rigs listen: a site of their own,
// since a site-level mcp_audit records what is asked of it.
var boardPorts = map[*rig]int{}

// withBoard is the rig's configuration with a dashboard.
func (r *rig) withBoard(subdirectives, options string) string {
	boardPorts[r] = freePort(r.t)
	return r.caddyfile(subdirectives, "") + fmt.Sprintf("http://:%d {\n bind 127.0.0.1\n route /audit/* {\n mcp_audit_dashboard %s\n }\n}\n", boardPorts[r], options)
}

func (r *rig) board(path string) string {
	return fmt.Sprintf("http://127.0.0.1:%d/audit/%s", boardPorts[r], path)
}

// ask sends a request to the dashboard.
func (r *rig) ask(method, path, body string, headers ...string) (int, http.Header, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, r.board(path), strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// look asks until the answer fits: the index follows the log.
func (r *rig) look(path string, into any, fits func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		status, _, text := r.ask(http.MethodGet, path, "")
		if status == http.StatusOK {
			if err := json.Unmarshal([]byte(text), into); err != nil {
				r.t.Fatal(err)
			}
			if fits() {
				return
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: %d %.2000s", path, status, text)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

type boardEntries struct {
	Entries []struct {
		Mark, Kind, Method, Outcome string
		Operation                   string `json:"audit_operation_id"`
		Tool                        string `json:"tool_name"`
		Policy                      struct {
			Decision string
			RuleID   string `json:"rule_id"`
		}
	}
	Next     string
	Complete bool
}

const call = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"n":%d}}}`

func TestTheDashboardShowsWhatWasCalled(t *testing.T) {
	r := board(t, "policy {\n rule NO deny {\n tool remove\n reason \"never\"\n }\n }", "")
	for i := range 5 {
		r.post(fmt.Sprintf(call, i, "read", i))
	}
	r.await(10)
	r.post(fmt.Sprintf(call, 9, "remove", 9))
	r.await(11)
	var list boardEntries
	r.look("api/entries?limit=4", &list, func() bool { return len(list.Entries) == 4 && list.Entries[0].Tool == "remove" })
	if e := list.Entries[0]; e.Outcome != "denied" || e.Policy.Decision != "deny" || e.Policy.RuleID != "NO" || list.Complete {
		t.Errorf("%+v", list)
	}
	var rest boardEntries
	r.look("api/entries?limit=4&before="+list.Next, &rest, func() bool { return true })
	if len(rest.Entries) != 2 || !rest.Complete || rest.Entries[0].Mark == list.Entries[3].Mark {
		t.Errorf("the next page: %+v", rest)
	}
	var stats struct {
		TotalToday int64   `json:"total_today"`
		ErrorRate  float64 `json:"error_rate"`
		TopTools   []struct {
			Name  string
			Count int
		} `json:"top_tools"`
	}
	r.look("api/stats", &stats, func() bool { return stats.TotalToday == 6 })
	if len(stats.TopTools) != 2 || stats.TopTools[0].Name != "read" || stats.TopTools[0].Count != 5 || stats.ErrorRate < 0.16 || stats.ErrorRate > 0.17 {
		t.Errorf("%+v", stats)
	}
	var op struct {
		Payloads []struct{ Name, Text string }
		Records  []struct {
			LeafFits  bool  `json:"leaf_fits"`
			ChainFits *bool `json:"chain_fits"`
		}
		Timeline []struct{ Detail string }
	}
	r.look("api/operations/"+rest.Entries[1].Operation, &op, func() bool { return true })
	if len(op.Records) != 2 || !op.Records[0].LeafFits || op.Records[1].ChainFits == nil || !*op.Records[1].ChainFits || len(op.Timeline) != 2 ||
		!strings.Contains(op.Payloads[0].Text, `"n": 0`) {
		t.Errorf("%+v", op)
	}
	for _, path := range []string{"api/entries?outcome=odd", "api/entries?from=yesterday", "api/entries?limit=0", "api/entries?limit=501", "api/entries?tol_name=x",
		"api/entries?before=x", "api/entries?decision=maybe", "api/series?by=moon", "api/stats?x=1", "api/operations/seq-x"} {
		if status, _, text := r.ask(http.MethodGet, path, ""); status != http.StatusBadRequest || !strings.Contains(text, `"error"`) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	for path, want := range map[string]int{"api/operations/none": 404, "api/none": 404, "api/operations/seq-999": 404, "none": 404, "": 200, "assets/app.js": 200, "assets/../handler.go": 404} {
		status, head, _ := r.ask(http.MethodGet, path, "")
		if status != want || !strings.Contains(head.Get("Content-Security-Policy"), "default-src 'none'") || head.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, status, head)
		}
	}
	if status, head, _ := r.ask(http.MethodGet, "api/stats", ""); status != 200 || head.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", status, head)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
		if status, head, _ := r.ask(method, "api/entries", ""); status != http.StatusMethodNotAllowed || head.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d", method, status)
		}
	}
	if status, _, text := r.ask(http.MethodHead, "api/entries", ""); status != 200 || text != "" {
		t.Errorf("HEAD: %d %q", status, text)
	}
}

func TestTheDashboardVerifiesAndProves(t *testing.T) {
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: newUpstream(t, ok)}
	config := strings.Replace(r.withBoard("", ""), "output jsonl", "checkpoint every 2 records 1s\n\t\t\toutput jsonl", 1)
	r.boot(config)
	r.post(fmt.Sprintf(call, 1, "read", 1))
	var verified struct {
		State, Integrity string
		Watermarks       struct{ Recorded, Durable, Checkpointed uint64 }
		Report           struct{ Exit int }
	}
	r.look("api/verify", &verified, func() bool { return verified.State == "done" && verified.Watermarks.Checkpointed > 0 })
	if verified.Integrity != "intact" || verified.Watermarks.Recorded == 0 {
		t.Errorf("%+v", verified)
	}
	var list boardEntries
	r.look("api/entries", &list, func() bool { return len(list.Entries) == 1 && list.Entries[0].Kind == "operation" })
	status, head, text := 0, http.Header(nil), ""
	for range 50 {
		if status, head, text = r.ask(http.MethodGet, "api/operations/"+list.Entries[0].Operation+"/proof", ""); status == 200 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if status != 200 || head.Get("Content-Type") != "application/zip" {
		t.Fatalf("%d %s", status, text)
	}
	z, err := zip.NewReader(bytes.NewReader([]byte(text)), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	if len(names) != 5 || !strings.HasSuffix(names[1], ".intent.tlog-proof") {
		t.Errorf("%q", names)
	}
}

func TestTheDashboardsTokenLetsReadersIn(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef"
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := board(t, "", "{\n token {file."+file+"}\n }")
	status, head, text := r.ask(http.MethodGet, "api/stats", "")
	if status != 401 || !strings.Contains(head.Get("WWW-Authenticate"), `realm="mcp-audit-dashboard"`) {
		t.Fatalf("%d %v %s", status, head, text)
	}
	if status, _, text := r.ask(http.MethodGet, "", ""); status != 200 || !strings.Contains(text, `action="login"`) {
		t.Errorf("the page: %d", status)
	}
	var stats struct{ Total int }
	deadline := time.Now().Add(10 * time.Second)
	for status = 0; status != 200 && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		status, _, text = r.ask(http.MethodGet, "api/stats", "", "Authorization", "Bearer "+token)
	}
	if err := json.Unmarshal([]byte(text), &stats); status != 200 || err != nil {
		t.Fatalf("%d %s", status, text)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	resp, err := browser.PostForm(r.board("login"), url.Values{"token": {token}})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Request.URL.Path != "/audit/" {
		t.Errorf("after the login: %d at %s", resp.StatusCode, resp.Request.URL)
	}
	status, head, _ = r.ask(http.MethodPost, "login", "token="+token, "Content-Type", "application/x-www-form-urlencoded")
	cookie := head.Get("Set-Cookie")
	if status != http.StatusSeeOther || !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") || strings.Contains(cookie, token) {
		t.Errorf("%d %q", status, cookie)
	}
	session := strings.Split(cookie, ";")[0]
	if status, _, _ := r.ask(http.MethodGet, "api/stats", "", "Cookie", session); status != 200 {
		t.Errorf("with the session: %d", status)
	}
	for _, bad := range []string{session + "0", strings.Replace(session, "=", "=9", 1), strings.Split(session, ".")[0] + "."} {
		if status, _, _ := r.ask(http.MethodGet, "api/stats", "", "Cookie", bad); status != 401 {
			t.Errorf("with the session %q: %d", bad, status)
		}
	}
	// Guesses are slowed down; who is in stays in.
	for i := range 10 {
		if status, _, _ := r.ask(http.MethodPost, "login", "token=guess", "Content-Type", "application/x-www-form-urlencoded"); status != 401 {
			t.Fatalf("guess %d: %d", i, status)
		}
	}
	for _, try := range []func() (int, http.Header, string){
		func() (int, http.Header, string) {
			return r.ask(http.MethodPost, "login", "token="+token, "Content-Type", "application/x-www-form-urlencoded")
		},
		func() (int, http.Header, string) {
			return r.ask(http.MethodGet, "api/stats", "", "Authorization", "Bearer "+token)
		},
	} {
		if status, head, _ := try(); status != http.StatusTooManyRequests || head.Get("Retry-After") == "" {
			t.Errorf("after ten guesses: %d %v", status, head)
		}
	}
	if status, _, _ := r.ask(http.MethodGet, "api/stats", "", "Cookie", session); status != 200 {
		t.Errorf("the session after others' guesses: %d", status)
	}
}

// ATH-4 of the dashboard.
func TestTheDashboardRefusesForeignPages(t *testing.T) {
	r := board(t, "", "")
	own := fmt.Sprintf("127.0.0.1:%d", boardPorts[r])
	for _, headers := range [][]string{
		{"Host", "evil.example", "Origin", "http://evil.example"}, {"Host", "evil.example"}, {"Origin", "null"}, {"Origin", "http://evil.example"},
		{"Origin", "http://" + own, "Origin", "http://" + own},
	} {
		for _, path := range []string{"", "api/stats", "assets/app.js", "login"} {
			if status, head, _ := r.ask(http.MethodGet, path, "", headers...); status != http.StatusForbidden || head.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%q %s: %d", headers, path, status)
			}
		}
	}
	if status, head, _ := r.ask(http.MethodOptions, "api/stats", "", "Origin", "http://"+own, "Access-Control-Request-Method", "GET"); status != http.StatusMethodNotAllowed || head.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a preflight: %d %v", status, head)
	}
	if status, _, _ := r.ask(http.MethodGet, "", "", "Origin", "http://"+own); status != 200 {
		t.Errorf("its own page: %d", status)
	}
}

func TestReadingTheDashboardIsRecordedOnceAPage(t *testing.T) {
	r := board(t, "", "{\n audit_reads\n }")
	r.post(fmt.Sprintf(call, 1, "read", 1))
	var list boardEntries
	r.look("api/entries", &list, func() bool { return len(list.Entries) == 1 && list.Entries[0].Outcome != "" })
	r.look("api/entries", &list, func() bool { return true })
	r.ask(http.MethodGet, "api/stats", "")
	r.ask(http.MethodGet, "assets/app.js", "")
	r.ask(http.MethodGet, "api/entries?text=geheim", "")
	r.ask(http.MethodGet, "api/operations/"+list.Entries[0].Operation, "")
	data, err := os.ReadFile(r.log())
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for line := range strings.Lines(string(data)) {
		var rec record
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatal(err)
		}
		if rec.str("kind") == "access" {
			targets = append(targets, rec.str("action")+" "+rec.str("target"))
			if rec.str("actor") != "anonymous at 127.0.0.1" {
				t.Errorf("actor %q", rec.str("actor"))
			}
		}
	}
	want := "view entries,view entries text=…,view operation " + list.Entries[0].Operation
	if got := strings.Join(targets, ","); got != want {
		t.Errorf("accesses %s, want %s", got, want)
	}
}

func TestTheDashboardStreamsNewEntries(t *testing.T) {
	r := board(t, "", "")
	var status struct{ Name string }
	r.look("api/status", &status, func() bool { return status.Name == "default" })
	r.look("api/stats", &status, func() bool { return true })
	resp := do(t, func() *http.Request {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.board("api/stream?tool_name=wanted"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return req
	})
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(resp.Header)
	}
	lines := make(chan string, 100)
	go func() {
		scan := bufio.NewScanner(resp.Body)
		scan.Buffer(nil, 1<<20)
		for scan.Scan() {
			lines <- scan.Text()
		}
		close(lines)
	}()
	r.post(fmt.Sprintf(call, 1, "other", 1))
	r.post(fmt.Sprintf(call, 2, "wanted", 2))
	deadline := time.After(20 * time.Second)
	for {
		select {
		case line, more := <-lines:
			if !more {
				t.Fatal("the stream ended")
			}
			if strings.Contains(line, `"tool_name":"other"`) {
				t.Fatalf("it is not filtered: %s", line)
			}
			if strings.Contains(line, `"tool_name":"wanted"`) && strings.Contains(line, `"outcome":"success"`) {
				// A reload does not wait for readers.
				r.move()
				began := time.Now()
				if err := r.load(r.withBoard("", "")); err != nil {
					t.Fatal(err)
				}
				for range lines {
				}
				t.Logf("the stream ended %v after the reload", time.Since(began))
				return
			}
		case <-deadline:
			t.Fatal("nothing came")
		}
	}
}

func TestTheDashboardsOptionsAreChecked(t *testing.T) {
	r := board(t, "", "")
	for options, want := range map[string]string{
		"{\n token short\n }":                "32",
		"{\n token {env.NOT_SET_AT_ALL}\n }": "NOT_SET_AT_ALL",
		"{\n origins evil\n }":               "no origin",
		"{\n log other\n }":                  "there is no log \"other\"",
		"{\n tokn x\n }":                     "unrecognized subdirective",
		"{\n audit_reads on\n }":             "wrong argument count",
		"{\n audit_reads\n audit_reads\n }":  "given twice",
		"default":                            "wrong argument count",
		"{\n token \"has white space here and is long enough for it\"\n }": "white space",
	} {
		if err := r.load(r.withBoard("", options)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", options, err)
		}
	}
}

// Both stores, and a log whose closed files are compressed, look the same.
func TestTheDashboardReadsEveryStore(t *testing.T) {
	for name, output := range map[string]string{
		"sqlite":     "output sqlite %DIR%/log/audit.db",
		"compressed": "output jsonl %DIR%/log/audit.jsonl {\n rotate_size 64KiB\n compress gzip\n }",
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: newUpstream(t, ok)}
			config := strings.Replace(r.withBoard("", ""), "output jsonl "+r.log(), strings.ReplaceAll(output, "%DIR%", r.dir), 1)
			r.boot(config)
			const calls = 120
			for i := range calls {
				r.post(fmt.Sprintf(call, i, fmt.Sprintf("tool_%d", i%7), i))
			}
			var stats struct{ Total int64 }
			r.look("api/stats", &stats, func() bool { return stats.Total == calls })
			var oldest boardEntries
			r.look("api/entries?limit=500", &oldest, func() bool { return len(oldest.Entries) == calls && oldest.Complete })
			var op struct {
				Payloads []struct{ Text string }
				Records  []struct {
					LeafFits bool `json:"leaf_fits"`
					File     string
				}
			}
			r.look("api/operations/"+oldest.Entries[calls-1].Operation, &op, func() bool { return true })
			if len(op.Records) != 2 || !op.Records[0].LeafFits || !strings.Contains(op.Payloads[0].Text, `"n": 0`) {
				t.Errorf("%+v", op)
			}
			if name == "compressed" && !strings.HasSuffix(op.Records[0].File, ".gz") {
				files, _ := filepath.Glob(filepath.Join(r.dir, "log", "*"))
				t.Errorf("the oldest record is in %s of %q", op.Records[0].File, files)
			}
			var found boardEntries
			r.look("api/entries?text=%22n%22%3A7%7D", &found, func() bool { return true })
			if len(found.Entries) != 0 {
				t.Errorf("a text that is JSON: %d entries", len(found.Entries))
			}
			r.look("api/entries?tool_name=tool_3", &found, func() bool { return true })
			if len(found.Entries) != 17 {
				t.Errorf("%d entries of one tool", len(found.Entries))
			}
			var verified struct{ State, Integrity string }
			r.look("api/verify", &verified, func() bool { return verified.State == "done" })
			if verified.Integrity != "intact" {
				t.Errorf("%+v", verified)
			}
		})
	}
}

func TestADashboardThatOthersCanReachIsWarnedOf(t *testing.T) {
	for name, c := range map[string]struct {
		site string
		warn bool
	}{
		"open":     {"http://:%d {\n mcp_audit_dashboard\n}", true},
		"nested":   {"http://:%d {\n handle /a/* {\n route {\n mcp_audit_dashboard\n }\n }\n}", true},
		"loopback": {"http://127.0.0.1:%d {\n bind 127.0.0.1\n mcp_audit_dashboard\n}", false},
		"token":    {"http://:%d {\n mcp_audit_dashboard {\n token 0123456789abcdef0123456789abcdef\n }\n}", false},
		"guarded":  {"http://:%d {\n basic_auth {\n bob $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n }\n mcp_audit_dashboard\n}", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: newUpstream(t, ok)}
			out := filepath.Join(r.dir, "caddy.log")
			config := strings.Replace(r.caddyfile("", ""), "level ERROR", "level WARN\n output file "+out, 1)
			r.boot(config + fmt.Sprintf(c.site, freePort(t)) + "\n")
			text, err := os.ReadFile(out)
			if err != nil && c.warn {
				t.Fatal(err)
			}
			if warned := strings.Contains(string(text), "without authentication"); warned != c.warn {
				t.Errorf("warned: %v\n%s", warned, text)
			}
		})
	}
}

// What is only validated leaves no trace.
func TestADashboardOpensNothingBeforeItStarts(t *testing.T) {
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: newUpstream(t, ok)}
	t.Setenv("XDG_DATA_HOME", filepath.Join(r.dir, "data"))
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(r.withBoard("", "")), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	var cfg caddy.Config
	if err := json.Unmarshal(adapted, &cfg); err != nil {
		t.Fatal(err)
	}
	if err := caddy.Validate(&cfg); err != nil {
		t.Fatal(err)
	}
	if files, _ := filepath.Glob(filepath.Join(r.dir, "log", "*")); len(files) > 0 {
		t.Errorf("%q", files)
	}
}

func TestTheDashboardShowsWhatIsPinned(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		if bytes.Contains(body, []byte("tools/list")) {
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"read","description":"reads","inputSchema":{"type":"object"}}]}}`)
			return
		}
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":2,"result":{"content":[]}}`)
	})
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: up}
	r.boot(r.withBoard("pin_tools", ""))
	r.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`)
	r.post(fmt.Sprintf(call, 2, "read", 1))
	r.await(5)
	var list boardEntries
	r.look("api/entries?method=tools%2Fcall", &list, func() bool { return len(list.Entries) == 1 && list.Entries[0].Outcome == "success" })
	var op struct {
		Pin *struct{ State, Digest string }
	}
	r.look("api/operations/"+list.Entries[0].Operation, &op, func() bool { return true })
	if op.Pin == nil || op.Pin.State != "pinned" || op.Pin.Digest == "" {
		t.Errorf("%+v", op.Pin)
	}
}
