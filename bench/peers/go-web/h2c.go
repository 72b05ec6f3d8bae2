//go:build go1.24

package main

import "net/http"

// HTTP/2 with prior knowledge, beside HTTP/1.1.
func cleartext(server *http.Server) {
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
}
