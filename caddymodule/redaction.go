package caddymodule

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

// tagKey is the key of redaction tags, derived from the log's secret; nil without
// one.
func (s *logSettings) tagKey() []byte {
	if s.secret == nil {
		return nil
	}
	h := hmac.New(sha256.New, s.secret)
	h.Write([]byte("mcp-audit redaction tag\n"))
	return h.Sum(nil)
}

// unmarshalRedact parses the subdirective. Syntax:
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
func unmarshalRedact(d *caddyfile.Dispenser, c *redact.Document) error {
	if d.NextArg() {
		if d.Val() != "off" {
			return d.Errf("redact: unknown argument %q; use off, or a block", d.Val())
		}
		c.Off = true
		return none(d)
	}
	_, err := block(d, map[string]func() error{
		"keys":   func() error { return some(d, &c.Keys) },
		"detect": func() error { return checkRedact(d, c, some(d, &c.Detect)) },
		"pattern": func() error {
			var p redact.DocumentPattern
			if !d.AllArgs(&p.Name, &p.Expr) {
				return d.Err("pattern takes a name and a regular expression, as in: pattern employee `\\bE-[0-9]{6}\\b`")
			}
			c.Patterns = append(c.Patterns, p)
			return checkRedact(d, c, nil)
		},
		"path": func() error {
			var paths []string
			err := some(d, &paths)
			c.Paths = append(c.Paths, paths...)
			return checkRedact(d, c, err)
		},
		"tag":  func() error { return onOff(d, &c.Tag) },
		"wire": func() error { return onOff(d, &c.Wire) },
	}, "pattern", "path")
	return err
}

// checkRedact compiles what is there so far, so that a mistake is reported where it
// stands.
func checkRedact(d *caddyfile.Dispenser, c *redact.Document, err error) error {
	if err != nil {
		return err
	}
	some := *c
	some.Tag, some.Keys = false, nil
	_, err = some.Compile(nil)
	return at(d, err)
}

// onOff reads on or off.
func onOff(d *caddyfile.Dispenser, into *bool) error {
	var word string
	err := choice(d, &word, "on", "off")
	*into = word == "on"
	return err
}
