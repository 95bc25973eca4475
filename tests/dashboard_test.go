package tests

import (
	"archive/zip"
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// echoing is an MCP server that answers every request with what it was asked.
func echoing(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var message struct {
			ID     json.RawMessage `json:"id"`
			Params struct {
				Name      string          `json:"name"`
				Arguments json.RawMessage `json:"arguments"`
			} `json:"params"`
		}
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &message); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if message.Params.Name == "slow_report" {
			time.Sleep(40 * time.Millisecond)
		}
		text, _ := json.Marshal(string(message.Params.Arguments))
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}],"isError":%t}}`, message.ID, text, message.Params.Name == "broken_tool")
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func toolCall(id int, tool string, arguments any) string {
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": arguments}})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// watched starts Caddy with a dashboard at /audit/.
func watched(t *testing.T, options string) *harness.Caddy {
	t.Helper()
	return harness.StartCaddy(t, harness.Site{
		Upstream:   echoing(t),
		LogOptions: "checkpoint every 20 records 1s",
		Handler: `server_id notes
			policy {
				default allow
				rule KEEP-FILES deny {
					method tools/call
					tool delete_file
					reason "notes are kept"
				}
			}`,
		Routes: "route /audit/* {\nmcp_audit_dashboard {\n" + options + "\n}\n}",
	})
}

// shown is true when the page shows what its address names: a click changes the
// address at once, and the page a moment later.
const shown = `(document.querySelector("main").dataset.ready && document.querySelector("main").dataset.at === location.hash)`

func dashboardOf(c *harness.Caddy) string { return "http://" + c.Listen + "/audit/" }

// quietConsole fails if the page complained of anything, or asked for anything
// that is not the dashboard's.
func quietConsole(t *testing.T, b *harness.Browser, base string) {
	t.Helper()
	for _, c := range b.Complaints() {
		t.Errorf("the console says: %s", c)
	}
	for _, r := range b.Requests() {
		// The icons of the browser itself are data.
		if !strings.HasPrefix(r, base) && !strings.HasPrefix(r, "data:image/svg+xml;") {
			t.Errorf("the page asked for %s", r)
		}
	}
}

func TestDashboardInABrowser(t *testing.T) {
	c := watched(t, "")
	base := dashboardOf(c)
	for i := range 24 {
		c.Post(t, toolCall(i, "read_file", map[string]any{"path": fmt.Sprintf("/notes/%d.md", i)}))
	}
	for i := range 5 {
		c.Post(t, toolCall(100+i, "slow_report", map[string]any{"month": i, "words": "quarterly invoice"}))
	}
	c.Post(t, toolCall(200, "broken_tool", map[string]any{}))
	c.Post(t, toolCall(201, "delete_file", map[string]any{"path": "/notes/1.md"}))
	c.Post(t, `{"jsonrpc":"2.0","id":300,"method":"tools/list","params":{}}`)
	b := harness.StartBrowser(t)

	t.Run("the overview has figures and charts", func(t *testing.T) {
		b.Open(base)
		b.Await(shown + ` && document.querySelector("#cards").innerText.includes("32")`)
		b.Await(`document.querySelectorAll(".plot canvas").length === 4`)
		b.Await(`document.querySelector("#top-tools").innerText.startsWith("read_file")`)
		b.Await(`document.querySelectorAll("#recent tr").length >= 10`)
		if text := b.Text("#top-tools"); !strings.Contains(text, "24") || !strings.Contains(text, "slow_report") {
			t.Errorf("top tools: %s", text)
		}
		b.Script(`(document.querySelector("#chart-by").value = "tool", document.querySelector("#chart-by").dispatchEvent(new Event("change")))`)
		b.Await(`document.querySelector(".legend").innerText.includes("broken_tool")`)
		if legend := b.Text(".legend"); !strings.Contains(legend, "100.0 %") {
			t.Errorf("error rate by tool: %s", legend)
		}
		b.Screenshot("dashboard-overview")
		quietConsole(t, b, base)
	})

	t.Run("entries are filtered", func(t *testing.T) {
		for _, f := range []struct {
			query string
			rows  int
			has   string
		}{
			{"tool_name=slow_report", 5, "slow_report"}, {"outcome=denied", 1, "KEEP-FILES"}, {"outcome=tool_error", 1, "broken_tool"},
			{"decision=deny", 1, "delete_file"}, {"method=tools%2Flist", 1, "tools/list"}, {"text=quarterly+INVOICE", 5, "slow_report"},
			{"client_id=anonymous&server_id=notes", 32, "read_file"}, {"principal=nobody", 0, ""}, {"from=2099-01-01T00:00:00Z", 0, ""}, {"to=2020-01-01T00:00:00Z", 0, ""},
			{"tool_name=read_*&text=7.md", 2, "read_file"},
		} {
			b.Open(base + "#/entries?live=0&" + f.query)
			b.Await(fmt.Sprintf(`location.hash.endsWith(%q) && `+shown+` && document.querySelectorAll("#entries tr").length === %d`, f.query, f.rows))
			if text := b.Text("#entries"); !strings.Contains(text, f.has) {
				t.Errorf("%s: %s", f.query, text)
			}
		}
		b.Open(base + "#/entries?live=0")
		b.Await(`document.querySelectorAll("#entries tr").length === 32`)
		b.Screenshot("dashboard-entries")
		b.Type("#f-tool_name", "broken_tool")
		b.Click("#apply")
		b.Await(`location.hash.includes("tool_name=broken_tool") && document.querySelectorAll("#entries tr").length === 1`)
		quietConsole(t, b, base)
	})

	t.Run("one operation and its proof", func(t *testing.T) {
		b.Open(base + "#/entries?live=0&tool_name=slow_report")
		b.Click("#entries a.open-entry")
		b.Await(`location.hash.startsWith("#/operations/") && ` + shown)
		for selector, want := range map[string]string{
			"#payload-params": "quarterly invoice", "#payload-result": "quarterly invoice", "#decision": "allowed", "#timeline": "recorded before it was forwarded",
			"#integrity": "fits its hash",
		} {
			if text := b.Text(selector); !strings.Contains(text, want) {
				t.Errorf("%s: %s", selector, text)
			}
		}
		if text := b.Text("#integrity"); strings.Contains(text, "✗") || !strings.Contains(text, "follows the record before") {
			t.Errorf("integrity: %s", text)
		}
		// The records may be waiting for their checkpoint.
		operation := b.Script(`location.hash.split("/")[2]`)
		harness.Eventually(t, "a checkpoint that covers the call", func() bool {
			resp, err := http.Get(base + "api/operations/" + operation + "/proof")
			if err != nil {
				return false
			}
			resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
		b.Open(base + "#/overview")
		b.Open(base + "#/operations/" + operation)
		b.Await(`document.querySelector("#integrity") && document.querySelector("#integrity").innerText.includes("of ")`)
		b.Click("#proof")
		archive := filepath.Join(b.Downloads, "operation-"+operation+".zip")
		harness.Eventually(t, "the download", func() bool { _, err := os.Stat(archive); return err == nil })
		checkProof(t, archive, operation)
		b.Screenshot("dashboard-operation")
		quietConsole(t, b, base)
	})

	t.Run("a denied call says why", func(t *testing.T) {
		b.Open(base + "#/entries?live=0&outcome=denied")
		b.Click("#entries a.open-entry")
		b.Await(`document.querySelector("#decision")`)
		if text := b.Text("#decision"); !strings.Contains(text, "KEEP-FILES") || !strings.Contains(text, "notes are kept") || !strings.Contains(text, "denied") {
			t.Errorf("%s", text)
		}
	})

	t.Run("new calls appear by themselves", func(t *testing.T) {
		b.Open(base + "#/entries")
		b.Await(shown + ` && document.querySelectorAll("#entries tr").length >= 32`)
		c.Post(t, toolCall(400, "just_now", map[string]any{}))
		b.Await(`[...document.querySelectorAll("#entries tr")].some((r) => r.innerText.includes("just_now") && r.innerText.includes("success"))`)
		b.Open(base + "#/overview")
		b.Await(shown)
		c.Post(t, toolCall(401, "and_now", map[string]any{}))
		b.Await(`document.querySelector("#recent").innerText.includes("and_now")`)
		b.Await(`document.querySelector("#top-tools").innerText.includes("and_now")`)
		quietConsole(t, b, base)
	})

	t.Run("the verification runs in the background", func(t *testing.T) {
		b.Open(base + "#/verify")
		b.Await(`document.querySelector("#verify-state").dataset.integrity === "intact"`)
		if text := b.Text("#watermarks"); strings.Count(text, "–") > 0 || !strings.Contains(strings.ToLower(text), "checkpointed") {
			t.Errorf("%s", text)
		}
		b.Screenshot("dashboard-verification")
		quietConsole(t, b, base)
	})

	t.Run("keys and colours", func(t *testing.T) {
		b.Open(base + "#/overview")
		b.Await(shown)
		b.Press("g")
		b.Press("e")
		b.Await(`location.hash.startsWith("#/entries") && ` + shown)
		b.Press("j")
		b.Press("j")
		b.Await(`document.activeElement.classList.contains("open-entry")`)
		b.Press("\r")
		b.Await(`location.hash.startsWith("#/operations/") && ` + shown)
		b.Press("u")
		b.Await(`location.hash.startsWith("#/entries") && document.querySelector("#f-text") && ` + shown)
		b.Press("/")
		b.Await(`document.activeElement.id === "f-text"`)
		b.Script(`document.activeElement.blur()`)
		before := b.Script(`getComputedStyle(document.body).backgroundColor`)
		b.Press("t")
		b.Await(fmt.Sprintf(`getComputedStyle(document.body).backgroundColor !== %q`, before))
		b.Open(base + "#/overview")
		b.Await(`document.querySelectorAll(".plot canvas").length === 4 && document.documentElement.dataset.theme === "dark"`)
		b.Screenshot("dashboard-dark")
		quietConsole(t, b, base)
	})
}

// checkProof checks a downloaded archive with the program and the public key.
func checkProof(t *testing.T, archive, operation string) {
	t.Helper()
	dir := harness.TempDir(t)
	z, err := zip.OpenReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for _, f := range z.File {
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, filepath.Base(f.Name)), data)
	}
	var checks int
	for line := range strings.Lines(string(read(t, filepath.Join(dir, "README.txt")))) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "mcp-audit ")
		if !ok {
			continue
		}
		cmd := exec.Command(harness.Find(t).CLI, strings.Fields(command)...)
		cmd.Dir = dir
		stdout, stderr, code := harness.Run(t, cmd)
		if code != 0 {
			t.Errorf("%s: exit %d\n%s%s", command, code, stdout, stderr)
		}
		checks++
	}
	if checks != 2 {
		t.Errorf("%d checks for %s", checks, operation)
	}
}

// awaitEntries waits until the dashboard has indexed so many closed calls: a page
// that is not live does not show what comes later.
func awaitEntries(t *testing.T, base string, n int) {
	t.Helper()
	harness.Eventually(t, "the calls are indexed", func() bool {
		resp, err := http.Get(base + "api/entries?limit=100")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && strings.Count(string(text), `"outcome":`) == n
	})
}

// Names and values that are markup, script, or turn text around, are text.
func TestDashboardShowsHostileNamesAsText(t *testing.T) {
	c := watched(t, "")
	base := dashboardOf(c)
	names := []string{
		`<img src=x onerror="window.hit=1">`, `<script>window.hit=1</script>`, `"><svg onload=window.hit=1>`, "javascript:window.hit=1", `'-window.hit=1-'`,
		"evil\u202egpj.exe", "{{constructor.constructor('window.hit=1')()}}", `</script><script>window.hit=1</script>`, "x\u0000y", "`${window.hit=1}`",
	}
	for i, name := range names {
		c.Post(t, toolCall(i, name, map[string]any{name: name, "html": "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>"}))
	}
	awaitEntries(t, base, len(names))
	b := harness.StartBrowser(t)
	clean := func(where string) {
		t.Helper()
		if got := b.Script("window.hit"); got != "undefined" {
			t.Errorf("%s: a script ran", where)
		}
		if n := b.Script(`document.querySelectorAll("main img, main script, main iframe, main svg, main [onload], main [onerror], main a[href^='javascript']").length`); n != "0" {
			t.Errorf("%s: %s elements were made of names", where, n)
		}
	}
	b.Open(base + "#/entries?live=0")
	b.Await(fmt.Sprintf(`document.querySelectorAll("#entries tr").length === %d`, len(names)))
	text := b.Script(`document.querySelector("#entries").textContent`)
	for _, want := range []string{names[0], names[1], "evil\\u202egpj.exe"} {
		if !strings.Contains(text, want) {
			t.Errorf("the list does not show %q", want)
		}
	}
	clean("the list")
	b.Open(base + "#/overview?by=tool")
	b.Await(shown + ` && document.querySelector("#top-tools").innerText.includes("onerror") && document.querySelectorAll(".plot canvas").length === 4`)
	clean("the overview")
	var list struct {
		Entries []struct {
			Operation string `json:"audit_operation_id"`
		}
	}
	resp, err := http.Get(base + "api/entries")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Entries {
		b.Open(base + "#/operations/" + e.Operation)
		b.Await(fmt.Sprintf(`location.hash.endsWith(%q) && `+shown+` && document.querySelector("#payload-params")`, e.Operation))
		clean("an operation")
	}
	b.Open(base + "#/operations/" + `<img src=x onerror=window.hit=1>`)
	b.Await(`!document.querySelector("#notice").hidden`)
	clean("an address")
	b.Open(base + "#/entries?tool_name=" + `<img src=x onerror=window.hit=1>`)
	b.Await(shown)
	clean("a filter")
	// The address of the first is no record: the one complaint that is due.
	complaints := slices.DeleteFunc(b.Complaints(), func(c string) bool { return strings.Contains(c, "404") || strings.Contains(c, "400") })
	if len(complaints) > 0 {
		t.Errorf("the console says %q", complaints)
	}
}

func TestDashboardLoginInABrowser(t *testing.T) {
	const token = "a-token-of-the-dashboard-0123456789"
	file := filepath.Join(harness.TempDir(t), "token")
	write(t, file, []byte(token))
	c := watched(t, "token {file."+file+"}")
	base := dashboardOf(c)
	c.Post(t, toolCall(1, "read_file", map[string]any{"path": "/secret/plan"}))
	b := harness.StartBrowser(t)
	b.Open(base + "#/entries")
	b.Await(`!document.querySelector("#login").hidden`)
	if text := b.Text("body"); strings.Contains(text, "read_file") {
		t.Errorf("without the token: %s", text)
	}
	b.Screenshot("dashboard-login")
	b.Type("#token", "not the token")
	b.Press("\r")
	b.Await(`document.querySelector("#login-fault").innerText.includes("not the token")`)
	b.Script(`document.querySelector("#token").value = ""`)
	b.Type("#token", token)
	b.Press("\r")
	b.Await(`document.querySelector("#login").hidden && document.querySelectorAll("#entries tr").length === 1`)
	if cookie := b.Script(`document.cookie`); cookie != "" {
		t.Errorf("scripts see the session: %s", cookie)
	}
	b.Open(base + "#/verify")
	b.Await(`document.querySelector("#verify-state").dataset.integrity === "intact"`)
	b.Click("#logout button")
	b.Await(`!document.querySelector("#login").hidden && document.querySelector("main").hidden`)
	for range 10 {
		resp, err := http.PostForm(base+"login", map[string][]string{"token": {"guess"}})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	b.Type("#token", token)
	b.Press("\r")
	b.Await(`document.querySelector("#login-fault").innerText.includes("wait")`)
	for _, complaint := range b.Complaints() {
		if !strings.Contains(complaint, "401") && !strings.Contains(complaint, "429") {
			t.Errorf("the console says: %s", complaint)
		}
	}
	if text := c.Err.String(); strings.Contains(text, token) || strings.Contains(text, token[:12]) {
		t.Error("Caddy's log has the token")
	}
}

func TestDashboardOfALogOnALaptop(t *testing.T) {
	c := watched(t, "")
	for i := range 3 {
		c.Post(t, toolCall(i, "read_file", map[string]any{"n": i}))
	}
	for _, address := range []string{"0.0.0.0:0", "192.0.2.1:9090", "example.com:1", "9090"} {
		_, stderr, code := harness.Run(t, harness.CLI(t, c.Dir, "dashboard", c.Log, "--listen", address))
		if code != 2 || !strings.Contains(stderr, "--listen") {
			t.Errorf("--listen %s: exit %d, %s", address, code, stderr)
		}
	}
	cmd := harness.CLI(t, c.Dir, "dashboard", c.Log, "--listen", "127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	base := strings.TrimSpace(line[strings.Index(line, "http://"):])
	b := harness.StartBrowser(t)
	b.Open(base)
	b.Await(`document.querySelector("#recent") && document.querySelectorAll("#recent tr").length === 3`)
	c.Post(t, toolCall(9, "later", map[string]any{}))
	b.Await(`document.querySelector("#recent").innerText.includes("later")`)
	quietConsole(t, b, base)
	for _, host := range []string{"evil.example", "evil.example:80"} {
		req, err := http.NewRequest(http.MethodGet, base+"api/entries", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("Host %s: %d", host, resp.StatusCode)
		}
	}
	// A reader's stream does not keep it from ending.
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	harness.Within(t, harness.Patience, "the end of the dashboard", ended)
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// One page that is shown is one record, whatever its scripts ask for.
func TestDashboardRecordsOncePerPageShown(t *testing.T) {
	c := watched(t, "audit_reads")
	base := dashboardOf(c)
	c.Post(t, toolCall(1, "read_file", map[string]any{"path": "/notes/1.md"}))
	b := harness.StartBrowser(t)
	targets := func() (list []string) {
		for _, r := range harness.ReadLog(t, c.Log) {
			if r.Kind == "access" {
				var body struct {
					Action, Target, Actor string
				}
				if err := json.Unmarshal([]byte(r.Line), &body); err != nil {
					t.Fatal(err)
				}
				list = append(list, body.Action+" "+body.Target)
			}
		}
		return list
	}
	b.Open(base)
	b.Await(`document.querySelectorAll("#recent tr").length === 1`)
	c.Post(t, toolCall(2, "now", map[string]any{}))
	b.Await(`document.querySelector("#recent").innerText.includes("now")`)
	b.Open(base + "#/entries?tool_name=now")
	b.Await(`location.hash.includes("tool_name=now") && document.querySelectorAll("#entries tr").length === 1`)
	b.Click("#entries a.open-entry")
	b.Await(`document.querySelector("#integrity")`)
	operation := b.Script(`location.hash.split("/")[2]`)
	b.Open(base + "#/verify")
	b.Await(`document.querySelector("#verify-state").dataset.integrity === "intact"`)
	if got, want := targets(), []string{"view entries", "view entries tool_name=now", "view operation " + operation}; !slices.Equal(got, want) {
		t.Errorf("the log says %q, want %q", got, want)
	}
	harness.VerifyClean(t, c.Log)
}
