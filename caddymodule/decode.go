package caddymodule

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// canDecode reports whether an answer with this content coding can be read.
// The request asked for identity, so this is for servers that do not listen.
func canDecode(encoding string) bool {
	switch encoding {
	case "gzip", "x-gzip", "deflate", "br", "zstd":
		return true
	}
	return false
}

// maxWindow bounds what a zstd stream may ask for.
const maxWindow = 8 << 20

func newDecoder(encoding string, r io.Reader) (io.Reader, error) {
	switch encoding {
	case "gzip", "x-gzip":
		return gzip.NewReader(r)
	case "deflate":
		// By definition a zlib stream (RFC 9110 section 8.4.1.2), but many
		// servers send what is in it alone.
		b := bufio.NewReader(r)
		head, err := b.Peek(2)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if len(head) == 2 && head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
			return zlib.NewReader(b)
		}
		return flate.NewReader(b), nil
	case "br":
		return brotli.NewReader(r), nil
	default:
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
}

var errTooLarge = errors.New("the decoded answer is too large")

// decodeAll decodes a whole answer, up to limit bytes: a small body can decode
// to an enormous one.
func decodeAll(encoding string, body []byte, limit int64) ([]byte, error) {
	r, err := newDecoder(encoding, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c, ok := r.(io.Closer); ok {
		defer func() { _ = c.Close() }()
	}
	out, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(out)) > limit {
		err = errTooLarge
	}
	return out, err
}

// streamDecoder decodes a stream in step with it: write returns when everything
// that can be decoded of the bytes so far was fed to the reader. The decoders
// pull, so that each has a goroutine; it runs only while write waits for it.
type streamDecoder struct {
	in     chan []byte
	idle   chan struct{} // the decoder wants more
	done   chan struct{} // it has ended, with err
	err    error
	rest   []byte
	ended  bool // by close; the decoder's side
	closed bool

	encoded, decoded int64
}

// What a stream may decode to: a small one can decode to an enormous one.
const (
	decodeFree  = 64 << 20
	decodeRatio = 200
)

func newStreamDecoder(encoding string, feed func([]byte)) *streamDecoder {
	d := &streamDecoder{in: make(chan []byte), idle: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.err = d.decode(encoding, feed)
	}()
	d.wait()
	return d
}

func (d *streamDecoder) decode(encoding string, feed func([]byte)) error {
	decoded, err := newDecoder(encoding, d)
	if err != nil {
		return err
	}
	if c, ok := decoded.(io.Closer); ok {
		defer func() { _ = c.Close() }()
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := decoded.Read(buf)
		if n > 0 {
			if d.decoded += int64(n); d.decoded > decodeFree+decodeRatio*d.encoded {
				return errTooLarge
			}
			feed(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Read is the decoder's side.
func (d *streamDecoder) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.ended {
			return 0, io.EOF
		}
		d.idle <- struct{}{}
		next, ok := <-d.in
		if !ok {
			d.ended = true
			return 0, io.EOF
		}
		d.rest = next
		d.encoded += int64(len(next))
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// wait waits until the decoder wants more or has ended.
func (d *streamDecoder) wait() {
	select {
	case <-d.idle:
	case <-d.done:
	}
}

// write decodes the next bytes. An error says that they, and what follows,
// cannot be read.
func (d *streamDecoder) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	select {
	case d.in <- p:
		d.wait()
	case <-d.done:
		if d.err == nil {
			return errTrailing
		}
	}
	select {
	case <-d.done:
		return d.err
	default:
		return nil
	}
}

var errTrailing = errors.New("bytes follow the end of the encoded stream")

// close ends the stream. What is not whole is dropped.
func (d *streamDecoder) close() {
	if d.closed {
		return
	}
	d.closed = true
	close(d.in)
	<-d.done
}
