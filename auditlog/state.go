package auditlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"slices"
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// The state document is one JSON object in one exact spelling, a line feed,
// and the CRC-32C of that line. Its members are those of a position; an open
// intent names its segment if that is not the position's, and the public key is
// named after a key rotation. Where keys evolve, it has the key of the epoch and
// the one behind session and wire hashes.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const stateVersion = 1

// encodeState writes a position as a state document.
func encodeState(p *position) []byte {
	b := make([]byte, 0, 512+64*len(p.tree.Roots)+256*len(p.open))
	b = append(b, `{"version":`...)
	b = strconv.AppendInt(b, stateVersion, 10)
	b = append(b, `,"origin":`...)
	b = canon.AppendString(b, p.origin)
	b = append(b, `,"segment":`...)
	b = strconv.AppendUint(b, p.segment, 10)
	b = append(b, `,"inode":`...)
	b = strconv.AppendUint(b, p.fileID, 10)
	b = append(b, `,"offset":`...)
	b = strconv.AppendInt(b, p.offset, 10)
	b = append(b, `,"next":`...)
	b = strconv.AppendUint(b, p.next, 10)
	b = append(b, `,"chain":"`...)
	b = b64.AppendEncode(b, p.chain[:])
	b = append(b, `","range":[`...)
	for i, root := range p.tree.Roots {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = b64.AppendEncode(b, root[:])
		b = append(b, '"')
	}
	b = append(b, `],"key_id":`...)
	b = canon.AppendString(b, p.keyID)
	if p.vkey != "" {
		b = append(b, `,"vkey":`...)
		b = canon.AppendString(b, p.vkey)
	}
	b = append(b, `,"epoch":`...)
	b = strconv.AppendUint(b, p.epoch, 10)
	if p.key != nil {
		b = append(b, `,"key":"`...)
		b = b64.AppendEncode(b, p.key)
		b = append(b, `","blind":"`...)
		b = b64.AppendEncode(b, p.blind)
		b = append(b, '"')
	}
	b = append(b, `,"open":[`...)
	for i, o := range sortedOpen(p.open) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"seq":`...)
		b = strconv.AppendUint(b, o.seq, 10)
		if o.segment != p.segment {
			b = append(b, `,"segment":`...)
			b = strconv.AppendUint(b, o.segment, 10)
		}
		b = append(b, `,"pos":`...)
		b = strconv.AppendInt(b, o.pos, 10)
		b = append(b, `,"length":`...)
		b = strconv.AppendInt(b, int64(o.length), 10)
		b = append(b, `,"run":`...)
		b = canon.AppendString(b, o.run)
		b = append(b, `,"operation":`...)
		b = canon.AppendString(b, o.operation)
		b = append(b, `,"leaf":"`...)
		b = b64.AppendEncode(b, o.leaf[:])
		b = append(b, `"}`...)
	}
	b = append(b, "]}\n"...)
	return fmt.Appendf(b, "crc32c:%08x\n", crc32.Checksum(b, castagnoli))
}

func sortedOpen(open map[uint64]openIntent) []openIntent {
	list := make([]openIntent, 0, len(open))
	for _, o := range open {
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b openIntent) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	return list
}

// decodeState reads a state document. Only the exact spelling of encodeState
// is accepted: a member that is missing, repeated or added is an error.
func decodeState(doc []byte) (position, error) {
	at := bytes.IndexByte(doc, '\n') + 1
	if at == 0 {
		return position{}, errors.New("it is cut off")
	}
	if want := fmt.Sprintf("crc32c:%08x\n", crc32.Checksum(doc[:at], castagnoli)); string(doc[at:]) != want {
		return position{}, errors.New("its checksum does not match")
	}
	var in struct {
		Version int      `json:"version"`
		Origin  string   `json:"origin"`
		Segment uint64   `json:"segment"`
		Inode   uint64   `json:"inode"`
		Offset  int64    `json:"offset"`
		Next    uint64   `json:"next"`
		Chain   string   `json:"chain"`
		Range   []string `json:"range"`
		KeyID   string   `json:"key_id"`
		VKey    string   `json:"vkey"`
		Epoch   uint64   `json:"epoch"`
		Key     string   `json:"key"`
		Blind   string   `json:"blind"`
		Open    []struct {
			Seq       uint64  `json:"seq"`
			Segment   *uint64 `json:"segment"`
			Pos       int64   `json:"pos"`
			Length    int     `json:"length"`
			Run       string  `json:"run"`
			Operation string  `json:"operation"`
			Leaf      string  `json:"leaf"`
		} `json:"open"`
	}
	if err := json.Unmarshal(doc[:at], &in); err != nil {
		return position{}, errors.New("it is not a JSON object of the expected form")
	}
	if in.Version != stateVersion {
		return position{}, fmt.Errorf("its version is %d, not %d", in.Version, stateVersion)
	}
	p := position{
		origin: in.Origin, segment: in.Segment, fileID: in.Inode, offset: in.Offset, next: in.Next,
		keyID: in.KeyID, vkey: in.VKey, epoch: in.Epoch, open: make(map[uint64]openIntent, len(in.Open)),
	}
	if in.Key != "" {
		var err error
		if p.key, err = b64.DecodeString(in.Key); err == nil {
			p.blind, err = b64.DecodeString(in.Blind)
		}
		if err != nil || len(p.key) < minSecret || len(p.blind) == 0 {
			return position{}, errors.New("its key is malformed")
		}
	}
	var ok bool
	if p.chain, ok = parseHash(in.Chain); !ok {
		return position{}, errors.New("its chain value is malformed")
	}
	roots := make([]Hash, len(in.Range))
	for i, text := range in.Range {
		if roots[i], ok = parseHash(text); !ok {
			return position{}, errors.New("its tree is malformed")
		}
	}
	if bits.OnesCount64(in.Next) != len(roots) {
		return position{}, errors.New("its tree does not fit its number of records")
	}
	p.tree = Range{Size: in.Next, Roots: roots}
	for _, o := range in.Open {
		leaf, ok := parseHash(o.Leaf)
		segment := in.Segment
		if o.Segment != nil {
			segment = *o.Segment
		}
		if !ok || o.Seq >= in.Next || o.Pos < 0 || o.Length <= 0 || o.Length > MaxLine || segment > in.Segment ||
			segment == in.Segment && o.Pos+int64(o.Length) >= in.Offset {
			return position{}, errors.New("its list of open intents is malformed")
		}
		p.open[o.Seq] = openIntent{o.Seq, segment, o.Pos, o.Length, o.Run, o.Operation, leaf}
	}
	switch {
	case !bytes.Equal(encodeState(&p), doc):
		return position{}, errors.New("a member is missing or spelled otherwise")
	case !ValidKeyID(p.keyID) || p.origin == "" || p.next >= maxSafe || p.offset < 0:
		return position{}, errors.New("a member has an impossible value")
	case (p.offset == 0) != (p.next == 0) || p.next == 0 && p.chain != GenesisChain(p.origin):
		return position{}, errors.New("its members contradict each other")
	}
	return p, nil
}

// parseHash reads the 43 characters of a hash.
func parseHash(text string) (h Hash, ok bool) {
	raw, err := b64.DecodeString(text)
	if err != nil || len(raw) != HashSize || len(text) != b64.EncodedLen(HashSize) {
		return h, false
	}
	return Hash(raw), true
}
