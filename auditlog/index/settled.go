package index

import (
	"os"
	"time"
)

// fileState is what tells whether a file changed, without opening it.
type fileState struct {
	id   uint64
	size int64
	mod  time.Time
}

func stateOf(path string) (fileState, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}, err
	}
	return fileState{fileID(info), info.Size(), info.ModTime()}, nil
}

// asBefore finds a file that was indexed to its end by this Index, and has not
// changed since: the closed segments of a log need not be opened each time.
// Databases are, since theirs is not the only file that is written to.
func (x *Index) asBefore(path string) (part, bool) {
	x.seenMu.Lock()
	p, ok := x.seen[path]
	x.seenMu.Unlock()
	if !ok {
		return part{}, false
	}
	now, err := stateOf(path)
	return p, err == nil && now == p.was
}

func (x *Index) remember(parts []part) {
	seen := make(map[string]part, len(parts))
	for _, p := range parts {
		if _, database := p.s.(*database); database || p.id == 0 {
			continue
		}
		p.s = nil
		seen[p.path] = p
	}
	x.seenMu.Lock()
	defer x.seenMu.Unlock()
	x.seen = seen
}
