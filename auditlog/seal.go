package auditlog

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"strconv"
)

// HashSize is the length in bytes of every hash, chain value and MAC.
const HashSize = sha256.Size

// Hash is a SHA-256 value: a leaf, a chain value, a tree node or a MAC.
type Hash [HashSize]byte

// String returns the base64url text that records carry (43 characters).
func (h Hash) String() string { return b64.EncodeToString(h[:]) }

// b64 is the strict base64url alphabet without padding that every record uses.
var b64 = base64.RawURLEncoding.Strict()

// maxSafe is the largest integer a seal may carry plus one.
const maxSafe = uint64(1) << 53

// Seal is what the writer adds to a record body: its place in the log, the
// hash of its bytes, the chain up to it and the MAC over the chain.
type Seal struct {
	Seq   uint64
	Leaf  Hash
	Chain Hash
	KeyID string
	Epoch uint64
	MAC   Hash
}

// LeafHash is the RFC 6962 leaf hash of a record body.
func LeafHash(body []byte) Hash {
	h := sha256.New()
	h.Write([]byte{0x00})
	h.Write(body)
	return sum(h)
}

// GenesisChain is the chain value before the first record of an origin.
func GenesisChain(origin string) Hash {
	h := sha256.New()
	h.Write([]byte("auditlog/v3/genesis\n"))
	h.Write([]byte(origin))
	return sum(h)
}

// ChainHash links a record's leaf and sequence number to the chain before it.
func ChainHash(prev Hash, seq uint64, leaf Hash) Hash {
	var buf [1 + HashSize + 8 + HashSize]byte
	buf[0] = 0x02
	copy(buf[1:], prev[:])
	binary.BigEndian.PutUint64(buf[1+HashSize:], seq)
	copy(buf[1+HashSize+8:], leaf[:])
	return sha256.Sum256(buf[:])
}

// nodeHash is the RFC 6962 hash of an inner tree node.
func nodeHash(left, right Hash) Hash {
	var buf [1 + 2*HashSize]byte
	buf[0] = 0x01
	copy(buf[1:], left[:])
	copy(buf[1+HashSize:], right[:])
	return sha256.Sum256(buf[:])
}

// macer computes record MACs under one epoch key. It is not safe for
// concurrent use: it reuses its HMAC state and its buffers, which halves the
// cost per record and allocates nothing.
type macer struct {
	h   hash.Hash
	in  [1 + HashSize]byte
	out [HashSize]byte
}

func newMacer(macKey []byte) *macer { return &macer{h: hmac.New(sha256.New, macKey)} }

// mac returns the MAC of a chain value.
func (m *macer) mac(chain Hash) Hash {
	m.in[0] = 0x03
	copy(m.in[1:], chain[:])
	m.h.Reset()
	m.h.Write(m.in[:])
	m.h.Sum(m.out[:0])
	return m.out
}

func sum(h hash.Hash) (out Hash) {
	h.Sum(out[:0])
	return out
}

const sealStart = `,"seal":{`

// appendSeal appends the seal text that follows body[:len(body)-1] in a line:
// it starts with `,"seal":{` and ends with the seal's own closing brace.
func appendSeal(dst []byte, s *Seal) []byte {
	dst = append(dst, `,"seal":{"version":3,"seq":`...)
	dst = strconv.AppendUint(dst, s.Seq, 10)
	dst = append(dst, `,"leaf":"`...)
	dst = b64.AppendEncode(dst, s.Leaf[:])
	dst = append(dst, `","chain":"`...)
	dst = b64.AppendEncode(dst, s.Chain[:])
	dst = append(dst, `","key_id":"`...)
	dst = append(dst, s.KeyID...)
	dst = append(dst, `","epoch":`...)
	dst = strconv.AppendUint(dst, s.Epoch, 10)
	dst = append(dst, `,"mac":"`...)
	dst = b64.AppendEncode(dst, s.MAC[:])
	return append(dst, `"}`...)
}

// AppendLine appends a whole record line, with its LF: body without its
// closing brace, the seal, the openings (a JSON object, or nil) and "}".
func AppendLine(dst, body []byte, s *Seal, open []byte) []byte {
	dst = append(dst, body[:len(body)-1]...)
	dst = appendSeal(dst, s)
	if len(open) > 0 {
		dst = append(dst, `,"open":`...)
		dst = append(dst, open...)
	}
	return append(dst, '}', '\n')
}

// LineFault names why a line is not a sealed record; the empty value means it
// is one. The values are finding names of the verifier.
type LineFault string

// The faults SplitLine reports.
const (
	LineOK          LineFault = ""
	LineMalformed   LineFault = "malformed_line"
	LineUnsealed    LineFault = "unsealed_record"
	LineDowngrade   LineFault = "downgrade"
	LineBadSeal     LineFault = "seal_malformed"
	LineExtraMember LineFault = "extra_member"
)

// Line is a record line taken apart by position, never by a JSON library.
// Prefix and Open point into the line that SplitLine was given.
type Line struct {
	Prefix []byte // the body without its closing brace
	Seal   Seal
	Open   []byte // the value of "open", or nil
}

// Body returns the canonical body: Prefix and the brace that the seal displaced.
func (l *Line) Body() []byte {
	body := make([]byte, 0, len(l.Prefix)+1)
	return append(append(body, l.Prefix...), '}')
}

// LeafHash is the leaf recomputed from the line's own bytes.
func (l *Line) LeafHash() Hash {
	h := sha256.New()
	h.Write([]byte{0x00})
	h.Write(l.Prefix)
	h.Write([]byte{'}'})
	return sum(h)
}

// SplitLine takes a line (without its LF) apart. With LineExtraMember the seal
// is valid and filled in, but what follows it is not a single "open" member.
func SplitLine(line []byte) (Line, LineFault) {
	if n := len(line); n > 2 && bytes.HasSuffix(line, []byte(`"}}`)) {
		if at := bytes.LastIndex(line, []byte(sealStart)); at > 0 {
			if s, ok := parseSeal(line[at : n-1]); ok {
				return Line{Prefix: line[:at], Seal: s}, LineOK
			}
		}
	}
	at := topLevelSeal(line)
	if at <= 0 {
		return Line{}, unsealedKind(line)
	}
	end := bytes.IndexByte(line[at+len(sealStart):], '}')
	if end < 0 {
		return Line{}, LineBadSeal
	}
	end += at + len(sealStart) + 1
	s, ok := parseSeal(line[at:end])
	if !ok {
		return Line{}, LineBadSeal
	}
	out := Line{Prefix: line[:at], Seal: s}
	rest := line[end:]
	if len(rest) == 1 && rest[0] == '}' {
		return out, LineOK
	}
	const openStart = `,"open":`
	if !bytes.HasPrefix(rest, []byte(openStart+"{")) || rest[len(rest)-1] != '}' {
		return out, LineExtraMember
	}
	open := rest[len(openStart) : len(rest)-1]
	if objectEnd(open) != len(open) {
		return out, LineExtraMember
	}
	out.Open = open
	return out, LineOK
}

// parseSeal reads exactly `,"seal":{…}` in the one spelling that is allowed.
func parseSeal(b []byte) (s Seal, ok bool) {
	p := sealParser{b: b, ok: true}
	p.lit(`,"seal":{"version":3,"seq":`)
	s.Seq = p.num()
	p.lit(`,"leaf":"`)
	p.hash(&s.Leaf)
	p.lit(`","chain":"`)
	p.hash(&s.Chain)
	p.lit(`","key_id":"`)
	s.KeyID = p.keyID()
	p.lit(`","epoch":`)
	s.Epoch = p.num()
	p.lit(`,"mac":"`)
	p.hash(&s.MAC)
	p.lit(`"}`)
	return s, p.ok && len(p.b) == 0
}

type sealParser struct {
	b  []byte
	ok bool
}

func (p *sealParser) lit(s string) {
	if !p.ok || len(p.b) < len(s) || string(p.b[:len(s)]) != s {
		p.ok = false
		return
	}
	p.b = p.b[len(s):]
}

func (p *sealParser) num() uint64 {
	n, v := 0, uint64(0)
	for p.ok && n < len(p.b) && p.b[n] >= '0' && p.b[n] <= '9' {
		v = v*10 + uint64(p.b[n]-'0')
		n++
		if v >= maxSafe {
			p.ok = false
		}
	}
	if !p.ok || n == 0 || (n > 1 && p.b[0] == '0') {
		p.ok = false
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *sealParser) hash(h *Hash) {
	const n = 43
	if !p.ok || len(p.b) < n {
		p.ok = false
		return
	}
	var buf [33]byte
	if k, err := b64.Decode(buf[:], p.b[:n]); err != nil || k != HashSize || bytes.ContainsAny(p.b[:n], "\r\n") {
		p.ok = false
		return
	}
	copy(h[:], buf[:HashSize])
	p.b = p.b[n:]
}

func (p *sealParser) keyID() string {
	n := 0
	for n < len(p.b) && p.b[n] != '"' {
		n++
	}
	if !p.ok || !ValidKeyID(string(p.b[:n])) {
		p.ok = false
		return ""
	}
	id := string(p.b[:n])
	p.b = p.b[n:]
	return id
}

// ValidKeyID reports whether id is a key id: [a-z0-9_-]{1,64}.
func ValidKeyID(id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// topLevelSeal finds the first `,"seal":{` at nesting depth 1, or -1.
func topLevelSeal(line []byte) int {
	depth := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '"':
			i = stringEnd(line, i) - 1
			if i < 0 {
				return -1
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 1 && bytes.HasPrefix(line[i:], []byte(sealStart)) {
				return i
			}
		}
	}
	return -1
}

// stringEnd returns the index behind the string that starts at i, or 0 if it
// does not end.
func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// objectEnd returns the index behind the object that b starts with, or -1.
func objectEnd(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = stringEnd(b, i) - 1
			if i < 0 {
				return -1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// emptyRoot is SHA-256 of the empty string.
var emptyRoot = Hash(sha256.Sum256(nil))

// unsealedKind tells a line without a seal apart: a record of a foreign or
// older format, another JSON object, or no JSON object at all.
func unsealedKind(line []byte) LineFault {
	if len(line) == 0 || line[0] != '{' || objectEnd(line) != len(line) {
		return LineMalformed
	}
	depth := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '"':
			end := stringEnd(line, i)
			if depth == 1 && end < len(line) && line[end] == ':' {
				switch string(line[i:end]) {
				case `"signature"`, `"integrity"`:
					return LineDowngrade
				}
			}
			i = end - 1
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
	}
	return LineUnsealed
}
