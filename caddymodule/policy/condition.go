package policy

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
)

// The bounds of a condition.
const (
	maxCondition     = 8 << 10 // bytes of its text
	maxConditionCost = 100_000 // of one evaluation, in CEL's units: about a step or ten bytes of text each
)

// The variables of conditions.
const (
	varArgs        = "args"
	varParams      = "params"
	varAnnotations = "tool.annotations"
)

// variables are all of them. Qualified names are variables of their own, so
// that a misspelled one is found when the policy is loaded.
var variables = []struct {
	name string
	kind *cel.Type
}{
	{varArgs, objectType},
	{varParams, objectType},
	{"principal.subject", cel.StringType},
	{"principal.issuer", cel.StringType},
	{"principal.client_id", cel.StringType},
	{"principal.roles", cel.ListType(cel.StringType)},
	{"principal.scopes", cel.ListType(cel.StringType)},
	{"request.method", cel.StringType},
	{"request.name", cel.StringType},
	{"request.client_id", cel.StringType},
	{"request.server_id", cel.StringType},
	{"request.protocol_version", cel.StringType},
	{"request.from_server", cel.BoolType},
	{varAnnotations, objectType},
}

var objectType = cel.MapType(cel.StringType, cel.DynType)

// environment is made once: it is large, and most processes have no condition.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	options := []cel.EnvOption{
		cel.ParserExpressionSizeLimit(maxCondition),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
	}
	for _, v := range variables {
		options = append(options, cel.Variable(v.name, v.kind))
	}
	return cel.NewEnv(append(options, functionOptions()...)...)
})

// condition is a compiled CEL expression.
type condition struct {
	text    string
	program cel.Program
	// partial is program for lists, where args and params are unknown; nil if
	// it does not use them.
	partial cel.Program
	// annotations: it uses those of the tool.
	annotations bool
}

// compileCondition checks the types of a condition and compiles it. Errors name
// the place in the expression.
func compileCondition(text string) (*condition, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	checked, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, conditionError(text, issues)
	}
	if t := checked.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("the condition is a %s; it must be true or false", t)
	}
	if err := checkLiterals(checked); err != nil {
		return nil, err
	}
	c := &condition{text: text}
	limit := cel.CostLimit(maxConditionCost)
	if c.program, err = env.Program(checked, cel.EvalOptions(cel.OptOptimize), limit); err != nil {
		return nil, err
	}
	c.annotations = uses(checked, varAnnotations)
	if uses(checked, varArgs, varParams) {
		c.partial, err = env.Program(checked, cel.EvalOptions(cel.OptOptimize, cel.OptPartialEval), limit)
	}
	return c, err
}

// groups are what qualified names begin with.
var groups = []string{"principal", "request", "tool"}

// conditionError says what is wrong with a condition, in one line.
func conditionError(text string, issues *cel.Issues) error {
	list := issues.Errors()
	if len(list) == 0 {
		return issues.Err()
	}
	first := list[0]
	message := first.Message
	column := first.Location.Column() + 1
	if typed, ok := strings.CutPrefix(message, "undeclared reference to '"); ok {
		typed, _, _ = strings.Cut(typed, "'")
		names := words()
		whole := qualified(lineOf(text, first.Location.Line()), first.Location.Column(), typed)
		if Nearest(typed, names) == "" || slices.Contains(groups, typed) {
			typed = whole
		}
		message = fmt.Sprintf("there is no %s; %s", typed, Hint(typed, names))
	}
	return fmt.Errorf("condition, line %d column %d: %s", first.Location.Line(), column, message)
}

func lineOf(text string, line int) string {
	lines := strings.Split(text, "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	return lines[line-1]
}

// qualified is the qualified name that begins at a column of a line.
func qualified(line string, column int, otherwise string) string {
	runes := []rune(line)
	if column < 0 || column > len(runes) {
		return otherwise
	}
	rest := string(runes[column:])
	end := strings.IndexFunc(rest, func(r rune) bool {
		return r != '_' && r != '.' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	})
	if end >= 0 {
		rest = rest[:end]
	}
	if !strings.HasPrefix(rest, otherwise) {
		return otherwise
	}
	return rest
}

// words are the names that a condition may use beside CEL's own.
func words() (list []string) {
	for _, v := range variables {
		list = append(list, v.name)
	}
	for _, name := range functionNames {
		list = append(list, name+"()")
	}
	return list
}

// exactBelow is from where a double does not hold every whole number.
const exactBelow = 1 << 53

// checkLiterals refuses doubles that whole numbers of arguments would be
// rounded to when they are compared.
func checkLiterals(checked *cel.Ast) (err error) {
	ast.PreOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.LiteralKind {
			return
		}
		if d, ok := e.AsLiteral().(types.Double); ok && math.Abs(float64(d)) >= exactBelow {
			err = fmt.Errorf("condition: the fraction %v is too large to be compared exactly; write it as a whole number", float64(d))
		}
	}))
	return err
}

// uses reports whether a condition refers to one of the variables.
func uses(checked *cel.Ast, names ...string) bool {
	for _, reference := range checked.NativeRep().ReferenceMap() {
		if slices.Contains(names, reference.Name) {
			return true
		}
	}
	return false
}

// truth is what a condition comes to.
type truth uint8

const (
	no truth = iota
	yes
	undecided
)

// facts are the values of the variables for one decision. They are made when a
// condition first asks for them.
type facts struct {
	call   *Call
	values values
	args   any
	params any
	notes  any
}

// ResolveName implements interpreter.Activation.
func (f *facts) ResolveName(name string) (any, bool) {
	c := f.call
	caller := c.Caller
	if caller == nil {
		caller = &nobody
	}
	switch name {
	case varArgs:
		return f.object(&f.args, c.arguments()), true
	case varParams:
		return f.object(&f.params, c.params()), true
	case varAnnotations:
		return f.object(&f.notes, c.Annotations), true
	case "principal.subject":
		return caller.Subject, true
	case "principal.issuer":
		return caller.Issuer, true
	case "principal.client_id":
		return caller.ClientID, true
	case "principal.roles":
		return list(caller.Roles), true
	case "principal.scopes":
		return list(caller.Scopes), true
	case "request.method":
		return c.Method, true
	case "request.name":
		return c.Name, true
	case "request.client_id":
		return c.ClientID, true
	case "request.server_id":
		return c.ServerID, true
	case "request.protocol_version":
		return c.ProtocolVersion, true
	case "request.from_server":
		return c.FromServer, true
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (f *facts) Parent() interpreter.Activation { return nil }

func list(texts []string) any { return types.NewStringList(types.DefaultTypeAdapter, texts) }

func (f *facts) object(kept *any, raw []byte) any {
	if *kept == nil {
		if len(raw) == 0 || raw[0] != '{' {
			// No object is an empty one: params of other methods may be lists.
			raw = emptyObject
		}
		*kept = f.values.of(raw)
	}
	return *kept
}

func (c *Call) arguments() []byte {
	if c.Of != nil {
		return c.Of.Arguments
	}
	return c.Arguments
}

func (c *Call) params() []byte {
	if c.Of != nil && c.Of.Params != nil {
		return c.Of.Params
	}
	return c.Params
}

var unknownInLists = []*cel.AttributePatternType{cel.AttributePattern(varArgs), cel.AttributePattern(varParams)}

// eval evaluates the condition. An error says why it has no value.
func (c *condition) eval(f *facts, listing bool) (truth, error) {
	program, input := c.program, any(f)
	if listing && c.partial != nil {
		vars, err := cel.PartialVars(interpreter.Activation(f), unknownInLists...)
		if err != nil {
			return no, err
		}
		program, input = c.partial, vars
	}
	value, _, err := program.Eval(input)
	switch {
	case err != nil:
		return no, err
	case f.values.made > maxValues:
		return no, errTooMany
	case types.IsUnknown(value):
		return undecided, nil
	case value == types.True:
		return yes, nil
	case value == types.False:
		return no, nil
	}
	return no, errNotBool
}

var errNotBool = errors.New("the condition is neither true nor false")

// whyFailed is the reason of a record for a condition that has no value. It is
// one of a few texts: CEL's own errors may quote what the client sent.
func whyFailed(err error) string {
	for _, own := range []error{errTooMany, errNumber, errPath, errURI, errNotBool} {
		if errors.Is(err, own) || strings.Contains(err.Error(), own.Error()) {
			return own.Error()
		}
	}
	var cancelled interpreter.EvalCancelledError
	switch text := err.Error(); {
	case errors.As(err, &cancelled):
		return "the condition costs more than its bound"
	case strings.Contains(text, "no such key"), strings.Contains(text, "no such attribute"):
		return "a value that the condition needs is missing"
	case strings.Contains(text, "no such overload"), strings.Contains(text, "unsupported"):
		return "a value has another type than the condition needs"
	case strings.Contains(text, "out of range"), strings.Contains(text, "index"):
		return "a list is shorter than the condition needs"
	}
	return "the condition cannot be evaluated"
}
