package cli

import (
	"strconv"
	"strings"
	"time"
)

// moment reads a point in time: a date or time (local, unless it names a
// zone), or an age. An empty text is the zero time.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, ok := duration(text); ok {
		return now.Add(-age), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usage("%s %q is no time; write 2026-12-01, 2026-12-01T08:30:00Z, or an age such as 90m, 24h or 7d", flag, text)
}

// duration is an age from 0 on, with "d" for days.
func duration(text string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	age, err := time.ParseDuration(text)
	return age, err == nil && age >= 0
}
