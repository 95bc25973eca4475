package auditlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"sync"
)

// scanConfig says how sources are read and which of the work that needs no
// order is done on the way.
type scanConfig struct {
	jobs    int
	maxLine int
	strict  bool
	crypto  bool                  // hash; without it lines are only taken apart
	hashed  func(source int) bool // whether the SHA-256 of a source is asked for; nil: of none
	keys    *macKeys
	// origin is that of the first source, if that does not begin with a record
	// that names it.
	origin string
}

// lineSink takes the lines of all sources in order. It is called by one
// goroutine.
type lineSink interface {
	// beginFile is called before the lines of a source.
	beginFile(file int) error
	// line takes one line; its bytes are valid during the call.
	line(line []byte, s, before *scanned) error
	// endFile is called behind the last line. torn is the number of bytes
	// behind the last LF, size that of the source, and sum its SHA-256 if that
	// was asked for.
	endFile(file int, torn, size int64, sum Hash) error
}

// The bounds of the pipeline. A chunk is cut at a line feed; the memory in
// flight is the number of chunks (jobs + 2) times its size, and one line that
// is longer.
const (
	chunkBytes = 4 << 20
	chunkLines = 8 << 10
	chunkTotal = 24 << 20
	chunkLeast = 256 << 10
	chunkFirst = 16 << 10
)

// chunk is a piece of a source that ends with a line feed, or the marker of a
// source's beginning or end.
type chunk struct {
	file  int
	kind  chunkKind
	buf   []byte // buf[0] is no content: it gives the leaf hash its prefix
	n     int    // content is buf[1:n]
	large bool   // buf is not one of the recycled buffers

	origin string // the file's, as its first line claims
	lines  []scanned
	count  int   // of lines
	torn   int64 // endChunk
	size   int64
	sum    Hash
	err    error
	done   chan struct{}
}

type chunkKind int

const (
	linesChunk chunkKind = iota
	beginChunk
	endChunk
	oversizedChunk // one line, longer than accepted, that is not held
)

// scanner runs the pipeline: one goroutine cuts chunks, several take their
// lines apart, and the caller's goroutine hands them to the sink in order.
type scanner struct {
	cfg     *scanConfig
	size    int
	work    chan *chunk
	ordered chan *chunk
	free    chan []byte
	infos   sync.Pool
	big     chan []byte // the one buffer for lines longer than a chunk
}

func scanSources(ctx context.Context, sources []Source, cfg *scanConfig, sink lineSink) error {
	slots := cfg.jobs + 2
	s := &scanner{
		cfg:  cfg,
		size: max(min(chunkBytes, chunkTotal/slots), chunkLeast),
		work: make(chan *chunk, slots), ordered: make(chan *chunk, slots),
		free: make(chan []byte, slots), big: make(chan []byte, 1),
		infos: sync.Pool{New: func() any { return new([]scanned) }},
	}
	for range slots {
		s.free <- nil
	}
	s.big <- nil
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		defer close(s.ordered)
		defer close(s.work)
		s.readAll(ctx, sources)
	})
	for range cfg.jobs {
		group.Go(func() {
			w := newLineWorker(cfg)
			for c := range s.work {
				w.chunk(c)
				close(c.done)
			}
		})
	}
	for c := range s.ordered {
		if err := s.deliver(ctx, c, sink); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// deliver hands one chunk to the sink and gives its buffers back.
func (s *scanner) deliver(ctx context.Context, c *chunk, sink lineSink) error {
	if c.err != nil {
		return c.err
	}
	switch c.kind {
	case beginChunk:
		return sink.beginFile(c.file)
	case endChunk:
		return sink.endFile(c.file, c.torn, c.size, c.sum)
	case oversizedChunk:
		return sink.line(nil, &scanned{fault: lineOversized}, nil)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range c.lines {
		l := &c.lines[i]
		var before *scanned
		if i > 0 {
			before = &c.lines[i-1]
		}
		if err := sink.line(c.buf[l.start:l.end], l, before); err != nil {
			return err
		}
	}
	lines := c.lines[:0]
	s.infos.Put(&lines)
	if c.large {
		s.big <- c.buf
	} else {
		s.free <- c.buf
	}
	return nil
}

// readAll cuts all sources into chunks.
func (s *scanner) readAll(ctx context.Context, sources []Source) {
	origin := s.cfg.origin
	for i, source := range sources {
		err := s.readFile(ctx, i, source, &origin)
		if err != nil {
			s.send(ctx, &chunk{err: err})
			return
		}
	}
}

func (s *scanner) send(ctx context.Context, c *chunk) bool {
	if c.kind == linesChunk && c.err == nil {
		c.done = make(chan struct{})
		c.lines = slices.Grow((*s.infos.Get().(*[]scanned))[:0], c.count)
		select {
		case s.work <- c:
		case <-ctx.Done():
			return false
		}
	}
	select {
	case s.ordered <- c:
		return true
	case <-ctx.Done():
		return false
	}
}

// buffer waits for a buffer. One that is made anew is small; fill makes it as
// large as the rest when a source needs it.
func (s *scanner) buffer(ctx context.Context) ([]byte, error) {
	select {
	case b := <-s.free:
		if b == nil {
			b = make([]byte, 1+chunkFirst)
		}
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *scanner) readFile(ctx context.Context, file int, source Source, origin *string) (err error) {
	r, err := source.Open()
	if err != nil {
		return fmt.Errorf("opening %s: %w", source.Name, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if !s.send(ctx, &chunk{kind: beginChunk, file: file}) {
		return ctx.Err()
	}
	f := fileCutter{s: s, ctx: ctx, r: r, file: file, origin: origin}
	if s.cfg.hashed != nil && s.cfg.hashed(file) {
		f.hash = sha256.New()
	}
	if err := f.run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("reading %s: %w", source.Name, err)
	}
	return nil
}

// fileCutter cuts one source.
type fileCutter struct {
	s      *scanner
	ctx    context.Context
	r      io.Reader
	file   int
	origin *string
	begun  bool
	hash   hash.Hash // nil: not asked for

	buf     []byte
	n       int // buf[1:n] is filled
	large   bool
	size    int64
	skipped int64 // of a line without end that is longer than accepted
	eof     bool
}

// largeStep is what is read at a time while a long line's end is awaited, so
// that what follows it fits into an ordinary buffer.
const largeStep = 64 << 10

func (f *fileCutter) run() (err error) {
	if f.buf, err = f.s.buffer(f.ctx); err != nil {
		return err
	}
	f.n = 1
	for {
		if err := f.fill(); err != nil {
			return err
		}
		cut := 1 + bytes.LastIndexByte(f.buf[1:f.n], '\n') + 1
		if cut > 1 {
			if err := f.emit(cut); err != nil {
				return err
			}
			continue
		}
		if f.eof {
			return f.end()
		}
		if err := f.grow(); err != nil {
			return err
		}
	}
}

// fill reads until the buffer is full or the source ends; into the large
// buffer, until there is a line feed.
func (f *fileCutter) fill() error {
	for !f.eof {
		if f.n == len(f.buf) {
			if f.n > f.s.size {
				return nil
			}
			full := make([]byte, 1+f.s.size)
			copy(full, f.buf)
			f.buf = full
		}
		space := f.buf[f.n:]
		if f.large {
			space = space[:min(len(space), largeStep)]
		}
		n, err := f.r.Read(space)
		if f.hash != nil {
			f.hash.Write(space[:n])
		}
		f.n += n
		f.size += int64(n)
		switch {
		case err == io.EOF:
			f.eof = true
		case err != nil:
			return err
		case f.ctx.Err() != nil:
			return f.ctx.Err()
		}
		if f.large && bytes.IndexByte(space[:n], '\n') >= 0 {
			return nil
		}
	}
	return nil
}

// emit sends what lies before cut, and moves the rest to a new buffer.
func (f *fileCutter) emit(cut int) error {
	count := bytes.Count(f.buf[1:cut], []byte{'\n'})
	if count > chunkLines {
		cut, count = 1, chunkLines
		for range chunkLines {
			cut += bytes.IndexByte(f.buf[cut:f.n], '\n') + 1
		}
	}
	if !f.begun {
		f.begun = true
		f.claim(f.buf[1:cut])
	}
	next, err := f.s.buffer(f.ctx)
	if err != nil {
		return err
	}
	if len(next) < 1+f.n-cut {
		next = make([]byte, 1+f.s.size)
	}
	rest := copy(next[1:], f.buf[cut:f.n])
	c := &chunk{file: f.file, buf: f.buf, n: cut, large: f.large, origin: *f.origin, count: count}
	f.buf, f.n, f.large = next, 1+rest, false
	if !f.s.send(f.ctx, c) {
		return f.ctx.Err()
	}
	return nil
}

// claim notes the origin that a file's first line claims: epoch keys depend on
// it. Nothing is believed yet: another origin makes other keys, and the MACs
// fail. The first sealed line of the first file also decides where keys are from.
func (f *fileCutter) claim(lines []byte) {
	for first := true; len(lines) > 0; first = false {
		end := bytes.IndexByte(lines, '\n')
		l, fault := SplitLine(lines[:end])
		lines = lines[end+1:]
		if fault != LineOK && fault != LineExtraMember {
			continue
		}
		m := memberWalk{b: l.Prefix}
		for first && (f.file > 0 || f.s.cfg.origin == "") && m.next() {
			if string(l.Prefix[m.name[0]:m.name[1]]) == "origin" {
				*f.origin = textValue(l.Prefix[m.value[0]:m.value[1]])
			}
		}
		if f.file == 0 && f.s.cfg.keys != nil {
			f.s.cfg.keys.choose(*f.origin, &l.Seal)
		}
		return
	}
}

// grow makes room for a line that is longer than the buffer, or passes over
// one that is longer than accepted.
func (f *fileCutter) grow() error {
	if f.large || f.n-1 > f.s.cfg.maxLine {
		return f.skip()
	}
	var b []byte
	select {
	case b = <-f.s.big:
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
	if need := 2 + f.s.cfg.maxLine; len(b) < need {
		b = make([]byte, need)
	}
	copy(b[1:], f.buf[1:f.n])
	f.s.free <- f.buf
	f.buf, f.large = b, true
	return nil
}

// skip passes over the line in the buffer up to its LF.
func (f *fileCutter) skip() error {
	f.begun = true
	f.skipped = int64(f.n - 1)
	for {
		f.n = 1
		if err := f.fill(); err != nil {
			return err
		}
		at := bytes.IndexByte(f.buf[1:f.n], '\n')
		if at < 0 {
			f.skipped += int64(f.n - 1)
			if f.eof {
				f.n = 1
				return nil
			}
			continue
		}
		f.n = 1 + copy(f.buf[1:], f.buf[2+at:f.n])
		f.skipped = 0
		if !f.s.send(f.ctx, &chunk{kind: oversizedChunk, file: f.file}) {
			return f.ctx.Err()
		}
		return nil
	}
}

// end reports the source's end and gives the buffer back.
func (f *fileCutter) end() error {
	if f.large {
		f.s.big <- f.buf
	} else {
		f.s.free <- f.buf
	}
	end := &chunk{kind: endChunk, file: f.file, torn: int64(f.n-1) + f.skipped, size: f.size}
	if f.hash != nil {
		end.sum = sum(f.hash)
	}
	if !f.s.send(f.ctx, end) {
		return f.ctx.Err()
	}
	return nil
}
