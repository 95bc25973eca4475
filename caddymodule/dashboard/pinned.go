package dashboard

import (
	"path/filepath"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/pins"
)

// pinned is what is pinned of a tool now.
type pinned struct {
	// State is pinned, changed or renamed (another definition waits for an
	// approval), rejected, or gone (the tool is not listed any more).
	State   string    `json:"state"`
	Digest  string    `json:"digest,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Pending string    `json:"pending_digest,omitempty"`
	From    string    `json:"from,omitempty"` // former name of a renamed tool
	Error   string    `json:"error,omitempty"`
}

// pin looks a tool up in the pin file; nil: nothing is pinned of it.
func (h *Handler) pin(server, tool string) *pinned {
	if tool == "" {
		return nil
	}
	path := h.o.Pins
	if path == "" {
		path = filepath.Join(filepath.Dir(h.o.Path), "pins.json")
	}
	store, err := pins.Open(path)
	if err != nil {
		return &pinned{State: "unknown", Error: err.Error()}
	}
	list, err := store.List()
	if err != nil {
		return &pinned{State: "unknown", Error: err.Error()}
	}
	for _, e := range list {
		if e.Server != server || e.Tool != tool {
			continue
		}
		p := &pinned{State: "pinned", From: e.From}
		if e.Pinned != nil {
			p.Digest, p.Since = e.Pinned.Digest, e.Pinned.Since
		}
		switch {
		case e.Pending != nil && e.Rejected == e.Pending.Digest:
			p.State, p.Pending = "rejected", e.Pending.Digest
		case e.Pending != nil:
			p.State, p.Pending = e.Why, e.Pending.Digest
		case e.Gone:
			p.State = "gone"
		}
		return p
	}
	return nil
}
