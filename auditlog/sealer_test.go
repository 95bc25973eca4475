package auditlog

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// testLog makes log files by the rules of the format alone, without the
// writer, so that the verifier is not judged by the code it judges.
type testLog struct {
	t       testing.TB
	origin  string
	keyID   string
	secret  string
	private ed25519.PrivateKey
	k       []byte // K_epoch
	epoch   uint64
	seq     uint64
	chain   Hash
	leaves  []Hash
	now     time.Time
	segment uint64
	files   [][]string // lines without LF
	notes   [][]byte
	sizes   []uint64 // of the notes
}

const testSecret = "a secret for tests, 32 bytes long"

var testStart = time.Date(2026, 5, 25, 12, 0, 0, 0, time.UTC)

func newTestLog(t testing.TB, name string) *testLog {
	seed := bytes.Repeat([]byte{7}, ed25519.SeedSize)
	l := &testLog{
		t: t, origin: name + "/i0", keyID: "k1", secret: testSecret,
		private: ed25519.NewKeyFromSeed(seed), now: testStart,
	}
	l.restart()
	return l
}

func (l *testLog) restart() {
	l.k, l.epoch, l.seq, l.leaves = StaticKey([]byte(l.secret), l.keyID), 0, 0, nil
	l.chain = GenesisChain(l.origin)
	l.files = append(l.files, nil)
}

func (l *testLog) vkey() string {
	vkey, err := VKey(l.origin, l.private.Public().(ed25519.PublicKey))
	if err != nil {
		l.t.Fatal(err)
	}
	return vkey
}

type body map[string]any

// jcs renders a value with sorted names; tests use none that sort otherwise.
func jcs(v any) string {
	switch v := v.(type) {
	case body:
		return jcs(map[string]any(v))
	case map[string]any:
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, jcs(name)+":"+jcs(v[name]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case json.RawMessage:
		return string(v)
	case []string:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = jcs(e)
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSpace(b.String())
}

// base adds what every record has.
func (l *testLog) base(kind string, members body) body {
	var nonce [16]byte
	binary.BigEndian.PutUint64(nonce[8:], l.seq+uint64(len(l.files))<<32)
	b := body{"kind": kind, "id": fmt.Sprintf("01KSFJ34C00410610%09d", l.seq), "nonce": b64.EncodeToString(nonce[:]),
		"timestamp": l.now.Format(timeLayout)}
	maps.Copy(b, members)
	return b
}

func (l *testLog) add(kind string, members body) uint64 {
	l.now = l.now.Add(time.Second)
	return l.addBody(jcs(l.base(kind, members)), "")
}

// addBody seals a body as it is.
func (l *testLog) addBody(text, open string) uint64 {
	return l.addKeyed(text, open, l.keyID, l.epoch, l.k)
}

func (l *testLog) addKeyed(text, open, keyID string, epoch uint64, key []byte) uint64 {
	seq := l.seq
	s := Seal{Seq: seq, Leaf: LeafHash([]byte(text)), KeyID: keyID, Epoch: epoch}
	s.Chain = ChainHash(l.chain, seq, s.Leaf)
	s.MAC = newMacer(macKey(key)).mac(s.Chain)
	line := AppendLine(nil, []byte(text), &s, []byte(open))
	at := len(l.files) - 1
	l.files[at] = append(l.files[at], string(line[:len(line)-1]))
	l.chain, l.seq = s.Chain, seq+1
	l.leaves = append(l.leaves, s.Leaf)
	return seq
}

func (l *testLog) genesis() {
	l.add("genesis", body{"origin": l.origin, "vkey": l.vkey(), "key_id": l.keyID, "key_mode": "static", "segment": l.segment})
}

func (l *testLog) tree() (r Range) {
	for _, leaf := range l.leaves {
		r.Append(leaf)
	}
	return r
}

func (l *testLog) note() []byte {
	tree := l.tree()
	signed, err := SignTreeHead(TreeHead{l.origin, tree.Size, tree.Root()}, l.private)
	if err != nil {
		l.t.Fatal(err)
	}
	return signed
}

func (l *testLog) checkpoint() {
	signed := l.note()
	l.notes, l.sizes = append(l.notes, signed), append(l.sizes, l.seq)
	l.add("checkpoint", body{"note": string(signed)})
}

func (l *testLog) epochEnd() {
	l.add("epoch_end", body{"epoch": l.epoch})
	l.epoch++
	l.k = evolveKey(l.k, l.origin, l.epoch)
}

func (l *testLog) nextSegment() {
	l.add("segment_end", body{"segment": l.segment})
	l.segment++
	l.files = append(l.files, nil)
	var roots []string
	for _, root := range l.tree().Roots {
		roots = append(roots, root.String())
	}
	l.add("segment_start", body{"segment": l.segment, "origin": l.origin, "prev_chain": l.chain.String(), "size": l.seq, "range": roots})
}

func operationID(n int) string { return fmt.Sprintf("019e5f21-975c-70a1-a2a3-%012x", n) }

func (l *testLog) intent(n int, committed bool) uint64 {
	members := body{"audit_operation_id": operationID(n), "direction": "client→server", "transport": "http", "method": "tools/call",
		"tool_name": "read_file", "mcp_name": "read_file", "server_id": "files", "client_id": "desktop"}
	params := json.RawMessage(fmt.Sprintf(`{"arguments":{"n":%d,"seal":{"version":3},"text":"a \"quoted\" ,\"seal\":{ text"},"name":"read_file"}`, n))
	l.now = l.now.Add(time.Second)
	if !committed {
		members["params"] = params
		return l.addBody(jcs(l.base("intent", members)), "")
	}
	salt := [16]byte{byte(n), 1}
	members["params"] = body{"$c": commitment("params", salt, params).String()}
	return l.addBody(jcs(l.base("intent", members)), fmt.Sprintf(`{"params":["%s",%s]}`, b64.EncodeToString(salt[:]), params))
}

func (l *testLog) outcome(n int, intent uint64, result string) uint64 {
	return l.add("outcome", body{"audit_operation_id": operationID(n), "direction": "server→client", "transport": "http", "method": "tools/call",
		"tool_name": "read_file", "mcp_name": "read_file", "server_id": "files", "intent_seq": intent, "outcome": result, "duration_ms": 12,
		"result": json.RawMessage(`{"content":[{"text":"ok","type":"text"}],"seal":{"version":3}}`)})
}

func (l *testLog) rotate(newID string, newKey ed25519.PrivateKey, signers ...ed25519.PrivateKey) {
	vkey, err := VKey(l.origin, newKey.Public().(ed25519.PublicKey))
	if err != nil {
		l.t.Fatal(err)
	}
	text := fmt.Sprintf("auditlog/v3/key_rotation\n%s\n%d\n%s\n%s\n%s\n", l.origin, l.seq, l.keyID, newID, vkey)
	var keys []note.Signer
	for _, key := range signers {
		signer, err := NoteSigner(l.origin, key)
		if err != nil {
			l.t.Fatal(err)
		}
		keys = append(keys, signer)
	}
	signed, err := note.Sign(&note.Note{Text: text}, keys...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.add("key_rotation", body{"new_key_id": newID, "new_vkey": vkey, "note": string(signed)})
	l.keyID, l.private, l.epoch = newID, newKey, 0
	l.k = StaticKey([]byte(l.secret), newID)
}

// chainBreak begins the next incarnation after the given number of records.
func (l *testLog) chainBreak(prevSize, lostTo uint64) {
	prev := l.origin
	name, n, _ := splitOrigin(prev)
	l.origin, l.keyID = fmt.Sprintf("%s/i%d", name, n+1), fmt.Sprintf("k1-i%d", n+1)
	var tree Range
	for _, leaf := range l.leaves[:prevSize] {
		tree.Append(leaf)
	}
	root := tree.Root()
	prevChain := l.chain
	found := GenesisChain(prev)
	for seq, leaf := range l.leaves[:prevSize-lostTo] {
		found = ChainHash(found, uint64(seq), leaf)
	}
	l.segment++
	l.restart()
	l.add("chain_break", body{"origin": l.origin, "vkey": l.vkey(), "key_id": l.keyID, "key_mode": "static", "segment": l.segment,
		"prev_origin": prev, "prev_size": prevSize, "prev_chain": prevChain.String(), "prev_root": root.String(), "found_chain": found.String(),
		"lost": body{"from": prevSize - lostTo, "to": prevSize - 1}, "operator": "alice", "reason": "restored from a copy"})
}

// catalogueLog is the log under test of the tamper catalogue: 72 records, 2
// segments, epochs 0 to 2, 7 checkpoints.
func catalogueLog(t testing.TB) *testLog {
	l := newTestLog(t, "audit.example/test")
	l.genesis()
	l.add("start", body{"version": "test", "actor": "tests"})
	n := 0
	calls := func(count int) {
		var open []uint64
		for range count {
			open = append(open, l.intent(n, n%2 == 0))
			n++
		}
		for i := range open {
			l.outcome(n-count+i, open[i], "success")
		}
	}
	calls(4)
	l.checkpoint()
	calls(3)
	l.add("event", body{"audit_operation_id": operationID(900), "direction": "client→server", "transport": "http", "method": "notifications/progress"})
	l.checkpoint() // 18
	calls(2)
	l.epochEnd()
	calls(3)
	l.checkpoint() // 30
	calls(2)
	l.add("heartbeat", nil)
	l.checkpoint()
	l.nextSegment() // 37 records are before it
	calls(3)
	l.checkpoint()
	calls(2)
	l.epochEnd()
	calls(4)
	l.checkpoint()
	l.add("heartbeat", nil)
	for l.seq < 71 {
		calls(1)
	}
	l.checkpoint()
	return l
}

// smallLog has 12 records in one file.
func smallLog(t testing.TB) *testLog {
	l := newTestLog(t, "audit.example/small")
	l.genesis()
	l.add("start", body{"version": "test"})
	a, b := l.intent(1, false), l.intent(2, true)
	l.outcome(2, b, "success")
	l.checkpoint()
	l.outcome(1, a, "success")
	c := l.intent(3, true)
	l.epochEnd()
	l.outcome(3, c, "tool_error")
	l.add("stop", body{"version": "test"})
	l.checkpoint()
	return l
}

// text is a file's bytes.
func (l *testLog) text(file int) []byte {
	return []byte(strings.Join(l.files[file], "\n") + "\n")
}

func (l *testLog) sources() []Source {
	var list []Source
	for i := range l.files {
		list = append(list, memorySource(fmt.Sprintf("file%d", i), l.text(i)))
	}
	return list
}

func memorySource(name string, data []byte) Source {
	return Source{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
}

// options are those of a verifier who has the keys.
func (l *testLog) options() VerifyOptions {
	return VerifyOptions{Secret: []byte(l.secret), Jobs: 1, Now: func() time.Time { return l.now }}
}

func verifyTest(t testing.TB, sources []Source, opts VerifyOptions) *Report {
	t.Helper()
	r, err := Verify(t.Context(), sources, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// kindsFound renders findings for comparison: kind and count.
func kindsFound(r *Report) string {
	var list []string
	for _, f := range r.Findings {
		list = append(list, fmt.Sprintf("%s×%d", f.Kind, f.Count))
	}
	return strings.Join(list, " ")
}
