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
	l.sync.saved = l.sync.point.next
	if err == nil {
		l.commits.evolved = l.pos.next == 0
		err = l.opening(l.eraseFirstKey())
	}
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
	return l.loadAt(p, info)
}

// loadAt goes on from a state that covers records.
func (l *Log) loadAt(p position, info StoreInfo) error {
	if !info.Exists {
		if _, ok := l.store.(SegmentStore); ok {
			return l.loadClosed(p)
		}
		return l.refuse("log_missing", fmt.Sprintf("the file is gone, but its state says that %d records were written", p.next))
	}
	r := storeReader{l.store}
	if h, err := readHead(r, info.Size); err == nil && h.kind == kindSegment && h.origin == p.origin && h.segment > p.segment {
		return l.loadClosed(p)
	}
	switch {
	case info.Size == 0:
		return l.refuse("empty_log", fmt.Sprintf("the file is empty, but its state says that %d records were written", p.next))
	case info.Size < p.offset:
		return l.refuse("tail_truncated", fmt.Sprintf("the file has %d bytes, but its state says that %d bytes with %d records were written", info.Size, p.offset, p.next))
	}
	if err := l.checkStart(&p, r, info.Size); err != nil {
		return err
	}
	if err := l.checkState(&p, r); err != nil {
		return err
	}
	p.fileID = info.ID
	l.setPosition(p)
	l.startAt(&p)
	return l.followTo(info.Size)
}

// startAt takes what the state covers for durable: it was when it was written.
func (l *Log) startAt(p *position) {
	l.sync.reached(durablePoint{p.offset, p.next, p.chain, p.keyID, p.epoch, l.seal.key})
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
	first, err := l.firstSegment()
	if err != nil {
		return err
	}
	p := startPosition(l.cfg.Name+"/i0", l.cfg.KeyID, first)
	if err := l.beginEvolving(&p); err != nil {
		return err
	}
	if err := l.useKeys(&p); err != nil || l.probing {
		return err
	}
	err = l.store.Stage(StateDocument, encodeState(&p))
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

// firstSegment is the number of a new log's first file. Closed segments that
// are there although there is neither a log nor a manifest were moved there on
// purpose, and keep their numbers.
func (l *Log) firstSegment() (uint64, error) {
	seg, ok := l.store.(SegmentStore)
	if !ok {
		return 0, nil
	}
	if _, err := l.store.Load(ManifestDocument); !errors.Is(err, fs.ErrNotExist) {
		return 0, l.refuse("log_missing", "neither the file nor its state is there, but a manifest of its closed segments is")
	}
	return nextNumber(seg)
}

// nextNumber is the number behind those of all closed segments.
func nextNumber(seg SegmentStore) (uint64, error) {
	list, err := seg.Archives()
	if err != nil || len(list) == 0 {
		return 0, err
	}
	return list[len(list)-1].Segment + 1, nil
}

// loadFresh goes on with a log whose state covers no record yet: an empty,
// missing or torn genesis is clean.
func (l *Log) loadFresh(p position, info StoreInfo) error {
	l.pos = p
	if moved, err := l.rotatedSince(&p, info); moved {
		return err
	}
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
	return l.checkStart(&l.pos, storeReader{l.store}, info.Size)
}

// rotatedSince goes on with a log that was rotated since a state that covers no
// record yet. moved is false if it was not.
func (l *Log) rotatedSince(p *position, info StoreInfo) (moved bool, err error) {
	seg, ok := l.store.(SegmentStore)
	if !ok {
		return false, nil
	}
	if info.Exists {
		h, err := readHead(storeReader{l.store}, info.Size)
		if err != nil || h.kind != kindSegment || h.origin != p.origin || h.segment <= p.segment {
			return false, nil
		}
	}
	f, err := seg.OpenArchive(p.segment)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, l.unusable(err)
	}
	l.startAt(p)
	err = l.followFile(f, f.Size(), false)
	if err == nil && l.pos.next > 0 {
		err = l.checkStart(&l.pos, f, f.Size())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return true, err
	}
	return true, l.followSegments(seg)
}

// useKeys finds the keys that a position names.
func (l *Log) useKeys(p *position) error {
	seal, blind, err := l.sealerAt(p)
	if err != nil {
		return err
	}
	private, err := l.cfg.signingKey(p.keyID)
	if err != nil {
		return &RefusedError{
			Path: l.store.Path(), Finding: "unknown_key", Why: err.Error(),
			Remedy: "give the key file that the log was written with",
		}
	}
	signer, err := NoteSigner(p.origin, private)
	if err != nil {
		return l.refuse("state_invalid", "its origin cannot name a key")
	}
	vkey, err := VKey(p.origin, private.Public().(ed25519.PublicKey))
	if err != nil {
		return l.opening(err)
	}
	if p.vkey != "" && p.vkey != vkey {
		r := l.refuse("checkpoint_sig_invalid", fmt.Sprintf("its signing key was rotated to %s, which is not the one at hand", p.vkey))
		r.Remedy = "give the key file or the signing key that it was rotated to; if that is lost, " + r.Remedy
		return r
	}
	l.posMu.Lock()
	l.seal, l.signer, l.vkey, l.keyed = seal, signer, vkey, p.keyID
	l.posMu.Unlock()
	l.enc.Store(&encoder{run: l.run, blind: newBlinder(blind), commit: l.options().commit})
	return nil
}

// sealerAt makes the sealer of a position, and finds the key behind session and
// wire hashes.
func (l *Log) sealerAt(p *position) (s *sealer, blind []byte, err error) {
	if evolves := p.key != nil; evolves != (l.cfg.KeyMode == Evolving) {
		return nil, nil, fmt.Errorf("opening audit log %s: its key_mode is not %s, and is never changed; open it with the one that it was made with", l.store.Path(), l.cfg.KeyMode)
	}
	if p.key != nil {
		return &sealer{keyID: p.keyID, epoch: p.epoch, key: p.key, mac: newMacer(macKey(p.key))}, p.blind, nil
	}
	k0, err := l.cfg.macKey(p.keyID)
	if err != nil {
		return nil, nil, &RefusedError{
			Path: l.store.Path(), Finding: "unknown_key", Why: err.Error(),
			Remedy: "give the key file or the secret that the log was written with",
		}
	}
	if s, err = newSealer(k0, p.origin, p.keyID, p.epoch); err != nil {
		return nil, nil, l.refuse("state_invalid", "its state file is not valid: "+err.Error())
	}
	s.find = l.cfg.macKey
	return s, blindKey(k0), nil
}

// macKey returns K_0 of a key id.
func (c *Config) macKey(kid string) ([]byte, error) {
	if c.Secret != nil {
		return StaticKey(c.Secret, kid), nil
	}
	if key, ok := c.Keys.MACKey(kid); ok {
		return key, nil
	}
	// Another process may have made it, for a key rotation.
	if err := c.Keys.refresh(); err != nil {
		return nil, err
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
	if _, ok := c.Keys.SigningKey(kid); !ok {
		if err := c.Keys.refresh(); err != nil {
			return nil, err
		}
	}
	for _, id := range []string{kid, c.KeyID} {
		if key, ok := c.Keys.SigningKey(id); ok {
			return key, nil
		}
	}
	return nil, fmt.Errorf("the keyring has no Ed25519 key %q", kid)
}

// checkStart checks that a file begins as one of the state's origin does,
// sealed with the keys at hand, and notes what its first record says.
func (l *Log) checkStart(p *position, r readerAt, size int64) error {
	h, err := readHead(r, size)
	var bad *lineError
	if errors.As(err, &bad) {
		return l.refuse(bad.finding, bad.why)
	}
	if err != nil {
		return l.opening(err)
	}
	p.takeHead(&h)
	line, kind, origin, vkey, keyID := h.line, h.kind, h.origin, h.vkey, h.keyID
	switch {
	case kind != kindGenesis && kind != kindChainBreak && kind != kindSegment:
		return l.refuse("genesis_missing", "its first record is neither genesis nor chain_break nor segment_start")
	case origin != p.origin:
		return l.refuse("state_invalid", fmt.Sprintf("the log is %q, but its state file is that of %q", origin, p.origin))
	case h.numbered && h.segment != p.segment:
		return l.refuse("state_invalid", fmt.Sprintf("the file is segment %d of the log, but its state file is that of segment %d", h.segment, p.segment))
	case kind == kindSegment:
		return l.checkSegmentStart(p, &h)
	case line.LeafHash() != line.Seal.Leaf || line.Seal.Seq != 0 || ChainHash(GenesisChain(origin), 0, line.Seal.Leaf) != line.Seal.Chain:
		return l.refuse("content_modified", "its first record was changed")
	}
	if keyID == p.keyID && p.key == nil {
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
	if vkey != l.vkey && keyID == p.keyID {
		r := l.refuse("checkpoint_sig_invalid", "its first record names another signing key than the one at hand")
		r.Remedy = "give the signing key that it was written with; if that is lost, " + r.Remedy
		return r
	}
	return nil
}

// checkSegmentStart checks that a file's segment_start was sealed with the keys
// at hand.
func (l *Log) checkSegmentStart(p *position, h *fileHead) error {
	s := &h.line.Seal
	if h.line.LeafHash() != s.Leaf || !h.whole || ChainHash(h.prevChain, s.Seq, s.Leaf) != s.Chain {
		return l.refuse("content_modified", "its first record was changed")
	}
	if p.key != nil {
		return nil // its key is erased
	}
	k0, err := l.cfg.macKey(s.KeyID)
	if err != nil {
		return l.refuse("unknown_key", err.Error())
	}
	if first, err := newSealer(k0, h.origin, s.KeyID, s.Epoch); err != nil || !first.checks(&h.line) {
		r := l.refuse("mac_invalid", fmt.Sprintf("it was not written with this secret or key file (key id %s)", s.KeyID))
		r.Remedy = "give the secret or key file that it was written with; if that is lost, " + r.Remedy
		return r
	}
	if s.KeyID == p.keyID && h.vkey != "" && h.vkey != l.vkey {
		return l.refuse("checkpoint_sig_invalid", "its first record names another signing key than the one at hand")
	}
	return nil
}

// checkState checks that the record before the state's offset is the one whose
// chain the state carries: the log was not replaced, the state not planted.
func (l *Log) checkState(p *position, r readerAt) error {
	text, err := lineBefore(r, p.offset)
	var bad *lineError
	if err != nil && !errors.As(err, &bad) {
		return l.opening(err)
	}
	if err == nil {
		line, fault := SplitLine(text)
		if fault == LineOK && line.Seal.Seq == p.next-1 && line.Seal.Chain == p.chain && line.LeafHash() == line.Seal.Leaf {
			p.unchecked = 1
			bodyMembers(line.Prefix, func(name string, value []byte) bool {
				if name != "kind" {
					return true
				}
				switch textValue(value) {
				case kindCheckpoint:
					p.unchecked, p.checkpointed = 0, p.next-1
				case kindSegmentEnd:
					p.ended = true
				}
				return false
			})
			return nil
		}
	}
	return l.refuse("state_invalid", fmt.Sprintf("record %d, where its state file says that the log ended, is not the one the state names: the log was replaced or the state planted", p.next-1))
}

// followTo verifies and takes in what follows the known position up to size,
// and moves a torn tail aside. The commit lock is held.
func (l *Log) followTo(size int64) error {
	return l.followFile(storeReader{l.store}, size, true)
}

// followFile is followTo for a file of the log. Only the active one, which is
// written to, may end in a torn tail.
func (l *Log) followFile(r readerAt, size int64, active bool) error {
	if size == l.pos.offset {
		return nil
	}
	if size < l.pos.offset {
		return l.refuse("tail_truncated", fmt.Sprintf("segment %d has %d bytes, but %d were written", l.pos.segment, size, l.pos.offset))
	}
	var own []*entry
	l.posMu.Lock()
	torn, err := follow(&l.pos, l.seal, r, size, func(f folded, line []byte) {
		if e := l.orphan(f, line); e != nil {
			own = append(own, e)
		}
	})
	known := l.pos.next
	rotated := l.pos.keyID != l.keyed
	l.posMu.Unlock()
	if rotated && err == nil {
		err = l.useKeys(&l.pos)
	}
	for _, e := range own {
		l.owe(e)
	}
	if torn != nil && !active {
		err = &lineError{"torn_segment", fmt.Sprintf("the closed segment %d ends in %d bytes that are no record", l.pos.segment, torn.bytes)}
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
		line, err := l.readOpen(o)
		if err != nil {
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

// readOpen reads the line of an open intent, which may lie in a closed segment.
func (l *Log) readOpen(o openIntent) ([]byte, error) {
	line := make([]byte, o.length)
	seg, ok := l.store.(SegmentStore)
	if !ok || o.segment == l.pos.segment && !l.pos.ended {
		_, err := l.store.ReadAt(line, o.pos)
		return line, err
	}
	f, err := seg.OpenArchive(o.segment)
	if errors.Is(err, fs.ErrNotExist) && o.segment == l.pos.segment {
		_, err := l.store.ReadAt(line, o.pos)
		return line, err
	}
	if err != nil {
		return nil, err
	}
	_, err = f.ReadAt(line, o.pos)
	return line, errors.Join(err, f.Close())
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
