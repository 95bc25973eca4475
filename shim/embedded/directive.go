package embedded

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// directive is the mcp_audit handler of the configuration file and the log that
// it names; both empty without a file.
func (o *Options) directive() (audit, log object, err error) {
	audit, log = object{}, object{}
	if o.Config == "" {
		return audit, log, nil
	}
	text, err := os.ReadFile(o.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("--config: %w", err)
	}
	if ext := filepath.Ext(o.Config); ext != ".json" {
		adapter := caddyconfig.GetAdapter("caddyfile")
		adapted, _, err := adapter.Adapt(text, map[string]any{"filename": o.Config})
		if err != nil {
			return nil, nil, fmt.Errorf("--config: %w", err)
		}
		text = adapted
	}
	var config any
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, nil, fmt.Errorf("--config %s: %w", o.Config, err)
	}
	var found []object
	collect(config, &found)
	switch len(found) {
	case 0:
		return nil, nil, fmt.Errorf("--config %s: there is no mcp_audit directive in it", o.Config)
	case 1:
		audit = found[0]
	default:
		return nil, nil, fmt.Errorf("--config %s: there are %d mcp_audit directives in it; leave one", o.Config, len(found))
	}
	name, _ := audit["log"].(string)
	if name == "" {
		name = "default"
	}
	logs, _ := lookup(config, "apps", "mcp_audit", "logs").(object)
	if own, ok := logs[name].(object); ok {
		log = own
	} else if name != "default" {
		return nil, nil, fmt.Errorf("--config %s: the log %q that mcp_audit names is not there", o.Config, name)
	}
	return audit, log, nil
}

// collect finds the mcp_audit handlers of a configuration.
func collect(value any, found *[]object) {
	switch v := value.(type) {
	case object:
		if v["handler"] == "mcp_audit" {
			*found = append(*found, v)
			return
		}
		for _, inner := range v {
			collect(inner, found)
		}
	case []any:
		for _, inner := range v {
			collect(inner, found)
		}
	}
}

func lookup(value any, names ...string) any {
	for _, name := range names {
		o, _ := value.(object)
		value = o[name]
	}
	return value
}

// complete fills in what the file does not say, and what the shim alone knows.
func (o *Options) complete(audit, log object) {
	set := func(to object, name string, value any) {
		if _, there := to[name]; !there {
			to[name] = value
		}
	}
	audit["handler"], audit["log"], audit["transport"] = "mcp_audit", "default", "stdio"
	set(audit, "server_id", o.ServerID)
	set(audit, "client_id", o.ClientID)
	set(audit, "max_body", o.MaxBody)
	if _, there := audit["identity"]; !there {
		// Nobody but the user of this machine can be at the other end.
		set(audit, "principal", object{"subject": localUser(), "client_id": o.ClientID, "source": "shim"})
	}
	log["actor"] = fmt.Sprintf("mcp-audit-shim, process %d of %d", os.Getpid(), os.Getppid())
	set(log, "output", "jsonl")
	set(log, "durability", "written")
	if _, there := log["path"]; !there {
		log["path"] = o.log()
		set(log, "keys_file", o.keys())
	}
	o.output, _ = log["output"].(string)
	o.logAt, _ = log["path"].(string)
	o.keysAt, _ = log["keys_file"].(string)
}
