package policy

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// maxValues bounds how many values of a message the conditions of one decision
// may touch, so that a large argument costs no more than a small one.
const maxValues = 100_000

// Why a value cannot be used in a condition.
var (
	errTooMany = errors.New("the message has more values than conditions may touch")
	errNumber  = errors.New("a number cannot be compared exactly: conditions have whole numbers of 64 bits and fractions")
)

// values makes CEL values of raw JSON, level by level as a condition asks for
// them. It counts what it makes.
type values struct{ made int }

// of is the CEL value of a raw JSON value. What has no exact one is an error,
// which a condition that touches it ends with.
func (v *values) of(raw []byte) ref.Val {
	if v.made++; v.made > maxValues {
		return types.WrapErr(errTooMany)
	}
	if len(raw) == 0 {
		return types.NullValue
	}
	switch raw[0] {
	case '{':
		return &object{values: v, raw: raw}
	case '[':
		return v.list(raw)
	case '"':
		return types.String(mcp.Text(raw))
	case 't':
		return types.True
	case 'f':
		return types.False
	case 'n':
		return types.NullValue
	default:
		return number(string(raw))
	}
}

// list makes a whole list, so that none with an unusable element is compared.
func (v *values) list(raw []byte) (list ref.Val) {
	var elements []ref.Val
	mcp.Elements(raw, func(value []byte) {
		if list != nil {
			return
		}
		element := v.of(value)
		if types.IsError(element) {
			list = element
			return
		}
		elements = append(elements, element)
	})
	if list != nil {
		return list
	}
	return types.NewRefValList(types.DefaultTypeAdapter, elements)
}

// number is exact or an error. A whole number is an int however it is spelled
// (100, 100.0 and 1e2 are equal), a fraction the nearest double, as any server
// reads it. Doubles from 2^53 on hold no fractions and not every whole number,
// so a number that only they could hold is never equal to another by rounding.
func number(token string) ref.Val {
	if !strings.ContainsAny(token, ".eE") {
		n, err := strconv.ParseInt(token, 10, 64)
		if err != nil {
			return types.WrapErr(errNumber)
		}
		return types.Int(n)
	}
	f, err := strconv.ParseFloat(token, 64)
	if err == nil && f != math.Trunc(f) {
		return types.Double(f)
	}
	// Bounded, since an exponent is quickly written and long in its expansion.
	const longest, largestExponent = 64, 400
	if e := strings.IndexAny(token, "eE"); e >= 0 {
		exponent, err := strconv.Atoi(token[e+1:])
		if err != nil || exponent < -largestExponent || exponent > largestExponent {
			return types.WrapErr(errNumber)
		}
	}
	if len(token) > longest {
		return types.WrapErr(errNumber)
	}
	exact, ok := new(big.Rat).SetString(token)
	if !ok || !exact.IsInt() || !exact.Num().IsInt64() {
		return types.WrapErr(errNumber)
	}
	return types.Int(exact.Num().Int64())
}

// object is a JSON object as a CEL map. Its members are found when they are
// asked for.
type object struct {
	values  *values
	raw     []byte
	names   []string
	members map[string][]byte
}

// emptyObject stands for what is absent.
var emptyObject = []byte("{}")

func (o *object) index() {
	if o.members != nil {
		return
	}
	o.members = make(map[string][]byte)
	mcp.Members(o.raw, func(name, value []byte) {
		if _, again := o.members[string(name)]; !again {
			o.names = append(o.names, string(name))
		}
		o.members[string(name)] = value
	})
}

// Find implements traits.Mapper.
func (o *object) Find(key ref.Val) (ref.Val, bool) {
	o.index()
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	raw, ok := o.members[string(name)]
	if !ok {
		return nil, false
	}
	return o.values.of(raw), true
}

// Get implements traits.Indexer.
func (o *object) Get(key ref.Val) ref.Val {
	if value, found := o.Find(key); found {
		return value
	}
	return types.NewErr("no such key")
}

// Contains implements traits.Container.
func (o *object) Contains(key ref.Val) ref.Val {
	o.index()
	name, ok := key.(types.String)
	if !ok {
		return types.False
	}
	_, found := o.members[string(name)]
	return types.Bool(found)
}

// Size implements traits.Sizer.
func (o *object) Size() ref.Val {
	o.index()
	return types.Int(len(o.names))
}

// Iterator implements traits.Iterable: over the names, in order.
func (o *object) Iterator() traits.Iterator {
	o.index()
	return types.NewStringList(types.DefaultTypeAdapter, o.names).Iterator()
}

// Equal implements ref.Val.
func (o *object) Equal(other ref.Val) ref.Val {
	m, ok := other.(traits.Mapper)
	if !ok {
		return types.False
	}
	if o.Size() != m.Size() {
		return types.False
	}
	for _, name := range o.names {
		key := types.String(name)
		mine, _ := o.Find(key)
		if types.IsError(mine) {
			return mine
		}
		theirs, found := m.Find(key)
		if !found {
			return types.False
		}
		if types.IsError(theirs) {
			return theirs
		}
		if equal := types.Equal(mine, theirs); equal != types.True {
			return equal
		}
	}
	return types.True
}

// Type implements ref.Val.
func (o *object) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (o *object) Value() any { return o }

// ConvertToType implements ref.Val.
func (o *object) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case types.MapType:
		return o
	case types.TypeType:
		return types.MapType
	}
	return types.NewErr("an object is not convertible to %s", t.TypeName())
}

// ConvertToNative implements ref.Val. Nothing asks for it.
func (o *object) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("an object is not convertible to %s", t)
}

var _ traits.Mapper = (*object)(nil)
