"""A stream from brokers into a sink, as a separate program that tests can kill.

    python stream_driver.py JSON

The JSON has the ``master`` and ``settings`` of the session, the options to ``read``, the ``format``
of the sink, its options to ``write``, and the column expressions to ``select``.
"""

from __future__ import annotations

import json
import sys

from rmqpy.pipeline.datasource.source import register
from rmqpy.pipeline.spark.session import SessionPlan, spark_session


def main(text: str) -> None:
    order = json.loads(text)
    plan = SessionPlan(master=order["master"], name="stream", settings=order["settings"])
    with spark_session(plan) as spark:
        register(spark)
        frame = spark.readStream.format("rocketmq").options(**order["read"]).load()
        frame = frame.selectExpr(*order["select"])
        writer = frame.writeStream.format(order["format"]).options(**order["write"])
        writer.start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
