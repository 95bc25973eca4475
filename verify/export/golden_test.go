package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

var update = flag.Bool("update", false, "write the golden files anew")

// record seals a body as a log does, with a chain and MAC of zeros.
func record(t testing.TB, seq uint64, body string) auditlog.Record {
	t.Helper()
	seal := auditlog.Seal{Seq: seq, Leaf: auditlog.LeafHash([]byte(body)), KeyID: "k1"}
	line := auditlog.AppendLine(nil, []byte(body), &seal, nil)
	r, fault := auditlog.ParseRecord(line[:len(line)-1])
	if fault != auditlog.LineOK {
		t.Fatalf("%s: %s", fault, body)
	}
	return r
}

const (
	intentBody = `{"audit_operation_id":"019e5f21-975c-70a1-a2a3-a4a5a6a7a8a9","client_id":"desktop","client_info":{"name":"inspector"},"direction":"client→server","id":"01KSFJ35TW2491650N2RBHG68T","kind":"intent","mcp_name":"read_file","method":"tools/call","nonce":"EBESExQVFhcYGRobHB0eHw","params":{"arguments":{"path":"docs/ü.txt"},"name":"read_file"},"policy":{"decision":"allow","rule_id":"read-docs"},"principal":{"client_id":"desktop","issuer":"https://idp.example","subject":"alice"},"protocol_version":"2025-11-25","request_bytes":191,"request_id":"7","request_id_type":"number","server_id":"filesystem","session":"EK_A6iiFjBv-l2P30IH8hQ","timestamp":"2026-05-25T12:34:57.500000000Z","tool_name":"read_file","transport":"http"}`

	outcomeBody = `{"audit_operation_id":"019e5f21-975c-70a1-a2a3-a4a5a6a7a8a9","client_id":"desktop","direction":"server→client","duration_ms":42,"http_status":200,"id":"01KSFJ35VE44H269154RKJGA9A","intent_seq":1,"kind":"outcome","mcp_name":"read_file","method":"tools/call","nonce":"EBESExQVFhcYGRobHB0eHw","outcome":"success","policy":{"decision":"allow","rule_id":"read-docs"},"principal":{"client_id":"desktop","issuer":"https://idp.example","subject":"alice"},"protocol_version":"2025-11-25","request_id":"7","request_id_type":"number","result":{"content":[{"text":"a,\"b\"\nc","type":"text"}]},"server_id":"filesystem","session":"EK_A6iiFjBv-l2P30IH8hQ","timestamp":"2026-05-25T12:34:57.542000000Z","tool_name":"read_file","transport":"http"}`

	// A denial whose texts have all that the formats give a meaning to.
	deniedBody = `{"audit_operation_id":"019e5f21-975c-70a1-a2a3-a4a5a6a7a8b0","client_id":"=cmd|'/C calc'!A0","direction":"client→server","error":{"code":-32030,"data":{"kind":"denied"},"message":"policy denied"},"id":"01KSFJ35VE44H269154RKJGA9B","kind":"event","mcp_name":"rm|x=1\\\n]\"ü","method":"tools/call","nonce":"EBESExQVFhcYGRobHB0eHw","outcome":"denied","params":{"arguments":{},"name":"rm|x=1\\\n]\"ü"},"policy":{"decision":"deny","reason":"no | = \\ \n here","rule_id":"R-9"},"principal":{"subject":"mallory@example.com"},"request_id":"-5","request_id_type":"number","server_id":"filesystem","timestamp":"2026-05-25T12:34:58.000000000Z","tool_name":"rm|x=1\\\n]\"ü","transport":"http"}`

	openBody = `{"audit_operation_id":"019e5f21-975c-70a1-a2a3-a4a5a6a7a8c0","client_id":"desktop","direction":"client→server","id":"01KSFJ35VE44H269154RKJGA9C","kind":"intent","method":"resources/read","mcp_name":"file:///a","nonce":"EBESExQVFhcYGRobHB0eHw","params":{"uri":"file:///a"},"request_id":"8","request_id_type":"number","server_id":"filesystem","timestamp":"2026-05-25T12:34:59.000000001Z","transport":"stdio"}`

	noticeBody = `{"direction":"client→server","id":"01KSFJ35VE44H269154RKJGA9D","kind":"event","method":"notifications/initialized","nonce":"EBESExQVFhcYGRobHB0eHw","timestamp":"2026-05-25T12:35:00.000000000Z","transport":"stdio"}`

	gapBody = `{"count":3,"from":"2026-05-25T12:35:00.000000000Z","id":"01KSFJ35VE44H269154RKJGA9E","kind":"gap","nonce":"EBESExQVFhcYGRobHB0eHw","reason":"disk full","timestamp":"2026-05-25T12:36:00.000000000Z","to":"2026-05-25T12:36:00.000000000Z"}`
)

// rows is one of each kind.
func rows(t testing.TB) []Row {
	t.Helper()
	intent := record(t, 1, intentBody)
	list := []Row{{Kind: Operation, Close: record(t, 2, outcomeBody), Intent: &intent}}
	for i, body := range []string{deniedBody, openBody, noticeBody, gapBody} {
		r := record(t, uint64(3+i), body)
		list = append(list, Row{Kind: KindOf(r.Kind), Close: r})
	}
	for i := range list {
		list[i].Origin = "audit.example/gateway-1/i0"
	}
	return list
}

func written(t testing.TB, format string, o Options, list []Row) string {
	t.Helper()
	var b bytes.Buffer
	w, err := New(format, &b, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		if err := w.Write(&list[i]); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestGoldenFiles(t *testing.T) {
	o := Options{Version: "1.2.3", Host: "gateway-1.example"}
	for _, format := range Formats() {
		got := written(t, format, o, rows(t))
		path := filepath.Join("testdata", format+".golden")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from its golden file:\n%s", format, got)
		}
	}
}

// Each row names its record by number and hash, in every format.
func TestEveryRowNamesItsRecord(t *testing.T) {
	list := rows(t)
	for _, format := range Formats() {
		for i := range list {
			r := &list[i]
			got := written(t, format, Options{}, list[i:i+1])
			for _, part := range []string{strconv.FormatUint(r.Seq(), 10), r.Leaf(), r.Origin} {
				text := strings.ReplaceAll(got, `\=`, `=`)
				if !strings.Contains(text, part) {
					t.Errorf("%s row %d does not name %s:\n%s", format, i, part, got)
				}
			}
		}
	}
}

func TestPayloadsCanBeLeftOut(t *testing.T) {
	for _, format := range Formats() {
		list := rows(t)
		for i := range list {
			list[i].NoPayloads = true
		}
		got := written(t, format, Options{}, list)
		for _, secret := range []string{"docs/", `a,\"b`, "arguments", "inspector", `"data":{"kind"`} {
			if strings.Contains(got, secret) {
				t.Errorf("%s has %q:\n%s", format, secret, got)
			}
		}
	}
}

func TestJSONIsValid(t *testing.T) {
	for _, format := range []string{"jsonl", "ocsf"} {
		for line := range strings.Lines(written(t, format, Options{Version: "1"}, rows(t))) {
			var row map[string]any
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Errorf("%s: %v: %s", format, err, line)
			}
			if format == "jsonl" {
				continue
			}
			// What the schema requires of the class.
			for _, name := range []string{"activity_id", "actor", "api", "category_uid", "class_uid", "metadata", "severity_id", "src_endpoint", "time", "type_uid"} {
				if _, ok := row[name]; !ok {
					t.Errorf("no %s in %s", name, line)
				}
			}
			metadata := row["metadata"].(map[string]any)
			if row["class_uid"] != 6003.0 || metadata["version"] != OCSFVersion || metadata["product"] == nil || row["api"].(map[string]any)["request"].(map[string]any)["uid"] == "" {
				t.Errorf("%s", line)
			}
		}
	}
}

func TestCSVReadsBack(t *testing.T) {
	got := written(t, "csv", Options{}, rows(t))
	if !strings.HasSuffix(got, "\r\n") {
		t.Error("no CRLF at the end")
	}
	records, err := csv.NewReader(strings.NewReader(got)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 6 || len(records[0]) != len(csvColumns) {
		t.Fatalf("%d rows of %d", len(records), len(records[0]))
	}
	denied := map[string]string{}
	for i, name := range records[0] {
		denied[name] = records[2][i]
	}
	for name, want := range map[string]string{
		"client_id": `'=cmd|'/C calc'!A0`, "request_id": `'-5`, "mcp_name": "rm|x=1\\\n]\"ü", "principal_subject": "mallory@example.com",
		"decision": "deny", "rule_id": "R-9", "outcome": "denied", "seq": "3", "kind": "event",
	} {
		if denied[name] != want {
			t.Errorf("%s: %q", name, denied[name])
		}
	}
}

func TestAnUnknownFormatNamesTheOthers(t *testing.T) {
	if _, err := New("xml", nil, Options{}); err == nil || !strings.Contains(err.Error(), "cef, csv, jsonl, ocsf, syslog") {
		t.Error(err)
	}
}
