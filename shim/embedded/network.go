package embedded

import (
	"context"
	"net"
	"sync"
)

// network is a net.Listener whose connections are pipes in memory. It is safe
// for concurrent use.
type network struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	open int
	idle chan struct{} // closed and replaced when open becomes 0
}

func newNetwork() *network {
	return &network{conns: make(chan net.Conn), closed: make(chan struct{}), idle: make(chan struct{})}
}

// addr is the address of both ends. "@" is what servers see of a client on an
// unnamed local socket.
type addr struct{}

func (addr) Network() string { return "mcpshim" }
func (addr) String() string  { return "@" }

// dial connects to the listener.
func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	n.mu.Lock()
	n.open++
	n.mu.Unlock()
	tracked := &conn{Conn: server, closed: n.release}
	select {
	case n.conns <- tracked:
		return &conn{Conn: client}, nil
	case <-n.closed:
	case <-ctx.Done():
	}
	_ = client.Close()
	_ = tracked.Close()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, net.ErrClosed
}

func (n *network) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open--; n.open == 0 {
		close(n.idle)
		n.idle = make(chan struct{})
	}
}

// wait returns when the server has closed every connection, so that no handler
// runs any more, or when ctx ends.
func (n *network) wait(ctx context.Context) bool {
	n.mu.Lock()
	open, idle := n.open, n.idle
	n.mu.Unlock()
	if open == 0 {
		return true
	}
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// Accept implements net.Listener.
func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (n *network) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

// Addr implements net.Listener.
func (n *network) Addr() net.Addr { return addr{} }

// conn is one end of a pipe.
type conn struct {
	net.Conn
	closed func() // nil: nobody is told
	once   sync.Once
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	if c.closed != nil {
		c.once.Do(c.closed)
	}
	return err
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return addr{} }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return addr{} }
