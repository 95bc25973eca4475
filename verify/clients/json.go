package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tailscale/hujson"
)

// jsonServers reads the servers of a file in JSON, which may have comments and
// trailing commas.
func jsonServers(text []byte, keys []string) ([]Server, error) {
	if strings.TrimSpace(string(text)) == "" {
		return nil, nil
	}
	v, err := hujson.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("it is no JSON: %w", err)
	}
	var all []Server
	err = eachServers(&v, keys, nil, func(path []string, o *hujson.Object) error {
		for i := range o.Members {
			name := memberName(&o.Members[i])
			s := Server{Name: name, path: append(append([]string(nil), path...), name)}
			s.read(&o.Members[i].Value)
			all = append(all, s)
		}
		return nil
	})
	return all, err
}

// eachServers calls do for the objects that keys lead to.
func eachServers(v *hujson.Value, keys, path []string, do func(path []string, o *hujson.Object) error) error {
	o, ok := v.Value.(*hujson.Object)
	if !ok {
		return errors.New("there is no object where its servers should be")
	}
	if len(keys) == 0 {
		return do(path, o)
	}
	for i := range o.Members {
		name := memberName(&o.Members[i])
		if keys[0] != "*" && keys[0] != name {
			continue
		}
		if err := eachServers(&o.Members[i].Value, keys[1:], append(append([]string(nil), path...), name), do); err != nil {
			return err
		}
	}
	return nil
}

func memberName(m *hujson.ObjectMember) string {
	literal, _ := m.Name.Value.(hujson.Literal)
	return literal.String()
}

// jsonServer is what is read of a server's object.
type jsonServer struct {
	// Command is a text, or in older versions of Zed an object.
	Command json.RawMessage `json:"command"`
	Args    []string        `json:"args"`
	URL     string          `json:"url"`
}

type zedCommand struct {
	Path string   `json:"path"`
	Args []string `json:"args"`
}

func (s *Server) read(v *hujson.Value) {
	standard := v.Clone()
	standard.Standardize()
	var j jsonServer
	if json.Unmarshal(standard.Pack(), &j) != nil {
		return
	}
	var nested zedCommand
	switch {
	case json.Unmarshal(j.Command, &s.Command) == nil:
		s.Arguments = j.Args
	case json.Unmarshal(j.Command, &nested) == nil:
		s.Command, s.Arguments = nested.Path, nested.Args
	}
	s.URL = j.URL
}

// editJSON replaces the command and the arguments by a JSON patch, which leaves
// all other text as it is.
func (s *Server) editJSON(text []byte, command string, arguments []string) ([]byte, error) {
	v, err := hujson.Parse(text)
	if err != nil {
		return nil, err
	}
	pointer := ""
	for _, name := range s.path {
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	}
	object := v.Find(pointer)
	if object == nil {
		return nil, fmt.Errorf("%s has no server %q", s.File, s.Name)
	}
	commandAt, argsAt := pointer+"/command", pointer+"/args"
	if nested := v.Find(commandAt); nested != nil && nested.Value.Kind() == '{' {
		commandAt, argsAt = pointer+"/command/path", pointer+"/command/args"
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	if arguments == nil {
		arguments = []string{}
	}
	how := "add"
	if v.Find(argsAt) != nil {
		how = "replace"
	}
	patch, err := json.Marshal([]operation{{"replace", commandAt, command}, {how, argsAt, arguments}})
	if err != nil {
		return nil, err
	}
	if err := v.Patch(patch); err != nil {
		return nil, err
	}
	return v.Pack(), nil
}
