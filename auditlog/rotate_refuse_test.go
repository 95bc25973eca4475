package auditlog_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// interrupted makes a log of three files as crashes can leave it: the state is
// that of the first file.
func interrupted(t *testing.T) (path string, s setup) {
	t.Helper()
	path = quickPath(t)
	s = rotating(auditlog.Rotation{Size: 4 << 10})
	l := s.open(t, path)
	if _, err := l.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	state := read(t, path+".state")
	for len(archives(t, path)) < 2 {
		call(t, l)
	}
	closeLog(t, l)
	write(t, path+".state", state)
	return path, s
}

func TestAStateOfAClosedSegmentIsFollowedToTheEnd(t *testing.T) {
	path, s := interrupted(t)
	l := s.open(t, path)
	call(t, l)
	closeLog(t, l)
	checkAll(t, path)
}

func TestEachStepOfARotationMayBeTheLast(t *testing.T) {
	for name, crash := range map[string]func(t *testing.T, path string){
		"the file is closed": func(t *testing.T, path string) {
			remove(t, path)
			rename(t, archives(t, path)[1], path)
			remove(t, filepath.Join(filepath.Dir(path), "manifest.json"))
		},
		"the manifest is in its place": func(t *testing.T, path string) {
			remove(t, path)
			rename(t, archives(t, path)[1], path)
		},
		"the old file has its archive name": func(t *testing.T, path string) { remove(t, path) },
		"the old file is torn behind its end": func(t *testing.T, path string) {
			remove(t, path)
			rename(t, archives(t, path)[1], path)
			write(t, path, append(read(t, path), `{"torn`...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, s := interrupted(t)
			crash(t, path)
			l := s.open(t, path)
			call(t, l)
			closeLog(t, l)
			list := checkAll(t, path)
			if list[len(list)-1].seal.Seq == 0 || len(archives(t, path)) < 2 {
				t.Errorf("the log: %s", allKinds(t, path))
			}
			closeLog(t, s.open(t, path))
			checkAll(t, path)
		})
	}
}

func TestAStartRefusesSegmentsThatAreNotWhatTheStateSays(t *testing.T) {
	// The state is that of the last file, as after an orderly end.
	last := func(t *testing.T) (string, setup) {
		path, s := interrupted(t)
		closeLog(t, s.open(t, path))
		return path, s
	}
	for _, row := range []struct {
		name    string
		make    func(t *testing.T) (string, setup)
		do      func(t *testing.T, path string)
		finding string
	}{
		{"the log is gone", last, func(t *testing.T, path string) { remove(t, path) }, "log_missing"},
		{"the state is gone", last, func(t *testing.T, path string) { remove(t, path+".state") }, "state_missing"},
		{"log and state are gone", last, func(t *testing.T, path string) {
			for _, name := range []string{path, path + ".state", path + ".checkpoint"} {
				remove(t, name)
			}
		}, "log_missing"},
		{"the log is an older segment", last, func(t *testing.T, path string) { write(t, path, read(t, archives(t, path)[0])) }, "state_invalid"},
		{"the state's segment is gone", interrupted, func(t *testing.T, path string) { remove(t, archives(t, path)[0]) }, "log_missing"},
		{"a segment on the way is gone", interrupted, func(t *testing.T, path string) { remove(t, archives(t, path)[1]) }, "log_replaced"},
		{"a segment on the way is cut", interrupted, func(t *testing.T, path string) {
			name := archives(t, path)[1]
			data := read(t, name)
			write(t, name, data[:bytes.LastIndexByte(data[:len(data)-1], '\n')+1])
		}, "segment_unclosed"},
		{"a segment on the way is torn", interrupted, func(t *testing.T, path string) {
			name := archives(t, path)[0]
			data := read(t, name)
			write(t, name, data[:len(data)-20])
		}, "torn_segment"},
		{"a segment on the way is edited", interrupted, func(t *testing.T, path string) {
			name := archives(t, path)[1]
			write(t, name, bytes.Replace(read(t, name), []byte("desktop"), []byte("desktoq"), 1))
		}, "content_modified"},
		{"the segments are exchanged", interrupted, func(t *testing.T, path string) {
			names := archives(t, path)
			a, b := read(t, names[0]), read(t, names[1])
			write(t, names[0], b)
			write(t, names[1], a)
		}, "state_invalid"},
		{"a foreign file follows", interrupted, func(t *testing.T, path string) {
			other := quickPath(t)
			l := setup{change: func(c *auditlog.Config) { c.Secret = []byte("another secret of the tests, 77") }}.open(t, other)
			call(t, l)
			closeLog(t, l)
			write(t, path, read(t, other))
		}, "mac_invalid"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path, s := row.make(t)
			row.do(t, path)
			before := folder(t, path)
			l, err := auditlog.Open(context.Background(), s.config(t, path))
			if err == nil {
				closeLog(t, l)
				t.Fatalf("it was opened: %s", allKinds(t, path))
			}
			refusedAs(t, err, row.finding)
			if after := folder(t, path); after != before {
				t.Errorf("a refused start changed the folder:\n%s\n%s", before, after)
			}
			if err := auditlog.Recover(context.Background(), s.config(t, path), "a test did it", "tester"); err != nil {
				t.Fatalf("Recover: %v", err)
			}
			l = s.open(t, path)
			call(t, l)
			closeLog(t, l)
			// The files keep distinct numbers.
			numbers := map[uint64]bool{}
			for _, name := range archives(t, path) {
				_, n, _, _, _ := auditlog.SplitArchiveName(filepath.Base(name))
				if numbers[n] {
					t.Errorf("two files have the number %d: %v", n, archives(t, path))
				}
				numbers[n] = true
			}
		})
	}
}

// folder describes the files of a log that a start may not change.
func folder(t *testing.T, path string) string {
	t.Helper()
	var b bytes.Buffer
	for _, name := range append(archives(t, path), path, path+".state", filepath.Join(filepath.Dir(path), "manifest.json")) {
		data, err := os.ReadFile(name)
		b.WriteString(filepath.Base(name))
		if err == nil {
			b.WriteString(" " + auditlog.LeafHash(data).String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}
