package auditlog

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"

	"go.uber.org/zap"
)

// Open opens or makes a log and returns when it can take records.
//
// It verifies every record that its state does not cover, moves the torn tail
// of an interrupted write aside, closes the open intents of processes that are
// gone as `unknown`, and appends a `start` record, durably. A log that is not
// what its state says (shortened, replaced, emptied, edited; a state that is
// missing or planted) is left as it is, and the error is a *RefusedError.
// Several processes, and several Logs of one process, may open one log.
func Open(ctx context.Context, cfg Config) (*Log, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := newLog(cfg)
	if err := l.store.Open(l.run); err != nil {
		return nil, fmt.Errorf("opening audit log %s: %w", l.store.Path(), errors.Join(err, l.store.Close()))
	}
	if err := l.begin(); err != nil {
		return nil, errors.Join(err, l.store.Close())
	}
	l.startWorkers()
	if err := l.announce(ctx); err != nil {
		l.stopWorkers()
		return nil, fmt.Errorf("opening audit log %s: %w", l.store.Path(), errors.Join(err, l.forget(), l.store.Close()))
	}
	return l, nil
}

// begin does what must be done under the commit lock before the first record.
func (l *Log) begin() error {
	if err := l.store.Lock(); err != nil {
		return l.opening(err)
	}
	err := l.load()
	if err == nil {
		err = l.opening(l.store.Register())
	}
	if err == nil {
		if err := l.store.Reserve(); err != nil {
			l.log.Warn("disk space for a full disk could not be set aside", zap.String("log", l.store.Path()), zap.Error(err))
		}
	}
	if err == nil {
		err = l.closeDeadRuns()
	}
	return errors.Join(err, l.opening(l.store.Unlock()))
}

func (l *Log) opening(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrReplaced) {
		return l.refuse("lock_replaced", err.Error())
	}
	if r, ok := asRefused(l.damaged(err)); ok {
		return r
	}
	return fmt.Errorf("opening audit log %s: %w", l.store.Path(), err)
}

// damaged makes the error of a store that cannot read its log as one a refusal.
func (l *Log) damaged(err error) error {
	var bad *DamagedError
	if errors.As(err, &bad) {
		return l.refuse(bad.Finding, bad.Error())
	}
	return err
}

// refuse makes the error of a log that may not be continued.
func (l *Log) refuse(finding, why string) *RefusedError {
	return &RefusedError{
		Path: l.store.Path(), Why: why, Finding: finding,
		Remedy: fmt.Sprintf("keep a copy for the investigation, then run `mcp-audit recover %s --accept-chain-break \"reason\"`", l.store.Path()),
	}
}

// load finds where the log ends, and checks that it is what the state says.
func (l *Log) load() error {
	info, err := l.store.Stat()
	if err != nil {
		return l.unusable(err)
	}
	doc, err := l.store.Load(StateDocument)
	if errors.Is(err, fs.ErrNotExist) {
		return l.create(info)
	}
	if errors.Is(err, ErrNotRegular) || errors.Is(err, ErrReplaced) {
		return l.refuse("state_invalid", err.Error())
	}
	if err != nil {
		return l.opening(err)
	}
	p, err := decodeState(doc)
	if err != nil {
		return l.refuse("state_invalid", "its state file is not valid: "+err.Error())
	}
	if err := l.useKeys(&p); err != nil {
		return err
	}
	if p.offset == 0 {
		return l.loadFresh(p, info)
	}
	switch {
	case !info.Exists:
		return l.refuse("log_missing", fmt.Sprintf("the file is gone, but its state says that %d records were written", p.next))
	case info.Size == 0:
		return l.refuse("empty_log", fmt.Sprintf("the file is empty, but its state says that %d records were written", p.next))
	case info.Size < p.offset:
		return l.refuse("tail_truncated", fmt.Sprintf("the file has %d bytes, but its state says that %d bytes with %d records were written", info.Size, p.offset, p.next))
	}
	if err := l.checkStart(&p, info.Size); err != nil {
		return err
	}
	if err := l.checkState(&p); err != nil {
		return err
	}
	p.fileID = info.ID
	l.pos = p
	l.startAt(&p)
	return l.followTo(info.Size)
}

// startAt takes what the state covers for durable: it was when it was written.
func (l *Log) startAt(p *position) {
	l.sync.reached(durablePoint{p.offset, p.next, p.chain, p.epoch, l.seal.key})
	l.sync.saved = p.next
}

// unusable is the error of a path that holds no log file.
func (l *Log) unusable(err error) error {
	if errors.Is(err, ErrNotRegular) || errors.Is(err, ErrReplaced) {
		return l.refuse("log_replaced", err.Error())
	}
	return l.opening(err)
}

// create begins a new log: its state is durable before there is a log, so that
// a log without a state is never taken for a new one.
func (l *Log) create(info StoreInfo) error {
	if info.Exists {
		return l.refuse("state_missing", "the file is there, but its state file is not")
	}
	if _, err := l.store.Load(CheckpointDocument); !errors.Is(err, fs.ErrNotExist) {
		return l.refuse("log_missing", "neither the file nor its state is there, but a checkpoint of it is")
	}
	p := startPosition(l.cfg.Name+"/i0", l.cfg.KeyID, 0)
	if err := l.useKeys(&p); err != nil || l.probing {
		return err
	}
	err := l.store.Stage(StateDocument, encodeState(&p))
	if err == nil {
		err = l.store.Publish(StateDocument)
	}
	if err == nil {
		err = l.store.SyncFolder()
	}
	if err != nil {
		return l.opening(err)
	}
	return l.loadFresh(p, info)
}

// loadFresh goes on with a log whose state covers no record yet: an empty,
// missing or torn genesis is clean.
func (l *Log) loadFresh(p position, info StoreInfo) error {
	l.pos = p
	if !info.Exists && l.probing {
		return nil
	}
	if !info.Exists {
		if err := l.store.Create(); err != nil {
			return l.opening(err)
		}
		var err error
		if info, err = l.store.Stat(); err != nil {
			return l.opening(err)
		}
	}
	l.pos.fileID = info.ID
	l.startAt(&p)
	if err := l.followTo(info.Size); err != nil || l.pos.next == 0 {
		return err
	}
	return l.checkStart(&p, info.Size)
}

// useKeys finds the keys that a position names.
func (l *Log) useKeys(p *position) error {
	k0, err := l.cfg.macKey(p.keyID)
	if err != nil {
		return &RefusedError{
			Path: l.store.Path(), Finding: "unknown_key", Why: err.Error(),
			Remedy: "give the key file or the secret that the log was written with",
		}
	}
	private, err := l.cfg.signingKey(p.keyID)
	if err != nil {
		return &RefusedError{
			Path: l.store.Path(), Finding: "unknown_key", Why: err.Error(),
			Remedy: "give the key file that the log was written with",
		}
	}
	if l.signer, err = NoteSigner(p.origin, private); err != nil {
		return l.refuse("state_invalid", "its origin cannot name a key")
	}
	if l.vkey, err = VKey(p.origin, private.Public().(ed25519.PublicKey)); err != nil {
		return l.opening(err)
	}
	if l.seal, err = newSealer(k0, p.origin, p.keyID, p.epoch); err != nil {
		return l.refuse("state_invalid", "its state file is not valid: "+err.Error())
	}
	l.enc = &encoder{run: l.run, blind: newBlinder(blindKey(k0))}
	return nil
}

// macKey returns K_0 of a key id.
func (c *Config) macKey(kid string) ([]byte, error) {
	if c.Secret != nil {
		return StaticKey(c.Secret, kid), nil
	}
	if key, ok := c.Keys.MACKey(kid); ok {
		return key, nil
	}
	return nil, fmt.Errorf("the keyring has no MAC key %q", kid)
}

// signingKey returns the Ed25519 key of a key id. An incarnation made without
// access to the keyring goes on with the key of the configured id.
func (c *Config) signingKey(kid string) (ed25519.PrivateKey, error) {
	if len(c.SigningKey) == ed25519.PrivateKeySize {
		return c.SigningKey, nil
	}
	for _, id := range []string{kid, c.KeyID} {
		if key, ok := c.Keys.SigningKey(id); ok {
			return key, nil
		}
	}
	return nil, fmt.Errorf("the keyring has no Ed25519 key %q", kid)
}

// checkStart checks that the log begins as a log of the state's origin does,
// sealed with the keys at hand.
func (l *Log) checkStart(p *position, size int64) error {
	text, err := firstLine(storeReader{l.store}, size)
	var bad *lineError
	if errors.As(err, &bad) {
		return l.refuse(bad.finding, bad.why)
	}
	if err != nil {
		return l.opening(err)
	}
	line, fault := SplitLine(text)
	if fault != LineOK {
		return l.refuse("genesis_missing", "its first line is no sealed record")
	}
	var kind, origin, vkey, keyID string
	bodyMembers(line.Prefix, func(name string, value []byte) bool {
		switch name {
		case "kind":
			kind = textValue(value)
		case "origin":
			origin = textValue(value)
		case "vkey":
			vkey = textValue(value)
		case "key_id":
			keyID = textValue(value)
		}
		return true
	})
	switch {
	case kind != kindGenesis && kind != kindChainBreak && kind != kindSegment:
		return l.refuse("genesis_missing", "its first record is neither genesis nor chain_break nor segment_start")
	case origin != p.origin:
		return l.refuse("state_invalid", fmt.Sprintf("the log is %q, but its state file is that of %q", origin, p.origin))
	case kind == kindSegment:
		return nil
	case line.LeafHash() != line.Seal.Leaf || line.Seal.Seq != 0 || ChainHash(GenesisChain(origin), 0, line.Seal.Leaf) != line.Seal.Chain:
		return l.refuse("content_modified", "its first record was changed")
	}
	if keyID == p.keyID {
		k0, err := l.cfg.macKey(keyID)
		if err != nil {
			return l.opening(err)
		}
		if first, err := newSealer(k0, origin, keyID, 0); err != nil || !first.checks(&line) {
			r := l.refuse("mac_invalid", fmt.Sprintf("it was not written with this secret or key file (key id %s)", keyID))
			r.Remedy = "give the secret or key file that it was written with; if that is lost, " + r.Remedy
			return r
		}
	}
	if vkey != l.vkey {
		r := l.refuse("checkpoint_sig_invalid", "its first record names another signing key than the one at hand")
		r.Remedy = "give the signing key that it was written with; if that is lost, " + r.Remedy
		return r
	}
	return nil
}

// checkState checks that the record before the state's offset is the one whose
// chain the state carries: the log was not replaced, the state not planted.
func (l *Log) checkState(p *position) error {
	text, err := lineBefore(storeReader{l.store}, p.offset)
	var bad *lineError
	if err != nil && !errors.As(err, &bad) {
		return l.opening(err)
	}
	if err == nil {
		line, fault := SplitLine(text)
		if fault == LineOK && line.Seal.Seq == p.next-1 && line.Seal.Chain == p.chain && line.LeafHash() == line.Seal.Leaf {
			p.unchecked = 1
			bodyMembers(line.Prefix, func(name string, value []byte) bool {
				if name == "kind" && string(value) == `"`+kindCheckpoint+`"` {
					p.unchecked, p.checkpointed = 0, p.next-1
				}
				return name < "kind"
			})
			return nil
		}
	}
	return l.refuse("state_invalid", fmt.Sprintf("record %d, where its state file says that the log ended, is not the one the state names: the log was replaced or the state planted", p.next-1))
}

// followTo verifies and takes in what follows the known position up to size,
// and moves a torn tail aside. The commit lock is held.
func (l *Log) followTo(size int64) error {
	if size == l.pos.offset {
		return nil
	}
	var own []*entry
	l.posMu.Lock()
	torn, err := follow(&l.pos, l.seal, storeReader{l.store}, size, func(f folded, line []byte) {
		if e := l.orphan(f, line); e != nil {
			own = append(own, e)
		}
	})
	known := l.pos.next
	l.posMu.Unlock()
	for _, e := range own {
		l.owe(e)
	}
	var bad *lineError
	if errors.As(err, &bad) {
		return l.refuse(bad.finding, fmt.Sprintf("%s, behind the %d records that are known", bad.why, known))
	}
	if err != nil || torn == nil || l.probing {
		return l.damaged(err)
	}
	return l.quarantine(torn)
}

// quarantine moves a torn tail aside and plans the record that says so.
func (l *Log) quarantine(t *tornTail) error {
	sum, err := hashRange(storeReader{l.store}, t.pos, t.bytes)
	if err != nil {
		return err
	}
	name, err := l.store.Quarantine(t.pos, l.cfg.Now())
	if err != nil {
		return fmt.Errorf("keeping the torn tail of %s: %w", l.store.Path(), err)
	}
	if err := l.store.Truncate(t.pos); err != nil {
		return err
	}
	if err := l.store.Sync(); err != nil {
		return err
	}
	l.log.Warn("the audit log ended in an interrupted write, which was moved aside",
		zap.String("log", l.store.Path()), zap.Int64("bytes", t.bytes), zap.String("to", name))
	l.addNotice(notice{kind: kindRecovered, members: []member{
		numberMember("torn_bytes", uint64(t.bytes)), hashMember("torn_sha256", sum),
	}}, t.bytes)
	return nil
}

// closeDeadRuns plans an outcome `unknown` for each open intent whose process
// is gone. The commit lock is held.
func (l *Log) closeDeadRuns() error {
	alive := map[string]bool{}
	for _, o := range sortedOpen(l.pos.open) {
		if _, known := alive[o.run]; !known {
			lives, err := l.store.Alive(o.run)
			if err != nil {
				return l.opening(err)
			}
			alive[o.run] = lives
		}
		if alive[o.run] {
			continue
		}
		line := make([]byte, o.length)
		if _, err := l.store.ReadAt(line, o.pos); err != nil {
			return l.opening(err)
		}
		d, err := unknownOutcome(o, line, l.run, Unknown, "the process ended before the answer was recorded", newStamp(l.cfg.Now()))
		if err != nil {
			return l.refuse("content_modified", fmt.Sprintf("record %d, an intent without an outcome, was changed", o.seq))
		}
		l.owe(&entry{draft: d, kind: outcomeEntry, intentSeq: o.seq})
	}
	return nil
}

// forgetDeadRuns removes the registrations of runs that are gone and have
// nothing open any more. The commit lock is held.
func (l *Log) forgetDeadRuns() error {
	runs, err := l.store.Runs()
	if err != nil {
		return err
	}
	open := map[string]bool{}
	for _, o := range l.pos.open {
		open[o.run] = true
	}
	for _, run := range runs {
		if open[run] {
			continue
		}
		alive, err := l.store.Alive(run)
		if err == nil && !alive {
			err = l.store.Forget(run)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// announce appends the records that a start makes and waits until they are
// durable.
func (l *Log) announce(ctx context.Context) error {
	start := record(kindStart, newStamp(l.cfg.Now()), textOrNone("version", l.cfg.Version), textOrNone("actor", l.cfg.Actor),
		textMember("run", l.run), hashMember("config_sha256", l.cfg.ConfigSHA256))
	if _, err := l.submit(ctx, &entry{draft: start, kind: otherEntry}); err != nil {
		return err
	}
	if err := l.persist(); err != nil {
		return err
	}
	if err := l.store.Lock(); err != nil {
		return err
	}
	if err := l.forgetDeadRuns(); err != nil {
		l.log.Warn("the registrations of ended processes could not be removed", zap.String("log", l.store.Path()), zap.Error(err))
	}
	return l.store.Unlock()
}
