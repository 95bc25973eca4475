package auditlog

import (
	"fmt"
	"hash/crc32"
	"testing"
)

// WithChecksum makes a state document of a line, as one who plants it would.
func WithChecksum(line []byte) []byte {
	doc := append(append([]byte(nil), line...), '\n')
	return fmt.Appendf(doc, "crc32c:%08x\n", crc32.Checksum(doc, castagnoli))
}

// DatabaseOf makes a source that is a SQLite database of the given lines. It is
// nil without cgo; an error says that a database cannot hold them.
var DatabaseOf func(t testing.TB, name string, lines []string) (Source, error)
