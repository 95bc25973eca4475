package caddymodule

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/anchor"
)

// AnchorConfig is a place outside of this machine's reach that a log's
// checkpoints are taken to.
type AnchorConfig struct {
	// The kind of anchor: `file`, `witness` or `command`.
	Type string `json:"type,omitempty"`

	// file: the file that each newer checkpoint replaces, or an existing folder
	// that gets one file for each checkpoint.
	Path string `json:"path,omitempty"`

	// witness: its address (submission prefix), http or https.
	URL string `json:"url,omitempty"`

	// witness: its public key, as `mcp-audit witness --print-vkey` prints it.
	VKey string `json:"vkey,omitempty"`

	// command: the program and its arguments. It is run without a shell and
	// gets the checkpoint on standard input; exit code 0 says that it is
	// anchored, and what it prints is kept as the receipt.
	Command []string `json:"command,omitempty"`

	// command: how long it may take. Default: 30s; from 1s to 1h.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// While a required anchor fails, the log takes no new record, and calls are
	// handled as `on_failure` says. Default: false, anchors hold up nothing.
	Required bool `json:"required,omitempty"`
}

// The values of AnchorConfig.Type.
const (
	anchorFile    = "file"
	anchorWitness = "witness"
	anchorCommand = "command"

	shortestAnchorTimeout = time.Second
	longestAnchorTimeout  = time.Hour
)

// check checks the configuration and returns the anchor. It opens nothing.
func (c *AnchorConfig) check() (anchor.Anchor, error) {
	foreign := map[string]bool{
		"path": c.Path != "" && c.Type != anchorFile, "url": c.URL != "" && c.Type != anchorWitness,
		"vkey": c.VKey != "" && c.Type != anchorWitness, "command": len(c.Command) > 0 && c.Type != anchorCommand,
		"timeout": c.Timeout != 0 && c.Type != anchorCommand,
	}
	for _, name := range []string{"path", "url", "vkey", "command", "timeout"} {
		if foreign[name] && (c.Type == anchorFile || c.Type == anchorWitness || c.Type == anchorCommand) {
			return nil, fmt.Errorf("an anchor of type %s has no %s; remove it", c.Type, name)
		}
	}
	if t := time.Duration(c.Timeout); t != 0 && (t < shortestAnchorTimeout || t > longestAnchorTimeout) {
		return nil, fmt.Errorf("the timeout of an anchor is %s; use %s to %s", t, shortestAnchorTimeout, longestAnchorTimeout)
	}
	switch c.Type {
	case anchorFile:
		return anchor.NewFile(c.Path, nil)
	case anchorWitness:
		return anchor.NewWitness(c.URL, c.VKey, nil)
	case anchorCommand:
		return anchor.NewCommand(c.Command, time.Duration(c.Timeout))
	}
	return nil, fmt.Errorf("unknown anchor %q; use file, witness or command", c.Type)
}

// key is what two anchors must not have in common.
func (c *AnchorConfig) key() string {
	if c.Type == anchorWitness {
		if u, err := url.Parse(c.URL); err == nil {
			return c.Type + " " + strings.TrimSuffix(u.String(), "/")
		}
	}
	return c.Type + " " + c.Path + strings.Join(c.Command, "\x00")
}

// checkAnchors checks a list, and that no anchor stands in it twice.
func checkAnchors(list []AnchorConfig) error {
	seen := map[string]bool{}
	for _, c := range list {
		if _, err := c.check(); err != nil {
			return err
		}
		if seen[c.key()] {
			return fmt.Errorf("the anchor %s is given twice; keep one", strings.ReplaceAll(c.key(), "\x00", " "))
		}
		seen[c.key()] = true
	}
	return nil
}

// checkWritten is checkAnchors for a list whose placeholders are not resolved:
// an anchor that has some is left out.
func checkWritten(list []AnchorConfig) error {
	var plain []AnchorConfig
	for _, c := range list {
		if !strings.Contains(c.Path+c.URL+c.VKey+strings.Join(c.Command, ""), "{") {
			plain = append(plain, c)
		}
	}
	return checkAnchors(plain)
}

// resolveAnchors resolves the placeholders of the anchors and checks them.
func (s *logSettings) resolveAnchors() error {
	resolved := make([]AnchorConfig, 0, len(s.Anchors))
	for _, c := range s.Anchors {
		c.Command = append([]string(nil), c.Command...)
		texts := []*string{&c.Path, &c.URL, &c.VKey}
		for i := range c.Command {
			texts = append(texts, &c.Command[i])
		}
		for _, text := range texts {
			var err error
			if *text, err = s.placeholder("anchor", *text); err != nil {
				return err
			}
		}
		resolved = append(resolved, c)
	}
	if err := checkAnchors(resolved); err != nil {
		return s.fault("anchor", err)
	}
	s.anchors = resolved
	return nil
}

// anchorSet starts the anchors of an open log, or returns nil if there are none.
func (s *logSettings) anchorSet(log *auditlog.Log) (auditlog.AnchorSet, error) {
	if len(s.anchors) == 0 {
		return nil, nil
	}
	o := anchor.Options{
		Log: s.Path, VKey: func() string { return log.Status().VKey }, Logger: s.logger,
		Sources: s.sources,
	}
	for i := range s.anchors {
		a, err := s.anchors[i].check()
		if err != nil {
			return nil, s.fault("anchor", err)
		}
		o.Targets = append(o.Targets, anchor.Target{Anchor: a, Required: s.anchors[i].Required})
	}
	return anchor.New(o), nil
}

// unmarshalAnchor parses one anchor:
//
//	anchor file <path>
//	anchor witness <url> <vkey>
//	anchor command <program> [<arguments...>]
//
// each with an optional block of `required` and, for a command, `timeout`.
func (c *LogConfig) unmarshalAnchor(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.Err("anchor takes file and a path, witness, its address and its key, or command and a program")
	}
	a := AnchorConfig{Type: args[0]}
	args = args[1:]
	switch a.Type {
	case anchorFile:
		if len(args) != 1 {
			return d.Err("anchor file takes exactly one path")
		}
		a.Path = args[0]
	case anchorWitness:
		if len(args) != 2 {
			return d.Err("anchor witness takes its address and its key, as `mcp-audit witness --print-vkey` prints it")
		}
		a.URL, a.VKey = args[0], args[1]
	case anchorCommand:
		if len(args) == 0 {
			return d.Err("anchor command takes a program, and may take arguments")
		}
		a.Command = args
	default:
		return d.Errf("unknown anchor %q; use file, witness or command", a.Type)
	}
	// What stands on the line is checked while the line is known; placeholders
	// are resolved, and checked, when the app is provisioned.
	if err := at(d, checkWritten(append(c.Anchors[:len(c.Anchors):len(c.Anchors)], a))); err != nil {
		return err
	}
	options := map[string]func() error{"required": func() error { a.Required = true; return none(d) }}
	if a.Type == anchorCommand {
		options["timeout"] = func() error { return duration(d, &a.Timeout, shortestAnchorTimeout, longestAnchorTimeout) }
	}
	if _, err := block(d, options); err != nil {
		return err
	}
	c.Anchors = append(c.Anchors, a)
	return nil
}
