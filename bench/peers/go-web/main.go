// What applications do, on Go's net/http: the peer of subjects/WebApp.hs, which says what each path does. GOMAXPROCS
// says how many cores it uses. HTTP/2 without TLS needs Go 1.24 (h2c.go).
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

type item struct {
	ID       int      `json:"id"`
	Name     string   `json:"name"`
	Category string   `json:"category"`
	Price    int      `json:"price"`
	Quantity int      `json:"quantity"`
	Active   bool     `json:"active"`
	Tags     []string `json:"tags"`
	Total    int      `json:"total"`
}

type answer struct {
	Items []item `json:"items"`
	Count int    `json:"count"`
}

var items []item

func makeItems() {
	categories := []string{"tools", "garden", "kitchen", "other"}
	for n := 1; n <= 50; n++ {
		items = append(items, item{n, fmt.Sprintf("Item %d", n), categories[n%4], 100 + 37*n, n % 7, n%2 == 0,
			[]string{"new", fmt.Sprintf("tag-%d", n%5)}, 0})
	}
}

func send(w http.ResponseWriter, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Write(body)
}

func sum(w http.ResponseWriter, r *http.Request) {
	total := 0
	for _, values := range r.URL.Query() {
		for _, value := range values {
			n, _ := strconv.Atoi(value)
			total += n
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(body)))
	send(w, "text/plain", []byte(strconv.Itoa(total+n)))
}

func list(w http.ResponseWriter, r *http.Request) {
	times, err := strconv.Atoi(r.URL.Query().Get("m"))
	if err != nil {
		times = 1
	}
	found := make([]item, len(items))
	for i, one := range items {
		found[i] = one
		found[i].Total = one.Price * one.Quantity * times
	}
	body, _ := json.Marshal(answer{found, len(found)})
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var small bytes.Buffer
		compressor, _ := gzip.NewWriterLevel(&small, gzip.BestSpeed)
		compressor.Write(body)
		compressor.Close()
		w.Header().Set("Content-Encoding", "gzip")
		body = small.Bytes()
	}
	send(w, "application/json", body)
}

func upload(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	send(w, "text/plain", []byte(strconv.FormatInt(n, 10)))
}

// A method of gRPC.
func grpcSum(w http.ResponseWriter, r *http.Request) {
	message, err := io.ReadAll(r.Body)
	if err != nil || len(message) < 13 {
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	answer := []byte{0, 0, 0, 0, 4, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(answer[5:], binary.BigEndian.Uint32(message[5:])+binary.BigEndian.Uint32(message[9:]))
	w.Write(answer)
	w.Header().Set("Grpc-Status", "0")
}

// A WebSocket that echoes frames of less than 64 KiB, which is all that the benchmark sends.
func echo(w http.ResponseWriter, r *http.Request) {
	key := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	connection, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer connection.Close()
	fmt.Fprintf(buffered, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(key[:]))
	buffered.Flush()
	var head [8]byte
	frame := make([]byte, 4+65535)
	for {
		if _, err := io.ReadFull(buffered, head[:2]); err != nil {
			return
		}
		length, start := int(head[1]&127), 2
		if length == 126 {
			if _, err := io.ReadFull(buffered, head[2:4]); err != nil {
				return
			}
			length, start = int(binary.BigEndian.Uint16(head[2:4])), 4
			binary.BigEndian.PutUint16(frame[2:4], uint16(length))
		}
		var mask [4]byte
		if _, err := io.ReadFull(buffered, mask[:]); err != nil {
			return
		}
		payload := frame[start : start+length]
		if _, err := io.ReadFull(buffered, payload); err != nil {
			return
		}
		for i := range payload {
			payload[i] ^= mask[i&3]
		}
		frame[0], frame[1] = head[0], head[1]&127
		if _, err := connection.Write(frame[:start+length]); err != nil || head[0]&15 == 8 {
			return
		}
	}
}

func main() {
	port := flag.Int("port", 0, "port to listen on; 0 lets the system choose")
	certificate := flag.String("certificate", "", "certificate chain (PEM)")
	key := flag.String("key", "", "its key (PEM)")
	flag.Parse()
	makeItems()
	http.HandleFunc("/sum", sum)
	http.HandleFunc("/items", list)
	http.HandleFunc("/upload", upload)
	http.HandleFunc("/echo", echo)
	http.HandleFunc("/weft.Bench/Sum", grpcSum)
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-web:", err)
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		os.Exit(0)
	}()
	fmt.Printf("listening on %d\n", listener.Addr().(*net.TCPAddr).Port)
	server := http.Server{ErrorLog: log.New(io.Discard, "", 0)}
	cleartext(&server)
	if *certificate != "" {
		server.ServeTLS(listener, *certificate, *key)
	}
	server.Serve(listener)
}
