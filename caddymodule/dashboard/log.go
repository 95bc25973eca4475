package dashboard

import (
	"context"
	"errors"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Log is what a dashboard shows. Its methods are called concurrently.
type Log interface {
	// Files lists the log's files, oldest first. It is an error if there is none.
	Files() ([]string, error)
	// Verify verifies the log, or what is behind a cursor, which may be nil.
	Verify(ctx context.Context, from *auditlog.Cursor) (*auditlog.Report, error)
	// Prove proves records. ErrNotFound, wrapped, says that there are none.
	Prove(ctx context.Context, want Wanted) (*Proof, error)
	// Beside lists the checkpoints that lie beside the log.
	Beside() []Note
}

// Wanted says what is to be proven: an operation, or else a record.
type Wanted struct {
	Operation string // id of an operation or of a record
	Seq       uint64
	Disclose  []string // committed members; or all
}

// Proof is files that prove records, and how they are checked.
type Proof struct {
	Name   string // of the whole, fit for a file
	Files  []ProofFile
	Checks []string // command lines
	Notes  []string // sentences
}

// ProofFile is one of them.
type ProofFile struct {
	Name string
	Data []byte
}

// Note is a signed checkpoint beside the log.
type Note struct {
	Name    string
	Text    []byte
	Receipt bool // an anchor gave it back
}

// ErrNotFound says that the log has no such record.
var ErrNotFound = errors.New("the log has no such record")
