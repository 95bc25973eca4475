package caddymodule

import (
	"cmp"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/lestrrat-go/jwx/v2/jwk"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// LogConfig describes one audit log: where it lies, what it is sealed with and
// what happens when it cannot be written.
type LogConfig struct {
	// The store: `jsonl`, a file with one record a line, or `sqlite`, a database
	// with one record a row. Default: jsonl.
	Output string `json:"output,omitempty"`

	// The file of the log. Default: `mcp-audit/audit.jsonl` (or `audit.db`) in
	// Caddy's data directory. One log per folder; the folder is made with mode 0700, the
	// file with 0600.
	Path string `json:"path,omitempty"`

	// When a database flushes a commit: `full`, each one, so that every
	// acknowledged record survives a power failure whatever the durability is, or
	// `normal`, as the durability says. Only with sqlite. Default: full.
	Synchronous string `json:"synchronous,omitempty"`

	// The name of the log, part of its origin. Default: `mcp-audit/` and the
	// host name. It counts only when a new log is made.
	Name string `json:"name,omitempty"`

	// The Ed25519 key that signs checkpoints: a JWK or a PKCS #8 PEM text,
	// normally by placeholder, as in `{file./run/secrets/mcp-audit.jwk}`.
	// Default: the one in the key file.
	Key string `json:"key,omitempty"`

	// The id under which the keys are named in records: 1 to 64 of a-z, 0-9,
	// `_` and `-`. Default: k1.
	KeyID string `json:"key_id,omitempty"`

	// The secret that record MACs are derived from, normally by placeholder;
	// 16 bytes or more. Default: the environment's MCP_AUDIT_SIGNING_SECRET,
	// then AUDIT_SECRET, else the random key in the key file.
	Secret string `json:"secret,omitempty"`

	// The key file, a JWK set, made on first use with mode 0600. Default:
	// `keys.json` beside the log.
	KeysFile string `json:"keys_file,omitempty"`

	// What becomes of MAC keys: `static`, they stay, or `evolving`, the key of
	// each 15 minutes or 50 000 records is erased when they are over. The log is
	// then written by this process alone, and keys_file must exist; keep a copy of
	// it elsewhere, since its MAC key is erased. It counts when a new log is made.
	// Default: static.
	KeyMode string `json:"key_mode,omitempty"`

	// When a record counts as written: `written` (handed to the operating
	// system; on disk within a second) or `durable` (on disk). Default: written.
	Durability string `json:"durability,omitempty"`

	// What happens to a call that cannot be recorded: `block` (refused),
	// `allow` (forwarded and counted) or `allow_reads` (only tools/call is
	// refused). Default: block.
	OnFailure string `json:"on_failure,omitempty"`

	// A checkpoint is signed after this many records. Default: 1000; -1 is off.
	CheckpointRecords int `json:"checkpoint_records,omitempty"`

	// A checkpoint is signed after this time, if anything is new. Default:
	// 10s; -1 is off.
	CheckpointInterval caddy.Duration `json:"checkpoint_interval,omitempty"`

	// The log's file is closed, and a new one begun, when it has this many
	// bytes; 4096 or more. Default: 0, any size.
	RotateSize int64 `json:"rotate_size,omitempty"`

	// The log's file is closed at the end of each `hour` or `day` (UTC) in which
	// it got a record. Default: never.
	RotateEvery string `json:"rotate_every,omitempty"`

	// The oldest closed files beyond this number are deleted. The log says so
	// first. Default: 0, all are kept.
	KeepFiles int `json:"keep_files,omitempty"`

	// Files that were closed longer ago are deleted. The log says so first.
	// Default: 0, they are kept.
	KeepFor caddy.Duration `json:"keep_for,omitempty"`

	// Closed files are stored compressed: `gzip`. Default: as they are.
	Compress string `json:"compress,omitempty"`

	// Who starts and stops the log, in its start and stop records. Default:
	// caddy. The shim sets it, with its process and its parent's.
	Actor string `json:"actor,omitempty"`

	// Where checkpoints are taken to, so that not even this machine can rewrite
	// what they cover. Default: nowhere.
	Anchors []AnchorConfig `json:"anchors,omitempty"`

	// `v2` also writes each finished operation and event as an entry in the
	// Integrity v2 form of P4ST4S/mcp-audit, to the log's path with `.v2.jsonl`
	// behind it: a best-effort copy outside of the log's chain. It needs a
	// secret. Default: no copy.
	Compat string `json:"compat,omitempty"`

	// What records only commit to, with the value beside them, so that it can be
	// disclosed or erased alone: `payload` (params, result and error), those
	// members alone, `principal`, `mcp_name`. Default: nothing.
	Commit []string `json:"commit,omitempty"`

	// Where the options stand in the Caddyfile, for error messages. The
	// Caddyfile adapter writes it.
	Source map[string]string `json:"source,omitempty"`
}

// The values of LogConfig.OnFailure.
const (
	onFailureBlock      = "block"
	onFailureAllow      = "allow"
	onFailureAllowReads = "allow_reads"
)

// The environment variables a secret may come from, first one wins.
var secretVariables = []string{"MCP_AUDIT_SIGNING_SECRET", "AUDIT_SECRET"}

// logSettings is a LogConfig with its defaults filled in and its placeholders
// resolved. The secrets stay in unexported fields.
type logSettings struct {
	LogConfig
	name       string // of the log in the configuration
	secret     []byte
	signingKey ed25519.PrivateKey
	durability auditlog.Durability
	rotation   auditlog.Rotation
	commit     auditlog.Commit
	keyMode    auditlog.KeyMode
	anchors    []AnchorConfig // with placeholders resolved
	identity   auditlog.Hash  // of what may not change while the log is open
	digest     auditlog.Hash  // of the configuration with secrets replaced
	logger     *zap.Logger

	// policies are the digests of the policies that decide for this log, by
	// the name of the server in front of which they stand.
	policies map[string][]string
}

// resolve checks a log's configuration and resolves its placeholders. It
// creates and opens nothing.
func (c LogConfig) resolve(name string, logger *zap.Logger) (*logSettings, error) {
	s := &logSettings{LogConfig: c, name: name, logger: logger}
	steps := []func() error{s.resolveStore, s.resolveKeys, s.resolvePolicy, s.resolveRotation, s.resolveAnchors, s.resolveCompat, s.resolveCommit}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return s, s.seal()
}

// fault makes an error that names the log, the option and its place.
func (s *logSettings) fault(option string, err error) error {
	at := ""
	if src := s.Source[option]; src != "" {
		at = ", at " + src
	}
	return fmt.Errorf("mcp_audit: log %q: %s: %w%s", s.name, option, err, at)
}

func (s *logSettings) resolveStore() error {
	file := "audit.jsonl"
	switch s.Output {
	case "", storeJSONL:
		s.Output = storeJSONL
	case storeSQLite:
		file = "audit.db"
	default:
		return s.fault("output", fmt.Errorf("unknown store %q; use %s or %s", s.Output, storeJSONL, storeSQLite))
	}
	if err := s.resolveSQLite(); err != nil {
		return err
	}
	path, err := s.placeholder("output", s.Path)
	if err != nil {
		return err
	}
	if path == "" {
		path = filepath.Join(caddy.AppDataDir(), "mcp-audit", file)
	}
	if s.Path, err = resolvePath(path); err != nil {
		return s.fault("output", err)
	}
	keys, err := s.placeholder("keys", s.KeysFile)
	if err != nil {
		return err
	}
	if keys == "" {
		keys = filepath.Join(filepath.Dir(s.Path), "keys.json")
	}
	if s.KeysFile, err = filepath.Abs(keys); err != nil {
		return s.fault("keys", err)
	}
	return nil
}

func (s *logSettings) resolveKeys() error {
	if s.KeyID == "" {
		s.KeyID = "k1"
	}
	if !auditlog.ValidKeyID(s.KeyID) {
		return s.fault("key_id", fmt.Errorf("%q is not 1 to 64 of a-z, 0-9, _ and -", s.KeyID))
	}
	secret, err := s.placeholder("secret", s.Secret)
	if err != nil {
		return err
	}
	from := "secret"
	for _, name := range secretVariables {
		if secret == "" {
			secret, from = os.Getenv(name), "environment variable "+name
		}
	}
	if secret != "" {
		s.secret = []byte(secret)
		if err := auditlog.CheckSecret(s.secret); err != nil {
			return s.fault(from, err)
		}
	} else if s.Secret != "" {
		return s.fault("secret", errors.New("it is empty"))
	}
	switch s.KeyMode {
	case "", "static":
	case "evolving":
		s.keyMode = auditlog.Evolving
		if s.secret != nil {
			return s.fault("key_mode", fmt.Errorf("evolving keys cannot come from a secret (%s), because it stays; remove it and use a key file", from))
		}
	default:
		return s.fault("key_mode", fmt.Errorf("unknown value %q; use static or evolving", s.KeyMode))
	}
	key, err := s.placeholder("key", s.Key)
	if err != nil || key == "" {
		return err
	}
	if s.signingKey, err = parseSigningKey(key); err != nil {
		return s.fault("key", err)
	}
	return nil
}

func (s *logSettings) resolvePolicy() error {
	switch s.Durability {
	case "", "written":
		s.Durability = "written"
	case "durable":
		s.durability = auditlog.Durable
	default:
		return s.fault("durability", fmt.Errorf("unknown value %q; use written or durable", s.Durability))
	}
	switch s.OnFailure {
	case "":
		s.OnFailure = onFailureBlock
	case onFailureBlock, onFailureAllow, onFailureAllowReads:
	default:
		return s.fault("on_failure", fmt.Errorf("unknown value %q; use block, allow or allow_reads", s.OnFailure))
	}
	if s.CheckpointRecords < -1 || s.CheckpointInterval < -1 {
		return s.fault("checkpoint", errors.New("use a positive number and time, or off"))
	}
	return nil
}

// seal computes what later configurations are compared with.
func (s *logSettings) seal() error {
	s.identity = fingerprint([]byte(s.Output), []byte(s.Synchronous), []byte(s.Path), []byte(s.Name), []byte(s.KeysFile), []byte(s.keyMode.String()), s.secret, []byte(s.Compat))
	shown := s.LogConfig
	shown.Source, shown.Actor = nil, ""
	for _, secret := range []*string{&shown.Secret, &shown.Key} {
		if *secret != "" && !isPlaceholder(*secret) {
			*secret = "[REDACTED]"
		}
	}
	text, err := json.Marshal(shown)
	if err != nil {
		return err
	}
	s.digest = fingerprint(text)
	return nil
}

// placeholder resolves the global placeholders of an option's value. One that
// resolves to nothing is an error: an empty key would sign nothing.
func (s *logSettings) placeholder(option, value string) (string, error) {
	out, err := caddy.NewReplacer().ReplaceOrErr(value, true, true)
	if err != nil {
		return "", s.fault(option, fmt.Errorf("%w; set it, or remove the option", err))
	}
	return strings.TrimSpace(out), nil
}

func isPlaceholder(s string) bool {
	return strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}")
}

// auditConfig is what auditlog.Open needs. It creates the key file if there is
// none, so it may run in Start, never in Provision.
func (s *logSettings) auditConfig() (auditlog.Config, error) {
	cfg := auditlog.Config{
		Name:            s.Name,
		Secret:          s.secret,
		KeyID:           s.KeyID,
		SigningKey:      s.signingKey,
		Durability:      s.durability,
		CheckpointEvery: s.CheckpointRecords,
		CheckpointAfter: time.Duration(s.CheckpointInterval),
		Rotation:        s.rotation,
		Commit:          s.commit,
		KeyMode:         s.keyMode,
		ConfigSHA256:    s.digest,
		Version:         version(),
		Actor:           cmp.Or(s.Actor, "caddy"),
		Logger:          s.logger,
	}
	switch {
	case s.keyMode == auditlog.Evolving:
		keys, err := auditlog.LoadKeyring(s.KeysFile)
		if err != nil {
			return auditlog.Config{}, fmt.Errorf("key_mode evolving: %w; make the keys with `mcp-audit keygen --out %s`, and keep a copy elsewhere", err, s.KeysFile)
		}
		cfg.Keys = keys
	case s.secret == nil || s.signingKey == nil:
		keys, err := auditlog.LoadOrCreateKeyring(s.KeysFile, s.KeyID, s.Name)
		if err != nil {
			return auditlog.Config{}, err
		}
		cfg.Keys = keys
	}
	var err error
	if cfg.Store, err = s.store(); err != nil {
		return auditlog.Config{}, err
	}
	return cfg, s.addCopier(&cfg)
}

// parseSigningKey reads an Ed25519 private key from a JWK or a PEM text.
func parseSigningKey(text string) (ed25519.PrivateKey, error) {
	key, err := jwk.ParseKey([]byte(text), jwk.WithPEM(strings.HasPrefix(text, "-----BEGIN")))
	if err != nil {
		// The error of the library may quote the key.
		return nil, errors.New("the value is neither a JWK nor a PKCS #8 PEM private key; make one with `mcp-audit keygen`")
	}
	var private ed25519.PrivateKey
	if err := key.Raw(&private); err != nil {
		return nil, errors.New("the key is not an Ed25519 private key; make one with `mcp-audit keygen`")
	}
	return private, nil
}

// resolvePath makes a path absolute and follows the links of its folder, so
// that two spellings of one file are one log.
func resolvePath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, rest := filepath.Dir(abs), filepath.Base(abs)
	for {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			return "", err
		}
		rest = filepath.Join(filepath.Base(dir), rest)
		dir = filepath.Dir(dir)
	}
}
