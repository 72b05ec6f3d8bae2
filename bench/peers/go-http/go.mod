module weft/bench/go-http

go 1.19
