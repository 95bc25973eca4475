package auditlog

import (
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// Imported names the log of another system that a new log follows. That log
// stays where it is; the genesis only says what it was (member `import`).
type Imported struct {
	SHA256 Hash   // of all its bytes
	Count  uint64 // its records
	Status string // what verification said of the worst of them
}

// importMember is absent for nil.
func importMember(i *Imported) member {
	if i == nil {
		return member{}
	}
	value := append([]byte(`{"count":`), strconv.FormatUint(i.Count, 10)...)
	value = append(append(append(value, `,"sha256":"`...), i.SHA256.String()...), `","status":`...)
	return member{"import", append(canon.AppendString(value, i.Status), '}')}
}
