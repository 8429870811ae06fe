"""``rmqpy pipeline``: work on stores that are too large, or too many, for one machine."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Final

from rmqpy.cli.parsing import EXIT_DONE, EXIT_FAILED, add_log_options
from rmqpy.cli.pipeline.engine import master_option, spark_of
from rmqpy.model.errors import ConfigError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands

VERBS: Final = {
    "audit": ("audit",),
    "replicas": ("compare", "certify", "plan"),
    "rebuild": ("rebuild",),
    "export": ("export", "sql", "query"),
    "append": ("append",),
}
"""The modules of this package, each with the verbs that it adds."""


def add_commands(commands: Commands) -> None:
    pipeline = commands.add_parser("pipeline", help="examine many or large stores, with Spark")
    verbs = pipeline.add_subparsers(required=True, metavar="VERB")

    doctor = verbs.add_parser("doctor", help="report what Spark needs and what is missing here")
    master_option(doctor)
    add_log_options(doctor)
    doctor.set_defaults(command=_doctor)

    for module, names in VERBS.items():
        if verbs.needs(*names):
            import_module(f"rmqpy.cli.pipeline.{module}").add_verbs(verbs)


def _doctor(options: argparse.Namespace) -> int:
    """Print the requirements of a session; with a master, start one. Return 1 if that fails."""
    from rmqpy.pipeline.spark.session import check_needs

    missing = 0
    for name, found in check_needs(os.environ):
        wrong = isinstance(found, ConfigError)
        missing += wrong
        print(f"{name:<12} {'missing: ' if wrong else ''}{found}")
    print(f"{'workers':<12} {sys.executable} (on a cluster: the one in its PYSPARK_PYTHON)")
    if missing or (options.master is None and options.remote is None):
        print("Spark cannot start; --engine local works" if missing else "Spark can start")
        return EXIT_FAILED if missing else EXIT_DONE
    from rmqpy.pipeline.spark.session import worker_texts

    with ExitStack() as stack:
        for text in worker_texts(spark_of(options, stack, light=False)):
            print(f"{'worker':<12} {text}")
    print(f"Spark works at {options.remote or options.master}")
    return EXIT_DONE
