// Package capability names the socket on which a shim waits for the Caddy that
// audits it. The name is derived from a secret that each run of a shim makes
// anew and sends with its requests: whoever knows it can reach that one
// socket and no other, and a name in a directory listing does not tell it.
package capability

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// scheme is the Authorization scheme that carries the capability from the shim
// to the handler. Caddy keeps the values of that header out of its logs.
const scheme = "Mcp-Shim "

// Authorization is the value of the Authorization header for a token.
func Authorization(token string) string { return scheme + token }

// Take removes the capability from a request's headers and returns its token,
// or "" if there is none or more than one. Other credentials stay.
func Take(h http.Header) (token string) {
	var others []string
	found := 0
	for _, value := range h.Values("Authorization") {
		if len(value) > len(scheme) && strings.EqualFold(value[:len(scheme)], scheme) {
			token = strings.TrimSpace(value[len(scheme):])
			found++
			continue
		}
		others = append(others, value)
	}
	if found == 0 {
		return ""
	}
	h.Del("Authorization")
	for _, value := range others {
		h.Add("Authorization", value)
	}
	if found > 1 {
		return ""
	}
	return token
}

// size is the length of a token's secret in bytes.
const size = 32

// New makes a token: 256 random bits in base64url without padding.
func New() string {
	var b [size]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// ErrInvalid is returned for a text that New cannot have made. It never
// contains the text.
var ErrInvalid = errors.New("the request carries no valid shim capability")

// SocketPath is where the shim with this token listens.
func SocketPath(dir, token string) (string, error) {
	secret, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(secret) != size {
		return "", ErrInvalid
	}
	sum := sha256.Sum256([]byte(token))
	return filepath.Join(dir, hex.EncodeToString(sum[:])[:32]+".sock"), nil
}

// DefaultDir is the folder of the sockets where none is configured:
// mcp-audit in $XDG_RUNTIME_DIR, else a folder of the user's own in the
// directory for temporary files.
func DefaultDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "mcp-audit")
	}
	return filepath.Join(os.TempDir(), "mcp-audit-"+strconv.Itoa(os.Getuid()))
}

// CheckDir reports why a folder cannot be trusted with sockets: it must be a
// directory, no link, and nobody but its owner may enter it. The owner must be
// this process's user, unless that is root.
func CheckDir(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("the shim's runtime directory %s: %w", dir, err)
	case !info.IsDir():
		return fmt.Errorf("the shim's runtime directory %s is not a directory", dir)
	case !private(info):
		return fmt.Errorf("the shim's runtime directory %s may be entered by others; run `chmod 700 %s`", dir, dir)
	case !trustedOwner(info, nil):
		return fmt.Errorf("the shim's runtime directory %s belongs to another user; use one of your own", dir)
	}
	return nil
}

// CheckSocket reports why a path is not the socket of a shim that may be
// connected to: folder and socket must belong to one user, who is this
// process's unless that is root, and to nobody else.
func CheckSocket(path string) error {
	dir := filepath.Dir(path)
	if err := CheckDir(dir); err != nil {
		return err
	}
	folder, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("the shim's runtime directory %s: %w", dir, err)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("the shim that sent this request does not listen in " + dir + "; give the shim and mcp_shim the same runtime directory")
	case err != nil:
		return fmt.Errorf("the shim's socket in %s: %w", dir, err)
	case info.Mode().Type() != os.ModeSocket:
		return errors.New("what stands in the place of the shim's socket in " + dir + " is no socket")
	case !private(info):
		return errors.New("the shim's socket in " + dir + " is open to others")
	case !trustedOwner(info, folder):
		return errors.New("the shim's socket in " + dir + " belongs to another user")
	}
	return nil
}
