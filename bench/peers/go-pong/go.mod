module weft/bench/go-pong

go 1.19
