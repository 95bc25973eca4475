package legacy

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

const gatewaySecret = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// gateway writes a chain by the format's formulas: the signed form is written
// out by hand.
type gateway struct {
	t     testing.TB
	key   []byte
	ed    ed25519.PrivateKey
	head  string
	n     int
	count int
	seq   int
}

func newGateway(t testing.TB) *gateway {
	key, err := hex.DecodeString(gatewaySecret)
	if err != nil {
		t.Fatal(err)
	}
	return &gateway{t: t, key: key, head: "genesis"}
}

func (g *gateway) seal(members, signed string) string {
	g.t.Helper()
	var mac string
	if g.ed != nil {
		mac = hex.EncodeToString(ed25519.Sign(g.ed, []byte(signed)))
	} else {
		h := hmac.New(sha256.New, g.key)
		h.Write([]byte(signed))
		mac = hex.EncodeToString(h.Sum(nil))
	}
	line := fmt.Sprintf(`{%s,"attestation":%q}`, members, mac)
	sum := sha256.Sum256([]byte(line))
	g.head = hex.EncodeToString(sum[:])
	return line
}

// wrapped is a call as the stdio wrapper records it.
func (g *gateway) wrapped(args string) string {
	g.n++
	g.count++
	id, at := fmt.Sprintf("id-%d", g.n), fmt.Sprintf("2026-05-25T12:34:%02d.123Z", g.n%60)
	members := fmt.Sprintf(`"id":%q,"timestamp":%q,"method":"tools/call","toolName":"read_é","namespace":null,"upstream":null,"principal":null,"args":%s,"durationMs":12,"success":true,"errorCode":null,"previousHash":%q`, id, at, args, g.head)
	signed := fmt.Sprintf(`[["id",%q],["timestamp",%q],["method","tools/call"],["toolName","read_é"],["namespace",null],["upstream",null],["principal",null],["durationMs",12],["success",true],["errorCode",null],["previousHash",%q]]`, id, at, g.head)
	return g.seal(members, signed)
}

// routed is a call as the gateway records it, with all optional members.
func (g *gateway) routed() string {
	g.n++
	g.count++
	id := fmt.Sprintf("id-%d", g.n)
	const parties = `[{"party":"gateway","role":"witness","scope":["id","timestamp"]},{"party":"policy-engine","role":"asserter","scope":[]}]`
	members := fmt.Sprintf(`"id":%q,"timestamp":"2026-05-25T12:00:00.000Z","method":"tools/call","toolName":"fs/read","namespace":"fs","upstream":"u","principal":"alice","durationMs":0.5,"success":false,"errorCode":-32603,"decisionContextDigest":"d1","aiInvocation":{"turnId":"t","model":{"𝕏":1,"｡":[true]},"invocationReason":null},"parties":%s,"previousHash":%q`, id, parties, g.head)
	signed := fmt.Sprintf(`[["id",%q],["timestamp","2026-05-25T12:00:00.000Z"],["method","tools/call"],["toolName","fs/read"],["namespace","fs"],["upstream","u"],["principal","alice"],["durationMs",0.5],["success",false],["errorCode",-32603],["decisionContextDigest","d1"],["previousHash",%q],["aiInvocation",["M",[["invocationReason",null],["model",["M",[["𝕏",1],["｡",["L",[true]]]]]],["turnId","t"]]]],["parties",%s]]`, id, g.head, parties)
	return g.seal(members, signed)
}

func (g *gateway) checkpoint() string {
	g.seq++
	m := fmt.Sprintf(`"id":"ckpt","type":"checkpoint","timestamp":"2026-05-25T12:00:00.000Z","sequence":%d,"recordCount":%d,"previousHash":%q`, g.seq, g.count, g.head)
	s := fmt.Sprintf(`[["id","ckpt"],["type","checkpoint"],["timestamp","2026-05-25T12:00:00.000Z"],["sequence",%d],["recordCount",%d],["previousHash",%q]]`, g.seq, g.count, g.head)
	return g.seal(m, s)
}

func (g *gateway) broken(reason string) string {
	g.count, g.seq = 0, 0
	m := fmt.Sprintf(`"id":"break","type":"chain_break","timestamp":"2026-05-25T12:00:00.000Z","reason":%q,"priorHead":%q,"priorSequence":1`, reason, g.head)
	s := fmt.Sprintf(`[["id","break"],["type","chain_break"],["timestamp","2026-05-25T12:00:00.000Z"],["reason",%q],["priorHead",%q],["priorSequence",1],["priorRecordCount",null]]`, reason, g.head)
	return g.seal(m, s)
}

func (g *gateway) drift() string {
	g.count++
	m := fmt.Sprintf(`"id":"drift","type":"tool_drift","timestamp":"2026-05-25T12:00:00.000Z","toolName":"read","namespace":"fs","previousDefinitionDigest":"a","newDefinitionDigest":"b","detectedAtRecord":3,"previousHash":%q`, g.head)
	s := fmt.Sprintf(`[["id","drift"],["type","tool_drift"],["timestamp","2026-05-25T12:00:00.000Z"],["toolName","read"],["namespace","fs"],["previousDefinitionDigest","a"],["newDefinitionDigest","b"],["detectedAtRecord",3],["previousHash",%q]]`, g.head)
	return g.seal(m, s)
}

func withGatewaySecret() Options { return Options{Keys: Keys{Secret: []byte(gatewaySecret)}} }

func TestChainOfEveryKindOfRecordVerifies(t *testing.T) {
	g := newGateway(t)
	lines := []string{g.routed(), g.routed(), g.checkpoint(), g.drift(), g.broken("operator"), g.routed(), g.checkpoint()}
	r := verify(t, FormatGateway, withGatewaySecret(), memory("a.jsonl", lines...))
	expect(t, r, auditlog.ExitClean, "chain_break W")
	if r.Statuses[ChainSigned] != len(lines) || r.Kinds["call"] != 3 || r.Kinds["checkpoint"] != 2 || r.Kinds["tool_drift"] != 1 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(r.Promise, "an end that was cut off") {
		t.Error(r.Promise)
	}
}

func TestEd25519ChainNeedsThePublicKeyAlone(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	g := newGateway(t)
	g.ed = private
	line := g.routed()
	expect(t, verify(t, FormatGateway, Options{Keys: Keys{Public: []ed25519.PublicKey{public}}}, memory("a.jsonl", line)), auditlog.ExitClean)
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("a.jsonl", line)), auditlog.ExitIncomplete, "mac_unchecked I")
	// A public key must never serve as an HMAC key.
	g = newGateway(t)
	g.key = public
	expect(t, verify(t, FormatGateway, Options{Keys: Keys{Public: []ed25519.PublicKey{public}}}, memory("a.jsonl", g.routed())), auditlog.ExitIncomplete, "mac_unchecked I")
}

func TestEachTamperedChainHasItsFinding(t *testing.T) {
	g := newGateway(t)
	a, b, c := g.wrapped(`{"path":"a"}`), g.wrapped(`{}`), g.routed()
	for name, test := range map[string]struct {
		lines []string
		opts  Options
		exit  int
		want  []string
	}{
		"untouched":             {[]string{a, b, c}, withGatewaySecret(), 0, []string{"unsigned_arguments W"}},
		"arguments edited":      {[]string{swap(t, a, `"path":"a"`, `"path":"b"`), b, c}, withGatewaySecret(), 1, []string{"chain_broken T", "unsigned_arguments W"}},
		"last arguments edited": {[]string{swap(t, a, `"path":"a"`, `"path":"b"`)}, withGatewaySecret(), 0, []string{"unsigned_arguments W"}},
		"tool edited":           {[]string{a, b, swap(t, c, "fs/read", "fs/list")}, withGatewaySecret(), 1, []string{"legacy_invalid T", "unsigned_arguments W"}},
		"nested value edited":   {[]string{a, b, swap(t, c, `"turnId":"t"`, `"turnId":"u"`)}, withGatewaySecret(), 1, []string{"legacy_invalid T", "unsigned_arguments W"}},
		"deleted":               {[]string{a, c}, withGatewaySecret(), 1, []string{"chain_broken T", "unsigned_arguments W"}},
		"swapped":               {[]string{b, a, c}, withGatewaySecret(), 1, []string{"chain_broken T", "partial_history I", "unsigned_arguments W"}},
		"duplicated":            {[]string{a, a, b, c}, withGatewaySecret(), 1, []string{"chain_broken T", "unsigned_arguments W"}},
		"beginning cut":         {[]string{b, c}, withGatewaySecret(), 3, []string{"partial_history I", "unsigned_arguments W"}},
		"attestation removed":   {[]string{a[:strings.Index(a, `,"attestation"`)] + "}"}, withGatewaySecret(), 1, []string{"unsigned T", "unsigned_arguments W"}},
		"no hex":                {[]string{swap(t, a, `"attestation":"`, `"attestation":"x`)}, withGatewaySecret(), 1, []string{"legacy_invalid T", "unsigned_arguments W"}},
		"member in capitals":    {[]string{swap(t, a, `"toolName"`, `"TOOLNAME":"x","toolName"`)}, withGatewaySecret(), 1, []string{"shadow_key T", "unsigned_arguments W"}},
		"member added":          {[]string{swap(t, a, `"toolName"`, `"x":1,"toolName"`)}, withGatewaySecret(), 1, []string{"unknown_member T", "unsigned_arguments W"}},
		"unknown type":          {[]string{swap(t, a, `"method"`, `"type":"other","method"`)}, withGatewaySecret(), 1, []string{"malformed_line T"}},
		"no JSON":               {[]string{a, b, "x"}, withGatewaySecret(), 1, []string{"malformed_line T", "unsigned_arguments W"}},
		"no key":                {[]string{a, b, c}, Options{}, 3, []string{"mac_unchecked I", "unsigned_arguments W"}},
		"other key":             {[]string{c}, Options{Keys: Keys{Secret: []byte("ff")}}, 1, []string{"legacy_invalid T", "partial_history I"}},
		"v2 required":           {[]string{a}, Options{Keys: Keys{Secret: []byte(gatewaySecret)}, Require: RequireV2}, 1, []string{"legacy_only T", "unsigned_arguments W"}},
		"number rounded":        {[]string{a, b, swap(t, c, "0.5", "0.50000000000000000000001")}, withGatewaySecret(), 0, []string{"lossy_number W", "unsigned_arguments W"}},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, verify(t, FormatGateway, test.opts, memory("a.jsonl", test.lines...)), test.exit, test.want...)
		})
	}
}

func TestEmptyKeyIsNoSignature(t *testing.T) {
	g := newGateway(t)
	g.key = nil
	line := g.routed()
	for _, secret := range []string{"not hexadecimal", gatewaySecret} {
		expect(t, verify(t, FormatGateway, Options{Keys: Keys{Secret: []byte(secret)}}, memory("a.jsonl", line)), auditlog.ExitTampered, "unsigned T")
	}
}

func TestRotationSetsVerifyAsOneChain(t *testing.T) {
	g := newGateway(t)
	a, b, c, d := g.routed(), g.routed(), g.routed(), g.checkpoint()
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("1", a, b), memory("2", c, d)), auditlog.ExitClean)
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("2", c, d)), auditlog.ExitIncomplete, "partial_history I")
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("1", a), memory("2", c, d)), auditlog.ExitTampered, "segment_boundary T")
	// Versions that began each file anew.
	other := newGateway(t)
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("1", a, b), memory("2", other.routed(), other.checkpoint())), auditlog.ExitClean, "chain_break W")
}

func TestDeclaredBreaksAreComparedWithWhatIsBeforeThem(t *testing.T) {
	g := newGateway(t)
	a, b := g.routed(), g.routed()
	brk := g.broken("state_log_inconsistent")
	c := g.routed()
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("1", a, b, brk, c)), auditlog.ExitClean, "chain_break W")
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("1", a, brk, c)), auditlog.ExitTampered, "chain_break W", "chain_broken T")
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("1", brk, c)), auditlog.ExitIncomplete, "chain_break W", "partial_history I")
	g = newGateway(t)
	a, b, brk = g.routed(), g.routed(), g.broken("log_first_record_corrupt")
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("1", a, brk)), auditlog.ExitClean, "chain_break W")
	_ = b
}

func TestCheckpointsThatMiscountAreWarnedOf(t *testing.T) {
	g := newGateway(t)
	a := g.routed()
	g.count = 7
	b, c := g.checkpoint(), g.routed()
	g.seq = 0
	d := g.checkpoint()
	expect(t, verify(t, FormatGateway, withGatewaySecret(), memory("1", a, b, c, d)), auditlog.ExitClean, "count_mismatch W", "sequence_regression W")
}

func TestDetectionIsByContent(t *testing.T) {
	g := newGateway(t)
	entry, call := entryLine(t, 1, nil), g.wrapped("{}")
	sealed := strings.TrimSuffix(string(auditlog.AppendLine(nil, []byte(`{"id":"x"}`), &auditlog.Seal{KeyID: "k1"}, nil)), "\n")
	for want, logs := range map[Format][][]string{
		FormatP4ST4S:  {{entry}, {stripped(entry)}, {"", "{", entry, call}},
		FormatGateway: {{call}, {g.checkpoint()}, {g.broken("x")}, {"junk", call, entry}},
		FormatNone:    {{}, {sealed}, {entry, sealed}, {call, sealed}, {`{"a":1}`}, {"junk"}},
	} {
		for _, lines := range logs {
			got, err := Detect(t.Context(), memory("a", lines...))
			if err != nil || got != want {
				t.Errorf("%.200q is %q, %v; want %q", lines, got, err, want)
			}
		}
	}
}
