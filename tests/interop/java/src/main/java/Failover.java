import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's Java client writes and reads while nodes come and go: an idempotent producer and a member of a group.
 *
 * Arguments: addresses, topic, partitions, group. It prints "acked N" now and then; a line on stdin ends the writing, and at last
 * "done SENT SEEN" is printed: how many records were acknowledged, and how many of them the group has seen.
 */
final class Failover {
    static final int IN_FLIGHT = 200;
    static final int SHOWN = 100;
    static volatile boolean enough = false;
    static volatile int sent = -1;

    private Failover() {}

    public static void main(String[] words) throws Exception {
        Map<String, Object> shared = Map.of("bootstrap.servers", words[0], "reconnect.backoff.max.ms", 200);
        Thread ending = new Thread(() -> {
            new java.util.Scanner(System.in).hasNextLine();
            enough = true;
        });
        ending.setDaemon(true);
        ending.start();
        Set<String> seen = new HashSet<>();
        Thread reading = new Thread(() -> consume(shared, words[1], words[3], seen));
        reading.start();
        sent = produce(shared, words[1], Integer.parseInt(words[2]));
        reading.join();
        System.out.println("done " + sent + " " + seen.size());
        Runtime.getRuntime().halt(0);
    }

    /** Until there is enough; every record is acknowledged then. */
    static int produce(Map<String, Object> shared, String topic, int partitions) throws Exception {
        Map<String, Object> settings = new HashMap<>(shared);
        settings.putAll(Map.of("acks", "all", "enable.idempotence", true, "linger.ms", 2));
        Semaphore room = new Semaphore(IN_FLIGHT);
        AtomicInteger acked = new AtomicInteger();
        int number = 0;
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (; !enough; number++) {
                room.acquire();
                var record = new ProducerRecord<String, String>(topic, number % partitions, null, String.valueOf(number));
                producer.send(record, (where, error) -> {
                    if (error != null) {
                        error.printStackTrace();
                        Runtime.getRuntime().halt(1);
                    }
                    int count = acked.incrementAndGet();
                    if (count % SHOWN == 0) System.out.println("acked " + count);
                    room.release();
                });
            }
        }
        return acked.get();
    }

    static void consume(Map<String, Object> shared, String topic, String group, Set<String> seen) {
        Map<String, Object> settings = new HashMap<>(shared);
        settings.putAll(Map.of("group.id", group, "auto.offset.reset", "earliest", "auto.commit.interval.ms", 100));
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (seen.size() != sent) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(100))) seen.add(each.value());
            }
        }
    }
}
