//go:build !go1.24

package main

import "net/http"

// Without TLS there is HTTP/1.1 only.
func cleartext(server *http.Server) {}
