package shim

import (
	"fmt"
	"path/filepath"
	"strings"
)

// batchUnsafe are the characters that mean something to the Windows command
// interpreter, which runs batch files and for which there is no safe quoting.
const batchUnsafe = "&|<>^%!\"\r\n"

// checkBatch refuses arguments that a batch file, such as npx.cmd, would have
// the command interpreter take for commands.
func checkBatch(path string, arguments []string) error {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".bat", ".cmd":
	default:
		return nil
	}
	for _, a := range arguments {
		if i := strings.IndexAny(a, batchUnsafe); i >= 0 {
			return fmt.Errorf("an argument has the character %q, which Windows could take for a command when it runs the batch file %s; start the program behind it, such as node with the path of the script, instead", a[i], filepath.Base(path))
		}
	}
	return nil
}
