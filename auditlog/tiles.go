package auditlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// Tiles keeps the leaf hashes of one log, and the tree above them, in files of
// 256 hashes (C2SP tlog-tiles: tile/<level>/<number>[.p/<width>]), 32.1 bytes a
// record. Proofs are made from them, also of records whose file is gone. Beside
// the tiles lies `checkpoint`, the signed checkpoint up to which they go.
//
// Nothing in the folder is trusted: what is read is checked against the root
// of a signed checkpoint. One Tiles is not safe for concurrent use; several,
// also of several processes, may grow one folder, since they write the same.
type Tiles struct {
	fs   fsys.FS
	dir  string
	base string // a further folder that is only read, or ""
	sync bool
}

const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight
	tileLevels = 8 // 64 bits of index
)

// NewTiles returns the tiles in a folder, which is made when they grow. files
// may be nil for those of the operating system. What it writes is durable when
// Grow returns.
func NewTiles(files fsys.FS, dir string) *Tiles {
	if files == nil {
		files = fsys.OS()
	}
	return &Tiles{fs: files, dir: dir, sync: true}
}

// TilesDir is where the tiles of a log lie: a folder beside the log, with one
// folder in it for each incarnation.
func TilesDir(logPath, origin string) string {
	base := logPath
	if filepath.Ext(base) == ".jsonl" || filepath.Ext(base) == ".db" {
		base = base[:len(base)-len(filepath.Ext(base))]
	}
	_, n, _ := splitOrigin(origin)
	return filepath.Join(base+".tiles", "i"+strconv.Itoa(n))
}

// Leaves gives the leaf hashes from one seq up to another, in order.
type Leaves func(ctx context.Context, from, to uint64, each func(leaf Hash) error) error

// ErrTreeDiffers is returned, wrapped, when leaves do not give the root of a
// checkpoint.
var ErrTreeDiffers = errors.New("the log's records are not those that the checkpoint states")

// Head is the checkpoint up to which the tiles go. It is the zero TreeHead if
// there are none.
func (t *Tiles) Head() (TreeHead, error) {
	note, err := t.readFile(filepath.Join(t.dir, "checkpoint"), maxNoteBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return TreeHead{}, nil
	}
	if err != nil {
		return TreeHead{}, err
	}
	if head, err := ReadTreeHead(note); err == nil {
		return head, nil
	}
	// The tiles are made anew: a cut file is no reason to stop.
	return TreeHead{}, nil
}

// Grow adds the leaves up to a signed checkpoint, whose signature the caller
// has checked, and compares the tree with its root. Tiles that are damaged, or
// of another log, are made anew if leaves gives all of them. If the tiles go
// further already, only the roots are compared.
func (t *Tiles) Grow(ctx context.Context, note []byte, leaves Leaves) error {
	head, err := ReadTreeHead(note)
	if err != nil {
		return err
	}
	have, err := t.Head()
	if err != nil {
		return err
	}
	from := have.Size
	if have.Origin != head.Origin {
		from = 0
	}
	err = t.grow(ctx, min(from, head.Size), head, leaves)
	if errors.Is(err, ErrTreeDiffers) && from > 0 {
		err = t.grow(ctx, 0, head, leaves)
	}
	if err != nil || from >= head.Size {
		return err
	}
	return t.mark(note)
}

// Remake makes the tiles anew from the first leaf on, for tiles that turned out
// to be damaged.
func (t *Tiles) Remake(ctx context.Context, note []byte, leaves Leaves) error {
	head, err := ReadTreeHead(note)
	if err == nil {
		err = t.grow(ctx, 0, head, leaves)
	}
	if err != nil {
		return err
	}
	return t.mark(note)
}

func (t *Tiles) grow(ctx context.Context, from uint64, head TreeHead, leaves Leaves) error {
	w, err := t.writer(from)
	if err == nil && from < head.Size {
		err = leaves(ctx, from, head.Size, w.append)
	}
	if err == nil {
		err = w.flush()
	}
	if err != nil {
		if from > 0 && errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: a tile is missing in %s", ErrTreeDiffers, t.dir)
		}
		return err
	}
	if w.size != head.Size {
		return fmt.Errorf("%w: there are %d of %d", ErrTreeDiffers, w.size, head.Size)
	}
	root, err := t.rootAt(head.Size)
	if err != nil {
		return err
	}
	if root != head.Root {
		return fmt.Errorf("%w (size %d)", ErrTreeDiffers, head.Size)
	}
	return t.settle(w.written)
}

// Tree gives the hashes of the tree of a trusted checkpoint. Reads fail with
// ErrTreeDiffers where the tiles are not those of that tree.
func (t *Tiles) Tree(head TreeHead) Tree { return Tree{t, head} }

// Tree makes proofs from tiles, for the tree of one checkpoint.
type Tree struct {
	tiles *Tiles
	head  TreeHead
}

// Inclusion proves that the tree has a record at an index.
func (t Tree) Inclusion(index uint64) ([]Hash, error) {
	if index >= t.head.Size {
		return nil, fmt.Errorf("the checkpoint covers %d records, not record %d", t.head.Size, index)
	}
	path, err := tlog.ProveRecord(int64(t.head.Size), int64(index), t.hashes())
	return hashesOf(path), t.explain(err)
}

// Consistency proves that the tree begins with the first old records.
func (t Tree) Consistency(old uint64) ([]Hash, error) {
	if old > t.head.Size {
		return nil, fmt.Errorf("the checkpoint covers %d records, fewer than %d", t.head.Size, old)
	}
	if old == 0 || old == t.head.Size {
		return nil, nil
	}
	path, err := tlog.ProveTree(int64(t.head.Size), int64(old), t.hashes())
	return hashesOf(path), t.explain(err)
}

// RootAt is the root over the first size records.
func (t Tree) RootAt(size uint64) (Hash, error) {
	switch {
	case size == t.head.Size:
		return t.head.Root, nil
	case size > t.head.Size:
		return Hash{}, fmt.Errorf("the checkpoint covers %d records, fewer than %d", t.head.Size, size)
	}
	root, err := tlog.TreeHash(int64(size), t.hashes())
	return Hash(root), t.explain(err)
}

func (t Tree) hashes() tlog.HashReader {
	return tlog.TileHashReader(tlog.Tree{N: int64(t.head.Size), Hash: tlog.Hash(t.head.Root)}, tileReader{t.tiles})
}

func (t Tree) explain(err error) error {
	if err == nil || errors.As(err, new(*fs.PathError)) {
		return err
	}
	return fmt.Errorf("%w (size %d): %w", ErrTreeDiffers, t.head.Size, err)
}

func hashesOf(path []tlog.Hash) []Hash {
	out := make([]Hash, len(path))
	for i, h := range path {
		out[i] = Hash(h)
	}
	return out
}

// rootAt is the root of the tiles as they are.
func (t *Tiles) rootAt(size uint64) (Hash, error) {
	root, err := tlog.TreeHash(int64(size), tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, x := range indexes {
			tile := tlog.TileForIndex(tileHeight, x)
			data, err := t.read(tile.L, uint64(tile.N), tile.W)
			if err != nil {
				return nil, err
			}
			if out[i], err = tlog.HashFromTile(tile, data, x); err != nil {
				return nil, err
			}
		}
		return out, nil
	}))
	return Hash(root), err
}

// tileReader implements tlog.TileReader.
type tileReader struct{ t *Tiles }

func (tileReader) Height() int { return tileHeight }

func (r tileReader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	out := make([][]byte, len(tiles))
	for i, tile := range tiles {
		var err error
		if out[i], err = r.t.read(tile.L, uint64(tile.N), tile.W); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (tileReader) SaveTiles([]tlog.Tile, [][]byte) {}

// read returns the first width hashes of a tile.
func (t *Tiles) read(level int, n uint64, width int) ([]byte, error) {
	data, err := t.readIn(t.dir, level, n, width)
	if errors.Is(err, fs.ErrNotExist) && t.base != "" {
		data, err = t.readIn(t.base, level, n, width)
	}
	return data, err
}

func (t *Tiles) readIn(dir string, level int, n uint64, width int) ([]byte, error) {
	path := filepath.Join(dir, tilePath(level, n))
	data, err := t.readFile(path, tileWidth*HashSize)
	if errors.Is(err, fs.ErrNotExist) {
		widths, listErr := t.fs.ReadDir(path + ".p")
		if listErr != nil && !errors.Is(listErr, fs.ErrNotExist) {
			return nil, listErr
		}
		for _, text := range widths {
			if w, convErr := strconv.Atoi(text); convErr == nil && w >= width && w < tileWidth {
				if data, err = t.readFile(filepath.Join(path+".p", text), tileWidth*HashSize); err == nil {
					break
				}
			}
		}
	}
	if err != nil {
		return nil, err
	}
	if len(data) < width*HashSize {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	return data[:width*HashSize], nil
}

// tilePath is the path of a full tile in the folder.
func tilePath(level int, n uint64) string {
	rest := fmt.Sprintf("%03d", n%1000)
	for n /= 1000; n > 0; n /= 1000 {
		rest = fmt.Sprintf("x%03d/%s", n%1000, rest)
	}
	return filepath.FromSlash(fmt.Sprintf("tile/%d/%s", level, rest))
}

func (t *Tiles) readFile(path string, limit int64) (data []byte, err error) {
	f, err := t.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file of up to %d bytes", path, limit)
	}
	data = make([]byte, info.Size())
	n, err := f.ReadAt(data, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], err
}

// writeFile replaces a file as a whole by renaming, so that no reader sees
// half of it; its folder is made. A file that has this content already is left
// alone. It need not be on the disk afterwards: see settle.
func (t *Tiles) writeFile(path string, data []byte) error {
	if have, err := t.readFile(path, int64(len(data))); err == nil && bytes.Equal(have, data) {
		return nil
	}
	tmp := path + ".tmp-" + b64.EncodeToString(randomBytes(6))
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := t.fs.OpenFile(tmp, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = t.fs.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			f, err = t.fs.OpenFile(tmp, flags, 0o600)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = t.fs.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, t.fs.Remove(tmp))
	}
	return nil
}

// settle makes files and their places durable. Doing so once for all of them,
// not one by one, lets the system write them together.
func (t *Tiles) settle(paths []string) error {
	if !t.sync {
		return nil
	}
	dirs := map[string]bool{}
	for _, path := range paths {
		f, err := t.fs.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process has a wider one in its place
		}
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
		for dir := filepath.Dir(path); !dirs[dir] && len(dir) >= len(t.dir); dir = filepath.Dir(dir) {
			dirs[dir] = true
		}
	}
	for dir := range dirs {
		if err := t.fs.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// mark writes the checkpoint up to which the tiles go.
func (t *Tiles) mark(note []byte) error {
	path := filepath.Join(t.dir, "checkpoint")
	if err := t.writeFile(path, note); err != nil {
		return err
	}
	return t.settle([]string{path})
}
