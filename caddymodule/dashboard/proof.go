package dashboard

import (
	"archive/zip"
	"bytes"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// serveProof answers with an archive of what `mcp-audit prove` writes, and of
// how it is checked.
func (h *Handler) serveProof(w http.ResponseWriter, r *http.Request, id string) error {
	want := Wanted{Operation: id}
	for name, list := range r.URL.Query() {
		switch name {
		case "disclose":
			for _, v := range list {
				want.Disclose = append(want.Disclose, strings.FieldsFunc(v, func(r rune) bool { return r == ',' })...)
			}
		default:
			return badRequest("there is no parameter %q", name)
		}
	}
	x, _, err := h.follower.current()
	if err != nil {
		return err
	}
	found, err := h.find(r.Context(), x, id)
	if err != nil {
		return err
	}
	if strings.HasPrefix(id, "seq-") {
		want.Operation, want.Seq = "", found[0].Seq
	}
	if err := h.record(r, "proof of "+id); err != nil {
		return err
	}
	select {
	case h.proofs <- struct{}{}:
		defer func() { <-h.proofs }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	p, err := h.o.Log.Prove(r.Context(), want)
	if errors.Is(err, auditlog.ErrNoCheckpoint) {
		return &apiError{http.StatusConflict, "no signed checkpoint covers these records yet; ask again after the next one"}
	}
	if err != nil {
		return err
	}
	archive, err := p.zip()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/zip")
	w.Header().Set("Content-Disposition", `attachment; filename="`+p.Name+`.zip"`)
	// A reader who went away is nobody to tell.
	_, _ = w.Write(archive)
	return nil
}

func (p *Proof) zip() ([]byte, error) {
	var text strings.Builder
	text.WriteString("How to check that these records stand in the log, with the public key that\nyou were given by a way of its own (compare it with the one below):\n\n")
	for _, c := range p.Checks {
		text.WriteString("  " + c + "\n")
	}
	for _, n := range p.Notes {
		text.WriteString("\nnote: " + n + "\n")
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range append(p.Files, ProofFile{"README.txt", []byte(text.String())}) {
		w, err := z.CreateHeader(&zip.FileHeader{Name: f.Name, Method: zip.Deflate, Modified: time.Now()})
		if err == nil {
			_, err = w.Write(f.Data)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
