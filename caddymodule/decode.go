package caddymodule

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
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
		return flate.NewReader(r), nil
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

// streamDecoder decodes a stream beside the exchange and feeds what comes out
// to the reader. The exchange must not touch what feed touches until close.
type streamDecoder struct {
	w    *io.PipeWriter
	done chan struct{}
}

func newStreamDecoder(encoding string, feed func([]byte)) *streamDecoder {
	r, w := io.Pipe()
	d := &streamDecoder{w: w, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		// Whatever stops the decoding, the writer must not block.
		defer func() { _ = r.CloseWithError(io.ErrClosedPipe) }()
		decoded, err := newDecoder(encoding, r)
		if err != nil {
			return
		}
		buf := make([]byte, 32<<10)
		for {
			n, err := decoded.Read(buf)
			if n > 0 {
				feed(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return d
}

// write hands encoded bytes over. An undecodable rest is no error here: the
// bytes go to the client all the same.
func (d *streamDecoder) write(p []byte) { _, _ = d.w.Write(p) }

func (d *streamDecoder) close() {
	_ = d.w.Close()
	<-d.done
}
