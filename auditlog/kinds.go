package auditlog

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// The record kinds that this writer appends or acts on.
const (
	kindGenesis    = "genesis"
	kindChainBreak = "chain_break"
	kindSegment    = "segment_start"
	kindSegmentEnd = "segment_end"
	kindRetention  = "retention"
	kindStart      = "start"
	kindStop       = "stop"
	kindConfig     = "config"
	kindCheckpoint = "checkpoint"
	kindRecovered  = "recovered"
	kindGap        = "gap"
	kindDiskFull   = "disk_full"
	kindIOError    = "io_error"
	kindEpochEnd   = "epoch_end"
	kindHeartbeat  = "heartbeat"
	kindRotation   = "key_rotation"
	kindIntent     = "intent"
	kindOutcome    = "outcome"
	kindEvent      = "event"
	kindErasure    = "erasure"
	kindAccess     = "access"
)

// member is one top-level member of a body: its name and its JCS value.
type member struct {
	name  string
	value []byte
}

func textMember(name, value string) member {
	return member{name, canon.AppendString(nil, value)}
}

// textOrNone is absent for the empty string.
func textOrNone(name, value string) member {
	if value == "" {
		return member{}
	}
	return textMember(name, value)
}

func numberMember(name string, value uint64) member {
	return member{name, strconv.AppendUint(nil, value, 10)}
}

func timeMember(name string, at time.Time) member {
	return textMember(name, at.UTC().Format(timeLayout))
}

// hashMember is absent for the zero Hash.
func hashMember(name string, h Hash) member {
	if h == (Hash{}) {
		return member{}
	}
	return textMember(name, h.String())
}

// hashesMember is an array of hashes.
func hashesMember(name string, list []Hash) member {
	b := []byte{'['}
	for i, h := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = b64.AppendEncode(b, h[:])
		b = append(b, '"')
	}
	return member{name, append(b, ']')}
}

// record builds a body of one of the rarer kinds from its members, in any
// order; members without a value are left out.
func record(kind string, s stamp, members ...member) draft {
	members = append(members, textMember("kind", kind), textMember("nonce", b64.EncodeToString(s.nonce[:])),
		timeMember("timestamp", s.at), textMember("id", s.id().String()))
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	d := draft{stamp: s}
	w := bodyWriter{b: newBuffer(1024)}
	for _, m := range members {
		if len(m.value) == 0 {
			continue
		}
		w.name(m.name)
		switch m.name {
		case "id":
			d.idAt = len(w.b) + 1
		case "timestamp":
			d.timeAt = len(w.b) + 1
		}
		w.b = append(w.b, m.value...)
	}
	d.buf = append(w.b, '}')
	d.seal()
	return d
}

// originMembers are those of genesis and chain_break.
func originMembers(origin, vkey, keyID string, mode KeyMode, config Hash, segment uint64) []member {
	return []member{
		textMember("origin", origin), textMember("vkey", vkey), textMember("key_id", keyID),
		textMember("key_mode", mode.String()), hashMember("config_sha256", config), numberMember("segment", segment),
	}
}

// bodyMembers calls each for the top-level members of a canonical body,
// without its closing brace, until it returns false. Only bytes whose chain
// and MAC were verified may be read so: nothing is checked again.
func bodyMembers(prefix []byte, each func(name string, value []byte) bool) {
	for i := 1; i < len(prefix); i++ { // behind "{" or ","
		end := stringEnd(prefix, i)
		if end == 0 || end >= len(prefix) {
			return
		}
		name := prefix[i+1 : end-1]
		start := end + 1 // behind ":"
		i = valueEnd(prefix, start)
		if !each(string(name), prefix[start:i]) {
			return
		}
	}
}

// valueEnd returns the index behind the value that starts at i.
func valueEnd(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			end := stringEnd(b, i)
			if end == 0 {
				return len(b)
			}
			i = end - 1
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return i
}

// textValue is the decoded text of a string member.
func textValue(value []byte) string {
	text, ok := canon.Unquote(nil, value)
	if !ok {
		return ""
	}
	return string(text)
}

func numberValue(value []byte) (uint64, bool) {
	n, err := strconv.ParseUint(string(value), 10, 64)
	return n, err == nil
}
