package index

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// compressedSuffix ends the name of a compressed segment.
const compressedSuffix = ".gz"

// packedFile is a compressed segment. What an index needs to know that the file
// is indexed already is in its first bytes and its trailer; only when more is
// read is it unpacked, to a temporary file without a name.
type packedFile struct {
	file *os.File
	id   uint64
	size int64  // unpacked
	head []byte // its first bytes, unpacked
	tmp  *os.File
}

const (
	packedHead = 64 << 10
	// maxPacked bounds what a segment may unpack to; a gzip trailer cannot say more.
	maxPacked = 4 << 30
)

func newPackedFile(f *os.File, info os.FileInfo) (_ data, err error) {
	p := &packedFile{file: f, id: fileID(info)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("reading the compressed segment %s: %w", f.Name(), err), f.Close())
		}
	}()
	var trailer [4]byte
	if _, err := f.ReadAt(trailer[:], info.Size()-int64(len(trailer))); err != nil {
		return nil, err
	}
	p.size = int64(binary.LittleEndian.Uint32(trailer[:]))
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, err
	}
	p.head, err = io.ReadAll(io.LimitReader(z, packedHead))
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *packedFile) Size() (int64, error) { return p.size, nil }

func (p *packedFile) FileID() uint64 { return p.id }

func (p *packedFile) ReadAt(b []byte, off int64) (int, error) {
	if p.tmp == nil && off+int64(len(b)) <= int64(len(p.head)) {
		return copy(b, p.head[off:]), nil
	}
	if err := p.unpack(); err != nil {
		return 0, err
	}
	return p.tmp.ReadAt(b, off)
}

func (p *packedFile) unpack() (err error) {
	if p.tmp != nil {
		return nil
	}
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	z, err := gzip.NewReader(bufio.NewReaderSize(p.file, 256<<10))
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp("", "mcp-audit-segment-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("unpacking %s: %w", p.file.Name(), err), tmp.Close())
		}
	}()
	if err := os.Remove(tmp.Name()); err != nil {
		return err
	}
	n, err := io.Copy(tmp, io.LimitReader(z, maxPacked))
	if err == nil && n != p.size {
		err = fmt.Errorf("it has %d bytes, its trailer says %d: it is not what was written", n, p.size)
	}
	if err != nil {
		return err
	}
	p.tmp = tmp
	return nil
}

func (p *packedFile) Close() error {
	if p.tmp != nil {
		return errors.Join(p.tmp.Close(), p.file.Close())
	}
	return p.file.Close()
}
