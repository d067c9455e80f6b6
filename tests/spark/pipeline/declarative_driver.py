"""A process that runs a declarative pipeline: what is there, then, at a line on stdin, on and on until stdin ends."""

import sys
import threading

from braidlog.spark.pipeline import operating
from braidlog.spark.pipeline.operating import Wishes
from braidlog.spark.pipeline.project import open_project
from braidlog.spark.pipeline.running import Stopped, StopRequest

CONF = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.pipelines.execution.maxConcurrentFlows": "1",
    # On a busy machine a Python process may need more than the ten seconds that Spark gives it, again and again.
    "spark.sql.pipelines.maxFlowRetryAttempts": "100",
}


def stop_at_end(stop: StopRequest) -> None:
    sys.stdin.read()
    stop.set()


def main(folder: str) -> None:
    project, stop = open_project(folder), StopRequest()
    with operating.session(project, Wishes("local[2]", CONF)) as spark:
        for line in operating.dry_run(spark, project):
            print(line, flush=True)
        operating.run(spark, project, Wishes(once=True), stop, lambda _: None)
        print("done", flush=True)
        sys.stdin.readline()
        threading.Thread(target=stop_at_end, args=(stop,), daemon=True).start()
        try:
            operating.run(spark, project, Wishes(), stop, lambda _: None)
        except Stopped:
            print("stopped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
