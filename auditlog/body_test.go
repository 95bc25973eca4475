package auditlog

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// vectorRecords is the part of the vector that the body builder reproduces.
type vectorInputs struct {
	Inputs struct {
		Secret   string `json:"hmac_secret"`
		KeyID    string `json:"key_id"`
		Origin   string `json:"origin"`
		Config   string `json:"config_bytes"`
		Request  string `json:"request_bytes_utf8"`
		Response string `json:"response_bytes_utf8"`
		Session  string `json:"session_id"`
	} `json:"inputs"`
	Keys struct {
		VKey string `json:"vkey"`
	} `json:"keys"`
	Derived struct {
		Params string `json:"params_value"`
	} `json:"derived"`
	Records []struct {
		Body string `json:"body"`
	} `json:"records"`
	Payloads []struct {
		In  string `json:"in_hex"`
		Out string `json:"out"`
	} `json:"payload_normalisation"`
}

func loadInputs(t *testing.T) (v vectorInputs) {
	t.Helper()
	raw, err := os.ReadFile("testdata/evidence-vector.json")
	if err == nil {
		err = json.Unmarshal(raw, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// vectorStamp takes a record's time, nonce and id from its published body.
func vectorStamp(t *testing.T, body string) (s stamp) {
	t.Helper()
	bodyMembers([]byte(strings.TrimSuffix(body, "}")), func(name string, value []byte) bool {
		text := textValue(value)
		switch name {
		case "timestamp":
			at, err := time.Parse(timeLayout, text)
			if err != nil {
				t.Fatal(err)
			}
			s.at = at
		case "nonce":
			raw, err := b64.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			copy(s.nonce[:], raw)
		case "id":
			// 16 characters of Crockford base 32 are the 10 bytes of entropy.
			const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
			bits, n := uint64(0), 0
			out := s.entropy[:0]
			for _, c := range text[10:] {
				bits, n = bits<<5|uint64(strings.IndexRune(digits, c)), n+5
				if n >= 8 {
					n -= 8
					out = append(out, byte(bits>>n))
				}
			}
		}
		return true
	})
	return s
}

func vectorMessage(v vectorInputs) Message {
	return Message{
		OperationID: "019e5f21-975c-70a1-a2a3-a4a5a6a7a8a9", Direction: ClientToServer, Transport: "http",
		ProtocolVersion: "2025-11-25", Method: "tools/call", RequestID: "7", RequestIDType: "number",
		MCPName: "read_file", ToolName: "read_file", SessionID: v.Inputs.Session, ClientID: "desktop", ServerID: "filesystem",
		Principal: &Principal{Subject: "alice", ClientID: "desktop", Issuer: "https://idp.example"},
		Policy:    &Policy{Decision: "allow", RuleID: "read-docs"},
	}
}

// The vector's records carry no run, and its params are committed; everything
// else is what the writer itself writes.
func TestVectorBodiesAreReproducedByteForByte(t *testing.T) {
	v := loadInputs(t)
	k0 := StaticKey([]byte(v.Inputs.Secret), v.Inputs.KeyID)
	e := &encoder{blind: newBlinder(blindKey(k0))}
	m := vectorMessage(v)
	session := e.blind.session(v.Inputs.Session)

	config := sha256Of(v.Inputs.Config)
	genesis := record(kindGenesis, vectorStamp(t, v.Records[0].Body), originMembers(v.Inputs.Origin, v.Keys.VKey, v.Inputs.KeyID, Static, config, 0)...)
	if got := string(genesis.body()); got != v.Records[0].Body {
		t.Errorf("genesis:\n%s\nwant:\n%s", got, v.Records[0].Body)
	}

	intent, err := e.intent(&Intent{
		Message: m, Params: Payload{Received: []byte(`{"x":1}`), Redacted: []byte(denormal(v.Derived.Params))}, Request: []byte(v.Inputs.Request),
	}, session, vectorStamp(t, v.Records[1].Body))
	if err != nil {
		t.Fatal(err)
	}
	committed := v.Records[1].Body
	from := strings.Index(committed, `"params":`) + len(`"params":`)
	plain := committed[:from] + v.Derived.Params + committed[strings.Index(committed, `,"policy"`):]
	if got := string(intent.body()); got != plain {
		t.Errorf("intent:\n%s\nwant:\n%s", got, plain)
	}

	outcome, err := e.outcome(&m, session, 1, &Outcome{
		Result: Success, Direction: ServerToClient, Duration: 18 * time.Millisecond,
		Answer: Payload{Received: []byte(`{"content":[{"type":"text","text":"ok"}]}`)}, Response: []byte(v.Inputs.Response),
	}, false, vectorStamp(t, v.Records[2].Body))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(outcome.body()); got != v.Records[2].Body {
		t.Errorf("outcome:\n%s\nwant:\n%s", got, v.Records[2].Body)
	}
	if outcome.leaf != LeafHash([]byte(v.Records[2].Body)) {
		t.Error("the leaf of the outcome differs")
	}

	// The same outcome with a streamed hash.
	s := vectorStamp(t, v.Records[2].Body)
	w := &WireHash{nonce: s.nonce, h: e.blind.wire(s.nonce)}
	for _, part := range []string{v.Inputs.Response[:10], "", v.Inputs.Response[10:]} {
		_, _ = w.Write([]byte(part))
	}
	s.nonce = [16]byte{} // the hash brings its own
	outcome, err = e.outcome(&m, session, 1, &Outcome{
		Result: Success, Direction: ServerToClient, Duration: 18 * time.Millisecond,
		Answer: Payload{Received: []byte(`{"content":[{"type":"text","text":"ok"}]}`)}, ResponseHash: w,
	}, false, s)
	if err != nil || string(outcome.body()) != v.Records[2].Body || w.Len() != int64(len(v.Inputs.Response)) {
		t.Errorf("outcome with a streamed hash: %v\n%s", err, outcome.body())
	}
}

// denormal turns the vector's normal form back into what was received.
func denormal(normal string) string {
	return strings.NewReplacer(`{"$num":"9007199254740993"}`, `9007199254740993`, `"$$ref"`, `"$ref"`).Replace(normal)
}

func sha256Of(text string) Hash {
	h, err := hashRange(strings.NewReader(text), 0, int64(len(text)))
	if err != nil {
		panic(err)
	}
	return h
}

func TestPayloadsAreKeptInTheirNormalForm(t *testing.T) {
	v := loadInputs(t)
	e := &encoder{blind: newBlinder(make([]byte, 32))}
	for i, c := range v.Payloads {
		in, err := hex.DecodeString(c.In)
		if err != nil {
			t.Fatal(err)
		}
		if got := paramsOf(t, e, Payload{Received: in}); got != c.Out {
			t.Errorf("case %d: %s\nwant %s", i, got, c.Out)
		}
	}
}

func paramsOf(t *testing.T, e *encoder, p Payload) string {
	t.Helper()
	d, err := e.event(&Event{Params: p}, newStamp(time.Unix(0, 0)))
	if err != nil {
		t.Fatal(err)
	}
	params := ""
	bodyMembers(d.body()[:len(d.body())-1], func(name string, value []byte) bool {
		if name == "params" {
			params = string(value)
		}
		return true
	})
	return params
}

func TestPayloadsThatCannotBeKeptInFull(t *testing.T) {
	e := &encoder{blind: newBlinder(make([]byte, 32))}
	cases := []struct {
		name   string
		p      Payload
		prefix string
		suffix string
	}{
		{"absent", Payload{}, "", ""},
		{"redacted", Payload{Received: []byte(`{"a":"secret"}`), Redacted: []byte(`{"a":"[REDACTED]"}`)}, `{"a":"[REDACTED]"}`, ""},
		{"too long", Payload{Received: []byte(`"0123456789"`), Limit: 11}, `{"$trunc":12,"sha256":"`, `"}`},
		{"just fits", Payload{Received: []byte(`"0123456789"`), Limit: 12}, `"0123456789"`, ""},
		{"no JSON", Payload{Received: []byte("oops")}, `{"$raw":"b29wcw","why":"grammar"}`, ""},
		{"no JSON, redaction on", Payload{Received: []byte("oops"), RedactionOn: true}, `{"$trunc":4,"sha256":"`, `","why":"grammar"}`},
		{"duplicate, redaction on", Payload{Received: []byte(`{"a":1,"a":2}`), RedactionOn: true}, `{"$trunc":13,"sha256":"`, `","why":"dup_key"}`},
		{"too deep, redaction on", Payload{Received: []byte(strings.Repeat("[", 65) + strings.Repeat("]", 65)), RedactionOn: true}, `{"$raw":"W1tb`, `","why":"depth"}`},
		{"withheld", Payload{Received: []byte(`{}`), Withheld: "redaction"}, `{"$trunc":2,"sha256":"`, `","why":"redaction"}`},
		{"dollar names are user data", Payload{Received: []byte(`{"$trunc":1,"$c":"x"}`)}, `{"$$c":"x","$$trunc":1}`, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := paramsOf(t, e, c.p)
			if !strings.HasPrefix(got, c.prefix) || !strings.HasSuffix(got, c.suffix) || c.suffix == "" && got != c.prefix {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestEveryMemberStandsInItsPlace(t *testing.T) {
	e := &encoder{run: "AAAAAAAAAAAAAAAAAAAAAA", blind: newBlinder(make([]byte, 32))}
	m := vectorMessage(loadInputs(t))
	m.Reason, m.Anomaly, m.HTTPStatus, m.TraceParent = "why \u2028\xff", []string{"b", "a"}, 418, "00-ab"
	m.ClientInfo, m.ParentSeq, m.HasParent = []byte(`{"version":"1","name":"x"}`), 0, true
	m.RequestID, m.RequestIDType = "", "null"
	m.Principal = &Principal{Subject: "s", Source: "shim", Roles: []string{"r"}, Scopes: []string{"a b"}}
	m.Policy = &Policy{Decision: "deny", RuleID: "R", Reason: "no", Digest: "d"}
	p := Payload{Received: []byte(`{}`)}
	d, err := e.event(&Event{Message: m, Result: Denied, Params: p, Answer: p, Error: p, Request: []byte{}, Count: 3}, newStamp(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	bodyMembers(d.body()[:len(d.body())-1], func(name string, _ []byte) bool { names = append(names, name); return true })
	want := "anomaly audit_operation_id client_id client_info count direction error http_status id kind mcp_name method nonce outcome " +
		"params parent_seq policy principal protocol_version reason request_bytes request_id request_id_type request_sha256 result run " +
		"server_id session timestamp tool_name traceparent transport"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("members %s\nwant    %s", got, want)
	}
	d, err = e.outcome(&m, "s", 0, &Outcome{Result: Success, Answer: p, Error: p, Response: []byte("x"), Reason: "r", Anomaly: []string{"a"}, HTTPStatus: 200,
		Duration: -time.Second, Counts: map[string]int{"progress": 2, "a": 1}}, false, newStamp(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"counts":{"a":1,"progress":2}`, `"duration_ms":0,`, `"intent_seq":0,`, `"direction":"client→server"`, `"policy":{"decision":"deny"`} {
		if !bytes.Contains(d.body(), []byte(part)) {
			t.Errorf("the outcome has no %s: %s", part, d.body())
		}
	}
}

func TestARestampedRecordIsWhole(t *testing.T) {
	e := &encoder{blind: newBlinder(make([]byte, 32))}
	at := time.Date(2026, 5, 25, 12, 34, 57, 518250000, time.UTC)
	s := newStamp(at)
	d, err := e.event(&Event{Message: Message{Method: "x"}}, s)
	if err != nil {
		t.Fatal(err)
	}
	later := at.Add(time.Hour)
	d.restamp(later)
	s.at = later
	want, err := e.event(&Event{Message: Message{Method: "x"}}, s)
	if err != nil || string(d.body()) != string(want.body()) || d.leaf != want.leaf {
		t.Errorf("restamped:\n%s\nwant:\n%s", d.body(), want.body())
	}
}

func TestATooLargeRecordIsRefused(t *testing.T) {
	e := &encoder{blind: newBlinder(make([]byte, 32))}
	big := []byte(`"` + strings.Repeat("x", MaxLine) + `"`)
	if _, err := e.intent(&Intent{Params: Payload{Received: big}}, "", newStamp(time.Now())); err != ErrTooLarge {
		t.Errorf("err = %v", err)
	}
}
