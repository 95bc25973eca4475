package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// Transport carries requests to a handler in this process. It is an
// http.RoundTripper, safe for concurrent use.
type Transport struct{ Handler http.Handler }

// RoundTrip runs the handler. The request's body is read whole before the
// handler starts, so that its buffer may be reused as soon as RoundTrip
// returns. An answer that the handler never flushes, or flushes once it has
// the length that its header declares, comes in one piece; any other streams,
// each write waiting for its reader.
func (t Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "@" // what servers see of a client on an unnamed local socket
	in.Body = http.NoBody
	if req.Body != nil {
		var body bytes.Buffer
		if req.ContentLength > 0 {
			body.Grow(int(min(req.ContentLength, 64<<20)) + bytes.MinRead)
		}
		_, err := body.ReadFrom(req.Body)
		_ = req.Body.Close()
		if err != nil {
			cancel()
			return nil, err
		}
		in.Body = io.NopCloser(bytes.NewReader(body.Bytes()))
		in.ContentLength = int64(body.Len())
	}
	r := &responder{header: make(http.Header), started: make(chan struct{})}
	r.pr, r.pw = io.Pipe()
	var failed error
	go func() {
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				failed = fmt.Errorf("the handler panicked: %v", p)
				if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					failed = err
				}
			}
			r.finish(failed)
		}()
		t.Handler.ServeHTTP(r, in)
	}()
	select {
	case <-r.started:
	case <-ctx.Done():
		// The handler may have ended at the same moment.
		select {
		case <-r.started:
		default:
			_ = r.pr.CloseWithError(context.Cause(ctx))
			return nil, context.Cause(ctx)
		}
	}
	if !r.streams && !r.whole && failed != nil {
		return nil, failed
	}
	resp := &http.Response{
		StatusCode: r.status, Status: strconv.Itoa(r.status) + " " + http.StatusText(r.status),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.sent, ContentLength: -1, Request: req,
	}
	if r.streams {
		resp.Body = &streamBody{PipeReader: r.pr, cancel: cancel}
		return resp, nil
	}
	resp.ContentLength = int64(r.buf.Len())
	resp.Body = io.NopCloser(bytes.NewReader(r.buf.Bytes()))
	return resp, nil
}

// streamBody ends the handler when the reader has enough.
type streamBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b *streamBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// responder is the http.ResponseWriter of one request.
type responder struct {
	header http.Header
	sent   http.Header // header as it was when it was sent
	status int
	buf    bytes.Buffer

	streams bool // set before started is closed, as is whole
	whole   bool // buf is all of the answer, though the handler runs on
	started chan struct{}
	once    sync.Once
	pr      *io.PipeReader
	pw      *io.PipeWriter
}

// Header implements http.ResponseWriter.
func (r *responder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *responder) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status, r.sent = status, r.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (r *responder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	switch {
	case r.whole:
		return 0, http.ErrContentLength
	case r.streams:
		return r.pw.Write(p)
	}
	return r.buf.Write(p)
}

// FlushError implements the interface of http.ResponseController.
func (r *responder) FlushError() error {
	r.WriteHeader(http.StatusOK)
	if r.streams || r.whole {
		return nil
	}
	if n, err := strconv.Atoi(r.sent.Get("Content-Length")); err == nil && n == r.buf.Len() {
		r.whole = true
		r.once.Do(func() { close(r.started) })
		return nil
	}
	r.streams = true
	r.once.Do(func() { close(r.started) })
	if r.buf.Len() == 0 {
		return nil
	}
	_, err := r.pw.Write(r.buf.Bytes())
	return err
}

func (r *responder) finish(failed error) {
	r.WriteHeader(http.StatusOK)
	r.once.Do(func() { close(r.started) })
	_ = r.pw.CloseWithError(failed) // nil is io.EOF
}
