// The WAI pong application's peer on Go's net/http. GOMAXPROCS says how many cores it uses.
//
// GET / answers five bytes, GET /browser the same with five fields, POST /echo the body that came. GET /1k, /16k and
// /1m answer as many bytes from memory; POST /upload reads the body and answers five bytes. With --certificate and
// --key it serves HTTPS and HTTP/2.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

var pong = []byte("Pong!")

var files = map[string][]byte{
	"/1k":  bytes.Repeat([]byte("x"), 1<<10),
	"/16k": bytes.Repeat([]byte("x"), 16<<10),
	"/1m":  bytes.Repeat([]byte("x"), 1<<20),
}

func answer(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && r.URL.Path == "/upload" {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	body, file := files[r.URL.Path]
	if !file {
		body = pong
	}
	fields := w.Header()
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/echo":
		sent := make([]byte, max(0, r.ContentLength))
		if _, err := io.ReadFull(r.Body, sent); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = sent
	case r.URL.Path == "/browser":
		fields.Set("Cache-Control", "public, max-age=3600")
		fields.Set("ETag", `"5d8c72a5edda8d6a"`)
		fields.Set("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT")
		fields.Set("Vary", "Accept-Encoding")
	}
	fields.Set("Content-Type", "text/plain")
	fields.Set("Content-Length", strconv.Itoa(len(body)))
	w.Write(body)
}

func max(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

func main() {
	port := flag.Int("port", 0, "port to listen on; 0 lets the system choose")
	certificate := flag.String("certificate", "", "certificate chain (PEM)")
	key := flag.String("key", "", "its key (PEM)")
	flag.Parse()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-http:", err)
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		os.Exit(0)
	}()
	fmt.Printf("listening on %d\n", listener.Addr().(*net.TCPAddr).Port)
	server := http.Server{Handler: http.HandlerFunc(answer), ErrorLog: log.New(io.Discard, "", 0)}
	if *certificate != "" {
		server.ServeTLS(listener, *certificate, *key)
	}
	server.Serve(listener)
}
