package redact

// A memo keeps the verdicts on names that were judged before: in one payload,
// and from one to the next, the same few names come again and again. Names of
// more than memoName bytes are judged each time.
type memo [memoSize]judged

const (
	memoSize = 128 // a power of two
	memoName = 30
)

type judged struct {
	verdict verdict
	length  uint8 // 0: empty
	name    [memoName]byte
}

// judge is Profile.judge.
func (m *memo) judge(p *Profile, name []byte) verdict {
	if len(name) == 0 || len(name) > memoName {
		return p.judge(name)
	}
	hash := uint32(2166136261) // FNV-1a: whoever makes names collide makes them slow, no more
	for _, b := range name {
		hash = (hash ^ uint32(b)) * 16777619
	}
	known := &m[(hash^hash>>15)%memoSize]
	if string(known.name[:known.length]) != string(name) {
		known.verdict, known.length = p.judge(name), uint8(copy(known.name[:], name))
	}
	return known.verdict
}
