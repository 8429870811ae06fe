"""The commands ``rmqpy namesrv`` and ``rmqpy broker``."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE, add_log_file_option, add_log_options
from rmqpy.config.loading import (
    BrokerConfiguration,
    LoadedConfiguration,
    NamesrvConfiguration,
    effective_lines,
    load_broker_configuration,
    load_namesrv_configuration,
    load_shard_configuration,
)
from rmqpy.model.errors import RmqError
from rmqpy.net.logging_setup import configure_logging

if TYPE_CHECKING:
    from rmqpy.broker.assembly.shards.plan import Shard
    from rmqpy.cli.parsing import Commands


def add_commands(commands: Commands) -> None:
    namesrv = commands.add_parser("namesrv", help="run a name server")
    _server_options(namesrv, "namesrv.conf")
    namesrv.set_defaults(command=_namesrv, serves=True)

    broker = commands.add_parser("broker", help="run a broker")
    _server_options(broker, "broker.conf")
    broker.add_argument(
        "-n", dest="name_server", metavar="HOST:PORT[;HOST:PORT]", help="name servers (namesrvAddr)"
    )
    broker.add_argument(
        "--force-truncate",
        action="store_true",
        help="give up everything after damage in the middle of the log; the bytes are kept in"
        " rmqpy/quarantine",
    )
    broker.add_argument(
        "--shards",
        metavar="N|NAMES",
        help="run several brokers, each with its share of the configuration: their number, or"
        " their names separated by commas",
    )
    broker.add_argument(
        "--only", metavar="NAME", help="with --shards: run only this one, without a supervisor"
    )
    broker.set_defaults(command=_broker, serves=True)


def _namesrv(options: argparse.Namespace) -> int:
    loaded = load_namesrv_configuration(options.config, _overrides(options), os.environ)
    if options.print_settings:
        return _print_settings(loaded.configuration)
    from rmqpy.namesrv.process import run_namesrv

    run_namesrv(loaded)
    return EXIT_DONE


def _broker(options: argparse.Namespace) -> int:
    overrides = _overrides(options)
    if options.name_server:
        overrides["namesrvAddr"] = options.name_server
    # Nearly all objects of a start stay alive. The process enables collection when it is ready.
    gc.disable()
    if options.shards is not None:
        return _shards(options, overrides)
    if options.only is not None:
        raise RmqError(f"--only {options.only}: expected --shards, too")
    loaded = load_broker_configuration(options.config, overrides, os.environ)
    if options.print_settings:
        return _print_settings(loaded.configuration)
    from rmqpy.broker.assembly.process import run_broker

    run_broker(loaded, force_truncate=options.force_truncate)
    return EXIT_DONE


def _shards(options: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Run several brokers, or one of them."""
    from rmqpy.broker.assembly.shards.folders import claim_folders
    from rmqpy.broker.assembly.shards.plan import shards_of
    from rmqpy.store.files.disk import OsFileSystem

    loaded = load_broker_configuration(options.config, overrides, os.environ)
    root = loaded.configuration.store.store_path_root_dir
    shards = shards_of(loaded.configuration, options.shards)
    chosen = [shard for shard in shards if options.only in (None, shard.name)]
    if not chosen:
        names = ", ".join(shard.name for shard in shards)
        raise RmqError(f"--only {options.only}: expected one of {names}")
    if options.print_settings:
        for shard in chosen:
            print(f"# {shard.name}")
            _print_settings(_load_shard(options, shard, overrides).configuration)
        return EXIT_DONE
    if options.only is None and options.force_truncate:
        raise RmqError("--force-truncate with --shards: expected --only NAME, too: one shard")
    claim_folders(OsFileSystem(), root, shards)
    if options.only is None:
        from rmqpy.broker.assembly.shards.supervisor import ShardCommand, run_shards

        return run_shards([ShardCommand(each.name, _argv(options, each)) for each in shards])
    (shard,) = chosen
    configure_logging(
        as_json=options.log_json,
        level=options.log_level,
        broker=shard.name,
        path=options.log_file,
    )
    from rmqpy.broker.assembly.process import run_broker

    run_broker(_load_shard(options, shard, overrides), force_truncate=options.force_truncate)
    return EXIT_DONE


def _load_shard(
    options: argparse.Namespace, shard: Shard, overrides: dict[str, str]
) -> LoadedConfiguration:
    settings = {**overrides, **shard.settings}
    return load_shard_configuration(options.config, shard.settings_file, settings, os.environ)


def _argv(options: argparse.Namespace, shard: Shard) -> tuple[str, ...]:
    """Return the command line of one shard."""
    argv = [sys.executable, "-m", "rmqpy.cli", "broker", "--shards", options.shards]
    argv += ["--only", shard.name, "--log-level", options.log_level]
    if options.config is not None:
        argv += ["-c", options.config]
    if options.name_server:
        argv += ["-n", options.name_server]
    if options.log_json:
        argv.append("--log-json")
    if options.log_file is not None:
        argv += ["--log-file", options.log_file]
    for each in options.set:
        argv += ["--set", each]
    return tuple(argv)


def _print_settings(configuration: BrokerConfiguration | NamesrvConfiguration) -> int:
    for line in sorted(effective_lines(configuration)):
        print(line)
    return EXIT_DONE


def _overrides(options: argparse.Namespace) -> dict[str, str]:
    pairs = {}
    for text in options.set:
        key, separator, value = text.partition("=")
        if not separator:
            raise RmqError(f"--set {text}: expected KEY=VALUE")
        pairs[key] = value
    return pairs


def _server_options(parser: argparse.ArgumentParser, config: str) -> None:
    parser.add_argument("-c", dest="config", metavar="FILE", help=f"{config} in Java's format")
    parser.add_argument(
        "-p", dest="print_settings", action="store_true", help="print the effective settings"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, overriding the file",
    )
    add_log_options(parser, level="INFO")
    add_log_file_option(parser)
