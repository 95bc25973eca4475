package shim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// The pauses between attempts to open the stream.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
)

// openStream begins to read what the server says unasked. Only the first call
// does something.
func (f *Front) openStream() {
	f.streamOnce.Do(func() {
		close(f.streaming)
		go f.listen()
	})
}

// greetingTime is how long the stream waits for the answer to initialize.
const greetingTime = time.Second

// listen reads the stream, and opens it again when it breaks, until the child
// has ended.
func (f *Front) listen() {
	defer close(f.streamDone)
	// The bridge keeps what there is. A stream that is opened once the version
	// is known carries it; a server that asks something first is not kept
	// waiting long.
	ctx, cancel := context.WithTimeout(f.ctx, greetingTime)
	f.await(ctx, func() bool { return f.greeting == 0 })
	cancel()
	var last uint64
	pause := firstPause
	for again := false; f.ctx.Err() == nil; again = true {
		seen := last
		err := f.listenOnce(&last, again)
		if f.ctx.Err() != nil || err == nil && f.o.Bridge.Ended() {
			return
		}
		if last > seen {
			pause = firstPause
		}
		f.log.Warn("the stream of the server's own messages was interrupted and is opened again", "error", err)
		select {
		case <-time.After(pause):
		case <-f.ctx.Done():
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// listenOnce reads one stream to its end. Opened again, it goes on after the
// last line that was seen.
func (f *Front) listenOnce(last *uint64, again bool) error {
	req, err := http.NewRequestWithContext(f.ctx, http.MethodGet, f.o.Chain.URL, nil)
	if err != nil {
		return err
	}
	for name, values := range f.o.Chain.Header {
		req.Header[name] = values
	}
	req.Header.Set("Accept", "text/event-stream")
	f.setSession(req.Header)
	if again {
		req.Header.Set("Last-Event-ID", strconv.FormatUint(*last, 10))
	}
	resp, err := f.o.Chain.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || media != "text/event-stream" {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return fmt.Errorf("the audited route answered HTTP %d: %s", resp.StatusCode, bytes.TrimSpace(text))
	}
	return f.events(resp.Body, func(seq uint64, line []byte, m *mcp.Message) {
		*last = max(*last, seq)
		if m != nil && m.Kind == mcp.KindRequest {
			f.count(func() { f.waiting++ })
		}
		f.out.deliver(seq, line)
	})
}
