package legacy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// EraseCopy overwrites with spaces, in place, the entries of a copy that a
// Copier made of an operation or of a record: readers of JSON lines pass over
// blank ones, and a Copier may go on writing. It returns how many there were; a
// copy that is not there has none.
func EraseCopy(path, operation, record string) (n int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var needles [][]byte
	for _, member := range []struct{ name, value string }{{"audit_operation_id", operation}, {"id", record}} {
		if member.value != "" {
			needles = append(needles, canon.AppendString([]byte(`"`+member.name+`":`), member.value))
		}
	}
	r := bufio.NewReaderSize(f, 1<<20)
	for at := int64(0); ; {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 && matchesAny(line, needles) {
			blank := strings.Repeat(" ", len(bytes.TrimRight(line, "\n")))
			if _, err := f.WriteAt([]byte(blank), at); err != nil {
				return n, err
			}
			n++
		}
		at += int64(len(line))
		if err == io.EOF {
			break
		}
		if err != nil {
			return n, err
		}
	}
	if n == 0 {
		return 0, nil
	}
	return n, f.Sync()
}

func matchesAny(line []byte, needles [][]byte) bool {
	for _, n := range needles {
		if bytes.Contains(line, n) {
			return true
		}
	}
	return false
}
