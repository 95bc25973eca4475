package shim_test

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/shim"
)

func TestServerIDIsDerivedFromTheCommand(t *testing.T) {
	for command, want := range map[string]string{
		"npx -y @modelcontextprotocol/server-github":                              "github",
		"npx -y @modelcontextprotocol/server-filesystem /home/me/notes":           "filesystem",
		"npx @modelcontextprotocol/server-everything@2026.8.31 stdio":             "everything",
		"npx --yes --package=@acme/mcp-server-jira jira":                          "jira",
		"npx -y -p @acme/weather-mcp weather":                                     "weather",
		"npx -y github:acme/tickets-mcp-server":                                   "tickets",
		"/usr/local/bin/npx -y figma-developer-mcp --stdio":                       "figma-developer",
		`C:\nodejs\npx.cmd -y @modelcontextprotocol/server-memory`:                "memory",
		`cmd /c npx -y @modelcontextprotocol/server-memory`:                       "memory",
		"npm exec -- @modelcontextprotocol/server-memory":                         "memory",
		"pnpm dlx @acme/mcp-search":                                               "search",
		"bunx mcp-server-time":                                                    "time",
		"uvx mcp-server-git --repository /r":                                      "git",
		"uvx mcp-server-git@latest":                                               "git",
		"uvx --from git+https://example.com/x mcp-server-sqlite --db-path a.db":   "sqlite",
		"uv --directory /srv/app run weather.py":                                  "weather",
		"uv run --with mcp[cli] mcp_server_fetch.py":                              "fetch",
		"pipx run mcp-server-fetch==1.2":                                          "fetch",
		"python3 -m mcp_server_git":                                               "git",
		"python3.12 -u /opt/servers/calendar_server.py":                           "calendar",
		"python -m markitdown_mcp":                                                "markitdown",
		"node /x/server.js":                                                       "server",
		"node --env-file .env /srv/slack-mcp-server/dist/index.js":                "slack",
		"node --import tsx ./src/index.ts":                                        "server",
		"deno run -A --config d.json jsr:@acme/mcp-notes":                         "notes",
		"docker run -i --rm -e GITHUB_TOKEN ghcr.io/github/github-mcp-server":     "github",
		"docker run --rm -i --name x -v /a:/b mcp/postgres:1.2 postgresql://h/db": "postgres",
		"docker run -i registry.example.com:5000/tools/mcp-server-redis:latest":   "redis",
		"java -Xmx1g -jar /opt/server-jdbc.jar":                                   "jdbc",
		"env FOO=bar npx -y @modelcontextprotocol/server-github":                  "github",
		"go run github.com/acme/mcp-grafana@v1.0.0":                               "grafana",
		"dotnet run --project /src/Acme.Files.Server/Acme.Files.Server.csproj":    "acme.files",
		"/usr/local/bin/github-mcp-server stdio":                                  "github",
		`"C:\Program Files\Acme\notes-server.exe"`:                                "notes",
		"mcp-server": "server",
		"server":     "server",
		"/":          "server",
		"npx":        "npx",
		"./run.sh":   "server",
		"Ünï":        "n",
	} {
		var argv []string
		if strings.HasPrefix(command, `"`) {
			argv = []string{strings.Trim(command, `"`)}
		} else {
			argv = strings.Fields(command)
		}
		if got := shim.ServerID(argv); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}

func FuzzServerID(f *testing.F) {
	f.Add("npx\x00-y\x00@a/b@1")
	f.Add("docker\x00run\x00-e")
	f.Fuzz(func(t *testing.T, joined string) {
		id := shim.ServerID(strings.Split(joined, "\x00"))
		if id == "" || len(id) > 64 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
			t.Errorf("%q", id)
		}
	})
}
