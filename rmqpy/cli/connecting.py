"""The options with which a command finds name servers and brokers, and their client settings."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Parser
    from rmqpy.client.core.instance import ClientSettings

NO_NAME_SERVER = "found no name server, expected one; use -n HOST:PORT, or set NAMESRV_ADDR"


def add_connection_options(parser: Parser) -> None:
    parser.add_argument(
        "-n",
        "--namesrvAddr",
        dest="name_servers",
        default=os.environ.get("NAMESRV_ADDR"),
        metavar="HOST:PORT[;HOST:PORT]",
        help="name servers; default: environment variable NAMESRV_ADDR",
    )
    parser.add_argument(
        "--credentials",
        metavar="FILE",
        help="accessKey and secretKey to sign with; default: environment variables "
        "RMQPY_ACCESS_KEY and RMQPY_SECRET_KEY, else $ROCKETMQ_HOME/conf/tools.yml",
    )
    parser.add_argument(
        "--tls", action="store_true", help="use TLS without verifying server certificates"
    )
    parser.add_argument(
        "--tls-config",
        metavar="FILE",
        help="use TLS with the tls.client.* keys of a Java tls.properties file",
    )


def client_settings(
    options: argparse.Namespace, name_servers: str, first_heartbeat_ms: int
) -> ClientSettings:
    """Return the settings of a client of ``name_servers`` with the given options."""
    from rmqpy.admin.credentials import find_credentials
    from rmqpy.client.core.instance import ClientSettings

    tls = None
    if options.tls or options.tls_config:
        from rmqpy.net.tls import side_of_file

        tls = side_of_file(options.tls_config)
    return ClientSettings(
        name_servers=name_servers,
        credentials=find_credentials(options.credentials, os.environ),
        tls=tls,
        first_heartbeat_ms=first_heartbeat_ms,
    )
