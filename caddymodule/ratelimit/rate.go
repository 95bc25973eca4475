package ratelimit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseRate reads a rate as `60/1m`: a number of requests, and the time in
// which they are allowed, as Go writes durations, or with `d` for days. What it
// accepts is within the bounds of a limit.
func ParseRate(text string) (requests int, window time.Duration, err error) {
	count, per, found := strings.Cut(text, "/")
	if !found {
		return 0, 0, fmt.Errorf("%q is no rate; write requests and a time, as 60/1m", text)
	}
	if requests, err = ParseCount(count); err != nil {
		return 0, 0, fmt.Errorf("rate %q: %w", text, err)
	}
	if window, err = parseWindow(per); err != nil {
		return 0, 0, fmt.Errorf("rate %q: %w", text, err)
	}
	return requests, window, nil
}

// ParseCount reads a number of requests from 1 to MostRequests, in plain
// digits.
func ParseCount(text string) (int, error) {
	plain := text != "" && strings.Trim(text, "0123456789") == ""
	n, err := strconv.Atoi(text)
	if !plain || err != nil || n < 1 || n > MostRequests {
		return 0, fmt.Errorf("%q is not a number from 1 to %d", text, MostRequests)
	}
	return n, nil
}

func parseWindow(text string) (time.Duration, error) {
	bounds := fmt.Errorf("%q is not a time from %s to %s, as in 1s, 1m or 1d", text, ShortestWindow, LongestWindow)
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := ParseCount(days)
		if err != nil || n > int(LongestWindow/(24*time.Hour)) {
			return 0, bounds
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	window, err := time.ParseDuration(text)
	switch {
	case err != nil && strings.Trim(text, "smhun") == "" && text != "":
		return 0, errors.Join(bounds, fmt.Errorf("write 1%s", text))
	case err != nil || window < ShortestWindow || window > LongestWindow:
		return 0, bounds
	}
	return window, nil
}

// FormatRate writes a rate so that ParseRate reads it back.
func FormatRate(requests int, window time.Duration) string {
	text := window.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return strconv.Itoa(requests) + "/" + text
}
