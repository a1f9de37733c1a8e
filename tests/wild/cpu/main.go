// An image server of a photo site. Its requests only use CPU time, each on its own goroutine.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"html/template"
	"image"
	"image/color"
	"image/jpeg"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
)

const edge = 700

var page = template.Must(template.New("page").Parse(
	`<ul>{{range .}}<li><a href="/photo/{{.}}">Photo {{.}}</a> of the album "Summer & Sea"</li>{{end}}</ul>`))

var photo = func() image.Image {
	picture := image.NewYCbCr(image.Rect(0, 0, edge, edge), image.YCbCrSubsampleRatio420)
	for i := range picture.Y {
		picture.Y[i] = byte(i*i/edge) ^ byte(rand.N(16))
	}
	return picture
}()

// shrink scales a part of the photo down to an edge of `to` pixels and encodes it.
func shrink(w http.ResponseWriter, to, part int) {
	small := image.NewRGBA(image.Rect(0, 0, to, to))
	left, top := rand.N(edge-part+1), rand.N(edge-part+1)
	for y := range to {
		for x := range to {
			var r, g, b, n uint32
			for dy := y * part / to; dy < (y+1)*part/to; dy++ {
				for dx := x * part / to; dx < (x+1)*part/to; dx++ {
					pr, pg, pb, _ := photo.At(left+dx, top+dy).RGBA()
					r, g, b, n = r+pr>>8, g+pg>>8, b+pb>>8, n+1
				}
			}
			small.SetRGBA(x, y, color.RGBA{byte(r / n), byte(g / n), byte(b / n), 255})
		}
	}
	w.Header().Set("Content-Type", "image/jpeg")
	jpeg.Encode(w, small, &jpeg.Options{Quality: 85})
}

func album(w http.ResponseWriter, _ *http.Request) {
	var body bytes.Buffer
	packed := gzip.NewWriter(&body)
	photos := make([]string, 400)
	for i := range photos {
		photos[i] = fmt.Sprint(rand.N(1_000_000))
	}
	page.Execute(packed, photos)
	packed.Close()
	w.Header().Set("Content-Encoding", "gzip")
	w.Write(body.Bytes())
}

func main() {
	http.HandleFunc("/album", album)
	http.HandleFunc("/thumbnail", func(w http.ResponseWriter, _ *http.Request) { shrink(w, 100, 350) })
	http.HandleFunc("/photo", func(w http.ResponseWriter, _ *http.Request) { shrink(w, 650, 700) })
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, nil))
}
