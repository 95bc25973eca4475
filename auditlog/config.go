package auditlog

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Durability says when a record is acknowledged.
type Durability int

// The two durabilities.
const (
	// Written: handed to the operating system. It survives the death of the
	// process, not a power failure; it is on the disk within a second.
	Written Durability = iota
	// Durable: on the disk. Records that queue together share one flush.
	Durable
)

// String returns the option's text.
func (d Durability) String() string {
	if d == Durable {
		return "durable"
	}
	return "written"
}

// KeyMode says what becomes of MAC keys.
type KeyMode int

// The two key modes.
const (
	// Static: the MAC key stays where it is. Who gets it can rewrite the past,
	// up to the last anchor.
	Static KeyMode = iota
	// Evolving: the MAC key of an epoch is erased when the epoch ends. Who takes
	// over the machine cannot rewrite the epochs before; to verify them, K_0
	// must have been kept somewhere else.
	Evolving
)

// String returns the option's text.
func (m KeyMode) String() string {
	if m == Evolving {
		return "evolving"
	}
	return "static"
}

// Config is what Open needs. The zero value of each optional field is its
// default.
type Config struct {
	// Store keeps the log's bytes, for example jsonl.New(path, jsonl.Options{}).
	Store Store
	// Name becomes the origin of a new log, followed by "/i0". Default:
	// "mcp-audit/" and the host name. An existing log keeps its origin.
	Name string
	// Secret is the operator's HMAC secret. Record MACs are keyed with a key
	// derived from it and from the key id. nil: the MAC key is in Keys.
	Secret []byte
	// KeyID names the keys in records of a new log. Default: k1.
	KeyID string
	// Keys holds the MAC key, unless there is a Secret, and the Ed25519 key,
	// unless there is a SigningKey.
	Keys *Keyring
	// SigningKey signs checkpoints, in place of the one in Keys.
	SigningKey ed25519.PrivateKey
	// Durability is when records are acknowledged. Default: Written.
	Durability Durability
	// CheckpointEvery is the number of records after which a checkpoint is
	// signed. 0: 1000. Below 0: off.
	CheckpointEvery int
	// CheckpointAfter is the time after which a checkpoint is signed, if
	// anything is new. 0: 10 s. Below 0: off.
	CheckpointAfter time.Duration
	// KeyMode is what becomes of MAC keys. Evolving needs a Store that is held
	// exclusively, and Keys with the MAC key of a new log, without a Secret:
	// when the log is made, that key is erased from the keyring and its file.
	KeyMode KeyMode
	// EpochEvery and EpochAfter end an epoch of the MAC key after so many
	// records, or so much time; with a static key, if anything was recorded in
	// it. 0: 50 000 records and 15 minutes if keys evolve, else an epoch ends
	// with the file.
	// With a static key they protect nothing; they are for who wants to hand
	// out the MAC key of a stretch of the log.
	EpochEvery int
	EpochAfter time.Duration
	// Heartbeat is the silence after which a record says that the writer lives.
	// 0: none.
	Heartbeat time.Duration
	// Rotation closes the log's file and deletes closed ones. Its zero value
	// does neither. The Store must be a SegmentStore.
	Rotation Rotation
	// QueueBytes bounds the records that wait to be written, beside the bound
	// of 4096 records. 0: 64 MiB.
	QueueBytes int
	// ConfigSHA256 is the hash of the effective configuration with its secrets
	// replaced. It goes into the genesis and start records; the zero Hash is
	// left out.
	ConfigSHA256 Hash
	// Import, if not nil, is the log of another system that a new log follows:
	// its genesis names it. It does nothing where there is a log already.
	Import *Imported
	// Copier, if not nil, gets a copy of each intent, outcome and event. The
	// Log closes it; Open, if it fails, does not.
	Copier Copier
	// Commit names the members that records only commit to, with their values
	// beside them. The zero value commits to none. An existing log may change it.
	Commit Commit
	// Observe, if not nil, is told of each batch of records that was written, or
	// could not be. The committer calls it, so it must not block.
	Observe func(BatchReport)
	// Version and Actor go into the start and stop records: the product's
	// version, and who started it.
	Version, Actor string
	// Logger gets diagnostics, never records. nil: none.
	Logger *zap.Logger
	// Now is the clock. nil: time.Now.
	Now func() time.Time
}

// The defaults and bounds of a Config.
const (
	DefaultKeyID           = "k1"
	DefaultCheckpointEvery = 1000
	DefaultCheckpointAfter = 10 * time.Second
	DefaultQueueBytes      = 64 << 20
	DefaultEpochEvery      = 50_000
	DefaultEpochAfter      = 15 * time.Minute
	maxQueue               = 4096
	maxBatchBytes          = 1 << 20
)

// withDefaults checks a configuration and fills in what it leaves open.
func (c Config) withDefaults() (Config, error) {
	if c.Store == nil {
		return c, errors.New("audit log: no store is configured")
	}
	if c.KeyID == "" {
		c.KeyID = DefaultKeyID
	}
	if !ValidKeyID(c.KeyID) {
		return c, fmt.Errorf("audit log %s: key id %q is not 1 to 64 of a-z, 0-9, _ and -", c.Store.Path(), c.KeyID)
	}
	if c.Secret != nil {
		if err := CheckSecret(c.Secret); err != nil {
			return c, fmt.Errorf("audit log %s: %w", c.Store.Path(), err)
		}
	} else if c.Keys == nil {
		return c, fmt.Errorf("audit log %s: neither a secret nor a keyring is configured", c.Store.Path())
	}
	if c.Keys == nil && len(c.SigningKey) != ed25519.PrivateKeySize {
		return c, fmt.Errorf("audit log %s: neither a signing key nor a keyring is configured", c.Store.Path())
	}
	if c.Name == "" {
		c.Name = defaultName()
	}
	if err := checkName(c.Name); err != nil {
		return c, fmt.Errorf("audit log %s: %w", c.Store.Path(), err)
	}
	if c.EpochEvery < 0 || c.EpochAfter < 0 || c.Heartbeat < 0 {
		return c, fmt.Errorf("audit log %s: the length of an epoch or of the silence before a heartbeat is negative", c.Store.Path())
	}
	if err := c.checkRotation(c.Rotation); err != nil {
		return c, err
	}
	if c.KeyMode == Evolving {
		if err := c.checkEvolving(); err != nil {
			return c, fmt.Errorf("audit log %s: %w", c.Store.Path(), err)
		}
		if c.EpochEvery == 0 {
			c.EpochEvery = DefaultEpochEvery
		}
		if c.EpochAfter == 0 {
			c.EpochAfter = DefaultEpochAfter
		}
	}
	if c.CheckpointEvery == 0 {
		c.CheckpointEvery = DefaultCheckpointEvery
	}
	if c.CheckpointAfter == 0 {
		c.CheckpointAfter = DefaultCheckpointAfter
	}
	if c.QueueBytes <= 0 {
		c.QueueBytes = DefaultQueueBytes
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

func (c *Config) checkEvolving() error {
	store, ok := c.Store.(ExclusiveStore)
	switch {
	case !ok || !store.Exclusive():
		return errors.New("keys can evolve only in a log that one process holds; open its store exclusively")
	case c.Secret != nil:
		return errors.New("keys that are derived from a secret cannot evolve, because the secret stays; use a key file")
	case c.Keys == nil:
		return errors.New("keys that evolve need a keyring")
	}
	return nil
}

func (c *Config) checkRotation(r Rotation) error {
	err := r.check()
	if _, ok := c.Store.(SegmentStore); err == nil && !ok && r.rotates() {
		err = errors.New("its store cannot be rotated; use a store of files, or no rotation")
	}
	if err != nil {
		return fmt.Errorf("audit log %s: %w", c.Store.Path(), err)
	}
	return nil
}

// defaultName names a log after its host.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, host)
	return "mcp-audit/" + clean[:min(len(clean), 128)]
}

// checkName checks that a name can stand in an origin, which is also the name
// of a key in signed notes.
func checkName(name string) error {
	if len(name) > 200 {
		return fmt.Errorf("the log name %.20q… is longer than 200 characters", name)
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == '+' || c == '"' || c == '\\' {
			return fmt.Errorf("the log name %q may contain printable ASCII only, without space, plus sign, quote and backslash", name)
		}
	}
	return nil
}

// exampleSecrets are texts that stand in documentation in place of a secret.
var exampleSecrets = [][]byte{
	[]byte("example secret, never use it"),
	[]byte("change-me"), []byte("changeme"), []byte("change_me"), []byte("change-this"), []byte("change this"),
	[]byte("replace-me"), []byte("replace_me"), []byte("replace-with"), []byte("replace with"),
	[]byte("your-secret"), []byte("your_secret"), []byte("your secret"), []byte("your-signing-secret"),
	[]byte("<secret"), []byte("example-secret"), []byte("0123456789abcdef"), []byte("secretsecret"),
}

// minSecret is the length in bytes of the shortest secret that is accepted.
const minSecret = 16

// CheckSecret reports why a secret must not be used: it is blank, shorter than
// 16 bytes, one repeated character or an example from documentation. The error
// never contains the secret.
func CheckSecret(secret []byte) error {
	const remedy = "; set MCP_AUDIT_SIGNING_SECRET to 32 random bytes, for example from `openssl rand -hex 32`"
	trimmed := bytes.TrimSpace(secret)
	switch {
	case len(trimmed) == 0:
		return errors.New("the signing secret is blank" + remedy)
	case len(trimmed) < minSecret:
		return fmt.Errorf("the signing secret has %d bytes, fewer than %d%s", len(trimmed), minSecret, remedy)
	case len(bytes.Trim(trimmed, string(trimmed[:1]))) == 0:
		return errors.New("the signing secret is one repeated character" + remedy)
	}
	lower := bytes.ToLower(trimmed)
	for _, example := range exampleSecrets {
		if bytes.HasPrefix(lower, example) {
			return errors.New("the signing secret is an example from documentation" + remedy)
		}
	}
	return nil
}
