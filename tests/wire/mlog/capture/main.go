// Writes the vectors whose Source is Go: `go run . ../vectors`, from this folder.
//
// Frames and events are what Go's own json.Marshal makes of the document's structs; the lenient documents are read by json.Unmarshal,
// and what it understood is written again as the canonical form; of the refused ones its error is quoted.
package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"unicode/utf8"
)

type row struct {
	name, direction string
	number          MessageType
	value           any
	message         string
}

var frames = map[string][]row{
	"produce": {
		{"produce", ">", MsgProduce, ProduceRequest{"orders", []byte("hello"), AckLeader}, `ProduceRequest(topic="orders", value=b"hello", acks=1)`},
		{"produce of nothing", ">", MsgProduce, ProduceRequest{}, `ProduceRequest()`},
		{"produce of an empty value", ">", MsgProduce, ProduceRequest{"t", []byte{}, AckAll}, `ProduceRequest(topic="t", value=b"", acks=2)`},
		{"produce with an ack mode of no meaning", ">", MsgProduce, ProduceRequest{"t", []byte{0, 255}, -7}, `ProduceRequest(topic="t", value=b"\x00\xff", acks=-7)`},
		{"produce answer", "<", MsgProduceResp, ProduceResponse{41}, `ProduceResponse(offset=41)`},
		{"produce batch", ">", MsgProduceBatch, ProduceBatchRequest{"orders", [][]byte{[]byte("a"), []byte("bc"), nil, {}}, AckNone}, `ProduceBatchRequest(topic="orders", values=(b"a", b"bc", None, b""), acks=0)`},
		{"produce batch of nil", ">", MsgProduceBatch, ProduceBatchRequest{Topic: "orders"}, `ProduceBatchRequest(topic="orders")`},
		{"produce batch of none", ">", MsgProduceBatch, ProduceBatchRequest{"orders", [][]byte{}, AckAll}, `ProduceBatchRequest(topic="orders", values=(), acks=2)`},
		{"produce batch answer", "<", MsgProduceBatchResp, ProduceBatchResponse{42, 44, 3}, `ProduceBatchResponse(base_offset=42, last_offset=44, count=3)`},
	},
	"fetch": {
		{"fetch", ">", MsgFetch, FetchRequest{"orders", "billing", 41, ""}, `FetchRequest(topic="orders", consumer_id="billing", offset=41)`},
		{"fetch by a replica", ">", MsgFetch, FetchRequest{"orders", "", 41, "node-2"}, `FetchRequest(topic="orders", offset=41, replica_node_id="node-2")`},
		{"fetch answer", "<", MsgFetchResp, FetchResponse{&LogEntry{41, []byte("hello")}}, `FetchResponse(entry=LogEntry(offset=41, value=b"hello"))`},
		{"fetch answer of nothing", "<", MsgFetchResp, FetchResponse{}, `FetchResponse()`},
		{"fetch batch", ">", MsgFetchBatch, FetchBatchRequest{"orders", "billing", 0, 100, ""}, `FetchBatchRequest(topic="orders", consumer_id="billing", max_count=100)`},
		{"fetch batch by a replica", ">", MsgFetchBatch, FetchBatchRequest{"orders", "", 9223372036854775807, 4294967295, "node-2"}, `FetchBatchRequest(topic="orders", offset=9223372036854775807, max_count=4294967295, replica_node_id="node-2")`},
		{"fetch batch answer", "<", MsgFetchBatchResp, FetchBatchResponse{[]*LogEntry{{0, []byte("a")}, {1, []byte{}}, {2, nil}, nil}}, `FetchBatchResponse(entries=(LogEntry(offset=0, value=b"a"), LogEntry(offset=1, value=b""), LogEntry(offset=2), None))`},
		{"fetch batch answer of nil", "<", MsgFetchBatchResp, FetchBatchResponse{}, `FetchBatchResponse()`},
		{"fetch stream", ">", MsgFetchStream, FetchRequest{"orders", "billing", 7, ""}, `FetchStreamRequest(topic="orders", consumer_id="billing", offset=7)`},
		{"fetch stream frame", "<", MsgFetchStreamResp, FetchResponse{&LogEntry{7, []byte("hello")}}, `FetchStreamResponse(entry=LogEntry(offset=7, value=b"hello"))`},
	},
	"offsets": {
		{"commit offset", ">", MsgCommitOffset, CommitOffsetRequest{"orders", "billing", 42}, `CommitOffsetRequest(topic="orders", consumer_id="billing", offset=42)`},
		{"commit offset answer", "<", MsgCommitOffsetResp, CommitOffsetResponse{true}, `CommitOffsetResponse(success=True)`},
		{"fetch offset", ">", MsgFetchOffset, FetchOffsetRequest{"orders", "billing"}, `FetchOffsetRequest(topic="orders", consumer_id="billing")`},
		{"fetch offset answer", "<", MsgFetchOffsetResp, FetchOffsetResponse{42}, `FetchOffsetResponse(offset=42)`},
	},
	"topics": {
		{"create topic", ">", MsgCreateTopic, CreateTopicRequest{"orders", 2, ""}, `CreateTopicRequest(topic="orders", replica_count=2)`},
		{"create topic, forwarded", ">", MsgCreateTopic, CreateTopicRequest{"orders", 2, "node-1"}, `CreateTopicRequest(topic="orders", replica_count=2, designated_leader_node_id="node-1")`},
		{"create topic answer", "<", MsgCreateTopicResp, CreateTopicResponse{"orders", []string{"node-2", "node-3"}}, `CreateTopicResponse(topic="orders", replica_node_ids=("node-2", "node-3"))`},
		{"create topic answer without replicas", "<", MsgCreateTopicResp, CreateTopicResponse{"orders", nil}, `CreateTopicResponse(topic="orders")`},
		{"delete topic", ">", MsgDeleteTopic, DeleteTopicRequest{"orders"}, `DeleteTopicRequest(topic="orders")`},
		{"delete topic answer", "<", MsgDeleteTopicResp, DeleteTopicResponse{"orders"}, `DeleteTopicResponse(topic="orders")`},
		{"list topics", ">", MsgListTopics, ListTopicsRequest{}, `ListTopicsRequest()`},
		{"list topics answer", "<", MsgListTopicsResp, ListTopicsResponse{[]TopicInfo{{"orders", "node-1", 3, []ReplicaInfo{{"node-1", true, 44}, {"node-2", false, -1}}}, {"logs", "", 0, nil}}}, `ListTopicsResponse(topics=(TopicInfo(name="orders", leader_node_id="node-1", leader_epoch=3, replicas=(ReplicaInfo(node_id="node-1", is_isr=True, leo=44), ReplicaInfo(node_id="node-2", leo=-1))), TopicInfo(name="logs")))`},
		{"list topics answer of nil", "<", MsgListTopicsResp, ListTopicsResponse{}, `ListTopicsResponse()`},
	},
	"leaders": {
		{"find topic leader", ">", MsgFindTopicLeader, FindTopicLeaderRequest{"orders"}, `FindTopicLeaderRequest(topic="orders")`},
		{"find topic leader answer", "<", MsgFindTopicLeaderResp, FindTopicLeaderResponse{"10.0.0.1:9094"}, `FindTopicLeaderResponse(leader_addr="10.0.0.1:9094")`},
		{"find raft leader", ">", MsgFindRaftLeader, FindRaftLeaderRequest{}, `FindRaftLeaderRequest()`},
		{"find raft leader answer", "<", MsgFindRaftLeaderResp, FindRaftLeaderResponse{"[::1]:9094"}, `FindRaftLeaderResponse(raft_leader_addr="[::1]:9094")`},
		{"apply isr update", ">", MsgApplyIsrUpdateEvent, ApplyIsrUpdateEventRequest{"orders", "node-2", true}, `ApplyIsrUpdateEventRequest(topic="orders", replica_node_id="node-2", isr=True)`},
		{"apply isr update answer", "<", MsgApplyIsrUpdateEventResp, ApplyIsrUpdateEventResponse{}, `ApplyIsrUpdateEventResponse()`},
		{"rpc error", "<", MsgRPCError, RPCErrorResponse{6, "read offset 44: past the end"}, `RPCErrorResponse(code=6, message="read offset 44: past the end")`},
		{"rpc error of a code we do not know", "<", MsgRPCError, RPCErrorResponse{-99, "naïve 日本"}, `RPCErrorResponse(code=-99, message="naïve 日本")`},
	},
	"replicate": {
		{"replicate stream", ">", MsgReplicateStream, ReplicateRequest{"orders", 42, 1000, "node-2"}, `ReplicateRequest(topic="orders", offset=42, batch_size=1000, replica_node_id="node-2")`},
		{"replicate frame", "<", MsgReplicateResp, ReplicateResponse{"orders", must(EncodeReplicationBatch([]ReplicationRecord{{42, []byte("a")}})), false, 0}, `ReplicateResponse(topic="orders", raw_chunk=b"\0\0\0\0\0\0\0\x2a\0\0\0\x0d\0\0\0\0\x8a\xed\0\x5d\0\0\0\0\0\0\0\0\0\0\0\0\x2a\0\0\0\x01a")`},
		{"last replicate frame", "<", MsgReplicateResp, ReplicateResponse{"orders", nil, true, 43}, `ReplicateResponse(topic="orders", end_of_stream=True, leader_leo=43)`},
	},
}

type event struct {
	name      string
	eventType MetadataEventType
	value     any
	message   string
}

var events = []event{
	{"create topic event", MetadataEventTypeCreateTopic, CreateTopicEvent{"orders", 2, "node-1", 1, []string{"node-2", "node-3"}}, `CreateTopicEvent(topic="orders", replica_count=2, leader_node_id="node-1", leader_epoch=1, replica_node_ids=("node-2", "node-3"))`},
	{"create topic event without replicas", MetadataEventTypeCreateTopic, CreateTopicEvent{Topic: "orders", LeaderEpoch: 1}, `CreateTopicEvent(topic="orders", leader_epoch=1)`},
	{"delete topic event", MetadataEventTypeDeleteTopic, DeleteTopicEvent{"orders"}, `DeleteTopicEvent(topic="orders")`},
	{"leader change event", MetadataEventTypeLeaderChange, LeaderChangeEvent{"orders", "node-2", 2}, `LeaderChangeEvent(topic="orders", leader_node_id="node-2", leader_epoch=2)`},
	{"isr update event", MetadataEventTypeIsrUpdate, IsrUpdateEvent{"orders", "node-3", false}, `IsrUpdateEvent(topic="orders", replica_node_id="node-3")`},
	{"add node event", MetadataEventTypeAddNode, AddNodeEvent{"node-4", "10.0.0.4:7000", "10.0.0.4:9094"}, `AddNodeEvent(node_id="node-4", addr="10.0.0.4:7000", rpc_addr="10.0.0.4:9094")`},
	{"remove node event", MetadataEventTypeRemoveNode, RemoveNodeEvent{"node-4"}, `RemoveNodeEvent(node_id="node-4")`},
	{"update node event", MetadataEventTypeUpdateNode, UpdateNodeEvent{"node-4", true}, `UpdateNodeEvent(node_id="node-4", is_healthy=True)`},
}

type document struct {
	name      string
	direction string
	number    MessageType
	into      any
	text      string
}

var lenient = []document{
	{"lower-case keys", ">", MsgProduce, &ProduceRequest{}, `{"topic":"orders","value":"aGVsbG8=","acks":1}`},
	{"upper-case keys, blanks", ">", MsgProduce, &ProduceRequest{}, " {\n\t\"TOPIC\" : \"orders\" ,\r\n \"VALUE\" : \"aGVsbG8=\" } "},
	{"unknown keys", ">", MsgProduce, &ProduceRequest{}, `{"Key":[1,{"Topic":"no"}],"Topic":"orders","Value":"aGVsbG8=","Acks":1,"":null}`},
	{"nothing but braces", ">", MsgFetchBatch, &FetchBatchRequest{}, `{}`},
	{"null for everything", ">", MsgFetchBatch, &FetchBatchRequest{}, `{"Topic":null,"Id":null,"Offset":null,"MaxCount":null,"ReplicaNodeID":null}`},
	{"null for a message", ">", MsgListTopics, &ListTopicsRequest{}, `null`},
	{"the same key twice, the last is taken", ">", MsgDeleteTopic, &DeleteTopicRequest{}, `{"Topic":"a","Topic":"b"}`},
	{"long s and Kelvin sign", ">", MsgProduce, &ProduceRequest{}, `{"Topic":"t","Ac` + "\u212a\u017f" + `":2}`},
	{"a ligature is not two letters", ">", MsgCommitOffset, &CommitOffsetRequest{}, `{"Topic":"t","O` + "\ufb00" + `set":2}`},
	{"escapes in keys and values", ">", MsgProduce, &ProduceRequest{}, `{"T\u006fpic":"caf\u00e9 \ud83d\ude00","Value":"aG\u0056sbG8="}`},
	{"escaped slashes in base64", ">", MsgProduce, &ProduceRequest{}, `{"Value":"\/\/\/+"}`},
	{"base64 whose spare bits are set", ">", MsgProduce, &ProduceRequest{}, `{"Value":"YR=="}`},
	{"null among values", ">", MsgProduceBatch, &ProduceBatchRequest{}, `{"values":[null,"YQ==",""]}`},
	{"lower-case entries", "<", MsgFetchBatchResp, &FetchBatchResponse{}, `{"entries":[{"offset":1,"value":"YQ=="},null,{},{"Value":null,"Offset":2,"Key":"x"}]}`},
	{"nulls in a topic list", "<", MsgListTopicsResp, &ListTopicsResponse{}, `{"topics":[null,{"name":"a","replicas":[null,{"nodeid":"n","isisr":true,"leo":3}]}]}`},
	{"null among replicas", "<", MsgCreateTopicResp, &CreateTopicResponse{}, `{"Topic":"a","replicanodeids":["n",null]}`},
	{"error with capitals", "<", MsgRPCError, &RPCErrorResponse{}, `{"Code":4,"Message":"a \u003cb\u003e"}`},
	{"extremes of the integers", ">", MsgFetchBatch, &FetchBatchRequest{}, `{"offset":9223372036854775807,"MaxCount":4294967295}`},
}

var refused = []document{
	{"no payload", ">", MsgListTopics, &ListTopicsRequest{}, ``},
	{"half a document", ">", MsgProduce, &ProduceRequest{}, `{"Topic":"a"`},
	{"two documents", ">", MsgProduce, &ProduceRequest{}, `{}{}`},
	{"an array", ">", MsgProduce, &ProduceRequest{}, `[]`},
	{"a string", ">", MsgProduce, &ProduceRequest{}, `"Topic"`},
	{"a number for a topic", ">", MsgProduce, &ProduceRequest{}, `{"Topic":1}`},
	{"a string for a number", ">", MsgProduce, &ProduceRequest{}, `{"Acks":"1"}`},
	{"a fraction", ">", MsgFetch, &FetchRequest{}, `{"Offset":1.0}`},
	{"an exponent", ">", MsgFetch, &FetchRequest{}, `{"Offset":1e3}`},
	{"a negative offset", ">", MsgFetch, &FetchRequest{}, `{"Offset":-1}`},
	{"an offset over 64 bits", ">", MsgFetch, &FetchRequest{}, `{"Offset":18446744073709551616}`},
	{"an ack mode over 32 bits", ">", MsgProduce, &ProduceRequest{}, `{"Acks":2147483648}`},
	{"a count over 32 bits", ">", MsgFetchBatch, &FetchBatchRequest{}, `{"maxcount":4294967296}`},
	{"base64 without padding", ">", MsgProduce, &ProduceRequest{}, `{"Value":"YQ"}`},
	{"base64 for URLs", ">", MsgProduce, &ProduceRequest{}, `{"Value":"__-_"}`},
	{"one value for many", ">", MsgProduceBatch, &ProduceBatchRequest{}, `{"Values":"YQ=="}`},
	{"true for a number", ">", MsgFetch, &FetchRequest{}, `{"Offset":true}`},
	{"a control character", ">", MsgFetch, &FetchRequest{}, "{\"Topic\":\"a\nb\"}"},
	{"NaN", ">", MsgFetch, &FetchRequest{}, `{"Offset":NaN}`},
	{"a comma too many", ">", MsgFetch, &FetchRequest{}, `{"Topic":"a",}`},
	{"a comment", ">", MsgFetch, &FetchRequest{}, `{"Topic":"a"/**/}`},
	{"a byte order mark", ">", MsgFetch, &FetchRequest{}, "\ufeff{}"},
	{"a number for a flag", "<", MsgCommitOffsetResp, &CommitOffsetResponse{}, `{"Success":1}`},
	{"an entry that is none", "<", MsgFetchBatchResp, &FetchBatchResponse{}, `{"Entries":[7]}`},
}

// What Go reads and we do not: each is refused here on purpose (docs/dialects/mlog.md, "Stricter than the original").
var stricter = []document{
	{"a field in two spellings", ">", MsgDeleteTopic, &DeleteTopicRequest{}, `{"Topic":"a","topic":"b"}`},
	{"an array of numbers for bytes", ">", MsgProduce, &ProduceRequest{}, `{"Value":[1,2]}`},
	{"line ends inside base64", ">", MsgProduce, &ProduceRequest{}, `{"Value":"aGVs\r\nbG8="}`},
	{"invalid UTF-8", ">", MsgDeleteTopic, &DeleteTopicRequest{}, "{\"Topic\":\"a\xffb\"}"},
	{"half a surrogate pair", ">", MsgDeleteTopic, &DeleteTopicRequest{}, `{"Topic":"a\ud800b"}`},
	{"an unknown key with a document 33 deep", ">", MsgListTopics, &ListTopicsRequest{}, `{"x":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`},
}

type batch struct {
	name    string
	records []ReplicationRecord
	message string
}

var batches = []batch{
	{"one record", []ReplicationRecord{{42, []byte("a")}}, `ReplicationBatch(leader_epoch=0, records=(ReplicationRecord(offset=42, value=b"a"),))`},
	{"records with a gap", []ReplicationRecord{{7, []byte("seven")}, {8, nil}, {11, []byte{0, 255}}}, `ReplicationBatch(leader_epoch=0, records=(ReplicationRecord(offset=7, value=b"seven"), ReplicationRecord(offset=8, value=b""), ReplicationRecord(offset=11, value=b"\x00\xff")))`},
	{"no records", nil, `ReplicationBatch(leader_epoch=0, records=())`},
}

// A batch of these record bytes with a sound length and checksum, whatever the records are worth.
func sealed(base int64, delta int32, attributes byte, records []byte) []byte {
	head := must(EncodeReplicationBatch([]ReplicationRecord{{base, nil}}))[:replicationBatchHeaderSize]
	binary.BigEndian.PutUint32(head[8:], uint32(len(records)))
	binary.BigEndian.PutUint32(head[16:], crc32.ChecksumIEEE(records))
	head[20] = attributes
	binary.BigEndian.PutUint32(head[21:], uint32(delta))
	return append(head, records...)
}

func damagedBatches() (names []string, damaged [][]byte) {
	two := append(encodeRecord(ReplicationRecord{5, []byte("five")}), encodeRecord(ReplicationRecord{6, []byte("six")})...)
	whole := sealed(5, 1, 0, two)
	add := func(name string, data []byte) { names, damaged = append(names, name), append(damaged, data) }
	add("the last record is cut off, the checksum is right", sealed(5, 1, 0, two[:len(two)-1]))
	add("the last record's header is cut off", sealed(5, 0, 0, two[:16+11]))
	negative := append([]byte{}, two...)
	copy(negative[16+8:], []byte{255, 255, 255, 255})
	add("a negative record size", sealed(5, 1, 0, negative))
	add("no records but a header", sealed(5, 0, 0, nil))
	add("the base offset is not the first record's", sealed(4, 1, 0, two))
	add("the last offset delta is not the last record's", sealed(5, 2, 0, two))
	add("a compression nobody defined", sealed(5, 1, 1, two))
	back := append(encodeRecord(ReplicationRecord{5, []byte("five")}), encodeRecord(ReplicationRecord{5, []byte("six")})...)
	add("an offset twice", sealed(5, 0, 0, back))
	minus := encodeRecord(ReplicationRecord{-1, []byte("x")})
	add("a negative offset", sealed(-1, 0, 0, minus))
	flipped := append([]byte{}, whole...)
	flipped[len(flipped)-1] ^= 1
	add("a bit is flipped", flipped)
	add("a byte is missing", whole[:len(whole)-1])
	add("a byte too many", append(append([]byte{}, whole...), 0))
	add("half a header", whole[:24])
	epoch := append([]byte{}, whole...)
	epoch[12] = 0x80
	add("a negative epoch", epoch)
	return names, damaged
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

func header(data []byte) string {
	return hex.EncodeToString(data[:2]) + " " + hex.EncodeToString(data[2:6])
}

// Text that a line of a vector file can hold is quoted with backticks; the rest is hex.
func quote(payload []byte) string {
	for _, b := range payload {
		if b < 0x20 || b == '`' || !utf8.Valid(payload) {
			return hex.EncodeToString(payload)
		}
	}
	if len(payload) == 0 {
		return ""
	}
	return "`" + string(payload) + "`"
}

func rawFrame(number MessageType, text string) []byte {
	framed := encodeFrame(number, json.RawMessage("0"))[:6]
	framed[2], framed[3], framed[4], framed[5] = 0, 0, byte(len(text)>>8), byte(len(text))
	return append(framed, text...)
}

func write(folder, name, about string, blocks []string) {
	source := "Source: capture/main.go: the mlog protocol document's structs through encoding/json of " + runtime.Version() + "\n"
	text := source + "# " + about + "\n\n" + strings.Join(blocks, "\n")
	if err := os.WriteFile(filepath.Join(folder, name+".vec"), []byte(text), 0o644); err != nil {
		panic(err)
	}
}

func main() {
	folder := os.Args[1]
	for name, rows := range frames {
		var blocks []string
		for _, r := range rows {
			framed := encodeFrame(r.number, r.value)
			blocks = append(blocks, fmt.Sprintf("vector: %s\n%s %s %s\nmessage: %s\n", r.name, r.direction, header(framed), quote(framed[6:]), r.message))
		}
		write(folder, name, "Type numbers by position in the document's iota list.", blocks)
	}
	var blocks []string
	for _, e := range events {
		data := must(json.Marshal(MetadataEvent{e.eventType, must(json.Marshal(e.value))}))
		blocks = append(blocks, fmt.Sprintf("vector: %s\n= `%s`\nmessage: %s\n", e.name, data, e.message))
	}
	write(folder, "events", "Entries of the Raft log: no frame around them.", blocks)
	blocks = nil
	for _, d := range lenient {
		if err := json.Unmarshal([]byte(d.text), d.into); err != nil {
			panic(fmt.Sprint(d.name, ": ", err))
		}
		framed, canonical := rawFrame(d.number, d.text), encodeFrame(d.number, reflect.ValueOf(d.into).Elem().Interface())
		blocks = append(blocks, fmt.Sprintf("vector: %s\n%s %s %s\ncanonical: %s %s\n", d.name, d.direction, header(framed), quote(framed[6:]), header(canonical), quote(canonical[6:])))
	}
	write(folder, "lenient", "Documents that Go would not write but reads; canonical: what Go writes for what it understood.", blocks)
	blocks = nil
	for _, d := range refused {
		err := json.Unmarshal([]byte(d.text), d.into)
		if err == nil {
			panic(d.name + ": Go takes it")
		}
		framed := rawFrame(d.number, d.text)
		blocks = append(blocks, fmt.Sprintf("vector: %s\n# Go: %s\n%s %s %s\nrefused: yes\n", d.name, err, d.direction, header(framed), quote(framed[6:])))
	}
	write(folder, "refused", "Documents that Go refuses too.", blocks)
	blocks = nil
	for _, d := range stricter {
		if err := json.Unmarshal([]byte(d.text), d.into); err != nil {
			panic(d.name + ": Go refuses it too")
		}
		framed := rawFrame(d.number, d.text)
		blocks = append(blocks, fmt.Sprintf("vector: %s\n# Go: %+q\n%s %s %s\nrefused: yes\n", d.name, d.into, d.direction, header(framed), quote(framed[6:])))
	}
	write(folder, "stricter", "Documents that Go reads (as the comment says) and braidlog refuses.", blocks)
	blocks = nil
	for _, b := range batches {
		data := must(EncodeReplicationBatch(b.records))
		blocks = append(blocks, fmt.Sprintf("vector: %s\n= %s\nmessage: %s\n", b.name, hex.EncodeToString(data), b.message))
	}
	write(folder, "batches", "Replication batches of the document's EncodeReplicationBatch, which always writes epoch 0.", blocks)
	blocks = nil
	names, damaged := damagedBatches()
	for i, name := range names {
		records, err := DecodeReplicationBatch(damaged[i])
		verdict := fmt.Sprintf("%d records and no error", len(records))
		if err != nil {
			verdict = err.Error()
		}
		blocks = append(blocks, fmt.Sprintf("vector: %s\n# the document's DecodeReplicationBatch: %s\n= %s\nrefused: yes\n", name, verdict, hex.EncodeToString(damaged[i])))
	}
	write(folder, "damaged_batches", "Replication batches that must not be taken; the comment says what the original does.", blocks)
}
