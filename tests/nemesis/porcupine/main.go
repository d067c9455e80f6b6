// Porcupine's opinion of the calls of keys that a campaign wrote down: `go run . calls.json`, a line of JSON for each call.
//
// A call without an end may have taken effect at any time after its start, or never: it ends after all others, and nothing is
// known of its answer. Ends with 1 and a line for each key whose answers no order explains.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const checkSecondsMax = 60

type call struct {
	Key      string          `json:"key"`
	Client   string          `json:"client"`
	Action   string          `json:"action"`
	Argument *int64          `json:"argument"`
	Start    int64           `json:"start"`
	End      *int64          `json:"end"`
	Answer   json.RawMessage `json:"answer"`
}

// The value of a key; nothing if there is none.
type value struct {
	isThere bool
	number  int64
}

func (c call) said(v value) bool {
	if c.End == nil {
		return true
	}
	switch c.Action {
	case "delete":
		return string(c.Answer) == fmt.Sprint(v.isThere)
	case "create":
		return string(c.Answer) == fmt.Sprint(!v.isThere)
	case "set":
		return true
	}
	if !v.isThere {
		return string(c.Answer) == "null"
	}
	return string(c.Answer) == fmt.Sprint(v.number)
}

// Whether the answer fits the value that it met, and the value after it.
func step(met value, c call) (bool, value) {
	after := met
	switch c.Action {
	case "set":
		after = value{true, *c.Argument}
	case "create":
		if !met.isThere {
			after = value{true, *c.Argument}
		}
	case "delete":
		after = value{}
	case "increment":
		after = value{true, met.number + *c.Argument}
		return c.said(after), after
	}
	return c.said(met), after
}

var model = porcupine.Model{
	Init: func() interface{} { return value{} },
	Step: func(state, input, _ interface{}) (bool, interface{}) { return step(state.(value), input.(call)) },
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	keys, clients := map[string][]porcupine.Operation{}, map[string]int{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Println(err)
			os.Exit(2)
		}
		if _, known := clients[c.Client]; !known {
			clients[c.Client] = len(clients)
		}
		end := int64(math.MaxInt64)
		if c.End != nil {
			end = *c.End
		} else if c.Action == "get" {
			continue
		}
		keys[c.Key] = append(keys[c.Key], porcupine.Operation{
			ClientId: clients[c.Client], Input: c, Call: c.Start, Output: nil, Return: end,
		})
	}
	isWrong := false
	for key, operations := range keys {
		verdict := porcupine.CheckOperationsTimeout(model, operations, checkSecondsMax*time.Second)
		if verdict != porcupine.Ok {
			isWrong = true
			fmt.Printf("%s: %s, %d calls\n", key, verdict, len(operations))
		}
	}
	if isWrong {
		os.Exit(1)
	}
	fmt.Printf("%d keys have an order that explains every answer\n", len(keys))
}
