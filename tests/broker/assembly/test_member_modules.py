"""What a running broker loads to become a member of a DLedger group, and how."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys, threading, time
import rmqpy.broker.assembly.process
from rmqpy.broker.assembly import member_modules

before, rests = {*sys.modules}, []
member_modules.time.sleep = lambda seconds: rests.append((threading.get_ident(), seconds))
finders = [*sys.meta_path]
thread = threading.Thread(target=member_modules.load_member_modules, args=(2,))
thread.start()
ident = thread.ident
thread.join()
assert sys.meta_path == finders
assert rests.pop(0) == (ident, 2 * member_modules.LOADING_S)
assert {each for each in rests} == {(ident, member_modules.REST_S)}
member_modules.load_member_modules(2)
assert rests[-1] == (ident, member_modules.REST_S)
new = [name for name in sys.modules if name not in before]
assert "rmqpy.net.dledger.driver" in new and len(rests) >= len(new), (len(rests), new)
print(*[name for name in new if name.startswith("rmqpy.audit")])
"""


@pytest.mark.slow
def test_a_broker_rests_before_each_module_and_does_not_load_the_audit(tmp_path: Path) -> None:
    """Three brokers that load at once keep two cores busy, and their clients wait: each loads after
    those before it, and only once. The audit is half of what could be loaded, and only a
    certificate about a Java member needs it.
    """
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
