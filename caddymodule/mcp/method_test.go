package mcp_test

import (
	"fmt"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

func TestMethodsOfAllRevisions(t *testing.T) {
	const (
		client = 1 << iota
		server
		notification
		read
	)
	for method, want := range map[string]struct {
		is   int
		name string
	}{
		"initialize": {client, ""}, "server/discover": {client | read, ""}, "ping": {client | server | read, ""},
		"tools/list": {client | read, ""}, "tools/call": {client, "name"},
		"resources/list": {client | read, ""}, "resources/templates/list": {client | read, ""}, "resources/read": {client | read, "uri"},
		"resources/subscribe": {client, "uri"}, "resources/unsubscribe": {client, "uri"}, "subscriptions/listen": {client | read, ""},
		"prompts/list": {client | read, ""}, "prompts/get": {client | read, "name"}, "completion/complete": {client | read, "ref"},
		"logging/setLevel": {client, ""}, "sampling/createMessage": {server, ""}, "elicitation/create": {server, ""}, "roots/list": {server | read, ""},
		"tasks/get": {client | server | read, "taskId"}, "tasks/result": {client | server | read, "taskId"}, "tasks/update": {client, "taskId"},
		"tasks/cancel": {client | server, "taskId"}, "tasks/list": {client | server | read, ""},
		"notifications/initialized": {client | notification, ""}, "notifications/cancelled": {client | server | notification, ""},
		"notifications/progress": {client | server | notification, ""}, "notifications/roots/list_changed": {client | notification, ""},
		"notifications/message": {server | notification, ""}, "notifications/tools/list_changed": {server | notification, ""},
		"notifications/prompts/list_changed": {server | notification, ""}, "notifications/resources/list_changed": {server | notification, ""},
		"notifications/resources/updated": {server | notification, "uri"}, "notifications/subscriptions/acknowledged": {server | notification, ""},
		"notifications/elicitation/complete": {server | notification, ""}, "notifications/tasks/status": {client | server | notification, "taskId"},
		"notifications/tasks": {server | notification, "taskId"},
	} {
		info, known := mcp.Lookup(method)
		got := map[bool]int{true: client}[info.FromClient] | map[bool]int{true: server}[info.FromServer] |
			map[bool]int{true: notification}[info.Notification] | map[bool]int{true: read}[info.ReadOnly]
		if !known || got != want.is || info.NameParam != want.name {
			t.Errorf("%s: %+v %v", method, info, known)
		}
	}
	for _, unknown := range []string{"", "Tools/Call", "tools/call ", "skills/run"} {
		if _, known := mcp.Lookup(unknown); known {
			t.Errorf("%q is known", unknown)
		}
	}
}

func TestTheNameOfAnOperation(t *testing.T) {
	for body, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"uri":"u","name":"n"}}`:                                                    "n",
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"u","name":"n"}}`:                                                "u",
		`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"u"}}`:                                                      "u",
		`{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"t"}}`:                                                          "t",
		`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a"}}}`: "p",
		`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"r"}}}`:                        "r",
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"name":"n"}}`:                                                              "",
		`{"jsonrpc":"2.0","id":1,"method":"skills/run","params":{"name":"s"}}`:                                                              "s",
		`{"jsonrpc":"2.0","id":1,"method":"skills/run","params":["s"]}`:                                                                     "",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"name":"x"},"name":"n"}}`:                                     "n",
	} {
		msgs, _, err := mcp.Scan([]byte(body), nil)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if got := mcp.Text(msgs[0].Name.Of([]byte(body))); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

func TestTheRevisionOfAMessage(t *testing.T) {
	meta := func(version string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":%q}}}`, version)
	}
	initialize := func(version string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q}}`, version)
	}
	plain := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for _, c := range []struct {
		title, body, header, session, want string
	}{
		{"nothing says", plain, "", "", "2025-03-26"},
		{"the session says", plain, "", "2025-11-25", "2025-11-25"},
		{"the header before the session", plain, "2025-06-18", "2025-11-25", "2025-06-18"},
		{"the body before the header", meta("2026-07-28"), "", "2025-11-25", "2026-07-28"},
		{"modern body, older header", meta("2026-07-28"), "2025-11-25", "", "2026-07-28"},
		{"modern header, older body", meta("2025-11-25"), "2026-07-28", "", "2026-07-28"},
		{"modern header alone", plain, "2026-07-28", "2025-11-25", "2026-07-28"},
		{"initialize", initialize("2024-11-05"), "", "", "2024-11-05"},
		{"initialize is legacy whatever it asks for", initialize("2026-07-28"), "2026-07-28", "", "2025-11-25"},
		{"an answer states none", `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2026-07-28"}}`, "", "2025-11-25", "2025-11-25"},
	} {
		msgs, _, err := mcp.Scan([]byte(c.body), nil)
		if err != nil {
			t.Fatal(c.title, err)
		}
		if got := mcp.Revision(&msgs[0], []byte(c.body), c.header, c.session); got != c.want {
			t.Errorf("%s: %s, want %s", c.title, got, c.want)
		}
	}
	for revision, want := range map[string]bool{
		"2024-11-05": false, "2025-11-25": false, "2026-07-28": true, "2027-01-01": true, "draft": true, "": false, "x": false, "3": false,
	} {
		if got := mcp.Modern(revision); got != want {
			t.Errorf("%q is modern: %v", revision, got)
		}
	}
}

func TestErrorAnswersRepeatTheIDExactly(t *testing.T) {
	for _, c := range []struct{ id, message, data, want string }{
		{`9007199254740993`, "denied by policy", "", `{"jsonrpc":"2.0","id":9007199254740993,"error":{"code":-32030,"message":"denied by policy"}}`},
		{`"a\u0062"`, `say "no"`, `{"audit_id":"x"}`, `{"jsonrpc":"2.0","id":"a\u0062","error":{"code":-32030,"message":"say \"no\"","data":{"audit_id":"x"}}}`},
		{"", "x", "", `{"jsonrpc":"2.0","error":{"code":-32030,"message":"x"}}`},
	} {
		got := mcp.AppendError([]byte("> "), []byte(c.id), mcp.DeniedCode(false), c.message, []byte(c.data))
		if string(got) != "> "+c.want || !jsontext.Value(c.want).IsValid() {
			t.Errorf("%s", got)
		}
	}
	for name, c := range map[string][4]int{
		"denied": {mcp.DeniedCode(false), -32030, mcp.DeniedCode(true), -31030}, "limited": {mcp.RateLimitedCode(false), -32029, mcp.RateLimitedCode(true), -31029},
		"unavailable": {mcp.UnavailableCode(false), -32028, mcp.UnavailableCode(true), -31028},
	} {
		if c[0] != c[1] || c[2] != c[3] {
			t.Errorf("%s: %v", name, c)
		}
	}
}
