package caddymodule

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func init() {
	caddy.RegisterModule(adminAPI{})
}

// adminAPI serves the state of the audit logs under /mcp_audit/ of Caddy's
// admin endpoint: GET /mcp_audit/status answers 200 if every log can be
// written and 503 if one cannot, so that it can serve as a readiness probe;
// POST /mcp_audit/checkpoint signs a checkpoint of every log. It changes no
// configuration.
type adminAPI struct{}

// CaddyModule returns the Caddy module information.
func (adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.mcp_audit",
		New: func() caddy.Module { return new(adminAPI) },
	}
}

// Routes implements caddy.AdminRouter.
func (adminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/mcp_audit/status", Handler: caddy.AdminHandlerFunc(serveStatus)},
		{Pattern: "/mcp_audit/checkpoint", Handler: caddy.AdminHandlerFunc(serveCheckpoint)},
	}
}

// logStatus is one log in the answer of /mcp_audit/status.
type logStatus struct {
	Path                string          `json:"path"`
	OpenOperations      int             `json:"open_operations"`
	ForwardedUnrecorded uint64          `json:"forwarded_unrecorded"`
	Refused             uint64          `json:"refused_unrecordable"`
	Status              auditlog.Status `json:"log"`
}

func serveStatus(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		return methodNotAllowed(r)
	}
	healthy := true
	states := []logStatus{}
	eachLog(func(s *sharedLog) {
		state := logStatus{
			Path:                s.path,
			OpenOperations:      s.open.count(),
			ForwardedUnrecorded: s.outage.forwarded.Load(),
			Refused:             s.outage.refused.Load(),
		}
		if log := s.current(); log != nil {
			state.Status = log.Status()
		}
		healthy = healthy && state.Status.Healthy
		states = append(states, state)
	})
	slices.SortFunc(states, func(a, b logStatus) int { return strings.Compare(a.Path, b.Path) })
	status := http.StatusOK
	if !healthy {
		status = http.StatusServiceUnavailable
	}
	return writeJSON(w, status, map[string]any{"healthy": healthy, "logs": states})
}

func serveCheckpoint(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		return methodNotAllowed(r)
	}
	notes := make(map[string]string)
	var failed error
	eachLog(func(s *sharedLog) {
		log := s.current()
		if log == nil {
			return
		}
		note, err := log.Checkpoint(r.Context())
		if err != nil {
			failed = err
			return
		}
		notes[s.path] = string(note)
	})
	if failed != nil {
		return caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: failed}
	}
	return writeJSON(w, http.StatusOK, map[string]any{"checkpoints": notes})
}

func eachLog(f func(*sharedLog)) {
	logs.Range(func(_, v any) bool {
		f(v.(*sharedLog))
		return true
	})
}

func methodNotAllowed(r *http.Request) error {
	return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Message: "method " + r.Method + " is not allowed here"}
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(v)
}

// Interface guards.
var _ caddy.AdminRouter = adminAPI{}
