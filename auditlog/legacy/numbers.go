package legacy

import (
	"bytes"
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// maxSafe is the largest integer that every JSON reader keeps: 2^53-1.
const maxSafe = 1<<53 - 1

// lossyNumber returns the first number token in a value that readers with
// doubles do not keep: an integer beyond ±(2^53-1), or any token that its
// double changes. nil: there is none. The value must have passed the gate.
func lossyNumber(value []byte) []byte {
	for i := 0; i < len(value); {
		switch b := value[i]; {
		case b == '"':
			n, _, v := canon.ScanString(value[i:])
			if v != canon.None {
				return nil
			}
			i += n
		case b == '-' || b >= '0' && b <= '9':
			n := canon.NumberLen(value[i:])
			if n == 0 {
				return nil
			}
			if token := value[i : i+n]; isLossy(token) {
				return token
			}
			i += n
		default:
			i++
		}
	}
	return nil
}

func isLossy(token []byte) bool {
	if !bytes.ContainsAny(token, ".eE") {
		if _, ok := safeInteger(token); !ok {
			return true
		}
	}
	out, v := canon.Append(nil, token)
	return v != canon.None || out[0] == '{'
}

// safeInteger reads a number token without fraction and exponent, within
// ±(2^53-1).
func safeInteger(token []byte) (int64, bool) {
	if len(token) == 0 || canon.NumberLen(token) != len(token) {
		return 0, false
	}
	n, err := strconv.ParseInt(string(token), 10, 64)
	return n, err == nil && n >= -maxSafe && n <= maxSafe
}
