package caddymodule_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

const denyDelete = `policy {
	rule NO deny {
		method tools/call
		tool delete_file
	}
}`

func element(id, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q}}`, id, tool)
}

const notified = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// answerBatch answers each request of an array, or of a single message, with
// its tool's name, as JSON or as events.
func answerBatch(asEvents bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var all []struct {
			ID     json.RawMessage
			Params struct{ Name string }
		}
		if json.Unmarshal(body, &all) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		var answers []string
		for _, m := range all {
			if m.ID != nil {
				answers = append(answers, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"ran":%q}}`, m.ID, m.Params.Name))
			}
		}
		switch {
		case len(answers) == 0:
			w.WriteHeader(http.StatusAccepted)
		case asEvents:
			send := sse(w)
			for _, a := range answers {
				send(a)
			}
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte("[" + strings.Join(answers, ",") + "]"))
		}
	}
}

// byID reads the answers of a JSON array or of a stream's events.
func byID(t *testing.T, body string) map[string]string {
	t.Helper()
	var all []json.RawMessage
	if !strings.HasPrefix(body, "[") {
		for line := range strings.Lines(body) {
			if data, found := strings.CutPrefix(line, "data: "); found {
				all = append(all, json.RawMessage(data))
			}
		}
	} else if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	found := make(map[string]string)
	for _, a := range all {
		var m struct {
			ID     json.RawMessage
			Result struct{ Ran string }
			Error  struct{ Code int }
		}
		if err := json.Unmarshal(a, &m); err != nil {
			t.Fatalf("%q: %v", a, err)
		}
		if _, twice := found[string(m.ID)]; twice {
			t.Errorf("id %s is answered twice in %q", m.ID, body)
		}
		found[string(m.ID)] = m.Result.Ran
		if m.Error.Code != 0 {
			found[string(m.ID)] = fmt.Sprint(m.Error.Code)
		}
	}
	return found
}

func TestBatchIsDecidedElementByElement(t *testing.T) {
	for _, c := range []struct {
		name     string
		elements []string
		forwards string // "" if nothing
		answers  map[string]string
		status   int
		records  int
	}{
		{"all allowed", []string{element("1", "echo"), notified, element(`"b"`, "list")},
			"[" + element("1", "echo") + " , " + notified + " , " + element(`"b"`, "list") + "]",
			map[string]string{"1": "echo", `"b"`: "list"}, 200, 5},
		{"one denied", []string{element("1", "echo"), element("2", "delete_file"), element(`"b"`, "list")},
			"[" + element("1", "echo") + "," + element(`"b"`, "list") + "]",
			map[string]string{"1": "echo", "2": "-32030", `"b"`: "list"}, 200, 5},
		{"one denied beside one", []string{element("9007199254740993", "delete_file"), element("1", "echo")},
			"[" + element("1", "echo") + "]",
			map[string]string{"1": "echo", "9007199254740993": "-32030"}, 200, 3},
		{"one denied beside a notification", []string{notified, element("2", "delete_file")},
			"[" + notified + "]", map[string]string{"2": "-32030"}, 200, 2},
		{"all denied", []string{element("1", "delete_file"), element("2", "delete_file")},
			"", map[string]string{"1": "-32030", "2": "-32030"}, 200, 2},
	} {
		for _, asEvents := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, events %v", c.name, asEvents), func(t *testing.T) {
				up := newUpstream(t, answerBatch(asEvents))
				r := start(t, up, denyDelete, "")
				status, answer := r.post("[" + strings.Join(c.elements, " , ") + "]")
				if status != c.status {
					t.Errorf("status %d: %s", status, answer)
				}
				if got := byID(t, answer); fmt.Sprint(got) != fmt.Sprint(c.answers) {
					t.Errorf("answers %v, want %v, in %q", got, c.answers, answer)
				}
				var forwarded string
				if got := up.received(); len(got) > 0 {
					forwarded = got[0]
				}
				if forwarded != c.forwards {
					t.Errorf("forwarded %s\nwant      %s", forwarded, c.forwards)
				}
				for _, rec := range r.await(c.records) {
					if rec.str("kind") == "outcome" && rec.str("outcome") != "success" {
						t.Errorf("record %v", rec)
					}
					denied := rec.str("tool_name") == "delete_file"
					if denied != (rec.str("outcome") == "denied") || denied && rec.str("kind") != "event" {
						t.Errorf("record %v", rec)
					}
				}
				r.verify()
			})
		}
	}
}

func TestBatchThatIsNoneIsRefusedWithARecordOfEachElement(t *testing.T) {
	two := "[" + element("1", "echo") + "," + element("2", "delete_file") + "]"
	for _, c := range []struct {
		name, body, reason string
		headers            []string
		records            int
	}{
		{"2025-06-18", two, "batch", []string{"MCP-Protocol-Version", "2025-06-18"}, 2},
		{"2026-07-28", two, "batch", []string{"MCP-Protocol-Version", "2026-07-28"}, 2},
		{"an id twice", "[" + element("1", "echo") + "," + element("1", "list") + "]", "batch_repeated_id", nil, 2},
		{"initialize", `[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}},` + element("2", "echo") + "]",
			"batch", nil, 2},
		{"mirrored header", two, "header_mismatch: Mcp-Name", []string{"Mcp-Name", "echo"}, 2},
		{"empty", "[]", "empty_batch", nil, 1},
		{"broken", "[" + element("1", "echo") + ",{]", "grammar", nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := newUpstream(t, answerBatch(false))
			r := start(t, up, "", "")
			status, answer := r.post(c.body, c.headers...)
			if status != 400 || !strings.Contains(answer, `"error"`) {
				t.Errorf("status %d: %s", status, answer)
			}
			for _, rec := range r.await(c.records) {
				if rec.str("outcome") != "denied" || !strings.HasPrefix(rec.str("reason"), c.reason) {
					t.Errorf("record %v", rec)
				}
			}
			if got := up.received(); len(got) != 0 {
				t.Errorf("the server received %q", got)
			}
		})
	}
}

func TestBatchGoesOnWholeInObserveMode(t *testing.T) {
	up := newUpstream(t, answerBatch(false))
	r := start(t, up, "mode observe\n"+denyDelete, "")
	body := "[" + element("1", "echo") + ", " + element("2", "delete_file") + "]"
	if status, answer := r.post(body, "MCP-Protocol-Version", "2025-11-25"); status != 200 || len(byID(t, answer)) != 2 {
		t.Errorf("status %d: %s", status, answer)
	}
	if got := up.received(); got[0] != body {
		t.Errorf("forwarded %s", got[0])
	}
	for _, rec := range r.await(4) {
		if rec.str("kind") == "intent" && !strings.Contains(fmt.Sprint(rec["anomaly"]), "batch") {
			t.Errorf("record %v", rec)
		}
	}
}

func TestErrorOfTheServerStandsForTheWholeBatch(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","error":{"code":-32600,"message":"no"}}`))
	})
	r := start(t, up, denyDelete, "")
	status, answer := r.post("[" + element("1", "echo") + "," + element("2", "delete_file") + "]")
	if status != 400 || answer != `{"jsonrpc":"2.0","error":{"code":-32600,"message":"no"}}` {
		t.Errorf("status %d: %s", status, answer)
	}
	r.await(3)
}
