package index

import (
	"errors"
	"fmt"
)

// ErrNoCGO is returned, wrapped, by a program that was built without cgo.
var ErrNoCGO = errors.New("this program was built without cgo, which SQLite needs; build it with CGO_ENABLED=1 and a C compiler")

// StaleError says that the log does not have, at the place that the index
// names, the record that was indexed: the file was replaced or changed since.
type StaleError struct {
	Path string // of the log file
	Line int64  // line, or record of a database, counted from 1
	Why  string // a clause, lower case
}

// Error names the file, the line, the reason and the remedy.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%s line %d is not the record that was indexed (%s); run `mcp-audit index --rebuild`, and `mcp-audit verify` to see whether the log was changed", e.Path, e.Line, e.Why)
}

// Available says whether this program can use an index: ErrNoCGO if not.
func Available() error { return available }
