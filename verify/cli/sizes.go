package cli

import (
	"fmt"
	"strconv"
	"strings"
)

// byteSize is a number of bytes on the command line: a plain number, or one
// with KiB, MiB or GiB.
type byteSize int

var byteUnits = []struct {
	suffix string
	factor int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

// Set implements pflag.Value.
func (s *byteSize) Set(text string) error {
	for _, unit := range byteUnits {
		digits, ok := strings.CutSuffix(text, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(digits))
		if err != nil || n < 0 || n > (1<<31-1)/unit.factor {
			break
		}
		*s = byteSize(n * unit.factor)
		return nil
	}
	return fmt.Errorf("%q is not a size such as 32MiB", text)
}

// String implements pflag.Value.
func (s *byteSize) String() string {
	for _, unit := range byteUnits {
		if n := int(*s); n >= unit.factor && n%unit.factor == 0 {
			return strconv.Itoa(n/unit.factor) + unit.suffix
		}
	}
	return "0"
}

// Type implements pflag.Value.
func (s *byteSize) Type() string { return "size" }

// segmentSize is a byteSize that may be larger than memory.
type segmentSize int64

// Set implements pflag.Value.
func (s *segmentSize) Set(text string) error {
	for _, unit := range byteUnits {
		if digits, ok := strings.CutSuffix(text, unit.suffix); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
			if err != nil || n <= 0 || n > (1<<62)/int64(unit.factor) {
				break
			}
			*s = segmentSize(n * int64(unit.factor))
			return nil
		}
	}
	return fmt.Errorf("%q is not a size such as 4GiB", text)
}

// String implements pflag.Value.
func (s *segmentSize) String() string {
	for _, unit := range byteUnits {
		if n := int64(*s); n >= int64(unit.factor) && n%int64(unit.factor) == 0 {
			return strconv.FormatInt(n/int64(unit.factor), 10) + unit.suffix
		}
	}
	return "0"
}

// Type implements pflag.Value.
func (s *segmentSize) Type() string { return "size" }
