package caddymodule_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// recordedNow lists the outcomes that the log's file has at this moment.
func (r *rig) recordedNow() (ids []string) {
	for _, rec := range r.records() {
		if rec.str("kind") == "outcome" {
			ids = append(ids, rec.str("request_id")+" "+rec.str("outcome"))
		}
	}
	return ids
}

const (
	progress   = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`
	batchOf8_9 = `[{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"a"}},{"jsonrpc":"2.0","id":"nine","method":"tools/call","params":{"name":"b"}}]`
	answersTo  = `[{"jsonrpc":"2.0","id":8,"result":{"ran":"a"}}, {"jsonrpc":"2.0","id":"nine","result":{"ran":"b"}}]`
	answerTo7  = `{"jsonrpc":"2.0","id":7,"result":{"n":9007199254740993,"f":1e3}}`
)

func contentType(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", kind) }
}

// fixed answers with bytes as they are, in several writes.
func fixed(status int, kind string, parts ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		contentType(kind)(w, r)
		w.WriteHeader(status)
		for _, part := range parts {
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func TestAHeldAnswerIsTheServersAndComesBehindItsRecord(t *testing.T) {
	event := "event: message\ndata: " + answerTo7 + "\n\n"
	cases := []struct {
		name, call, revision string
		answer               http.HandlerFunc
		status               int
		want                 string
		outcomes             string
	}{
		{"JSON", echoCall, "", fixed(200, "application/json", answerTo7), 200, answerTo7, "7 success"},
		{"JSON in pieces", echoCall, "", fixed(200, "application/json", answerTo7[:9], answerTo7[9:30], answerTo7[30:]), 200, answerTo7, "7 success"},
		{"an error page", echoCall, "", fixed(502, "text/html", "<h1>no</h1>"), 502, "<h1>no</h1>", "7 upstream_error"},
		{"events", echoCall, "", fixed(200, "text/event-stream", ": hello\n\ndata: "+progress+"\n\n", event), 200, ": hello\n\ndata: " + progress + "\n\n" + event, "7 success"},
		{"events in pieces", echoCall, "", fixed(200, "text/event-stream", "data: "+progress+"\n", "\n"+event[:20], event[20:40], event[40:len(event)-1], "\n:end\n\n"), 200,
			"data: " + progress + "\n\n" + event + ":end\n\n", "7 success"},
		{"events that end in CRLF", echoCall, "", fixed(200, "text/event-stream", "data: "+progress+"\r\n\r\n", "data: "+answerTo7+"\r\n\r\n"), 200,
			"data: " + progress + "\r\n\r\ndata: " + answerTo7 + "\r\n\r\n", "7 success"},
		{"an event without its blank line", echoCall, "", fixed(200, "text/event-stream", "data: "+answerTo7), 200, "data: " + answerTo7, "7 success"},
		{"a batch", batchOf8_9, "2025-03-26", fixed(200, "application/json", answersTo[:30], answersTo[30:]), 200, answersTo, "8 success nine success"},
		{"a batch in one event", batchOf8_9, "2025-03-26", fixed(200, "text/event-stream", "data: "+answersTo+"\n\n"), 200, "data: " + answersTo + "\n\n", "8 success nine success"},
	}
	for _, c := range cases {
		for _, options := range []string{"", "durability durable"} {
			t.Run(c.name+" "+options, func(t *testing.T) {
				r := start(t, newUpstream(t, c.answer), "hold_answers", options)
				var headers []string
				if c.revision != "" {
					headers = []string{"Mcp-Protocol-Version", c.revision}
				}
				resp := r.send(context.Background(), http.MethodPost, c.call, headers...)
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				// No waiting: what the client has, the log has.
				got := strings.Join(r.recordedNow(), " ")
				if err != nil || resp.StatusCode != c.status || string(body) != c.want || got != c.outcomes {
					t.Errorf("status %d, outcomes %q, %v, body\n%q\nwant\n%q", resp.StatusCode, got, err, body, c.want)
				}
				r.verify()
			})
		}
	}
}

func TestAStreamFlowsUpToTheMessageThatIsHeld(t *testing.T) {
	sent, lock := make(chan struct{}), make(chan func(), 1)
	var r *rig
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		send := sse(w)
		send(progress)
		<-sent
		send(answerTo7)
	})
	r = start(t, up, "hold_answers", "")
	resp := r.send(context.Background(), http.MethodPost, echoCall)
	defer resp.Body.Close()
	events := newReader(resp.Body)
	if got := nextEvent(t, events); got != progress {
		t.Fatalf("the first event is %s", got)
	}
	// The intent is recorded; now no commit gets through.
	f, err := fsys.OS().OpenFile(r.log()+".lock", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Lock(); err != nil {
		t.Fatal(err)
	}
	lock <- func() { _ = f.Unlock() }
	close(sent)
	got := make(chan string, 1)
	go func() {
		line, _ := events.ReadString('}')
		got <- line
	}()
	select {
	case line := <-got:
		t.Errorf("the answer came although its outcome is not recorded: %q", line)
	case <-time.After(300 * time.Millisecond):
	}
	(<-lock)()
	if line := <-got; !strings.Contains(line, `"id":7`) {
		t.Errorf("got %q", line)
	}
	r.await(2)
}

// breaking is an upstream that breaks the log for good before it answers.
func breaking(r **rig, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if err := os.Remove((*r).log() + ".lock"); err != nil {
			panic(err)
		}
		answer(w, req)
	}
}

func TestAnAnswerWithoutARecordIsWithheld(t *testing.T) {
	const text = "audit log unavailable, the call was made, but its answer is withheld"
	withheld := func(id string, code int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, id, code, text)
	}
	event := "event: message\ndata: " + answerTo7 + "\n\n"
	listCall := `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`
	cases := []struct {
		name, call, log string
		headers         []string
		answer          http.HandlerFunc
		want            string
	}{
		{name: "JSON", call: echoCall, answer: fixed(200, "application/json", answerTo7), want: withheld("7", -32028)},
		{name: "an error page", call: echoCall, answer: fixed(500, "text/plain", "no"), want: withheld("7", -32028)},
		{name: "a text id", call: strings.Replace(echoCall, `"id":7`, `"id":"7"`, 1), answer: fixed(200, "application/json", strings.Replace(answerTo7, `"id":7`, `"id":"7"`, 1)), want: withheld(`"7"`, -32028)},
		{name: "events", call: echoCall, answer: fixed(200, "text/event-stream", "data: "+progress+"\n\n"+event+":end\n\n"),
			want: "data: " + progress + "\n\nevent: message\ndata: " + withheld("7", -32028) + "\n\n:end\n\n"},
		{name: "an event in pieces", call: echoCall, answer: fixed(200, "text/event-stream", event[:30], event[30:]),
			want: "event: message\ndata: " + withheld("7", -32028) + "\n\n"},
		{name: "a batch", call: batchOf8_9, headers: []string{"Mcp-Protocol-Version", "2025-03-26"}, answer: fixed(200, "application/json", answersTo),
			want: "[" + withheld("8", -32028) + "," + withheld(`"nine"`, -32028) + "]"},
		{name: "a batch in one event", call: batchOf8_9, headers: []string{"Mcp-Protocol-Version", "2025-03-26"}, answer: fixed(200, "text/event-stream", "data: "+answersTo+"\n\n"),
			want: "event: message\ndata: " + withheld("8", -32028) + "\n\nevent: message\ndata: " + withheld(`"nine"`, -32028) + "\n\n"},
		{name: "allowed", call: echoCall, log: "on_failure allow", answer: fixed(200, "application/json", answerTo7), want: answerTo7},
		{name: "allowed, events", call: echoCall, log: "on_failure allow", answer: fixed(200, "text/event-stream", event), want: event},
		{name: "reads allowed, a call", call: echoCall, log: "on_failure allow_reads", answer: fixed(200, "application/json", answerTo7), want: withheld("7", -32028)},
		{name: "reads allowed, a list", call: listCall, log: "on_failure allow_reads", answer: fixed(200, "application/json", `{"jsonrpc":"2.0","id":7,"result":{"tools":[]}}`),
			want: `{"jsonrpc":"2.0","id":7,"result":{"tools":[]}}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var r *rig
			up := newUpstream(t, breaking(&r, c.answer))
			r = start(t, up, "hold_answers", c.log)
			status, body := r.post(c.call, c.headers...)
			if status != http.StatusOK || body != c.want {
				t.Errorf("status %d, body\n%q\nwant\n%q", status, body, c.want)
			}
			if n := len(up.received()); n != 1 {
				t.Errorf("the server got %d requests", n)
			}
		})
	}
}

func TestProgressBeforeAHeldAnswerBelongsToItsCall(t *testing.T) {
	events := "data: " + progress + "\n\ndata: " + answerTo7 + "\n\n"
	r := start(t, newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, events)
	}), "hold_answers", "")
	if _, body := r.post(echoCall); body != events {
		t.Errorf("got %q", body)
	}
	counts, _ := outcomeOf(t, r.await(2), "")["counts"].(map[string]any)
	if counts["progress"] != 1.0 {
		t.Errorf("counts %v", counts)
	}
}

// A policy that denies what an answer asks for decides first, and its denial is
// held like any answer.
func TestADeniedAnswerIsHeldToo(t *testing.T) {
	const denied = `{"jsonrpc":"2.0","id":7,"result":{"resultType":"input_required","inputRequests":{"q":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}}}}`
	const deny = "hold_answers\npolicy {\nrule NOSAMPLING deny {\nmethod sampling/createMessage\n}\n}"
	modern := []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "echo"}
	call := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	for name, answer := range map[string]http.HandlerFunc{
		"JSON":   fixed(200, "application/json", denied),
		"events": fixed(200, "text/event-stream", "data: "+denied+"\n\n"),
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, newUpstream(t, answer), deny, "")
			_, body := r.post(call, modern...)
			if got := strings.Join(r.recordedNow(), " "); got != "7 denied" || !strings.Contains(body, "-31030") || strings.Contains(body, "sampling") {
				t.Errorf("outcomes %q, %s", got, body)
			}
			r.verify()
		})
		t.Run(name+", without a record", func(t *testing.T) {
			var r *rig
			r = start(t, newUpstream(t, breaking(&r, answer)), deny, "")
			if _, body := r.post(call, modern...); !strings.Contains(body, "-31028") || strings.Contains(body, "sampling") {
				t.Errorf("%s", body)
			}
		})
	}
}

// Without the option the client has the answer first, as ever.
func TestAnswersAreNotHeldUnlessAsked(t *testing.T) {
	var r *rig
	up := newUpstream(t, breaking(&r, fixed(200, "application/json", answerTo7)))
	r = start(t, up, "", "")
	if status, body := r.post(echoCall); status != http.StatusOK || body != answerTo7 {
		t.Errorf("%d %s", status, body)
	}
}

func TestAnAnswerTooLargeToBeHeldKeepsItsEnd(t *testing.T) {
	large := `{"jsonrpc":"2.0","id":7,"result":{"x":"` + strings.Repeat("x", 17<<20) + `"}}`
	for name, body := range map[string]struct{ kind, text string }{
		"JSON":   {"application/json", large},
		"events": {"text/event-stream", "data: " + large + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, newUpstream(t, fixed(200, body.kind, body.text)), "hold_answers", "")
			resp := r.send(context.Background(), http.MethodPost, echoCall)
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if recorded := strings.Join(r.recordedNow(), " "); err != nil || !bytes.Equal(got, []byte(body.text)) || recorded != "7 success" {
				t.Errorf("%d bytes of %d, %v, outcomes %q", len(got), len(body.text), err, recorded)
			}
			r.verify()
		})
		t.Run(name+", withheld", func(t *testing.T) {
			var r *rig
			r = start(t, newUpstream(t, breaking(&r, fixed(200, body.kind, body.text))), "hold_answers", "")
			resp := r.send(context.Background(), http.MethodPost, echoCall)
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err == nil || len(got) >= len(body.text) || bytes.HasSuffix(bytes.TrimRight(got, "\n"), []byte("}}")) {
				t.Errorf("the client got %d bytes of %d, %v", len(got), len(body.text), err)
			}
		})
	}
}

func TestARequiredAnchorStopsNewCallsNotHeldAnswers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "anchors")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	up := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		if down.Load() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
		fixed(200, "application/json", answerTo7)(w, req)
	})
	r := start(t, up, "hold_answers", "checkpoint every 1 records\nanchor command /bin/cp /dev/stdin "+filepath.Join(dir, "note")+" {\nrequired\n}")
	for _, fails := range []bool{false, true} {
		down.Store(fails)
		if status, body := r.post(echoCall); status != http.StatusOK || body != answerTo7 {
			t.Errorf("the anchor fails: %v: %d %s", fails, status, body)
		}
		if n := len(r.recordedNow()); fails && n != 2 || !fails && n != 1 {
			t.Errorf("%d outcomes are recorded", n)
		}
	}
	eventually(t, "a refusal", func() bool {
		_, answer := r.post(echoCall)
		return strings.Contains(answer, "-32028") && strings.Contains(answer, "not forwarded")
	})
}

func TestHoldAnswersAndObserveExcludeEachOther(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	err := r.load(r.caddyfile("hold_answers\nmode observe", ""))
	if err == nil || !strings.Contains(err.Error(), "hold_answers") || !strings.Contains(err.Error(), "keep one of them") {
		t.Errorf("%v", err)
	}
}
