package auditlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// maxReason bounds the texts of a chain break in bytes.
const maxReason = 4096

// Recover goes on after Open refused: it moves what is there aside, under the
// name of a closed segment, and begins a new incarnation of the log, with the
// next origin, a new key id and a first record `chain_break` that says what
// was expected, what was found, who went on and why. Nothing is deleted, and
// nothing in the old file becomes trustworthy by it.
//
// It is an error if Open would not refuse.
func Recover(_ context.Context, cfg Config, reason, operator string) (err error) {
	reason, operator = strings.TrimSpace(reason), strings.TrimSpace(operator)
	cfg, err = cfg.withDefaults()
	if err != nil {
		return err
	}
	path := cfg.Store.Path()
	if reason == "" || len(reason) > maxReason || len(operator) > maxReason {
		return fmt.Errorf("recovering audit log %s: give the reason for the break in the chain, in 1 to %d bytes", path, maxReason)
	}
	l := newLog(cfg)
	l.probing = true
	defer func() {
		if err = errors.Join(err, l.store.Close()); err != nil {
			err = fmt.Errorf("recovering audit log %s: %w", path, err)
		}
	}()
	if err := l.store.Open(l.run); err != nil {
		return err
	}
	if err := l.store.Lock(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.store.Unlock()) }()
	if doc, err := l.store.Load(StateDocument); err == nil {
		if p, err := decodeState(doc); err == nil && p.key != nil {
			l.cfg.KeyMode = Evolving
		}
	}
	refused, ok := asRefused(l.load())
	if !ok {
		return errors.New("it can be opened as it is, or not even be read; nothing was changed")
	}
	return l.breakChain(refused, reason, operator)
}

// breakChain begins the next incarnation. The commit lock is held.
func (l *Log) breakChain(refused *RefusedError, reason, operator string) error {
	old, err := l.surveyOld()
	if err != nil {
		return err
	}
	name, n := splitIncarnation(old.origin)
	origin := fmt.Sprintf("%s/i%d", name, n+1)
	keyID := fmt.Sprintf("%s-i%d", keyIncarnation.ReplaceAllString(old.keyID, ""), n+1)
	if !ValidKeyID(keyID) {
		return fmt.Errorf("the key id %q is too long; configure a shorter one", keyID)
	}
	if l.cfg.Keys != nil {
		if err := l.cfg.Keys.extend(old.keyID, keyID, l.cfg.Secret == nil); err != nil {
			return err
		}
	}
	p := startPosition(origin, keyID, old.segment+1)
	if err := l.beginEvolving(&p); err != nil {
		return err
	}
	if err := l.useKeys(&p); err != nil {
		return err
	}
	members := append(originMembers(origin, l.vkey, keyID, l.cfg.KeyMode, l.cfg.ConfigSHA256, p.segment), old.members()...)
	members = append(members, textMember("run", l.run), textMember("reason", reason), textOrNone("operator", operator))
	now := l.cfg.Now()
	d := record(kindChainBreak, newStamp(now), members...)
	l.pos = p
	l.sealRecord(&p, &d, false)
	aside, err := l.store.Replace(old.segment, now, l.commits.buf)
	if err != nil {
		return err
	}
	info, err := l.store.Stat()
	if err != nil {
		return err
	}
	p.fileID = info.ID
	err = l.store.Stage(StateDocument, encodeState(&p))
	if err == nil {
		err = l.store.Publish(StateDocument)
	}
	if err == nil {
		err = l.store.SyncFolder()
	}
	if err != nil {
		return err
	}
	l.log.Warn("the audit log was recovered with a break in its chain",
		zap.String("log", l.store.Path()), zap.String("origin", origin), zap.String("moved_aside", aside), zap.String("finding", refused.Finding))
	return nil
}

var keyIncarnation = regexp.MustCompile(`-i[0-9]+$`)

// splitIncarnation takes an origin "<name>/i<n>" apart.
func splitIncarnation(origin string) (name string, n uint64) {
	if at := strings.LastIndex(origin, "/i"); at > 0 {
		if n, err := strconv.ParseUint(origin[at+2:], 10, 32); err == nil {
			return origin[:at], n
		}
	}
	return origin, 0
}

// oldLog is what is known of the incarnation that is given up.
type oldLog struct {
	origin  string
	keyID   string
	segment uint64

	// What was expected, from the state, or else from the last checkpoint.
	size     uint64
	chain    Hash
	root     Hash
	expected bool

	// What was found: the records that continue the chain from the start, the
	// chain behind them, and the highest seq of any sealed line, plus one.
	good       uint64
	foundChain Hash
	seen       uint64
}

func (o *oldLog) members() []member {
	list := []member{textMember("prev_origin", o.origin)}
	if o.expected {
		list = append(list, numberMember("prev_size", o.size), hashMember("prev_chain", o.chain), hashMember("prev_root", o.root))
	}
	if o.good > 0 {
		list = append(list, hashMember("found_chain", o.foundChain))
	}
	if end := max(o.size, o.seen); end > o.good {
		list = append(list, member{"lost", fmt.Appendf(nil, `{"from":%d,"to":%d}`, o.good, end-1)})
	}
	return list
}

// surveyOld looks at the state, the log and the checkpoint, whichever of them
// can be read, and trusts none of them.
func (l *Log) surveyOld() (oldLog, error) {
	old := oldLog{origin: l.cfg.Name + "/i0", keyID: l.cfg.KeyID}
	known := false
	// A later incarnation of the same name wins: an origin is never used twice.
	take := func(origin string) bool {
		name, n := splitIncarnation(origin)
		was, m := splitIncarnation(old.origin)
		if checkName(origin) != nil || known && (name != was || n <= m) {
			return false
		}
		old.origin, known = origin, true
		return true
	}
	if doc, err := l.store.Load(StateDocument); err == nil {
		if p, err := decodeState(doc); err == nil && take(p.origin) {
			old.keyID, old.segment = p.keyID, p.segment
			old.size, old.chain, old.root, old.expected = p.next, p.chain, p.tree.Root(), true
		}
	}
	var bad *DamagedError
	if info, err := l.store.Stat(); (err == nil || errors.As(err, &bad)) && info.Exists {
		// What can be read of a damaged log counts.
		if err := l.surveyLines(&old, storeReader{l.store}, info.Size, take); err != nil && !errors.As(err, &bad) {
			return old, err
		}
	} else if err := l.surveyArchive(&old, take); err != nil {
		return old, err
	}
	if err := l.numberOld(&old); err != nil {
		return old, err
	}
	if note, err := l.store.Load(CheckpointDocument); err == nil {
		if head, err := ReadTreeHead(note); err == nil && take(head.Origin) {
			old.size, old.chain, old.root, old.expected = head.Size, Hash{}, head.Root, true
			old.good, old.seen = 0, 0
		}
	}
	return old, nil
}

// numberOld finds the segment number that the file which is given up gets. It
// is never one that another file has.
func (l *Log) numberOld(old *oldLog) error {
	seg, ok := l.store.(SegmentStore)
	if !ok {
		return nil
	}
	next, err := nextNumber(seg)
	if err != nil {
		return err
	}
	info, err := l.store.Stat()
	if err != nil || !info.Exists {
		// There is no file: the next incarnation follows the last one.
		if next > 0 {
			old.segment = max(old.segment, next-1)
		}
		return nil
	}
	if h, err := readHead(storeReader{l.store}, info.Size); err == nil && h.numbered {
		old.segment = h.segment
	}
	old.segment = max(old.segment, next)
	return nil
}

// surveyArchive looks at the newest closed segment where there is no log.
func (l *Log) surveyArchive(old *oldLog, take func(origin string) bool) error {
	seg, ok := l.store.(SegmentStore)
	if !ok {
		return nil
	}
	list, err := seg.Archives()
	if err != nil || len(list) == 0 {
		return err
	}
	f, err := seg.OpenArchive(list[len(list)-1].Segment)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // compressed
	}
	if err != nil {
		return err
	}
	err = l.surveyLines(old, f, f.Size(), take)
	return errors.Join(err, f.Close())
}

func (l *Log) surveyLines(old *oldLog, r readerAt, size int64, take func(origin string) bool) error {
	lines := newLineReader(r, 0, size)
	var s *sealer
	intact := true
	for i := 0; ; i++ {
		raw, err := lines.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		line, fault := SplitLine(raw.text)
		if fault != LineOK || !raw.complete {
			intact = false
			continue
		}
		if i == 0 {
			s = l.surveyFirst(old, &line, take)
		}
		old.seen = max(old.seen, line.Seal.Seq+1)
		intact = intact && s != nil && line.Seal.Seq == old.good && line.LeafHash() == line.Seal.Leaf &&
			ChainHash(old.foundChain, old.good, line.Seal.Leaf) == line.Seal.Chain && (s.mac == nil || s.checks(&line))
		if intact {
			old.good, old.foundChain = old.good+1, line.Seal.Chain
			intact = s.mac == nil || surveyKeys(old, s, bodyView{line.Prefix})
		}
	}
}

// surveyKeys follows the keys of the records. It reports whether they are at
// hand.
func surveyKeys(old *oldLog, s *sealer, b bodyView) bool {
	switch b.text("kind") {
	case kindEpochEnd:
		s.evolve(old.origin)
	case kindRotation:
		if s.rekey(b.text("new_key_id")) != nil {
			return false
		}
		old.keyID = s.keyID
	}
	return true
}

// surveyFirst reads the names in a first line. The sealer has no MAC if its
// key is not at hand.
func (l *Log) surveyFirst(old *oldLog, line *Line, take func(origin string) bool) *sealer {
	var origin, keyID string
	var segment uint64
	bodyMembers(line.Prefix, func(name string, value []byte) bool {
		switch name {
		case "origin":
			origin = textValue(value)
		case "key_id":
			keyID = textValue(value)
		case "segment":
			segment, _ = numberValue(value)
		}
		return true
	})
	if take(origin) {
		if ValidKeyID(keyID) {
			old.keyID = keyID
		}
		old.segment, old.expected, old.size = segment, false, 0
	}
	if origin != old.origin {
		return nil
	}
	old.foundChain = GenesisChain(origin)
	b := bodyView{line.Prefix}
	start := b.text("kind") == kindSegment
	if start {
		old.keyID = line.Seal.KeyID
	}
	if k0, err := l.cfg.macKey(line.Seal.KeyID); err == nil {
		if s, err := newSealer(k0, origin, line.Seal.KeyID, line.Seal.Epoch); err == nil && s.checks(line) {
			if start {
				// Sealed with the log's key, it says where the segments before end.
				old.good = line.Seal.Seq
				old.foundChain, _ = b.hash("prev_chain")
			}
			s.find = l.cfg.macKey
			return s
		}
	}
	return &sealer{}
}
