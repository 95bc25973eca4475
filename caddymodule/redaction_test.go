package caddymodule_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const plantedKey = "AKIAIOSFODNN7EXAMPLE"

// planted is a server that answers with the key in every place that it has.
func planted(t *testing.T) *upstream {
	blob := base64.StdEncoding.EncodeToString([]byte("the key is " + plantedKey))
	return newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		body := readBody(t, req)
		if !strings.Contains(body, `"id"`) {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(body, "resources/read") {
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"no `+plantedKey+` here","data":{"uri":"x://`+plantedKey+`","why":"`+plantedKey+`"}}}`)
			return
		}
		if strings.Contains(body, "stream") {
			send := sse(w)
			send(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"with ` + plantedKey + `"}}`)
			send(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"` + plantedKey + `","data":"key=` + plantedKey + `"}}`)
			send(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"k=` + plantedKey + `"}]}}`)
			return
		}
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"k=%[1]s"},{"type":"resource","resource":{"uri":"x://y","text":"%[1]s","blob":"%[2]s"}}],"structuredContent":{"k":"%[1]s","%[1]s":1},"_meta":{"note":"%[1]s"}}}`, plantedKey, blob)
	})
}

func TestPlantedSecretIsNowhereInTheLog(t *testing.T) {
	r := start(t, planted(t), "headers record\nexplain", "")
	post := func(body string, headers ...string) { r.post(body, headers...) }
	post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"` + plantedKey + `","version":"1"},"capabilities":{}}}`)
	post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + plantedKey + `","arguments":{"a":"` + plantedKey + `","` + plantedKey + `":1,"j":"{\"b\":\"` + plantedKey + `\"}"},"_meta":{"progressToken":1,"x":"` + plantedKey + `"}}}`)
	post(`{"jsonrpc":"2.0","id":"` + plantedKey + `","method":"tools/call","params":{"name":"stream"}}`)
	post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"stream","_meta":{"progressToken":1}}}`)
	post(`{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"` + plantedKey + `","arguments":{"x":"` + plantedKey + `"}}}`)
	post(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"https://user:` + plantedKey + `@host/a?key=` + plantedKey + `"}}`)
	post(`{"jsonrpc":"2.0","id":1,"method":"` + plantedKey + `","params":{"a":"` + plantedKey + `"}}`)
	post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9,"reason":"` + plantedKey + `"}}`)
	post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`, "Mcp-Method", "tools/call", "Mcp-Name", plantedKey)
	post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`, "Mcp-Protocol-Version", plantedKey)
	post(`not JSON at all ` + plantedKey)
	post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"},"name":"` + plantedKey + `","Name":1}`)
	r.awaitSeries(`mcp_audit_open_operations{log="default"}`, 0)
	_, metrics := r.scrape()
	if strings.Contains(metrics, plantedKey) {
		t.Error("a metric has the secret")
	}
	r.verify()
	for _, name := range []string{"audit.jsonl", "audit.jsonl.checkpoint", "audit.jsonl.state"} {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(r.log()), name))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			if at := bytes.Index(line, []byte(plantedKey)); at >= 0 {
				t.Errorf("%s, line %d has the secret: …%s…", name, i+1, line[max(0, at-120):at+20])
			}
			if bytes.Contains(line, []byte(base64.StdEncoding.EncodeToString([]byte("the key is " + plantedKey))[:20])) {
				t.Errorf("%s, line %d has the secret in base64", name, i+1)
			}
		}
	}
}

func TestWireRedactionTakesTheSecretOutBothWaysAndTouchesNothingElse(t *testing.T) {
	const result = `{"n":9007199254740993,"f":1e3,"z":-0,"a":[],"o":{},"u":"\u00e9","k":{"b":1,"a":2},"secret":"` + plantedKey + `"}`
	up := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		body := readBody(t, req)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.Contains(body, "plain"):
			_, _ = io.WriteString(w, ` { "jsonrpc":"2.0" ,"id":1,"result":{"f":1e3}}`+"\n")
		case strings.Contains(body, "zipped"):
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, `{"jsonrpc":"2.0","id":1,"result":`+result+`}`)
			_ = z.Close()
		case strings.Contains(body, "broken"):
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"password":"`+plantedKey)
		case strings.Contains(body, "page"):
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<p>sorry, "+plantedKey+"</p>")
		default:
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":`+result+`}`)
		}
	})
	r := start(t, up, "redact {\n\twire on\n}", "")
	want := `{"jsonrpc":"2.0","id":1,"result":` + strings.Replace(result, plantedKey, "[REDACTED]", 1) + `}`
	resp := r.send(context.Background(), http.MethodPost, callOf("echo"))
	got := readAll(t, resp)
	if got != want || resp.Header.Get("Content-Length") != strconv.Itoa(len(want)) {
		t.Errorf("the client got %s (Content-Length %s)", got, resp.Header.Get("Content-Length"))
	}
	if _, got := r.post(callOf("plain")); got != ` { "jsonrpc":"2.0" ,"id":1,"result":{"f":1e3}}`+"\n" {
		t.Errorf("an answer without a match became %q", got)
	}
	if _, got := r.post(callOf("zipped")); got != want {
		t.Errorf("the zipped answer became %q", got)
	}
	if status, got := r.post(callOf("broken")); status != 200 || strings.Contains(got, plantedKey) || !strings.Contains(got, `"error"`) || !strings.Contains(got, `"id":1`) {
		t.Errorf("what cannot be read became %d %s", status, got)
	}
	if status, got := r.post(callOf("page")); status != http.StatusBadGateway || got != "<p>sorry, [REDACTED:aws_key]</p>" {
		t.Errorf("the page became %d %s", status, got)
	}
	r.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"n":1e3,"password":"x","t":"` + plantedKey + `"}}}`)
	sent := up.received()
	if got, want := sent[len(sent)-1], `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"n":1e3,"password":"[REDACTED]","t":"[REDACTED:aws_key]"}}}`; got != want {
		t.Errorf("the server got %s", got)
	}
	r.awaitSeries(`mcp_audit_open_operations{log="default"}`, 0)
	if !strings.Contains(show(r.records()), "wire_redacted") {
		t.Error("no record says that traffic was changed")
	}
	r.verify()
}

func TestWireRedactionKeepsAStreamFlowing(t *testing.T) {
	release := make(chan struct{})
	up := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		readBody(t, req)
		w.Header().Set("Content-Type", "text/event-stream")
		flush := func(s string) {
			_, _ = io.WriteString(w, s)
			_ = http.NewResponseController(w).Flush()
		}
		flush(": hi\r\n\r\nid: 1\r\nevent: message\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\r\ndata: \"params\":{\"progressToken\":1,\"progress\":1,\"message\":\"" + plantedKey + "\"}}\r\n\r\n")
		<-release
		flush("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"te")
		flush("xt\":\"" + plantedKey + "\"}}\n\n")
	})
	r := start(t, up, "redact {\n\twire on\n}", "")
	resp := r.send(context.Background(), http.MethodPost, callOf("stream"))
	defer resp.Body.Close()
	first := "" +
		": hi\r\n\r\nid: 1\r\nevent: message\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\r\ndata: \"params\":{\"progressToken\":1,\"progress\":1,\"message\":\"[REDACTED:aws_key]\"}}\r\n\r\n"
	got := make([]byte, len(first))
	done := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(resp.Body, got)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil || string(got) != first {
			t.Errorf("%q (%v)", got, err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the first event waits for the second")
	}
	close(release)
	rest, err := io.ReadAll(resp.Body)
	if want := "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"text\":\"[REDACTED:aws_key]\"}}\n\n"; err != nil || string(rest) != want {
		t.Errorf("%q (%v)", rest, err)
	}
	r.awaitSeries(`mcp_audit_open_operations{log="default"}`, 0)
	r.verify()
}

func TestMistakesInRedactFailTheLoadWithTheirLine(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	for option, want := range map[string]string{
		"detect secrts":        "did you mean secrets",
		"pattern x `a(`":       "pattern x",
		"pattern x":            "takes a name and a regular expression",
		"path params.a":        "does not begin with $",
		"wire maybe":           "maybe",
		"tag on":               "log's secret",
		"detects secrets":      "detects",
		"path $.params.a[":     "has no ]",
		"keys -":               "names nothing",
		"detect none secrets":  "none",
		"detect secrets email": "",
	} {
		err := r.load(r.caddyfile("redact {\n\t"+option+"\n}", ""))
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v", option, err)
		case err != nil && option != "tag on" && option != "keys -" && !strings.Contains(err.Error(), "Caddyfile:"):
			t.Errorf("%s: no line in %v", option, err)
		}
	}
}
