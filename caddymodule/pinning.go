package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/pins"
)

// PinConfig pins the definitions of a server's tools: name, title, description,
// schemas and annotations. The first list pins them, and so does a list that has
// a tool which was not there before.
type PinConfig struct {
	// `enforce` hides and refuses a tool whose definition was changed, or which
	// took over another's, until `mcp-audit pins approve`. `record` only records
	// it. Default: enforce.
	Mode string `json:"mode,omitempty"`

	// The file with the pins. Handlers of one server_id must have the same.
	// Default: pins.json beside the log.
	File string `json:"file,omitempty"`
}

const (
	pinEnforce = "enforce"
	pinRecord  = "record"
)

// pinStores holds one pin file for all handlers that use it.
var pinStores = caddy.NewUsagePool()

type pinStore struct{ *pins.Store }

// Destruct implements caddy.Destructor.
func (pinStore) Destruct() error { return nil }

// provisionPins reads the pin file. One that cannot be read fails the load.
func (h *Handler) provisionPins(app *App) error {
	if h.PinTools == nil {
		return nil
	}
	switch h.PinTools.Mode {
	case "":
		h.PinTools.Mode = pinEnforce
	case pinEnforce, pinRecord:
	default:
		return fmt.Errorf("mcp_audit: pin_tools: unknown mode %q; use enforce or record", h.PinTools.Mode)
	}
	path := h.PinTools.File
	if path == "" {
		path = filepath.Join(filepath.Dir(h.settings.Path), "pins.json")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("mcp_audit: pin_tools: %w", err)
	}
	if app.pinFiles == nil {
		app.pinFiles = make(map[string]string)
	}
	if other, ok := app.pinFiles[h.ServerID]; ok && other != path {
		return fmt.Errorf("mcp_audit: pin_tools: the tools of server_id %q are pinned in %s and in %s; use one file for them", h.ServerID, other, path)
	}
	app.pinFiles[h.ServerID] = path
	v, _, err := pinStores.LoadOrNew(path, func() (caddy.Destructor, error) {
		s, err := pins.Open(path)
		return pinStore{s}, err
	})
	if err != nil {
		return fmt.Errorf("mcp_audit: pin_tools: %w", err)
	}
	h.pins, h.pinPath = v.(pinStore).Store, path
	return nil
}

// releasePins gives the pin file back.
func (h *Handler) releasePins() {
	if h.pins != nil {
		_, _ = pinStores.Delete(h.pinPath)
	}
}

// enforcesPins reports whether changed tools are hidden and refused.
func (h *Handler) enforcesPins() bool {
	return h.pins != nil && h.PinTools.Mode == pinEnforce && !h.observe()
}

// The reasons of a refusal for a pin.
const (
	pinRule           = "pin_tools"
	definitionChanged = "definition_changed"
	pinsUnreadable    = "pins_unreadable"
)

// withheld says why a tool must not be listed or called; empty if it may.
func (x *exchange) withheld(tool string) string {
	why, err := x.h.pins.Withheld(x.h.ServerID, tool)
	switch {
	case err != nil:
		x.h.logger.Error("the tool pins cannot be read, so that tools are refused", zap.Error(err))
		return pinsUnreadable
	case why != "":
		return definitionChanged
	}
	return ""
}

// checkPin refuses the call of a tool whose definition is withheld, in the same
// words as a policy does.
func (x *exchange) checkPin(m *mcp.Message, base *auditlog.Message) *refusal {
	if x.h.pins == nil || base.Method != methodToolsCall {
		return nil
	}
	why := x.withheld(mcp.Text(m.Name.Of(x.body)))
	if why == "" {
		return nil
	}
	base.Anomaly = append(base.Anomaly, why)
	if !x.h.enforcesPins() {
		return nil
	}
	base.Policy = &auditlog.Policy{Decision: "deny", RuleID: pinRule, Reason: why, Digest: x.h.digest}
	return &refusal{
		status: http.StatusOK, code: mcp.DeniedCode(mcp.Modern(base.ProtocolVersion)),
		reason: "policy", message: deniedMessage, decided: base, m: m,
	}
}

// seeTools compares a list with what is pinned, and records what differs.
func (x *exchange) seeTools(o *operation, m *mcp.Message, data []byte) error {
	tools, whole := listedTools(o, m, data)
	if len(tools) == 0 && (o == nil || o.method != methodToolsList) {
		return nil
	}
	changes, err := x.h.pins.See(x.h.ServerID, tools, whole, time.Now())
	if err != nil {
		x.h.logger.Error("tools could not be compared with their pins", zap.Error(err))
		x.noteAnomaly(pinsUnreadable)
		return err
	}
	for kind, list := range byKind(changes) {
		x.recordPins(kind, list)
	}
	return nil
}

func byKind(changes []pins.Change) map[string][]pins.Change {
	kinds := make(map[string][]pins.Change)
	for _, c := range changes {
		kinds[c.Kind] = append(kinds[c.Kind], c)
	}
	return kinds
}

// recordPins records changes of one kind as one event.
func (x *exchange) recordPins(kind string, changes []pins.Change) {
	text, err := pinText(changes)
	if err != nil {
		x.h.logger.Error("a change of tools could not be put in words", zap.Error(err))
	}
	base := x.message(nil)
	base.Direction, base.Method, base.Reason = auditlog.ServerToClient, methodToolsList, "tools "+kind
	if kind == pins.Changed || kind == pins.Renamed {
		base.Anomaly = append(base.Anomaly, definitionChanged)
		for _, c := range changes {
			x.h.events.definitionChanged(x.h, &c)
		}
	}
	if len(changes) == 1 {
		base.ToolName = x.h.redact.Text(changes[0].Tool)
		base.MCPName = base.ToolName
	}
	x.eventAfter(auditlog.Event{Message: base, Params: x.payload("", text, int(x.h.Capture)), Request: text})
}

// pinText is what a record says of changes: of a new tool its digest, of others
// the places where the definitions differ.
func pinText(changes []pins.Change) ([]byte, error) {
	out := []byte(`{"changes":[`)
	for i, c := range changes {
		if i > 0 {
			out = append(out, ',')
		}
		out = canon.AppendString(append(out, `{"change":`...), c.Kind)
		if c.Kind == pins.Changed || c.Kind == pins.Renamed {
			diff, err := json.Marshal(pins.Diff(c.Old, c.New))
			if err != nil {
				return nil, err
			}
			out = append(append(out, `,"diff":`...), diff...)
		}
		if c.From != "" {
			out = canon.AppendString(append(out, `,"from":`...), c.From)
		}
		if c.New != nil {
			out = canon.AppendString(append(out, `,"digest":`...), pins.Digest(c.New))
		}
		out = canon.AppendString(append(out, `,"tool":`...), c.Tool)
		out = append(out, '}')
	}
	return append(out, "]}"...), nil
}

// unmarshalPins parses the subdirective. Syntax:
//
//	pin_tools [enforce|record] {
//		file <path>
//	}
func unmarshalPins(d *caddyfile.Dispenser) (*PinConfig, error) {
	c := new(PinConfig)
	if d.NextArg() {
		if c.Mode = d.Val(); c.Mode != pinEnforce && c.Mode != pinRecord {
			return nil, d.Errf("pin_tools: unknown mode %q; use enforce or record", c.Mode)
		}
	}
	if err := none(d); err != nil {
		return nil, err
	}
	_, err := block(d, map[string]func() error{"file": func() error { return one(d, &c.File) }})
	return c, err
}
