package auditlog

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// TrustPolicy says which logs may sign a checkpoint and which witnesses must
// have cosigned it (C2SP tlog-policy). It is safe for concurrent use.
type TrustPolicy struct {
	logs      []policyLog
	witnesses []policyWitness
	members   map[string]policyMember // witnesses and groups by name
	quorum    string                  // a name, or "none"
}

type policyLog struct {
	verifier note.Verifier
	key      ed25519.PublicKey
}

type policyWitness struct {
	name     string // in the policy
	cosigner *Cosigner
}

// policyMember is a witness, or a group that needs some of its own.
type policyMember struct {
	witness int // index, or -1 for a group
	need    int
	names   []string
}

// The bounds of a policy file.
const (
	maxPolicyBytes = 256 << 10
	maxPolicyNames = 1024
	quorumNone     = "none"
)

// PolicyOf is the policy that one log's key states: its signature, and no
// witness. The key is a verifier key as `mcp-audit pubkey` prints it.
func PolicyOf(vkey string) (*TrustPolicy, error) {
	p := &TrustPolicy{quorum: quorumNone}
	if err := p.addLog(vkey); err != nil {
		return nil, err
	}
	return p, nil
}

// ParsePolicy reads a policy file. The error names the line.
func ParsePolicy(text []byte) (*TrustPolicy, error) {
	if len(text) > maxPolicyBytes {
		return nil, fmt.Errorf("the policy is larger than %d KiB", maxPolicyBytes>>10)
	}
	p := &TrustPolicy{members: map[string]policyMember{}}
	listed := map[string]bool{}
	for n, line := range strings.Split(string(text), "\n") {
		if err := p.line(line, listed); err != nil {
			return nil, fmt.Errorf("line %d of the policy: %w", n+1, err)
		}
	}
	if p.quorum == "" {
		return nil, errors.New("the policy has no quorum line; add `quorum NAME`, or `quorum none` to demand no witness")
	}
	return p, nil
}

func (p *TrustPolicy) line(line string, listed map[string]bool) error {
	for i := range len(line) {
		if c := line[i]; c < ' ' && c != '\t' || c == 0x7f {
			return fmt.Errorf("the control character 0x%02x is not allowed", c)
		}
	}
	words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(words) == 0 || words[0][0] == '#' {
		return nil
	}
	args := words[1:]
	switch words[0] {
	case "log":
		if len(args) < 1 || len(args) > 2 {
			return errors.New("log takes a key, and may have a URL")
		}
		return p.addLog(args[0])
	case "witness":
		if len(args) < 2 || len(args) > 3 {
			return errors.New("witness takes a name and a key, and may have a URL")
		}
		return p.addWitness(args[0], args[1])
	case "group":
		if len(args) < 3 {
			return errors.New("group takes a name, all, any or a number, and one or more members")
		}
		return p.addGroup(args[0], args[1], args[2:], listed)
	case "quorum":
		if len(args) != 1 {
			return errors.New("quorum takes one name")
		}
		return p.setQuorum(args[0])
	}
	return fmt.Errorf("%.40q is not known; there are log, witness, group and quorum", words[0])
}

func (p *TrustPolicy) addLog(vkey string) error {
	name, key, err := ParseVKey(vkey)
	if err != nil {
		return err
	}
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return err
	}
	for _, l := range p.logs {
		if l.key.Equal(key) {
			return fmt.Errorf("the key of the log %s is listed twice", name)
		}
	}
	if len(p.logs) == maxPolicyNames {
		return fmt.Errorf("there are more than %d logs", maxPolicyNames)
	}
	p.logs = append(p.logs, policyLog{verifier, key})
	return nil
}

func (p *TrustPolicy) addWitness(name, vkey string) error {
	cosigner, err := ParseCosigner(vkey)
	if err != nil {
		return err
	}
	for _, w := range p.witnesses {
		if w.cosigner.key.Equal(cosigner.key) {
			return fmt.Errorf("the key of the witness %s is listed twice", name)
		}
	}
	if err := p.define(name, policyMember{witness: len(p.witnesses)}); err != nil {
		return err
	}
	p.witnesses = append(p.witnesses, policyWitness{name, cosigner})
	return nil
}

func (p *TrustPolicy) addGroup(name, threshold string, names []string, listed map[string]bool) error {
	g := policyMember{witness: -1, names: names}
	switch threshold {
	case "all":
		g.need = len(names)
	case "any":
		g.need = 1
	default:
		n, err := strconv.Atoi(threshold)
		if err != nil || strconv.Itoa(n) != threshold || n < 1 || n > len(names) {
			return fmt.Errorf("group %s: %.20q is not all, any or a number from 1 to %d", name, threshold, len(names))
		}
		g.need = n
	}
	for _, member := range names {
		if _, ok := p.members[member]; !ok {
			return fmt.Errorf("group %s: %.80q is not defined on a line before", name, member)
		}
		if listed[member] {
			return fmt.Errorf("group %s: %s is already a member of a group; each may be listed once", name, member)
		}
		listed[member] = true
	}
	return p.define(name, g)
}

func (p *TrustPolicy) define(name string, m policyMember) error {
	switch _, dup := p.members[name]; {
	case name == quorumNone:
		return errors.New("the name none is reserved")
	case dup:
		return fmt.Errorf("%.80q is defined twice", name)
	case len(p.members) == maxPolicyNames:
		return fmt.Errorf("there are more than %d witnesses and groups", maxPolicyNames)
	}
	p.members[name] = m
	return nil
}

func (p *TrustPolicy) setQuorum(name string) error {
	if p.quorum != "" {
		return errors.New("there is a second quorum line; keep one")
	}
	if _, ok := p.members[name]; !ok && name != quorumNone {
		return fmt.Errorf("the quorum %.80q is not defined on a line before", name)
	}
	p.quorum = name
	return nil
}

// HasLogs reports whether the policy names a log. One that does not needs the
// log's key from elsewhere: see WithLog.
func (p *TrustPolicy) HasLogs() bool { return len(p.logs) > 0 }

// WithLog adds a log's verifier key to a copy of the policy.
func (p *TrustPolicy) WithLog(vkey string) (*TrustPolicy, error) {
	c := *p
	c.logs = slices.Clone(p.logs)
	if err := c.addLog(vkey); err != nil {
		return nil, err
	}
	return &c, nil
}

// OpenCheckpoint checks a signed checkpoint: its shape, that one of the
// policy's logs signed it under its own name, and that the quorum of witnesses
// cosigned it. It returns what it states and the cosignatures that are valid.
// Signatures of unknown keys are ignored, up to 16 signatures in all; an
// invalid one of a known key is an error.
func (p *TrustPolicy) OpenCheckpoint(signed []byte) (TreeHead, []Cosignature, error) {
	if err := checkNoteShape(signed); err != nil {
		return TreeHead{}, nil, err
	}
	if !strictSignatures(signed) {
		return TreeHead{}, nil, fmt.Errorf("%w: a signature is not strict base64", ErrNoteMalformed)
	}
	head, err := ReadTreeHead(signed)
	if err != nil {
		return TreeHead{}, nil, fmt.Errorf("%w: %w", ErrNoteMalformed, err)
	}
	verifiers := make([]note.Verifier, 0, len(p.logs)+len(p.witnesses))
	names := make([]string, 0, len(p.logs))
	for _, l := range p.logs {
		names = append(names, l.verifier.Name())
		verifiers = append(verifiers, l.verifier)
	}
	if !slices.Contains(names, head.Origin) {
		return TreeHead{}, nil, fmt.Errorf("%w: it is a checkpoint of the log %q, and the trusted key is that of %q", ErrNoteUnsigned, head.Origin, strings.Join(names, `", "`))
	}
	for _, w := range p.witnesses {
		verifiers = append(verifiers, w.cosigner)
	}
	n, err := note.Open(signed, note.VerifierList(verifiers...))
	if err != nil {
		return TreeHead{}, nil, fmt.Errorf("%w: %w", ErrNoteUnsigned, err)
	}
	if n.Text != head.Text() {
		return TreeHead{}, nil, fmt.Errorf("%w: its text is not a checkpoint", ErrNoteMalformed)
	}
	return p.judge(head, n.Sigs)
}

func (p *TrustPolicy) judge(head TreeHead, sigs []note.Signature) (TreeHead, []Cosignature, error) {
	signed := false
	cosigned := make([]bool, len(p.witnesses))
	var list []Cosignature
	for _, sig := range sigs {
		for _, l := range p.logs {
			signed = signed || sig.Name == head.Origin && l.verifier.Name() == sig.Name && l.verifier.KeyHash() == sig.Hash
		}
		for i, w := range p.witnesses {
			if w.cosigner.name == sig.Name && w.cosigner.hash == sig.Hash {
				cosigned[i] = true
				list = append(list, cosignatureOf(sig))
			}
		}
	}
	if !signed {
		return TreeHead{}, nil, fmt.Errorf("%w: the log %q did not sign it", ErrNoteUnsigned, head.Origin)
	}
	if p.quorum != quorumNone && !p.met(p.quorum, cosigned) {
		return TreeHead{}, nil, fmt.Errorf("%w: the quorum %s of the policy is not met: %d of its %d witnesses cosigned", ErrNoteUnsigned, p.quorum, len(list), len(p.witnesses))
	}
	return head, list, nil
}

// met reports whether a witness or group has witnessed. Groups refer to what
// was defined before them, so there are no circles.
func (p *TrustPolicy) met(name string, cosigned []bool) bool {
	m := p.members[name]
	if m.witness >= 0 {
		return cosigned[m.witness]
	}
	n := 0
	for _, member := range m.names {
		if p.met(member, cosigned) {
			n++
		}
	}
	return n >= m.need
}
