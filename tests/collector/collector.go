// Package collector is OpenTelemetry's own OTLP receiver, which keeps what
// exporters send.
package collector

import (
	"context"
	"net"
	"sync"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

// Collector listens on loopback for OTLP over gRPC until the test ends.
type Collector struct {
	Address string // host:port
	traces  consumertest.TracesSink
	metrics consumertest.MetricsSink
}

// Start starts one.
func Start(t testing.TB) *Collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &Collector{Address: l.Addr().String()}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.GRPC.GetOrInsertDefault().NetAddr.Endpoint = c.Address
	config.Protocols.HTTP = configoptional.None[otlpreceiver.HTTPConfig]()
	settings := receivertest.NewNopSettings(factory.Type())
	traces, err := factory.CreateTraces(t.Context(), settings, config, &c.traces)
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := factory.CreateMetrics(t.Context(), settings, config, &c.metrics)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []interface {
		Start(context.Context, component.Host) error
		Shutdown(context.Context) error
	}{traces, metrics} {
		if err := r.Start(context.Background(), componenttest.NewNopHost()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Shutdown(context.Background()) })
	}
	return c
}

// Span is a span and the resource and scope it came with.
type Span struct {
	ptrace.Span
	Scope  string
	Schema string
}

// Attribute is an attribute as text; empty if the span has none of the name.
func (s Span) Attribute(name string) string {
	v, ok := s.Attributes().Get(name)
	if !ok {
		return ""
	}
	return v.AsString()
}

// Spans are those received so far.
func (c *Collector) Spans() (all []Span) {
	for _, traces := range c.traces.AllTraces() {
		for _, resource := range traces.ResourceSpans().All() {
			for _, scope := range resource.ScopeSpans().All() {
				for _, span := range scope.Spans().All() {
					all = append(all, Span{span, scope.Scope().Name(), scope.SchemaUrl()})
				}
			}
		}
	}
	return all
}

// MetricNames are those received so far.
func (c *Collector) MetricNames() map[string]bool {
	names := make(map[string]bool)
	for _, metrics := range c.metrics.AllMetrics() {
		for _, resource := range metrics.ResourceMetrics().All() {
			for _, scope := range resource.ScopeMetrics().All() {
				for _, m := range scope.Metrics().All() {
					names[m.Name()] = true
				}
			}
		}
	}
	return names
}

// StartLogs starts a collector of log records, over HTTP, at an address, and
// returns them and a function that ends it.
func StartLogs(t testing.TB, address string) (received func() []plog.LogRecord, stop func()) {
	t.Helper()
	var sink consumertest.LogsSink
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.GRPC = configoptional.None[configgrpc.ServerConfig]()
	config.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr.Endpoint = address
	logs, err := factory.CreateLogs(t.Context(), receivertest.NewNopSettings(factory.Type()), config, &sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := logs.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { _ = logs.Shutdown(context.Background()) })
	t.Cleanup(stop)
	return func() (all []plog.LogRecord) {
		for _, batch := range sink.AllLogs() {
			for _, resource := range batch.ResourceLogs().All() {
				for _, scope := range resource.ScopeLogs().All() {
					for _, record := range scope.LogRecords().All() {
						all = append(all, record)
					}
				}
			}
		}
		return all
	}, stop
}
