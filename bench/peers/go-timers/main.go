// The timer benchmarks on Go's runtime: what bench/subjects has as delay,
// timeouts, pending, lateness and deadlines. Each subcommand prints its figures
// as a line of JSON and waits for a line of input before it goes on or ends, so
// that whoever started it can ask the kernel about the process. GOMAXPROCS says
// how many cores it uses.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"
)

type figures map[string]float64

var input = bufio.NewReader(os.Stdin)

func say(f figures) {
	line, err := json.Marshal(f)
	if err != nil {
		fail(err.Error())
	}
	fmt.Println(string(line))
}

// hear waits for a line, or the end, of standard input.
func hear() { _, _ = input.ReadString('\n') }

func fail(message string) {
	fmt.Fprintln(os.Stderr, "go-timers:", message)
	os.Exit(1)
}

// spending runs an action and returns the seconds it took, by the clock and of
// the CPU.
func spending(action func()) (wall, cpu float64) {
	before := cpuSeconds()
	begun := time.Now()
	action()
	wall = time.Since(begun).Seconds()
	return wall, cpuSeconds() - before
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err.Error())
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

// liveBytes collects twice, as the Haskell subjects do.
func liveBytes() float64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// delay: so many goroutines that sleep a millisecond each.
func delay(threads int) {
	wall, cpu := spending(func() {
		var finished sync.WaitGroup
		finished.Add(threads)
		for i := 0; i < threads; i++ {
			go func() {
				time.Sleep(time.Millisecond)
				finished.Done()
			}()
		}
		finished.Wait()
	})
	say(figures{"wall_s": wall, "cpu_s": cpu, "ns_per_op": 1e9 * wall / float64(threads)})
	hear()
}

// timeouts: timers of ten seconds that are set and stopped.
func timeouts(threads, each int) {
	wall, cpu := spending(func() {
		var finished sync.WaitGroup
		finished.Add(threads)
		for i := 0; i < threads; i++ {
			go func() {
				for k := 0; k < each; k++ {
					timer := time.AfterFunc(10*time.Second, func() { fail("a timer fired") })
					timer.Stop()
				}
				finished.Done()
			}()
		}
		finished.Wait()
	})
	count := float64(threads * each)
	say(figures{"ns_per_op": 1e9 * wall / count, "cpu_us_per_op": 1e6 * cpu / count, "wall_s": wall, "cpu_s": cpu})
	hear()
}

// pending: timers a minute away.
func pending(count int) {
	timers := make([]*time.Timer, count)
	callback := func() {}
	time.Sleep(200 * time.Millisecond)
	before := liveBytes()
	wall, _ := spending(func() {
		for i := range timers {
			timers[i] = time.AfterFunc(time.Minute, callback)
		}
	})
	time.Sleep(200 * time.Millisecond)
	say(figures{
		"live_bytes_per_timer": (liveBytes() - before) / float64(count),
		"set_ns_per_op":        1e9 * wall / float64(count),
	})
	hear()
	wall, _ = spending(func() {
		for i := range timers {
			timers[i].Stop()
		}
	})
	for i := range timers {
		timers[i] = nil
	}
	time.Sleep(200 * time.Millisecond)
	say(figures{
		"left_bytes_per_timer": (liveBytes() - before) / float64(count),
		"cancel_ns_per_op":     1e9 * wall / float64(count),
	})
	hear()
	runtime.KeepAlive(timers)
}

// lateness: sleeps of 100 us to 10 ms, in the order in which the Haskell
// subjects ask for them.
func lateness(count, threads int) {
	each := count / threads
	samples := make([]int64, each*threads)
	wall, cpu := spending(func() {
		var finished sync.WaitGroup
		finished.Add(threads)
		for i := 0; i < threads; i++ {
			go func(part []int64, state uint64) {
				for k := range part {
					state ^= state << 13
					state ^= state >> 7
					state ^= state << 17
					asked := time.Duration(100+(state>>33)%9901) * time.Microsecond
					begun := time.Now()
					time.Sleep(asked)
					part[k] = int64(time.Since(begun) - asked)
				}
				finished.Done()
			}(samples[i*each:(i+1)*each], 0x9e3779b97f4a7c15*uint64(i+1))
		}
		finished.Wait()
	})
	sort.Slice(samples, func(a, b int) bool { return samples[a] < samples[b] })
	early := sort.Search(len(samples), func(i int) bool { return samples[i] >= 0 })
	// Nearest rank.
	at := func(percent int) float64 {
		rank := (len(samples)*percent + 99) / 100
		if rank < 1 {
			rank = 1
		}
		return float64(samples[rank-1]) / 1000
	}
	say(figures{
		"p50_us": at(50), "p95_us": at(95), "p99_us": at(99), "max_us": at(100),
		"early": float64(early), "delays": float64(len(samples)), "wall_s": wall, "cpu_s": cpu,
	})
	hear()
}

// reset: a timer of thirty seconds that is set anew all the time.
func reset(count int) {
	timer := time.AfterFunc(30*time.Second, func() { fail("the timer fired") })
	wall, cpu := spending(func() {
		for i := 0; i < count; i++ {
			timer.Reset(30 * time.Second)
		}
	})
	say(figures{"ns_per_op": 1e9 * wall / float64(count), "cpu_s": cpu})
	hear()
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: go-timers delay THREADS | timeouts THREADS EACH | pending TIMERS |"+
		" lateness COUNT THREADS | reset COUNT")
	os.Exit(2)
}

func main() {
	if len(os.Args) < 3 {
		usage()
	}
	var numbers []int
	for _, argument := range os.Args[2:] {
		number, err := strconv.Atoi(argument)
		if err != nil || number <= 0 {
			usage()
		}
		numbers = append(numbers, number)
	}
	one := map[string]func(int){"delay": delay, "pending": pending, "reset": reset}
	two := map[string]func(int, int){"timeouts": timeouts, "lateness": lateness}
	if run, found := one[os.Args[1]]; found && len(numbers) == 1 {
		run(numbers[0])
	} else if run, found := two[os.Args[1]]; found && len(numbers) == 2 {
		run(numbers[0], numbers[1])
	} else {
		usage()
	}
}
