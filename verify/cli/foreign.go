package cli

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/legacy"
)

// foreignLog is a log of another system.
type foreignLog struct {
	logFiles
	format   legacy.Format
	database bool
}

// foreign tells whether the files of a log are those of another system; nil if
// they are not. A database of another product of any kind is left to the
// reader of this one's.
func foreign(ctx context.Context, log logFiles) (*foreignLog, error) {
	for _, path := range log.files {
		if isSegment(path) {
			return nil, nil // it has a name of ours, and may be compressed meanwhile
		}
		f := &foreignLog{logFiles: log}
		var err error
		if f.database, err = isSQLiteFile(path); err != nil {
			return nil, err
		}
		if !f.database {
			f.format, err = legacy.Detect(ctx, source(path, segmentLimits{most: defaultMaxSegment}))
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", path, err)
			}
			if f.format == legacy.FormatNone {
				if empty(path) {
					continue
				}
				return nil, nil
			}
			return f, nil
		}
		found, err := legacy.DetectDatabase(ctx, path)
		switch {
		case err != nil, !found:
			return nil, nil //nolint:nilerr // one that cannot be read is judged as one of ours
		case len(log.files) > 1:
			return nil, usage("%s is a database of another system; give it alone", path)
		}
		f.format = legacy.FormatP4ST4S
		return f, nil
	}
	return nil, nil
}

func empty(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() == 0
}

// isSQLiteFile tells a SQLite database by its first bytes.
func isSQLiteFile(path string) (bool, error) {
	const magic = "SQLite format 3\x00"
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	head := make([]byte, len(magic))
	n, err := f.ReadAt(head, 0)
	if n < len(magic) {
		// Shorter, or a folder: not a database, whatever it is.
		err = nil
	}
	return string(head[:n]) == magic, errors.Join(err, f.Close())
}

func (f *foreignLog) sources() []auditlog.Source {
	list := make([]auditlog.Source, len(f.files))
	for i, path := range f.files {
		list[i] = source(path, segmentLimits{most: defaultMaxSegment})
	}
	return list
}

// verify checks the log of another system.
func (f *foreignLog) verify(cmd *cobra.Command, flags *verifyFlags) (*legacy.Report, error) {
	opts := legacy.Options{Require: legacy.Require(flags.require), Strict: flags.opts.Strict, MaxLine: int(flags.maxLine), Anchors: flags.opts.Anchors}
	var err error
	if opts.Keys, err = foreignKeys(flags.keys, flags.keyID); err != nil {
		return nil, err
	}
	if flags.pub != "" {
		if key, err := hex.DecodeString(flags.pub); err == nil && len(key) == ed25519.PublicKeySize {
			opts.Keys.Public = append(opts.Keys.Public, key)
		} else if _, key, err := auditlog.ParseVKey(flags.pub); err == nil {
			opts.Keys.Public, opts.VKeys = append(opts.Keys.Public, key), []string{flags.pub}
		} else {
			return nil, err
		}
	}
	opts.Sealed = sealedBeside(f.active())
	if f.database {
		if len(opts.Anchors) > 0 {
			return nil, usage("an anchor is over the lines of a file, and %s is a database", f.active())
		}
		return legacy.VerifyDatabase(cmd.Context(), f.active(), opts)
	}
	return legacy.Verify(cmd.Context(), f.format, f.sources(), opts)
}

// foreignKeys are the keys of --keys and of the environment. Besides a JWK set
// the file may be one that a gateway made: key.hex (HMAC, hexadecimal), and 32
// bytes of an Ed25519 key, a public one if the name ends in .pub.
func foreignKeys(file, keyID string) (legacy.Keys, error) {
	keys := legacy.Keys{KeyID: keyID, Secret: secretFromEnvironment()}
	if file == "" {
		return keys, nil
	}
	data, err := readNote(file)
	if err != nil {
		return keys, fmt.Errorf("reading the keys: %w", err)
	}
	text := trimmed(data)
	secret, err := hex.DecodeString(text)
	switch {
	case err == nil && len(secret) >= 16:
		keys.Secret = []byte(text)
	case len(data) == ed25519.PublicKeySize && filepath.Ext(file) == ".pub":
		keys.Public = []ed25519.PublicKey{data}
	case len(data) == ed25519.SeedSize:
		keys.Public = []ed25519.PublicKey{ed25519.NewKeyFromSeed(data).Public().(ed25519.PublicKey)}
	default:
		if keys.Ring, err = auditlog.LoadKeyring(file); err != nil {
			return keys, fmt.Errorf("reading the keys: %w", err)
		}
	}
	return keys, nil
}

// sealedBeside names a file that only lies beside a log of this product, or "".
func sealedBeside(path string) string {
	for _, suffix := range []string{".state", ".runs"} {
		if _, err := os.Lstat(path + suffix); err == nil {
			return path + suffix
		}
	}
	return ""
}

// signForeign makes a checkpoint over the lines of a log of another system.
func signForeign(cmd *cobra.Command, log *foreignLog, keysFile, origin string) ([]byte, error) {
	if log.database {
		return nil, fmt.Errorf("%s is a database of another system, which has no lines to sign; start a log that names it with `mcp-audit import`", log.active())
	}
	if keysFile == "" {
		keysFile = keysBeside(log.active())
	}
	keys, err := auditlog.LoadKeyring(keysFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no key file %s to sign with; make one with `mcp-audit keygen --out FILE`, and give it with --keys", keysFile)
	} else if err != nil {
		return nil, fmt.Errorf("reading the keys: %w", err)
	}
	key, ok := signingKey(keys)
	if !ok {
		return nil, fmt.Errorf("the key file %s has no private Ed25519 key", keysFile)
	}
	if origin == "" {
		origin = "legacy/" + safeName(filepath.Base(log.active()))
	}
	sum, err := legacy.SumLines(cmd.Context(), log.sources(), 0)
	if err != nil {
		return nil, err
	}
	return legacy.Sign(sum.Tree, origin, key)
}

func signingKey(keys *auditlog.Keyring) (ed25519.PrivateKey, bool) {
	for _, k := range keys.PublicKeys() {
		if key, ok := keys.SigningKey(k.KeyID); ok {
			return key, true
		}
	}
	return nil, false
}
