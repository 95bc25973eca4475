package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Browser is one tab of a headless Chromium. It notes what the page complains
// of and where it goes.
type Browser struct {
	t         testing.TB
	ctx       context.Context
	Downloads string

	mu         sync.Mutex
	complaints []string
	requests   []string
}

// StartBrowser starts a browser. A machine without one fails the test: what
// only a browser can show must not go untested unnoticed.
func StartBrowser(t testing.TB) *Browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Fatal("there is no Chromium; run `apt-get install -y --no-install-recommends chromium`")
	}
	dir := TempDir(t)
	b := &Browser{t: t, Downloads: filepath.Join(dir, "downloads")}
	if err := os.Mkdir(b.Downloads, 0o700); err != nil {
		t.Fatal(err)
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.Headless, chromedp.NoSandbox, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.DisableGPU,
		chromedp.UserDataDir(filepath.Join(dir, "profile")), chromedp.WindowSize(1280, 1000),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("lang", "en-GB"))
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(func() { cancel(); end() })
	b.ctx = ctx
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		for _, enable := range []func() error{
			func() error { return err2(cdp.Call(ctx, target, runtime.Enable, cdp.Empty{})) },
			func() error { return err2(cdp.Call(ctx, target, cdplog.Enable, cdp.Empty{})) },
			func() error { return err2(cdp.Call(ctx, target, network.Enable, network.EnableParams{})) },
			func() error {
				return err2(cdp.Call(ctx, target, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{Behavior: "allow", DownloadPath: b.Downloads}))
			},
		} {
			if err := enable(); err != nil {
				return chromedp.Void{}, err
			}
		}
		return chromedp.Void{}, nil
	})
	return b
}

func err2[T any](_ T, err error) error { return err }

func (b *Browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		text, _ := json.Marshal(e.Args)
		b.complaints = append(b.complaints, fmt.Sprintf("console.%s %s", e.Type, text))
	case *runtime.EventExceptionThrown:
		text, _ := json.Marshal(e.ExceptionDetails)
		b.complaints = append(b.complaints, "exception "+string(text))
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			b.complaints = append(b.complaints, fmt.Sprintf("%s %s %s", e.Entry.Level, e.Entry.Source, e.Entry.Text))
		}
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

// Complaints are the errors and warnings of the console since the last call.
func (b *Browser) Complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.complaints
	b.complaints = nil
	return list
}

// Requests are all addresses that the page asked for.
func (b *Browser) Requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.requests...)
}

func (b *Browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// Open goes to an address.
func (b *Browser) Open(url string) { b.t.Helper(); b.do(chromedp.Navigate(url)) }

// Click clicks on what a selector finds first.
func (b *Browser) Click(selector string) {
	b.t.Helper()
	b.Await(fmt.Sprintf("!!document.querySelector(%q)", selector))
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// Type puts a text into a field, as a user does.
func (b *Browser) Type(selector, text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// Press presses keys, wherever the focus is.
func (b *Browser) Press(keys string) { b.t.Helper(); b.do(chromedp.KeyEvent(keys)) }

// Script evaluates an expression whose value is a text.
func (b *Browser) Script(expression string) string {
	b.t.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return text
}

// Text is the text that a selector's first element shows.
func (b *Browser) Text(selector string) string {
	b.t.Helper()
	return b.Script(fmt.Sprintf("(document.querySelector(%q) || {innerText: \"(nothing)\"}).innerText", selector))
}

// Await waits until an expression is true.
func (b *Browser) Await(expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(50 * time.Millisecond) {
		if b.Script("!!("+expression+")") == "true" {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("not within %v: %s\n%s\n%s", Patience, expression, b.Text("body"), strings.Join(b.Complaints(), "\n"))
		}
	}
}

// Screenshot writes what is seen to docs/images, if MCP_AUDIT_SCREENSHOTS is 1.
func (b *Browser) Screenshot(name string) {
	b.t.Helper()
	if os.Getenv("MCP_AUDIT_SCREENSHOTS") != "1" {
		return
	}
	picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	dir := filepath.Join(Find(b.t).Root, "docs", "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
