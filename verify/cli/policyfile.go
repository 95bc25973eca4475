package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// maxConfig bounds the size of a configuration in bytes.
const maxConfig = 64 << 20

// auditHandler is one mcp_audit handler of a configuration.
type auditHandler struct {
	place    string // where it stands, as a path of member names
	serverID string
	policy   *policy.Policy
	written  bool // it has a policy of its own
	redact   []byte
}

// policyFlags choose a handler of a configuration.
type policyFlags struct {
	server string
	number int
}

func (f *policyFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.server, "server", "", "take the handler with this `server_id`")
	cmd.Flags().IntVar(&f.number, "handler", 0, "take the handler of this `number`, from 1, in the order of the configuration")
}

// load reads Caddy's JSON configuration, "-" for standard input, and chooses
// one handler of it.
func (f *policyFlags) load(cmd *cobra.Command, path string) (*auditHandler, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxConfig+1))
	} else {
		text, err = os.ReadFile(path)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the policy: %w", err)
	case len(text) > maxConfig:
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxConfig)
	}
	handlers, err := auditHandlers(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f.choose(handlers, path)
}

func (f *policyFlags) choose(handlers []auditHandler, path string) (*auditHandler, error) {
	if len(handlers) == 0 {
		return nil, fmt.Errorf("%s has no mcp_audit handler; give Caddy's JSON, as `caddy adapt` prints it", path)
	}
	var fit []int
	for i := range handlers {
		if (f.number == 0 || f.number == i+1) && (f.server == "" || f.server == handlers[i].serverID) {
			fit = append(fit, i)
		}
	}
	if len(fit) == 1 {
		return &handlers[fit[0]], nil
	}
	var list strings.Builder
	for i, h := range handlers {
		fmt.Fprintf(&list, "\n  %d  server_id %q at %s", i+1, h.serverID, h.place)
	}
	if len(fit) == 0 {
		return nil, usage("no handler of %s fits --server and --handler; there are%s", path, list.String())
	}
	return nil, usage("%s has several mcp_audit handlers; choose one with --server or --handler%s", path, list.String())
}

// auditHandlers finds the handlers of a configuration and compiles their
// policies. The text is read strictly: names that are repeated, or unknown in a
// policy, are errors, as they are when Caddy loads it.
func auditHandlers(text []byte) ([]auditHandler, error) {
	if v := canon.Check(bytes.TrimSpace(text)); v != canon.None {
		return nil, fmt.Errorf("it is no strict JSON (%s); give Caddy's JSON, as `caddy adapt` prints it", v)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var config any
	if err := d.Decode(&config); err != nil {
		return nil, err
	}
	return appendHandlers(nil, config, "")
}

func appendHandlers(dst []auditHandler, value any, place string) (_ []auditHandler, err error) {
	switch v := value.(type) {
	case []any:
		for i, element := range v {
			if dst, err = appendHandlers(dst, element, fmt.Sprintf("%s[%d]", place, i)); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		if v["handler"] == "mcp_audit" {
			h, err := newAuditHandler(v, strings.TrimPrefix(place, "."))
			return append(dst, h), err
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if dst, err = appendHandlers(dst, v[name], place+"."+name); err != nil {
				return nil, err
			}
		}
	}
	return dst, nil
}

func newAuditHandler(members map[string]any, place string) (auditHandler, error) {
	h := auditHandler{place: place}
	h.serverID, _ = members["server_id"].(string)
	var doc *policy.Document
	if written, ok := members["policy"]; ok && written != nil {
		text, err := json.Marshal(written)
		if err != nil {
			return h, err
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&doc); err != nil {
			return h, fmt.Errorf("the policy at %s: %w", place, err)
		}
		h.written = true
	}
	var err error
	if written, ok := members["redact"]; ok && written != nil {
		if h.redact, err = json.Marshal(written); err != nil {
			return h, err
		}
	}
	if h.policy, err = doc.Compile(); err != nil {
		return h, fmt.Errorf("the policy at %s: %w", place, err)
	}
	return h, nil
}
