package legacy

import (
	"errors"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// entryJudge judges P4ST4S entries one after the other.
type entryJudge struct {
	*judge
	newer string // where the first entry with a valid Integrity v2 was
	wrong bool   // the hint at a wrong key was given
	fits  bool   // a signature fitted
}

// line judges an entry in its JSON form.
func (j *entryJudge) line(text []byte) {
	if j.sealed(text) {
		return
	}
	e, err := parseEntry(text)
	j.entry(e, err)
}

// entry judges an entry, or the reason why there is none.
func (j *entryJudge) entry(e *entry, err error) {
	if err != nil {
		j.unreadable(err)
		return
	}
	j.report.Kinds["entry"]++
	if len(e.shadow) > 0 {
		j.find("shadow_key", "members stand twice or in another case: %s; readers differ in which one counts", list(e.shadow))
	}
	if e.repeats != "" {
		j.find("shadow_key", "a name is repeated inside of its %s; readers differ in which one counts", e.repeats)
	}
	if len(e.unknown) > 0 {
		j.find("unknown_member", "members that no signature covers: %s", list(e.unknown))
	}
	if e.lossy != "" {
		j.find("lossy_number", "the signature covers the number as a double, not as written: %s", e.lossy)
	}
	s := j.status(e)
	j.report.count(s)
	j.demand(s)
}

// status judges the signatures and says what is wrong with them.
func (j *entryJudge) status(e *entry) Status {
	switch {
	case e.integrity != nil && !j.keys.anySecret(), e.integrity == nil && e.text["signature"] != "" && !j.keys.anySecret():
		j.unchecked = true
		return Unchecked
	case e.integrity != nil:
		return j.newStatus(e)
	case e.text["signature"] == "":
		j.find("unsigned", "the entry has no signature: anybody could have written it")
		return Unsigned
	}
	for _, secret := range j.keys.entrySecrets("") {
		if fitsV1(secret, e) {
			j.fits = true
			if j.newer != "" {
				j.find("downgrade", "the entry has only the older signature, but an entry before it (%s) has Integrity v2: its `integrity` was removed", j.newer)
			}
			if j.require == RequireAny {
				j.find("legacy_only", "only the older signature is there, which does not cover result, error, outcome and identity")
			}
			return LegacyOnly
		}
	}
	j.find("legacy_invalid", "the signature does not fit%s", j.hint())
	return LegacyInvalid
}

// newStatus judges an entry with an `integrity`.
func (j *entryJudge) newStatus(e *entry) Status {
	i := e.integrity
	if i.version != v2Version || i.algorithm != v2Algorithm {
		j.find("legacy_conflict", "its integrity has version %.20q and algorithm %.40q; 2 and hmac-sha256 are the only ones", i.version, i.algorithm)
		return LegacyConflict
	}
	secrets := j.keys.entrySecrets(i.keyID)
	if j.keys.KeyID != "" && i.keyID != j.keys.KeyID || len(secrets) == 0 {
		j.find("unknown_key", "no key is given for the key id %.64q", i.keyID)
		return LegacyConflict
	}
	for _, secret := range secrets {
		signature, err := signV2(secret, e)
		if err != nil {
			j.find("legacy_conflict", "its Integrity v2 cannot be right: %v", err)
			return LegacyConflict
		}
		if !sameHex(i.signature, signature) {
			continue
		}
		j.fits = true
		if j.newer == "" {
			j.newer = j.place()
		}
		if e.text["signature"] != "" && !fitsV1(secret, e) {
			j.find("legacy_mismatch", "Integrity v2 is valid, the older signature does not fit: it was changed, or made before spaces in params were removed")
		}
		return V2Valid
	}
	j.find("legacy_conflict", "its Integrity v2 does not fit%s", j.hint())
	return LegacyConflict
}

// hint asks about the key if no signature fitted yet.
func (j *entryJudge) hint() string {
	if j.fits || j.wrong {
		return ""
	}
	j.wrong = true
	return "; wrong key?"
}

// demand raises what a status lacks of what is required.
func (j *judge) demand(s Status) {
	switch {
	case j.require == RequireV3:
		j.findAs("legacy_only", auditlog.ClassTampered, "it is a record of %s; v3 is required", j.report.Format.Title())
	case j.require == RequireV2 && s == LegacyOnly:
		j.findAs("legacy_only", auditlog.ClassTampered, "it has only the older signature; Integrity v2 is required")
	case j.require == RequireV2 && j.report.Format == FormatGateway:
		j.findAs("legacy_only", auditlog.ClassTampered, "it is a record of %s; Integrity v2 is required", j.report.Format.Title())
	}
}

// unreadable notes a line that is no record. What only nests too deep is not
// called tampered with.
func (j *judge) unreadable(err error) {
	kind := "malformed_line"
	var g *gateError
	if errors.As(err, &g) && (g.why == canon.Depth || g.why == canon.Keys) {
		kind = "unchecked_record"
	}
	j.find(kind, "%v", err)
	j.report.count(Unreadable)
}
