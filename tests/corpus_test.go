package tests

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// hostileValue is legal JSON that careless programs change on its way.
type hostileValue struct{ name, text string }

// hostileValues are the files of corpus/values, and what would be too long
// for one. Nested to the depth that a strict message may have, a value stands
// in three containers of its message.
func hostileValues(t *testing.T) []hostileValue {
	t.Helper()
	files, err := filepath.Glob("corpus/values/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("the corpus is not there: %v", err)
	}
	var values []hostileValue
	for _, file := range files {
		values = append(values, hostileValue{strings.TrimSuffix(filepath.Base(file), ".json"), string(read(t, file))})
	}
	const inner = 64 - 3
	var names strings.Builder
	for i := range 1024 {
		fmt.Fprintf(&names, `,"%x":%d`, 1023-i, i)
	}
	return append(values,
		hostileValue{"depth-64-of-arrays", strings.Repeat("[", inner) + strings.Repeat("]", inner)},
		hostileValue{"depth-64-of-objects", strings.Repeat(`{"a":`, inner-1) + "{}" + strings.Repeat("}", inner-1)},
		hostileValue{"depth-64-mixed", strings.Repeat(`[{"":`, inner/2) + "[]" + strings.Repeat("}]", inner/2)},
		hostileValue{"names-1024", "{" + names.String()[1:] + "}"},
		hostileValue{"number-of-5000-digits", strings.Repeat("9", 5000)},
		hostileValue{"number-of-5000-decimals", "0." + strings.Repeat("3", 5000) + "e-5000"},
		hostileValue{"text-of-64-kib", `"` + strings.Repeat("0123456789abcdef", 4096) + `"`},
		hostileValue{"text-of-escapes", `"` + strings.Repeat(`\u0000\ud83d\ude00\\`, 2048) + `"`},
		hostileValue{"elements-10000", "[" + strings.Repeat("-0,", 9999) + "1e400]"},
	)
}

// pair is a request and its answer, and a notification, which either side may
// send. MARKER stands for a text that tells one message from the others.
type pair struct{ name, request, answer, notification string }

// marked returns the pair with a marker.
func (p pair) marked(marker string) pair {
	replace := strings.NewReplacer("MARKER", marker).Replace
	return pair{p.name, replace(p.request), replace(p.answer), replace(p.notification)}
}

// outcome is what the log calls the answer.
func (p pair) outcome() string {
	if strings.Contains(p.answer, `"error":{"message"`) {
		return "rpc_error"
	}
	return "success"
}

// hostilePairs carry each value in ordinary messages, and are followed by
// messages that are odd themselves.
func hostilePairs(t *testing.T) []pair {
	var pairs []pair
	for _, v := range hostileValues(t) {
		pairs = append(pairs, pair{v.name,
			`{"jsonrpc":"2.0","id":"MARKER","method":"tools/call","params":{"name":"echo","arguments":{"value":` + v.text + `}}}`,
			`{"jsonrpc":"2.0","id":"MARKER","result":{"content":[],"structuredContent":{"value":` + v.text + `}}}`,
			`{"jsonrpc":"2.0","method":"notifications/x-vendor","params":{"marker":"MARKER","value":` + v.text + `}}`})
	}
	return append(pairs, oddPairs()...)
}

func oddPairs() []pair {
	const arguments = `"params":{"name":"echo","arguments":{"m":"MARKER"}}`
	const result = `"result":{"content":[{"type":"text","text":"MARKER"}]}`
	const notification = `{ "params":{"marker":"MARKER"},"m\u0065thod":"notifications\/x-vendor" ,"jsonrpc":"2.0"}`
	pairs := []pair{
		{"members in reverse order",
			`{"params":{"arguments":{"m":"MARKER"},"name":"echo"},"method":"tools/call","id":1,"jsonrpc":"2.0"}`,
			`{` + result + `,"id":1,"jsonrpc":"2.0"}`, notification},
		{"spaces and tabs between all tokens",
			"{ \"jsonrpc\" :\t\"2.0\" , \"id\" : 2 ,\t\"method\" : \"tools/call\" , \"params\" : { \"name\" : \"echo\" , \"arguments\" : { \"m\" : \"MARKER\" } } }",
			"{\t\"jsonrpc\" : \"2.0\" ,\t\"id\" : 2 , \"result\" : { \"content\" : [ { \"type\" : \"text\" , \"text\" : \"MARKER\" } ] } }", notification},
		{"escaped member names",
			`{"\u006asonrpc":"2.0","\u0069d":3,"\u006d\u0065thod":"tools/call","p\u0061rams":{"n\u0061me":"echo","\u0061rguments":{"m":"MARKER"}}}`,
			`{"jsonrp\u0063":"2.0","i\u0064":3,"\u0072esult":{"\u0063ontent":[],"m":"MARKER"}}`, notification},
		{"escaped values",
			`{"jsonrpc":"\u0032.0","id":4,"method":"tools\/c\u0061ll","params":{"name":"\u0065cho","arguments":{"m":"MARKER"}}}`,
			`{"jsonrpc":"2\u002e0","id":4,` + result + `}`, notification},
		{"members that nobody knows",
			`{"jsonrpc":"2.0","x":{"id":1},"id":5,"":[],"method":"tools/call",` + arguments + `,"extension":null}`,
			`{"jsonrpc":"2.0","x":[],"id":5,"":0,` + result + `,"extension":{"error":{}}}`, notification},
		{"a method that nobody knows",
			`{"jsonrpc":"2.0","id":6,"method":"x-vendor/\u00e9 \ud83d\ude00","params":{"m":"MARKER"}}`,
			`{"jsonrpc":"2.0","id":6,"result":{"m":"MARKER","resultType":"x-vendor"}}`, notification},
		{"an error with hostile data",
			`{"jsonrpc":"2.0","id":7,"method":"tools/call",` + arguments + `}`,
			`{"jsonrpc":"2.0","id":7,"error":{"message":"\u0000 <MARKER>","data":[1e400,-0,{"":null}],"code":-2147483648}}`, notification},
		{"a result that is no object",
			`{"jsonrpc":"2.0","id":8,"method":"x-vendor/scalar","params":{"m":"MARKER"}}`,
			`{"jsonrpc":"2.0","id":8,"result":-0.0}`, notification},
	}
	for _, id := range []string{`0`, `-1`, `-0`, `9007199254740993`, `-9007199254740993`, `18446744073709551616`, `123456789012345678901234567890`,
		`""`, `"0"`, `" "`, `"null"`, `"\u0000"`, `"\u00e9"`, `"é"`, `"e\u0301"`, `"\ud83d\ude00"`, `"😀"`, `"\/\"\\"`, `"` + strings.Repeat("long", 1000) + `"`} {
		pairs = append(pairs, pair{fmt.Sprintf("id %.40s", id),
			`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call",` + arguments + `}`,
			`{"jsonrpc":"2.0","id":` + id + `,` + result + `}`, notification})
	}
	return pairs
}

// asEvent is a message as server-sent event. No event can carry a CR.
func asEvent(message string) string {
	return "event: message\ndata: " + strings.ReplaceAll(message, "\n", "\ndata: ") + "\n\n"
}

// vouched looks up what a log says of calls by the marker in their intents,
// and checks its hashes.
type vouched struct {
	hashes  harness.WireHashes
	records []harness.Record
	calls   []harness.Operation
}

func readVouched(t *testing.T, log string) vouched {
	t.Helper()
	records := harness.ReadLog(t, log)
	harness.CheckChain(t, records)
	harness.VerifyClean(t, log)
	return vouched{harness.ReadWireKeys(t, log), records, harness.Operations(t, records)}
}

func (v vouched) call(t *testing.T, marker, request, answer, outcome string) {
	t.Helper()
	o := v.request(t, marker, request, outcome)
	if o.Outcome.Kind != "" {
		v.hashes.CheckResponse(t, o.Outcome, []byte(answer))
	}
}

// request is call without the answer's hash.
func (v vouched) request(t *testing.T, marker, request, outcome string) harness.Operation {
	t.Helper()
	for _, o := range v.calls {
		if !strings.Contains(o.Intent.Line, marker) || o.Intent.Direction != "client→server" {
			continue
		}
		v.hashes.CheckRequest(t, o.Intent, []byte(request))
		if o.Outcome.Outcome != outcome {
			t.Errorf("outcome %q, want %q: %.600s", o.Outcome.Outcome, outcome, o.Outcome.Line)
		}
		return o
	}
	t.Errorf("no call with %s is recorded", marker)
	return harness.Operation{}
}

// event checks the one event about a message of the given direction.
func (v vouched) event(t *testing.T, marker, direction, message string) {
	t.Helper()
	found := harness.Select(v.records, func(r harness.Record) bool {
		return r.Kind == "event" && r.Direction == direction && strings.Contains(r.Line, marker)
	})
	if len(found) != 1 {
		t.Errorf("%d events %s with %s, want one", len(found), direction, marker)
		return
	}
	v.hashes.CheckRequest(t, found[0], []byte(message))
}

// reply is a media type and the exact bytes of a body.
type reply struct{ kind, body string }

// replies is a server that knows the exact bytes of its requests and nothing
// else: what was changed on the way is answered with 418.
func replies(known map[string]reply) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, _ *http.Request, body []byte) {
		answer, ok := known[string(body)]
		switch {
		case !ok:
			w.WriteHeader(http.StatusTeapot)
		case answer.body == "":
			w.WriteHeader(http.StatusAccepted)
		default:
			w.Header().Set("Content-Type", answer.kind)
			io.WriteString(w, answer.body)
		}
	}
}

func TestHostileMessagesPassByteForByteOverHTTP(t *testing.T) {
	type exchange struct {
		pair          // the messages
		marker string // in them
		post   string // the request's body
		reply
	}
	var exchanges []exchange
	known := make(map[string]reply)
	add := func(p pair, marker, post string, r reply) {
		exchanges = append(exchanges, exchange{p, marker, post, r})
		known[post] = r
	}
	for i, p := range hostilePairs(t) {
		marker := fmt.Sprintf("pair-%d-json.", i)
		m := p.marked(marker)
		add(m, marker, m.request, reply{"application/json", m.answer})

		if !strings.Contains(p.request, "\r") {
			marker = fmt.Sprintf("pair-%d-sse.", i)
			m = p.marked(marker)
			add(m, marker, m.request, reply{"text/event-stream", asEvent(m.notification) + asEvent(m.answer)})
		}
		marker = fmt.Sprintf("pair-%d-notification.", i)
		m = p.marked(marker)
		add(m, marker, m.notification, reply{})
	}

	u := upstream.Script(t, replies(known))
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	for _, e := range exchanges {
		answer := caddy.Post(t, e.post)
		if answer.Status == http.StatusTeapot || answer.Body != e.body {
			arrived := u.Requests()
			t.Errorf("%s, %s:\nsent     %.600q\narrived  %.600q\nanswered %.600q\nreceived %d %.600q", e.name, e.marker,
				e.post, arrived[len(arrived)-1].Body, e.body, answer.Status, answer.Body)
		}
	}
	caddy.Stop(t)
	log := readVouched(t, caddy.Log)
	for _, e := range exchanges {
		t.Run(e.name+" "+e.marker, func(t *testing.T) {
			if e.post == e.notification {
				log.event(t, e.marker, "client→server", e.notification)
				return
			}
			log.call(t, e.marker, e.request, e.answer, e.outcome())
			if e.kind == "text/event-stream" {
				log.event(t, e.marker, "server→client", e.notification)
			}
		})
	}
}

func TestHostileMessagesPassByteForByteOverStdio(t *testing.T) {
	for _, s := range setUps() {
		t.Run(s.name, func(t *testing.T) {
			dir := harness.TempDir(t)
			shim, at := s.start(t, dir, mock(t, dir))
			shim.Initialize(t)
			pairs := make(map[string]pair)
			for i, p := range hostilePairs(t) {
				if !strings.Contains(p.request, "tools/call") || !strings.Contains(p.request, "arguments\":{") || strings.ContainsAny(p.request, "\r\n") {
					continue // no line, or no call of a tool that could answer it
				}
				marker := fmt.Sprintf("pair-%d.", i)
				p = p.marked(marker)
				// The child says both messages in one write.
				p.request = strings.Replace(strings.Replace(p.request, `"echo"`, `"raw"`, 1),
					`"arguments":{`, `"arguments":{"bytes":`+quote(t, p.notification+"\n"+p.answer)+`,`, 1)
				pairs[marker] = p
				shim.Send(t, p.notification)
				shim.Send(t, p.request)
				for _, want := range []string{p.notification, p.answer} {
					if got := shim.Receive(t); got != want {
						t.Errorf("%s: said     %.600q\nreceived %.600q", p.name, want, got)
					}
				}
			}
			shim.In.Close()
			if rest := shim.Rest(t); len(rest) > 0 {
				t.Errorf("further output: %q", rest)
			}
			shim.Exit(t)
			received := make(map[string]bool)
			for line := range strings.Lines(string(read(t, recordOf(dir)))) {
				received[strings.TrimSuffix(line, "\n")] = true
			}
			log := readVouched(t, at())
			for marker, p := range pairs {
				for _, line := range []string{p.notification, p.request} {
					if !received[line] {
						t.Errorf("%s: the child did not receive %.600q", p.name, line)
					}
				}
				log.call(t, marker, p.request, p.answer, p.outcome())
				log.event(t, marker, "client→server", p.notification)
				log.event(t, marker, "server→client", p.notification)
			}
		})
	}
}

// streams are event streams as servers write them, with the message in them
// that answers the call. ID stands for the call's.
func streams() []pair {
	const answer = `{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}`
	const first, second = `{"jsonrpc":"2.0","id":ID,`, `"result":{"content":[]}}`
	const progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":ID,"progress":1}}`
	var cases []pair
	add := func(name, stream, answer string) {
		cases = append(cases, pair{name: name, request: stream, answer: answer})
	}
	for _, c := range [][2]string{{"LF", "\n"}, {"CRLF", "\r\n"}, {"CR", "\r"}} {
		name, end := c[0], c[1]
		lines := func(lines ...string) string { return strings.Join(lines, end) }
		add(name, lines("event: message", "data: "+answer, "", ""), answer)
		add(name+", byte order mark", "\xef\xbb\xbf"+lines("data: "+answer, "", ""), answer)
		add(name+", blank lines before", lines("", "", "", "data: "+answer, "", ""), answer)
		add(name+", several data lines", lines("data: "+first, "data: "+second, "", ""), first+"\n"+second)
		add(name+", empty data lines", lines("data: "+first, "data:", "data", "data: ", "data: "+second, "", ""), first+"\n\n\n\n"+second)
		add(name+", comments within the event", lines(": a", "data: "+first, ":", ": b: c", "data: "+second, ":d", "", ""), first+"\n"+second)
		add(name+", comments between events", lines(": hello", "", "data: "+progress, "", ":", "", ": ping", "", "data: "+answer, "", ": bye", "", ""), answer)
		add(name+", fields after the data", lines("data: "+answer, "id: 7", "retry: 1", "event: message", "", ""), answer)
		add(name+", priming event", lines("id: 0", "retry: 500", "data:", "", "id: 1", "data: "+answer, "", ""), answer)
		add(name+", last event without a blank line", lines("data: "+progress, "", "data: "+answer, ""), answer)
	}
	add("mixed line ends", "event: message\rdata: "+first+"\r\ndata: "+second+"\n\r\n", first+"\n"+second)
	add("mixed blank lines", "data: "+progress+"\r\n\rdata: "+progress+"\n\r\ndata: "+answer+"\r\n\n", answer)
	add("last line without an end", "data: "+answer, answer)
	add("no space after the colon", "event:message\ndata:"+answer+"\n\n", answer)
	add("empty event name", "event:\ndata: "+answer+"\n\n", answer)
	add("event name without a colon", "event\ndata: "+answer+"\n\n", answer)
	add("another event name", "event: x-vendor/\u00e9\ndata: "+answer+"\n\n", answer)
	add("two event names", "event: x\nevent: message\ndata: "+answer+"\n\n", answer)
	add("ids of all kinds", "id\ndata: "+progress+"\n\nid: 1\nid:\ndata: "+progress+"\n\nid: a b\u00e9\x00\ndata: "+answer+"\n\n", answer)
	add("retry of all kinds", "retry\n\nretry: \n\nretry: x\n\nretry: 99999999999999999999\ndata: "+answer+"\n\n", answer)
	add("fields that nobody knows", "DATA: x\nData: y\n data: z\ndata : a\nx-vendor: "+answer+"\ndata: "+answer+"\n\n", answer)
	add("a comment of 100 KiB", ": "+strings.Repeat("data: ", 100<<10/6)+"\ndata: "+answer+"\n\n", answer)
	add("an array of messages", "data: ["+progress+", "+answer+" ]\n\n", answer)
	add("an array over several lines", "data: [\ndata: "+progress+"\ndata: ,\ndata: "+first+"\ndata: "+second+"\ndata: ]\n\n", first+"\n"+second)
	add("an event without a name and data", "event: x\n\nid: 3\n\nevent: x\nid: 4\n\ndata: "+answer+"\n\n", answer)
	add("much in one write", strings.Repeat("data: "+progress+"\n\n", 500)+"data: "+answer+"\n\n", answer)
	return cases
}

// Every stream is written once whole and once a byte at a time, and then the
// next byte is written only when the client has the one before: what would be
// held back, for whatever reason, would stop the stream for ever.
func TestStreamsPassByteByByteAsTheyAreWritten(t *testing.T) {
	type exchange struct {
		name, id, stream, answer string
		received                 chan struct{} // a byte, nil: written whole
	}
	var exchanges []*exchange
	for i, c := range streams() {
		for _, how := range []string{"whole", "bytes"} {
			id := fmt.Sprintf(`"stream-%d-%s."`, i, how)
			e := &exchange{name: c.name + ", " + how, id: id,
				stream: strings.ReplaceAll(c.request, "ID", id), answer: strings.ReplaceAll(c.answer, "ID", id)}
			if how == "bytes" {
				if len(e.stream) > 4096 {
					continue // long, not odd
				}
				e.received = make(chan struct{})
			}
			exchanges = append(exchanges, e)
		}
	}
	u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		for _, e := range exchanges {
			if string(body) != call(e.id, "echo", `{}`) {
				continue
			}
			w.Header().Set("Content-Type", "text/event-stream")
			if e.received == nil {
				upstream.Push(w, e.stream)
				return
			}
			for i := range len(e.stream) {
				upstream.Push(w, e.stream[i:i+1])
				select {
				case <-e.received:
				case <-r.Context().Done():
					return
				}
			}
		}
	})
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	for _, e := range exchanges {
		t.Run(e.name, func(t *testing.T) {
			ctx, late := context.WithTimeout(t.Context(), 10*time.Second)
			defer late()
			resp, err := http.DefaultClient.Do(caddy.NewRequest(t, call(e.id, "echo", `{}`)).WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var got []byte
			for err == nil {
				b := make([]byte, 64<<10)
				var n int
				n, err = resp.Body.Read(b)
				got = append(got, b[:n]...)
				for range n {
					if e.received != nil {
						e.received <- struct{}{}
					}
				}
			}
			if !errors.Is(err, io.EOF) || string(got) != e.stream {
				t.Errorf("%v\nwritten  %.600q\nreceived %.600q", err, e.stream, got)
			}
			if resp.Header.Get("Content-Type") != "text/event-stream" || resp.ContentLength >= 0 {
				t.Errorf("the headers are %v, the length is %d", resp.Header, resp.ContentLength)
			}
		})
	}
	caddy.Stop(t)
	log := readVouched(t, caddy.Log)
	for _, e := range exchanges {
		log.call(t, strings.Trim(e.id, `"`), call(e.id, "echo", `{}`), e.answer, "success")
	}
}

// Sizes below and above what is read, recorded in full and held in one piece.
func TestLargeMessagesPassByteForByte(t *testing.T) {
	// Text that no compression and no repetition could make right by accident.
	text := func(seed uint64, size int) string {
		b := make([]byte, size)
		r := rand.NewChaCha8([32]byte{byte(seed)})
		r.Read(b)
		return hex.EncodeToString(b)[:size]
	}
	const mega = 1 << 20
	request := func(id string, size int) string { return call(`"`+id+`"`, "echo", `{"m":"`+text(1, size)+`"}`) }
	message := func(id string, size int) string {
		return `{"jsonrpc":"2.0","id":"` + id + `","result":{"content":[{"type":"text","text":"` + text(2, size) + `"}]}}`
	}
	cases := []struct{ marker, request, kind, answer string }{
		{"request-8-mb.", request("request-8-mb.", 8*mega), "application/json", message("request-8-mb.", 10)},
		{"json-8-mb.", request("json-8-mb.", 10), "application/json", message("json-8-mb.", 8*mega)},
		{"json-20-mb.", request("json-20-mb.", 10), "application/json", message("json-20-mb.", 20*mega)},
		{"event-8-mb.", request("event-8-mb.", 10), "text/event-stream", message("event-8-mb.", 8*mega)},
		{"event-20-mb.", request("event-20-mb.", 10), "text/event-stream", message("event-20-mb.", 20*mega)},
	}
	known := make(map[string]reply)
	body := func(kind, answer string) string {
		if kind == "text/event-stream" {
			return asEvent(answer)
		}
		return answer
	}
	for _, c := range cases {
		known[c.request] = reply{c.kind, body(c.kind, c.answer)}
	}
	u := upstream.Script(t, replies(known))
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	for _, c := range cases {
		if answer := caddy.Post(t, c.request); answer.Status != http.StatusOK || answer.Body != body(c.kind, c.answer) {
			t.Errorf("%s: status %d, %d bytes, %.200q", c.marker, answer.Status, len(answer.Body), answer.Body)
		}
	}
	caddy.Stop(t)
	log := readVouched(t, caddy.Log)
	for _, c := range cases {
		t.Run(c.marker, func(t *testing.T) {
			if c.marker == "event-20-mb." {
				// The record tells its length and that nobody read it.
				o := log.request(t, c.marker, c.request, "success")
				if length := fmt.Sprintf("event of %d bytes", len(c.answer)); !strings.Contains(o.Outcome.Reason, length) {
					t.Errorf("the reason %q does not tell %s", o.Outcome.Reason, length)
				}
				return
			}
			log.call(t, c.marker, c.request, c.answer, "success")
		})
	}
}

func TestLargeLinesPassByteForByteThroughTheShim(t *testing.T) {
	for _, s := range setUps() {
		t.Run(s.name, func(t *testing.T) {
			dir := harness.TempDir(t)
			shim, at := s.start(t, dir, mock(t, dir))
			shim.Initialize(t)
			// The child says what it was asked to say: 8 MB there and back.
			text := strings.Repeat("0123456789abcdef", 8<<20/16)
			request := call(`"large."`, "echo", `{"m":"`+text+`"}`)
			answer := `{"jsonrpc":"2.0","id":"large.","result":{"content":[{"type":"text","text":"` + text + `"}]}}`
			if got := shim.Call(t, request); got != answer {
				t.Errorf("%d bytes, want %d: %.200q", len(got), len(answer), got)
			}
			shim.In.Close()
			shim.Exit(t)
			if !strings.Contains(string(read(t, recordOf(dir))), request+"\n") {
				t.Error("the child received something else")
			}
			readVouched(t, at()).call(t, `"large."`, request, answer, "success")
		})
	}
}
