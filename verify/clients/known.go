package clients

import (
	"os"
	"path/filepath"
	"runtime"
)

// Client is a program that starts MCP servers.
type Client struct {
	ID   string // as it is named on the command line and in records
	Name string
	// files are its configuration files, of the user and of the project in the
	// current folder.
	files []file
}

// file is a place of a configuration.
type file struct {
	path   string
	format format
	// keys lead to the object, or in YAML the list, of the servers. A "*" stands
	// for every member.
	keys []string
}

type format int

const (
	jsonWithComments format = iota
	yamlList
)

// Place says where the files of a user are.
type Place struct {
	OS   string // runtime.GOOS of the machine
	Home string
	// Config is the folder of applications' data: %APPDATA% on Windows,
	// $XDG_CONFIG_HOME or ~/.config elsewhere.
	Config string
	// Project is the folder whose project files are looked at.
	Project string
}

// Here is the place of the current user and folder.
func Here() (Place, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return Place{}, err
	}
	p := Place{OS: runtime.GOOS, Home: home, Config: filepath.Join(home, ".config")}
	switch p.OS {
	case "windows":
		p.Config = os.Getenv("APPDATA")
	case "darwin":
	default:
		if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
			p.Config = dir
		}
	}
	p.Project, err = os.Getwd()
	return p, err
}

// application is the folder of an application's data, which macOS keeps
// elsewhere than what command line programs have.
func (p Place) application(name ...string) string {
	base := p.Config
	if p.OS == "darwin" {
		base = filepath.Join(p.Home, "Library", "Application Support")
	}
	return filepath.Join(append([]string{base}, name...)...)
}

// Known are the clients, in the order in which they are listed.
func Known(p Place) []Client {
	servers := []string{"mcpServers"}
	zed := filepath.Join(p.Config, "zed", "settings.json")
	if p.OS == "windows" {
		zed = filepath.Join(p.Config, "Zed", "settings.json")
	}
	return []Client{
		{"claude-desktop", "Claude Desktop", []file{{p.application("Claude", "claude_desktop_config.json"), jsonWithComments, servers}}},
		{"claude-code", "Claude Code", []file{
			{filepath.Join(p.Home, ".claude.json"), jsonWithComments, servers},
			{filepath.Join(p.Home, ".claude.json"), jsonWithComments, []string{"projects", "*", "mcpServers"}},
			{filepath.Join(p.Project, ".mcp.json"), jsonWithComments, servers},
		}},
		{"cursor", "Cursor", []file{
			{filepath.Join(p.Home, ".cursor", "mcp.json"), jsonWithComments, servers},
			{filepath.Join(p.Project, ".cursor", "mcp.json"), jsonWithComments, servers},
		}},
		{"vscode", "VS Code", []file{
			{p.application("Code", "User", "mcp.json"), jsonWithComments, []string{"servers"}},
			{filepath.Join(p.Project, ".vscode", "mcp.json"), jsonWithComments, []string{"servers"}},
		}},
		{"zed", "Zed", []file{
			{zed, jsonWithComments, []string{"context_servers"}},
			{filepath.Join(p.Project, ".zed", "settings.json"), jsonWithComments, []string{"context_servers"}},
		}},
		{"continue", "Continue", []file{
			{filepath.Join(p.Home, ".continue", "config.yaml"), yamlList, servers},
			{filepath.Join(p.Project, ".continue", "config.yaml"), yamlList, servers},
		}},
	}
}
