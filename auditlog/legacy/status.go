package legacy

import (
	"maps"
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Status says what the signatures of one record of another system prove, and
// no more.
type Status string

// The states of a P4ST4S entry.
const (
	// V2Valid: the Integrity v2 signature fits, which covers every member but
	// the signatures. Nothing says whether entries are missing, repeated or
	// reordered.
	V2Valid Status = "v2_valid"
	// LegacyOnly: only the older signature fits. It covers id, timestamp,
	// method, tool_name and params, not result, error, outcome and the rest.
	LegacyOnly Status = "legacy_only"
	// LegacyConflict: there is an Integrity v2 signature and it does not fit,
	// whatever the older one says.
	LegacyConflict Status = "legacy_conflict"
	// LegacyInvalid: the only signature does not fit.
	LegacyInvalid Status = "legacy_invalid"
	// Unsigned: there is no signature.
	Unsigned Status = "unsigned"
)

// The states of a record of mcp-audit-gateway, beside LegacyInvalid and
// Unsigned, and those that both systems have.
const (
	// ChainSigned: the attestation fits. It covers the members that describe
	// the call and the hash of the line before, not the arguments.
	ChainSigned Status = "chain_signed"
	// Unchecked: there is a signature, and no key to check it with.
	Unchecked Status = "unchecked"
	// Unreadable: the line is no record of the format.
	Unreadable Status = "unreadable"
)

// statuses is the order from best to worst.
var statuses = []Status{V2Valid, ChainSigned, LegacyOnly, Unchecked, Unsigned, LegacyInvalid, LegacyConflict, Unreadable}

// Format is a format of another system.
type Format string

// The formats. FormatNone is anything else, logs of this product included.
const (
	FormatNone    Format = ""
	FormatP4ST4S  Format = "p4st4s"
	FormatGateway Format = "mcp-audit-gateway"
)

// Title names a format for people.
func (f Format) Title() string {
	switch f {
	case FormatP4ST4S:
		return "P4ST4S/mcp-audit (Integrity v2 and older)"
	case FormatGateway:
		return "mcp-audit-gateway (hash chain)"
	}
	return "unknown"
}

// Promise says what a format's own signatures can prove at best.
func (f Format) Promise() string {
	switch f {
	case FormatP4ST4S:
		return "each entry is judged by itself: nothing in this format shows entries that are missing, repeated or reordered, and who can check a signature can make one"
	case FormatGateway:
		return "the chain shows changes before its last record: nothing in this format shows an end that was cut off or a whole log that was replaced, and no signature covers arguments"
	}
	return ""
}

// classes lists the findings of this package whose class is not that of the
// log format.
var classes = map[string]string{
	"legacy_only":         auditlog.ClassWarning,
	"lossy_number":        auditlog.ClassWarning,
	"legacy_mismatch":     auditlog.ClassWarning,
	"unsigned_arguments":  auditlog.ClassWarning,
	"count_mismatch":      auditlog.ClassWarning,
	"sequence_regression": auditlog.ClassWarning,
	"unchecked_record":    auditlog.ClassIncomplete,
}

// tampered lists the findings of class T that only logs of other systems have.
var tampered = []string{"shadow_key", "unknown_member", "legacy_conflict", "legacy_invalid", "unsigned"}

// FindingNames lists, sorted, the findings that only logs of other systems
// have, besides those of the log format.
func FindingNames() []string {
	return slices.Sorted(slices.Values(slices.Concat(tampered, slices.Collect(maps.Keys(classes)))))
}

func classOf(kind string) string {
	if class, ok := classes[kind]; ok {
		return class
	}
	return auditlog.ClassOf(kind)
}
