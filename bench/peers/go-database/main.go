// The peer of subjects/WebApp.hs for its path /database, on Go's net/http, database/sql and lib/pq.
package main

import (
	"database/sql"
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
	"syscall"

	_ "github.com/lib/pq"
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

func main() {
	port := flag.Int("port", 0, "port to listen on; 0 lets the system choose")
	folder := flag.String("database", "", "folder of PostgreSQL's socket")
	flag.Parse()
	database, err := sql.Open("postgres", "host="+*folder+" user=postgres dbname=postgres sslmode=disable")
	if err != nil {
		log.Fatal("go-database: ", err)
	}
	database.SetMaxOpenConns(16)
	database.SetMaxIdleConns(16)
	query, err := database.Prepare("SELECT id, name, category, price, quantity, active FROM items WHERE price BETWEEN $1 AND $2 ORDER BY price LIMIT 50")
	if err != nil {
		log.Fatal("go-database: ", err)
	}
	http.HandleFunc("/database", func(w http.ResponseWriter, r *http.Request) {
		least, _ := strconv.Atoi(r.URL.Query().Get("min"))
		most, _ := strconv.Atoi(r.URL.Query().Get("max"))
		rows, err := query.Query(least, most)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer rows.Close()
		found := []item{}
		for rows.Next() {
			one := item{Tags: []string{}}
			if err := rows.Scan(&one.ID, &one.Name, &one.Category, &one.Price, &one.Quantity, &one.Active); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			one.Total = one.Price * one.Quantity
			found = append(found, one)
		}
		body, _ := json.Marshal(answer{found, len(found)})
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	})
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal("go-database: ", err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		os.Exit(0)
	}()
	fmt.Printf("listening on %d\n", listener.Addr().(*net.TCPAddr).Port)
	server := http.Server{ErrorLog: log.New(io.Discard, "", 0)}
	server.Serve(listener)
}
