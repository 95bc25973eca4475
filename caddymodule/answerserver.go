package caddymodule

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// answerServerTimeout bounds how long a server may take to accept an answer.
const answerServerTimeout = 10 * time.Second

// answerServer sends a server the answer to a request of its own that its
// client did not get, as the client would: by a POST in the session. It does
// not wait. Where there is no such way (revision 2026-07-28 has none, and the
// HTTP+SSE transport has it elsewhere) the server is left to its time-out.
func (x *exchange) answerServer(answer []byte) {
	server, ok := x.r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if x.next == nil || x.carriesAnswers || mcp.Modern(x.revision) || !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.client), answerServerTimeout)
	w := &nowhere{header: make(http.Header)}
	r := x.r.Clone(ctx)
	r.Method = http.MethodPost
	r.Body = io.NopCloser(bytes.NewReader(answer))
	r.GetBody, r.ContentLength, r.TransferEncoding, r.Trailer = nil, int64(len(answer)), nil, nil
	for name := range r.Header {
		if strings.HasPrefix(name, "Mcp-") && name != sessionHeader && name != versionHeader {
			r.Header.Del(name)
		}
	}
	for _, name := range []string{"Last-Event-Id", "Content-Length", "Traceparent"} {
		r.Header.Del(name)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	token := caddyhttp.GetVar(x.r.Context(), capabilityVar)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, server)
	if token != nil {
		caddyhttp.SetVar(r.Context(), capabilityVar, token)
	}
	next, logger := x.next, x.h.logger
	go func() {
		defer cancel()
		defer func() {
			// reverse_proxy panics where it cannot answer its client.
			if p := recover(); p != nil || w.status >= http.StatusBadRequest {
				logger.Warn("a server did not take the refusal of its request", zap.Int("status", w.status))
			}
		}()
		if err := next.ServeHTTP(w, r); err != nil {
			logger.Warn("a server could not be told that its request is refused", zap.Error(err))
		}
	}()
}

// nowhere is the response of a request that nobody waits for.
type nowhere struct {
	header http.Header
	status int
}

// Header implements http.ResponseWriter.
func (w *nowhere) Header() http.Header { return w.header }

// Write implements http.ResponseWriter.
func (w *nowhere) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (w *nowhere) WriteHeader(status int) { w.status = status }
