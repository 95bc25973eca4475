package caddymodule

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
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
