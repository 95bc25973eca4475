package auditlog

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// Keyring holds the keys of a log by key id: MAC keys (K_0) and Ed25519 keys.
// Its file is a JWK set: an `oct` key has alg HS256 and use `audit-mac`, an
// `OKP` key has curve Ed25519 and alg EdDSA. Which algorithm a key id stands
// for is decided here and never by a record. It is safe for concurrent use.
type Keyring struct {
	mu   sync.RWMutex
	path string // "" if it was never in a file
	name string
	mac  []macEntry
	sign []signEntry
}

type macEntry struct {
	kid string
	key []byte
}

type signEntry struct {
	kid     string
	public  ed25519.PublicKey
	private ed25519.PrivateKey // nil in a keyring of public keys
}

// PublicKey is an Ed25519 key that checkpoints are verified with.
type PublicKey struct {
	KeyID string
	Key   ed25519.PublicKey
}

const (
	macUse        = "audit-mac"
	logNameMember = "log_name"
	macKeySize    = 32
	maxKeyFile    = 1 << 20
)

// GenerateKeyring makes a keyring with a random MAC key and a random Ed25519
// key, both under keyID. name is the log name they are meant for; it may be
// empty and decides nothing.
func GenerateKeyring(keyID, name string) (*Keyring, error) {
	if !ValidKeyID(keyID) {
		return nil, fmt.Errorf("key id %q is not 1 to 64 of a-z, 0-9, _ and -", keyID)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Keyring{
		name: name,
		mac:  []macEntry{{keyID, randomBytes(macKeySize)}},
		sign: []signEntry{{keyID, public, private}},
	}, nil
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	// crypto/rand.Read never returns an error; the runtime stops the process
	// if the system has no randomness.
	_, _ = rand.Read(b)
	return b
}

// LoadKeyring reads a keyring file. A file with private keys that everybody
// may read, or others may write, is refused.
func LoadKeyring(path string) (*Keyring, error) {
	return keyFile{fsys.OS(), path}.load()
}

// LoadOrCreateKeyring reads a keyring file, or makes one with a random MAC key
// and Ed25519 key under keyID: mode 0600, in a folder of mode 0700. Processes
// that come at the same time get the same keys.
func LoadOrCreateKeyring(path, keyID, name string) (*Keyring, error) {
	file := keyFile{fsys.OS(), path}
	k, err := file.load()
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	err = file.locked(func() error {
		if k, err = file.load(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if k, err = GenerateKeyring(keyID, name); err != nil {
			return err
		}
		k.path = path
		return file.store(k)
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Save writes the keyring to a new file of mode 0600. It replaces nothing.
func (k *Keyring) Save(path string) error {
	file := keyFile{fsys.OS(), path}
	return file.locked(func() error {
		if _, err := file.fs.Lstat(path); err == nil {
			return fmt.Errorf("%s exists already; move it elsewhere first", path)
		}
		k.mu.Lock()
		k.path = path
		k.mu.Unlock()
		return file.store(k)
	})
}

// Name is the log name the keys were made for, or "".
func (k *Keyring) Name() string { return k.name }

// MACKey returns the MAC key K_0 of a key id.
func (k *Keyring) MACKey(kid string) ([]byte, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for _, e := range k.mac {
		if e.kid == kid {
			return bytes.Clone(e.key), true
		}
	}
	return nil, false
}

// SigningKey returns the private Ed25519 key of a key id.
func (k *Keyring) SigningKey(kid string) (ed25519.PrivateKey, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for _, e := range k.sign {
		if e.kid == kid && e.private != nil {
			return e.private, true
		}
	}
	return nil, false
}

// PublicKeys lists the Ed25519 public keys, in the order of the file.
func (k *Keyring) PublicKeys() []PublicKey {
	k.mu.RLock()
	defer k.mu.RUnlock()
	keys := make([]PublicKey, len(k.sign))
	for i, e := range k.sign {
		keys[i] = PublicKey{e.kid, e.public}
	}
	return keys
}

// MACKeyIDs lists the key ids that have a MAC key, in the order of the file.
func (k *Keyring) MACKeyIDs() []string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	ids := make([]string, len(k.mac))
	for i, e := range k.mac {
		ids[i] = e.kid
	}
	return ids
}

// extend adds keys under a new key id, in memory and in the file: if mac is
// set a random MAC key, and the Ed25519 key of the old id, so that a third
// party who knows the public key knows the new incarnation's checkpoints. Ids
// that exist are kept.
func (k *Keyring) extend(oldID, newID string, mac bool) error {
	if k.path == "" {
		_, err := k.add(oldID, newID, mac)
		return err
	}
	file := keyFile{fsys.OS(), k.path}
	return file.locked(func() error {
		now, err := file.load()
		if err != nil {
			return err
		}
		changed, err := now.add(oldID, newID, mac)
		if err == nil && changed {
			err = file.store(now)
		}
		if err != nil {
			return err
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.mac, k.sign = now.mac, now.sign
		return nil
	})
}

// refresh takes in what other processes added to the file since it was read.
func (k *Keyring) refresh() error {
	if k.path == "" {
		return nil
	}
	now, err := keyFile{fsys.OS(), k.path}.load()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mac, k.sign = now.mac, now.sign
	return nil
}

// rotate adds new random keys under a new id, in memory and in the file: an
// Ed25519 key and, if mac is set, a MAC key. An id that exists is an error.
func (k *Keyring) rotate(newID string, mac bool) error {
	_, hasMAC := k.MACKey(newID)
	if _, hasKey := k.SigningKey(newID); hasKey || hasMAC {
		return fmt.Errorf("there are keys %q already; choose another key id", newID)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	add := func(to *Keyring) {
		if mac {
			to.mac = append(to.mac, macEntry{newID, randomBytes(macKeySize)})
		}
		to.sign = append(to.sign, signEntry{newID, private.Public().(ed25519.PublicKey), private})
	}
	if k.path == "" {
		k.mu.Lock()
		defer k.mu.Unlock()
		add(k)
		return nil
	}
	file := keyFile{fsys.OS(), k.path}
	return file.locked(func() error {
		now, err := file.load()
		if err != nil {
			return err
		}
		if _, ok := now.SigningKey(newID); ok {
			return fmt.Errorf("there are keys %q already; choose another key id", newID)
		}
		add(now)
		if err := file.store(now); err != nil {
			return err
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.mac, k.sign = now.mac, now.sign
		return nil
	})
}

// erase takes the MAC key of an id out of the keyring and its file.
func (k *Keyring) erase(keyID string) error {
	if _, ok := k.MACKey(keyID); !ok {
		return nil
	}
	named := func(e macEntry) bool { return e.kid == keyID }
	if k.path != "" {
		file := keyFile{fsys.OS(), k.path}
		err := file.locked(func() error {
			now, err := file.load()
			if err != nil {
				return err
			}
			now.mac = slices.DeleteFunc(now.mac, named)
			return file.store(now)
		})
		if err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mac = slices.DeleteFunc(k.mac, named)
	return nil
}

func (k *Keyring) add(oldID, newID string, mac bool) (changed bool, err error) {
	_, hasMAC := k.MACKey(newID)
	_, hasKey := k.SigningKey(newID)
	private, ok := k.SigningKey(oldID)
	if !ok && !hasKey {
		if _, private, err = ed25519.GenerateKey(rand.Reader); err != nil {
			return false, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if mac && !hasMAC {
		k.mac = append(k.mac, macEntry{newID, randomBytes(macKeySize)})
		changed = true
	}
	if !hasKey {
		k.sign = append(k.sign, signEntry{newID, private.Public().(ed25519.PublicKey), private})
		changed = true
	}
	return changed, nil
}

// keyFile is a keyring's file.
type keyFile struct {
	fs   fsys.FS
	path string
}

func (f keyFile) load() (*Keyring, error) {
	in, err := f.fs.OpenFile(f.path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	info, err := in.Stat()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	data := make([]byte, min(info.Size(), maxKeyFile))
	n, err := in.ReadAt(data, 0)
	if err != nil && err != io.EOF {
		return nil, errors.Join(err, in.Close())
	}
	if err := in.Close(); err != nil {
		return nil, err
	}
	k, err := parseKeyring(data[:n])
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", f.path, err)
	}
	k.path = f.path
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o027 != 0 && k.secret() {
		return nil, fmt.Errorf("key file %s has mode %04o, so others can read or change its private keys; run `chmod 600 %s`", f.path, mode, f.path)
	}
	return k, nil
}

// secret reports whether the keyring holds anything that must stay private.
func (k *Keyring) secret() bool {
	for _, e := range k.sign {
		if e.private != nil {
			return true
		}
	}
	return len(k.mac) > 0
}

func (f keyFile) store(k *Keyring) error {
	data, err := k.encode()
	if err != nil {
		return err
	}
	tmp := f.path + ".tmp"
	out, err := f.fs.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = out.WriteAt(data, 0)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	if err := f.fs.Rename(tmp, f.path); err != nil {
		return err
	}
	return f.fs.SyncDir(filepath.Dir(f.path))
}

// locked runs do while holding a lock that other processes respect.
func (f keyFile) locked(do func() error) error {
	lock, err := f.fs.OpenFile(f.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	err = lock.Lock()
	if err == nil {
		err = do()
	}
	// Closing the file gives the lock back.
	return errors.Join(err, lock.Close())
}

func parseKeyring(data []byte) (*Keyring, error) {
	set, err := jwk.Parse(data)
	if err != nil {
		// The library's error may quote the file.
		return nil, errors.New("it is not a JWK set; restore it from a copy, or make one with `mcp-audit keygen`")
	}
	k := new(Keyring)
	for i := range set.Len() {
		key, _ := set.Key(i)
		if !ValidKeyID(key.KeyID()) {
			return nil, fmt.Errorf("key %d: its kid %q is not 1 to 64 of a-z, 0-9, _ and -", i+1, key.KeyID())
		}
		if err := k.parseKey(key); err != nil {
			return nil, fmt.Errorf("key %q: %w", key.KeyID(), err)
		}
	}
	return k, nil
}

func (k *Keyring) parseKey(key jwk.Key) error {
	kid, alg := key.KeyID(), key.Algorithm().String()
	switch key.KeyType() {
	case jwa.OctetSeq:
		var raw []byte
		if err := key.Raw(&raw); err != nil || len(raw) < minSecret {
			return fmt.Errorf("a MAC key needs %d bytes or more", minSecret)
		}
		if alg != jwa.HS256.String() || key.KeyUsage() != macUse {
			return fmt.Errorf("an oct key needs alg HS256 and use %s", macUse)
		}
		if _, dup := k.MACKey(kid); dup {
			return errors.New("there are two oct keys of this kid")
		}
		k.mac = append(k.mac, macEntry{kid, raw})
	case jwa.OKP:
		if alg != jwa.EdDSA.String() {
			return errors.New("an OKP key needs alg EdDSA")
		}
		e := signEntry{kid: kid}
		var raw any
		if err := key.Raw(&raw); err != nil {
			return errors.New("it is not an Ed25519 key")
		}
		switch v := raw.(type) {
		case ed25519.PrivateKey:
			e.private, e.public = v, v.Public().(ed25519.PublicKey)
		case ed25519.PublicKey:
			e.public = v
		default:
			return errors.New("it is not an Ed25519 key")
		}
		for _, other := range k.sign {
			if other.kid == kid {
				return errors.New("there are two OKP keys of this kid")
			}
		}
		k.sign = append(k.sign, e)
		if name, ok := key.Get(logNameMember); ok && k.name == "" {
			k.name, _ = name.(string)
		}
	default:
		return fmt.Errorf("unknown key type %s; use oct or OKP", key.KeyType())
	}
	return nil
}

func (k *Keyring) encode() ([]byte, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	set := jwk.NewSet()
	add := func(kid string, raw any, members map[string]any) error {
		key, err := jwk.FromRaw(raw)
		if err != nil {
			return err
		}
		members[jwk.KeyIDKey] = kid
		for name, value := range members {
			if err := key.Set(name, value); err != nil {
				return err
			}
		}
		return set.AddKey(key)
	}
	for _, e := range k.mac {
		if err := add(e.kid, e.key, map[string]any{jwk.AlgorithmKey: jwa.HS256, jwk.KeyUsageKey: macUse}); err != nil {
			return nil, err
		}
	}
	for _, e := range k.sign {
		members := map[string]any{jwk.AlgorithmKey: jwa.EdDSA, jwk.KeyUsageKey: "sig"}
		if k.name != "" {
			members[logNameMember] = k.name
		}
		var raw any = e.public
		if e.private != nil {
			raw = e.private
		}
		if err := add(e.kid, raw, members); err != nil {
			return nil, err
		}
	}
	data, err := json.MarshalIndent(set, "", "  ")
	return append(data, '\n'), err
}
