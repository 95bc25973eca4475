package tests

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/sdkdiff"
)

var update = flag.Bool("update", false, "write docs/sdk-differences.md from what is measured")

var sdkServers = []string{"typescript-v1", "typescript-v2", "go-sdk", "mcp-go", "exact"}

// refusable are the values that the product may refuse in a request, with the
// word that its answer has. Anything else must pass.
var refusable = map[string]struct{ word, why string }{
	"lone surrogate":             {"surrogate", "it is no Unicode text, and SDKs replace it or keep it"},
	"lone low surrogate in text": {"surrogate", "the same"},
	"64 levels":                  {"64 deep", "with the message around it, it is deeper than 64 levels"},
	"1e400":                      {"Mcp-Name", "the client cannot read its own message and leaves out the header `Mcp-Name`, which 2026-07-28 requires; each server refuses that too"},
}

// What SDKs do to a value is theirs; the product must not add to it.
func TestSDKsDifferTheSameThroughTheProduct(t *testing.T) {
	doc := sdkdiff.Document{Servers: sdkServers, Versions: sdkVersions(t)}
	for _, c := range sdkdiff.Clients() {
		doc.Clients = append(doc.Clients, c.Name)
	}
	dir := harness.TempDir(t)
	addresses := startSDKServers(t, dir)
	refused := &refusals{who: make(map[string][]string)}

	t.Run("measure", func(t *testing.T) {
		for name, measure := range map[string]func(t *testing.T){
			"values over HTTP": func(t *testing.T) { doc.Pairs = measurePairs(t, dir, addresses, refused) },
			"values on stdio":  func(t *testing.T) { compareStdio(t, refused) },
			"ids of clients":   func(t *testing.T) { doc.Requests = measureRequestIDs(t, addresses) },
			"ids of servers":   func(t *testing.T) { doc.Asked = measureAskedIDs(t, dir) },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				measure(t)
			})
		}
	})
	if t.Failed() {
		return
	}

	for _, c := range sdkdiff.Cases() {
		if who := slices.Compact(slices.Sorted(slices.Values(refused.who[c.Name]))); len(who) > 0 {
			doc.Refused = append(doc.Refused, fmt.Sprintf("%s, from %s: %s", c.Name, strings.Join(who, ", "), refusable[c.Name].why))
		}
	}
	text, err := doc.Render()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(harness.Find(t).Root, "docs", "sdk-differences.md")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	committed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(committed) != text {
		t.Errorf("docs/sdk-differences.md is not what was measured; `go test -run TestSDK -update .` writes it\n%s", firstDifference(string(committed), text))
	}
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d\ncommitted: %s\nmeasured:  %s", i+1, x[i], y[i])
		}
	}
	return fmt.Sprintf("committed has %d lines, measured are %d", len(x), len(y))
}

// sdkVersions are the releases as package.json and go.mod pin them.
func sdkVersions(t *testing.T) []string {
	t.Helper()
	tests := filepath.Join(harness.Find(t).Root, "tests")
	var versions []string
	for _, pin := range []struct{ file, pattern, name string }{
		{"npm/package.json", `"@modelcontextprotocol/sdk": "([^"]+)"`, "TypeScript v1 (`@modelcontextprotocol/sdk` %s)"},
		{"npm/package.json", `"@modelcontextprotocol/client": "([^"]+)"`, "TypeScript v2 (`@modelcontextprotocol/client` %s"},
		{"npm/package.json", `"@modelcontextprotocol/server": "([^"]+)"`, "`@modelcontextprotocol/server` %s)"},
		{"go.mod", `github.com/modelcontextprotocol/go-sdk v(\S+)`, "the Go SDK (`github.com/modelcontextprotocol/go-sdk` %s)"},
		{"go.mod", `github.com/mark3labs/mcp-go v(\S+)`, "mcp-go (`github.com/mark3labs/mcp-go` %s)"},
	} {
		data, err := os.ReadFile(filepath.Join(tests, pin.file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pin.pattern).FindSubmatch(data)
		if found == nil {
			t.Fatalf("%s does not match %s", pin.file, pin.pattern)
		}
		versions = append(versions, fmt.Sprintf(pin.name, found[1]))
	}
	return versions
}

// refusals keeps whose values the product refused, by case.
type refusals struct {
	mu  sync.Mutex
	who map[string][]string
}

func (r *refusals) note(name, client string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.who[name] = append(r.who[name], sdkdiff.Title(client))
}

// startSDKServers returns the host:port of a server of each SDK.
func startSDKServers(t *testing.T, dir string) map[string]string {
	t.Helper()
	addresses := map[string]string{
		"go-sdk": sdkdiff.Serve(t, sdkdiff.GoSDKHandler()),
		"mcp-go": sdkdiff.Serve(t, sdkdiff.MCPGoHandler()),
		"exact":  sdkdiff.Serve(t, sdkdiff.Exact{}),
	}
	for _, version := range []string{"v1", "v2"} {
		address := harness.FreeAddress(t)
		cmd := exec.Command("node", filepath.Join(harness.Find(t).NPM, "sdkdiff-server.mjs"), version, address[strings.LastIndex(address, ":")+1:])
		cmd.Env = harness.Environment(dir)
		harness.StartServer(t, cmd, address)
		addresses["typescript-"+version] = address
	}
	return addresses
}

// measurePairs lets each client call each server, directly and through the
// product, compares both, and returns what was direct.
func measurePairs(t *testing.T, dir string, addresses map[string]string, refused *refusals) []sdkdiff.Pair {
	server := func(name, _ string) (string, string) { return addresses[name], "/mcp" }
	direct, behind := sdkdiff.Record(t, server), sdkdiff.Record(t, server)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: behind.Address})
	front := sdkdiff.Record(t, func(_, path string) (string, string) { return caddy.Listen, path })

	steps := sdkdiff.Steps()
	all := make(map[string][]sdkdiff.Pair)
	var mu sync.Mutex
	t.Run("client", func(t *testing.T) {
		for _, client := range sdkdiff.Clients() {
			t.Run(client.Name, func(t *testing.T) {
				t.Parallel()
				var targets []harness.Target
				for _, address := range []string{direct.Address, front.Address} {
					for _, server := range sdkServers {
						targets = append(targets, harness.Target{URL: "http://" + address + "/mcp/" + server + "/" + client.Name})
					}
				}
				reports, err := client.Run(t.Context(), sdkdiff.Place{Dir: dir, NPM: harness.Find(t).NPM}, targets, steps)
				if err != nil {
					t.Fatal(err)
				}
				for i, server := range sdkServers {
					t.Run(server, func(t *testing.T) {
						one, other := reports[i], reports[len(sdkServers)+i]
						if one.Error != nil || len(one.Steps) != len(steps) {
							t.Fatalf("%d of %d steps: %+v", len(one.Steps), len(steps), one.Error)
						}
						turned := compareExchanges(t, direct.Pair(client.Name, server), front.Pair(client.Name, server), behind.Pair(client.Name, server))
						compareReports(t, one, other, turned, func(name string) { refused.note(name, client.Name) })
						mu.Lock()
						defer mu.Unlock()
						all[client.Name] = append(all[client.Name], pairOf(t, client.Name, server, one, direct.Pair(client.Name, server)))
					})
				}
			})
		}
	})
	caddy.Stop(t)
	for _, o := range harness.Operations(t, caddy.Records(t)) {
		if !slices.Contains([]string{"success", "tool_error", "rpc_error"}, o.Outcome.Outcome) {
			t.Errorf("%s %s: outcome %s %s", o.Intent.Method, o.Intent.Params, o.Outcome.Outcome, o.Outcome.Reason)
		}
	}
	harness.VerifyClean(t, caddy.Log)
	var pairs []sdkdiff.Pair
	for _, client := range sdkdiff.Clients() {
		pairs = append(pairs, all[client.Name]...)
	}
	return pairs
}

// compareExchanges compares the bytes of a pair without the product with those
// on both of its sides, and returns its refusals: of which call, and the text.
func compareExchanges(t *testing.T, direct, front, behind []sdkdiff.Exchange) map[int]string {
	t.Helper()
	turned := make(map[int]string)
	if len(direct) != len(front) {
		t.Errorf("%d messages without the product, %d with it", len(direct), len(front))
		return turned
	}
	call := 0
	for i := range direct {
		isCall := strings.Contains(front[i].Request, `"tools/call"`)
		switch {
		case strings.Contains(front[i].Answer, `"audit_id"`):
			if direct[i].Request != front[i].Request || !isCall {
				t.Errorf("the product refused %s", front[i].Request)
			}
			turned[call] = front[i].Answer
		default:
			if direct[i] != front[i] {
				t.Errorf("differs with the product:\nwithout %+v\nwith    %+v", direct[i], front[i])
			}
			if len(behind) == 0 || behind[0] != front[i] {
				t.Errorf("the product changed something:\nclient %+v\nserver %+v", front[i], behind)
				return turned
			}
			behind = behind[1:]
		}
		if isCall {
			call++
		}
	}
	if len(behind) > 0 {
		t.Errorf("%d messages reached the server that the client did not send, or that were refused", len(behind))
	}
	return turned
}

// compareReports compares what the application got without and with the
// product.
func compareReports(t *testing.T, direct, product sdkdiff.Report, turned map[int]string, note func(name string)) {
	t.Helper()
	if direct.Revision != product.Revision || len(direct.Steps) != len(product.Steps) {
		t.Fatalf("without the product %s and %d steps, with it %s and %d: %+v", direct.Revision, len(direct.Steps), product.Revision, len(product.Steps), product.Error)
	}
	names := stepNames()
	for i := range direct.Steps {
		if text, ok := turned[i]; ok {
			if word := refusable[names[i]].word; word == "" || !strings.Contains(text, word) {
				t.Errorf("the product refused %s: %s", names[i], text)
			}
			if product.Steps[i].Error == nil {
				t.Errorf("the application did not notice that %s was refused: %+v", names[i], product.Steps[i])
			}
			note(names[i])
			continue
		}
		if a, b := describe(direct.Steps[i]), describe(product.Steps[i]); a != b {
			t.Errorf("%s: the application got\nwithout %s\nwith    %s", names[i], a, b)
		}
	}
}

func describe(s sdkdiff.Seen) string {
	out, _ := json.Marshal(s)
	return string(out)
}

// stepNames are the names of the cases, step by step.
func stepNames() []string {
	var names []string
	for _, about := range []func(sdkdiff.Case) bool{sdkdiff.Case.Sent, sdkdiff.Case.Given} {
		for _, c := range sdkdiff.Cases() {
			if about(c) {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

func pairOf(t *testing.T, client, server string, report sdkdiff.Report, exchanges []sdkdiff.Exchange) sdkdiff.Pair {
	t.Helper()
	calls := slices.DeleteFunc(exchanges, func(e sdkdiff.Exchange) bool { return !strings.Contains(e.Request, `"tools/call"`) })
	steps := sdkdiff.Steps()
	if len(calls) != len(steps) {
		t.Fatalf("%d calls on the wire, %d steps", len(calls), len(steps))
	}
	p := sdkdiff.Pair{Client: client, Server: server, Revision: report.Revision}
	for i, step := range steps {
		seen := report.Steps[i]
		if step.Tool == "echo" {
			p.Sent = append(p.Sent, member([]byte(calls[i].Request), "params", "arguments"))
			p.Read = append(p.Read, orError(seen, seen.Text))
			continue
		}
		answer := sdkdiff.Message([]byte(calls[i].Answer))
		given := member(answer, "result", "structuredContent")
		if code := member(answer, "error", "code"); code != "absent" {
			given = "error " + code
		}
		p.Given = append(p.Given, given)
		p.Got = append(p.Got, orError(seen, seen.Structured))
	}
	return p
}

func orError(s sdkdiff.Seen, value string) string {
	switch {
	case s.IsError:
		return "tool error"
	case s.Error == nil:
		return value
	case s.Error.Code != 0:
		return fmt.Sprintf("error %d", s.Error.Code)
	}
	return "error"
}

// member returns the bytes of a member of a JSON text.
func member(text []byte, path ...string) string {
	for _, name := range path {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(text, &object); err != nil {
			return "absent"
		}
		text = object[name]
	}
	if text == nil {
		return "absent"
	}
	return string(text)
}

var sdkIDs = []string{
	`0`, `1`, `-1`, `-0`, `9007199254740991`, `9007199254740992`, `9007199254740993`, `-9007199254740993`,
	`9223372036854775807`, `9223372036854775808`, `18446744073709551615`, `1e20`, `1e3`, `1.0`, `1.5`,
	`""`, `"1"`, `"9007199254740993"`, `"é"`, `"\u00e9"`, `"\/"`, `"😀"`, `"\ud800"`, `null`,
}

// sdkIDIsLost reports whether a server answers with an id that is not even
// nearly the one it was asked with: the Go SDK's integers overflow. Nobody can
// tell whose answer that is, and the record says that there was none.
func sdkIDIsLost(server, id string) bool {
	return server == "go-sdk" && slices.Contains([]string{`9223372036854775807`, `9223372036854775808`, `18446744073709551615`}, id)
}

// measureRequestIDs asks each server with ids as they are written.
func measureRequestIDs(t *testing.T, addresses map[string]string) []sdkdiff.ID {
	rows := make([]sdkdiff.ID, len(sdkIDs))
	for i, id := range sdkIDs {
		rows[i] = sdkdiff.ID{Text: id, Peers: make(map[string]string)}
	}
	for _, server := range sdkServers {
		caddy := harness.StartCaddy(t, harness.Site{Upstream: addresses[server]})
		for i, id := range sdkIDs {
			var answers []string
			for _, url := range []string{"http://" + addresses[server] + "/mcp", caddy.URL} {
				client, err := sdkdiff.Connect(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := client.Post(t.Context(), `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"echo","arguments":{}}}`)
				if err != nil && len(answer) == 0 {
					t.Fatal(err)
				}
				answers = append(answers, string(answer))
			}
			rows[i].Peers[server] = "refused"
			if member([]byte(answers[0]), "result") != "absent" {
				rows[i].Peers[server] = member([]byte(answers[0]), "id")
			}
			product := "passes"
			switch {
			case strings.Contains(answers[1], `"audit_id"`):
				product = "refused"
			case answers[0] != answers[1]:
				t.Errorf("%s, id %s: answered %s without the product, %s with it", server, id, answers[0], answers[1])
			}
			if rows[i].Product != "" && rows[i].Product != product {
				t.Errorf("%s, id %s: the product says both %s and %s", server, id, product, rows[i].Product)
			}
			rows[i].Product = product
		}
		caddy.Stop(t)
		for _, o := range harness.Operations(t, caddy.Records(t)) {
			want := []string{"success", "rpc_error"}
			if o.Intent.RequestID != nil && sdkIDIsLost(server, *o.Intent.RequestID) {
				want = []string{"upstream_error"}
			}
			if !slices.Contains(want, o.Outcome.Outcome) {
				t.Errorf("%s, id %s: outcome %s %s, want one of %q", server, *o.Intent.RequestID, o.Outcome.Outcome, o.Outcome.Reason, want)
			}
		}
		harness.VerifyClean(t, caddy.Log)
	}
	return rows
}

// measureAskedIDs asks each client with ids as they are written.
func measureAskedIDs(t *testing.T, dir string) []sdkdiff.ID {
	asker := new(sdkdiff.Asker)
	address := sdkdiff.Serve(t, asker)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: address})
	rows := make([]sdkdiff.ID, len(sdkIDs))
	for i, id := range sdkIDs {
		rows[i] = sdkdiff.ID{Text: id, Peers: make(map[string]string), Product: "passes"}
	}
	path := func(client, way string, i int) string { return fmt.Sprintf("/mcp/%s/%s/%d", client, way, i) }
	place := sdkdiff.Place{Dir: dir, NPM: harness.Find(t).NPM}
	clients := slices.DeleteFunc(sdkdiff.Clients(), func(c sdkdiff.Client) bool { return c.Name == "exact" })
	// All at once, since most of the time goes by waiting for what does not come.
	var all sync.WaitGroup
	for _, client := range clients {
		var targets []harness.Target
		for i, id := range sdkIDs {
			for way, host := range map[string]string{"direct": address, "product": caddy.Listen} {
				asker.Expect(path(client.Name, way, i), id)
				targets = append(targets, harness.Target{URL: "http://" + host + path(client.Name, way, i)})
			}
		}
		all.Go(func() {
			arguments := "{}"
			if _, err := client.Run(t.Context(), place, targets, []sdkdiff.Step{{Tool: "echo", Arguments: &arguments}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, client := range clients {
		for i, id := range sdkIDs {
			direct, product := asker.Answered(path(client.Name, "direct", i)), asker.Answered(path(client.Name, "product", i))
			switch {
			case direct == product:
			case product == "" && (id == `1.5` || id == `"\ud800"`):
				// The server's question passes, the answer is a message of the
				// client as any other.
				rows[i].Product = "passes, its answer is refused"
			default:
				t.Errorf("%s, id %s: answered %q without the product, %q with it", client.Name, id, direct, product)
			}
			rows[i].Peers[client.Name] = "no answer"
			if direct != "" {
				rows[i].Peers[client.Name] = member([]byte(direct), "id")
			}
		}
	}
	caddy.Stop(t)
	harness.Operations(t, caddy.Records(t))
	harness.VerifyClean(t, caddy.Log)
	return rows
}

// compareStdio lets each SDK's client call the server of the same SDK on
// stdio, with and without the shim between them.
func compareStdio(t *testing.T, refused *refusals) {
	programs := harness.Find(t)
	peer := filepath.Join(harness.TempDir(t), "peer")
	build := exec.Command("go", "build", "-o", peer, "./sdkdiff/peer")
	build.Dir = filepath.Join(programs.Root, "tests")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	script := filepath.Join(programs.NPM, "sdkdiff-server.mjs")
	servers := map[string][]string{
		"typescript-v1": {"node", script, "v1"},
		"typescript-v2": {"node", script, "v2"},
		"go-sdk":        {peer, "serve", "go-sdk"},
		"mcp-go":        {peer, "serve", "mcp-go"},
	}
	t.Run("client", func(t *testing.T) {
		for _, client := range sdkdiff.Clients() {
			server := servers[client.Name]
			if server == nil {
				continue
			}
			t.Run(client.Name, func(t *testing.T) {
				t.Parallel()
				dir := harness.TempDir(t)
				target := func(args ...string) harness.Target {
					return harness.Target{Command: peer, Args: args, Env: []string{"MCP_AUDIT_DIR=" + harness.AuditDir(dir)}}
				}
				behind := append([]string{peer, "tee", filepath.Join(dir, "behind")}, server...)
				reports, err := client.Run(t.Context(), sdkdiff.Place{Dir: dir, NPM: programs.NPM}, []harness.Target{
					target(append([]string{"tee", filepath.Join(dir, "direct")}, server...)...),
					target(append([]string{"tee", filepath.Join(dir, "front"), programs.Shim, "--"}, behind...)...),
				}, sdkdiff.Steps())
				if err != nil {
					t.Fatal(err)
				}
				turned := compareExchanges(t, stdio(t, dir, "direct"), stdio(t, dir, "front"), stdio(t, dir, "behind"))
				compareReports(t, reports[0], reports[1], turned, func(name string) { refused.note(name, client.Name) })
				log := harness.ShimLog(dir)
				harness.Operations(t, harness.Closed(t, log))
				harness.VerifyClean(t, log)
			})
		}
	})
}

// stdio pairs each line that went in with the line that came out for it: these
// clients ask one thing at a time, and notifications get no answer.
func stdio(t *testing.T, dir, name string) []sdkdiff.Exchange {
	t.Helper()
	var lines [2][]string
	for i, end := range []string{".in", ".out"} {
		data, err := os.ReadFile(filepath.Join(dir, name+end))
		if err != nil {
			t.Fatal(err)
		}
		lines[i] = strings.SplitAfter(strings.TrimSuffix(string(data), "\n"), "\n")
	}
	var exchanges []sdkdiff.Exchange
	answers := lines[1]
	for _, in := range lines[0] {
		e := sdkdiff.Exchange{Request: in}
		if member([]byte(in), "id") != "absent" && len(answers) > 0 {
			e.Answer, answers = answers[0], answers[1:]
		}
		exchanges = append(exchanges, e)
	}
	if len(answers) > 0 {
		t.Errorf("%s: %d more lines came out than were asked for", name, len(answers))
	}
	return exchanges
}
