package caddymodule

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
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

// place is where the current token stands.
func place(d *caddyfile.Dispenser) string { return fmt.Sprintf("%s:%d", d.File(), d.Line()) }

// at adds the current place to an error; no error stays none.
func at(d *caddyfile.Dispenser, err error) error {
	if err == nil {
		return nil
	}
	return d.WrapErr(err)
}

// block parses the subdirectives of the current directive with the function of
// their name. One that is unknown is an error that lists what exists, and each
// may stand once, except those that repeat. It returns where each stands.
func block(d *caddyfile.Dispenser, options map[string]func() error, repeat ...string) (map[string]string, error) {
	seen := make(map[string]string)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		parse, known := options[name]
		if !known {
			return nil, d.Errf("unrecognized subdirective %q; %s",
				name, policy.Hint(name, slices.Sorted(maps.Keys(options))))
		}
		if first, dup := seen[name]; dup && !slices.Contains(repeat, name) {
			return nil, d.Errf("%s is given twice, first at %s; keep one", name, first)
		}
		seen[name] = place(d)
		if err := parse(); err != nil {
			return nil, err
		}
	}
	return seen, nil
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
func some(d *caddyfile.Dispenser, into *[]string) error {
	name := d.Val()
	if *into = d.RemainingArgs(); len(*into) == 0 {
		return d.Errf("%s takes one or more arguments", name)
	}
	return nil
}

// UnmarshalCaddyfile parses the global option. Syntax:
//
//	mcp_audit {
//		log [<name>] {
//			output     jsonl <path> {
//				rotate_size  <size>
//				rotate_every hour|day
//				keep_files   <n>
//				keep_for     <duration>
//				compress     [gzip]
//			}
//			output     sqlite <path> {
//				synchronous full|normal
//			}
//			name       <origin name>
//			key        ed25519 <JWK or PEM, by placeholder>
//			key_id     <id>
//			secret     <secret, by placeholder>
//			keys       <path of the key file>
//			key_mode   static|evolving
//			durability written|durable
//			on_failure block|allow|allow_reads
//			checkpoint off | every [<n> records] [<duration>]
//			anchor     file <path> | witness <url> <vkey> | command <program> [<arguments...>] {
//				required
//				timeout <duration>    (of a command)
//			}
//			compat     v2
//			commit     none | payload|params|result|error|principal|mcp_name...
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
	_, err := block(d, map[string]func() error{"log": func() error { return a.unmarshalLog(d) }}, "log")
	return err
}

func (a *App) unmarshalLog(d *caddyfile.Dispenser) error {
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
	return nil
}

func (c *LogConfig) unmarshalCaddyfile(d *caddyfile.Dispenser) (err error) {
	var rotation map[string]string
	c.Source, err = block(d, map[string]func() error{
		"output": func() (err error) {
			if err := two(d, &c.Output, &c.Path); err != nil {
				return err
			}
			switch c.Output {
			case storeJSONL:
				rotation, err = c.unmarshalRotation(d)
				return err
			case storeSQLite:
				return c.unmarshalSQLite(d)
			}
			return d.Errf("unknown store %q; use %s or %s", c.Output, storeJSONL, storeSQLite)
		},
		"name": func() error { return one(d, &c.Name) },
		"key": func() error {
			var kind string
			if err := two(d, &kind, &c.Key); err != nil {
				return err
			}
			if kind != "ed25519" {
				return d.Errf("unknown kind of key %q; use ed25519", kind)
			}
			return nil
		},
		"key_id":     func() error { return one(d, &c.KeyID) },
		"secret":     func() error { return one(d, &c.Secret) },
		"keys":       func() error { return one(d, &c.KeysFile) },
		"key_mode":   func() error { return choice(d, &c.KeyMode, "static", "evolving") },
		"durability": func() error { return choice(d, &c.Durability, "written", "durable") },
		"on_failure": func() error {
			return choice(d, &c.OnFailure, onFailureBlock, onFailureAllow, onFailureAllowReads)
		},
		"checkpoint": func() error { return c.unmarshalCheckpoint(d) },
		"anchor":     func() error { return c.unmarshalAnchor(d) },
		"commit":     func() error { return some(d, &c.Commit) },
		"compat":     func() error { return choice(d, &c.Compat, compatV2) },
	}, "anchor")
	if err == nil {
		maps.Copy(c.Source, rotation)
	}
	return err
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
//		identity        <placeholders...> { … }    (see unmarshalIdentity)
//		principal {
//			subject   <name>
//			issuer    <name>
//			client_id <name>
//			roles     <names...>
//			scopes    <names...>
//		}
//		policy { … }    (see unmarshalPolicy)
//		rate_limit <requests>/<duration> by <keys...> { … }    (see unmarshalRateLimit)
//		redact off
//		redact {                                               (see unmarshalRedact)
//			keys    <edits...>
//			detect  none | <kinds...>
//			pattern <name> <RE2>
//			path    <JSON paths...>
//			tag     on|off
//			wire    on|off
//		}
//		hide_denied
//		pin_tools       [enforce|record] { file <path> }
//		origins         <origins...>
//		max_body        <size>
//		capture         <size>
//		forward_headers <headers...>
//		upstream_token  <{file.*} or {env.*}>
//		mode            enforce|observe
//		headers         enforce|record|off
//		tool_labels     on|off
//		refusals        off | <n>/s
//		session_ttl     <duration>
//		keepalive       <duration>
//		block_foreign_endpoint
//		hold_answers
//		explain
//	}
//
// Every subdirective is optional.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if err := none(d); err != nil {
		return err
	}
	_, err := block(d, map[string]func() error{
		"log":                    func() error { return one(d, &h.Log) },
		"server_id":              func() error { return one(d, &h.ServerID) },
		"client_id":              func() error { return one(d, &h.ClientID) },
		"identity":               func() error { return h.unmarshalIdentity(d) },
		"principal":              func() error { h.Principal = new(PrincipalConfig); return h.Principal.unmarshalCaddyfile(d) },
		"policy":                 func() (err error) { h.Policy, err = unmarshalPolicy(d); return err },
		"rate_limit":             func() error { return h.unmarshalRateLimit(d) },
		"redact":                 func() error { h.Redact = new(redact.Document); return unmarshalRedact(d, h.Redact) },
		"hide_denied":            func() error { h.HideDenied = true; return none(d) },
		"pin_tools":              func() (err error) { h.PinTools, err = unmarshalPins(d); return err },
		"origins":                func() error { return h.unmarshalOrigins(d) },
		"max_body":               func() error { return size(d, &h.MaxBody, largestMaxBody) },
		"capture":                func() error { return size(d, &h.Capture, largestCapture) },
		"forward_headers":        func() error { return some(d, &h.ForwardHeaders) },
		"mode":                   func() error { return choice(d, &h.Mode, modeEnforce, modeObserve) },
		"headers":                func() error { return choice(d, &h.Headers, headersEnforce, headersRecord, headersOff) },
		"upstream_token":         func() error { return h.unmarshalUpstreamToken(d) },
		"refusals":               func() error { return h.unmarshalRefusals(d) },
		"session_ttl":            func() error { return duration(d, &h.SessionTTL, shortestSessionTTL, longestSessionTTL) },
		"keepalive":              func() error { return duration(d, &h.Keepalive, shortestKeepalive, longestKeepalive) },
		"hold_answers":           func() error { h.HoldAnswers = true; return none(d) },
		"block_foreign_endpoint": func() error { h.BlockForeignEndpoint = true; return none(d) },
		"tool_labels":            func() error { return choice(d, &h.ToolLabels, "on", "off") },
		"explain":                func() error { h.Explain = true; return none(d) },
	}, "rate_limit")
	return err
}

func (h *Handler) unmarshalOrigins(d *caddyfile.Dispenser) error {
	if err := some(d, &h.Origins); err != nil {
		return err
	}
	for _, o := range h.Origins {
		if err := at(d, checkOriginOption(o)); err != nil {
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
	_, err := block(d, map[string]func() error{
		"subject":   func() error { return one(d, &p.Subject) },
		"issuer":    func() error { return one(d, &p.Issuer) },
		"client_id": func() error { return one(d, &p.ClientID) },
		"roles":     func() error { return some(d, &p.Roles) },
		"scopes":    func() error { return some(d, &p.Scopes) },
	})
	if err != nil {
		return err
	}
	return at(d, p.validate())
}

// duration reads one argument as a time between shortest and longest.
func duration(d *caddyfile.Dispenser, into *caddy.Duration, shortest, longest time.Duration) error {
	name := d.Val()
	var text string
	if err := one(d, &text); err != nil {
		return err
	}
	t, err := caddy.ParseDuration(text)
	if err != nil || t < shortest || t > longest {
		return d.Errf("%s: %q is not a time from %s to %s, as in 15s or 1h", name, text, shortest, longest)
	}
	*into = caddy.Duration(t)
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
