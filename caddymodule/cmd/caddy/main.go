// Command caddy is the custom Caddy of this project for development and
// release builds; users build the same with xcaddy.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-mcp-audit/mcp-audit"
)

func main() { caddycmd.Main() }
