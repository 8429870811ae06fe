"""Every refusal of the upgrade commands has a test that takes its advice, or a reason why no store
depends on that. The refusals are collected from the source, so a new one is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from harness.refusals import differences, has_test, refusals

REFUSALS: Final = frozenset({"UpgradeRefusedError", "DivergedError"})

WAY_ON: Final = {
    "found {}, expected equal classic logs": "test_a_group_before_the_switch",
    "no replica contains all others": "test_a_group_before_the_switch",
    "the broker.conf given for {} has storePathRootDir": "test_a_group_before_the_switch",
    "{} of {} would be given up": "test_a_group_before_the_switch",
    "{}: {}{}": "test_a_group_before_the_switch",  # The findings of checks and their remedies.
    "{}: its last stop was not clean": "test_a_group_before_the_switch",
    "{} is the reference, and its log is damaged": "test_a_group_before_the_switch",
    "{}: its dLegerSelfId and dLegerPeers are not known": "test_a_group_before_the_switch",
    "{}: found no brokerName, expected": "test_a_group_before_the_switch",
    "--give-up {}: no message would be given up": "test_messages_to_give_up_that_do_not_exist",
    "found no confirmation to {}": "test_a_join_that_nobody_has_confirmed",
    "the plan is signed: give the key": "test_a_signed_plan_without_its_key",
    "the plan is not signed": "test_a_plan_that_is_not_signed_as_it_should_be",
    "the signature does not match": "test_a_plan_that_is_not_signed_as_it_should_be",
    "the directory has changed since the plan": "test_a_plan_of_an_earlier_state",
    "found plan {} {} in {}, expected no half-done plan": "test_a_plan_that_was_interrupted",
    "found a plan that is half done on {}, expected none": "test_a_plan_that_was_interrupted",
    "found {}, expected a DLedger log with entries": (
        "test_a_group_without_entries_that_is_to_leave"
    ),
    "{}: found neither an old log nor entries": "test_a_join_from_an_empty_member",
    "--into {}: found a directory inside": "test_a_directory_for_a_copy_that_has_content",
    "--into {}: found a file or a directory": "test_a_directory_for_a_copy_that_has_content",
    "{} of {} members are given, too few": "test_a_directory_for_a_copy_that_has_content",
    "the number of members of the group is not known": "test_leaving_without_roles",
    "{}": "test_leaving_without_roles",  # Roles that are missing, each with its option.
    "the configuration that would be written": "test_leaving_without_roles",
    "found no replica {}, expected it as the source": "test_a_line_that_lacks_something",
    "the plan's part for {} is for {}": "test_a_line_that_lacks_something",
    "{}: its broker.conf is not known": "test_a_line_that_lacks_something",
    "{}: dLegerSelfId is not set": "test_a_member_without_its_id",
    "found a plan for {}, expected one for": "test_a_store_that_was_moved_after_its_plan",
}
"""The test of test_way_on.py that takes the advice, by the begin of the refusal."""

ELSEWHERE: Final = {
    "plan {} is being rolled back": (
        "test_leave.py::test_a_rollback_killed_at_any_operation_can_be_resumed"
    ),
    "{}: files that the plan moved to another file system": (
        "test_full_disk.py::test_a_file_of_another_file_system_is_put_back_in_place_on_a_full_disk"
    ),
    "the old log of {} was written to after the switch": (
        "test_align.py::test_messages_written_while_the_flag_was_off_are_refused_until_a_reference"
        "_is_chosen"
    ),
    "found data of RocketMQ 5.x in the stores": (
        "test_leave_controller.py::test_data_that_only_5x_reads_is_listed"
    ),
    "found a plan for {} that follows {}": (
        "test_rounds.py::test_a_plan_that_another_one_has_followed_is_not_applied"
    ),
    "found --cut-index {}, expected none": (
        "test_leave_controller.py::test_a_wrong_line_is_refused_before_anything_is_written"
    ),
    "found --cut-index {}, expected a number": (
        "test_given_up.py::test_a_cut_that_no_member_has_is_refused"
    ),
    "found --reference {}, expected none": "test_leave_group.py::test_a_reference_is_not_chosen",
    "the controller at {}: found {} with {}, expected": (
        "test_controller.py::test_a_controller_that_knows_the_group_is_refused"
    ),
    "entry {} has the same term on {} and {}": (
        "test_join_diverged.py::test_a_changed_entry_with_equal_entries_after_it_is_damage"
    ),
}
"""The test of another file that reaches the refusal, by its begin."""

NO_STEP: Final = {
    "{}: found a broker that runs in this directory": "stop the broker",
    "{}: it has no log to build from": "there is nothing to do",
    "found no plan that is applied or half done": "there is nothing to do",
    "found {} final on {}, expected it to be applied": "finish with finalize",
    "found {} in {}, expected a half-done plan": "there is nothing to do",
    "found {} in {}, expected one that is applied": "there is nothing to do",
    "found {} in {}, expected an applied plan": "there is nothing to do",
    "{} holds no DLedger data": "there is nothing to do",
    "--controllers {}: {}, expected HOST:PORT": "the line names no address",
    "{} and {} share {} {}": "the line names a directory or a file twice",
    "switch changes directories of this host": "run it on the host of a replica",
    "{} is on another host": "run it on that host",
    "{}: {}": "the refusal of another host, which is one of these",
    "--into {}: {}. Nothing was changed": "give a disk with more space",
    "found plan {} as the newest": "it lists the plans in the order to take",
    "rmqpy upgrade {} was begun in {} and has changed": "there is nothing to do",
    "found {} at the name server, expected the brokerName": "the line names another broker",
    "found no master of {}": "start the master",
    "{}: found {} free on its file system": "give a disk with more space",
    "{}: found the rehearsal of {}": "use another directory",
    "{}: found a directory with files that are no rehearsal": "use another directory",
    "{}: found another rmqpy rehearse at work in it": "wait for it",
    "{}: found the brokers of a rehearsal that was killed": "kill these processes",
    "{}: found no JSON object, expected the mark of a rehearsal": "use another directory",
}
"""What to do, where no command follows on a store."""

NOT_TAKEN: Final = {
    "plan {} is {} in {}: finish it with": "the same as that of plan and apply",
    "found a plan of an earlier rmqpy": "it needs a journal that an earlier rmqpy has written",
    "found the group {}, expected it to run": "group commands have their own walks",
    "found no entry in the DLedger log of {}": "group commands have their own walks",
    "this member does not have entry": "it needs members that start and catch up",
    "{}: found a {} that is undecided on this broker": "it needs a broker that knows the decision",
    "the group keeps entries up to {}": "it needs members that start and catch up",
    "the log in {} was written to since plan": "it needs a broker that writes between two plans",
    "found {} plans that can still be rolled back": "it needs as many plans as are kept",
    "{}. Found no record of the log as plan": "it needs a journal without its record",
    "{}: the directory is neither as before": "it needs a file that changes between two steps",
    "{} has log files of {} bytes": "its log must be written again: leave the replica out",
    "the survey of {}: found no md5 of": "it needs a host with another rmqpy",
    "{} has no old log": "such a group is not aligned, which is refused first",
    "{}: found the path {}, expected one of this node": "a plan that someone has changed",
    "{}: its DLedger log begins at {}": "the advice is to keep the directories and to export",
}
"""Why no test takes the advice."""


def known() -> dict[str, str]:
    return {**WAY_ON, **ELSEWHERE, **NO_STEP, **NOT_TAKEN}


def test_every_refusal_is_known() -> None:
    texts = [text for _, text in refusals(REFUSALS, 0)]
    assert len(texts) > 50
    unknown, gone = differences(texts, known())
    assert not unknown, "add a test that takes the advice, or the reason why none does"
    assert not gone


@pytest.mark.parametrize("place", sorted({*WAY_ON.values(), *ELSEWHERE.values()}))
def test_the_test_exists(place: str) -> None:
    file, _, name = place.rpartition("::")
    assert has_test(Path(__file__).parent / (file or "test_way_on.py"), name)
