package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// watcher follows a log that grows, is rotated, cut or replaced, or does not
// exist yet. It takes no lock.
type watcher struct {
	path   string
	file   logView // nil: not there
	offset int64   // behind the last whole line
	line   func([]byte)

	segment  uint64 // number of the file, as its first record says
	numbered bool
}

func newWatcher(path string, file logView, line func([]byte)) *watcher {
	w := &watcher{path: path, file: file, line: line}
	w.number()
	return w
}

const pollInterval = 150 * time.Millisecond

// run goes on until ctx ends or stop says so.
func (w *watcher) run(ctx context.Context, stop func() bool) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !stop() {
		if err := w.poll(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// poll hands on what is new.
func (w *watcher) poll() error {
	if w.file != nil {
		if err := w.read(); err != nil {
			return err
		}
	}
	now, err := os.Stat(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if w.file != nil {
		if same, err := w.file.Is(now); err != nil || same {
			return err
		}
	}
	return w.turn()
}

// turn goes over to the file that is at the path now, by way of the segments
// that were closed meanwhile.
func (w *watcher) turn() error {
	f, err := openView(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if w.file != nil {
		// What the old file got since it was read belongs to it.
		if err := w.read(); err != nil {
			return errors.Join(err, f.Close())
		}
		was, numbered := w.segment, w.numbered
		w.close()
		next := watcher{path: w.path, file: f}
		next.number()
		if numbered && next.numbered {
			if err := w.between(was, next.segment); err != nil {
				return errors.Join(err, f.Close())
			}
		}
	}
	w.file, w.offset = f, 0
	w.number()
	return w.read()
}

// between hands on the segments whose numbers lie between two.
func (w *watcher) between(from, to uint64) error {
	names, err := segmentsOf(w.path)
	if err != nil {
		return err
	}
	for _, name := range names {
		_, n, _, _, _ := auditlog.SplitArchiveName(filepath.Base(name))
		if n <= from || n >= to {
			continue
		}
		r, err := (segmentLimits{most: defaultMaxSegment}).open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return err
		}
		_, err = w.lines(r)
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	return nil
}

// number notes the number of the file.
func (w *watcher) number() {
	w.numbered = false
	if w.file == nil {
		return
	}
	line, err := auditlog.NewReader(io.NewSectionReader(w.file, 0, 1<<62), 0).Next()
	if err != nil {
		return
	}
	if r, fault := auditlog.ParseRecord(line); fault == auditlog.LineOK {
		w.segment, w.numbered = r.Number("segment")
	}
}

// read hands on the whole lines behind the offset.
func (w *watcher) read() error {
	size, err := w.file.Size()
	if err != nil {
		return err
	}
	if size < w.offset {
		w.offset = 0
	}
	if !w.numbered && w.offset == 0 {
		w.number()
	}
	n, err := w.lines(io.NewSectionReader(w.file, w.offset, size-w.offset))
	w.offset += n
	return err
}

// lines hands on whole lines and returns their length.
func (w *watcher) lines(from io.Reader) (int64, error) {
	r := auditlog.NewReader(from, 0)
	for {
		line, err := r.Next()
		switch {
		case err == io.EOF:
			return r.Consumed(), nil
		case errors.Is(err, auditlog.ErrLineTooLong):
			continue
		case err != nil:
			return r.Consumed(), err
		}
		w.line(line)
	}
}

func (w *watcher) close() {
	if w.file != nil {
		// It was only read from.
		_ = w.file.Close()
		w.file = nil
	}
}
