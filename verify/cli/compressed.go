package cli

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// defaultMaxSegment is what a compressed segment may give, in bytes, if no
// manifest says how long it is: a small file can be made to give terabytes.
const defaultMaxSegment = 4 << 30

// segmentLimits bounds what compressed segments may give.
type segmentLimits struct {
	most  int64            // where nothing is known
	known map[string]int64 // by file name without the suffix
}

// newSegmentLimits takes the lengths that a manifest states.
func newSegmentLimits(most int64, manifest []byte) segmentLimits {
	l := segmentLimits{most: most, known: map[string]int64{}}
	if m, err := auditlog.ParseManifest(manifest); err == nil {
		for _, s := range m.Segments {
			l.known[s.File] = s.Bytes
		}
	}
	return l
}

// open opens a log file, decompressing a compressed segment. A segment that was
// compressed since it was listed is found under its new name.
func (l segmentLimits) open(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && isSegment(path) && !strings.HasSuffix(path, jsonl.CompressedSuffix) {
		if z, again := os.Open(path + jsonl.CompressedSuffix); again == nil {
			f, err, path = z, nil, path+jsonl.CompressedSuffix
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if !strings.HasSuffix(path, jsonl.CompressedSuffix) {
		return f, nil
	}
	z, err := gzip.NewReader(bufio.NewReaderSize(f, 256<<10))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s is no gzip file: %w", path, err), f.Close())
	}
	most, known := l.known[strings.TrimSuffix(filepath.Base(path), jsonl.CompressedSuffix)]
	if !known {
		most = l.most
	}
	return &inflated{path: path, f: f, z: z, left: most, most: most, known: known}, nil
}

// inflated reads a compressed segment up to a limit.
type inflated struct {
	path  string
	f     *os.File
	z     *gzip.Reader
	left  int64
	most  int64
	known bool
}

func (r *inflated) Read(p []byte) (int, error) {
	n, err := r.z.Read(p)
	if r.left -= int64(n); r.left < 0 {
		if r.known {
			return 0, fmt.Errorf("%s gives more than the %d bytes that the manifest says the segment has: it is not what was written", r.path, r.most)
		}
		return 0, fmt.Errorf("%s gives more than %d bytes, the limit for a compressed segment; if it is that large, raise --max-segment", r.path, r.most)
	}
	return n, err
}

func (r *inflated) Close() error { return errors.Join(r.z.Close(), r.f.Close()) }

// isSegment reports whether a path has the name of a closed segment.
func isSegment(path string) bool {
	_, _, _, _, ok := auditlog.SplitArchiveName(filepath.Base(path))
	return ok
}

// sortSegments sorts the file names of closed segments by number.
func sortSegments(names []string) {
	number := func(name string) uint64 {
		_, n, _, _, _ := auditlog.SplitArchiveName(name)
		return n
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(number(a), number(b)), cmp.Compare(a, b))
	})
}
