// Package suites names the Go clients whose own tests judge the Kafka port, so that go.mod and go.sum hold them to their bytes.
package suites

import (
	_ "github.com/segmentio/kafka-go"
	_ "github.com/twmb/franz-go/pkg/kgo"
)
