package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"
)

// unmarshalUpstreamToken parses the credential for the server.
func (h *Handler) unmarshalUpstreamToken(d *caddyfile.Dispenser) error {
	if err := one(d, &h.UpstreamToken); err != nil {
		return err
	}
	if !isSecretPlaceholder(h.UpstreamToken) {
		return d.Err("upstream_token: write a placeholder in place of the secret, such as {file./run/secrets/token} or {env.TOKEN}")
	}
	return nil
}

// provisionUpstreamToken reads the credential for the server into a field that
// no dump of the configuration has.
func (h *Handler) provisionUpstreamToken() error {
	if h.UpstreamToken == "" {
		return nil
	}
	if slices.Contains(h.ForwardHeaders, "Authorization") {
		return errors.New("mcp_audit: upstream_token and forward_headers Authorization exclude each other; keep one")
	}
	secret, err := secretOf("mcp_audit: upstream_token", h.UpstreamToken)
	if err != nil {
		return err
	}
	if strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("mcp_audit: upstream_token: %s has characters that no header may have; it is one line of printable ASCII without spaces", h.UpstreamToken)
	}
	h.authorization = "Bearer " + secret
	return nil
}

// hintCredential says once why a server may answer 401: it did not get the
// client's credential.
func (x *exchange) hintCredential() {
	if x.tee.status != http.StatusUnauthorized || !x.stripped || x.h.hinted.Swap(true) {
		return
	}
	x.h.logger.Warn("the server answers 401; the client's Authorization header does not go on to it: name its own credential with upstream_token, or, if clients' tokens are meant for this server, write forward_headers Authorization",
		zap.String("server_id", x.h.ServerID), zap.Bool("upstream_token", x.h.authorization != ""))
}
