module weft/bench/go-web

go 1.19
