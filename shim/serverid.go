package shim

import (
	"path"
	"regexp"
	"strings"
)

// launchers are programs that run the server named in their arguments, each
// with its options that take a value. A launcher with words of its own
// (`uv run`, `docker run`) has them skipped.
var launchers = map[string]launcher{
	"npx":     {values: "-p --package --node-options --registry --prefix -w --workspace", named: "-p --package"},
	"bunx":    {values: "-p --package"},
	"pnpx":    {values: ""},
	"npm":     {words: "exec x", values: "-p --package --prefix -w --workspace", named: "-p --package"},
	"pnpm":    {words: "dlx exec x", values: "--package -C --dir --filter", named: "--package"},
	"yarn":    {words: "dlx exec", values: "-p --package", named: "-p --package"},
	"bun":     {words: "run x", values: "--cwd"},
	"uvx":     {values: "--from --with --python -p --index-url --directory --project"},
	"uv":      {words: "run tool", values: "--from --with --with-editable --python -p --index-url --directory --project --env-file"},
	"pipx":    {words: "run", values: "--spec --python --index-url"},
	"node":    {values: "-r --require --import --loader --env-file -C --conditions"},
	"deno":    {words: "run", values: "--config -c --import-map --lock"},
	"tsx":     {values: "--tsconfig --env-file"},
	"ts-node": {values: "-P --project"},
	"python":  {values: "-W -X -m", named: "-m"},
	"ruby":    {values: "-r -I"},
	"java":    {values: "-jar -cp --class-path", named: "-jar"},
	"dotnet":  {words: "run exec", values: "--project", named: "--project"},
	"go":      {words: "run", values: "-C -tags"},
	"docker":  {words: "run container", values: dockerValues},
	"podman":  {words: "run container", values: dockerValues},
	"env":     {values: "-u -C", assignments: true},
	"cmd":     {slash: true},
	"sudo":    {values: "-u -g"},
	"mise":    {words: "exec x", values: ""},
}

const dockerValues = "-e --env --env-file -v --volume --mount --name --network --net -p --publish -u --user -w --workdir --entrypoint -l --label -h --hostname --pull --platform -m --memory --cpus --add-host"

type launcher struct {
	words       string // of its own, before what it runs
	values      string // options that take the next argument
	named       string // those of them whose value names the server
	assignments bool   // NAME=value may come first
	slash       bool   // options begin with a slash
}

// generic are names that say nothing; the folder above is taken instead.
var generic = map[string]bool{
	"index": true, "main": true, "__main__": true, "cli": true, "app": true, "start": true, "run": true, "stdio": true, "bin": true,
	"dist": true, "build": true, "src": true, "lib": true, "out": true, "target": true, "release": true, "debug": true, "": true,
	".": true, "..": true,
}

var (
	pythonName   = regexp.MustCompile(`^python[0-9.]*$`)
	extension    = regexp.MustCompile(`(?i)\.(js|mjs|cjs|ts|mts|py|rb|jar|exe|cmd|bat|ps1|sh|dll|csproj)$`)
	versionTag   = regexp.MustCompile(`([@:]|==)[^@:/=]*$`)
	prefixes     = regexp.MustCompile(`^(mcp[-_.]server[-_.]|server[-_.]mcp[-_.]|mcp[-_.]|server[-_.])`)
	suffixes     = regexp.MustCompile(`([-_.]mcp[-_.]server|[-_.]server[-_.]mcp|[-_.]mcp|[-_.]server)$`)
	notServerID  = regexp.MustCompile(`[^a-z0-9._-]+`)
	windowsDrive = regexp.MustCompile(`^[A-Za-z]:[\\/]`)
)

// ServerID derives a name for records from a server's command: the package,
// script or image that is run, without what every server has in its name.
// `npx -y @modelcontextprotocol/server-github` is `github`.
func ServerID(argv []string) string {
	name := ""
	for len(argv) > 0 {
		name = argv[0]
		l, ok := launchers[programName(name)]
		if !ok {
			break
		}
		next, named := l.skip(argv[1:])
		if named != "" {
			name = named
			break
		}
		if len(next) == 0 {
			break
		}
		argv = next
	}
	return shorten(name)
}

// programName is the launcher a command may be.
func programName(command string) string {
	base := strings.ToLower(extension.ReplaceAllString(path.Base(slashes(command)), ""))
	if pythonName.MatchString(base) {
		return "python"
	}
	return base
}

// skip passes over a launcher's own arguments.
func (l launcher) skip(args []string) (rest []string, named string) {
	words := strings.Fields(l.words)
	for i := 0; i < len(args); i++ {
		arg := args[i]
		option, value, assigned := strings.Cut(arg, "=")
		switch {
		case arg == "--":
			return args[i+1:], ""
		case strings.HasPrefix(arg, "-") && len(arg) > 1:
			isNamed, takes := has(l.named, option), has(l.values, option)
			if takes && !assigned && i+1 < len(args) {
				i++
				value = args[i]
			}
			if isNamed && value != "" {
				return nil, value
			}
		case l.slash && strings.HasPrefix(arg, "/"), l.assignments && assigned:
		case len(words) > 0 && has(l.words, arg):
		default:
			return args[i:], ""
		}
	}
	return nil, ""
}

func has(list, word string) bool {
	for f := range strings.FieldsSeq(list) {
		if f == word {
			return true
		}
	}
	return false
}

// shorten takes off what every server's name has.
func shorten(name string) string {
	if !windowsDrive.MatchString(name) {
		// The version of a package or image; not the scope's own @.
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			name = name[:i+1] + versionTag.ReplaceAllString(name[i+1:], "")
		} else if len(name) > 1 {
			name = name[:1] + versionTag.ReplaceAllString(name[1:], "")
		}
	}
	parts := strings.Split(strings.Trim(slashes(name), "/"), "/")
	base := ""
	for i := len(parts) - 1; i >= 0; i-- {
		base = strings.ToLower(extension.ReplaceAllString(parts[i], ""))
		if !generic[base] {
			break
		}
	}
	if strings.HasPrefix(base, "@") {
		base = base[1:]
	}
	short := prefixes.ReplaceAllString(base, "")
	short = suffixes.ReplaceAllString(short, "")
	short = strings.Trim(notServerID.ReplaceAllString(short, "-"), "-._")
	if short == "" || generic[short] {
		short = strings.Trim(notServerID.ReplaceAllString(base, "-"), "-._")
	}
	if short == "" {
		return "server"
	}
	return short[:min(len(short), 64)]
}

func slashes(s string) string { return strings.ReplaceAll(s, `\`, "/") }
