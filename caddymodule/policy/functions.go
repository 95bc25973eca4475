package policy

import (
	"maps"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// functions are the helpers of conditions. Each takes and returns a string. One
// that cannot read its argument ends the condition with an error, which denies.
//
//	path_clean(p)   p without . and .. segments and repeated slashes, as Go's
//	                path.Clean; an error for a backslash or a NUL
//	uri_scheme(u)   in lower case, "" if there is none
//	uri_host(u)     in lower case, without brackets, port and final dot, "" if
//	                there is none
//	uri_port(u)     as written, "" if there is none
//	uri_path(u)     decoded and cleaned; an error for an encoded slash, an
//	                encoding within an encoding, a backslash or a NUL
//	uri_query(u)    as written, without the question mark
//
// The uri functions refuse user names, characters that no URI may have and
// hosts that are not plain names or addresses.
var functions = map[string]func(string) (string, error){
	"path_clean": cleanPath,
	"uri_scheme": func(s string) (string, error) {
		u, _, _, err := strictURI(s)
		return lowerASCII(u.scheme), err
	},
	"uri_host": func(s string) (string, error) {
		_, host, _, err := strictURI(s)
		return host, err
	},
	"uri_port": func(s string) (string, error) {
		_, _, port, err := strictURI(s)
		return port, err
	},
	"uri_path": uriPath,
	"uri_query": func(s string) (string, error) {
		u, _, _, err := strictURI(s)
		if u.query != "" {
			u.query = u.query[1:]
		}
		return u.query, err
	},
}

// functionNames are their names, in the order of the alphabet.
var functionNames = slices.Sorted(maps.Keys(functions))

func functionOptions() (options []cel.EnvOption) {
	for _, name := range functionNames {
		f := functions[name]
		options = append(options, cel.Function(name, cel.Overload(name+"_string",
			[]*cel.Type{cel.StringType}, cel.StringType,
			cel.UnaryBinding(func(arg ref.Val) ref.Val {
				text, ok := arg.(types.String)
				if !ok {
					return types.MaybeNoSuchOverloadErr(arg)
				}
				out, err := f(string(text))
				if err != nil {
					return types.WrapErr(err)
				}
				return types.String(out)
			}))))
	}
	return options
}

func lowerASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
	return string(b)
}
