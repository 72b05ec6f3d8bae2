// The clients of Go's library, as the benchmark "client" runs them. "get": so many
// goroutines with a connection each, which stays open, ask a server on this
// machine for a path, and read each answer to its end. "names": so many goroutines
// look names up, which one name server on this machine knows. Prints its figures
// as a line of JSON, and waits for a line of input before it ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Requests of each connection before those that count.
const before = 50

func fail(message string) {
	fmt.Fprintln(os.Stderr, "go-client:", message)
	os.Exit(1)
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		fail("not a number: " + text)
	}
	return n
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err.Error())
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

// Runs what does not count, then what counts, and prints the figures.
func measure(count int, warm, run func()) {
	warm()
	cpu, begun := cpuSeconds(), time.Now()
	run()
	wall, spent := time.Since(begun).Seconds(), cpuSeconds()-cpu
	line, err := json.Marshal(map[string]float64{
		"wall_s": wall, "cpu_s": spent, "ops_per_s": float64(count) / wall, "cpu_us_per_op": 1e6 * spent / float64(count),
	})
	if err != nil {
		fail(err.Error())
	}
	fmt.Println(string(line))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

func names(port string, count, atOnce int) {
	resolver := &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, "127.0.0.1:"+port)
		},
	}
	run := func(count int) {
		var finished sync.WaitGroup
		finished.Add(atOnce)
		for i := 0; i < atOnce; i++ {
			go func(i int) {
				for k := i; k < count; k += atOnce {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					found, err := resolver.LookupIPAddr(ctx, fmt.Sprintf("n%d.example.test.", k%1000))
					cancel()
					if err != nil {
						fail(err.Error())
					}
					if len(found) != 2 {
						fail("not the addresses that were expected")
					}
				}
				finished.Done()
			}(i)
		}
		finished.Wait()
	}
	measure(count, func() { run(1000) }, func() { run(count) })
}

func main() {
	switch {
	case len(os.Args) == 6 && os.Args[1] == "get":
		gets(os.Args[2], number(os.Args[3]), number(os.Args[4]), number(os.Args[5]))
	case len(os.Args) == 5 && os.Args[1] == "names":
		names(os.Args[2], number(os.Args[3]), number(os.Args[4]))
	default:
		fail("usage: go-client get PORT SIZE CONNECTIONS REQUESTS | go-client names PORT COUNT AT-ONCE")
	}
}

func gets(port string, size, connections, each int) {
	url := fmt.Sprintf("http://127.0.0.1:%s/%dk", port, size)
	client := &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			MaxConnsPerHost:     connections,
			MaxIdleConnsPerHost: connections,
			DisableCompression:  true,
		},
	}
	get := func(request *http.Request) {
		answer, err := client.Do(request)
		if err != nil {
			fail(err.Error())
		}
		n, err := io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != 200 || n != int64(1024*size) {
			fail("not the answer that was expected")
		}
	}
	run := func(each int) {
		var finished sync.WaitGroup
		finished.Add(connections)
		for i := 0; i < connections; i++ {
			request, err := http.NewRequest("GET", url, nil)
			if err != nil {
				fail(err.Error())
			}
			go func() {
				for k := 0; k < each; k++ {
					get(request)
				}
				finished.Done()
			}()
		}
		finished.Wait()
	}
	measure(connections*each, func() { run(before) }, func() { run(each) })
}
