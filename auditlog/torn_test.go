package auditlog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// stagedOffset is the offset in the state that is about to be published.
func stagedOffset(t testing.TB, path string) int64 {
	t.Helper()
	names, err := filepath.Glob(path + ".state.tmp-*")
	if err != nil || len(names) != 1 {
		t.Errorf("staged states: %v, %v", names, err)
		return 0
	}
	return stateOf(t, names[0]).Offset
}

type state struct {
	Offset int64 `json:"offset"`
	Next   int64 `json:"next"`
}

func stateOf(t testing.TB, name string) (s state) {
	t.Helper()
	first, _, _ := bytes.Cut(read(t, name), []byte("\n"))
	if err := json.Unmarshal(first, &s); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return s
}

// snapshot copies a log and its state as they are now, as a crash would leave
// them, into a new folder.
func snapshot(t testing.TB, path string, logBytes []byte) string {
	t.Helper()
	to := quickPath(t)
	write(t, to, logBytes)
	write(t, to+".state", read(t, path+".state"))
	if err := os.Mkdir(to+".runs", 0o700); err != nil {
		t.Fatal(err)
	}
	return to
}

func write(t testing.TB, name string, data []byte) {
	t.Helper()
	if isDatabase(name) && bytes.HasPrefix(data, []byte("{")) {
		importLines(t, name, data)
		return
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// crashed makes a log whose state covers genesis, start and one call, and
// which goes on with an open intent. It returns its bytes.
func crashed(t testing.TB, path string) []byte {
	t.Helper()
	l := setup{}.open(t, path)
	call(t, l)
	if _, err := l.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	state := read(t, path+".state")
	call(t, l)
	if _, err := l.Begin(context.Background(), anIntent()); err != nil {
		t.Fatal(err)
	}
	data := read(t, path)
	closeLog(t, l)
	write(t, path+".state", state)
	return data
}

func TestATornTailOfEveryLengthIsMovedAside(t *testing.T) {
	if testing.Short() {
		t.Skip("runs in full without the race detector")
	}
	path := quickPath(t)
	data := crashed(t, path)
	last := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	for cut := last; cut <= len(data); cut++ {
		to := snapshot(t, path, data[:cut])
		l := setup{}.open(t, to)
		closeLog(t, l)
		list := check(t, to)
		torn, _ := filepath.Glob(to + ".torn-*")
		clean := cut == last || cut == len(data)
		if clean != (count(list, "recovered") == 0) || clean != (len(torn) == 0) {
			t.Fatalf("cut at %d of %d: %v, %v", cut-last, len(data)-last, kinds(t, to), torn)
		}
		if !clean && !bytes.Equal(read(t, torn[0]), data[last:cut]) {
			t.Fatalf("cut at %d: the torn bytes were not kept", cut-last)
		}
		if open := openIntents(list); len(open) > 0 {
			t.Fatalf("cut at %d: intents %v have no outcome", cut-last, open)
		}
		if !bytes.HasPrefix(read(t, to), data[:last]) {
			t.Fatalf("cut at %d: good records were changed", cut-last)
		}
	}
}

func TestAMissingOrTornGenesisIsClean(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	var state []byte
	layer.onOp = func(op, name string) {
		if op == "open" && name == path && state == nil {
			state, _ = os.ReadFile(path + ".state")
		}
	}
	l := setup{fs: layer}.open(t, path)
	closeLog(t, l)
	genesis, _, _ := bytes.Cut(read(t, path), []byte("\n"))
	if state == nil {
		t.Fatal("there was no state before the log was made")
	}
	for cut := -1; cut <= len(genesis)+1; cut++ {
		to := quickPath(t)
		write(t, to+".state", state)
		if cut >= 0 {
			write(t, to, append(bytes.Clone(genesis), '\n')[:cut])
		}
		l := setup{}.open(t, to)
		closeLog(t, l)
		list := check(t, to)
		if count(list, "genesis") != 1 {
			t.Fatalf("cut at %d: %v", cut, kinds(t, to))
		}
	}
}

func TestAnIntentOfADeadProcessIsClosedAsUnknown(t *testing.T) {
	path := quickPath(t)
	data := crashed(t, path)
	to := snapshot(t, path, data)
	l := setup{}.open(t, to)
	list := check(t, to)
	var outcome, intent parsed
	for _, r := range list {
		switch r.kind {
		case "intent":
			intent = r
		case "outcome":
			outcome = r
		}
	}
	if outcome.body["outcome"] != "unknown" || outcome.body["intent_seq"] != float64(intent.seal.Seq) {
		t.Fatalf("the outcome is %v", outcome.body)
	}
	for _, name := range []string{"audit_operation_id", "client_id", "direction", "mcp_name", "method", "policy", "principal",
		"protocol_version", "request_id", "request_id_type", "server_id", "session", "tool_name", "transport"} {
		got, _ := json.Marshal(outcome.body[name])
		want, _ := json.Marshal(intent.body[name])
		if intent.body[name] == nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if outcome.body["params"] != nil || outcome.body["run"] == intent.body["run"] {
		t.Errorf("the outcome is %v", outcome.body)
	}
	closeLog(t, l)
	// Whoever comes next has nothing left to close.
	closeLog(t, setup{}.open(t, to))
	if n := strings.Count(strings.Join(kinds(t, to), " "), "outcome"); n != 3 {
		t.Errorf("%d outcomes: %v", n, kinds(t, to))
	}
}

func TestAnOpenIntentBeforeTheStateIsClosedToo(t *testing.T) {
	path := quickPath(t)
	l := setup{}.open(t, path)
	if _, err := l.Begin(context.Background(), anIntent()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	to := snapshot(t, path, read(t, path))
	edited := snapshot(t, path, bytes.Replace(read(t, path), []byte(`"client_id":"desktop"`), []byte(`"client_id":"desktoq"`), 1))
	closeLog(t, l)
	closeLog(t, setup{}.open(t, to))
	if open := openIntents(check(t, to)); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
	// Its outcome inherits from the intent, so an edited intent is found.
	_, err := auditlog.Open(context.Background(), setup{}.config(t, edited))
	refusedAs(t, err, "content_modified")
}

func TestTwoOpenersCloseADeadIntentOnce(t *testing.T) {
	path := quickPath(t)
	data := crashed(t, path)
	for range 20 {
		to := snapshot(t, path, data)
		logs := make(chan *auditlog.Log)
		for range 4 {
			go func() {
				l, err := auditlog.Open(context.Background(), setup{}.config(t, to))
				if err != nil {
					t.Errorf("Open: %v", err)
				}
				logs <- l
			}()
		}
		for range 4 {
			if l := <-logs; l != nil {
				closeLog(t, l)
			}
		}
		list := check(t, to)
		if open := openIntents(list); len(open) > 0 || count(list, "outcome") != 3 {
			t.Fatalf("open %v: %v", open, kinds(t, to))
		}
	}
}

func TestTheIntentOfALivingProcessIsLeftAlone(t *testing.T) {
	path := quickPath(t)
	first := setup{}.open(t, path)
	op, err := first.Begin(context.Background(), anIntent())
	if err != nil {
		t.Fatal(err)
	}
	second := setup{}.open(t, path)
	call(t, second)
	closeLog(t, second)
	if err := op.End(context.Background(), anOutcome()); err != nil {
		t.Fatal(err)
	}
	closeLog(t, first)
	for _, r := range check(t, path) {
		if r.body["outcome"] == "unknown" {
			t.Errorf("the open intent of a living process was closed: %v", r.body)
		}
	}
}
