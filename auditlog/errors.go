package auditlog

import (
	"errors"
	"fmt"
)

// ErrUnavailable is what every call returns, wrapped, whose record could not
// be acknowledged: the disk is full or failing, an outcome is still owed, the
// log was tampered with or is closed, or the caller's context ended first.
// Whoever gets it must not forward the message, unless the operator allowed it.
var ErrUnavailable = errors.New("the audit log is unavailable")

// ErrTooLarge is returned, wrapped, for a record whose line would exceed
// MaxLine.
var ErrTooLarge = errors.New("the record is larger than 32 MiB")

// ErrClosed is returned, wrapped together with ErrUnavailable, after Close.
var ErrClosed = errors.New("the audit log is closed")

// MaxLine is the largest record line in bytes, its line feed included.
const MaxLine = 32 << 20

// RefusedError says why a log may not be continued: what lies on the disk is
// not what this log's state says was written. Nothing is changed. Only a new
// incarnation (Recover) goes on.
type RefusedError struct {
	Path    string // of the log
	Why     string // a clause, lower case
	Remedy  string // a clause, lower case
	Finding string // the verifier's name for it, for example "state_invalid"
}

// Error is one sentence that names the log, the reason and the remedy.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("refusing to write audit log %s: %s (%s); %s", e.Path, e.Why, e.Finding, e.Remedy)
}

// unavailable wraps a cause so that errors.Is finds both.
func unavailable(cause error) error {
	if cause == nil || errors.Is(cause, ErrUnavailable) {
		return cause
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, cause)
}
