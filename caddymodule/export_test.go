package caddymodule

import (
	"github.com/prometheus/client_golang/prometheus"
)

// EventNames are those of all events.
var EventNames = eventNames

// AdminPaths are those of all admin endpoints.
func AdminPaths() (all []string) {
	for _, r := range (adminAPI{}).Routes() {
		all = append(all, r.Pattern)
	}
	return all
}

// Descriptions are those of every metric that a registry is given.
func Descriptions() (all []*prometheus.Desc) {
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		newGauges().Describe(ch)
		for _, c := range newSeries().collectors() {
			c.Describe(ch)
		}
	}()
	for d := range ch {
		all = append(all, d)
	}
	return all
}
