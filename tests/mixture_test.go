package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// mixtureServer speaks every revision: it mints sessions, answers batches, and
// has the tools echo (JSON), events (a stream) and slow (a stream that only
// ends with its client).
func mixtureServer(w http.ResponseWriter, r *http.Request) {
	type message struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name, ProtocolVersion string }
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var all []message
	batch := json.Unmarshal(body, &all) == nil
	if !batch {
		all = make([]message, 1)
		_ = json.Unmarshal(body, &all[0])
	}
	var answers []string
	for _, m := range all {
		if m.ID != nil {
			answers = append(answers, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID))
		}
	}
	if len(answers) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	const notice = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\n"
	switch {
	case batch:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "["+strings.Join(answers, ",")+"]")
		return
	case all[0].Method == "initialize":
		w.Header().Set("Mcp-Session-Id", "session-"+strconv.FormatUint(rand.Uint64(), 36))
		answers[0] = strings.Replace(answers[0], "{}", fmt.Sprintf(`{"protocolVersion":%q}`, all[0].Params.ProtocolVersion), 1)
	case all[0].Params.Name == "events", all[0].Params.Name == "slow":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, notice)
		_ = http.NewResponseController(w).Flush()
		if all[0].Params.Name == "slow" {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, "data: "+answers[0]+"\n\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, answers[0])
}

// mixer is one client of the mixture. It counts what the log must hold.
type mixer struct {
	t       *testing.T
	caddy   *harness.Caddy
	http    *http.Client
	rand    *rand.Rand
	next    int
	session map[string]string // by revision

	operations, events int
	outcomes           map[string]int
}

var legacyRevisions = []string{"2025-03-26", "2025-06-18", "2025-11-25"}

func (m *mixer) id() string {
	m.next++
	if m.next%2 == 0 {
		return strconv.Quote("id-" + strconv.Itoa(m.next))
	}
	return strconv.Itoa(m.next)
}

// request makes a POST in a revision; "" is one outside of any session.
func (m *mixer) request(ctx context.Context, revision, body, method, tool string) *http.Request {
	r := m.caddy.NewRequest(m.t, body)
	r = r.WithContext(ctx)
	switch {
	case revision == "":
	case revision == modern:
		r.Header.Set("MCP-Protocol-Version", modern)
		r.Header.Set("Mcp-Method", method)
		if tool != "" {
			r.Header.Set("Mcp-Name", tool)
		}
	case revision != "2025-03-26":
		r.Header.Set("MCP-Protocol-Version", revision)
		fallthrough
	default:
		if id := m.session[revision]; id != "" {
			r.Header.Set("Mcp-Session-Id", id)
		}
	}
	return r
}

func (m *mixer) do(r *http.Request, status int) (http.Header, string) {
	resp, err := m.http.Do(r)
	if err != nil {
		m.t.Error(err)
		return nil, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		m.t.Errorf("status %d, want %d: %.300s (%v)", resp.StatusCode, status, body, err)
	}
	return resp.Header, string(body)
}

// count notes operations that must be closed with an outcome.
func (m *mixer) count(n int, outcome string) {
	m.operations += n
	m.outcomes[outcome] += n
}

func (m *mixer) call(revision, tool string) string {
	params := fmt.Sprintf(`{"name":%q,"arguments":{"password":"p","n":%d}`, tool, m.rand.IntN(1000))
	if revision == modern {
		params += `,"_meta":{"io.modelcontextprotocol/protocolVersion":"` + modern + `","io.modelcontextprotocol/clientCapabilities":{}}`
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":%s}}`, m.id(), params)
}

// step sends one request of the mixture, or two for a cancellation.
func (m *mixer) step() (sent int) {
	ctx := m.t.Context()
	revision := append(legacyRevisions, modern)[m.rand.IntN(4)]
	if revision != modern && (m.session[revision] == "" || m.rand.IntN(50) == 0) {
		delete(m.session, revision)
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"initialize","params":{"protocolVersion":%q,"clientInfo":{"name":"mixer"}}}`, m.id(), revision)
		header, _ := m.do(m.request(ctx, "", body, "", ""), http.StatusOK)
		m.session[revision] = header.Get("Mcp-Session-Id")
		m.count(1, "success")
		return 1
	}
	switch kind := m.rand.IntN(10); kind {
	case 0, 1, 2: // allowed, answered with JSON or as a stream
		tool := []string{"echo", "events"}[m.rand.IntN(2)]
		m.do(m.request(ctx, revision, m.call(revision, tool), "tools/call", tool), http.StatusOK)
		m.count(1, "success")
		if tool == "events" {
			m.events++
		}
		return 1
	case 3: // denied
		_, body := m.do(m.request(ctx, revision, m.call(revision, "delete_file"), "tools/call", "delete_file"), http.StatusOK)
		if !strings.Contains(body, `"error":{"code":-3`) {
			m.t.Errorf("a denied call is answered %s", body)
		}
		m.count(1, "denied")
		return 1
	case 4: // malformed
		valid := m.call(revision, "echo")
		broken := []string{valid[:len(valid)-1], valid + "x", strings.Replace(valid, `"name"`, `"Name"`, 1), "\ufeff" + valid, "", "null"}
		m.do(m.request(ctx, revision, broken[m.rand.IntN(len(broken))], "tools/call", "echo"), http.StatusBadRequest)
		m.count(1, "denied")
		return 1
	case 5: // oversized
		body := strings.Replace(m.call(revision, "echo"), `"p"`, `"`+strings.Repeat("p", 70<<10)+`"`, 1)
		m.do(m.request(ctx, revision, body, "tools/call", "echo"), http.StatusRequestEntityTooLarge)
		m.count(1, "denied")
		return 1
	case 6: // a notification
		body := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`
		m.do(m.request(ctx, revision, body, "notifications/progress", ""), http.StatusAccepted)
		m.events++
		return 1
	case 7, 8: // a batch, of which one element is denied
		n := 2 + m.rand.IntN(3)
		denied := m.rand.IntN(n)
		var elements []string
		for i := range n {
			tool := "echo"
			if i == denied {
				tool = "delete_file"
			}
			elements = append(elements, m.call("2025-03-26", tool))
		}
		request := m.request(ctx, revision, "["+strings.Join(elements, ",")+"]", "", "")
		request.Header.Del("Mcp-Method")
		if revision != "2025-03-26" {
			m.do(request, http.StatusBadRequest)
			m.count(n, "denied")
			return 1
		}
		_, body := m.do(request, http.StatusOK)
		var answers []json.RawMessage
		if err := json.Unmarshal([]byte(body), &answers); err != nil || len(answers) != n {
			m.t.Errorf("a batch of %d is answered %s", n, body)
		}
		m.count(1, "denied")
		m.count(n-1, "success")
		return 1
	default:
		return m.cancel(revision)
	}
}

// cancel gives up a call that is under way: by leaving, or in an older revision
// perhaps by saying so first.
func (m *mixer) cancel(revision string) int {
	ctx, leave := context.WithCancel(m.t.Context())
	defer leave()
	body := m.call(revision, "slow")
	resp, err := m.http.Do(m.request(ctx, revision, body, "tools/call", "slow"))
	if err != nil {
		m.t.Error(err)
		return 1
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data:") {
		m.t.Errorf("the first line of a stream is %q (%v)", line, err)
	}
	m.events++
	switch {
	case revision == modern:
		m.count(1, "cancelled")
		return 1
	case m.rand.IntN(2) == 0:
		m.count(1, "client_disconnect")
		return 1
	}
	var id struct{ ID json.RawMessage }
	_ = json.Unmarshal([]byte(body), &id)
	notice := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id.ID)
	m.do(m.request(m.t.Context(), revision, notice, "", ""), http.StatusAccepted)
	m.events++
	m.count(1, "cancelled")
	return 2
}

// 10 000 requests of a seeded mixture leave exactly their operations in the
// log, each closed once, and nothing open in the process.
func TestMixtureOfEverythingIsRecordedExactly(t *testing.T) {
	const clients, requests, seed = 8, 10_000, 20261201
	server := httptest.NewServer(http.HandlerFunc(mixtureServer))
	t.Cleanup(server.Close)
	caddy := harness.StartCaddy(t, harness.Site{
		Upstream: strings.TrimPrefix(server.URL, "http://"),
		Handler:  "refusals off\nmax_body 64KiB\npolicy {\nrule KEEP deny {\nmethod tools/call\ntool delete_file\n}\n}",
		// Connections that are kept would hide ones that leak.
		Proxy: "transport http {\nkeepalive off\n}",
	})
	idle := processState(t, caddy)

	mixers := make([]*mixer, clients)
	var left atomic.Int64
	left.Store(requests)
	var wg sync.WaitGroup
	for i := range mixers {
		m := &mixer{
			t: t, caddy: caddy, rand: rand.New(rand.NewPCG(seed, uint64(i))), session: make(map[string]string),
			outcomes: make(map[string]int), http: &http.Client{Transport: &http.Transport{}},
		}
		mixers[i] = m
		wg.Go(func() {
			defer m.http.CloseIdleConnections()
			for left.Load() > 0 {
				left.Add(-int64(m.step()))
			}
		})
	}
	wg.Wait()

	harness.Eventually(t, "the process is as idle as at first", func() bool {
		now := processState(t, caddy)
		return now.descriptors <= idle.descriptors && now.goroutines <= idle.goroutines
	})
	caddy.Stop(t)

	records := caddy.Records(t)
	harness.CheckChain(t, records)
	found, events, denied := make(map[string]int), 0, 0
	ids := make(map[string]bool)
	for _, o := range harness.Operations(t, records) {
		found[o.Outcome.Outcome]++
		ids[o.Intent.OperationID] = true
	}
	for _, r := range records {
		switch {
		case r.Kind != "event":
		case r.Outcome == "denied":
			denied++
			if ids[r.OperationID] {
				t.Errorf("operation %s is closed twice", r.OperationID)
			}
			ids[r.OperationID] = true
		default:
			events++
		}
	}
	found["denied"] += denied
	operations, wantEvents, want := 0, 0, make(map[string]int)
	for _, m := range mixers {
		operations += m.operations
		wantEvents += m.events
		for outcome, n := range m.outcomes {
			want[outcome] += n
		}
	}
	if len(ids) != operations || events != wantEvents || fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("the log has %d operations and %d events, %v\nwant %d and %d, %v", len(ids), events, found, operations, wantEvents, want)
	}
	harness.VerifyClean(t, caddy.Log)
}

type state struct{ descriptors, goroutines int }

// processState counts what a leak would leave.
func processState(t *testing.T, caddy *harness.Caddy) state {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", caddy.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, profile := caddy.AdminGet(t, "/debug/pprof/goroutine?debug=1")
	var goroutines int
	if _, err := fmt.Sscanf(profile, "goroutine profile: total %d", &goroutines); err != nil {
		t.Fatalf("%.100s: %v", profile, err)
	}
	return state{len(entries), goroutines}
}
