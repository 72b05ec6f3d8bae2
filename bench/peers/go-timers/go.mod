module weft/bench/go-timers

go 1.19
