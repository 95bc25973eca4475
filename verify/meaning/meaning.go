// Package meaning says in plain words what a finding of verify means and what
// to do about it, for readers who run a service and did not build it.
package meaning

import "github.com/caddy-mcp-audit/mcp-audit/auditlog"

// Text explains one finding.
type Text struct {
	What string // what was found, one sentence
	Do   string // what to do next, one or two sentences
}

// Finding explains a finding by its name. ok is false for a name that does not
// exist.
func Finding(name string) (t Text, ok bool) {
	t, ok = texts[name]
	return t, ok
}

// Severity says how bad a class of findings is.
func Severity(class string) string {
	switch class {
	case auditlog.ClassTampered:
		return "the log is not what was written"
	case auditlog.ClassDiverges:
		return "the log differs from proof that you kept elsewhere"
	case auditlog.ClassIncomplete:
		return "the log cannot be judged in full"
	case auditlog.ClassWarning:
		return "good to know; nothing is wrong with the log itself"
	}
	return ""
}

// The remedies that several findings share.
const (
	preserve = "Stop using the files and copy the whole folder as evidence. Compare it with a backup or with checkpoints kept elsewhere, and find out who could write to it."
	restore  = "Look for the file in backups and put it back, then verify again. If it cannot be found, treat its records as lost and keep the folder as evidence."
	rebuild  = "Copy the database as evidence, then verify what `mcp-audit export --format lines` makes of it: that tells whether the records themselves are intact."
	supply   = "Give the right key file with --keys, the secret in MCP_AUDIT_SIGNING_SECRET, or the public key with --pub, and verify again."
	reclaim  = "Find out what moved, replaced or removed the file. If nothing can be put back, start a new chain with `mcp-audit recover --accept-chain-break \"REASON\"`, which records the loss."
	question = "Ask the other system's operator how the record came about; do not rely on it as evidence."
)

// texts has every finding of auditlog.FindingNames and legacy.FindingNames.
var texts = map[string]Text{
	// One record.
	"content_modified": {"The content of a record was changed after it was written.", preserve},
	"not_canonical":    {"A record is spelled in a way in which this product never writes, so something else wrote or rewrote it.", preserve},
	"extra_member":     {"Something was added to a record that does not belong there.", preserve},
	"seal_malformed":   {"The seal that ends a record, with its number and signature, was damaged or changed.", preserve},
	"unsealed_record":  {"There is a record without a seal: anybody could have written it.", preserve},
	"malformed_line":   {"A line of the file is no record at all, for example an overwritten or a blank line.", preserve},
	"downgrade":        {"A record in an older format, which proves less, stands where a sealed one should be.", preserve},
	"oversized_line":   {"A line is longer than any record may be, so it was not read.", "If you raised the limits of the proxy, raise --max-line too; otherwise somebody put it there. " + preserve},
	"unknown_kind":     {"A record is of a kind that this version does not know; its seal is good.", "Verify with the version that wrote the log, or with a newer one."},

	// Order and number.
	"seq_gap":          {"Records are missing: they were removed, or never reached this file.", preserve},
	"seq_regression":   {"A record stands behind others that were written after it.", "Check that the files were given oldest first. If they were: " + preserve},
	"duplicate_record": {"The same record is there twice.", "Check that no file was given twice. If none was: " + preserve},
	"fork":             {"Two different records have the same number: two programs wrote without knowing of each other, or one of the records was forged.", preserve + " A virtual machine that was reset to an older state also does this."},
	"chain_broken":     {"A record does not follow the one before it: something between them was changed, removed or inserted.", preserve},
	"genesis_missing":  {"The log does not begin with the record that every log or file begins with.", restore},
	"second_genesis":   {"A new beginning stands in the middle of the log: somebody started over without saying why.", preserve},
	"foreign_log":      {"These are records of another log than the one that is expected.", "Check the path, --origin and --pub. If they are right, the log was replaced: " + preserve},
	"outcome_orphan":   {"The end of a call is recorded, but not its beginning, or its end is there twice.", preserve},

	// Keys and signatures.
	"mac_invalid":            {"The signature of a record does not fit the key.", "If it is so for all records, the key is not this log's: " + supply + " Otherwise: " + preserve},
	"unknown_key":            {"A record was sealed with a key that was not given.", supply},
	"key_range_violation":    {"A record was sealed with a key that was no longer, or not yet, in use.", "The old key may have been stolen: replace all keys. " + preserve},
	"epoch_violation":        {"A record was sealed with the key of another time than its place in the log says.", preserve},
	"sig_invalid":            {"A change of keys was not signed by both the old and the new key.", "Somebody without the old key may have taken over the log: replace the keys. " + preserve},
	"checkpoint_sig_invalid": {"A checkpoint is not signed by the log's key.", "Compare the public key with the one that you noted when the log was begun (`mcp-audit pubkey`). If it is the same: " + preserve},
	"checkpoint_mismatch":    {"A signed checkpoint states other records than there are: the log was rewritten.", preserve},
	"note_malformed":         {"A checkpoint's text is damaged.", "If it is a file that you gave, fetch it again from where it is kept; if it is in the log: " + preserve},
	"mac_unchecked":          {"No key was given, so the signature of each record could not be checked.", supply},

	// Files.
	"segment_boundary":  {"A file of the log does not continue the one before it.", "Check that all files are there and given oldest first. If they are: " + preserve},
	"segment_gap":       {"A file of the log is missing between two others.", restore},
	"segment_missing":   {"A closed file of the log that must be there is not.", restore},
	"segment_unclosed":  {"A file that should be closed has no end: its last records may have been cut off.", "If the log is still being written, verify without --closed. If not: " + preserve},
	"torn_segment":      {"A closed file ends in the middle of a record.", restore},
	"empty_segment":     {"A file of the log is empty.", restore},
	"empty_log":         {"The log has no record at all.", "Check the path. If it is right, the log was emptied: " + restore},
	"manifest_mismatch": {"The list of closed files does not agree with the files that are there.", preserve},
	"partial_history":   {"The beginning of the log is not among the files; the rest was checked.", "If old files were deleted on purpose (retention), nothing is to be done. Otherwise give all files, and the public key with --pub."},

	// The end of the log.
	"torn_tail":          {"The last record is unfinished: a write was interrupted, or is going on right now.", "Verify again in a moment. If it stays so, start the proxy: it keeps the torn bytes in a file and records that it did."},
	"stale_tail":         {"The newest record is older than you allowed: the log may have been cut, or nothing was logged since.", "Check that the proxy runs and logs; compare with a checkpoint kept elsewhere (--anchor)."},
	"checkpoint_overdue": {"Many records have no signed checkpoint behind them.", "Make one with `mcp-audit checkpoint`, and find out why the proxy makes none."},
	"chain_break":        {"The log was begun anew after its former end was lost or damaged, by somebody who said why.", "Read the reason and the range of lost records, and ask the operator who is named."},
	"gap":                {"Messages were forwarded without a record while the log could not be written, because the configuration allows that (on_failure allow).", "Compare the number with the proxy's metrics, and repair the cause."},

	// Anchors.
	"tail_truncated":      {"Proof that you kept elsewhere covers more records than the log has: its end was cut off, or an older copy was put back.", preserve},
	"anchor_mismatch":     {"Proof that you kept elsewhere states other records than the log has: its past was rewritten.", preserve},
	"anchor_equivocation": {"Two signed checkpoints state two different pasts: whoever holds the signing key showed different logs to different people.", "The signing key, or its holder, cannot be trusted. Keep both checkpoints and the log as evidence."},
	"anchor_ahead":        {"A witness holds more records than the log had when it was asked.", preserve},
	"anchor_foreign":      {"The checkpoint that you gave is of another log.", "Check which file belongs to which log. If it is the right one, the log was replaced: " + preserve},
	"anchor_sig_invalid":  {"The checkpoint that you gave is not validly signed by this log, or by the witness that it names.", "Fetch it again from where it is kept. If it is the same there, do not rely on it."},
	"anchor_invalid":      {"A receipt that you gave does not prove what it should.", "Fetch it again from where it is kept. If it is the same there, do not rely on it."},

	// Erasure.
	"opening_mismatch": {"A value is not the one that the record was sealed with.", preserve},
	"opening_missing":  {"A value was removed, and no record says who allowed it.", preserve},
	"opening_unbound":  {"A value was added that the record was never sealed with.", preserve},
	"erased_field":     {"A value was erased on purpose; who authorised it, and why, is recorded.", "Check that the person and the reason are right. --max-erasures sets how many are acceptable."},
	"erased_record":    {"A whole record was erased on purpose; who authorised it, and why, is recorded.", "Check that the person and the reason are right. --max-erasures sets how many are acceptable."},

	// Calls and time.
	"outcome_missing": {"A call was begun and its end is not recorded.", "If it is going on, verify again later. If its process died, the next start closes it as unknown."},
	"outcome_unknown": {"A call was going on when the process ended, so nobody knows whether the server did what was asked.", "Look at the server, or its own log, whether the call took effect."},
	"time_regression": {"The clock was set back while the log was written.", "Check the machine's clock; the order of records is that of their numbers, not of their times."},
	"time_future":     {"A record is dated ahead of now.", "Check the clocks of the machine that wrote the log and of this one."},

	// Databases.
	"schema_mismatch":         {"The database's tables or rules are not those that this product makes.", rebuild},
	"index_corrupt":           {"The database file is damaged, so a search in it may not find every record.", rebuild},
	"derived_column_mismatch": {"A column of the database, by which records are searched, is not what the record says.", rebuild},

	// Starts and proofs.
	"state_invalid": {"The file with the log's state is damaged, or of another log or time.", reclaim},
	"state_missing": {"The log is there, but the file with its state is not.", reclaim},
	"log_missing":   {"The file with the log's state is there, but the log is not.", reclaim},
	"log_replaced":  {"Another file was put in the log's place while it was in use.", reclaim},
	"lock_replaced": {"The log's lock file was replaced while it was in use, so two programs could have written at once.", "Let nothing but this product write to the folder, and restart it."},
	"proof_invalid": {"The proof does not show that this record was in the log.", "Check that record, proof and public key belong together. If they do, do not rely on the record."},

	// Logs of other systems.
	"shadow_key":          {"A name stands twice in a record, so two programs can read it differently.", question},
	"unknown_member":      {"A record has a value that no signature covers.", question},
	"legacy_conflict":     {"The newer of a record's signatures does not fit: the record was changed, or the key is not its own.", supply},
	"legacy_invalid":      {"The signature of a record does not fit: the record was changed, or the key is not its own.", supply},
	"unsigned":            {"A record has no usable signature: anybody could have written it.", question},
	"legacy_only":         {"A record has only the older signature, which does not cover result, error and identity.", "Use it as a hint, not as proof, unless you can confirm those elsewhere."},
	"legacy_mismatch":     {"The newer signature fits, the older one does not, which also happens without any tampering.", "Nothing has to be done: the newer signature covers more."},
	"lossy_number":        {"A large number in a record is only signed as a rounded one.", "Do not rely on its last digits."},
	"unsigned_arguments":  {"The arguments of a call stand in the record, but no signature covers them.", "Use them as a hint, not as proof."},
	"count_mismatch":      {"A count in the log is not what is there; that system miscounts itself after a restart.", "Compare with the times of restarts."},
	"sequence_regression": {"Numbers in the log go back; that system starts over with them after a restart.", "Compare with the times of restarts."},
	"unchecked_record":    {"A record is nested too deep to be judged.", question},
}
