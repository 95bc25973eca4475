//go:build cgo

package index

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// newLog opens a log in a folder of its own.
func newLog(t testing.TB) (*auditlog.Log, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	return logAt(t, path), path
}

func logAt(t testing.TB, path string) *auditlog.Log {
	t.Helper()
	keys, err := auditlog.LoadOrCreateKeyring(filepath.Join(filepath.Dir(path), "keys.json"), auditlog.DefaultKeyID, "")
	if err != nil {
		t.Fatal(err)
	}
	store, err := jsonl.New(path, jsonl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := auditlog.Open(t.Context(), auditlog.Config{Store: store, Keys: keys, Name: "test/log", CheckpointEvery: 100, CheckpointAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close(context.Background()) })
	return log
}

func begin(t testing.TB, log *auditlog.Log, tool, subject string) *auditlog.Operation {
	t.Helper()
	op, err := log.Begin(context.Background(), auditlog.Intent{
		Message: auditlog.Message{
			Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", ToolName: tool, MCPName: tool,
			ServerID: "files", ClientID: "desktop", RequestID: "1", RequestIDType: "number",
			Principal: &auditlog.Principal{Subject: subject, Issuer: "https://idp.example"},
			Policy:    &auditlog.Policy{Decision: "allow", RuleID: "R-1"},
		},
		Params: auditlog.Payload{Received: []byte(`{"name":"` + tool + `","secret":"payload-not-for-the-index"}`)}, Request: []byte(`{}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func call(t testing.TB, log *auditlog.Log, tool, subject string, result auditlog.Result) {
	t.Helper()
	op := begin(t, log, tool, subject)
	if err := op.End(context.Background(), auditlog.Outcome{Result: result, Duration: 7 * time.Millisecond, HTTPStatus: 200,
		Answer: auditlog.Payload{Received: []byte(`{"content":"payload-not-for-the-index"}`)}}); err != nil {
		t.Fatal(err)
	}
}

func openIndex(t testing.TB, log string) *Index {
	t.Helper()
	x, err := Open(context.Background(), log+Suffix, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

func update(t testing.TB, x *Index, files ...string) *Report {
	t.Helper()
	report, err := x.Update(context.Background(), files)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func entries(t testing.TB, x *Index, f Filter) (list []Entry) {
	t.Helper()
	if err := x.Each(context.Background(), f, func(e *Entry) error {
		list = append(list, *e)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// dump is the whole content of an index, without what depends on its history.
func dump(t testing.TB, x *Index) string {
	t.Helper()
	var b strings.Builder
	for _, q := range []string{
		`SELECT ord,path,file,hex(head),origin,next,lines,last_pos,last_len,hex(last_chain),records,faults,fault_line FROM segments ORDER BY ord`,
		`SELECT s.ord,r.pos,r.len,line,seq,hex(leaf),kind,at,hex(op),intent_seq,direction,method,tool,name,client,server,principal,outcome,decision,rule,duration,status
		 FROM records r JOIN segments s ON s.id=r.segment ORDER BY s.ord,r.pos`,
		`SELECT s.ord,hour,first,last FROM hours h JOIN segments s ON s.id=h.segment ORDER BY s.ord,hour`,
		`SELECT s.ord,dim,hour,value,calls,errors,denied,limited,` + latencyColumns("") + ` FROM rollup r JOIN segments s ON s.id=r.segment ORDER BY s.ord,dim,hour,value`,
	} {
		rows, err := x.r.Query(q)
		if err != nil {
			t.Fatal(err)
		}
		names, _ := rows.Columns()
		values := make([]any, len(names))
		for i := range values {
			values[i] = new(sql.NullString)
		}
		for rows.Next() {
			if err := rows.Scan(values...); err != nil {
				t.Fatal(err)
			}
			for _, v := range values {
				fmt.Fprintf(&b, "%s|", v.(*sql.NullString).String)
			}
			b.WriteByte('\n')
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestEntriesJoinIntentAndOutcome(t *testing.T) {
	log, path := newLog(t)
	call(t, log, "read_file", "alice", auditlog.Success)
	call(t, log, "write_file", "bob", auditlog.ToolError)
	begin(t, log, "slow", "alice")
	if _, err := log.Event(t.Context(), auditlog.Event{Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http",
		Method: "tools/call", ToolName: "rm", MCPName: "rm", Policy: &auditlog.Policy{Decision: "deny", RuleID: "R-9"}}, Result: auditlog.Denied}); err != nil {
		t.Fatal(err)
	}
	x := openIndex(t, path)
	report := update(t, x, path)
	if report.Added != report.Records || report.Faults != 0 || len(report.Notes) > 0 {
		t.Errorf("%+v", report)
	}
	list := entries(t, x, Filter{})
	if len(list) != 4 {
		t.Fatalf("%d entries: %+v", len(list), list)
	}
	first := list[0]
	if first.Tool != "read_file" || first.Principal != "alice" || first.Outcome != "success" || first.Decision != "allow" || first.Rule != "R-1" ||
		first.Duration != 7*time.Millisecond || first.Status != 200 || first.Intent == nil || first.Intent.Seq+1 != first.Seq || first.Origin == "" ||
		first.Client != "desktop" || first.Server != "files" || first.Method != "tools/call" || time.Since(first.At) > time.Hour {
		t.Errorf("%+v", first)
	}
	if !list[2].Open() || list[2].Tool != "slow" || list[3].Kind != "event" || list[3].Intent != nil || list[3].Duration != -1 {
		t.Errorf("%+v %+v", list[2], list[3])
	}
	var lines Lines
	defer lines.Close()
	for _, e := range list {
		r, _, changed, err := lines.Read(nil, &e.Place)
		if err != nil || changed || r.Line.Seal.Seq != e.Seq || r.Text("tool_name") != e.Tool {
			t.Errorf("%v %v %+v", err, changed, e)
		}
	}
	for name, c := range map[string]struct {
		f    Filter
		want []string
	}{
		"tool":      {Filter{Tools: []string{"read_file", "rm"}}, []string{"read_file", "rm"}},
		"pattern":   {Filter{Tools: []string{"*_file"}}, []string{"read_file", "write_file"}},
		"literal":   {Filter{Tools: []string{"?ead_file", "[r]*"}}, nil},
		"method":    {Filter{Methods: []string{"tools/list"}}, nil},
		"principal": {Filter{Principals: []string{"alice"}}, []string{"read_file", "slow"}},
		"both":      {Filter{Principals: []string{"alice"}, Outcomes: []string{"success"}}, []string{"read_file"}},
		"outcome":   {Filter{Outcomes: []string{"denied", "tool_error"}}, []string{"write_file", "rm"}},
		"decision":  {Filter{Decisions: []string{"deny"}}, []string{"rm"}},
		"client":    {Filter{Clients: []string{"desktop"}}, []string{"read_file", "write_file", "slow"}},
		"server":    {Filter{Servers: []string{"files"}}, []string{"read_file", "write_file", "slow"}},
		"since":     {Filter{Since: list[1].At}, []string{"write_file", "slow", "rm"}},
		"until":     {Filter{Until: list[1].At}, []string{"read_file"}},
		"newest":    {Filter{Newest: true, Limit: 2}, []string{"rm", "slow"}},
	} {
		var got []string
		for _, e := range entries(t, x, c.f) {
			got = append(got, e.Tool)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if own := entries(t, x, Filter{Own: true}); len(own) != 6 || own[0].Kind != "genesis" {
		t.Errorf("%d with the log's own records", len(own))
	}
}

func TestTheIndexHasNoPayloadsAndIsPrivate(t *testing.T) {
	log, path := newLog(t)
	call(t, log, "read_file", "alice", auditlog.Success)
	x := openIndex(t, path)
	update(t, x, path)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		name := path + Suffix + suffix
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", name, info.Mode().Perm())
		}
		data, err := os.ReadFile(name)
		if err != nil || bytes.Contains(data, []byte("payload-not-for-the-index")) {
			t.Errorf("%s: %v, or it has a payload", name, err)
		}
	}
}

func TestUpdatesInPiecesEqualOneRebuild(t *testing.T) {
	log, path := newLog(t)
	x := openIndex(t, path)
	for i := range 60 {
		call(t, log, fmt.Sprint("tool_", i%7), "alice", auditlog.Success)
		if i%3 == 0 {
			update(t, x, path)
		}
	}
	update(t, x, path)
	other, err := Open(t.Context(), filepath.Join(t.TempDir(), "other"+Suffix), path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if report := update(t, other, path); report.Added != report.Records {
		t.Errorf("%+v", report)
	}
	if a, b := dump(t, x), dump(t, other); a != b || strings.Count(a, "\n") < 120 {
		t.Errorf("they differ:\n%s\n%s", a, b)
	}
	if report := update(t, x, path); report.Added != 0 {
		t.Errorf("nothing is new: %+v", report)
	}
}

func TestATornTailWaitsForItsEnd(t *testing.T) {
	log, path := newLog(t)
	call(t, log, "read_file", "alice", auditlog.Success)
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, cut := range []int{0, 10, len(whole) / 2, len(whole) - 1, len(whole)} {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		x := openIndex(t, path)
		report := update(t, x, path)
		if n := int64(bytes.Count(whole[:cut], []byte("\n"))); report.Records != n || report.Faults != 0 || len(report.Notes) > 0 {
			t.Errorf("cut at %d: %+v, %d lines", cut, report, n)
		}
		want = dump(t, x)
	}
	fresh, err := Open(t.Context(), filepath.Join(t.TempDir(), "x"), path)
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	update(t, fresh, path)
	if got := dump(t, fresh); got != want {
		t.Errorf("%s\n%s", got, want)
	}
}

func TestLinesThatAreNoRecordsAreNamed(t *testing.T) {
	log, path := newLog(t)
	call(t, log, "read_file", "alice", auditlog.Success)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("{\"planted\":true}\n\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	x := openIndex(t, path)
	report := update(t, x, path)
	if report.Faults != 2 || len(report.Notes) != 1 || !strings.Contains(report.Notes[0], path) || !strings.Contains(report.Notes[0], "line 4") && !strings.Contains(report.Notes[0], "line 5") {
		t.Errorf("%+v", report)
	}
}

func TestReplacedAndRotatedFilesAreFound(t *testing.T) {
	log, path := newLog(t)
	call(t, log, "first", "alice", auditlog.Success)
	pending := begin(t, log, "across", "alice")
	x := openIndex(t, path)
	update(t, x, path)

	// Rotated: the file has another name, and a new one is in its place.
	closed := path + ".000000.20261201T000000Z"
	var lines Lines
	defer lines.Close()
	all := entries(t, x, Filter{})
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, closed); err != nil {
		t.Fatal(err)
	}
	other, otherPath := newLog(t)
	call(t, other, "second", "bob", auditlog.Success)
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	move(t, otherPath, path)
	if _, _, _, err := lines.Read(nil, &all[0].Place); err != nil {
		t.Errorf("a place in the file that was rotated since: %v", err)
	}
	report := update(t, x, closed, path)
	if report.Added == 0 || len(report.Notes) != 0 {
		t.Errorf("rotated: %+v", report)
	}
	tools := func() (list []string) {
		for _, e := range entries(t, x, Filter{}) {
			list = append(list, e.Tool)
		}
		return list
	}
	if got := tools(); !slices.Equal(got, []string{"first", "across", "second"}) {
		t.Errorf("rotated: %q", got)
	}

	// The closed file is gone: so are its records.
	if err := os.Remove(closed); err != nil {
		t.Fatal(err)
	}
	if update(t, x, path); !slices.Equal(tools(), []string{"second"}) {
		t.Errorf("retained: %q", tools())
	}

	// Replaced by a file of another inode, and cut.
	replacement := filepath.Join(t.TempDir(), "new")
	if err := os.WriteFile(replacement, data, 0o600); err != nil {
		t.Fatal(err)
	}
	move(t, replacement, path)
	if report = update(t, x, path); len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "another file") || !slices.Equal(tools(), []string{"first", "across"}) {
		t.Errorf("replaced: %+v %q", report, tools())
	}
	if err := os.Truncate(path, int64(bytes.LastIndexByte(data[:len(data)-1], '\n')+1)); err != nil {
		t.Fatal(err)
	}
	if report = update(t, x, path); len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "cut or rewritten") || !slices.Equal(tools(), []string{"first"}) {
		t.Errorf("cut: %+v %q", report, tools())
	}
	_ = pending
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestADamagedIndexIsMadeAnew(t *testing.T) {
	log, path := newLog(t)
	for range 300 {
		call(t, log, "read_file", "alice", auditlog.Success)
	}
	damage := map[string]func(data []byte) []byte{
		"no database": func([]byte) []byte { return []byte(strings.Repeat("not a database\n", 1000)) },
		"cut":         func(data []byte) []byte { return data[:len(data)/2] },
		"pages":       func(data []byte) []byte { clear(data[4096:]); return data },
		"noise": func(data []byte) []byte {
			for i := 4096; i < len(data); i += 97 {
				data[i] ^= 0x5a
			}
			return data
		},
		"version": func(data []byte) []byte { data[63]++; return data },
	}
	for name, change := range damage {
		x := openIndex(t, path)
		want := update(t, x, path).Records
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path + Suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+Suffix, change(data), 0o600); err != nil {
			t.Fatal(err)
		}
		call(t, log, "read_file", "alice", auditlog.Success)
		x, err = Open(t.Context(), path+Suffix, path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		report := update(t, x, path)
		notes := append(x.Notes(), report.Notes...)
		if len(notes) == 0 || !strings.Contains(strings.Join(notes, " "), "made anew") || report.Records < want+2 {
			t.Errorf("%s: %+v %q", name, report, notes)
		}
		if got := len(entries(t, x, Filter{Own: true})); got == 0 {
			t.Errorf("%s: no entries", name)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(path + Suffix); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, path+Suffix); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path+Suffix, path); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a link: %v", err)
	}
}

func TestUpdatesDuringWritesBySeveral(t *testing.T) {
	log, path := newLog(t)
	var writers, updaters sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		writers.Go(func() {
			for range 200 {
				call(t, log, "read_file", "alice", auditlog.Success)
			}
		})
	}
	for range 2 {
		x := openIndex(t, path)
		updaters.Go(func() {
			for {
				if _, err := x.Update(context.Background(), []string{path}); err != nil {
					t.Error(err)
				}
				last := uint64(0)
				if err := x.Each(context.Background(), Filter{Own: true}, func(e *Entry) error {
					if e.Seq < last {
						return fmt.Errorf("seq %d behind %d", e.Seq, last)
					}
					last = e.Seq
					return nil
				}); err != nil {
					t.Error(err)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	updaters.Wait()
	x := openIndex(t, path)
	update(t, x, path)
	if n := len(entries(t, x, Filter{Outcomes: []string{"success"}})); n != 600 {
		t.Errorf("%d calls", n)
	}
}

func TestALineThatIsNotTheIndexedOneIsStale(t *testing.T) {
	log, path := newLog(t)
	call(t, log, "read_file", "alice", auditlog.Success)
	x := openIndex(t, path)
	update(t, x, path)
	e := entries(t, x, Filter{})[0]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	read := func(data []byte) (bool, error) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var lines Lines
		defer lines.Close()
		_, _, changed, err := lines.Read(nil, &e.Place)
		return changed, err
	}
	var stale *StaleError
	if _, err := read(data[:e.Pos+5]); !errors.As(err, &stale) || stale.Line != e.Line || stale.Path != path {
		t.Errorf("cut: %v", err)
	}
	if changed, err := read(append([]byte("\n"), data...)); !changed && !errors.As(err, &stale) {
		t.Errorf("shifted: %v %v", changed, err)
	}
	if _, err := read(slices.Concat(data[:e.Pos], data)); !errors.As(err, &stale) {
		t.Errorf("another record: %v", err)
	}
	if changed, err := read(bytes.ReplaceAll(data, []byte("desktop"), []byte("laptop1"))); err != nil || !changed {
		t.Errorf("edited: %v %v", changed, err)
	}
}

func TestTextsAreCutAtACharacter(t *testing.T) {
	long := `"` + strings.Repeat("x", maxText-1) + `üü"`
	if got := text([]byte(long)); len(got) != maxText-1 {
		t.Errorf("%d bytes", len(got))
	}
	if got := text([]byte(`{"$c":"x"}`)); got != "" {
		t.Errorf("a commitment: %q", got)
	}
	id := auditlog.NewOperationID()
	if got := operationText(operationKey(id)); got != id {
		t.Errorf("%s became %s", id, got)
	}
}
