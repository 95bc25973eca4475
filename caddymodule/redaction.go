package caddymodule

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

// RedactConfig says what is replaced before a payload, or a name, is recorded:
// by `[REDACTED]` what a key or a path matches, by `[REDACTED:kind]` what looks
// like something that must not be kept.
type RedactConfig struct {
	// Edits of the default list of key patterns: `+name` adds one, `-name`
	// removes one, `fragment:name` matches anywhere in a key.
	Keys []string `json:"keys,omitempty"`

	// What is found by how it looks: `secrets`, `payment`, `pii`, single kinds of
	// them such as `jwt` or `email`, either with a minus to take it out, or
	// `none`. Default: secrets and payment.
	Detect []string `json:"detect,omitempty"`

	// Kinds of one's own, as regular expressions (RE2).
	Patterns []RedactPattern `json:"patterns,omitempty"`

	// JSON paths in a message, such as `$.params.arguments.pin`, of values that
	// go whatever they are.
	Paths []string `json:"paths,omitempty"`

	// Gives placeholders a tag that is equal for equal values. It is keyed with
	// the log's secret, which must be set. Default: false.
	Tag bool `json:"tag,omitempty"`

	// Applies all of this to traffic, too, both ways: neither the server nor the
	// client gets what is replaced. Answers that are no stream are held until
	// they are whole. Default: false.
	Wire bool `json:"wire,omitempty"`

	// Records payloads as they are. Default: false.
	Off bool `json:"off,omitempty"`
}

// RedactPattern is a kind of value of one's own.
type RedactPattern struct {
	// What stands in the placeholder: a to z, 0 to 9 and _, at most 32.
	Name string `json:"name"`

	// The regular expression (RE2). Its first group is what is replaced, or all
	// of it if it has none.
	Expr string `json:"expr"`
}

// compile makes the profile. No configuration means the defaults.
func (c *RedactConfig) compile(settings *logSettings) (*redact.Profile, error) {
	if c == nil {
		return redact.New(redact.Config{})
	}
	if c.Off && (c.Wire || c.Tag) {
		return nil, errors.New("redaction is off, so its other options have no effect; remove one of the two")
	}
	cfg := redact.Config{Keys: c.Keys, Detect: c.Detect, Paths: c.Paths, Off: c.Off}
	for _, p := range c.Patterns {
		cfg.Patterns = append(cfg.Patterns, redact.Pattern{Name: p.Name, Expr: p.Expr})
	}
	if c.Tag {
		if settings == nil || settings.secret == nil {
			return nil, errors.New("tag: its key comes from the log's secret, and there is none; set the log's option secret, or MCP_AUDIT_SIGNING_SECRET")
		}
		h := hmac.New(sha256.New, settings.secret)
		h.Write([]byte("mcp-audit redaction tag\n"))
		cfg.Tag = h.Sum(nil)
	}
	return redact.New(cfg)
}

// unmarshalCaddyfile parses the subdirective. Syntax:
//
//	redact off
//	redact {
//		keys    [+]<name>|-<name>|fragment:<name>...
//		detect  none | [-]<kind>...
//		pattern <name> <RE2>
//		path    <JSON path>...
//		tag     on|off
//		wire    on|off
//	}
func (c *RedactConfig) unmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		if d.Val() != "off" {
			return d.Errf("redact: unknown argument %q; use off, or a block", d.Val())
		}
		c.Off = true
		return none(d)
	}
	_, err := block(d, map[string]func() error{
		"keys":   func() error { return some(d, &c.Keys) },
		"detect": func() error { return c.check(d, some(d, &c.Detect)) },
		"pattern": func() error {
			var p RedactPattern
			if !d.AllArgs(&p.Name, &p.Expr) {
				return d.Err("pattern takes a name and a regular expression, as in: pattern employee `\\bE-[0-9]{6}\\b`")
			}
			c.Patterns = append(c.Patterns, p)
			return c.check(d, nil)
		},
		"path": func() error {
			var paths []string
			err := some(d, &paths)
			c.Paths = append(c.Paths, paths...)
			return c.check(d, err)
		},
		"tag":  func() error { return onOff(d, &c.Tag) },
		"wire": func() error { return onOff(d, &c.Wire) },
	}, "pattern", "path")
	return err
}

// check compiles what is there so far, so that a mistake is reported where it
// stands.
func (c *RedactConfig) check(d *caddyfile.Dispenser, err error) error {
	if err != nil {
		return err
	}
	some := *c
	some.Tag, some.Keys = false, nil
	_, err = some.compile(nil)
	return at(d, err)
}

// onOff reads on or off.
func onOff(d *caddyfile.Dispenser, into *bool) error {
	var word string
	err := choice(d, &word, "on", "off")
	*into = word == "on"
	return err
}
