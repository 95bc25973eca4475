package auditlog

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
)

// tileWriter appends leaves to tiles. It holds the rightmost tile of each
// level, at most 8 × 8 KiB.
type tileWriter struct {
	t      *Tiles
	size   uint64
	levels [tileLevels][]Hash
	dirty  [tileLevels]bool
	// written are the files to be made durable, if the tiles are to be.
	written []string
}

// writer goes on behind the first size leaves.
func (t *Tiles) writer(size uint64) (*tileWriter, error) {
	w := &tileWriter{t: t, size: size}
	for level := range tileLevels {
		n := size >> (tileHeight * level)
		width := int(n % tileWidth)
		if width == 0 {
			continue
		}
		data, err := t.read(level, n/tileWidth, width)
		if err != nil {
			return nil, err
		}
		for i := range width {
			w.levels[level] = append(w.levels[level], Hash(data[i*HashSize:(i+1)*HashSize]))
		}
	}
	return w, nil
}

// append adds one leaf, and writes the tiles that it fills.
func (w *tileWriter) append(leaf Hash) error {
	w.size++
	for level := range tileLevels {
		w.levels[level] = append(w.levels[level], leaf)
		w.dirty[level] = true
		if len(w.levels[level]) < tileWidth {
			return nil
		}
		// The tile's number: those of this level before it.
		n := w.size>>(tileHeight*(level+1)) - 1
		if err := w.write(level, n, ""); err != nil {
			return err
		}
		var tree Range
		for _, h := range w.levels[level] {
			tree.Append(h)
		}
		leaf = tree.Root()
		w.levels[level], w.dirty[level] = w.levels[level][:0], false
	}
	return nil
}

// flush writes the tiles that are not full.
func (w *tileWriter) flush() error {
	for level := range tileLevels {
		width := len(w.levels[level])
		if !w.dirty[level] || width == 0 {
			continue
		}
		n := w.size >> (tileHeight * (level + 1))
		if err := w.write(level, n, strconv.Itoa(width)); err != nil {
			return err
		}
		w.dirty[level] = false
	}
	return nil
}

// write writes the tile of a level and removes the narrower ones it replaces.
func (w *tileWriter) write(level int, n uint64, width string) error {
	data := make([]byte, 0, len(w.levels[level])*HashSize)
	for _, h := range w.levels[level] {
		data = append(data, h[:]...)
	}
	full := filepath.Join(w.t.dir, tilePath(level, n))
	narrow := full + ".p"
	path := full
	if width != "" {
		path = filepath.Join(narrow, width)
	}
	if err := w.t.writeFile(path, data); err != nil {
		return err
	}
	if w.t.sync {
		w.written = append(w.written, path)
	}
	names, err := w.t.fs.ReadDir(narrow)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		have, err := strconv.Atoi(name)
		if err != nil || width != "" && have >= len(w.levels[level]) {
			continue
		}
		if err := w.t.fs.Remove(filepath.Join(narrow, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if width == "" {
		// Another process may just be writing into it.
		_ = w.t.fs.Remove(narrow)
	}
	return nil
}
