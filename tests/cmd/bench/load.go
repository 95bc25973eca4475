package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// result collects the rounds of one way.
type result struct {
	rates     []float64 // requests a second, by round
	cpu       []float64 // microseconds a request, by round
	latencies []time.Duration
}

func (r *result) rate() float64 { return median(r.rates) }

func (r *result) cpuText() string {
	if len(r.cpu) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", median(r.cpu))
}

// quantile returns a latency in milliseconds.
func (r *result) quantile(q float64) float64 {
	if len(r.latencies) == 0 {
		return 0
	}
	at := min(len(r.latencies)-1, int(q*float64(len(r.latencies))))
	return float64(r.latencies[at]) / float64(time.Millisecond)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// measure sends a body through each of a payload's ways, one way after the
// other in each round.
func measure(ctx context.Context, p payload, body []byte, routes map[string]*route, length time.Duration) (map[string]*result, error) {
	results := make(map[string]*result)
	for round := -1; round < p.rounds; round++ {
		for _, name := range p.routes {
			way := routes[name]
			before := way.cpu()
			start := time.Now()
			limit := length
			if round < 0 {
				limit /= 4 // connections, caches and memory
			}
			latencies, err := load(ctx, way.url, body, p.connections, limit)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", p.name, name, err)
			}
			if round < 0 {
				results[name] = new(result)
				continue
			}
			r := results[name]
			r.rates = append(r.rates, float64(len(latencies))/time.Since(start).Seconds())
			if after := way.cpu(); after > before {
				r.cpu = append(r.cpu, float64((after-before).Microseconds())/float64(len(latencies)))
			}
			r.latencies = append(r.latencies, latencies...)
		}
	}
	for _, r := range results {
		slices.Sort(r.latencies)
	}
	return results, nil
}

// load sends a body over and over on some connections for a time.
func load(ctx context.Context, url string, body []byte, connections int, length time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: connections,
		MaxConnsPerHost:     connections,
		DisableCompression:  true,
	}}
	defer client.CloseIdleConnections()
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		all    []time.Duration
		failed error
	)
	for range connections {
		wg.Go(func() {
			var own []time.Duration
			for ctx.Err() == nil {
				start := time.Now()
				// The last request of a round is finished, not cut off: it
				// would be a client that leaves.
				err := post(context.WithoutCancel(ctx), client, url, body)
				if err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
				own = append(own, time.Since(start))
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return all, failed
}

func post(ctx context.Context, client *http.Client, url string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if string(answer) != reply {
		return fmt.Errorf("answer %d: %.300s", resp.StatusCode, answer)
	}
	return nil
}

func drain(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}
