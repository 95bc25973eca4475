package main

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sumsName is the file that sha256sum --check reads.
const sumsName = "SHA256SUMS"

// An entry of an archive has the content of a file, or a text.
type entry struct {
	name string
	file string
	text string
	mode fs.FileMode
}

// open returns the entry's content and its length.
func (e entry) open() (io.ReadCloser, int64, error) {
	if e.file == "" {
		return io.NopCloser(strings.NewReader(e.text)), int64(len(e.text)), nil
	}
	f, err := os.Open(e.file)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// pack writes the entries, sorted, below the folder dir of an archive: a zip if
// its name says so, else a compressed tar. The file appears in one step.
func pack(path, dir string, entries []entry, at time.Time) (err error) {
	entries = slices.SortedFunc(slices.Values(entries), func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	f, err := os.CreateTemp(filepath.Dir(path), ".release-*")
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name()) //nolint:gosec // the arguments are the caller's own
		}
	}()
	buffered := bufio.NewWriter(f)
	write := writeTar
	if strings.HasSuffix(path, ".zip") {
		write = writeZip
	}
	if err := write(buffered, dir, entries, at.UTC()); err != nil {
		return err
	}
	if err := errors.Join(buffered.Flush(), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path) //nolint:gosec // the arguments are the caller's own
}

func writeTar(w io.Writer, dir string, entries []entry, at time.Time) error {
	// Neither a name nor a time stands in gzip's header.
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, e := range entries {
		add := func(r io.Reader, size int64) error {
			header := &tar.Header{Typeflag: tar.TypeReg, Name: dir + "/" + e.name, Size: size, Mode: int64(e.mode), ModTime: at, Format: tar.FormatUSTAR}
			if err := archive.WriteHeader(header); err != nil {
				return err
			}
			_, err := io.Copy(archive, r)
			return err
		}
		if err := with(e, add); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

func writeZip(w io.Writer, dir string, entries []entry, at time.Time) error {
	archive := zip.NewWriter(w)
	for _, e := range entries {
		add := func(r io.Reader, _ int64) error {
			header := &zip.FileHeader{Name: dir + "/" + e.name, Method: zip.Deflate, Modified: at}
			header.SetMode(e.mode)
			part, err := archive.CreateHeader(header)
			if err != nil {
				return err
			}
			_, err = io.Copy(part, r)
			return err
		}
		if err := with(e, add); err != nil {
			return err
		}
	}
	return archive.Close()
}

func with(e entry, add func(r io.Reader, size int64) error) error {
	content, size, err := e.open()
	if err != nil {
		return err
	}
	defer content.Close()
	if err := add(content, size); err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	return nil
}

// writeSums writes the SHA-256 of each named file of a folder, sorted by name.
func writeSums(dir string, names []string) error {
	var text strings.Builder
	for _, name := range slices.Sorted(slices.Values(names)) {
		sum, err := sumOf(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%x  %s\n", sum, name)
	}
	return os.WriteFile(filepath.Join(dir, sumsName), []byte(text.String()), 0o644) //nolint:gosec // it is to be published
}

func sumOf(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return nil, err
	}
	return hash.Sum(nil), nil
}
