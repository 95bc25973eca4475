package embedded

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy" // the handler behind mcp_audit

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule" // also registers mcp_audit
	"github.com/caddy-mcp-audit/mcp-audit/shim"
	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
)

// Options say what the embedded Caddy audits and where to.
type Options struct {
	// Dir holds the log, its keys and the little state that Caddy keeps. It is
	// made with mode 0700.
	Dir string
	// ServerID and ClientID are how records name the two ends.
	ServerID, ClientID string
	// MaxBody is the largest message in bytes.
	MaxBody int
	// LogLevel is Caddy's: DEBUG, INFO, WARN or ERROR. It logs to standard error.
	LogLevel string
	// AcceptChainBreak is the reason to go on after the log refused to open;
	// empty: a refusal is final.
	AcceptChainBreak string
	// Config is a Caddyfile, or Caddy's JSON, whose mcp_audit directive is used
	// for the route, and its log for the log; "": the defaults.
	Config string
	// Handler is what lies behind the route.
	Handler http.Handler

	output, logAt, keysAt string // of the log, once they are known
}

// Caddy is the running server. There can be one in a process.
type Caddy struct{ route *route }

// Audit starts Caddy as the shim's options say. It implements
// shim.OpenEmbedded.
func Audit(ctx context.Context, o *shim.Options, handler http.Handler) (shim.Audit, error) {
	return Open(ctx, Options{
		Dir: o.Dir, ServerID: o.ServerID, ClientID: o.ClientID, MaxBody: o.MaxLine,
		LogLevel: o.CaddyLevel(), AcceptChainBreak: o.AcceptChainBreak, Config: o.Config, Handler: handler,
	})
}

// routeURL is the address of the audited route.
const routeURL = "http://localhost/mcp"

// serverName is the server's name in the configuration.
const serverName = "shim"

// taken guards the registrations, which Caddy keeps for the life of a process.
var taken atomic.Bool

// Open starts Caddy. The error is a sentence for the user, with the remedy; if
// the log refused to open, it is that log's.
func Open(ctx context.Context, o Options) (*Caddy, error) {
	if taken.Swap(true) {
		return nil, errors.New("there is an embedded Caddy in this process already")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of the audit log could not be made: %w; set MCP_AUDIT_DIR to a folder you may write", err)
	}
	// Whatever Caddy writes beside the log, it writes there. The child has the
	// environment that this process was started with.
	if err := os.Setenv("XDG_DATA_HOME", filepath.Join(o.Dir, "state")); err != nil {
		return nil, err
	}
	caddy.DefaultStorage.Path = filepath.Join(o.Dir, "state", "caddy")
	caddy.RegisterModule(newTransport(o.Handler))
	cfg, err := o.config()
	if err != nil {
		return nil, err
	}
	err = caddy.Load(cfg, true)
	if err != nil && o.AcceptChainBreak != "" && strings.Contains(err.Error(), refusedPrefix) {
		if err = o.recover(ctx); err == nil {
			err = caddy.Load(cfg, true)
		}
	}
	if err != nil {
		return nil, errors.New(plain(err))
	}
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		return nil, errors.New(plain(err))
	}
	return &Caddy{route: newRoute(app.(*caddyhttp.App).Servers[serverName])}, nil
}

// Chain implements shim.Audit.
func (c *Caddy) Chain() shim.Chain {
	return shim.Chain{
		URL:       routeURL,
		Transport: bridge.Transport{Handler: c.route},
		Unreachable: func(err error) string {
			return fmt.Sprintf("the audit is unavailable, the call was not forwarded: %v; start the server again", err)
		},
	}
}

// Close stops the server and seals the log. Requests must have ended or have
// been cancelled; what still runs when ctx ends is left.
func (c *Caddy) Close(ctx context.Context) error {
	// Exchanges that end by themselves record how; what is left after them is
	// ended by the shutdown.
	ended := c.route.wait(ctx)
	caddymodule.Shutdown(ctx)
	err := caddy.Stop()
	if !ended {
		err = errors.Join(err, errors.New("requests were still running when the shim ended"))
	}
	return err
}

// paths of the log and of its keys.
func (o *Options) log() string  { return filepath.Join(o.Dir, "audit.jsonl") }
func (o *Options) keys() string { return filepath.Join(o.Dir, "keys.json") }

// object is a JSON object of the configuration.
type object = map[string]any

// config is the whole configuration: one audited route.
func (o *Options) config() ([]byte, error) {
	audit, log, err := o.directive()
	if err != nil {
		return nil, err
	}
	o.complete(audit, log)
	proxy := object{
		"handler":   "reverse_proxy",
		"transport": object{"protocol": "mcp_shim"},
		"upstreams": []object{{"dial": "mcpshim/child"}},
	}
	server := object{
		"protocols":       []string{"h1"},
		"automatic_https": object{"disable": true},
		"routes":          []object{{"handle": []object{audit, proxy}}},
		// A client that pauses must not cost it an answer, as a pipe would not.
		"read_idle_timeout": -1, "write_idle_timeout": -1,
	}
	return json.Marshal(object{
		"admin":   object{"disabled": true, "config": object{"persist": false}},
		"logging": object{"logs": object{"default": object{"level": o.LogLevel}}},
		"apps": object{
			"http": object{"grace_period": "1s", "servers": object{serverName: server}},
			// There are no certificates to look after.
			"tls":       object{"disable_storage_clean": true, "disable_ocsp_stapling": true, "disable_storage_check": true},
			"mcp_audit": object{"logs": object{"default": log}},
		},
	})
}

// refusedPrefix begins the text of auditlog.RefusedError. Caddy hands errors
// of apps on as text.
const refusedPrefix = "refusing to write audit log"

// plain takes the sentence for the user out of what Caddy made of an error.
func plain(err error) string {
	text := err.Error()
	if i := strings.Index(text, refusedPrefix); i >= 0 {
		return text[i:]
	}
	return "the audit could not be started: " + text
}

// recover begins a new incarnation of the log.
func (o *Options) recover(ctx context.Context) error {
	if o.output != "jsonl" {
		return errors.New("--accept-chain-break is for logs in JSON lines; for others use `mcp-audit recover`")
	}
	store, err := jsonl.New(o.logAt, jsonl.Options{})
	if err != nil {
		return err
	}
	cfg := auditlog.Config{Store: store, KeyID: auditlog.DefaultKeyID, Actor: "mcp-audit-shim"}
	for _, name := range []string{"MCP_AUDIT_SIGNING_SECRET", "AUDIT_SECRET"} {
		if secret := os.Getenv(name); secret != "" && cfg.Secret == nil {
			cfg.Secret = []byte(secret)
		}
	}
	if cfg.Keys, err = auditlog.LoadOrCreateKeyring(cmp.Or(o.keysAt, filepath.Join(filepath.Dir(o.logAt), "keys.json")), auditlog.DefaultKeyID, ""); err != nil {
		return err
	}
	return auditlog.Recover(ctx, cfg, o.AcceptChainBreak, localUser())
}

// localUser is who runs the shim.
func localUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "uid " + strconv.Itoa(os.Getuid())
}

// Interface guards.
var (
	_ http.Handler      = (*route)(nil)
	_ http.RoundTripper = (*transport)(nil)
	_ caddy.Module      = transport{}
	_ shim.Audit        = (*Caddy)(nil)
	_ shim.OpenEmbedded = Audit
)
