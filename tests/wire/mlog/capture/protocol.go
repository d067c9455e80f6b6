// The document's Go code, as printed, where it is printed. What the protocol document leaves out ("one case per message type", encodeRecord, the
// replicate messages) is filled in below and marked.
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
)

type MessageType uint16

const (
	MsgReplicateStream MessageType = iota
	MsgReplicateResp
	MsgProduce
	MsgProduceResp
	MsgProduceBatch
	MsgProduceBatchResp
	MsgFetch
	MsgFetchResp
	MsgFetchBatch
	MsgFetchBatchResp
	MsgFetchStream
	MsgFetchStreamResp
	MsgCommitOffset
	MsgCommitOffsetResp
	MsgFetchOffset
	MsgFetchOffsetResp
	MsgCreateTopic
	MsgCreateTopicResp
	MsgDeleteTopic
	MsgDeleteTopicResp
	MsgRPCError
	MsgFindTopicLeader
	MsgFindTopicLeaderResp
	MsgFindRaftLeader
	MsgFindRaftLeaderResp
	MsgListTopics
	MsgListTopicsResp
	MsgApplyIsrUpdateEvent
	MsgApplyIsrUpdateEventResp
)

// LogEntry is a log record with offset and value.
type LogEntry struct {
	Offset uint64
	Value  []byte
}

// AckMode for producer acks.
type AckMode int32

const (
	AckNone   AckMode = 0 // No ack — fire and forget
	AckLeader AckMode = 1 // Ack after leader append
	AckAll    AckMode = 2 // Ack after all ISR replicas
)

type ProduceRequest struct {
	Topic string
	Value []byte
	Acks  AckMode
}
type ProduceResponse struct {
	Offset uint64
}
type ProduceBatchRequest struct {
	Topic  string
	Values [][]byte
	Acks   AckMode
}
type ProduceBatchResponse struct {
	BaseOffset uint64
	LastOffset uint64
	Count      uint32
}

type FetchRequest struct {
	Topic         string
	Id            string
	Offset        uint64
	ReplicaNodeID string // when set, leader uses ReadUncommitted
}
type FetchResponse struct {
	Entry *LogEntry
}
type FetchBatchRequest struct {
	Topic         string
	Id            string
	Offset        uint64
	MaxCount      uint32
	ReplicaNodeID string
}
type FetchBatchResponse struct {
	Entries []*LogEntry
}

type CreateTopicRequest struct {
	Topic                  string
	ReplicaCount           uint32
	DesignatedLeaderNodeID string // used when Raft leader forwards to topic leader
}
type CreateTopicResponse struct {
	Topic          string
	ReplicaNodeIds []string // actual replica set filled by topic leader
}
type DeleteTopicRequest struct {
	Topic string
}
type DeleteTopicResponse struct {
	Topic string
}

type FindTopicLeaderRequest struct {
	Topic string
}
type FindTopicLeaderResponse struct {
	LeaderAddr string
}
type FindRaftLeaderRequest struct{}
type FindRaftLeaderResponse struct {
	RaftLeaderAddr string
}

type CommitOffsetRequest struct {
	Topic  string
	Id     string
	Offset uint64
}
type CommitOffsetResponse struct {
	Success bool
}
type FetchOffsetRequest struct {
	Topic string
	Id    string
}
type FetchOffsetResponse struct {
	Offset uint64
}

type ListTopicsRequest struct{}
type ReplicaInfo struct {
	NodeID string
	IsISR  bool
	LEO    int64
}
type TopicInfo struct {
	Name         string
	LeaderNodeID string
	LeaderEpoch  int64
	Replicas     []ReplicaInfo
}
type ListTopicsResponse struct {
	Topics []TopicInfo
}

type ApplyIsrUpdateEventRequest struct {
	Topic         string
	ReplicaNodeID string
	Isr           bool
}
type ApplyIsrUpdateEventResponse struct{}

// RPCErrorResponse is sent by the server when a handler returns an error.
type RPCErrorResponse struct {
	Code    int32  `json:"code"`
	Message string `json:"message"`
}
type MetadataEventType uint16

const (
	MetadataEventTypeCreateTopic MetadataEventType = iota
	MetadataEventTypeDeleteTopic
	MetadataEventTypeLeaderChange
	MetadataEventTypeIsrUpdate
	MetadataEventTypeAddNode
	MetadataEventTypeRemoveNode
	MetadataEventTypeUpdateNode
)

type MetadataEvent struct {
	EventType MetadataEventType `json:"event_type"`
	Data      json.RawMessage   `json:"data"`
}
type CreateTopicEvent struct {
	Topic          string   `json:"topic"`
	ReplicaCount   uint32   `json:"replica_count"`
	LeaderNodeID   string   `json:"leader_id"`
	LeaderEpoch    int64    `json:"leader_epoch"`
	ReplicaNodeIds []string `json:"replicas"`
}
type DeleteTopicEvent struct {
	Topic string `json:"topic"`
}
type LeaderChangeEvent struct {
	Topic        string `json:"topic"`
	LeaderNodeID string `json:"leader_id"`
	LeaderEpoch  int64  `json:"leader_epoch"`
}
type IsrUpdateEvent struct {
	Topic         string `json:"topic"`
	ReplicaNodeID string `json:"replica_id"`
	Isr           bool   `json:"isr"`
}
type AddNodeEvent struct {
	NodeID  string `json:"node_id"`
	Addr    string `json:"addr"`
	RpcAddr string `json:"rpc_addr"`
}
type RemoveNodeEvent struct {
	NodeID string `json:"node_id"`
}
type UpdateNodeEvent struct {
	NodeID    string `json:"node_id"`
	IsHealthy bool   `json:"is_healthy"`
}

const (
	replicationBatchHeaderSize  = 8 + 4 + 4 + 4 + 1 + 4 // 25 bytes
	replicationRecordHeaderSize = 8 + 4                 // offset + size
)

type ReplicationRecord struct {
	Offset int64
	Value  []byte
}

func EncodeReplicationBatch(records []ReplicationRecord) ([]byte, error) {
	if len(records) == 0 {
		return nil, nil
	}
	baseOffset := records[0].Offset
	lastOffset := records[len(records)-1].Offset
	lastOffsetDelta := int32(lastOffset - baseOffset)
	var recordBuf []byte
	for _, r := range records {
		recordBuf = append(recordBuf, encodeRecord(r)...)
	}
	batchLength := int32(len(recordBuf))
	crc := crc32.ChecksumIEEE(recordBuf)
	buf := make([]byte, replicationBatchHeaderSize+len(recordBuf))
	off := 0
	binary.BigEndian.PutUint64(buf[off:off+8], uint64(baseOffset))
	off += 8
	binary.BigEndian.PutUint32(buf[off:off+4], uint32(batchLength))
	off += 4
	binary.BigEndian.PutUint32(buf[off:off+4], 0) // leaderEpoch
	off += 4
	binary.BigEndian.PutUint32(buf[off:off+4], crc)
	off += 4
	buf[off] = 0 // compression = none
	off++
	binary.BigEndian.PutUint32(buf[off:off+4], uint32(lastOffsetDelta))
	off += 4
	copy(buf[off:], recordBuf)
	return buf, nil
}
func DecodeReplicationBatch(data []byte) ([]ReplicationRecord, error) {
	if len(data) < replicationBatchHeaderSize {
		return nil, io.ErrUnexpectedEOF
	}
	batchLength := int32(binary.BigEndian.Uint32(data[8:12]))
	crcStored := binary.BigEndian.Uint32(data[16:20])
	recordBuf := data[replicationBatchHeaderSize:]
	if int32(len(recordBuf)) != batchLength {
		return nil, io.ErrUnexpectedEOF
	}
	if crc32.ChecksumIEEE(recordBuf) != crcStored {
		return nil, ErrReplicationBatchCRC
	}
	var records []ReplicationRecord
	p := recordBuf
	for len(p) >= replicationRecordHeaderSize {
		offset := int64(binary.BigEndian.Uint64(p[0:8]))
		size := int32(binary.BigEndian.Uint32(p[8:12]))
		if size < 0 || int(replicationRecordHeaderSize)+int(size) > len(p) {
			break
		}
		value := make([]byte, size)
		copy(value, p[12:12+size])
		records = append(records, ReplicationRecord{Offset: offset, Value: value})
		p = p[12+size:]
	}
	return records, nil
}

var ErrReplicationBatchCRC = errors.New("protocol: replication batch CRC mismatch")

// Filled in: the mlog page, §4.
func encodeRecord(r ReplicationRecord) []byte {
	buf := make([]byte, replicationRecordHeaderSize, replicationRecordHeaderSize+len(r.Value))
	binary.BigEndian.PutUint64(buf[0:8], uint64(r.Offset))
	binary.BigEndian.PutUint32(buf[8:12], uint32(len(r.Value)))
	return append(buf, r.Value...)
}

// Filled in: the mlog page, §8.
type ReplicateRequest struct {
	Topic         string
	Offset        uint64
	BatchSize     uint32
	ReplicaNodeID string
}

type ReplicateResponse struct {
	Topic       string
	RawChunk    []byte
	EndOfStream bool
	LeaderLEO   int64
}

func encodeFrame(mType MessageType, msg any) []byte {
	payload, err := json.Marshal(msg)
	if err != nil {
		panic(err)
	}
	buf := make([]byte, 6+len(payload))
	binary.BigEndian.PutUint16(buf, uint16(mType))
	binary.BigEndian.PutUint32(buf[2:], uint32(len(payload)))
	copy(buf[6:], payload)
	return buf
}
