package legacy

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// chainJudge judges the records of mcp-audit-gateway and the chain between them.
type chainJudge struct {
	*judge
	secrets [][]byte
	public  []ed25519.PublicKey

	head     string // hash of the line before
	seen     bool   // there was a line
	fileHead bool   // the next line is the first of its file
	fits     bool
	args     int // calls with arguments, which nothing signs
	lastArgs bool

	// Since the beginning of the chain, or the break.
	records  int64
	counted  bool // records is known, not only counted from somewhere
	sequence int64
}

func newChainJudge(j *judge) *chainJudge {
	return &chainJudge{judge: j, secrets: j.keys.gatewaySecrets(), public: j.keys.gatewayPublic()}
}

func (j *chainJudge) begin() { j.fileHead = true }

func (j *chainJudge) line(text []byte) {
	if j.sealed(text) {
		return
	}
	r, err := parseChainRecord(text)
	if err != nil {
		j.unreadable(err)
	} else {
		j.record(r)
	}
	h := sha256.Sum256(text)
	j.head, j.seen, j.fileHead = hex.EncodeToString(h[:]), true, false
}

func (j *chainJudge) record(r *chainRecord) {
	j.report.Kinds[r.kind]++
	if len(r.shadow) > 0 {
		j.find("shadow_key", "members stand twice or in another case: %s; readers differ in which one counts", list(r.shadow))
	}
	if len(r.unknown) > 0 {
		j.find("unknown_member", "members that no signature covers: %s", list(r.unknown))
	}
	if r.lossy != nil {
		j.find("lossy_number", "the signature covers the number as a double, not as written: %.40s", r.lossy)
	}
	j.link(r)
	j.counts(r)
	s := j.status(r)
	if j.lastArgs = r.has("args"); j.lastArgs {
		j.args++
	}
	j.report.count(s)
	j.demand(s)
}

// link judges how a record follows the line before.
func (j *chainJudge) link(r *chainRecord) {
	previous := r.str("previousHash")
	switch {
	case r.kind == chainBreak:
		j.broken(r)
	case !r.has("previousHash"):
		j.find("chain_broken", "the record does not name the line before it")
	case !j.seen && previous == firstOfAll:
		j.counted = true
	case !j.seen:
		j.find("partial_history", "the log begins in the middle: what was before is not among the files")
	case previous == j.head:
	case previous == firstOfAll && j.fileHead:
		// Early versions began anew with each file.
		j.find("chain_break", "the file begins a chain of its own: nothing ties it to the file before, of which an end may be missing")
		j.records, j.counted, j.sequence = 0, true, 0
	case j.fileHead:
		j.find("segment_boundary", "the file does not follow the one before: a file, or lines of one, are missing, or the order is wrong")
		j.counted = false
	default:
		j.find("chain_broken", "the line before is not the one that this record was written after")
		j.counted = false
	}
}

// unreadBreaks are the reasons of a break that is declared before the end of
// the log is read, so that it does not know the line before it.
var unreadBreaks = []string{"state_file_corrupt", "log_first_record_oversize", "log_first_record_corrupt", "log_empty_no_newline"}

func (j *chainJudge) broken(r *chainRecord) {
	j.find("chain_break", "a new chain was begun; reason %.80q", r.str("reason"))
	switch head := r.str("priorHead"); {
	case !j.seen && head != "":
		j.find("partial_history", "the log begins with a break: what was before is not among the files")
	case j.seen && head != "" && head != j.head && !slices.Contains(unreadBreaks, r.str("reason")):
		j.find("chain_broken", "the break was declared after another line than the one before it: lines were removed or changed")
	}
	j.records, j.counted, j.sequence = 0, true, 0
}

// counts compares what a checkpoint states with what was counted. The system
// itself miscounts after a restart, so a difference is a warning.
func (j *chainJudge) counts(r *chainRecord) {
	switch r.kind {
	case chainBreak:
		return
	case checkpoint:
	default:
		j.records++
		return
	}
	sequence, ok1 := r.number("sequence")
	count, ok2 := r.number("recordCount")
	if !ok1 || !ok2 {
		j.find("malformed_line", "the checkpoint's sequence or recordCount is not an integer")
		return
	}
	if j.sequence > 0 && sequence <= j.sequence {
		j.find("sequence_regression", "checkpoint %d follows checkpoint %d", sequence, j.sequence)
	}
	if j.counted && count != j.records {
		j.find("count_mismatch", "the checkpoint states %d records, there are %d", count, j.records)
	}
	j.sequence, j.records, j.counted = sequence, count, true
}

// status judges the attestation.
func (j *chainJudge) status(r *chainRecord) Status {
	given := r.str(attestation)
	if given == "" {
		j.find("unsigned", "the record has no attestation: anybody could have written it")
		return Unsigned
	}
	signed, err := r.signedForm()
	if err != nil {
		j.find("legacy_invalid", "its attestation cannot be right: %v", err)
		return LegacyInvalid
	}
	mac, err := hex.DecodeString(given)
	if err != nil || len(mac) != sha256.Size && len(mac) != ed25519.SignatureSize {
		j.find("legacy_invalid", "its attestation is neither an HMAC-SHA256 nor an Ed25519 signature in hexadecimal")
		return LegacyInvalid
	}
	if len(mac) == sha256.Size && fitsHMAC(nil, signed, mac) {
		j.find("unsigned", "the attestation was made with an empty key, which a secret that is not hexadecimal comes to: anybody can make it")
		return Unsigned
	}
	if len(mac) == sha256.Size && len(j.secrets) == 0 || len(mac) != sha256.Size && len(j.public) == 0 {
		j.unchecked = true
		return Unchecked
	}
	if j.attested(signed, mac) {
		j.fits = true
		return ChainSigned
	}
	hint := "; wrong key?"
	if j.fits {
		hint = ""
	}
	j.find("legacy_invalid", "its attestation does not fit%s", hint)
	return LegacyInvalid
}

// attested checks an attestation; its length decides which keys are tried.
func (j *chainJudge) attested(signed, mac []byte) bool {
	if len(mac) == sha256.Size {
		return slices.ContainsFunc(j.secrets, func(key []byte) bool { return fitsHMAC(key, signed, mac) })
	}
	return slices.ContainsFunc(j.public, func(key ed25519.PublicKey) bool {
		return len(key) == ed25519.PublicKeySize && ed25519.Verify(key, signed, mac)
	})
}

func fitsHMAC(key, text, mac []byte) bool {
	h := hmac.New(sha256.New, key)
	h.Write(text)
	return hmac.Equal(h.Sum(nil), mac)
}

func (j *chainJudge) end() {
	if j.args > 0 {
		var last string
		if j.lastArgs {
			last = "; those of the last record can be changed without a trace"
		}
		j.findAll("unsigned_arguments", "no signature covers the arguments (args) of %d records: only the record after each one shows a change%s", j.args, last)
	}
}
