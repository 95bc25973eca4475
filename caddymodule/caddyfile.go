package caddymodule

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("mcp_audit", parseGlobalOption)
	httpcaddyfile.RegisterHandlerDirective("mcp_audit", parseHandler)
	// Before invoke, so that no handle, route or named route of a site goes
	// around a site-level mcp_audit.
	httpcaddyfile.RegisterDirectiveOrder("mcp_audit", httpcaddyfile.Before, "invoke")
}

// parseGlobalOption parses the mcp_audit global option. A second block adds to
// the first.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	app := new(App)
	if have, ok := existing.(httpcaddyfile.App); ok {
		if err := json.Unmarshal(have.Value, app); err != nil {
			return nil, err
		}
	}
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "mcp_audit", Value: caddyconfig.JSON(app, nil)}, nil
}

func parseHandler(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// options walks the subdirectives of a block. Each may stand once unless it
// says otherwise, and one that is unknown is an error that lists what exists.
type options struct {
	d     *caddyfile.Dispenser
	seen  map[string]string
	known []string
}

func newOptions(d *caddyfile.Dispenser, known ...string) *options {
	return &options{d: d, seen: make(map[string]string), known: known}
}

// place is where the current token stands.
func place(d *caddyfile.Dispenser) string { return fmt.Sprintf("%s:%d", d.File(), d.Line()) }

// once notes a subdirective and refuses a second one.
func (o *options) once() error {
	name := o.d.Val()
	if first, dup := o.seen[name]; dup {
		return o.d.Errf("%s is given twice, first at %s; keep one", name, first)
	}
	o.seen[name] = place(o.d)
	return nil
}

func (o *options) unknown() error {
	return o.d.Errf("unrecognized subdirective %q; there are %s", o.d.Val(), strings.Join(o.known, ", "))
}

// one reads exactly one argument.
func one(d *caddyfile.Dispenser, into *string) error {
	name := d.Val()
	if !d.AllArgs(into) {
		return d.Errf("%s takes exactly one argument", name)
	}
	return nil
}

// none refuses arguments.
func none(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	return nil
}

// some reads one or more arguments.
func some(d *caddyfile.Dispenser) ([]string, error) {
	name := d.Val()
	args := d.RemainingArgs()
	if len(args) == 0 {
		return nil, d.Errf("%s takes one or more arguments", name)
	}
	return args, nil
}

// UnmarshalCaddyfile parses the global option. Syntax:
//
//	mcp_audit {
//		log [<name>] {
//			output     jsonl <path>
//			name       <origin name>
//			key        ed25519 <JWK or PEM, by placeholder>
//			key_id     <id>
//			secret     <secret, by placeholder>
//			keys       <path of the key file>
//			durability written|durable
//			on_failure block|allow|allow_reads
//			checkpoint off | every [<n> records] [<duration>]
//		}
//	}
//
// The name of a log defaults to `default`. Several logs may stand in one
// block, each in a folder of its own.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if err := none(d); err != nil {
		return err
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if d.Val() != "log" {
			return newOptions(d, "log").unknown()
		}
		name := defaultLog
		if d.NextArg() {
			name = d.Val()
		}
		if err := none(d); err != nil {
			return err
		}
		if _, dup := a.Logs[name]; dup {
			return d.Errf("log %s is given twice; keep one", name)
		}
		var c LogConfig
		if err := c.unmarshalCaddyfile(d); err != nil {
			return err
		}
		if a.Logs == nil {
			a.Logs = make(map[string]LogConfig)
		}
		a.Logs[name] = c
	}
	return nil
}

func (c *LogConfig) unmarshalCaddyfile(d *caddyfile.Dispenser) error {
	o := newOptions(d, "output", "name", "key", "key_id", "secret", "keys", "durability", "on_failure", "checkpoint")
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if err := o.once(); err != nil {
			return err
		}
		var err error
		switch option {
		case "output":
			if err = two(d, &c.Output, &c.Path); err == nil && c.Output != "jsonl" {
				err = d.Errf("unknown store %q; use jsonl", c.Output)
			}
		case "name":
			err = one(d, &c.Name)
		case "key":
			var kind string
			if err = two(d, &kind, &c.Key); err == nil && kind != "ed25519" {
				err = d.Errf("unknown kind of key %q; use ed25519", kind)
			}
		case "key_id":
			err = one(d, &c.KeyID)
		case "secret":
			err = one(d, &c.Secret)
		case "keys":
			err = one(d, &c.KeysFile)
		case "durability":
			err = choice(d, &c.Durability, "written", "durable")
		case "on_failure":
			err = choice(d, &c.OnFailure, onFailureBlock, onFailureAllow, onFailureAllowReads)
		case "checkpoint":
			err = c.unmarshalCheckpoint(d)
		default:
			err = o.unknown()
		}
		if err != nil {
			return err
		}
	}
	c.Source = o.seen
	return nil
}

func (c *LogConfig) unmarshalCheckpoint(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 1 && args[0] == "off" {
		c.CheckpointRecords, c.CheckpointInterval = -1, -1
		return nil
	}
	if len(args) < 2 || args[0] != "every" {
		return d.Err("checkpoint takes off, or every and a number of records, a time or both, as in: every 1000 records 10s")
	}
	args = args[1:]
	if len(args) >= 2 && args[1] == "records" {
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			return d.Errf("%q is not a number of records", args[0])
		}
		c.CheckpointRecords = n
		args = args[2:]
	}
	if len(args) == 1 {
		t, err := caddy.ParseDuration(args[0])
		if err != nil || t <= 0 {
			return d.Errf("%q is not a time", args[0])
		}
		c.CheckpointInterval = caddy.Duration(t)
		args = nil
	}
	if len(args) > 0 {
		return d.ArgErr()
	}
	return nil
}

// two reads exactly two arguments.
func two(d *caddyfile.Dispenser, a, b *string) error {
	name := d.Val()
	if !d.Args(a, b) || d.NextArg() {
		return d.Errf("%s takes exactly two arguments", name)
	}
	return nil
}

// choice reads one argument that must be one of the allowed words.
func choice(d *caddyfile.Dispenser, into *string, allowed ...string) error {
	name := d.Val()
	if err := one(d, into); err != nil {
		return err
	}
	for _, word := range allowed {
		if *into == word {
			return nil
		}
	}
	return d.Errf("%s: unknown value %q; use one of %s", name, *into, strings.Join(allowed, ", "))
}

// UnmarshalCaddyfile parses the handler. Syntax:
//
//	mcp_audit [<matcher>] {
//		log             <name>
//		server_id       <name>
//		client_id       <name or placeholder>
//		identity        <placeholders...>
//		principal {
//			subject   <name>
//			issuer    <name>
//			client_id <name>
//			roles     <names...>
//			scopes    <names...>
//		}
//		policy {
//			default allow|deny
//			scope   all_operations|tools_only
//			rule <id> allow|deny {
//				method <methods...>
//				tool   <tools...>
//				reason <text>
//			}
//		}
//		redact off
//		redact {
//			keys <edits...>
//		}
//		origins         <origins...>
//		max_body        <size>
//		capture         <size>
//		forward_headers Authorization
//		mode            enforce|observe
//		headers         enforce|record|off
//		refusals        off | <n>/s
//		explain
//	}
//
// Every subdirective is optional; a rule may stand without a block.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if err := none(d); err != nil {
		return err
	}
	o := newOptions(d, "log", "server_id", "client_id", "identity", "principal", "policy", "redact", "origins",
		"max_body", "capture", "forward_headers", "mode", "headers", "refusals", "explain")
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if err := o.once(); err != nil {
			return err
		}
		var err error
		switch option {
		case "log":
			err = one(d, &h.Log)
		case "server_id":
			err = one(d, &h.ServerID)
		case "client_id":
			err = one(d, &h.ClientID)
		case "identity":
			h.Identity, err = some(d)
		case "principal":
			h.Principal = new(PrincipalConfig)
			err = h.Principal.unmarshalCaddyfile(d)
		case "policy":
			h.Policy = new(PolicyConfig)
			err = h.Policy.unmarshalCaddyfile(d)
		case "redact":
			h.Redact = new(RedactConfig)
			err = h.Redact.unmarshalCaddyfile(d)
		case "origins":
			h.Origins, err = some(d)
			for _, o := range h.Origins {
				if bad := checkOriginOption(o); bad != nil {
					return d.WrapErr(bad)
				}
			}
		case "max_body":
			err = size(d, &h.MaxBody, largestMaxBody)
		case "capture":
			err = size(d, &h.Capture, largestCapture)
		case "forward_headers":
			h.ForwardHeaders, err = some(d)
		case "mode":
			err = choice(d, &h.Mode, modeEnforce, modeObserve)
		case "headers":
			err = choice(d, &h.Headers, headersEnforce, headersRecord, headersOff)
		case "refusals":
			err = h.unmarshalRefusals(d)
		case "explain":
			h.Explain = true
			err = none(d)
		default:
			err = o.unknown()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *Handler) unmarshalRefusals(d *caddyfile.Dispenser) error {
	var text string
	if err := one(d, &text); err != nil {
		return err
	}
	if text == "off" {
		h.Refusals = -1
		return nil
	}
	n, err := strconv.Atoi(strings.TrimSuffix(text, "/s"))
	if err != nil || n < 1 || !strings.HasSuffix(text, "/s") {
		return d.Errf("refusals: %q is neither off nor a rate as 200/s", text)
	}
	h.Refusals = n
	return nil
}

func (p *PrincipalConfig) unmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if err := none(d); err != nil {
		return err
	}
	o := newOptions(d, "subject", "issuer", "client_id", "roles", "scopes")
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if err := o.once(); err != nil {
			return err
		}
		var err error
		switch option {
		case "subject":
			err = one(d, &p.Subject)
		case "issuer":
			err = one(d, &p.Issuer)
		case "client_id":
			err = one(d, &p.ClientID)
		case "roles":
			p.Roles, err = some(d)
		case "scopes":
			p.Scopes, err = some(d)
		default:
			err = o.unknown()
		}
		if err != nil {
			return err
		}
	}
	if err := p.validate(); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

func (c *PolicyConfig) unmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if err := none(d); err != nil {
		return err
	}
	o := newOptions(d, "default", "scope", "rule")
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		var err error
		switch d.Val() {
		case "default":
			if err = o.once(); err == nil {
				err = choice(d, &c.Default, "allow", "deny")
			}
		case "scope":
			if err = o.once(); err == nil {
				err = choice(d, &c.Scope, "all_operations", "tools_only")
			}
		case "rule":
			var r PolicyRule
			if err = r.unmarshalCaddyfile(d); err == nil {
				c.Rules = append(c.Rules, r)
				// Compiled again when the handler is provisioned; here the
				// mistake has a line.
				if _, bad := c.compile(); bad != nil {
					err = d.WrapErr(bad)
				}
			}
		default:
			err = o.unknown()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *PolicyRule) unmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if !d.Args(&r.ID, &r.Action) || d.NextArg() {
		return d.Err("rule takes an id and an action, as in: rule READ-1 allow { … }")
	}
	if r.Action != "allow" && r.Action != "deny" {
		return d.Errf("rule %s: unknown action %q; use allow or deny", r.ID, r.Action)
	}
	o := newOptions(d, "method", "tool", "reason")
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if err := o.once(); err != nil {
			return err
		}
		var err error
		switch option {
		case "method":
			r.Methods, err = some(d)
		case "tool":
			r.Tools, err = some(d)
		case "reason":
			err = one(d, &r.Reason)
		default:
			err = o.unknown()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *RedactConfig) unmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		if d.Val() != "off" {
			return d.Errf("redact: unknown argument %q; use off, or a block", d.Val())
		}
		c.Off = true
		return none(d)
	}
	o := newOptions(d, "keys")
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if d.Val() != "keys" {
			return o.unknown()
		}
		if err := o.once(); err != nil {
			return err
		}
		keys, err := some(d)
		if err != nil {
			return err
		}
		c.Keys = keys
	}
	return nil
}

// size reads one argument as a number of bytes between 1 and most.
func size(d *caddyfile.Dispenser, into *int64, most int64) error {
	name := d.Val()
	var text string
	if err := one(d, &text); err != nil {
		return err
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n < 1 || n > uint64(most) {
		return d.Errf("%s: %q is not a size from 1B to %s", name, text, humanize.IBytes(uint64(most)))
	}
	*into = int64(n)
	return nil
}

// Interface guards.
var (
	_ caddyfile.Unmarshaler = (*App)(nil)
	_ caddyfile.Unmarshaler = (*Handler)(nil)
)
