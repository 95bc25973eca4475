package export

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Writer writes rows in one format. It is not safe for concurrent use.
type Writer interface {
	// Write writes one row. It keeps nothing of it.
	Write(*Row) error
}

// Options are what formats other than JSON lines and CSV need to know.
type Options struct {
	Version string // of the product
	Host    string // HOSTNAME of syslog lines; "": none
	// Octets puts the length in bytes before each syslog line (RFC 6587 octet
	// counting) in place of a line feed behind it.
	Octets bool
}

// Formats lists the names of the formats.
func Formats() []string { return []string{"jsonl", "csv", "ocsf", "cef", "syslog"} }

// New returns a writer of a format. Each row is one call of w.Write.
func New(format string, w io.Writer, o Options) (Writer, error) {
	switch format {
	case "jsonl":
		return &jsonLines{w: w}, nil
	case "csv":
		return newCSV(w)
	case "ocsf":
		return &ocsf{w: w, version: o.Version}, nil
	case "cef":
		return &cef{w: w, version: o.Version}, nil
	case "syslog":
		return &syslog{w: w, host: o.Host, octets: o.Octets}, nil
	}
	return nil, fmt.Errorf("there is no format %q; the formats are %s", format, strings.Join(slices.Sorted(slices.Values(Formats())), ", "))
}
