// Asks a schema registry everything that franz-go's client can ask, and prints what it was told, a line of JSON a call.
//
//	schemas http://127.0.0.1:8081      the registry there, which must be empty
//
// A refusal is its HTTP status and code: words are everybody's own.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
)

const (
	user    = `{"type":"record","name":"User","fields":[{"name":"id","type":"string"}]}`
	userTwo = `{"type":"record","name":"User","fields":[{"name":"id","type":"string"},{"name":"age","type":"int","default":0}]}`
	other   = `{"type":"record","name":"Other","fields":[{"name":"x","type":"int"}]}`
	holder  = `{"type":"record","name":"Holder","fields":[{"name":"user","type":"User"}]}`
	object  = `{"type":"object","properties":{"a":{"type":"string"}}}`
	proto   = `syntax = "proto3"; message M { string a = 1; }`
)

func avro(text string, references ...sr.SchemaReference) sr.Schema {
	return sr.Schema{Schema: text, Type: sr.TypeAvro, References: references}
}

func say(call string, answer any, err error) {
	var refused *sr.ResponseError
	switch {
	case errors.As(err, &refused):
		answer = fmt.Sprintf("refused %d %d", refused.StatusCode, refused.ErrorCode)
	case err != nil:
		answer = "failed: " + err.Error()
	}
	line, err := json.Marshal([]any{call, answer})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

// Without the GUID, which only Confluent's newest have.
func shown(s sr.SubjectSchema) []any {
	return []any{s.Subject, s.Version, s.ID, s.Type.String(), s.Schema.Schema, len(s.References)}
}

func every(list []sr.SubjectSchema) []any {
	found := []any{}
	for _, each := range list {
		found = append(found, shown(each))
	}
	return found
}

func levels(list []sr.CompatibilityResult) (any, error) {
	found := []any{}
	for _, each := range list {
		if each.Err != nil {
			return nil, each.Err
		}
		found = append(found, []any{each.Subject, each.Level.String()})
	}
	return found, nil
}

func modes(list []sr.ModeResult) (any, error) {
	found := []any{}
	for _, each := range list {
		if each.Err != nil {
			return nil, each.Err
		}
		found = append(found, []any{each.Subject, each.Mode.String()})
	}
	return found, nil
}

func main() {
	// Its own limit is five seconds of the wall clock, and a machine may be busy.
	client, err := sr.NewClient(sr.URLs(os.Args[1]), sr.HTTPClient(&http.Client{Timeout: time.Minute}))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	deleted := sr.WithParams(ctx, sr.ShowDeleted)

	types, err := client.SupportedTypes(ctx)
	sort.Slice(types, func(a, b int) bool { return types[a] < types[b] })
	say("types", types, err)
	subjects := func(name string, ctx context.Context) {
		list, err := client.Subjects(ctx)
		sort.Strings(list)
		say(name, list, err)
	}
	create := func(name, subject string, schema sr.Schema) int {
		made, err := client.CreateSchema(ctx, subject, schema)
		say("create "+name, shown(made), err)
		return made.ID
	}
	subjects("no subjects", ctx)
	id := create("first", "users-value", avro(user))
	create("again", "users-value", avro(user))
	create("second", "users-value", avro(userTwo))
	create("elsewhere", "people-value", avro(user))
	create("incompatible", "users-value", avro(other))
	create("invalid", "users-value", avro(`{"type":"nope"}`))
	create("json", "json-value", sr.Schema{Schema: object, Type: sr.TypeJSON})
	create("proto", "proto-value", sr.Schema{Schema: proto, Type: sr.TypeProtobuf})
	create("with a reference", "holder-value", avro(holder, sr.SchemaReference{Name: "User", Subject: "users-value", Version: 1}))
	create("with a reference to nothing", "holder-value", avro(holder, sr.SchemaReference{Name: "User", Subject: "nobody", Version: 1}))
	subjects("subjects", ctx)
	subjects("some subjects", sr.WithParams(ctx, sr.SubjectPrefix("us")))

	byID, err := client.SchemaByID(ctx, id)
	say("by id", []any{byID.Schema, byID.Type.String()}, err)
	_, err = client.SchemaByID(ctx, 4711)
	say("by an unknown id", nil, err)
	text, err := client.SchemaTextByID(ctx, id)
	say("text by id", text, err)
	names, err := client.SubjectsByID(ctx, id)
	sort.Strings(names)
	say("subjects by id", names, err)
	uses, err := client.SchemaVersionsByID(ctx, id)
	sort.Slice(uses, func(a, b int) bool { return uses[a].Subject < uses[b].Subject })
	say("versions by id", uses, err)
	for _, version := range []int{1, 2, -1, 9} {
		found, err := client.SchemaByVersion(ctx, "users-value", version)
		say(fmt.Sprint("version ", version), shown(found), err)
	}
	text, err = client.SchemaTextByVersion(ctx, "users-value", 2)
	say("text by version", text, err)
	versions, err := client.SubjectVersions(ctx, "users-value")
	say("versions", versions, err)
	_, err = client.SubjectVersions(ctx, "nobody")
	say("versions of nobody", nil, err)
	list, err := client.Schemas(ctx, "users-value")
	say("schemas of one", every(list), err)
	list, err = client.AllSchemas(ctx)
	sort.Slice(list, func(a, b int) bool {
		return list[a].Subject < list[b].Subject || list[a].Subject == list[b].Subject && list[a].Version < list[b].Version
	})
	say("all schemas", every(list), err)
	found, err := client.LookupSchema(ctx, "users-value", avro(userTwo))
	say("lookup", shown(found), err)
	_, err = client.LookupSchema(ctx, "users-value", avro(other))
	say("lookup of another", nil, err)
	_, err = client.LookupSchema(ctx, "nobody", avro(other))
	say("lookup at nobody", nil, err)

	answer, err := levels(client.Compatibility(ctx))
	say("level of all", answer, err)
	answer, err = levels(client.Compatibility(ctx, "users-value"))
	say("level of one without", answer, err)
	answer, err = levels(client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatNone}, "users-value"))
	say("set level of one", answer, err)
	answer, err = levels(client.Compatibility(ctx, "users-value"))
	say("level of one", answer, err)
	create("whatever", "users-value", avro(other))
	answer, err = levels(client.ResetCompatibility(ctx, "users-value"))
	say("reset level", answer, err)
	answer, err = levels(client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFullTransitive}))
	say("set level of all", answer, err)
	answer, err = levels(client.Compatibility(ctx))
	say("level of all then", answer, err)
	fits, err := client.CheckCompatibility(ctx, "people-value", -1, avro(userTwo))
	say("fits", fits.Is, err)
	fits, err = client.CheckCompatibility(ctx, "people-value", -1, avro(other))
	say("does not fit", fits.Is, err)
	_, err = client.CheckCompatibility(ctx, "people-value", 9, avro(user))
	say("fits no version", nil, err)

	answer, err = modes(client.Mode(ctx))
	say("mode of all", answer, err)
	answer, err = modes(client.SetMode(ctx, sr.ModeReadOnly, "people-value"))
	say("set mode", answer, err)
	answer, err = modes(client.Mode(ctx, "people-value"))
	say("mode of one", answer, err)
	create("where it is read only", "people-value", avro(userTwo))
	answer, err = modes(client.ResetMode(ctx, "people-value"))
	say("reset mode", answer, err)

	list, err = client.SchemaReferences(ctx, "users-value", 1)
	say("referenced by", every(list), err)
	say("delete what is referred to", nil, client.DeleteSchema(ctx, "users-value", 1, sr.SoftDelete))
	say("delete a version", nil, client.DeleteSchema(ctx, "users-value", 2, sr.SoftDelete))
	say("delete it again", nil, client.DeleteSchema(ctx, "users-value", 2, sr.SoftDelete))
	versions, err = client.SubjectVersions(ctx, "users-value")
	say("versions left", versions, err)
	versions, err = client.SubjectVersions(deleted, "users-value")
	say("versions, deleted too", versions, err)
	say("delete for good", nil, client.DeleteSchema(ctx, "users-value", 2, sr.HardDelete))
	say("delete for good what is there", nil, client.DeleteSchema(ctx, "users-value", 3, sr.HardDelete))
	versions, err = client.DeleteSubject(ctx, "people-value", sr.SoftDelete)
	say("delete a subject", versions, err)
	subjects("subjects left", ctx)
	subjects("subjects, deleted too", deleted)
	versions, err = client.DeleteSubject(ctx, "people-value", sr.HardDelete)
	say("delete it for good", versions, err)
	_, err = client.DeleteSubject(ctx, "nobody", sr.SoftDelete)
	say("delete nobody", nil, err)
	subjects("subjects, deleted too, in the end", deleted)
}
