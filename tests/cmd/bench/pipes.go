package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// verification is how long the verify command took for a log.
type verification struct {
	bytes   int64
	elapsed time.Duration
}

func timeVerify(ctx context.Context, bin, log string) (verification, error) {
	info, err := os.Stat(log)
	if err != nil {
		return verification{}, err
	}
	start := time.Now()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "mcp-audit"), "verify", log,
		"--keys", filepath.Join(filepath.Dir(log), "keys.json")).CombinedOutput()
	if err != nil {
		return verification{}, fmt.Errorf("the log of the run does not verify: %w\n%s", err, out)
	}
	return verification{info.Size(), time.Since(start)}, nil
}

// perCore is in GB a second and core.
func (v verification) perCore() float64 {
	return float64(v.bytes) / v.elapsed.Seconds() / 1e9 / float64(runtime.NumCPU())
}

// pipe is a stdio server, bare or behind the shim.
type pipe struct {
	first time.Duration // from the start to the first answer
	p50   time.Duration // of a call of 1 KB
}

// timeShim measures the example server on stdio, bare and behind the shim, in
// turns, and returns the medians.
func timeShim(ctx context.Context, bin, folder string) ([2]pipe, error) {
	notes := filepath.Join(bin, "notes-server")
	commands := [2][]string{{notes}, {filepath.Join(bin, "mcp-audit-shim"), "--", notes}}
	var firsts, middles [2][]time.Duration
	for range 5 {
		for i, line := range commands {
			p, err := timePipe(ctx, folder, line)
			if err != nil {
				return [2]pipe{}, fmt.Errorf("%s: %w", filepath.Base(line[0]), err)
			}
			firsts[i] = append(firsts[i], p.first)
			middles[i] = append(middles[i], p.p50)
		}
	}
	var out [2]pipe
	for i := range out {
		slices.Sort(firsts[i])
		slices.Sort(middles[i])
		out[i] = pipe{firsts[i][len(firsts[i])/2], middles[i][len(middles[i])/2]}
	}
	return out, nil
}

func timePipe(ctx context.Context, folder string, line []string) (pipe, error) {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "HOME="+folder, "MCP_AUDIT_DIR="+filepath.Join(folder, "shim"))
	in, err := cmd.StdinPipe()
	if err != nil {
		return pipe{}, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return pipe{}, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return pipe{}, err
	}
	defer func() {
		in.Close()
		cmd.Wait()
	}()
	answers := bufio.NewReaderSize(out, 1<<16)
	exchange := func(message string) (time.Duration, error) {
		sent := time.Now()
		if _, err := in.Write([]byte(message + "\n")); err != nil {
			return 0, err
		}
		if _, err := answers.ReadSlice('\n'); err != nil {
			return 0, fmt.Errorf("%w: %s", err, &stderr)
		}
		return time.Since(sent), nil
	}
	if _, err := exchange(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`); err != nil {
		return pipe{}, err
	}
	p := pipe{first: time.Since(start)}
	if _, err := in.Write([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n")); err != nil {
		return pipe{}, err
	}
	text := string(bytes.Repeat([]byte("x"), 900))
	var times []time.Duration
	for i := range 400 {
		took, err := exchange(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"message":%q}}}`, i+1, text))
		if err != nil {
			return pipe{}, err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	p.p50 = times[len(times)/2]
	return p, nil
}
