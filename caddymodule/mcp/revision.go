package mcp

// The protocol revisions.
const (
	Revision20241105 = "2024-11-05"
	Revision20250326 = "2025-03-26"
	Revision20250618 = "2025-06-18"
	Revision20251125 = "2025-11-25"
	Revision20260728 = "2026-07-28"
)

// Modern reports whether a revision is stateless: 2026-07-28 and later, and
// the drafts after it. Revisions are dates and compare as strings.
func Modern(revision string) bool {
	return revision >= Revision20260728 && len(revision) == len(Revision20260728) || revision == "draft"
}

// Revision classifies one message: initialize is what it asks for; else the
// body's _meta decides, then the header, then what the session negotiated.
// Without any of them it is 2025-03-26, the last revision without a header.
// If header and body disagree and one is modern, the message is modern. An
// answer states no version: what its result says is the caller's content.
func Revision(m *Message, body []byte, header, session string) string {
	stated := ""
	if m.Kind == KindRequest || m.Kind == KindNotification {
		stated = Text(m.ProtocolVersion.Of(body))
	}
	switch {
	case m.Kind == KindRequest && Text(m.Method.Of(body)) == methodInitialize:
		if stated != "" && !Modern(stated) {
			return stated
		}
		return Revision20251125
	case stated != "" && (Modern(stated) || !Modern(header)):
		return stated
	case header != "":
		return header
	case session != "":
		return session
	default:
		return Revision20250326
	}
}
