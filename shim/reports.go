package shim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
)

// reportPause is the least time between two records of a child's output.
const reportPause = time.Second

// reportTime bounds one question for reports.
const reportTime = 2 * time.Second

// reportLaunch has the child's start recorded, before the first message.
func (f *Front) reportLaunch(msg *message) {
	if f.o.Launch == nil {
		return
	}
	f.launchOnce.Do(func() {
		version, info := "", []byte(nil)
		if msg.scanned {
			version = mcp.Text(msg.m.ProtocolVersion.Of(msg.line))
			info = msg.m.ClientInfo.Of(msg.line)
		}
		f.o.Bridge.Launch(f.o.Launch(version, info))
		f.Report(f.ctx)
	})
}

// reportAll has output of the child recorded as it comes, once a second.
func (f *Front) reportAll() {
	for {
		select {
		case <-f.o.Bridge.Reports():
		case <-f.ctx.Done():
			return
		}
		f.Report(f.ctx)
		select {
		case <-time.After(reportPause):
		case <-f.ctx.Done():
			return
		}
	}
}

// Report has the audited route ask the bridge for its reports and record them.
// One asks at a time: when it returns, what was there before is recorded,
// whoever asked for it.
func (f *Front) Report(ctx context.Context) {
	f.reporting.Lock()
	defer f.reporting.Unlock()
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	if err := f.report(ctx); err != nil && f.ctx.Err() == nil {
		f.log.Warn("what the shim has to report of the server could not be recorded", "error", err)
	}
}

func (f *Front) report(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.o.Chain.URL, nil)
	if err != nil {
		return err
	}
	for name, values := range f.o.Chain.Header {
		req.Header[name] = values
	}
	req.Header.Set(bridge.ReportHeader, "1")
	resp, err := f.o.Chain.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("%s: %.200s", resp.Status, bytes.TrimSpace(text))
	}
	return nil
}
