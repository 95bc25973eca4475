package ship

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"os"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
)

// Receiver says where rows go, and how.
type Receiver struct {
	// URL is http:// or https:// for lines, otlp+http:// or otlp+https:// for
	// OpenTelemetry, syslog+tls:// for syslog. Without TLS only loopback
	// addresses are taken.
	URL string
	// Format is that of lines: ocsf or jsonl. List posts them as one JSON list.
	Format string
	List   bool
	// HeaderFile has header lines, such as one with a token; "" for none.
	HeaderFile string
	// CA, Cert and Key are PEM files; "" for the system's authorities, and no
	// certificate.
	CA, Cert, Key string
	// Timeout bounds one delivery.
	Timeout time.Duration
	Version string // of the product
	Host    string
}

// Open prepares a sink. Nothing is connected to.
func (c *Receiver) Open() (Sink, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" {
		return nil, errors.New("the receiver is not an address such as https://siem.example.com/ingest, otlp+https://collector.example.com/v1/logs or syslog+tls://siem.example.com:6514")
	}
	config, err := c.tlsConfig(u.Hostname())
	if err != nil {
		return nil, err
	}
	plain := u.Scheme == "http" || u.Scheme == "otlp+http"
	if plain && !loopback(u.Hostname()) {
		return nil, fmt.Errorf("%s://%s would send records in clear over the network; use TLS", u.Scheme, u.Host)
	}
	options := export.Options{Version: c.Version, Host: c.Host, Octets: true}
	switch u.Scheme {
	case "http", "https":
		p, err := c.poster(u, u.Scheme, config)
		if err != nil {
			return nil, err
		}
		if c.Format != "ocsf" && c.Format != "jsonl" {
			return nil, fmt.Errorf("there is no format %q to post; it is ocsf or jsonl", c.Format)
		}
		return &lineSink{poster: p, format: c.Format, options: options, list: c.List}, nil
	case "otlp+http", "otlp+https":
		p, err := c.poster(u, u.Scheme[len("otlp+"):], config)
		if err != nil {
			return nil, err
		}
		attribute := func(name, value string) *common.KeyValue {
			return &common.KeyValue{Key: name, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
		}
		return &otlpSink{poster: p, resource: &resource.Resource{Attributes: []*common.KeyValue{
			attribute("service.name", "mcp-audit"), attribute("service.version", c.Version), attribute("host.name", c.Host),
		}}}, nil
	case "syslog+tls":
		if c.HeaderFile != "" {
			return nil, errors.New("syslog has no headers; leave --header-file out")
		}
		address := u.Host
		if u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), "6514")
		}
		return &syslogSink{address: address, tls: config, options: options, timeout: c.Timeout}, nil
	}
	return nil, fmt.Errorf("there is no way to deliver to %s://; it is http, https, otlp+http, otlp+https or syslog+tls", u.Scheme)
}

func (c *Receiver) poster(u *url.URL, scheme string, config *tls.Config) (poster, error) {
	header, err := readHeader(c.HeaderFile)
	if err != nil {
		return poster{}, err
	}
	to := *u
	to.Scheme = scheme
	p := poster{
		client: &http.Client{
			Timeout:   c.Timeout,
			Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 1},
			// A redirect would take records, and the token, elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		url: to.String(), name: u.Scheme + "://" + u.Host + u.EscapedPath(), header: header,
	}
	return p, nil
}

func (c *Receiver) tlsConfig(host string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("reading the authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", c.CA)
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("a client certificate needs both --cert and --key")
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("reading the client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// maxHeaderFile bounds a file of headers.
const maxHeaderFile = 64 << 10

// readHeader reads lines of "Name: value".
func readHeader(path string) (http.Header, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the headers: %w", err)
	}
	if len(data) > maxHeaderFile {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxHeaderFile)
	}
	text := append(bytes.TrimSpace(data), "\n\n"...)
	header, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(text))).ReadMIMEHeader()
	if err != nil {
		// The parser's error quotes the line, which may be a token.
		return nil, fmt.Errorf("%s is not made of lines such as \"Authorization: Bearer …\"", path)
	}
	return http.Header(header), nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
