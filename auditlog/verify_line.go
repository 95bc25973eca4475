package auditlog

import (
	"encoding/binary"
	"math/bits"
)

// scanned is one line taken apart by position, and what its own bytes say
// about it. All offsets are into the line.
type scanned struct {
	fault      LineFault // or lineOversized
	start, end int       // the line in its chunk, without its LF
	prefix     int       // length of the body without its closing brace
	open       [2]int    // the value of "open", if its end is not 0
	seal       Seal

	leafOK    bool
	erased    bool // the body is the one of an erased record
	chainOK   bool // it continues the line before it in the chunk, if that has a seal
	chained   bool // chainOK was computed
	macDone   bool
	macOK     bool
	canonical tristate // of the body
	facts     facts
	openings  *openingFaults // nil: all openings are as committed
}

// lineOversized marks a line longer than the verifier accepts.
const lineOversized LineFault = "oversized_line"

type tristate int8

const (
	unknown tristate = iota
	yes
	no
)

// sealed reports whether the line has a valid seal.
func (s *scanned) sealed() bool { return s.fault == LineOK || s.fault == LineExtraMember }

// The texts between the variable parts of a seal.
const (
	sealHead  = `,"seal":{"version":3,"seq":`
	sealLeaf  = `,"leaf":"`
	sealChain = `","chain":"`
	sealKey   = `","key_id":"`
	sealEpoch = `","epoch":`
	sealMAC   = `,"mac":"`
	sealTail  = `"}}`
)

const hashText = 43 // characters of a hash

// splitFast does what SplitLine does. The common line, a seal at its end, is
// read backwards from its last byte, which needs no search; all others are
// left to SplitLine.
func splitFast(line []byte, s *scanned, kids *interner) {
	if at, ok := sealAtEnd(line, &s.seal, kids); ok {
		s.fault, s.prefix = LineOK, at
		return
	}
	l, fault := SplitLine(line)
	s.fault, s.seal, s.prefix = fault, l.Seal, len(l.Prefix)
	if l.Open != nil {
		s.open = [2]int{len(line) - 1 - len(l.Open), len(line) - 1}
	}
}

// sealAtEnd reads the seal that ends a line, and returns where it starts.
func sealAtEnd(line []byte, s *Seal, kids *interner) (at int, ok bool) {
	r := backReader{line, true}
	r.lit(sealTail)
	r.hash(&s.MAC)
	r.lit(sealMAC)
	s.Epoch = r.num()
	r.lit(sealEpoch)
	kid := r.keyID()
	r.lit(sealKey)
	r.hash(&s.Chain)
	r.lit(sealChain)
	r.hash(&s.Leaf)
	r.lit(sealLeaf)
	s.Seq = r.num()
	r.lit(sealHead)
	if !r.ok || len(r.b) == 0 {
		return 0, false
	}
	if s.KeyID, ok = kids.get(kid); !ok {
		return 0, false
	}
	return len(r.b), true
}

// backReader takes tokens off the end of b.
type backReader struct {
	b  []byte
	ok bool
}

func (r *backReader) lit(s string) {
	n := len(r.b) - len(s)
	if !r.ok || n < 0 || string(r.b[n:]) != s {
		r.ok = false
		return
	}
	r.b = r.b[:n]
}

func (r *backReader) hash(h *Hash) {
	n := len(r.b) - hashText
	if !r.ok || n < 0 || !decodeHash(h, r.b[n:]) {
		r.ok = false
		return
	}
	r.b = r.b[:n]
}

func (r *backReader) num() uint64 {
	n := len(r.b)
	for n > 0 && len(r.b)-n < 17 && r.b[n-1] >= '0' && r.b[n-1] <= '9' {
		n--
	}
	v, ok := decimal(r.b[n:])
	if !r.ok || !ok {
		r.ok = false
		return 0
	}
	r.b = r.b[:n]
	return v
}

func (r *backReader) keyID() []byte {
	n := len(r.b)
	for n > 0 && len(r.b)-n <= 64 && r.b[n-1] != '"' {
		n--
	}
	kid := r.b[n:]
	r.b = r.b[:n]
	return kid
}

// decimal reads a number as a seal spells it: no leading zero, below 2^53.
func decimal(b []byte) (v uint64, ok bool) {
	if len(b) == 0 || len(b) > 16 || b[0] == '0' && len(b) > 1 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = v*10 + uint64(c-'0')
	}
	return v, v < maxSafe
}

// interner keeps the key ids that lines carry, so that each is allocated once.
type interner struct{ last string }

func (k *interner) get(b []byte) (string, bool) {
	if string(b) == k.last && k.last != "" {
		return k.last, true
	}
	id := string(b)
	if !ValidKeyID(id) {
		return "", false
	}
	k.last = id
	return id, true
}

// b64Value has the value of each base64url character, and 0x80 for all others.
var b64Value = func() (t [256]byte) {
	for i := range t {
		t[i] = 0x80
	}
	for i, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") {
		t[c] = byte(i)
	}
	return t
}()

// decodeHash reads the 43 characters of a hash, strictly: the two bits that
// carry nothing must be zero.
func decodeHash(h *Hash, src []byte) bool {
	if len(src) != hashText {
		return false
	}
	var bad byte
	for i, o := 0, 0; i < 40; i, o = i+4, o+3 {
		a, b, c, d := b64Value[src[i]], b64Value[src[i+1]], b64Value[src[i+2]], b64Value[src[i+3]]
		bad |= a | b | c | d
		v := uint32(a)<<18 | uint32(b)<<12 | uint32(c)<<6 | uint32(d)
		h[o], h[o+1], h[o+2] = byte(v>>16), byte(v>>8), byte(v)
	}
	a, b, c := b64Value[src[40]], b64Value[src[41]], b64Value[src[42]]
	bad |= a | b | c
	v := uint32(a)<<12 | uint32(b)<<6 | uint32(c)
	h[30], h[31] = byte(v>>10), byte(v>>2)
	return bad&0x80 == 0 && c&3 == 0
}

// facts is what verification needs of a body's members.
type facts struct {
	broken    bool // the body is no object of plain members
	forbidden bool // it has a member seal or open
	kind      kindCode
	kindText  [2]int // in the line, between the quotes
	unknown   bool   // outcome is "unknown"
	operation [2]int
	label     [4][2]int // method, tool_name, mcp_name, server_id
	seqOf     uint64    // intent_seq
	hasSeqOf  bool
	time      int64 // Unix nanoseconds
	hasTime   bool
	commits   int // members with a commitment
}

// kindCode is a record kind.
type kindCode uint8

const (
	codeUnknown kindCode = iota
	codeIntent
	codeOutcome
	codeEvent
	codeGenesis
	codeChainBreak
	codeSegmentStart
	codeSegmentEnd
	codeCheckpoint
	codeEpochEnd
	codeHeartbeat
	codeKeyRotation
	codeErasure
	codeGap
	codeStart
	codeStop
	codeConfig
	codeAccess
	codeRecovered
	codeDiskFull
	codeIOError
	codeRetention
	codeAnchor
	kindCount
)

var kindNames = [kindCount]string{
	codeIntent: "intent", codeOutcome: "outcome", codeEvent: "event", codeGenesis: "genesis",
	codeChainBreak: "chain_break", codeSegmentStart: "segment_start", codeSegmentEnd: "segment_end",
	codeCheckpoint: "checkpoint", codeEpochEnd: "epoch_end", codeHeartbeat: "heartbeat",
	codeKeyRotation: "key_rotation", codeErasure: "erasure", codeGap: "gap", codeStart: "start",
	codeStop: "stop", codeConfig: "config", codeAccess: "access", codeRecovered: "recovered",
	codeDiskFull: "disk_full", codeIOError: "io_error", codeRetention: "retention", codeAnchor: "anchor",
}

func codeOf(name []byte) kindCode {
	for code := codeIntent; code < kindCount; code++ {
		if string(name) == kindNames[code] {
			return code
		}
	}
	return codeUnknown
}

// payloadKind reports whether records of the kind carry messages; their bodies
// are the only ones whose exact form is not checked by default.
func (k kindCode) payloadKind() bool { return k >= codeIntent && k <= codeEvent }

// opensFile reports whether records of the kind stand on line 1 of a file.
func (k kindCode) opensFile() bool { return k >= codeGenesis && k <= codeSegmentStart }

const commitStart = `{"$c":"`

// read takes the facts from a body without its closing brace. The bytes need
// not be well-formed.
func (f *facts) read(prefix []byte) {
	m := memberWalk{b: prefix}
	for m.next() {
		value := prefix[m.value[0]:m.value[1]]
		switch string(prefix[m.name[0]:m.name[1]]) {
		case "kind":
			if len(value) >= 2 && value[0] == '"' {
				f.kindText = [2]int{m.value[0] + 1, m.value[1] - 1}
				f.kind = codeOf(value[1 : len(value)-1])
			}
		case "audit_operation_id":
			f.operation = m.value
		case "intent_seq":
			f.seqOf, f.hasSeqOf = decimal(value)
		case "outcome":
			f.unknown = string(value) == `"unknown"`
		case "timestamp":
			f.time, f.hasTime = parseTimestamp(value)
		case "method":
			f.label[0] = m.value
		case "tool_name":
			f.label[1] = m.value
		case "mcp_name":
			f.label[2] = m.value
		case "server_id":
			f.label[3] = m.value
		case "seal", "open":
			f.forbidden = true
		}
		if isCommitment(value) {
			f.commits++
		}
	}
	f.broken = m.broken
}

// isCommitment reports whether a member's value is exactly {"$c":"<43>"}.
func isCommitment(value []byte) bool {
	return len(value) == len(commitStart)+hashText+2 && string(value[:len(commitStart)]) == commitStart &&
		string(value[len(value)-2:]) == `"}`
}

// memberWalk visits the top-level members of a body without its closing brace,
// by position. On bytes that are not a JSON object it stops and sets broken.
type memberWalk struct {
	b           []byte
	at          int
	name, value [2]int
	broken      bool
}

func (m *memberWalk) next() bool {
	switch {
	case m.at == 0 && (len(m.b) == 0 || m.b[0] != '{'):
		m.broken = true
		return false
	case m.at == len(m.b):
		return false
	case m.at > 0 && m.b[m.at] != ',':
		m.broken = true
		return false
	}
	start := m.at + 1
	if m.at == 0 && start == len(m.b) {
		m.at = start // an empty object
		return false
	}
	if start >= len(m.b) || m.b[start] != '"' {
		m.broken = true
		return false
	}
	end := quotedEnd(m.b, start)
	if end < 0 || end >= len(m.b) || m.b[end] != ':' {
		m.broken = true
		return false
	}
	stop := jsonValueEnd(m.b, end+1)
	if stop <= end+1 {
		m.broken = true
		return false
	}
	m.name, m.value, m.at = [2]int{start + 1, end - 1}, [2]int{end + 1, stop}, stop
	return true
}

const (
	everyByte = 0x0101010101010101
	highBits  = 0x8080808080808080
)

// quotedEnd returns the index behind the string whose opening quote is at i,
// or -1. It looks at eight bytes at a time.
func quotedEnd(b []byte, i int) int {
	i++
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^everyByte*'"', w^everyByte*'\\'
		hit := ((quote-everyByte)&^quote | (slash-everyByte)&^slash) & highBits
		if hit == 0 {
			i += 8
			continue
		}
		// Bytes above the lowest hit may be marked wrongly; it never is.
		i += bits.TrailingZeros64(hit) >> 3
		if b[i] == '"' {
			return i + 1
		}
		i += 2
	}
	for i < len(b) {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
		i++
	}
	return -1
}

// structural marks the bytes that matter when a container is passed over.
var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// jsonValueEnd returns the index behind the value that starts at i, or -1.
func jsonValueEnd(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return quotedEnd(b, i)
	case '{', '[':
	default:
		for ; i < len(b) && b[i] != ',' && b[i] != '}' && b[i] != ']'; i++ {
		}
		return i
	}
	depth := 0
	for i < len(b) {
		c := b[i]
		if !structural[c] {
			i++
			continue
		}
		switch c {
		case '"':
			if i = quotedEnd(b, i); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		default:
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}

// parseTimestamp reads `"2006-01-02T15:04:05.000000000Z"` in nanoseconds since
// 1970. Years outside 1970 to 2261 are no time.
func parseTimestamp(value []byte) (ns int64, ok bool) {
	const layout = `"0000-00-00T00:00:00.000000000Z"`
	if len(value) != len(layout) {
		return 0, false
	}
	for i := range len(layout) {
		if c := value[i]; layout[i] == '0' {
			if c < '0' || c > '9' {
				return 0, false
			}
		} else if c != layout[i] {
			return 0, false
		}
	}
	num := func(from, to int) (n int64) {
		for _, c := range value[from:to] {
			n = n*10 + int64(c-'0')
		}
		return n
	}
	year, month, day := num(1, 5), num(6, 8), num(9, 11)
	hour, minute, second := num(12, 14), num(15, 17), num(18, 20)
	if year < 1970 || year > 2261 || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60 {
		return 0, false
	}
	// Days since 1970 of a Gregorian date; March is the first month.
	y, m := year, month
	if m <= 2 {
		y--
		m += 12
	}
	days := 365*y + y/4 - y/100 + y/400 + (153*(m-3)+2)/5 + day - 1 - 719468
	return ((days*24+hour)*60+minute)*60e9 + second*1e9 + num(21, 30), true
}
