// Command failover writes and reads through franz-go while nodes come and go: an idempotent producer and a member of a group.
//
// Arguments: addresses, topic, partitions, group. It prints "acked N" now and then; a line on stdin ends the writing, and at last
// "done SENT SEEN" is printed: how many records were acknowledged, and how many of them the group has seen.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

const inFlight = 200
const shown = 100

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	addresses, topic, group := strings.Split(os.Args[1], ","), os.Args[2], os.Args[4]
	partitions, err := strconv.Atoi(os.Args[3])
	check(err)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(addresses...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	check(err)
	var enough atomic.Bool
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		enough.Store(true)
	}()
	var sent atomic.Int64
	sent.Store(-1)
	seen := make(chan int)
	go func() { seen <- consume(client, &sent) }()
	sent.Store(int64(produce(client, topic, partitions, &enough)))
	fmt.Println("done", sent.Load(), <-seen)
}

// Until there is enough; every record is acknowledged then.
func produce(client *kgo.Client, topic string, partitions int, enough *atomic.Bool) int {
	room := make(chan struct{}, inFlight)
	var acked atomic.Int64
	var waiting sync.WaitGroup
	number := 0
	for ; !enough.Load(); number++ {
		room <- struct{}{}
		waiting.Add(1)
		record := &kgo.Record{Topic: topic, Partition: int32(number % partitions), Value: []byte(strconv.Itoa(number))}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			check(err)
			if count := acked.Add(1); count%shown == 0 {
				fmt.Println("acked", count)
			}
			<-room
			waiting.Done()
		})
	}
	waiting.Wait()
	return number
}

// How many records the group has seen once it has seen as many as were sent.
func consume(client *kgo.Client, sent *atomic.Int64) int {
	seen := map[string]bool{}
	for int64(len(seen)) != sent.Load() {
		client.PollFetches(context.Background()).EachRecord(func(record *kgo.Record) { seen[string(record.Value)] = true })
		if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "commit:", err) // the next one says it again
		}
	}
	return len(seen)
}
