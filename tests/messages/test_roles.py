"""Roles: one order, one way to write them, keys that exist."""

import pytest

from astraflow.messages.roles import Role, RoleOf


def test_a_run_is_drained_from_those_who_make_work_to_those_who_record_it() -> None:
    assert Role.drain_order() == ("rollout", "policy", "dataflow", "trainer", "recorder")


def test_every_role_uses_a_key_that_is_made() -> None:
    assert set(Role.with_a_key()) == {"admin", "dataflow", "trainer", "policy", "rollout", "observer", "user"}
    assert {role.key for role in Role} <= set(Role.with_a_key())


def test_only_who_writes_the_truth_is_no_guest() -> None:
    assert {role for role in Role if not role.is_guest} == {Role.ADMIN, Role.DATAFLOW, Role.TRAINER}


@pytest.mark.parametrize("text", ["rollout", "policy:solver", "trainer:a", "recorder", "policy:a:b"])
def test_a_role_is_read_as_it_is_written(text: str) -> None:
    parsed = RoleOf.parse(text)
    assert parsed is not None
    assert str(parsed) == text


@pytest.mark.parametrize("text", ["", "node", "admin", "Policy:x", ":solver", "polic:solver"])
def test_what_is_no_actors_role_is_not_read(text: str) -> None:
    assert RoleOf.parse(text) is None
