"""Record the people of a controller, or compare them with a record: ids, groups and keys for logging in.

people.py record FOLDER
people.py compare FOLDER
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import json
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOCK = Path("/run/podwright-move.lock")
RECORD = "people.json"
KEYS_LIMIT_BYTES = 1 << 20
FIRST_ID, LAST_ID = 1000, 60000  # The ids of people: https://systemd.io/UIDS-GIDS


def people() -> dict[str, dict[str, Any]]:
    """Return all accounts whose ids are in the range of people, by name."""
    accounts = {}
    for person in pwd.getpwall():
        if FIRST_ID <= person.pw_uid <= LAST_ID:
            groups = [group.gr_gid for group in grp.getgrall() if person.pw_name in group.gr_mem]
            accounts[person.pw_name] = {
                "uid": person.pw_uid,
                "gid": person.pw_gid,
                "home": person.pw_dir,
                "groups": sorted(gid for gid in groups if FIRST_ID <= gid <= LAST_ID),
                "keys": keys(person),
            }
    return accounts


def keys(person: pwd.struct_passwd) -> list[str]:
    """Return the hashes of the public keys that a person's home admits."""
    try:
        with acting_as(person):
            lines = read(Path(person.pw_dir) / ".ssh" / "authorized_keys").decode(errors="replace").splitlines()
    except OSError:
        return []
    key_lines = (line.strip() for line in lines if line.strip() and not line.startswith("#"))
    return sorted(hashlib.sha256(line.encode()).hexdigest()[:16] for line in key_lines)


@contextmanager
def acting_as(person: pwd.struct_passwd) -> Iterator[None]:
    """Access files in the block with a person's rights: a link in the home leads to nothing that only root reads."""
    if os.geteuid() != 0:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(person.pw_gid)
    os.seteuid(person.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


def read(file: Path) -> bytes:
    """Return the content of a file in a home, which may also be a pipe without a writer, or have no end.

    Raises:
        OSError: it is no regular file, or too long.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{file} is not a regular file")
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(KEYS_LIMIT_BYTES + 1)
    if len(content) > KEYS_LIMIT_BYTES:
        raise OSError(f"{file} has more than {KEYS_LIMIT_BYTES} bytes")
    return content


def record(folder: Path) -> dict[str, Any]:
    """Write the record."""
    accounts = people()
    (folder / RECORD).write_text(json.dumps(accounts))
    return {"people": {name: item["uid"] for name, item in sorted(accounts.items())}}


def compare(folder: Path) -> dict[str, Any]:
    """Return each difference in one line; additional people, groups and keys are no difference."""
    now, differences = people(), []
    before = json.loads((folder / RECORD).read_text())
    for name, item in sorted(before.items()):
        current = now.get(name)
        if current is None:
            differences.append(f"{name} (id {item['uid']}) does not exist")
            continue
        differences += [
            f"{name}: {attribute} is {current[attribute]}, was {item[attribute]}"
            for attribute in ("uid", "gid", "home")
            if item[attribute] != current[attribute]
        ]
        for attribute in ("groups", "keys"):
            missing = set(item[attribute]) - set(current[attribute])
            if missing:
                differences.append(f"{name} lacks {attribute}: {', '.join(map(str, sorted(missing)))}")
    return {"people": len(before), "differences": differences}


def main(arguments: list[str]) -> None:
    """Run one verb."""
    verb, folder = arguments
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    print(json.dumps({"record": record, "compare": compare}[verb](Path(folder))))


if __name__ == "__main__":
    # Who can open a lock can hold it. A program whose caller was killed still runs.
    with os.fdopen(os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        main(sys.argv[1:])
