package sdkdiff

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Pair is what was measured of a client and a server, by the cases that are
// about arguments (Sent, Read) and about results (Given, Got).
type Pair struct {
	Client, Server, Revision string
	Sent                     []string // arguments on the wire
	Read                     []string // arguments in the server's application
	Given                    []string // structuredContent on the wire
	Got                      []string // structuredContent in the client's application
}

// ID is what was measured of an id: what each peer made of it.
type ID struct {
	Text    string
	Peers   map[string]string
	Product string // what the product said to it
}

// Document is docs/sdk-differences.md.
type Document struct {
	Versions []string
	Clients  []string
	Servers  []string
	Pairs    []Pair
	Requests []ID // of clients, answered by servers
	Asked    []ID // of servers, answered by clients
	Refused  []string
}

// Title is how the document calls a client or server.
func Title(name string) string {
	switch name {
	case "typescript-v1":
		return "TypeScript v1"
	case "typescript-v2":
		return "TypeScript v2"
	case "go-sdk":
		return "Go SDK"
	}
	return name
}

func (d Document) pair(client, server string) Pair {
	i := slices.IndexFunc(d.Pairs, func(p Pair) bool { return p.Client == client && p.Server == server })
	return d.Pairs[i]
}

// Render writes it. Where it cannot be true what it says, that is the error.
func (d Document) Render() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `# Differences between MCP SDKs

A value can change on its way from one application to another without anybody meaning it: SDKs read and print JSON with what their language offers. This page says where, so that such a change is not taken for one of mcp-audit, which passes bytes on as they are.

It is written by a test (%s), which also proves its main statement. Do not edit it: `+"`cd tests && go test -run TestSDK -update .`"+` writes it anew.

**mcp-audit adds no difference.** Each client below called each server directly and through mcp-audit, over Streamable HTTP. For every value and every pair, the bytes of the request, the bytes of the answer and the values that both applications saw were the same. The same holds on stdio through the shim, for each client with the server of its own SDK. The one exception is what mcp-audit [refuses](#refused).

Measured with %s. “exact” is no SDK: a client that sends, and a server that answers with, exactly the bytes of the column “value”, in the revision 2025-11-25.

How the values came about: a TypeScript application has its values from `+"`JSON.parse`"+`, as it has no other; a Go application hands over the text itself (`+"`json.RawMessage`"+`), as it could have an `+"`int64`"+` or another type of its own. What arrives is shown as the SDK hands it to an application that asks for no type: JavaScript's values, and `+"`map[string]any`"+` in Go. Both Go SDKs also offer the text. Values are shown with everything outside of ASCII escaped. “error N” is a JSON-RPC error with that code, “error” any other failure of the call, “tool error” a result that says so.

In all tables `+"`=`"+` stands for no difference: on the wire no other byte, in an application the same value (numbers exactly, strings unit by unit, members in the same order).

## Negotiated revisions

`, "`tests/sdkdiff_test.go`", strings.Join(d.Versions, ", "))
	d.matrix(&b)

	fail := ""
	wire := func(cases []Case, text func(Case) string, peers []string, of func(peer string, i int) (string, error)) {
		d.table(&b, cases, text, peers, func(peer string, i int) string {
			cell, err := of(peer, i)
			if err != nil && fail == "" {
				fail = err.Error()
			}
			return cell
		}, func(a, b string) bool { return a == b })
	}
	sent, given := slices.DeleteFunc(Cases(), func(c Case) bool { return !c.Sent() }), slices.DeleteFunc(Cases(), func(c Case) bool { return !c.Given() })
	arguments, structured := func(c Case) string { return c.Arguments }, func(c Case) string { return c.Structured }

	b.WriteString("\n## Arguments on the wire\n\nWhat a client sends, whatever the server is.\n\n")
	wire(sent, arguments, d.sdks(d.Clients), func(client string, i int) (string, error) {
		return d.agree(d.Servers, func(server string) (Pair, string) {
			p := d.pair(client, server)
			return p, p.Sent[i]
		})
	})
	b.WriteString("\n## Arguments in the server's application\n")
	for _, server := range d.sdks(d.Servers) {
		fmt.Fprintf(&b, "\n### Server: %s\n\n", Title(server))
		d.table(&b, sent, arguments, d.Clients, func(client string, i int) string { return d.pair(client, server).Read[i] }, Same)
	}
	b.WriteString("\n## Results on the wire\n\nWhat a server sends as `structuredContent`, whatever the client is.\n\n")
	wire(given, structured, d.sdks(d.Servers), func(server string, i int) (string, error) {
		return d.agree(d.Clients, func(client string) (Pair, string) {
			p := d.pair(client, server)
			return p, p.Given[i]
		})
	})
	b.WriteString("\n## Results in the client's application\n")
	for _, client := range d.sdks(d.Clients) {
		fmt.Fprintf(&b, "\n### Client: %s\n\n", Title(client))
		d.table(&b, given, structured, d.Servers, func(server string, i int) string { return d.pair(client, server).Got[i] }, Same)
	}
	b.WriteString("\n## Request ids\n\nThe id of a client's request, and the one in the server's answer. SDKs' clients count from 0 or 1 themselves, so these are of the exact client.\n\n")
	ids(&b, d.Requests, d.sdks(d.Servers))
	b.WriteString("\nThe id of a server's request (`ping`, of the exact server), and the one in the client's answer.\n\n")
	ids(&b, d.Asked, d.sdks(d.Clients))
	b.WriteString("\n## Refused\n\nWhat mcp-audit did not let through, besides the ids above that are neither a text nor an integer in digits. Results of servers are never refused.\n\n")
	for _, r := range d.Refused {
		b.WriteString("- " + r + "\n")
	}
	if fail != "" {
		return "", fmt.Errorf("%s", fail)
	}
	return b.String(), nil
}

func (d Document) sdks(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "exact" })
}

// agree joins what a peer sent to all others, which may depend on the revision
// and on nothing else.
func (d Document) agree(others []string, of func(other string) (Pair, string)) (string, error) {
	byRevision := make(map[string]string)
	for _, other := range others {
		p, text := of(other)
		if known, ok := byRevision[p.Revision]; ok && known != text {
			return "", fmt.Errorf("%s to %s in %s: both %s and %s are on the wire", p.Client, p.Server, p.Revision, known, text)
		}
		byRevision[p.Revision] = text
	}
	oldest, newest := byRevision["2025-11-25"], byRevision["2026-07-28"]
	if len(byRevision) > 1 && oldest != newest {
		return oldest + split + newest, nil
	}
	return max(oldest, newest), nil
}

// split stands between the texts of both revisions.
const split = "\x00"

func (d Document) matrix(b *strings.Builder) {
	head(b, append([]string{"client, server"}, titles(d.Servers)...))
	for _, client := range d.Clients {
		row := []string{Title(client)}
		for _, server := range d.Servers {
			row = append(row, d.pair(client, server).Revision)
		}
		line(b, row)
	}
}

// table has a row for each case in which anything differs, and names the rest.
func (d Document) table(b *strings.Builder, cases []Case, text func(Case) string, peers []string, cell func(peer string, i int) string, same func(a, b string) bool) {
	var equal []string
	head(b, append([]string{"case", "value"}, titles(peers)...))
	for i, c := range cases {
		want := text(c)
		if want == "" {
			want = "absent"
		}
		row := []string{c.Name, code(want)}
		differs := false
		for _, peer := range peers {
			var shown []string
			for part := range strings.SplitSeq(cell(peer, i), split) {
				if same(want, part) {
					shown = append(shown, "`=`")
					continue
				}
				shown = append(shown, code(part))
				differs = true
			}
			if len(shown) > 1 {
				shown[0] += " (2025-11-25)"
				shown[1] += " (2026-07-28)"
			}
			row = append(row, strings.Join(shown, ", "))
		}
		if differs {
			line(b, row)
		} else {
			equal = append(equal, c.Name)
		}
	}
	if len(equal) > 0 {
		fmt.Fprintf(b, "\nNo difference anywhere: %s.\n", strings.Join(equal, "; "))
	}
}

func ids(b *strings.Builder, rows []ID, peers []string) {
	head(b, append(append([]string{"id"}, titles(peers)...), "through mcp-audit"))
	for _, id := range rows {
		row := []string{code(id.Text)}
		for _, peer := range peers {
			if got := id.Peers[peer]; got == id.Text {
				row = append(row, "`=`")
			} else {
				row = append(row, code(got))
			}
		}
		line(b, append(row, id.Product))
	}
}

func titles(names []string) []string {
	var all []string
	for _, n := range names {
		all = append(all, Title(n))
	}
	return all
}

func head(b *strings.Builder, columns []string) {
	line(b, columns)
	line(b, slices.Repeat([]string{"---"}, len(columns)))
}

func line(b *strings.Builder, cells []string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

// code shows a text of the wire or an application: without the member that
// all cases have, with what could not be seen by its code point.
func code(text string) string {
	for _, word := range []string{"error", "refused", "no answer", "absent"} {
		if strings.HasPrefix(text, word) {
			return text
		}
	}
	if inner, ok := strings.CutPrefix(text, `{"value":`); ok {
		text = strings.TrimSuffix(inner, "}")
	}
	var b strings.Builder
	for i, r := range []rune(text) {
		switch {
		case i == 48:
			return "`" + b.String() + "…`"
		case r == '\t' || r == '|' || r == '`' || unicode.Is(unicode.M, r) || r != ' ' && !unicode.IsPrint(r):
			fmt.Fprintf(&b, "⟨U+%04X⟩", r)
		default:
			b.WriteRune(r)
		}
	}
	return "`" + b.String() + "`"
}
