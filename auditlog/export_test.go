package auditlog

import (
	"fmt"
	"hash/crc32"
)

// WithChecksum makes a state document of a line, as one who plants it would.
func WithChecksum(line []byte) []byte {
	doc := append(append([]byte(nil), line...), '\n')
	return fmt.Appendf(doc, "crc32c:%08x\n", crc32.Checksum(doc, castagnoli))
}
