"""The store map: where things are on it, and that it shows what the stores contain."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.audit.picture.layout import (
    CELLS,
    FILE_WIDTH_MIN,
    LABEL,
    WIDTH,
    DamagePlace,
    FileOnMap,
    LogPart,
    MapShape,
    ReplicaMap,
    lay_out,
)
from rmqpy.audit.picture.reading import read_replica_map
from rmqpy.audit.picture.svg import map_image, map_page, map_svg
from rmqpy.audit.scan.findings import Severity
from rmqpy.cli import main
from rmqpy.cli.store_map import map_server
from rmqpy.codec.tally.kernel import BLOCK_SIZE
from rmqpy.store.files.disk import OsFileSystem

SIZE = 4 * BLOCK_SIZE
PICTURE = Path(__file__).parents[2] / "docs" / "plots" / "store-map.svg"


def file(number: int, part: LogPart = LogPart.CLASSIC, content: int = SIZE) -> FileOnMap:
    begin = number * SIZE
    return FileOnMap(f"{begin:020d}", part, begin, begin + content, begin + SIZE)


def titles(shapes: Sequence[MapShape], kind: str) -> list[str]:
    return [each.title for each in shapes if each.kind == kind]


def test_files_are_placed_by_their_offsets() -> None:
    replica = ReplicaMap(
        name="n0",
        files=[file(1), file(2, LogPart.LEDGER), file(3, LogPart.LEDGER, SIZE // 2)],
        divided_offset=2 * SIZE,
        committed_offset=3 * SIZE,
    )
    (row,) = lay_out([replica]).rows
    assert [shape.kind for shape in row.files] == ["classic", "ledger", "rest", "ledger"]
    third = (WIDTH - LABEL) / 3
    assert [round(shape.x - LABEL) for shape in row.files] == [
        0,
        round(third),
        round(2.5 * third),
        round(2 * third),
    ]
    assert [(each.kind, round(each.x - LABEL)) for each in row.marks] == [
        ("divide", round(third)),
        ("committed", round(2 * third)),
    ]
    assert row.expired == f"expired, or never here: offsets before {SIZE:,}"


def test_many_files_become_few_shapes() -> None:
    replica = ReplicaMap(name="n0", files=[file(number) for number in range(5_000)])
    (row,) = lay_out([replica]).rows
    assert len(row.files) <= (WIDTH - LABEL) / (FILE_WIDTH_MIN / 2)
    assert row.files[0].title.endswith(f"0 to {row.files[1].title.partition(': ')[2].split()[0]}")


def test_damage_is_coloured_by_the_worst_finding_of_its_cell() -> None:
    places = [DamagePlace(5, Severity.NOTE, "odd"), DamagePlace(9, Severity.DAMAGE, "torn")]
    (row,) = lay_out([ReplicaMap(name="n0", files=[file(0)], damage=places)]).rows
    (shape,) = row.damage
    assert (shape.kind, shape.title) == ("damage", "torn at 9, and 1 more here")


def blocks(text: str) -> dict[tuple[str, int], tuple[str, int]]:
    """Return a block for each letter; lower case means that it has only a part of its content."""
    return {
        ("classic", number * BLOCK_SIZE): (each, BLOCK_SIZE if each.isupper() else 7)
        for number, each in enumerate(text)
    }


@pytest.mark.parametrize(
    ("tables", "kinds", "verdict"),
    [
        (("ABCD", "ABCD"), ["equal"], "All blocks are equal in all replicas."),
        (("ABCD", "ABXD"), ["equal", "different", "equal"], "Some blocks differ"),
        (("ABCD", "AB"), ["equal", "missing"], "some have more than others"),
        (("ABCD", "Ab"), ["equal", "missing"], "some have more than others"),
        (("ABCd", "ABCx"), ["equal", "different"], "Some blocks differ"),
        (("ABCD", "", "AB"), ["missing"], "some have more than others"),
        (("ABCD", "", "X"), ["different", "missing"], "Some blocks differ"),
        (("", ""), [], "were not compared"),
    ],
)
def test_equality_is_shown_by_block(tables: list[str], kinds: list[str], verdict: str) -> None:
    replicas = [ReplicaMap(name="n", files=[file(0)], blocks=blocks(each)) for each in tables]
    found = lay_out(replicas)
    assert [shape.kind for shape in found.agreement] == kinds
    assert verdict in found.verdict


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, SIZE)), max_size=8), max_size=2)
)
def test_shapes_stay_inside_and_apart(stores: list[list[tuple[int, int]]]) -> None:
    replicas = [
        ReplicaMap(
            name="n",
            files=[file(number, content=content) for number, content in sorted(dict(each).items())],
            damage=[DamagePlace(number * SIZE, Severity.TAIL, "tail") for number, _ in each],
        )
        for each in stores
    ]
    for row in lay_out(replicas).rows:
        assert len(row.damage) <= CELLS
        content = sorted((each for each in row.files if each.kind != "rest"), key=lambda s: s.x)
        for shape in (*row.files, *row.damage):
            assert LABEL <= shape.x <= WIDTH and shape.x + shape.width <= WIDTH + 0.5
        for before, after in pairwise(content):
            assert before.x + before.width <= after.x + 0.51


def test_names_are_text() -> None:
    hostile = "<script>alert('x')</script>&\""
    replica = ReplicaMap(name=hostile, files=[FileOnMap(hostile, LogPart.CLASSIC, 0, 5, 9)])
    page = map_page(lay_out([replica]), hostile)
    assert "<script" not in page
    ElementTree.fromstring(map_svg(lay_out([replica])).partition("</svg>")[0] + "</svg>")


@pytest.mark.slow
def test_the_picture_of_the_readme_is_the_map_of_a_java_group(
    store_of: Callable[[str], Path],
) -> None:
    stores = [(f"n{number}", str(store_of(f"C-upgraded-v497/n{number}"))) for number in range(3)]
    replicas = [read_replica_map(OsFileSystem(), root, name=name) for name, root in stores]
    picture = map_image(lay_out(replicas))
    ElementTree.fromstring(picture)
    assert PICTURE.read_text(encoding="utf-8") == picture


@pytest.mark.slow
def test_a_java_group_is_drawn_with_its_divide(store_of: Callable[[str], Path]) -> None:
    stores = [store_of(f"C-upgraded-v497/n{number}") for number in range(3)]
    replicas = [read_replica_map(OsFileSystem(), str(store)) for store in stores]
    found = lay_out(replicas)
    for row, replica in zip(found.rows, replicas, strict=True):
        assert {shape.kind for shape in row.files} >= {"classic", "ledger"}
        assert titles(row.marks, "divide") == [
            "divide between the classic log and the DLedger log, 262,144"
        ]
        assert titles(row.marks, "committed") and replica.committed_offset == replica.end
    assert found.verdict == "All blocks are equal in all replicas."


def test_a_damaged_replica_differs_where_it_is_damaged(
    store_of: Callable[[str], Path], copy_of: Callable[[str], Path]
) -> None:
    damaged = copy_of("C-upgraded-v497/n1")
    log = damaged / "commitlog" / f"{65536:020d}"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    intact = store_of("C-upgraded-v497/n0")
    replicas = [read_replica_map(OsFileSystem(), str(each)) for each in (intact, damaged)]
    found = lay_out(replicas)
    assert found.verdict == "Some blocks differ between the replicas."
    (different,) = [each for each in found.agreement if each.kind == "different"]
    (damage,) = [each for each in found.rows[1].damage if each.kind == "damage"]
    assert different.x <= damage.x <= different.x + different.width
    assert not titles(found.rows[0].damage, "damage")


def test_the_command_writes_a_page(
    store_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "map.html"
    store = str(store_of("B-lagging-slave-v497/slave"))
    master = str(store_of("B-lagging-slave-v497/master"))
    assert main(["store", "map", master, store, "--html", str(target)]) == 0
    page = target.read_text()
    assert "some have more than others" in page and "<script" not in page and "http" not in page


def test_wrong_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "map", str(tmp_path), "--html", str(tmp_path / "x")]) == 1
    assert "storePathRootDir" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["store", "map", str(tmp_path)])
    assert ended.value.code == 1


def test_a_served_map_answers_this_machine_only() -> None:
    with map_server("<p>map</p>", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/"
            with urllib.request.urlopen(url) as answer:
                assert answer.read() == b"<p>map</p>"
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            foreign = urllib.request.Request(url, headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(foreign)
        finally:
            server.shutdown()
            thread.join()
