package redact

import "errors"

// Document says what is replaced before a payload, or a name, is recorded:
// by `[REDACTED]` what a key or a path matches, by `[REDACTED:kind]` what looks
// like something that must not be kept.
type Document struct {
	// Edits of the default list of key patterns: `+name` adds one, `-name`
	// removes one, `fragment:name` matches anywhere in a key.
	Keys []string `json:"keys,omitempty"`

	// What is found by how it looks: `secrets`, `payment`, `pii`, single kinds of
	// them such as `jwt` or `email`, either with a minus to take it out, or
	// `none`. Default: secrets and payment.
	Detect []string `json:"detect,omitempty"`

	// Kinds of one's own, as regular expressions (RE2).
	Patterns []DocumentPattern `json:"patterns,omitempty"`

	// JSON paths in a message, such as `$.params.arguments.pin`, of values that
	// go whatever they are.
	Paths []string `json:"paths,omitempty"`

	// Gives placeholders a tag that is equal for equal values. It is keyed with
	// the log's secret, which must be set. Default: false.
	Tag bool `json:"tag,omitempty"`

	// Applies all of this to traffic, too, both ways: neither the server nor the
	// client gets what is replaced. Answers that are no stream are held until
	// they are whole. Default: false.
	Wire bool `json:"wire,omitempty"`

	// Records payloads as they are. Default: false.
	Off bool `json:"off,omitempty"`
}

// DocumentPattern is a kind of value of one's own.
type DocumentPattern struct {
	// What stands in the placeholder: a to z, 0 to 9 and _, at most 32.
	Name string `json:"name"`

	// The regular expression (RE2). Its first group is what is replaced, or all
	// of it if it has none.
	Expr string `json:"expr"`
}

// Compile makes the profile. A nil Document is one without options. tag is the
// key of tags; with nil, a Document that asks for tags is an error.
func (d *Document) Compile(tag []byte) (*Profile, error) {
	if d == nil {
		return New(Config{})
	}
	if d.Off && (d.Wire || d.Tag) {
		return nil, errors.New("redaction is off, so its other options have no effect; remove one of the two")
	}
	cfg := Config{Keys: d.Keys, Detect: d.Detect, Paths: d.Paths, Off: d.Off}
	for _, p := range d.Patterns {
		cfg.Patterns = append(cfg.Patterns, Pattern(p))
	}
	if d.Tag {
		if tag == nil {
			return nil, errors.New("tag: its key comes from the log's secret, and there is none; set the log's option secret, or MCP_AUDIT_SIGNING_SECRET")
		}
		cfg.Tag = tag
	}
	return New(cfg)
}
