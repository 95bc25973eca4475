package token

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

// mostAddresses bounds the addresses that a Throttle remembers.
const mostAddresses = 8192

// Throttle counts wrong tokens by address, and says who has sent too many. It
// remembers at most 8192 addresses, and forgets first the one that was wrong
// the longest ago. Safe for concurrent use.
type Throttle struct {
	Most   int           // wrong tokens in Window
	Window time.Duration // from the first of them on

	mu        sync.Mutex
	addresses map[string]*list.Element
	recent    list.List // of *attempts, the latest at the front
}

type attempts struct {
	address string
	wrong   int
	until   time.Time
}

// Wait is how long an address has to wait; 0: not at all.
func (t *Throttle) Wait(address string, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.addresses[network(address)]
	if e == nil {
		return 0
	}
	if a := e.Value.(*attempts); a.wrong >= t.Most && now.Before(a.until) {
		return a.until.Sub(now)
	}
	return 0
}

// Wrong counts a wrong token.
func (t *Throttle) Wrong(address string, now time.Time) {
	address = network(address)
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.addresses[address]
	if e == nil {
		if t.addresses == nil {
			t.addresses = make(map[string]*list.Element)
		}
		if len(t.addresses) >= mostAddresses {
			oldest := t.recent.Back()
			delete(t.addresses, t.recent.Remove(oldest).(*attempts).address)
		}
		e = t.recent.PushFront(&attempts{address: address})
		t.addresses[address] = e
	}
	a := e.Value.(*attempts)
	if !now.Before(a.until) {
		a.wrong, a.until = 0, now.Add(t.Window)
	}
	a.wrong++
	t.recent.MoveToFront(e)
}

// network is an address as it is counted by: with IPv6 one host has a whole
// /64. The port does not count.
func network(address string) string {
	if at, err := netip.ParseAddrPort(address); err == nil {
		address = at.Addr().String()
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	if ip = ip.Unmap(); ip.Is4() {
		return ip.String()
	}
	prefix, _ := ip.WithZone("").Prefix(64)
	return prefix.String()
}
