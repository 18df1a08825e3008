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
import sys
from pathlib import Path
from typing import Any

LOCK = Path("/run/podwright-move.lock")
RECORD = "people.json"
FIRST_ID, LAST_ID = 1000, 60000  # of people: https://systemd.io/UIDS-GIDS


def people() -> dict[str, dict[str, Any]]:
    """Return all accounts whose ids are in the range of people, by name."""
    found = {}
    for person in pwd.getpwall():
        if FIRST_ID <= person.pw_uid <= LAST_ID:
            groups = [group.gr_gid for group in grp.getgrall() if person.pw_name in group.gr_mem]
            found[person.pw_name] = {
                "uid": person.pw_uid,
                "gid": person.pw_gid,
                "home": person.pw_dir,
                "groups": sorted(gid for gid in groups if FIRST_ID <= gid <= LAST_ID),
                "keys": keys(Path(person.pw_dir)),
            }
    return found


def keys(home: Path) -> list[str]:
    """Return the hashes of the public keys that a home admits."""
    file = home / ".ssh" / "authorized_keys"
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    kept = (line.strip() for line in lines if line.strip() and not line.startswith("#"))
    return sorted(hashlib.sha256(line.encode()).hexdigest()[:16] for line in kept)


def record(folder: Path) -> dict[str, Any]:
    """Write the record."""
    found = people()
    (folder / RECORD).write_text(json.dumps(found))
    return {"people": {name: item["uid"] for name, item in sorted(found.items())}}


def compare(folder: Path) -> dict[str, Any]:
    """Return each difference in one line; additional people, groups and keys are no difference."""
    now, differences = people(), []
    before = json.loads((folder / RECORD).read_text())
    for name, item in sorted(before.items()):
        other = now.get(name)
        if other is None:
            differences.append(f"{name} (id {item['uid']}) does not exist")
            continue
        differences += [
            f"{name}: {what} is {other[what]}, was {item[what]}"
            for what in ("uid", "gid", "home")
            if item[what] != other[what]
        ]
        for what in ("groups", "keys"):
            missing = set(item[what]) - set(other[what])
            if missing:
                differences.append(f"{name} lacks {what}: {', '.join(map(str, sorted(missing)))}")
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
