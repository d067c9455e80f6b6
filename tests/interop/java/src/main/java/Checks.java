import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.SaslAuthenticationException;
import org.apache.kafka.common.errors.SslAuthenticationException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own Java client asks everything it can ask of a broker. Each check is a method; its name is the method's. */
final class Checks {
    private Checks() {}

    public static void main(String[] words) throws Exception {
        Kit.main(words);
    }

    // -- what the checks are made of ------------------------------------------------------------------------------

    record Row(byte[] key, byte[] value, List<Header> headers, long timestamp) {
        String shown() {
            String named = headers.stream().map(h -> h.key() + "=" + Arrays.toString(h.value())).collect(Collectors.joining(","));
            return Arrays.toString(key) + Arrays.toString(value) + named + "@" + timestamp;
        }
    }

    /** Nulls, empties, several headers of one name, bytes that are no text, times that go back. */
    static final List<Row> ROWS = List.of(
            new Row(bytes("user1"), bytes("created"), List.of(header("h", bytes("1"))), Kit.START_MS),
            new Row(null, bytes("x"), List.of(), Kit.START_MS + 2),
            new Row(
                    bytes("user2"),
                    null,
                    List.of(header("trace", new byte[] {0, -1}), header("none", null), header("trace", bytes("again"))),
                    Kit.START_MS - 5000),
            new Row(new byte[0], new byte[0], List.of(), Kit.START_MS + 86_400_000L),
            new Row(new byte[64], new byte[8192], List.of(), Kit.START_MS + 3));

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static Header header(String key, byte[] value) {
        return new RecordHeader(key, value);
    }

    static Map<String, Object> with(Object... pairs) {
        Map<String, Object> made = new HashMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            made.put((String) pairs[at], pairs[at + 1]);
        }
        return made;
    }

    static Map<String, Object> plain(Map<String, Object> more) {
        Map<String, Object> made = with("bootstrap.servers", Kit.of("plain"), "default.api.timeout.ms", Kit.SECONDS * 1000);
        made.putAll(more);
        return made;
    }

    static Admin admin() {
        return Admin.create(plain(Map.of()));
    }

    static <T> T done(KafkaFuture<T> future) throws Exception {
        return future.get(Kit.SECONDS, TimeUnit.SECONDS);
    }

    static String topic(int partitions, Map<String, String> config) throws Exception {
        String name = Kit.fresh("java");
        try (Admin admin = admin()) {
            create(admin, new NewTopic(name, partitions, (short) 1).configs(config));
        }
        return name;
    }

    static void create(Admin admin, NewTopic wanted) throws Exception {
        done(admin.createTopics(List.of(wanted)).all());
        // Kafka's controller answers before its broker knows.
        Kit.until(
                () -> {
                    try {
                        return done(admin.describeTopics(List.of(wanted.name())).allTopicNames()) != null;
                    } catch (java.util.concurrent.ExecutionException notYet) {
                        if (notYet.getCause() instanceof UnknownTopicOrPartitionException) {
                            return false;
                        }
                        throw notYet;
                    }
                },
                "the topic");
    }

    static String topic() throws Exception {
        return topic(1, Map.of());
    }

    static KafkaProducer<byte[], byte[]> producer(Object... pairs) {
        Map<String, Object> made = plain(with("linger.ms", 10, "enable.idempotence", false, "max.block.ms", Kit.SECONDS * 1000));
        made.remove("default.api.timeout.ms");
        made.putAll(with(pairs));
        return new KafkaProducer<>(made, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static List<Long> send(KafkaProducer<byte[], byte[]> into, String topic, int partition, List<Row> rows) throws Exception {
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (Row row : rows) {
            futures.add(into.send(new ProducerRecord<>(topic, partition, row.timestamp, row.key, row.value, row.headers)));
        }
        into.flush();
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> future : futures) {
            offsets.add(future.get(Kit.SECONDS, TimeUnit.SECONDS).offset());
        }
        return offsets;
    }

    static List<Row> values(String... texts) {
        return IntStream.range(0, texts.length)
                .mapToObj(n -> new Row(null, bytes(texts[n]), List.of(), Kit.START_MS + n))
                .toList();
    }

    static void write(String topic, String... texts) throws Exception {
        try (var into = producer()) {
            send(into, topic, 0, values(texts));
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group, Object... pairs) {
        Map<String, Object> made = plain(with("auto.offset.reset", "earliest", "enable.auto.commit", false));
        made.putAll(with("heartbeat.interval.ms", 300, "group.id", group, "fetch.max.wait.ms", 100));
        made.putAll(with(pairs));
        return new KafkaConsumer<>(made, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> source, int count) throws Exception {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        Kit.until(
                () -> {
                    source.poll(Duration.ofMillis(200)).forEach(found::add);
                    return found.size() >= count;
                },
                count + " records");
        return found;
    }

    static List<ConsumerRecord<byte[], byte[]>> read(String topic, int count, long offset, Object... pairs) throws Exception {
        try (var source = consumer(Kit.fresh("group"), pairs)) {
            source.assign(List.of(new TopicPartition(topic, 0)));
            source.seek(new TopicPartition(topic, 0), offset);
            return take(source, count);
        }
    }

    static List<String> texts(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(each -> new String(each.value(), StandardCharsets.UTF_8)).toList();
    }

    static List<String> shown(List<Row> rows) {
        return rows.stream().map(Row::shown).toList();
    }

    static List<String> rows(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream()
                .map(each -> new Row(each.key(), each.value(), List.of(each.headers().toArray()), each.timestamp()).shown())
                .toList();
    }

    @SafeVarargs
    static List<Set<Integer>> owned(KafkaConsumer<byte[], byte[]>... members) {
        List<Set<Integer>> found = new ArrayList<>();
        for (var member : members) {
            member.poll(Duration.ofMillis(50));
        }
        for (var member : members) {
            found.add(member.assignment().stream().map(TopicPartition::partition).collect(Collectors.toSet()));
        }
        return found;
    }

    @SafeVarargs
    static List<Set<Integer>> owning(List<Integer> counts, KafkaConsumer<byte[], byte[]>... members) throws Exception {
        List<List<Set<Integer>>> last = new ArrayList<>();
        Kit.until(
                () -> {
                    last.add(owned(members));
                    return last.get(last.size() - 1).stream().map(Set::size).toList().equals(counts);
                },
                counts + " partitions");
        return last.get(last.size() - 1);
    }

    // -- topics ---------------------------------------------------------------------------------------------------

    static void checkMetadata() throws Exception {
        String topic = topic(3, Map.of());
        try (Admin admin = admin()) {
            var seen = done(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
            Kit.equal(seen.partitions().stream().map(each -> each.partition()).toList(), List.of(0, 1, 2), "partitions");
            var nodes = done(admin.describeCluster().nodes());
            Kit.yes(seen.partitions().stream().allMatch(each -> nodes.contains(each.leader())), "leaders are brokers");
            Kit.yes(!seen.topicId().equals(org.apache.kafka.common.Uuid.ZERO_UUID), "a topic id");
            Kit.yes(done(admin.listTopics().names()).contains(topic), "the topic among all");
        }
    }

    static void checkTopicById() throws Exception {
        String topic = topic(2, Map.of());
        try (Admin admin = admin()) {
            var id = done(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).topicId();
            var ids = org.apache.kafka.common.TopicCollection.ofTopicIds(List.of(id));
            Kit.equal(done(admin.describeTopics(ids).allTopicIds()).get(id).name(), topic, "the topic of an id");
        }
    }

    static void checkUnknownTopic() throws Exception {
        try (Admin admin = admin()) {
            var asked = admin.describeTopics(List.of(Kit.fresh("nobody"))).allTopicNames();
            Kit.refused(UnknownTopicOrPartitionException.class, () -> done(asked));
        }
    }

    static void checkCreateTopicsWithConfigs() throws Exception {
        String topic = topic(2, Map.of("retention.ms", "3600000", "max.message.bytes", "65536", "cleanup.policy", "compact"));
        try (Admin admin = admin()) {
            Config found = config(admin, topic);
            Kit.equal(found.get("retention.ms").value(), "3600000", "retention.ms");
            Kit.equal(found.get("max.message.bytes").value(), "65536", "max.message.bytes");
            Kit.equal(found.get("cleanup.policy").value(), "compact", "cleanup.policy");
        }
    }

    static void checkCreateWithDefaults() throws Exception {
        String topic = Kit.fresh("java");
        try (Admin admin = admin()) {
            var made = admin.createTopics(List.of(new NewTopic(topic, Optional.empty(), Optional.empty())));
            done(made.all());
            Kit.equal(done(made.numPartitions(topic)), 1, "partitions");
            Kit.equal(done(made.replicationFactor(topic)), 1, "replicas");
            Kit.yes(done(made.config(topic)).get("retention.ms") != null, "configs in the answer");
        }
    }

    static void checkCreateExistingRefused() throws Exception {
        String topic = topic();
        try (Admin admin = admin()) {
            Kit.refused(
                    TopicExistsException.class, () -> done(admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all()));
        }
    }

    static void checkCreateInvalidRefused() throws Exception {
        try (Admin admin = admin()) {
            NewTopic name = new NewTopic("no spaces here", 1, (short) 1);
            Kit.refused(InvalidTopicException.class, () -> done(admin.createTopics(List.of(name)).all()));
            NewTopic config = new NewTopic(Kit.fresh("java"), 1, (short) 1).configs(Map.of("retention.ms", "soon"));
            Kit.refused(InvalidConfigurationException.class, () -> done(admin.createTopics(List.of(config)).all()));
            NewTopic count = new NewTopic(Kit.fresh("java"), 0, (short) 1);
            Kit.refused(InvalidPartitionsException.class, () -> done(admin.createTopics(List.of(count)).all()));
        }
    }

    static void checkCreateValidateOnly() throws Exception {
        String topic = Kit.fresh("java");
        try (Admin admin = admin()) {
            var options = new CreateTopicsOptions().validateOnly(true);
            done(admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1)), options).all());
            Kit.yes(!done(admin.listTopics().names()).contains(topic), "validated, not created");
        }
    }

    static void checkDeleteTopics() throws Exception {
        String topic = topic();
        try (Admin admin = admin()) {
            done(admin.deleteTopics(List.of(topic)).all());
            Kit.until(() -> !done(admin.listTopics().names()).contains(topic), "the topic to be gone");
            Kit.refused(UnknownTopicOrPartitionException.class, () -> done(admin.deleteTopics(List.of(topic)).all()));
        }
    }

    static void checkCreatePartitions() throws Exception {
        String topic = topic();
        try (Admin admin = admin()) {
            done(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
            Kit.until(
                    () -> done(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size() == 3,
                    "three partitions");
            Kit.refused(
                    InvalidPartitionsException.class,
                    () -> done(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all()));
        }
        try (var into = producer()) {
            Kit.equal(send(into, topic, 2, values("x")), List.of(0L), "offsets");
        }
    }

    // -- producing ------------------------------------------------------------------------------------------------

    static void checkAcks0() throws Exception {
        String topic = topic();
        try (var into = producer("acks", "0")) {
            send(into, topic, 0, values("a", "b", "c"));
        }
        Kit.equal(texts(read(topic, 3, 0)), List.of("a", "b", "c"), "values");
    }

    static void checkAcks1() throws Exception {
        String topic = topic();
        try (var into = producer("acks", "1")) {
            Kit.equal(send(into, topic, 0, values("a", "b")), List.of(0L, 1L), "offsets");
        }
    }

    static void checkAcksAll() throws Exception {
        String topic = topic();
        try (var into = producer("acks", "all")) {
            Kit.equal(send(into, topic, 0, values("a", "b")), List.of(0L, 1L), "offsets");
            Kit.equal(send(into, topic, 0, values("c")), List.of(2L), "offsets");
        }
    }

    static void codec(String name) throws Exception {
        String topic = topic();
        List<Row> rows = new ArrayList<>(ROWS);
        for (int number = 0; number < 300; number++) {
            rows.add(new Row(bytes("" + number), bytes("again and again ".repeat(50)), List.of(), Kit.START_MS + number));
        }
        try (var into = producer("compression.type", name)) {
            send(into, topic, 0, rows);
        }
        Kit.equal(rows(read(topic, rows.size(), 0, "check.crcs", true)), shown(rows), "records");
    }

    static void checkCodecNone() throws Exception {
        codec("none");
    }

    static void checkCodecGzip() throws Exception {
        codec("gzip");
    }

    static void checkCodecSnappy() throws Exception {
        codec("snappy");
    }

    static void checkCodecLz4() throws Exception {
        codec("lz4");
    }

    static void checkCodecZstd() throws Exception {
        codec("zstd");
    }

    static void checkIdempotence() throws Exception {
        String topic = topic();
        String[] wanted = IntStream.range(0, 500).mapToObj(Integer::toString).toArray(String[]::new);
        try (var into = producer("enable.idempotence", true, "batch.size", 200, "linger.ms", 0)) {
            send(into, topic, 0, values(wanted));
        }
        Kit.equal(texts(read(topic, 500, 0)), List.of(wanted), "values");
    }

    static void checkHeadersNullsTimestamps() throws Exception {
        String topic = topic();
        try (var into = producer()) {
            send(into, topic, 0, ROWS);
        }
        Kit.equal(rows(read(topic, ROWS.size(), 0)), shown(ROWS), "records");
    }

    static void checkAppendTime() throws Exception {
        String topic = topic(1, Map.of("message.timestamp.type", "LogAppendTime"));
        write(topic, "a");
        var found = read(topic, 1, 0).get(0);
        Kit.equal(found.timestampType(), TimestampType.LOG_APPEND_TIME, "kind of timestamp");
        Kit.yes(found.timestamp() > Kit.START_MS + 1_000_000, "the log's own time");
    }

    static void checkLargeAccepted() throws Exception {
        String topic = topic(1, Map.of("max.message.bytes", "3000000"));
        byte[] big = new byte[2_500_000];
        new Random(1).nextBytes(big);
        try (var into = producer("max.request.size", 3_000_000)) {
            send(into, topic, 0, List.of(new Row(null, big, List.of(), Kit.START_MS)));
            send(into, topic, 0, values("small"));
        }
        var found = read(topic, 2, 0, "max.partition.fetch.bytes", 1000, "fetch.max.bytes", 1000);
        Kit.yes(Arrays.equals(found.get(0).value(), big), "the large record as it was sent");
    }

    static void checkLargeRefused() throws Exception {
        String topic = topic(1, Map.of("max.message.bytes", "10000"));
        byte[] big = new byte[50_000];
        new Random(1).nextBytes(big);
        try (var into = producer()) {
            Kit.refused(
                    RecordTooLargeException.class,
                    () -> send(into, topic, 0, List.of(new Row(null, big, List.of(), Kit.START_MS))));
            Kit.equal(send(into, topic, 0, values("small")), List.of(0L), "offsets");
        }
    }

    // -- reading --------------------------------------------------------------------------------------------------

    static void checkBeginningAndEnd() throws Exception {
        String topic = topic();
        var place = new TopicPartition(topic, 0);
        write(topic, "a", "b", "c");
        try (var source = consumer(Kit.fresh("group"))) {
            Kit.equal(source.beginningOffsets(List.of(place)), Map.of(place, 0L), "beginning");
            Kit.equal(source.endOffsets(List.of(place)), Map.of(place, 3L), "end");
        }
    }

    static void checkOffsetsByTime() throws Exception {
        String topic = topic();
        var place = new TopicPartition(topic, 0);
        try (var into = producer()) {
            for (int number = 0; number < 5; number++) {
                send(into, topic, 0, List.of(new Row(null, bytes("x"), List.of(), Kit.START_MS + number * 1000L)));
            }
        }
        try (var source = consumer(Kit.fresh("group"))) {
            for (long[] pair : new long[][] {{0, 0}, {1, 1}, {4000, 4}}) {
                var found = source.offsetsForTimes(Map.of(place, Kit.START_MS + pair[0])).get(place);
                Kit.equal(found.offset(), pair[1], "offset at " + pair[0] + " ms");
                Kit.equal(found.timestamp(), Kit.START_MS + pair[1] * 1000, "its timestamp");
            }
            Kit.yes(source.offsetsForTimes(Map.of(place, Kit.START_MS + 4001)).get(place) == null, "nothing after the last");
        }
    }

    static void checkListOffsets() throws Exception {
        String topic = topic();
        var place = new TopicPartition(topic, 0);
        try (var into = producer()) {
            for (long ahead : new long[] {0, 9000, 50}) {
                send(into, topic, 0, List.of(new Row(null, bytes("x"), List.of(), Kit.START_MS + ahead)));
            }
        }
        Map<OffsetSpec, Long> wanted = new LinkedHashMap<>();
        wanted.put(OffsetSpec.earliest(), 0L);
        wanted.put(OffsetSpec.latest(), 3L);
        wanted.put(OffsetSpec.forTimestamp(Kit.START_MS + 1), 1L);
        wanted.put(OffsetSpec.maxTimestamp(), 1L);
        try (Admin admin = admin()) {
            for (var each : wanted.entrySet()) {
                var found = done(admin.listOffsets(Map.of(place, each.getKey())).partitionResult(place));
                Kit.equal(found.offset(), each.getValue(), each.getKey().getClass().getSimpleName());
            }
        }
    }

    static void checkFromMidBatch() throws Exception {
        String topic = topic();
        write(topic, IntStream.range(0, 50).mapToObj(Integer::toString).toArray(String[]::new));
        var found = read(topic, 13, 37);
        Kit.equal(found.get(0).offset(), 37L, "first offset");
        Kit.equal(texts(found), IntStream.range(37, 50).mapToObj(Integer::toString).toList(), "values");
    }

    static void checkOutOfRange() throws Exception {
        String topic = topic();
        write(topic, "a", "b");
        Kit.equal(texts(read(topic, 2, 1000)), List.of("a", "b"), "after reset");
        Kit.refused(OffsetOutOfRangeException.class, () -> read(topic, 2, 1000, "auto.offset.reset", "none"));
    }

    static void checkSeek() throws Exception {
        String topic = topic();
        var place = new TopicPartition(topic, 0);
        write(topic, "a", "b", "c");
        try (var source = consumer(Kit.fresh("group"))) {
            source.assign(List.of(place));
            take(source, 3);
            source.seek(place, 1);
            Kit.equal(texts(take(source, 2)), List.of("b", "c"), "values");
            source.seekToEnd(List.of(place));
            Kit.equal(source.position(place), 3L, "the end");
        }
    }

    // -- groups ---------------------------------------------------------------------------------------------------

    static void checkGroupRebalance() throws Exception {
        String topic = topic(4, Map.of()), group = Kit.fresh("group");
        try (var second = consumer(group)) {
            try (var first = consumer(group)) {
                first.subscribe(List.of(topic));
                owning(List.of(4), first);
                second.subscribe(List.of(topic));
                var parts = owning(List.of(2, 2), first, second);
                Set<Integer> all = new HashSet<>(parts.get(0));
                all.addAll(parts.get(1));
                Kit.equal(all, Set.of(0, 1, 2, 3), "all partitions");
            }
            owning(List.of(4), second);
        }
    }

    static void checkConsumerProtocol() throws Exception {
        String topic = topic(4, Map.of()), group = Kit.fresh("group");
        Map<String, Object> settings = plain(with("auto.offset.reset", "earliest", "enable.auto.commit", false));
        settings.putAll(with("group.id", group, "group.protocol", "consumer", "fetch.max.wait.ms", 100));
        var bytes = new ByteArrayDeserializer();
        try (var second = new KafkaConsumer<>(settings, bytes, bytes)) {
            try (var first = new KafkaConsumer<>(settings, bytes, bytes);
                    Admin admin = admin()) {
                first.subscribe(List.of(topic));
                owning(List.of(4), first);
                second.subscribe(new SubscriptionPattern(topic + ".?"));
                var parts = owning(List.of(2, 2), first, second);
                var place = new TopicPartition(topic, parts.get(0).iterator().next());
                first.commitSync(Map.of(place, new OffsetAndMetadata(0, "by epoch")));
                var seen = done(admin.describeConsumerGroups(List.of(group)).all()).get(group);
                Kit.equal(seen.type(), GroupType.CONSUMER, "type");
                Kit.equal(seen.members().size(), 2, "members");
                Kit.equal(first.committed(Set.of(place)).get(place).metadata(), "by epoch", "the commit");
            }
            owning(List.of(4), second);
        }
    }

    static void checkCooperative() throws Exception {
        String topic = topic(4, Map.of()), group = Kit.fresh("group");
        Object[] cooperative = {"partition.assignment.strategy", CooperativeStickyAssignor.class.getName()};
        List<TopicPartition> lost = new ArrayList<>();
        try (var first = consumer(group, cooperative); var second = consumer(group, cooperative)) {
            first.subscribe(List.of(topic), new org.apache.kafka.clients.consumer.ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                    lost.addAll(revoked);
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {}
            });
            owning(List.of(4), first);
            second.subscribe(List.of(topic));
            owning(List.of(2, 2), first, second);
            Kit.equal(lost.size(), 2, "partitions taken from the first");
        }
    }

    static void checkStaticMember() throws Exception {
        String topic = topic(2, Map.of()), group = Kit.fresh("group");
        try (var other = consumer(group)) {
            other.subscribe(List.of(topic));
            List<Set<Integer>> before;
            try (var fixed = consumer(group, "group.instance.id", "one")) {
                fixed.subscribe(List.of(topic));
                before = owning(List.of(1, 1), fixed, other);
            }
            try (var again = consumer(group, "group.instance.id", "one")) {
                again.subscribe(List.of(topic));
                Kit.equal(owning(List.of(1, 1), again, other), before, "the same partitions");
            }
        }
    }

    static void checkCommitWithMetadata() throws Exception {
        String topic = topic(), group = Kit.fresh("group");
        var place = new TopicPartition(topic, 0);
        try (var source = consumer(group)) {
            source.assign(List.of(place));
            Kit.yes(source.committed(Set.of(place)).get(place) == null, "nothing committed");
            source.commitSync(Map.of(place, new OffsetAndMetadata(7, "what I know")));
        }
        try (var source = consumer(group)) {
            var found = source.committed(Set.of(place)).get(place);
            Kit.equal(found.offset() + found.metadata(), "7what I know", "the commit");
        }
    }

    static void checkGroupGoesOn() throws Exception {
        String topic = topic(), group = Kit.fresh("group");
        write(topic, "a", "b", "c");
        try (var source = consumer(group)) {
            source.subscribe(List.of(topic));
            take(source, 3);
            source.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(2)));
        }
        try (var source = consumer(group)) {
            source.subscribe(List.of(topic));
            Kit.equal(texts(take(source, 1)), List.of("c"), "values");
        }
    }

    static void checkListAndDescribeGroups() throws Exception {
        String topic = topic(), group = Kit.fresh("group");
        try (var source = consumer(group, "client.id", "seen"); Admin admin = admin()) {
            source.subscribe(List.of(topic));
            owning(List.of(1), source);
            var listed = done(admin.listGroups().all()).stream().filter(each -> each.groupId().equals(group)).toList();
            Kit.equal(listed.size(), 1, "the group among all");
            var seen = done(admin.describeConsumerGroups(List.of(group)).all()).get(group);
            Kit.equal(seen.groupState(), GroupState.STABLE, "state");
            Kit.equal(seen.partitionAssignor(), "range", "assignor");
            var member = seen.members().iterator().next();
            Kit.equal(member.clientId(), "seen", "client id");
            Kit.equal(member.assignment().topicPartitions(), Set.of(new TopicPartition(topic, 0)), "assignment");
        }
    }

    static void checkGroupOffsets() throws Exception {
        String topic = topic(), group = Kit.fresh("group");
        var place = new TopicPartition(topic, 0);
        try (Admin admin = admin()) {
            done(admin.alterConsumerGroupOffsets(group, Map.of(place, new OffsetAndMetadata(5, "set"))).all());
            var found = done(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
            Kit.equal(found.get(place).offset() + found.get(place).metadata(), "5set", "the commit");
            done(admin.deleteConsumerGroupOffsets(group, Set.of(place)).all());
            Kit.equal(done(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()), Map.of(), "no commits");
        }
    }

    static void checkDeleteGroup() throws Exception {
        String topic = topic(), group = Kit.fresh("group");
        try (Admin admin = admin()) {
            try (var source = consumer(group)) {
                source.subscribe(List.of(topic));
                owning(List.of(1), source);
                source.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1)));
                Kit.refused(GroupNotEmptyException.class, () -> done(admin.deleteConsumerGroups(List.of(group)).all()));
            }
            done(admin.deleteConsumerGroups(List.of(group)).all());
            Kit.refused(GroupIdNotFoundException.class, () -> done(admin.deleteConsumerGroups(List.of(group)).all()));
        }
    }

    // -- transactions ---------------------------------------------------------------------------------------------

    static KafkaProducer<byte[], byte[]> transactional(String name) {
        var into = producer("transactional.id", name, "enable.idempotence", true, "transaction.timeout.ms", 60_000);
        into.initTransactions();
        return into;
    }

    static void end(KafkaProducer<byte[], byte[]> into, boolean commit) {
        if (commit) {
            into.commitTransaction();
        } else {
            into.abortTransaction();
        }
    }

    static void checkTransactionCommitAndAbort() throws Exception {
        String topic = topic();
        String name = Kit.fresh("txn");
        try (var into = transactional(name); Admin admin = admin()) {
            for (String texts : List.of("a1 a2", "c1 c2", "a3", "c3")) {
                into.beginTransaction();
                send(into, topic, 0, values(texts.split(" ")));
                end(into, texts.startsWith("c"));
            }
            var known = admin.describeTransactions(List.of(name)).all().get().get(name);
            Kit.equal(known.producerEpoch(), 4, "one more with every end: transactions of version 2");
        }
        var committed = texts(read(topic, 3, 0, "isolation.level", "read_committed"));
        Kit.equal(committed, List.of("c1", "c2", "c3"), "committed");
        var everything = texts(read(topic, 6, 0, "isolation.level", "read_uncommitted"));
        Kit.equal(everything, List.of("a1", "a2", "c1", "c2", "a3", "c3"), "everything");
    }

    static void checkOpenTransactionIsUnseen() throws Exception {
        String topic = topic();
        var place = new TopicPartition(topic, 0);
        write(topic, "before");
        try (var into = transactional(Kit.fresh("txn")); Admin admin = admin()) {
            into.beginTransaction();
            send(into, topic, 0, values("open"));
            List<Long> ends = new ArrayList<>();
            for (IsolationLevel level : List.of(IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)) {
                var asked = admin.listOffsets(Map.of(place, OffsetSpec.latest()), new ListOffsetsOptions(level));
                ends.add(done(asked.partitionResult(place)).offset());
            }
            Kit.equal(ends, List.of(1L, 2L), "stable end, end");
            into.commitTransaction();
        }
        var found = texts(read(topic, 2, 0, "isolation.level", "read_committed"));
        Kit.equal(found, List.of("before", "open"), "committed");
    }

    static void checkSendOffsetsToTransaction() throws Exception {
        String from = topic(), to = topic(), group = Kit.fresh("group");
        var place = new TopicPartition(from, 0);
        write(from, "a", "b", "c");
        try (var source = consumer(group); var into = transactional(Kit.fresh("txn"))) {
            source.subscribe(List.of(from));
            take(source, 3);
            for (int offset : new int[] {3, 2}) {
                into.beginTransaction();
                send(into, to, 0, values("upto " + offset));
                into.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(offset)), source.groupMetadata());
                end(into, offset == 2);
            }
            Kit.equal(source.committed(Set.of(place)).get(place).offset(), 2L, "the committed transaction's offset");
        }
        Kit.equal(texts(read(to, 1, 0, "isolation.level", "read_committed")), List.of("upto 2"), "committed");
    }

    static void checkZombieIsFenced() throws Exception {
        String topic = topic(), name = Kit.fresh("txn");
        try (var zombie = transactional(name)) {
            zombie.beginTransaction();
            send(zombie, topic, 0, values("from the grave"));
            try (var successor = transactional(name)) {
                successor.beginTransaction();
                send(successor, topic, 0, values("alive"));
                successor.commitTransaction();
            }
            Kit.refused(KafkaException.class, () -> {
                try {
                    zombie.commitTransaction();
                } catch (ProducerFencedException | org.apache.kafka.common.errors.InvalidProducerEpochException fenced) {
                    throw fenced;
                }
                return "committed";
            });
        }
        Kit.equal(texts(read(topic, 1, 0, "isolation.level", "read_committed")), List.of("alive"), "committed");
    }

    static void checkFenceProducers() throws Exception {
        String topic = topic(), name = Kit.fresh("txn");
        try (var into = transactional(name); Admin admin = admin()) {
            into.beginTransaction();
            send(into, topic, 0, values("open"));
            done(admin.fenceProducers(List.of(name)).all());
            Kit.refused(KafkaException.class, () -> {
                into.commitTransaction();
                return "committed";
            });
        }
    }

    // -- administration -------------------------------------------------------------------------------------------

    static ConfigResource resource(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    static Config config(Admin admin, String topic) throws Exception {
        return done(admin.describeConfigs(List.of(resource(topic))).all()).get(resource(topic));
    }

    static void checkDeleteRecords() throws Exception {
        String topic = topic();
        var place = new TopicPartition(topic, 0);
        write(topic, "a", "b", "c", "d", "e");
        try (Admin admin = admin()) {
            var gone = done(admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(3))).lowWatermarks().get(place));
            Kit.equal(gone.lowWatermark(), 3L, "low watermark");
            Kit.equal(done(admin.listOffsets(Map.of(place, OffsetSpec.earliest())).partitionResult(place)).offset(), 3L, "earliest");
        }
        Kit.equal(texts(read(topic, 2, 0)), List.of("d", "e"), "values");
    }

    static void alter(Admin admin, String topic, String name, String value, AlterConfigOp.OpType kind) throws Exception {
        var change = new AlterConfigOp(new ConfigEntry(name, value), kind);
        done(admin.incrementalAlterConfigs(Map.of(resource(topic), List.of(change))).all());
    }

    static void checkAlterConfigs() throws Exception {
        String topic = topic(1, Map.of("retention.ms", "1000000"));
        try (Admin admin = admin()) {
            alter(admin, topic, "max.message.bytes", "77777", AlterConfigOp.OpType.SET);
            Kit.until(() -> config(admin, topic).get("max.message.bytes").value().equals("77777"), "the altered setting");
            Kit.equal(config(admin, topic).get("retention.ms").value(), "1000000", "the setting beside it");
            Kit.equal(config(admin, topic).get("retention.ms").source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "source");
            Kit.equal(config(admin, topic).get("segment.bytes").isDefault(), true, "default");
            alter(admin, topic, "retention.ms", null, AlterConfigOp.OpType.DELETE);
            Kit.until(() -> !config(admin, topic).get("retention.ms").value().equals("1000000"), "the default again");
            Kit.refused(InvalidConfigurationException.class, () -> {
                alter(admin, topic, "max.message.bytes", "many", AlterConfigOp.OpType.SET);
                return "altered";
            });
        }
    }

    static void checkDescribeBrokerConfigs() throws Exception {
        try (Admin admin = admin()) {
            String node = done(admin.describeCluster().nodes()).iterator().next().idString();
            var broker = new ConfigResource(ConfigResource.Type.BROKER, node);
            Kit.yes(!done(admin.describeConfigs(List.of(broker)).all()).get(broker).entries().isEmpty(), "settings of the broker");
        }
    }

    static void checkDescribeCluster() throws Exception {
        try (Admin admin = admin()) {
            var cluster = admin.describeCluster();
            Kit.yes(!done(cluster.clusterId()).isEmpty(), "a cluster id");
            var node = done(cluster.nodes()).iterator().next();
            Kit.equal(node.host() + ":" + node.port(), Kit.of("plain"), "the node");
            Kit.equal(done(cluster.controller()).id(), node.id(), "the controller");
        }
    }

    /** Set, read back by the entity, and taken away again: of a user, a client id, both, and an address. */
    static void checkClientQuotas() throws Exception {
        String name = Kit.fresh("quota");
        var rates = new LinkedHashMap<ClientQuotaEntity, String>();
        rates.put(new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, name)), "producer_byte_rate");
        rates.put(new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, name)), "consumer_byte_rate");
        rates.put(
                new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, name, ClientQuotaEntity.CLIENT_ID, name)), "producer_byte_rate");
        rates.put(new ClientQuotaEntity(Map.of(ClientQuotaEntity.IP, "192.0.2.7")), "connection_creation_rate");
        try (Admin admin = admin()) {
            for (var each : rates.entrySet()) {
                var parts = each.getKey().entries().entrySet().stream()
                        .map(part -> ClientQuotaFilterComponent.ofEntity(part.getKey(), part.getValue()))
                        .toList();
                var filter = ClientQuotaFilter.containsOnly(parts);
                for (Double rate : Arrays.asList(1_000_000.0, null)) {
                    quota(admin, each.getKey(), each.getValue(), rate);
                    var wanted = rate == null ? Map.of() : Map.of(each.getKey(), Map.of(each.getValue(), rate));
                    Kit.until(() -> done(admin.describeClientQuotas(filter).entities()).equals(wanted), "the quota " + rate);
                }
            }
        }
    }

    static void quota(Admin admin, ClientQuotaEntity entity, String name, Double rate) throws Exception {
        var change = new ClientQuotaAlteration(entity, List.of(new ClientQuotaAlteration.Op(name, rate)));
        done(admin.alterClientQuotas(List.of(change)).all());
    }

    /** A client that goes over its rate hears for how long it is slowed down, in its own metrics. */
    static void checkThrottleIsHeard() throws Exception {
        String topic = topic();
        String id = Kit.fresh("slow");
        var entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, id));
        try (Admin admin = admin();
                var sink = producer("client.id", id);
                var source = consumer(Kit.fresh("slow"), "client.id", id)) {
            quota(admin, entity, "producer_byte_rate", 20_000.0);
            var row = new Row(null, new byte[20_000], List.of(), Kit.START_MS);
            Kit.until(
                    () -> {
                        send(sink, topic, 0, List.of(row));
                        return measured(sink.metrics(), "produce-throttle-time-max") > 0;
                    },
                    "a producer that is slowed down");
            quota(admin, entity, "consumer_byte_rate", 1_000.0);
            source.assign(List.of(new TopicPartition(topic, 0)));
            Kit.until(
                    () -> {
                        source.seekToBeginning(source.assignment());
                        source.poll(Duration.ofMillis(200));
                        return measured(source.metrics(), "fetch-throttle-time-max") > 0;
                    },
                    "a consumer that is slowed down");
            quota(admin, entity, "producer_byte_rate", null);
            quota(admin, entity, "consumer_byte_rate", null);
        }
    }

    static double measured(Map<MetricName, ? extends Metric> metrics, String name) {
        return metrics.values().stream()
                .filter(each -> each.metricName().name().equals(name))
                .mapToDouble(each -> (Double) each.metricValue())
                .filter(value -> !Double.isNaN(value))
                .max()
                .orElse(0);
    }

    static void checkAcls() throws Exception {
        String topic = Kit.fresh("acl");
        var pattern = new ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL);
        var entry = new AccessControlEntry("User:bob", "*", AclOperation.READ, AclPermissionType.ALLOW);
        var allow = new AclBinding(pattern, entry);
        var every = new AclBindingFilter(
                new ResourcePatternFilter(ResourceType.TOPIC, topic, PatternType.ANY), AccessControlEntryFilter.ANY);
        try (Admin admin = admin()) {
            done(admin.createAcls(List.of(allow)).all());
            Kit.until(() -> List.copyOf(done(admin.describeAcls(every).values())).equals(List.of(allow)), "the rule");
            done(admin.deleteAcls(List.of(every)).all());
            Kit.until(() -> done(admin.describeAcls(every).values()).isEmpty(), "no rule");
        }
    }

    // -- who comes in ---------------------------------------------------------------------------------------------

    static Map<String, Object> sasl(String mechanism, String password) {
        String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        String login = String.format(
                "org.apache.kafka.common.security.%s required username=\"%s\" password=\"%s\";", module, Kit.of("user"), password);
        return with(
                "bootstrap.servers", Kit.of("sasl"),
                "security.protocol", "SASL_PLAINTEXT",
                "sasl.mechanism", mechanism,
                "sasl.jaas.config", login);
    }

    static Map<String, Object> tls(String name, boolean certificate) {
        Map<String, Object> made = with(
                "bootstrap.servers", Kit.of(name),
                "security.protocol", "SSL",
                "ssl.truststore.type", "PEM",
                "ssl.truststore.location", Kit.of("ca"));
        if (certificate) {
            made.putAll(with("ssl.keystore.type", "PEM", "ssl.keystore.location", Kit.of("client_both")));
        }
        return made;
    }

    static Object[] pairs(Map<String, Object> settings) {
        return settings.entrySet().stream().flatMap(each -> java.util.stream.Stream.of(each.getKey(), each.getValue())).toArray();
    }

    /** Create, produce and read with these settings. */
    static void roundTrip(Map<String, Object> settings) throws Exception {
        String topic = Kit.fresh("secured");
        try (Admin admin = Admin.create(settings)) {
            create(admin, new NewTopic(topic, 1, (short) 1));
        }
        try (var into = producer(pairs(settings))) {
            Kit.equal(send(into, topic, 0, values("a")), List.of(0L), "offsets");
        }
        try (var source = consumer(Kit.fresh("group"), pairs(settings))) {
            source.subscribe(List.of(topic));
            Kit.equal(texts(take(source, 1)), List.of("a"), "values");
        }
    }

    static void keptOut(Class<? extends Throwable> kind, Map<String, Object> settings) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            Kit.refused(kind, () -> done(admin.listTopics().names()));
        }
    }

    static void checkSaslPlain() throws Exception {
        roundTrip(sasl("PLAIN", Kit.of("password")));
    }

    static void checkScramSha256() throws Exception {
        roundTrip(sasl("SCRAM-SHA-256", Kit.of("password")));
    }

    static void checkScramSha512() throws Exception {
        roundTrip(sasl("SCRAM-SHA-512", Kit.of("password")));
    }

    static void checkWrongPasswordRefused() throws Exception {
        for (String mechanism : List.of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")) {
            keptOut(SaslAuthenticationException.class, sasl(mechanism, "guessed"));
        }
    }

    static void checkTls() throws Exception {
        roundTrip(tls("tls", false));
    }

    static void checkMtls() throws Exception {
        roundTrip(tls("mtls", true));
    }

    static void checkMtlsWithoutCertificateRefused() throws Exception {
        Map<String, Object> settings = tls("mtls", false);
        settings.putAll(with("default.api.timeout.ms", 3000, "request.timeout.ms", 3000));
        try (Admin admin = Admin.create(settings)) {
            Throwable why = Kit.refused(Throwable.class, () -> done(admin.listTopics().names()));
            for (; why != null; why = why.getCause()) {
                if (why instanceof SslAuthenticationException || why instanceof TimeoutException
                        || why instanceof org.apache.kafka.common.errors.TimeoutException) {
                    return;
                }
            }
            throw new Kit.Wrong("refused otherwise");
        }
    }
}
