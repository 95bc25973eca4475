// Package bridge connects a stdio MCP server, a child process that speaks one
// JSON-RPC message a line, with HTTP requests in the shape of MCP's Streamable
// HTTP transport. It is a pure http.Handler: it starts nothing and listens
// nowhere.
//
// A line the client sends arrives as a POST and goes to the child byte for
// byte. What the child writes comes back on the POST it answers, or, if it
// answers none, on the GET stream. Each line of the child carries its number
// in the order the child wrote it, so that the reader of the HTTP side can put
// the lines of several exchanges back into one order.
package bridge
