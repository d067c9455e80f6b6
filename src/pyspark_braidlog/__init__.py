"""Spark takes the `DefaultSource` of every module named `pyspark_*`: this is why `format("braidlog")` needs no registration.

It never raises: Spark imports all such modules that it finds, and one that fails would break the others. Without the extra
(`pip install braidlog[spark]`) there is nothing here to find.
"""

import contextlib

with contextlib.suppress(ImportError):
    from braidlog.spark.topic_source import TopicSource

    DefaultSource = TopicSource
