package mcp_test

import (
	"net/http"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

const listOfTools = `{"tools":[
	{"name":"query","inputSchema":{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"limit":{"type":"integer","x-mcp-header":"limit"},
		"dry":{"type":"boolean","x-mcp-header":"Dry-Run"},
		"where":{"type":"object","properties":{"tenant":{"type":"string","x-mcp-header":"Tenant"}}},
		"ratio":{"type":"number","x-mcp-header":"Ratio"},
		"twice":{"type":"string","x-mcp-header":"Same"},"again":{"type":"string","x-mcp-header":"SAME"},
		"bad":{"type":"string","x-mcp-header":"no token"},
		"list":{"type":"array","items":{"properties":{"x":{"type":"string","x-mcp-header":"Inside"}}}}}}},
	{"name":"plain","inputSchema":{"type":"object"}}]}`

func headersOf(t *testing.T, tool string) []mcp.ParamHeader {
	t.Helper()
	var found []mcp.ParamHeader
	seen := false
	mcp.ParamHeaders([]byte(listOfTools), func(name string, headers []mcp.ParamHeader) {
		if name == tool {
			found, seen = headers, true
		}
	})
	if !seen {
		t.Fatalf("tool %s was not found", tool)
	}
	return found
}

func TestParamHeadersReadsWhatTheSpecificationAllows(t *testing.T) {
	var names []string
	for _, h := range headersOf(t, "query") {
		names = append(names, h.Name)
	}
	want := []string{"Mcp-Param-Region", "Mcp-Param-Limit", "Mcp-Param-Dry-Run", "Mcp-Param-Tenant"}
	if len(names) != len(want) {
		t.Fatalf("got %v", names)
	}
	for i := range want {
		if names[i] != want[i] {
			t.Errorf("got %v, want %v", names, want)
		}
	}
	if got := headersOf(t, "plain"); len(got) != 0 {
		t.Errorf("a tool without headers has %v", got)
	}
}

func TestCheckParamHeadersComparesByType(t *testing.T) {
	headers := headersOf(t, "query")
	for _, c := range []struct {
		name, header, value, arguments string
		ok                             bool
	}{
		{"equal text", "Mcp-Param-Region", "eu-1", `{"region":"eu-1"}`, true},
		{"other text", "Mcp-Param-Region", "eu-2", `{"region":"eu-1"}`, false},
		{"escaped text", "Mcp-Param-Region", "eu-1", `{"region":"\u0065u-1"}`, true},
		{"escaped name", "Mcp-Param-Region", "eu-1", `{"\u0072egion":"eu-1"}`, true},
		{"case of a text", "Mcp-Param-Region", "EU-1", `{"region":"eu-1"}`, false},
		{"base64", "Mcp-Param-Region", "=?base64?w7w=?=", `{"region":"ü"}`, true},
		{"integer", "Mcp-Param-Limit", "10", `{"limit":10}`, true},
		{"integer as text", "Mcp-Param-Limit", "10", `{"limit":"10"}`, true},
		{"integer spelled otherwise", "Mcp-Param-Limit", "10", `{"limit":10.0}`, true},
		{"large integers", "Mcp-Param-Limit", "9007199254740993", `{"limit":9007199254740992}`, false},
		{"boolean", "Mcp-Param-Dry-Run", "true", `{"dry":true}`, true},
		{"other boolean", "Mcp-Param-Dry-Run", "True", `{"dry":true}`, false},
		{"nested", "Mcp-Param-Tenant", "a", `{"where":{"tenant":"a"}}`, true},
		{"nested elsewhere", "Mcp-Param-Tenant", "a", `{"tenant":"a"}`, false},
		{"absent argument", "Mcp-Param-Region", "eu-1", `{}`, false},
		{"null argument", "Mcp-Param-Region", "null", `{"region":null}`, false},
		{"no arguments", "Mcp-Param-Region", "eu-1", ``, false},
		{"absent header", "Mcp-Param-Other", "x", `{"region":"eu-1"}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			fault := mcp.CheckParamHeaders(http.Header{c.header: {c.value}}, headers, []byte(c.arguments))
			if (fault == nil) != c.ok {
				t.Fatalf("got %v", fault)
			}
			if fault != nil && (fault.Code != mcp.CodeHeaderMismatch || fault.Want != "" || fault.Got != "") {
				t.Errorf("the fault is %+v", fault)
			}
		})
	}
}
