package caddymodule

import (
	"net/http"
	"net/url"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// ownerOf is who a session belongs to: the verified subject, or nobody.
func ownerOf(p *auditlog.Principal) string {
	if p == nil {
		return ""
	}
	return p.Issuer + "\n" + p.Subject + "\n" + p.ClientID
}

func (x *exchange) sessionKey(id string) sessionKey { return sessionKey{server: x.h.ServerID, id: id} }

// scopeOf is the scope of a session's operations.
func scopeOf(key sessionKey) string { return "session\n" + key.server + "\n" + key.id }

// enterSession finds the session that a request names: in its header, or in its
// address as the HTTP+SSE transport has it.
func (x *exchange) enterSession() {
	x.session = x.r.Header.Get(sessionHeader)
	if x.session == "" {
		x.session = addressSession(x.r.URL)
	}
	if x.session == "" && x.r.Method == http.MethodPost {
		// A server may name sessions in its addresses as it likes.
		if s := x.lease.sessions.enter(x.sessionKey(x.r.URL.RequestURI())); s != nil {
			x.session, x.entered = s.key.id, s
		}
		return
	}
	x.entered = x.lease.sessions.enter(x.sessionKey(x.session))
}

// addressSession is the session id in an address of the HTTP+SSE transport, as
// the common servers write it.
func addressSession(u *url.URL) string {
	if u.RawQuery == "" {
		return ""
	}
	query := u.Query()
	for _, name := range []string{"sessionId", "session_id"} {
		if id := query.Get(name); id != "" {
			return id
		}
	}
	return ""
}

func (x *exchange) leaveSession() {
	x.lease.sessions.leave(x.entered)
	x.entered = nil
}

// checkOwner refuses a session that somebody else has opened, in the shape of
// one that is not there: on it a client initialises again.
func (x *exchange) checkOwner() *refusal {
	if x.entered == nil || x.entered.owner == ownerOf(x.principal) {
		return nil
	}
	refused := &refusal{status: http.StatusNotFound, code: mcp.CodeSessionNotFound,
		reason: "foreign_session", message: "session not found"}
	if len(x.msgs) == 1 && !x.batch && x.msgs[0].Kind == mcp.KindRequest {
		refused.m = &x.msgs[0]
	}
	return x.object(refused)
}

// bindSession binds a session to its caller when the server has minted it or
// answered 2xx in it. That must be done before the answer goes out: the
// client's next request relies on it. Revision 2026-07-28 has no sessions.
func (x *exchange) bindSession(status int, header http.Header) {
	if status < 200 || status > 299 || x.stateless {
		return
	}
	id := header.Get(sessionHeader)
	if id == "" {
		id = x.session
	}
	if id == "" || x.entered != nil && x.entered.key.id == id {
		return
	}
	if x.initialize && id != x.session {
		x.opened = id
	}
	x.adopt(id)
}

// adopt makes a session the exchange's. One that is known for another caller,
// but was minted for this one now, is a new one.
func (x *exchange) adopt(id string) {
	key, owner := x.sessionKey(id), ownerOf(x.principal)
	s := x.lease.sessions.learn(key, owner, time.Duration(x.h.SessionTTL))
	if s != nil && s.owner != owner {
		x.lease.sessions.leave(s)
		x.lease.sessions.drop(key)
		x.lease.open.endScope(scopeOf(key), sessionEnded)
		s = x.lease.sessions.learn(key, owner, time.Duration(x.h.SessionTTL))
	}
	x.leaveSession()
	x.entered = s
}

// learnVersion remembers the protocol version that an answer negotiates, before
// it goes out.
func (x *exchange) learnVersion(m *mcp.Message, data []byte) {
	if m.Kind != mcp.KindResult || !m.ProtocolVersion.Present() || x.entered == nil {
		return
	}
	if !x.initialize {
		// On a stream of the HTTP+SSE transport.
		if o := x.answered(m, data); o == nil || o.method != methodInitialize {
			return
		}
	}
	x.lease.sessions.setVersion(x.entered, mcp.Text(m.ProtocolVersion.Of(data)))
}

// endSession forgets the session that the server has just ended, or says is
// not there.
func (x *exchange) endSession(status int) {
	if x.entered == nil || x.stateless {
		return
	}
	deleted := x.r.Method == http.MethodDelete && status >= 200 && status <= 299
	if deleted || status == http.StatusNotFound {
		x.lease.open.endScope(scopeOf(x.entered.key), sessionEnded)
		x.lease.sessions.drop(x.entered.key)
	}
}

// endStream ends the session of the HTTP+SSE transport with its stream: no
// answer can come any more.
func (x *exchange) endStream(clientGone bool) {
	if !x.carriesAnswers || x.entered == nil {
		return
	}
	out := auditlog.Outcome{Result: auditlog.UpstreamError, Reason: "the server ended the stream before the answer"}
	if clientGone {
		out = auditlog.Outcome{Result: auditlog.ClientDisconnect, Reason: "the client closed the stream before the answer"}
	}
	x.lease.open.endScope(scopeOf(x.entered.key), out)
	x.lease.sessions.drop(x.entered.key)
}

// endpoint reads the address that the HTTP+SSE transport tells its client to
// post to: it names the session, and it must not lead around the audit. An
// error means that the client must not see it.
func (x *exchange) endpoint(t *tee, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return nil
	}
	own := &url.URL{Scheme: "http", Host: x.r.Host, Path: x.r.URL.Path, RawQuery: x.r.URL.RawQuery}
	if x.r.TLS != nil {
		own.Scheme = "https"
	}
	u = own.ResolveReference(u)
	if !mcp.SameOrigin(own, u) {
		if err := x.foreignEndpoint(u); err != nil {
			return err
		}
	}
	id := addressSession(u)
	if id == "" {
		id = u.RequestURI()
	}
	x.session = id
	x.adopt(id)
	if x.entered != nil {
		x.carriesAnswers = true
		x.lease.sessions.setStream(x.entered, t)
	}
	return nil
}

// foreignEndpoint reports an endpoint of another origin, and refuses it if the
// operator wants that.
func (x *exchange) foreignEndpoint(u *url.URL) error {
	base := x.message(nil)
	base.Direction = auditlog.ServerToClient
	base.Reason = "the server sends its clients to " + u.Scheme + "://" + u.Host + ", where nothing is audited"
	base.Anomaly = append(base.Anomaly, "foreign_endpoint")
	event := auditlog.Event{Message: base}
	block := x.h.BlockForeignEndpoint && !x.h.observe()
	if block {
		event.Result = auditlog.Denied
	}
	x.eventAfter(event)
	x.h.logger.Warn("a server sends its clients to another origin, around the audit; give it the public address, or set block_foreign_endpoint",
		zap.String("server_id", x.h.ServerID), zap.String("origin", u.Scheme+"://"+u.Host), zap.Bool("blocked", block))
	if block {
		return errForeignEndpoint
	}
	return nil
}
