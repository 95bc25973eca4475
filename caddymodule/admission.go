package caddymodule

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// The methods that the handler treats in a way of their own.
const (
	methodInitialize = "initialize"
	methodToolsCall  = "tools/call"
	methodToolsList  = "tools/list"
)

// sessionHeader names the MCP session of a request or answer.
const sessionHeader = "Mcp-Session-Id"

// versionHeader is the protocol version a request claims.
const versionHeader = "Mcp-Protocol-Version"

// isMetadata reports whether the request is for OAuth metadata, which is
// public: pages of every origin may read it.
func isMetadata(r *http.Request) bool {
	return r.Method != http.MethodPost && strings.HasPrefix(r.URL.Path, "/.well-known/")
}

// checkOriginOption refuses an allowed origin that no request can have.
func checkOriginOption(origin string) error {
	if !mcp.ValidOrigin(origin) {
		return fmt.Errorf("%q is no origin; write scheme and host, as in https://app.example.com", origin)
	}
	return nil
}

// admit reads the request and checks everything that does not depend on who
// sent it. In observe mode an objection is only noted.
func (x *exchange) admit() *refusal {
	r := x.r
	takeCapability(r)
	x.enterSession()
	x.revision = cmp.Or(r.Header.Get(versionHeader), x.lease.sessions.version(x.entered), mcp.Revision20250326)
	x.resumed = r.Method == http.MethodGet && r.Header.Get("Last-Event-Id") != ""
	if r.Method == http.MethodConnect || r.Header.Get("Upgrade") != "" {
		return &refusal{status: http.StatusNotImplemented, reason: "upgrade", message: "protocol upgrades are not audited and not accepted"}
	}
	if caddyhttp.IsIncremental(r.Header) {
		x.w.Header().Set("Proxy-Status", "mcp-audit; error=incremental_refused")
		return &refusal{status: http.StatusNotImplemented, reason: "incremental", message: "requests are read whole before they are forwarded"}
	}
	if refused := x.object(x.checkOrigin()); refused != nil {
		return refused
	}
	if refused := x.object(headerRefusal(mcp.CheckConnection(r.Header))); refused != nil {
		return refused
	}
	if r.Method != http.MethodPost {
		return x.admitOther()
	}
	if refused := x.object(headerRefusal(mcp.CheckContent(r.Header))); refused != nil {
		return refused
	}
	if refused := x.readBody(); refused != nil {
		return refused
	}
	if x.rest != nil {
		return nil
	}
	return x.scan()
}

// admitOther admits a request that is no POST. MCP messages travel in POST
// alone, but servers have been seen that run a body whatever its method is, so
// a body is refused, and so is a method that MCP and CORS do not use. In
// observe mode such a body is recorded as an unreadable message.
func (x *exchange) admitOther() *refusal {
	switch x.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodDelete, http.MethodOptions:
	default:
		x.w.Header().Set("Allow", "GET, HEAD, POST, DELETE, OPTIONS")
		refused := x.object(&refusal{status: http.StatusMethodNotAllowed, reason: "method_not_allowed",
			message: "MCP uses GET, POST and DELETE"})
		if refused != nil {
			return refused
		}
	}
	if x.r.ContentLength == 0 {
		return nil
	}
	refused := x.object(&refusal{status: http.StatusBadRequest, code: mcp.CodeInvalidRequest, reason: "body_not_allowed",
		message: "only POST requests may have a body"})
	if refused != nil {
		return refused
	}
	return x.readBody()
}

// object turns an objection into a refusal, or in observe mode into an anomaly.
func (x *exchange) object(refused *refusal) *refusal {
	if refused == nil {
		return nil
	}
	if !x.h.observe() {
		return refused
	}
	x.anomaly = append(x.anomaly, refused.reason)
	return nil
}

// checkOrigin refuses browser pages of other origins and, on a loopback
// listener, foreign host names: DNS rebinding.
func (x *exchange) checkOrigin() *refusal {
	r := x.r
	if isMetadata(r) {
		return nil
	}
	fault := mcp.CheckOrigin(r.Host, r.TLS != nil, r.Header.Values("Origin"), x.h.Origins, localIsLoopback(r))
	if fault == "" {
		return nil
	}
	return &refusal{status: http.StatusForbidden, code: mcp.CodeInvalidRequest, reason: fault,
		message: "origin or host not allowed"}
}

// readBody reads the whole body.
func (x *exchange) readBody() *refusal {
	x.pooled = messageLists.Get().(*messageList)
	x.msgs = x.pooled.msgs[:0]
	limit := x.h.MaxBody
	var body bytes.Buffer
	if n := x.r.ContentLength; n > 0 && n <= limit {
		body.Grow(int(n) + bytes.MinRead)
	}
	_, err := body.ReadFrom(io.LimitReader(x.r.Body, limit+1))
	if x.body = body.Bytes(); x.body == nil {
		x.body = []byte{}
	}
	if err != nil {
		return unreadableBody(err)
	}
	if int64(len(x.body)) <= limit {
		return nil
	}
	refused := x.object(&refusal{status: http.StatusRequestEntityTooLarge, code: mcp.CodeInvalidRequest,
		reason: "max_body", message: "the message is larger than this route accepts"})
	if refused == nil {
		x.rest = x.r.Body
	}
	return refused
}

// unreadableBody tells a body that another handler found too large from one
// that broke off.
func unreadableBody(err error) *refusal {
	var status caddyhttp.HandlerError
	var limit *http.MaxBytesError
	if errors.As(err, &limit) || errors.As(err, &status) && status.StatusCode == http.StatusRequestEntityTooLarge {
		return &refusal{status: http.StatusRequestEntityTooLarge, code: mcp.CodeInvalidRequest, reason: "max_body",
			message: "the message is larger than this route accepts"}
	}
	return &refusal{status: http.StatusBadRequest, code: mcp.CodeInvalidRequest, reason: "body_unreadable",
		message: "the request body could not be read to its end"}
}

// scan parses the body once; policy, record and forwarding follow from it.
func (x *exchange) scan() *refusal {
	msgs, batch, fault := mcp.Scan(x.body, x.msgs)
	x.msgs, x.batch = msgs, batch
	if fault != nil {
		refused := x.object(&refusal{status: http.StatusBadRequest, code: fault.Code, reason: fault.Why,
			message: fault.Error(), id: fault.ID})
		x.msgs = x.msgs[:0]
		return refused
	}
	version, negotiated := x.r.Header.Get(versionHeader), x.lease.sessions.version(x.entered)
	for i := range x.msgs {
		m := &x.msgs[i]
		// A batch is of 2025-03-26 only if each of its messages is.
		if revision := mcp.Revision(m, x.body, version, negotiated); i == 0 || revision != mcp.Revision20250326 {
			x.revision = revision
		}
		x.stateless = mcp.Modern(x.revision)
		if refused := x.checkMessage(m); refused != nil {
			return refused
		}
	}
	return x.redactRequest()
}

func (x *exchange) checkMessage(m *mcp.Message) *refusal {
	if m.Kind == mcp.KindNotification && !mayNotify(mcp.Text(m.Method.Of(x.body))) {
		return x.object(&refusal{status: http.StatusBadRequest, code: mcp.CodeInvalidRequest, reason: "request_without_id",
			message: "a request needs an id", m: m})
	}
	if x.h.Headers == headersOff {
		return nil
	}
	if x.batch {
		return x.objectHeader(mcp.CheckBatchHeaders(x.r.Header), nil)
	}
	return x.objectHeader(mcp.CheckHeaders(x.r.Header, m, x.body, x.revision), m)
}

// checkParams compares the headers that mirror a tool's arguments with them,
// as far as the tool's definition has been seen.
func (x *exchange) checkParams(m *mcp.Message) *refusal {
	if x.h.Headers == headersOff || !x.stateless || m.Kind != mcp.KindRequest || mcp.Text(m.Method.Of(x.body)) != methodToolsCall {
		return nil
	}
	headers := x.lease.tools.of(x.h.ServerID, ownerOf(x.principal), mcp.Text(m.Name.Of(x.body)))
	return x.objectHeader(mcp.CheckParamHeaders(x.r.Header, headers, m.Arguments.Of(x.body)), m)
}

// objectHeader is object for a fault of the headers, as the headers option says.
func (x *exchange) objectHeader(fault *mcp.HeaderFault, m *mcp.Message) *refusal {
	if fault == nil {
		return nil
	}
	fault.Want, fault.Got = x.h.redact.URI(fault.Want), x.h.redact.URI(fault.Got)
	refused := headerRefusal(fault)
	if m != nil {
		refused.m, refused.id = m, m.ID.Of(x.body)
	}
	if x.h.Headers == headersRecord {
		if !slices.Contains(x.anomaly, refused.reason) {
			x.anomaly = append(x.anomaly, refused.reason)
		}
		return nil
	}
	return x.object(refused)
}

// mayNotify reports whether a method may come without an id. Unknown methods
// may: an extension's notification looks like any other.
func mayNotify(method string) bool {
	info, known := mcp.Lookup(method)
	return !known || info.Notification
}

func headerRefusal(fault *mcp.HeaderFault) *refusal {
	if fault == nil {
		return nil
	}
	return &refusal{status: fault.Status, code: fault.Code, reason: fault.Why, detail: fault.Detail(), message: fault.Error()}
}

// localIsLoopback reports whether the request came in on a loopback address,
// where a page of any site could have sent the user's browser.
func localIsLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}
