package auditlog_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// refusedAs requires that a start was refused, for the given reason and with
// the remedy in the message.
func refusedAs(t testing.TB, err error, finding string) {
	t.Helper()
	var refused *auditlog.RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("not refused: %v", err)
	}
	if refused.Finding != finding || !strings.Contains(err.Error(), finding) {
		t.Errorf("finding %s, want %s: %v", refused.Finding, finding, err)
	}
	if !strings.Contains(err.Error(), "--accept-chain-break") || !strings.Contains(err.Error(), refused.Path) {
		t.Errorf("the message names no remedy: %v", err)
	}
}

// lines cuts a log into lines with their LF.
func lines(data []byte) [][]byte {
	return bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}

func TestAStartOnATamperedLogIsRefused(t *testing.T) {
	// The log has genesis, start, intent, outcome, checkpoint, which its state
	// covers, then intent, outcome, intent.
	path := quickPath(t)
	data := crashed(t, path)
	covered := int(stateOf(t, path+".state").Offset)
	other := quickPath(t)
	otherLog := crashed(t, other)
	stranger := quickPath(t)
	l := setup{change: func(c *auditlog.Config) { c.Name = "audit.example/stranger" }}.open(t, stranger)
	call(t, l)
	closeLog(t, l)
	earlier := quickPath(t)
	l = setup{}.open(t, earlier)
	closeLog(t, l)
	firstState := read(t, earlier+".state")

	flip := func(b []byte, at int) []byte { b = bytes.Clone(b); b[at] ^= 1; return b }
	tail := lines(data[covered:])
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	cases := []struct {
		name, finding string
		do            func(t *testing.T, to string)
	}{
		{"shorter than the state", "tail_truncated", func(t *testing.T, to string) { write(t, to, data[:covered-1]) }},
		{"cut at an earlier line", "tail_truncated", func(t *testing.T, to string) { write(t, to, join(lines(data)[:3]...)) }},
		{"emptied", "empty_log", func(t *testing.T, to string) { write(t, to, nil) }},
		{"removed", "log_missing", func(t *testing.T, to string) { remove(t, to) }},
		{"state removed", "state_missing", func(t *testing.T, to string) { remove(t, to+".state") }},
		{"state removed, log emptied", "state_missing", func(t *testing.T, to string) { remove(t, to+".state"); write(t, to, nil) }},
		{"both removed, checkpoint left", "log_missing", func(t *testing.T, to string) {
			write(t, to+".checkpoint", read(t, path+".checkpoint"))
			remove(t, to+".state")
			remove(t, to)
		}},
		{"replaced by another log of the name", "state_invalid", func(t *testing.T, to string) { write(t, to, otherLog) }},
		{"replaced by a log of another name", "state_invalid", func(t *testing.T, to string) { write(t, to, join(read(t, stranger), read(t, stranger))) }},
		{"state of another log", "state_invalid", func(t *testing.T, to string) { write(t, to+".state", read(t, stranger+".state")) }},
		{"older state the log does not continue", "state_invalid", func(t *testing.T, to string) { write(t, to+".state", firstState) }},
		{"state with a wrong CRC", "state_invalid", func(t *testing.T, to string) {
			write(t, to+".state", flip(read(t, to+".state"), 40))
		}},
		{"state without a member", "state_invalid", func(t *testing.T, to string) {
			doc, _, _ := bytes.Cut(read(t, to+".state"), []byte("\n"))
			write(t, to+".state", auditlog.WithChecksum(bytes.Replace(doc, []byte(`,"epoch":0`), nil, 1)))
		}},
		{"state with a member of another case", "state_invalid", func(t *testing.T, to string) {
			doc, _, _ := bytes.Cut(read(t, to+".state"), []byte("\n"))
			write(t, to+".state", auditlog.WithChecksum(bytes.Replace(doc, []byte(`"epoch"`), []byte(`"Epoch"`), 1)))
		}},
		{"state empty", "state_invalid", func(t *testing.T, to string) { write(t, to+".state", nil) }},
		{"state a link", "state_invalid", func(t *testing.T, to string) {
			if err := os.Rename(to+".state", to+".elsewhere"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to+".elsewhere", to+".state"); err != nil {
				t.Fatal(err)
			}
		}},
		{"log a link", "log_replaced", func(t *testing.T, to string) {
			if err := os.Rename(to, to+".elsewhere"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to+".elsewhere", to); err != nil {
				t.Fatal(err)
			}
		}},
		{"first record edited", "content_modified", func(t *testing.T, to string) { write(t, to, flip(data, 20)) }},
		{"genesis removed", "genesis_missing", func(t *testing.T, to string) {
			write(t, to, join(append(lines(data)[1:], otherLog)...))
		}},
		{"record behind the state edited", "content_modified", func(t *testing.T, to string) {
			write(t, to, flip(data, covered+20))
		}},
		{"record behind the state removed", "seq_gap", func(t *testing.T, to string) {
			write(t, to, join(data[:covered], tail[1], tail[2], []byte("\n")))
		}},
		{"records behind the state swapped", "seq_gap", func(t *testing.T, to string) {
			write(t, to, join(data[:covered], tail[1], tail[0], tail[2], []byte("\n")))
		}},
		{"record behind the state repeated", "seq_gap", func(t *testing.T, to string) {
			write(t, to, join(data[:covered], tail[0], tail[0]))
		}},
		{"a good line after a bad one", "malformed_line", func(t *testing.T, to string) {
			write(t, to, join(data[:covered], []byte("rubbish\n"), tail[0]))
		}},
		{"last record edited", "content_modified", func(t *testing.T, to string) {
			write(t, to, flip(data, len(data)-len(tail[2])+20))
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			to := snapshot(t, path, data)
			c.do(t, to)
			before := tree(t, to)
			_, err := auditlog.Open(context.Background(), setup{}.config(t, to))
			refusedAs(t, err, c.finding)
			if after := tree(t, to); after != before {
				t.Errorf("the refused start changed files:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

func remove(t testing.TB, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

// tree lists what lies beside a log, with sizes and contents, without the lock.
func tree(t testing.TB, path string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, name := range names {
		if strings.HasSuffix(name, ".lock") || strings.HasSuffix(name, ".runs") || strings.HasSuffix(name, "-wal") || strings.HasSuffix(name, "-shm") {
			continue
		}
		out.WriteString(filepath.Base(name) + " " + string(read(t, name)) + "\n")
	}
	return out.String()
}

func TestTheWrongKeyIsRefused(t *testing.T) {
	path := quickPath(t)
	l := setup{}.open(t, path)
	call(t, l)
	closeLog(t, l)
	_, err := auditlog.Open(context.Background(), setup{change: func(c *auditlog.Config) { c.Secret = []byte("another secret of the tests") }}.config(t, path))
	refusedAs(t, err, "mac_invalid")
	stranger, err := auditlog.GenerateKeyring("k1", "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = auditlog.Open(context.Background(), setup{change: func(c *auditlog.Config) { c.Keys = stranger }}.config(t, path))
	refusedAs(t, err, "checkpoint_sig_invalid")
	closeLog(t, setup{}.open(t, path))
	check(t, path)
}

func TestALogTamperedWithWhileOpenIsNotContinued(t *testing.T) {
	cases := map[string]struct {
		finding string
		do      func(t *testing.T, path string)
	}{
		"shortened": {"tail_truncated", func(t *testing.T, path string) {
			if err := os.Truncate(path, 100); err != nil {
				t.Fatal(err)
			}
		}},
		"removed": {"log_replaced", func(t *testing.T, path string) { remove(t, path) }},
		"replaced by a copy": {"log_replaced", func(t *testing.T, path string) {
			data := read(t, path)
			remove(t, path)
			write(t, path, data)
		}},
		"foreign growth": {"seq_gap", func(t *testing.T, path string) {
			data := read(t, path)
			write(t, path, append(data, lines(data)[1]...))
		}},
		"lock replaced": {"lock_replaced", func(t *testing.T, path string) {
			remove(t, path+".lock")
			write(t, path+".lock", nil)
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := quickPath(t)
			l := setup{}.open(t, path)
			call(t, l)
			if _, err := l.Checkpoint(context.Background()); err != nil {
				t.Fatal(err)
			}
			c.do(t, path)
			_, err := l.Begin(context.Background(), anIntent())
			if !errors.Is(err, auditlog.ErrUnavailable) {
				t.Fatalf("Begin: %v", err)
			}
			refusedAs(t, err, c.finding)
			if s := l.Status(); s.Healthy || !strings.Contains(s.Err, c.finding) {
				t.Errorf("status %+v", s)
			}
			state := read(t, path+".state")
			if err := l.Close(context.Background()); err == nil {
				t.Error("Close of a refused log reports nothing")
			}
			if !bytes.Equal(state, read(t, path+".state")) {
				t.Error("the state of a refused log was changed")
			}
		})
	}
}

func TestAnInterruptedWriteOfAnotherProcessIsMovedAside(t *testing.T) {
	path := quickPath(t)
	l := setup{}.open(t, path)
	call(t, l)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"audit_operation_id":"019e5f21`); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	call(t, l)
	closeLog(t, l)
	list := check(t, path)
	if count(list, "recovered") != 1 {
		t.Errorf("kinds %v", kinds(t, path))
	}
	if torn, _ := filepath.Glob(path + ".torn-*"); len(torn) != 1 {
		t.Errorf("torn files %v", torn)
	}
}
