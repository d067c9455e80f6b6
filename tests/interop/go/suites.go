// Package suites names the Go clients that judge the Kafka port and the schema registry, so that go.mod and go.sum hold them to their bytes.
package suites

import (
	_ "github.com/segmentio/kafka-go"
	_ "github.com/twmb/franz-go/pkg/kgo"
	_ "github.com/twmb/franz-go/pkg/sr"
)
