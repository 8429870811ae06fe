"""The page docs/configuration.md, made from the table of keys.

Printed by ``python -m rmqpy.config.reference_page``.
"""

from __future__ import annotations

import sys
from typing import Any

from rmqpy.config.broker import BrokerSettings
from rmqpy.config.dledger import DLedgerSettings
from rmqpy.config.keys import KeyFacts, key_facts
from rmqpy.config.remoting import NamesrvSettings, RemotingSettings, ServerSettings
from rmqpy.config.security import SecuritySettings
from rmqpy.config.store import StoreSettings

_HEAD = """\
# Configuration

<!-- Made from the table of keys: python -m rmqpy.config.reference_page > docs/configuration.md -->

A broker or name server reads one file in the form of Java's `.properties` files, with the keys of
RocketMQ 4.9.7, so that an existing `broker.conf` can be used as it is. `--set key=value` on the
command line wins over the file, the file over the environment (`NAMESRV_ADDR`, `ROCKETMQ_HOME`),
the environment over the defaults below.

Wrong values stop the start with file, line, key and what is allowed. What is odd but harmless is
reported as a note: unknown keys (with the nearest known one), a key given twice, keys without
effect.

What differs from Java 4.9.7:

| | Java 4.9.7 | rmqpy |
|---|---|---|
| a value that cannot be read | the default, silently | start refused |
| blanks behind a number or a truth value | the default, silently | ignored, with a note |
| listening | on all addresses | on `bindAddress`, else `brokerIP1`, else 127.0.0.1 with a note |
| `isEnableBatchPush` in a file | not read; only `enableBatchPush` is | both are read |
| `mapedFileSizeCommitLog`, `mapedFileSizeConsumeQueue` | not read, silently | not read, noted |
| change by an admin request | any key | only the keys marked *live*; others: code 16 |
| secrets | shown to whoever asks for the settings | `******`, in `-p` too |

Effect: **used** does what it says; **accepted** is checked, kept and printed but changes nothing;
**not yet**: the same, until what the key is about is built; **only the default** refuses every
other value, because ignoring it would not be safe. *live*: may be changed while the program runs.
"""

_PARTS: tuple[tuple[str, str, tuple[type[Any], ...]], ...] = (
    ("Broker", "Java class BrokerConfig.", (BrokerSettings,)),
    ("Store", "Java class MessageStoreConfig.", (StoreSettings,)),
    (
        "DLedger group",
        "Java class DLedgerConfig, whose defaults the Java broker does not let anybody change.",
        (DLedgerSettings,),
    ),
    (
        "Connections",
        "Java classes NettyServerConfig and NettyClientConfig. A name server knows the keys of "
        "the first: "
        f"`{'`, `'.join(key_facts(ServerSettings))}`.",
        (RemotingSettings,),
    ),
    (
        "Access control and transport",
        "System properties of the Java programs and keys of `tls.properties`, and our own; brokers "
        "and name servers know them ([security.md](security.md)).",
        (SecuritySettings,),
    ),
    ("Name server", "Java class NamesrvConfig.", (NamesrvSettings,)),
)


def configuration_page() -> str:
    """The whole page as Markdown."""
    sections = [_HEAD]
    for title, origin, classes in _PARTS:
        rows = [_row(facts) for settings in classes for facts in key_facts(settings).values()]
        sections.append(
            f"## {title}\n\n{origin}\n\n"
            "| Key | Attribute | Default | Allowed | Effect | Meaning |\n"
            "|---|---|---|---|---|---|\n" + "".join(rows)
        )
    return "\n".join(sections)


def _row(facts: KeyFacts) -> str:
    default = "" if facts.default is None else facts.kind.print(facts.default)
    allowed = facts.kind.allowed + (f" {facts.unit}" if facts.unit else "")
    effect = facts.effect.value + (", *live*" if facts.runtime else "")
    cells = (
        f"`{facts.name}`",
        f"`{facts.attribute}`",
        f"`{default}`" if default else "",
        allowed,
        effect,
        facts.doc,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
