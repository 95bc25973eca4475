package legacy

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func TestValidEntriesPromiseNoMoreThanTheirSignature(t *testing.T) {
	good := memory("a.jsonl", entryLine(t, 1, nil), entryLine(t, 2, nil))
	r := verify(t, FormatP4ST4S, withSecret(), good)
	expect(t, r, auditlog.ExitClean)
	if r.Statuses[V2Valid] != 2 || r.Verified != 2 || r.Worst != V2Valid || r.MAC != auditlog.MACChecked {
		t.Errorf("%+v", r)
	}
	if got := r.NotCoveredSentence(); got != "records 1..2 are not covered by any external anchor" {
		t.Error(got)
	}
	if !strings.Contains(r.Promise, "nothing in this format shows entries that are missing") {
		t.Error(r.Promise)
	}
}

func TestEachTamperedEntryHasItsFinding(t *testing.T) {
	const T, W, I = " T", " W", " I"
	line := entryLine(t, 1, nil)
	big := func(m map[string]string) { m["params"] = `{"n":9007199254740993}` }
	for name, c := range map[string]struct {
		lines  []string
		opts   Options
		exit   int
		status Status
		want   []string
	}{
		"result edited":                            {[]string{swap(t, line, `"content":[]`, `"content":[1]`)}, withSecret(), 1, LegacyConflict, []string{"legacy_conflict" + T}},
		"timestamp edited":                         {[]string{swap(t, line, ":01.5Z", ":02.5Z")}, withSecret(), 1, LegacyConflict, []string{"legacy_conflict" + T}},
		"integrity removed":                        {[]string{stripped(line)}, withSecret(), 0, LegacyOnly, []string{"legacy_only" + W}},
		"integrity removed behind one that has it": {[]string{line, stripped(entryLine(t, 2, nil))}, withSecret(), 1, LegacyOnly, []string{"legacy_only" + W, "downgrade" + T}},
		"integrity removed, result edited":         {[]string{swap(t, stripped(line), `"content":[]`, `"content":[1]`)}, withSecret(), 0, LegacyOnly, []string{"legacy_only" + W}},
		"integrity removed, params edited":         {[]string{swap(t, stripped(line), `"path":"a"`, `"path":"b"`)}, withSecret(), 1, LegacyInvalid, []string{"legacy_invalid" + T}},
		"both removed":                             {[]string{line[:strings.Index(line, `,"signature"`)] + "}"}, withSecret(), 1, Unsigned, []string{"unsigned" + T}},
		"older one edited":                         {[]string{swap(t, line, `"signature":"`, `"signature":"00`)}, withSecret(), 0, V2Valid, []string{"legacy_mismatch" + W}},
		"version changed":                          {[]string{swap(t, line, `"version":2`, `"version":3`)}, withSecret(), 1, LegacyConflict, []string{"legacy_conflict" + T}},
		"algorithm changed":                        {[]string{swap(t, line, `hmac-sha256`, `none`)}, withSecret(), 1, LegacyConflict, []string{"legacy_conflict" + T}},
		"member in capitals":                       {[]string{swap(t, line, `"params"`, `"PARAMS":{},"params"`)}, withSecret(), 1, V2Valid, []string{"shadow_key" + T}},
		"member with long s":                       {[]string{swap(t, line, `"params"`, `"paramſ":{},"params"`)}, withSecret(), 1, V2Valid, []string{"shadow_key" + T}},
		"member repeated":                          {[]string{swap(t, line, `"outcome"`, `"outcome":"denied","outcome"`)}, withSecret(), 1, LegacyConflict, []string{"shadow_key" + T, "legacy_conflict" + T}},
		"repeated in params":                       {[]string{swap(t, line, `"path":"a"`, `"path":"b","path":"a"`)}, withSecret(), 1, LegacyConflict, []string{"shadow_key" + T, "legacy_conflict" + T}},
		"member added":                             {[]string{swap(t, line, `"params"`, `"note":1,"params"`)}, withSecret(), 1, V2Valid, []string{"unknown_member" + T}},
		"member added inside":                      {[]string{swap(t, line, `"version":2`, `"version":2,"x":1`)}, withSecret(), 1, V2Valid, []string{"unknown_member" + T}},
		"no JSON":                                  {[]string{line, "{"}, withSecret(), 1, Unreadable, []string{"malformed_line" + T}},
		"blank line":                               {[]string{line, ""}, withSecret(), 1, Unreadable, []string{"malformed_line" + T}},
		"wrong type":                               {[]string{swap(t, line, `"request_id":"7"`, `"request_id":7`)}, withSecret(), 1, Unreadable, []string{"malformed_line" + T}},
		"too deep to judge":                        {[]string{swap(t, line, `"content":[]`, `"content":`+strings.Repeat("[", 70)+strings.Repeat("]", 70))}, withSecret(), 3, Unreadable, []string{"unchecked_record" + I}},
		"no key":                                   {[]string{line}, Options{}, 3, Unchecked, []string{"mac_unchecked" + I}},
		"other key":                                {[]string{line}, Options{Keys: Keys{Secret: []byte("some other secret, 43")}}, 1, LegacyConflict, []string{"legacy_conflict" + T}},
		"other key id":                             {[]string{line}, Options{Keys: Keys{Secret: []byte(testSecret), KeyID: "k9"}}, 1, LegacyConflict, []string{"unknown_key" + T}},
		"older one, v2 required": {[]string{stripped(line)}, Options{Keys: Keys{Secret: []byte(testSecret)}, Require: RequireV2}, 1, LegacyOnly,
			[]string{"legacy_only" + T}},
		"v3 required":   {[]string{line}, Options{Keys: Keys{Secret: []byte(testSecret)}, Require: RequireV3}, 1, V2Valid, []string{"legacy_only" + T}},
		"v2 required":   {[]string{line}, Options{Keys: Keys{Secret: []byte(testSecret)}, Require: RequireV2}, 0, V2Valid, nil},
		"a v3 log here": {[]string{line}, Options{Keys: Keys{Secret: []byte(testSecret)}, Sealed: "a.jsonl.state"}, 1, V2Valid, []string{"downgrade" + T}},
		// A double reads the number as …992: what was signed is that.
		"number beyond doubles": {[]string{entryLine(t, 1, big)}, withSecret(), 1, LegacyConflict, []string{"lossy_number" + W, "legacy_conflict" + T}},
		"nothing":               {nil, withSecret(), 1, "", []string{"empty_log" + T}},
	} {
		t.Run(name, func(t *testing.T) {
			r := verify(t, FormatP4ST4S, c.opts, memory("a.jsonl", c.lines...))
			expect(t, r, c.exit, c.want...)
			if r.Worst != c.status {
				t.Errorf("worst status %q, want %q", r.Worst, c.status)
			}
		})
	}
}

// A number that was rounded when it was signed still verifies, and is reported.
func TestNumberThatWasRoundedWhenSignedIsReported(t *testing.T) {
	line := entryLine(t, 1, func(m map[string]string) { m["params"] = `{"n":9007199254740992}` })
	line = swap(t, line, "9007199254740992", "9007199254740993")
	r := verify(t, FormatP4ST4S, withSecret(), memory("a.jsonl", line))
	expect(t, r, auditlog.ExitClean, "lossy_number W", "legacy_mismatch W")
}

func TestOlderSignatureIsFoundBehindWhatStoringChanges(t *testing.T) {
	for name, c := range map[string]struct{ signed, stored string }{
		"as stored":    {`{"a":"\u003cb"}`, `{"a":"\u003cb"}`},
		"html escaped": {`{"a":"<b>&\\u003c"}`, `{"a":"\u003cb\u003e\u0026\\u003c"}`},
		"spaces":       {`{"a":1}`, `{"a": 1 }`},
		"separators":   {"{\"a\":\"\u2028\"}", `{"a":"\u2028"}`},
	} {
		line := stripped(entryLine(t, 1, func(m map[string]string) { m["params"] = c.signed }))
		r := verify(t, FormatP4ST4S, withSecret(), memory("a.jsonl", swap(t, line, c.signed, c.stored)))
		if r.Statuses[LegacyOnly] != 1 {
			t.Errorf("%s: %+v", name, r.Findings)
		}
	}
}

func TestTornEndAndForeignLinesAreNamed(t *testing.T) {
	line := entryLine(t, 1, nil)
	expect(t, verify(t, FormatP4ST4S, withSecret(), raw("a.jsonl", line+"\n"+line[:40])), auditlog.ExitIncomplete, "torn_tail I")
	sealed := string(auditlog.AppendLine(nil, []byte(`{"id":"x"}`), &auditlog.Seal{KeyID: "k1"}, nil))
	expect(t, verify(t, FormatP4ST4S, withSecret(), memory("a.jsonl", line, strings.TrimSuffix(sealed, "\n"))), auditlog.ExitTampered, "foreign_log T")
	expect(t, verify(t, FormatP4ST4S, withSecret(), raw("a.jsonl.20260101T000000Z", line), memory("a.jsonl", line)), auditlog.ExitTampered, "torn_segment T")
}

func TestEntryTakesAnyTimeZoneAndNoEmptyMembers(t *testing.T) {
	line := swap(t, entryLine(t, 1, nil), "12:34:01.5Z", "14:34:01.500+02:00")
	expect(t, verify(t, FormatP4ST4S, withSecret(), memory("a.jsonl", swap(t, line, `"params"`, `"policy":null,"error":null,"params"`))), auditlog.ExitClean)
}

func TestAnchorOverLinesFindsEveryChange(t *testing.T) {
	keys, err := auditlog.GenerateKeyring("k1", "test")
	if err != nil {
		t.Fatal(err)
	}
	key, _ := keys.SigningKey("k1")
	one, two, three := entryLine(t, 1, nil), entryLine(t, 2, nil), entryLine(t, 3, nil)
	sum, err := SumLines(t.Context(), []auditlog.Source{memory("a.jsonl", one, two)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := Sign(sum.Tree, "old.example/log", key)
	if err != nil {
		t.Fatal(err)
	}
	vkey, err := auditlog.VKey("old.example/log", keys.PublicKeys()[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	opts := withSecret()
	opts.Anchors, opts.VKeys = []auditlog.Anchor{{Name: "note", Note: signed}}, []string{vkey}
	r := verify(t, FormatP4ST4S, opts, memory("a.jsonl", one, two, three))
	expect(t, r, auditlog.ExitClean)
	if r.NotCovered != [2]uint64{3, 3} {
		t.Error(r.NotCovered)
	}
	expect(t, verify(t, FormatP4ST4S, opts, memory("a.jsonl", one)), auditlog.ExitDiverges, "tail_truncated D")
	expect(t, verify(t, FormatP4ST4S, opts, memory("a.jsonl", two, one)), auditlog.ExitDiverges, "anchor_mismatch D")
	opts.VKeys = nil
	expect(t, verify(t, FormatP4ST4S, opts, memory("a.jsonl", one, two)), auditlog.ExitDiverges, "anchor_sig_invalid D")
	opts.Keys.Ring = keys
	expect(t, verify(t, FormatP4ST4S, opts, memory("a.jsonl", one, two)), auditlog.ExitClean)
	if _, err := SumLines(t.Context(), []auditlog.Source{raw("a.jsonl", one)}, 0); err == nil {
		t.Error("a torn file was summed")
	}
}
