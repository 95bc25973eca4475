package ship

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
)

// syslogSink sends RFC 5424 messages with octet counting over TLS (RFC 5425).
//
// The protocol has no acknowledgement: what was written may still be in a
// buffer of a receiver that dies. So each batch has a connection of its own, of
// which our direction is closed behind the last message; the receiver closes
// the other when it has read to that end, and not before.
type syslogSink struct {
	address string
	tls     *tls.Config
	options export.Options
	timeout time.Duration
}

// Encode implements Sink.
func (s *syslogSink) Encode(r *export.Row) ([]byte, error) { return encode("syslog", s.options, r) }

// Deliver implements Sink.
func (s *syslogSink) Deliver(ctx context.Context, b *Batch) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: s.tls}).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer func() {
		// The batch is acknowledged, or it is sent again.
		_ = conn.Close()
	}()
	buffers := make(net.Buffers, len(b.rows))
	copy(buffers, b.rows)
	if _, err := buffers.WriteTo(conn); err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	if err := conn.(*tls.Conn).CloseWrite(); err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	// Whatever it says, it is its end that counts: a close_notify, which a
	// receiver that was killed does not send.
	_, err = io.Copy(io.Discard, io.LimitReader(conn, answerLimit))
	if err != nil {
		return fmt.Errorf("%s ended the connection without reading all: %w", s, err)
	}
	return nil
}

func (s *syslogSink) String() string { return "syslog+tls://" + s.address }

// Close implements Sink.
func (s *syslogSink) Close() error { return nil }
