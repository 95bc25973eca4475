package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlServers reads the servers of a file in YAML: a list of mappings with a
// name.
func yamlServers(text []byte, keys []string) ([]Server, error) {
	list, err := yamlNodes(text, keys)
	if err != nil {
		return nil, err
	}
	var all []Server
	for _, node := range list {
		var y struct {
			Name    string   `yaml:"name"`
			Command string   `yaml:"command"`
			Args    []string `yaml:"args"`
			URL     string   `yaml:"url"`
		}
		if err := node.Decode(&y); err != nil {
			return nil, fmt.Errorf("line %d: %w", node.Line, err)
		}
		all = append(all, Server{Name: y.Name, Command: y.Command, Arguments: y.Args, URL: y.URL})
	}
	return all, nil
}

func yamlNodes(text []byte, keys []string) ([]*yaml.Node, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("it is no YAML: %w", err)
	}
	if len(document.Content) == 0 {
		return nil, nil
	}
	node := document.Content[0]
	for _, key := range keys {
		if node = yamlMember(node, key); node == nil {
			return nil, nil
		}
	}
	if node.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: there is no list where its servers should be", node.Line)
	}
	return node.Content, nil
}

func yamlMember(node *yaml.Node, key string) *yaml.Node {
	if node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}

// editYAML replaces the lines of the command and of the arguments. All others
// stay as they are.
func (s *Server) editYAML(text []byte, command string, arguments []string) ([]byte, error) {
	nodes, err := yamlNodes(text, s.in.keys)
	if err != nil {
		return nil, err
	}
	for _, node := range nodes {
		if name := yamlMember(node, "name"); name == nil || name.Value != s.Name {
			continue
		}
		if node.Style == yaml.FlowStyle {
			break
		}
		at := yamlMember(node, "command")
		if at == nil || at.Kind != yaml.ScalarNode {
			break
		}
		lines := bytes.SplitAfter(text, []byte("\n"))
		line := lines[at.Line-1]
		tail := tailOf(line, at)
		if tail == nil {
			break
		}
		indent := string(line[:len(line)-len(bytes.TrimLeft(line, " -"))])
		indent = strings.Repeat(" ", len(indent))
		var out [][]byte
		from, to := 0, 0 // of the old arguments
		if args := yamlMember(node, "args"); args != nil {
			key := keyOf(node, "args")
			from, to = key.Line-1, lastLine(args)
		}
		written := false
		writeArguments := func() {
			written = true
			if len(arguments) == 0 {
				return
			}
			out = append(out, []byte(indent+"args:\n"))
			for _, a := range arguments {
				out = append(out, []byte(indent+"  - "+quoted(a)+"\n"))
			}
		}
		for i, l := range lines {
			switch {
			case i == at.Line-1:
				out = append(out, append(append(append([]byte(nil), line[:at.Column-1]...), quoted(command)...), tail...))
				if from == 0 {
					writeArguments()
				}
			case from > 0 && i >= from && i < to:
				if !written {
					writeArguments()
				}
			default:
				out = append(out, l)
			}
		}
		return bytes.Join(out, nil), nil
	}
	return nil, fmt.Errorf("%s is not laid out in lines where %q stands; change it by hand", s.File, s.Name)
}

func keyOf(node *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i]
		}
	}
	return nil
}

// lastLine is the number of the last line of a list.
func lastLine(node *yaml.Node) int {
	last := node.Line
	for _, c := range node.Content {
		last = max(last, lastLine(c))
	}
	return last
}

// tailOf is what stands behind a value on its line, or nil if the value goes on
// on others.
func tailOf(line []byte, at *yaml.Node) []byte {
	rest := line[at.Column-1:]
	var length int
	switch at.Style {
	case yaml.DoubleQuotedStyle, yaml.SingleQuotedStyle:
		end := bytes.IndexByte(rest[1:], rest[0])
		if end < 0 || bytes.Contains(rest[1:end+1], []byte(`\`)) {
			return nil
		}
		length = end + 2
	case 0:
		if !bytes.HasPrefix(rest, []byte(at.Value)) {
			return nil
		}
		length = len(at.Value)
	default:
		return nil
	}
	return rest[length:]
}

// quoted is a text as a YAML scalar: JSON's strings are YAML's.
func quoted(s string) string {
	text, _ := json.Marshal(s) // strings always marshal
	return string(text)
}
