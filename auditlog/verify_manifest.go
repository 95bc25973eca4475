package auditlog

import (
	"path/filepath"
	"slices"
	"strings"
)

// fileFacts is what one source was found to be.
type fileFacts struct {
	base     string // file name, without the suffix of a compressed one
	archive  bool   // base is the name of a closed segment
	segment  uint64
	numbered bool
	origin   string
	first    uint64
	last     uint64
	sealed   bool // it has a record
	ended    bool // by segment_end
	broken   bool // the file behind it begins with a chain_break
	note     string
	size     int64
	sum      Hash // zero: not computed
}

// retired is a segment that a retention record says was deleted.
type retired struct{ first, last, by uint64 }

func newFileFacts(name string) fileFacts {
	base := filepath.Base(name)
	_, _, _, compressed, ok := SplitArchiveName(base)
	if compressed {
		base = strings.TrimSuffix(base, ".gz")
	}
	return fileFacts{base: base, archive: ok}
}

// noteFile takes in what a folded record says of its file.
func (j *judge) noteFile(line []byte, s *scanned) {
	f := &j.files[j.file]
	if !f.sealed {
		f.sealed, f.first, f.origin = true, s.seal.Seq, j.inc.origin
		f.segment, f.numbered = j.segment, j.hasSegment
		if s.facts.kind == codeChainBreak && j.file > 0 {
			j.files[j.file-1].broken = true
		}
	}
	f.last = s.seal.Seq
	if s.facts.kind == codeCheckpoint {
		f.note = bodyView{line[:s.prefix]}.text("note")
	}
}

// retention takes in what a retention record says was deleted.
func (j *judge) retention(b bodyView, seq uint64) {
	list := b.raw("segments")
	if len(list) < 2 || list[0] != '[' {
		return
	}
	for rest := list[1 : len(list)-1]; len(rest) > 0; {
		end := valueEnd(rest, 0)
		e := bodyView{trimObject(rest[:end])}
		if n, ok := e.number("segment"); ok {
			r := retired{by: seq}
			r.first, _ = e.number("first_seq")
			r.last, _ = e.number("last_seq")
			j.retired[n] = r
		}
		rest = rest[min(end+1, len(rest)):]
	}
}

// explainPartial says of a partial history that retention made it.
func (j *judge) explainPartial() {
	if len(j.past) == 0 {
		return
	}
	first := j.past[0].first
	for _, r := range j.retired {
		if first == 0 || r.last+1 != first {
			continue
		}
		j.report.Retired = first
		j.f.amend("partial_history", "the log begins at record %d: the records before were deleted by retention, as record %d says", first, r.by)
	}
}

// readManifest parses the manifest, if one is given.
func (j *judge) readManifest() {
	if j.opts.Manifest == nil {
		return
	}
	m, err := ParseManifest(j.opts.Manifest)
	if err != nil {
		j.findAt(place{}, "manifest_mismatch", "the manifest cannot be used: %v", err)
		return
	}
	j.manifest = m
}

// hashed reports whether the manifest states the hash of a source.
func (j *judge) hashed(source int) bool {
	if j.manifest == nil || source == 0 && j.resumed {
		return false
	}
	for i := range j.manifest.Segments {
		if e := &j.manifest.Segments[i]; e.File == j.files[source].base {
			return e.SHA256 != (Hash{})
		}
	}
	return false
}

// finishManifest compares the manifest with the files.
func (j *judge) finishManifest() {
	m := j.manifest
	if m == nil {
		return
	}
	if last := &j.files[len(j.files)-1]; !last.archive && last.base != m.Log {
		j.findAt(place{}, "manifest_mismatch", "the manifest is that of %q, not of %q", m.Log, last.base)
	}
	listed := map[int]bool{}
	for i := range m.Segments {
		e := &m.Segments[i]
		at := j.fileOf(e)
		if at < 0 {
			if _, ok := j.retired[e.Segment]; !ok && !slices.Contains(j.skipped, e.File) {
				j.findAt(place{}, "segment_missing", "segment %d, %s with the records %d to %d, is in the manifest, but not there", e.Segment, e.File, e.FirstSeq, e.LastSeq)
			}
		} else {
			listed[at] = true
			j.compareFile(e, &j.files[at])
		}
		if i > 0 && (!j.resumed || e.Segment > j.files[0].segment) {
			j.manifestHole(m.Segments[i-1].Segment, e.Segment)
		}
	}
	newest := uint64(0)
	if len(m.Segments) > 0 {
		newest = m.Segments[len(m.Segments)-1].Segment
	}
	for i := range j.files {
		f := &j.files[i]
		_, gone := j.retired[f.segment]
		gone = gone || j.opts.ManifestKept && f.segment > newest
		if f.ended && f.archive && !f.broken && !listed[i] && !gone {
			j.findAt(place{}, "manifest_mismatch", "the closed segment %s is not in the manifest", f.base)
		}
	}
}

// fileOf finds the source of a segment: the file of its name, or the one that
// is still the log's because the rotation was not completed.
func (j *judge) fileOf(e *ManifestSegment) int {
	for i := range j.files {
		if j.files[i].base == e.File {
			return i
		}
	}
	last := len(j.files) - 1
	if f := &j.files[last]; !f.archive && f.numbered && f.segment == e.Segment && f.ended {
		return last
	}
	return -1
}

// manifestHole looks for the segments between two that are listed one after
// the other: they may have been given up by a chain break, or deleted.
func (j *judge) manifestHole(before, after uint64) {
	for n := before + 1; n < after; n++ {
		_, ok := j.retired[n]
		for i := range j.files {
			ok = ok || j.files[i].numbered && j.files[i].segment == n && j.files[i].broken
		}
		if !ok {
			j.findAt(place{}, "manifest_mismatch", "the manifest lists segment %d after segment %d", after, before)
			return
		}
	}
}

func (j *judge) compareFile(e *ManifestSegment, f *fileFacts) {
	what := ""
	switch {
	case !f.numbered || f.segment != e.Segment:
		what = "number"
	case f.origin != e.Origin:
		what = "origin"
	case f.first != e.FirstSeq || f.last != e.LastSeq:
		what = "records"
	case f.size != e.Bytes:
		what = "length"
	case f.note != e.Checkpoint:
		what = "last checkpoint"
	case e.SHA256 != (Hash{}) && f.sum != (Hash{}) && f.sum != e.SHA256:
		what = "SHA-256"
	default:
		return
	}
	j.findAt(place{}, "manifest_mismatch", "the %s of segment %d is not what the manifest says", what, e.Segment)
}
