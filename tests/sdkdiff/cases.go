// Package sdkdiff sends values on which MCP SDKs differ between each client and
// each server, and keeps what was on the wire and what either application got.
package sdkdiff

import "strings"

// Case is a value of the table.
type Case struct {
	Name string
	// Arguments is the JSON text of the arguments that a client is to send,
	// Structured that of the structuredContent that a server is to answer with;
	// empty leaves the member out.
	Arguments, Structured string
	// OneWay is set where only one of the two is meant.
	OneWay string
}

const (
	request = "request"
	result  = "result"
)

// Sent reports whether the case is about arguments.
func (c Case) Sent() bool { return c.OneWay != result }

// Given reports whether the case is about results.
func (c Case) Given() bool { return c.OneWay != request }

// Cases returns the values: where JSON parsers and printers are known to
// differ, in the order of the table.
func Cases() []Case {
	var cases []Case
	for _, v := range []struct{ name, text string }{
		{"largest safe integer", `9007199254740991`},
		{"2^53", `9007199254740992`},
		{"2^53+1", `9007199254740993`},
		{"-(2^53+1)", `-9007199254740993`},
		{"largest int64", `9223372036854775807`},
		{"largest int64, plus 1", `9223372036854775808`},
		{"largest uint64", `18446744073709551615`},
		{"30 digits", `123456789012345678901234567890`},
		{"10^20 in digits", `100000000000000000000`},
		{"1e20", `1e20`},
		{"1e21", `1e21`},
		{"1e400", `1e400`},
		{"-0", `-0`},
		{"-0.0", `-0.0`},
		{"1.0", `1.0`},
		{"1.10", `1.10`},
		{"1e3", `1e3`},
		{"1E+3", `1E+3`},
		{"1e-7", `1e-7`},
		{"0.1+0.2", `0.30000000000000004`},
		{"21 digits of pi", `3.14159265358979323846`},
		{"smallest double", `5e-324`},
		{"below the smallest double", `1e-400`},

		{"escaped letter", `"\u00e9"`},
		{"escape in capitals", `"\u00E9"`},
		{"escaped ASCII", `"\u0041"`},
		{"escaped solidus", `"\/"`},
		{"plain solidus", `"/"`},
		{"signs of HTML", `"<a href='b'>&</a>"`},
		{"escaped signs of HTML", `"\u003c\u0026\u003e"`},
		{"line separators", "\"\u2028\u2029\""},
		{"escaped line separators", `"\u2028\u2029"`},
		{"NUL", `"a\u0000b"`},
		{"control characters", `"\b\f\n\r\t\u001f"`},
		{"DEL", "\"\u007f\""},
		{"no-break space and BOM", "\"\u00a0\ufeff\""},
		{"astral character", `"😀"`},
		{"escaped astral character", `"\ud83d\ude00"`},
		{"lone surrogate", `"\ud800"`},
		{"lone low surrogate in text", `"a\udc00b"`},
		{"noncharacter", "\"\uffff\""},
		{"NFC text", "\"\u00e9\""},
		{"NFD text", "\"e\u0301\""},
		{"NFC and NFD keys", "{\"\u00e9\":1,\"e\u0301\":2}"},

		{"key order", `{"b":1,"a":2}`},
		{"keys that are numbers", `{"b":1,"10":2,"9":3}`},
		{"empty key", `{"":1}`},
		{"key __proto__", `{"__proto__":{"a":1},"b":2}`},
		{"key with escape", `{"\u0061b":1}`},
		{"whitespace", "{ \"a\" :\t[ 1 ,2 ] }"},

		{"null", `null`},
		{"member null", `{"a":null,"b":1}`},
		{"false, 0 and empty text", `{"a":false,"b":0,"c":""}`},
		{"empty array", `[]`},
		{"empty object", `{}`},
		{"array of empty ones", `[[],{},null,""]`},
		{"nested", `{"a":[1.0,{"b":-0}],"c":9007199254740993}`},
		{"32 levels", strings.Repeat(`[`, 32) + strings.Repeat(`]`, 32)},
		{"64 levels", strings.Repeat(`[`, 64) + strings.Repeat(`]`, 64)},
	} {
		text := `{"value":` + v.text + `}`
		cases = append(cases, Case{Name: v.name, Arguments: text, Structured: text})
	}
	return append(cases,
		Case{Name: "no arguments", OneWay: request},
		Case{Name: "arguments null", Arguments: `null`, OneWay: request},
		Case{Name: "arguments empty", Arguments: `{}`, OneWay: request},
		Case{Name: "no structuredContent", OneWay: result},
		Case{Name: "structuredContent null", Structured: `null`, OneWay: result},
		Case{Name: "structuredContent empty", Structured: `{}`, OneWay: result},
		Case{Name: "structuredContent an array", Structured: `[1,null,{}]`, OneWay: result},
		Case{Name: "structuredContent a number", Structured: `9007199254740993`, OneWay: result},
	)
}
