package jsonl

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

var _ auditlog.RewritingStore = (*Store)(nil)

// EditArchive implements auditlog.RewritingStore.
func (s *Store) EditArchive(ctx context.Context, a auditlog.Archive, edit func(line []byte) ([]byte, error)) (size int64, sum auditlog.Hash, err error) {
	in, err := s.openRegular(s.beside(a.Name), os.O_RDONLY)
	if err != nil {
		return 0, sum, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	info, err := in.Stat()
	if err != nil {
		return 0, sum, err
	}
	var from io.Reader = &cancelled{ctx, io.NewSectionReader(in, 0, info.Size())}
	if a.Compressed {
		if from, err = gzip.NewReader(bufio.NewReaderSize(from, 256<<10)); err != nil {
			return 0, sum, fmt.Errorf("%s: %w", a.Name, err)
		}
	}
	tmp := s.temporary("archive")
	out, err := s.fs.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, sum, err
	}
	buffer := bufio.NewWriterSize(&fileWriter{f: out}, 256<<10)
	hash := sha256.New()
	var to io.Writer = buffer
	var z *gzip.Writer
	if a.Compressed {
		z = gzip.NewWriter(buffer)
		to = z
	}
	size, err = editLines(from, io.MultiWriter(to, hash), edit)
	if z != nil {
		err = errors.Join(err, z.Close())
	}
	if err = errors.Join(err, buffer.Flush()); err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return 0, sum, errors.Join(err, s.removeTemporary("archive", s.run))
	}
	return size, auditlog.Hash(hash.Sum(nil)), nil
}

// editLines copies lines, and returns how many bytes were written.
func editLines(from io.Reader, to io.Writer, edit func(line []byte) ([]byte, error)) (size int64, err error) {
	r := bufio.NewReaderSize(from, 256<<10)
	var line []byte
	for {
		line = line[:0]
		var part []byte
		for {
			part, err = r.ReadSlice('\n')
			line = append(line, part...)
			if !errors.Is(err, bufio.ErrBufferFull) || len(line) > auditlog.MaxLine {
				break
			}
		}
		switch {
		case err == io.EOF && len(line) == 0:
			return size, nil
		case err == io.EOF:
			return size, errors.New("the segment does not end with a whole line; run `mcp-audit verify` first")
		case err != nil:
			return size, err
		}
		now, err := edit(line[:len(line)-1])
		if err != nil {
			return size, err
		}
		// An edit that returns its argument shares the line's memory.
		n, err := to.Write(append(now[:len(now):len(now)], '\n'))
		size += int64(n)
		if err != nil {
			return size, err
		}
	}
}

// UseEdited implements auditlog.RewritingStore.
func (s *Store) UseEdited(a auditlog.Archive, from, to int64) error {
	path := s.beside(a.Name)
	old, err := s.openRegular(path, os.O_RDWR)
	if err != nil {
		return err
	}
	err = s.fs.Rename(s.temporary("archive"), path)
	if err == nil {
		err = s.fs.SyncDir(s.dir())
	}
	if err != nil {
		return errors.Join(err, old.Close())
	}
	if strings.HasSuffix(a.Name, CompressedSuffix) {
		info, err := old.Stat()
		if err != nil {
			return errors.Join(err, old.Close())
		}
		from, to = 0, info.Size()
	}
	zeros := make([]byte, 64<<10)
	for at := from; at < to && err == nil; at += int64(len(zeros)) {
		_, err = old.WriteAt(zeros[:min(int64(len(zeros)), to-at)], at)
	}
	if err == nil {
		err = old.Sync()
	}
	return errors.Join(err, old.Close())
}
