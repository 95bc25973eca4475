package dashboard

import "net/http"

// statusAnswer is what the page's frame shows.
type statusAnswer struct {
	Name       string     `json:"name"`
	Path       string     `json:"path"`
	Version    string     `json:"version"`
	Login      bool       `json:"login"`       // there is a token, and so a way to log out
	AuditReads bool       `json:"audit_reads"` // reading is recorded
	Writer     bool       `json:"writer"`      // the log's writer is in this process
	Healthy    *bool      `json:"healthy"`     // null: unknown
	Error      string     `json:"error,omitempty"`
	Open       int        `json:"open_operations"`
	Behind     bool       `json:"behind"`
	IndexError string     `json:"index_error,omitempty"`
	Notes      []string   `json:"notes"`
	Watermarks watermarks `json:"watermarks"`
}

func (h *Handler) serveStatus(w http.ResponseWriter, r *http.Request) error {
	for name := range r.URL.Query() {
		return badRequest("there is no parameter %q", name)
	}
	a := h.frame(r)
	return answer(w, a)
}

func (h *Handler) frame(r *http.Request) *statusAnswer {
	a := &statusAnswer{
		Name: h.o.Name, Path: h.o.Path, Version: h.o.Version, Login: !h.gate.open, AuditReads: h.o.Record != nil, Notes: []string{},
	}
	behind, notes, err := h.follower.state()
	a.Behind, a.Notes = behind, append(a.Notes, notes...)
	if err != nil {
		a.IndexError = err.Error()
	}
	if s := h.status(); s != nil {
		a.Writer, a.Healthy, a.Error, a.Open = true, &s.Healthy, s.Err, s.OpenIntents
	}
	a.Watermarks = h.verifier.answer().Watermarks
	if err := h.mark(r.Context(), &a.Watermarks); err != nil && a.IndexError == "" {
		a.IndexError = err.Error()
	}
	return a
}
