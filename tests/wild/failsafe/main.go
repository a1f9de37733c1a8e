// A reverse proxy with failsafe-go's adaptive limiter and prioritizer, which `scripts/bench wild` compares with Headgate.
//
// The arguments are paths in the order of their priorities, the highest first. Flags change the limiter's defaults.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/priority"
)

func main() {
	listen := flag.String("listen", "", "address to serve on")
	upstream := flag.String("upstream", "", "address of the service")
	most := flag.Uint("max", 200, "largest limit")
	initial := flag.Uint("initial", 20, "limit at the start")
	queue := flag.Float64("queue", 2, "requests that may wait, as a multiple of the limit, before some are rejected")
	wait := flag.Duration("wait", 0, "longest wait; 0 for no limit")
	flag.Parse()

	prioritizer := adaptivelimiter.NewPrioritizer()
	defer prioritizer.ScheduleCalibrations(context.Background(), 100*time.Millisecond)()
	builder := adaptivelimiter.NewBuilder[*http.Response]().
		WithLimits(1, *most, *initial).
		WithQueueing(*queue, *queue+1)
	if *wait > 0 {
		builder = builder.WithMaxWaitTime(*wait)
	}
	limiter := builder.BuildPrioritized(prioritizer)

	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: *upstream})
	proxy.ErrorLog = log.New(discard{}, "", 0)
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 1_000}
	limited := failsafehttp.NewHandler(proxy, limiter)
	log.Fatal(http.ListenAndServe(*listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limited.ServeHTTP(w, r.WithContext(level(r.URL.Path, flag.Args()).AddTo(r.Context())))
	})))
}

// level returns the priority of a path. The first of `paths` has the highest.
func level(path string, paths []string) priority.Priority {
	for i, prefix := range paths {
		if strings.HasPrefix(path, prefix) {
			return max(priority.VeryHigh-priority.Priority(i), priority.VeryLow)
		}
	}
	return priority.VeryLow
}

// discard ignores the proxy's log about clients that left.
type discard struct{}

func (discard) Write(line []byte) (int, error) { return len(line), nil }
