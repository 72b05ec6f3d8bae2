// The web client of Go's library, as the benchmark "client" runs it: so many
// goroutines with a connection each, which stays open, ask a server on this
// machine for a path, and read each answer to its end. Prints its figures as a
// line of JSON, and waits for a line of input before it ends.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
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

func main() {
	if len(os.Args) != 6 || os.Args[1] != "get" {
		fail("usage: go-client get PORT SIZE CONNECTIONS REQUESTS")
	}
	size, connections, each := number(os.Args[3]), number(os.Args[4]), number(os.Args[5])
	url := fmt.Sprintf("http://127.0.0.1:%s/%dk", os.Args[2], size)
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
	run(before)
	cpu, begun := cpuSeconds(), time.Now()
	run(each)
	wall, spent := time.Since(begun).Seconds(), cpuSeconds()-cpu
	count := float64(connections * each)
	line, err := json.Marshal(map[string]float64{
		"wall_s": wall, "cpu_s": spent, "ops_per_s": count / wall, "cpu_us_per_op": 1e6 * spent / count,
	})
	if err != nil {
		fail(err.Error())
	}
	fmt.Println(string(line))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}
