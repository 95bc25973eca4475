package jsonl

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// closedSuffix follows a log's name in that of a closed segment: number, time.
var closedSuffix = regexp.MustCompile(`^\.(\d{6,18})\.\d{8}T\d{6}Z$`)

// Sources lists the files of the log at path: its closed segments by their
// number, then the file that is written to. It may run beside a writer.
func Sources(path string) ([]auditlog.Source, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	type segment struct {
		number int
		name   string
	}
	var closed []segment
	base := filepath.Base(path)
	active := false
	for _, e := range entries {
		name := e.Name()
		if name == base {
			active = true
			continue
		}
		if len(name) < len(base) || name[:len(base)] != base {
			continue
		}
		if m := closedSuffix.FindStringSubmatch(name[len(base):]); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil {
				closed = append(closed, segment{n, name})
			}
		}
	}
	slices.SortFunc(closed, func(a, b segment) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.name, b.name))
	})
	var out []auditlog.Source
	for _, s := range closed {
		out = append(out, auditlog.FileSource(filepath.Join(filepath.Dir(path), s.name)))
	}
	if active {
		out = append(out, auditlog.FileSource(path))
	}
	return out, nil
}
