package cli

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// lastClosed finds the last calls in the log's closed segments, from the newest
// on, until there are so many.
func (t *tailer) lastClosed(count int) (shown [][]byte, err error) {
	if count <= 0 {
		return nil, nil
	}
	names, err := segmentsOf(t.path)
	if err != nil {
		return nil, err
	}
	slices.Reverse(names)
	for _, name := range names {
		list, err := t.lastIn(name, count-len(shown))
		if errors.Is(err, fs.ErrNotExist) {
			// Deleted meanwhile; what is older is gone, too.
			return shown, nil
		}
		if err != nil {
			return nil, err
		}
		if shown = append(list, shown...); len(shown) >= count {
			break
		}
	}
	return shown, nil
}

func (t *tailer) lastIn(name string, count int) (shown [][]byte, err error) {
	if !strings.HasSuffix(name, jsonl.CompressedSuffix) {
		f, err := os.Open(name)
		if err == nil {
			shown, _, err = t.lastOf(fileView{f})
			return shown[max(len(shown)-count, 0):], errors.Join(err, f.Close())
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	r, err := (segmentLimits{most: defaultMaxSegment}).open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	lines := auditlog.NewReader(r, 0)
	for {
		line, err := lines.Next()
		switch {
		case err == io.EOF:
			return shown, nil
		case errors.Is(err, auditlog.ErrLineTooLong):
			continue
		case err != nil:
			return nil, err
		}
		if _, ok := t.render(line); !ok {
			continue
		}
		if len(shown) == count {
			shown = shown[1:]
		}
		shown = append(shown, bytes.Clone(line))
	}
}
