module weft/bench/go-client

go 1.19
