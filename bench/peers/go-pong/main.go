// The pong server on Go's net package: a goroutine a connection, one Read and
// one Write a request. GOMAXPROCS says how many cores it uses.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
)

const response = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nPong!"

var endOfHead = [4]byte{'\r', '\n', '\r', '\n'}

// scanHeads counts the request heads that end in these bytes; matched is how
// much of the end mark the bytes before them had shown.
func scanHeads(bytes []byte, matched int) (heads, after int) {
	for _, b := range bytes {
		switch {
		case b == endOfHead[matched]:
			matched++
			if matched == len(endOfHead) {
				heads++
				matched = 0
			}
		case b == '\r':
			matched = 1
		default:
			matched = 0
		}
	}
	return heads, matched
}

func serve(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 4096)
	answer := []byte(response)
	matched := 0
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		var heads int
		heads, matched = scanHeads(buffer[:n], matched)
		for ; heads > 0; heads-- {
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	}
}

func main() {
	port := flag.Int("port", 0, "port to listen on; 0 lets the system choose")
	flag.Parse()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-pong:", err)
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		os.Exit(0)
	}()
	fmt.Printf("listening on %d\n", listener.Addr().(*net.TCPAddr).Port)
	for {
		conn, err := listener.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "go-pong:", err)
			continue
		}
		go serve(conn)
	}
}
