// Go's client of HTTP: `client.go URL [VERSION]`. Prints "ok", or ends with what was wrong. With a version (1 or 2) of
// HTTP it speaks TLS and does not look at the certificate.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func fail(what string, found, wanted interface{}) {
	fmt.Printf("%s: %.200v instead of %.200v\n", what, found, wanted)
	os.Exit(1)
}

func main() {
	base := os.Args[1]
	transport := &http.Transport{Proxy: nil, MaxIdleConnsPerHost: 100, ExpectContinueTimeout: 5 * time.Second}
	wanted := 1
	if len(os.Args) > 2 {
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
		if os.Args[2] == "2" {
			wanted = 2
			transport.ForceAttemptHTTP2 = true
		} else {
			transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		}
	}
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	var fresh int32
	ask := func(method, path string, body io.Reader, change func(*http.Request)) (int, []byte) {
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			if !info.Reused {
				atomic.AddInt32(&fresh, 1)
			}
		}}
		request, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), method, base+path, body)
		if err != nil {
			fail("request", err, nil)
		}
		if change != nil {
			change(request)
		}
		response, err := client.Do(request)
		if err != nil {
			fail(method+" "+path, err, nil)
		}
		defer response.Body.Close()
		if response.ProtoMajor != wanted {
			fail("version", response.Proto, wanted)
		}
		all, err := io.ReadAll(response.Body)
		if err != nil {
			fail("body of "+path, err, nil)
		}
		return response.StatusCode, all
	}
	expect := func(what string, status int, body []byte, wantedStatus int, wantedBody string) {
		if status != wantedStatus || string(body) != wantedBody {
			fail(what, fmt.Sprintf("%d %.100s", status, body), fmt.Sprintf("%d %.100s", wantedStatus, wantedBody))
		}
	}
	// One connection serves requests that follow one another.
	for i := 0; i < 500; i++ {
		status, body := ask("GET", "/hello", nil, nil)
		expect("hello", status, body, 200, "hello")
	}
	if fresh != 1 {
		fail("connections", fresh, 1)
	}
	// Many at once.
	var group sync.WaitGroup
	for i := 0; i < 50; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for j := 0; j < 40; j++ {
				status, body := ask("GET", "/hello", nil, nil)
				expect("hello", status, body, 200, "hello")
				status, body = ask("POST", "/count", bytes.NewReader(make([]byte, 5000)), nil)
				expect("count", status, body, 200, "5000")
			}
		}()
	}
	group.Wait()
	// 32 MiB whose length is not known.
	hash := sha256.New()
	in, out := io.Pipe()
	go func() {
		piece := make([]byte, 32768)
		for i := 0; i < 1024; i++ {
			for k := range piece {
				piece[k] = byte(i*7 + k)
			}
			hash.Write(piece)
			out.Write(piece)
		}
		out.Close()
	}()
	status, body := ask("POST", "/hash", in, nil)
	expect("hash", status, body, 200, fmt.Sprintf("%x", hash.Sum(nil)))
	// The body is sent when the server asks for it.
	status, body = ask("POST", "/count", bytes.NewReader(make([]byte, 200000)), func(r *http.Request) { r.Header.Set("Expect", "100-continue") })
	expect("100-continue", status, body, 200, "200000")
	status, body = ask("POST", "/unread", bytes.NewReader(make([]byte, 200000)), func(r *http.Request) { r.Header.Set("Expect", "100-continue") })
	expect("no 100-continue", status, body, 200, "unread")
	// Trailers.
	status, body = ask("POST", "/count", io.MultiReader(strings.NewReader("four")), func(r *http.Request) { r.Trailer = http.Header{"X-Sum": []string{"4"}} })
	expect("trailers", status, body, 200, "4")
	status, body = ask("GET", "/file", nil, nil)
	expect("file", status, body, 200, strings.Repeat("x", 3000000))
	status, body = ask("GET", "/stream?n=1000000", nil, nil)
	expect("stream", status, body, 200, strings.Repeat("x", 1000000))
	status, body = ask("HEAD", "/file", nil, nil)
	expect("HEAD", status, body, 200, "")
	for _, k := range []int{204, 304, 404, 500} {
		status, _ = ask("GET", fmt.Sprintf("/status?k=%d", k), nil, nil)
		if status != k {
			fail("status", status, k)
		}
	}
	// A request that is given up does not disturb others.
	for i := 0; i < 20; i++ {
		limited, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		request, _ := http.NewRequestWithContext(limited, "GET", base+"/slow?n=300", nil)
		if response, err := client.Do(request); err == nil {
			fail("given up", response.Status, "an error")
		}
		cancel()
		status, body = ask("GET", "/hello", nil, nil)
		expect("hello", status, body, 200, "hello")
	}
	fmt.Println("ok")
}
