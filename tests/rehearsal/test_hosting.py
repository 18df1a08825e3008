"""The rehearsal's view of its hosts; test_rehearsal.py and test_tutorial.py have them for real."""

from __future__ import annotations

from podwright_rehearsal.run.hosting import warnings


def test_a_warning_of_many_hosts_is_one_line() -> None:
    """The rehearsal says what its hosts go without, with the step and all hosts that say the same."""
    lacks = {"step": "pam_slurm_adopt", "outcome": "degraded", "detail": "this image has no module"}
    others = [
        {"step": "dns", "outcome": "unchanged", "detail": ""},
        {"step": "ldap", "outcome": "skipped", "detail": ""},
    ]
    assert warnings({"one": [*others, lacks], "two": [lacks], "three": others}) == [
        "warning on one, two at step pam_slurm_adopt: this image has no module"
    ]
