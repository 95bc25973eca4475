package jsonl

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// CompressedSuffix ends the file name of a compressed segment.
const CompressedSuffix = ".gz"

// Compress implements auditlog.SegmentStore.
func (s *Store) Compress(ctx context.Context, a auditlog.Archive, want auditlog.Hash) (err error) {
	from, tmp := s.beside(a.Name), s.temporary("archive")
	in, err := s.openRegular(from, os.O_RDONLY)
	if err != nil {
		return err
	}
	info, err := in.Stat()
	if err == nil {
		err = s.compressTo(tmp, &cancelled{ctx, io.NewSectionReader(in, 0, info.Size())})
	}
	if err = errors.Join(err, in.Close()); err == nil {
		err = s.compare(tmp, info.Size(), want)
	}
	if err != nil {
		return errors.Join(err, s.removeTemporary("archive", s.run))
	}
	return nil
}

// UseCompressed implements auditlog.SegmentStore.
func (s *Store) UseCompressed(a auditlog.Archive) error {
	from := s.beside(a.Name)
	if _, err := s.fs.Lstat(from); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return errors.Join(err, s.removeTemporary("archive", s.run))
	}
	if err := s.fs.Rename(s.temporary("archive"), from+CompressedSuffix); err != nil {
		return err
	}
	if err := s.fs.SyncDir(s.dir()); err != nil {
		return err
	}
	return s.fs.Remove(from)
}

func (s *Store) compressTo(name string, in io.Reader) error {
	out, err := s.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	buffer := bufio.NewWriterSize(&fileWriter{f: out}, 256<<10)
	z := gzip.NewWriter(buffer)
	_, err = io.CopyBuffer(z, in, make([]byte, 256<<10))
	err = errors.Join(err, z.Close(), buffer.Flush())
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// compare reads a compressed copy back.
func (s *Store) compare(name string, size int64, want auditlog.Hash) error {
	f, err := s.openRegular(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	var got auditlog.Hash
	if err == nil {
		h := sha256.New()
		var z *gzip.Reader
		if z, err = gzip.NewReader(bufio.NewReaderSize(io.NewSectionReader(f, 0, info.Size()), 256<<10)); err == nil {
			_, err = io.Copy(h, io.LimitReader(z, size+1))
			got = auditlog.Hash(h.Sum(nil))
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the compressed copy of %s cannot be read back as what it was made of; the segment stays as it is", name)
	}
	return nil
}

// cancelled is a reader that ends with its context.
type cancelled struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// fileWriter writes a file from its beginning.
type fileWriter struct {
	f  fsys.File
	at int64
}

func (w *fileWriter) Write(p []byte) (int, error) {
	n, err := w.f.WriteAt(p, w.at)
	w.at += int64(n)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}
