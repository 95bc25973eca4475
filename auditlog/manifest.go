package auditlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// Manifest lists the closed segments of a log: what verify expects to find.
// Segments that a chain break gave up are not in it.
type Manifest struct {
	Log      string // file name of the log
	Segments []ManifestSegment
}

// ManifestSegment is a closed segment in a Manifest.
type ManifestSegment struct {
	Segment uint64
	// File is its name without its folder. A compressed one has a suffix more.
	File     string
	Origin   string
	FirstSeq uint64
	LastSeq  uint64
	Bytes    int64 // uncompressed
	// SHA256 of the uncompressed file; the zero Hash while it is not computed.
	SHA256 Hash
	// Checkpoint is the signed note of the segment's last checkpoint.
	Checkpoint string
}

const manifestVersion = 1

// Encode writes the manifest as a JSON text in its one exact spelling.
func (m *Manifest) Encode() []byte {
	b := append([]byte(`{"version":`), strconv.Itoa(manifestVersion)...)
	b = append(b, `,"log":`...)
	b = canon.AppendString(b, m.Log)
	b = append(b, `,"segments":[`...)
	for i, s := range m.Segments {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, "\n{\"segment\":%d,\"file\":", s.Segment)
		b = canon.AppendString(b, s.File)
		b = append(b, `,"origin":`...)
		b = canon.AppendString(b, s.Origin)
		b = fmt.Appendf(b, `,"first_seq":%d,"last_seq":%d,"bytes":%d`, s.FirstSeq, s.LastSeq, s.Bytes)
		if s.SHA256 != (Hash{}) {
			b = fmt.Appendf(b, `,"sha256":"%s"`, s.SHA256)
		}
		b = append(b, `,"checkpoint":`...)
		b = canon.AppendString(b, s.Checkpoint)
		b = append(b, '}')
	}
	return append(b, "\n]}\n"...)
}

// ParseManifest reads a manifest. Anything but the spelling of Encode is an
// error, so that no byte of it can change unseen.
func ParseManifest(text []byte) (*Manifest, error) {
	var in struct {
		Version  int    `json:"version"`
		Log      string `json:"log"`
		Segments []struct {
			Segment    uint64 `json:"segment"`
			File       string `json:"file"`
			Origin     string `json:"origin"`
			FirstSeq   uint64 `json:"first_seq"`
			LastSeq    uint64 `json:"last_seq"`
			Bytes      int64  `json:"bytes"`
			SHA256     string `json:"sha256"`
			Checkpoint string `json:"checkpoint"`
		} `json:"segments"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, errors.New("it is not a JSON object of the expected form")
	}
	if in.Version != manifestVersion {
		return nil, fmt.Errorf("its version is %d, not %d", in.Version, manifestVersion)
	}
	m := &Manifest{Log: in.Log}
	for _, s := range in.Segments {
		e := ManifestSegment{s.Segment, s.File, s.Origin, s.FirstSeq, s.LastSeq, s.Bytes, Hash{}, s.Checkpoint}
		if s.SHA256 != "" {
			var ok bool
			if e.SHA256, ok = parseHash(s.SHA256); !ok {
				return nil, fmt.Errorf("the SHA-256 of segment %d is malformed", s.Segment)
			}
		}
		log, n, _, _, ok := SplitArchiveName(s.File)
		if !ok || log != m.Log || n != s.Segment {
			return nil, fmt.Errorf("segment %d is said to lie in %q, which is no name of it", s.Segment, s.File)
		}
		if k := len(m.Segments); k > 0 && m.Segments[k-1].Segment >= s.Segment {
			return nil, fmt.Errorf("segment %d does not stand in its place", s.Segment)
		}
		m.Segments = append(m.Segments, e)
	}
	if !bytes.Equal(m.Encode(), text) {
		return nil, errors.New("a member is missing, added or spelled otherwise")
	}
	return m, nil
}

// put adds a segment, in place of one with its number.
func (m *Manifest) put(s ManifestSegment) {
	m.drop(s.Segment)
	at, _ := slices.BinarySearchFunc(m.Segments, s.Segment, func(e ManifestSegment, n uint64) int {
		if e.Segment < n {
			return -1
		}
		return 1
	})
	m.Segments = slices.Insert(m.Segments, at, s)
}

func (m *Manifest) drop(segment uint64) {
	m.Segments = slices.DeleteFunc(m.Segments, func(s ManifestSegment) bool { return s.Segment == segment })
}

func (m *Manifest) find(segment uint64) *ManifestSegment {
	for i := range m.Segments {
		if m.Segments[i].Segment == segment {
			return &m.Segments[i]
		}
	}
	return nil
}

// archiveName matches the file name of a closed segment.
var archiveName = regexp.MustCompile(`^(.+)\.([0-9]{6,18})\.([0-9]{8}T[0-9]{6}Z)(\.gz)?$`)

const archiveTime = "20060102T150405Z"

// ArchiveName is the file name of a closed segment of a log.
func ArchiveName(log string, segment uint64, at time.Time) string {
	return fmt.Sprintf("%s.%06d.%s", log, segment, at.UTC().Format(archiveTime))
}

// SplitArchiveName takes the file name of a closed segment apart: the log's
// file name, the segment's number, when it was closed, and whether it is
// compressed.
func SplitArchiveName(name string) (log string, segment uint64, closed time.Time, compressed, ok bool) {
	m := archiveName.FindStringSubmatch(name)
	if m == nil {
		return "", 0, time.Time{}, false, false
	}
	n, err := strconv.ParseUint(m[2], 10, 53)
	if err != nil || fmt.Sprintf("%06d", n) != m[2] {
		return "", 0, time.Time{}, false, false
	}
	at, err := time.Parse(archiveTime, m[3])
	return m[1], n, at, m[4] != "", err == nil
}
