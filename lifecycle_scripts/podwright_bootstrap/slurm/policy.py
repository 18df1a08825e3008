"""Accounts, qualities of service and their users, as cluster.yaml declares them.

What is declared is added or changed, what was declared before is removed: ours carry ``OURS``. Everything else in the
database is left alone.
https://slurm.schedmd.com/sacctmgr.html, https://slurm.schedmd.com/resource_limits.html

``OURS`` is the organization of accounts and the description of qualities of service.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from podwright_bootstrap.contract import JOB_USER
from podwright_bootstrap.features import Account, NodeFeatures, Qos, SlurmPolicy
from podwright_bootstrap.host import log
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.slurm import sacctmgr

OURS = "podwright"  # organization of accounts, description of qualities of service
NONE = "-1"  # takes a limit away
NODES, GPUS = "node", "gres/gpu"  # https://slurm.schedmd.com/tres.html

Options = Dict[str, str]  # options of sacctmgr by name, in its own notation
Shown = Callable[[str], str]


def apply(nodes: NodeFeatures, cluster: str) -> Iterator[str]:
    """Apply the accounts, qualities of service and users of cluster.yaml to the database."""
    policy = nodes.slurm or SlurmPolicy()
    known_qos = _known_qos()
    yield from _add_qos(policy.qos, known_qos)
    yield from _set_accounts(policy.accounts, cluster)
    yield from _set_users(nodes, cluster)
    yield from _remove_accounts({account.name for account in policy.accounts}, cluster)
    yield from _remove_qos({qos.name for qos in policy.qos})


# ---- qualities of service


def _qos_options(qos: Qos) -> Options:
    return {
        "Priority": str(qos.priority),
        "Preempt": _names(",".join(qos.preempts)),
        "GraceTime": str(qos.grace_time_s),
        "MaxWall": _limit(qos.max_wall_minutes),
        "MaxJobsPerUser": _limit(qos.max_jobs_per_user),
        "MaxTRESPerUser": _resources(qos.max_nodes_per_user, qos.max_gpus_per_user),
    }


def _known_qos() -> Dict[str, Options]:
    columns: Dict[str, Tuple[str, Shown]] = {
        "Priority": ("Priority", _number),
        "Preempt": ("Preempt", _names),
        "GraceTime": ("GraceTime", _seconds),
        "MaxWall": ("MaxWall", _minutes),
        "MaxJobsPerUser": ("MaxJobsPU", _number),
        "MaxTRESPerUser": ("MaxTRESPU", _resources_shown),
    }
    return {row[0]: options for row, options in _rows(("qos",), ("Name",), columns)}


def _add_qos(qualities: Sequence[Qos], options_by_name: Mapping[str, Options]) -> Iterator[str]:
    for qos in qualities:  # first, for one may name another
        if qos.name not in options_by_name:
            sacctmgr.change("add", "qos", qos.name, f"Description={OURS}")
            yield f"added QOS {qos.name}"
    options_by_name = _known_qos() if qualities else options_by_name
    for qos in qualities:
        changed = _changed(_qos_options(qos), options_by_name[qos.name])
        if changed:
            sacctmgr.change("modify", "qos", "where", f"name={qos.name}", "set", *changed)
            yield f"QOS {qos.name}: {' '.join(changed)}"


def _remove_qos(names: "set[str]") -> Iterator[str]:
    for (name, description), _ in _rows(("qos",), ("Name", "Descr"), {}):
        if description == OURS and name not in names:
            yield from _remove("qos", name, f"QOS {name}")


# ---- accounts


def _account_options(account: Account) -> Options:
    return {
        "Fairshare": str(account.fair_share),
        "QOS": _names(",".join(account.qos)),
        "MaxWall": _limit(account.max_wall_minutes),
        "MaxJobs": _limit(account.max_jobs_per_user),
        "GrpTRES": _resources(account.max_nodes, account.max_gpus),
    }


def _set_accounts(accounts: Sequence[Account], cluster: str) -> Iterator[str]:
    columns: Dict[str, Tuple[str, Shown]] = {
        "Fairshare": ("Share", _number),
        "QOS": ("QOS", _names),
        "MaxWall": ("MaxWall", _minutes),
        "MaxJobs": ("MaxJobs", _number),
        "GrpTRES": ("GrpTRES", _resources_shown),
    }
    if not accounts:
        return
    existing_names = {row[0] for row, _ in _associations(cluster) if not row[1]}
    for account in accounts:
        if account.name not in existing_names:
            words = (f"cluster={cluster}", f"Description={account.name}", f"Organization={OURS}")
            sacctmgr.change("add", "account", account.name, *words)
            yield f"added account {account.name}"
    options_by_name = {row[0]: options for row, options in _associations(cluster, columns) if not row[1]}
    for account in accounts:
        changed = _changed(_account_options(account), options_by_name[account.name])
        if changed:
            conditions = ("where", f"name={account.name}", f"cluster={cluster}")
            sacctmgr.change("modify", "account", *conditions, "set", *changed)
            yield f"account {account.name}: {' '.join(changed)}"


def _remove_accounts(names: "set[str]", cluster: str) -> Iterator[str]:
    cluster_accounts = {row[0] for row, _ in _associations(cluster)}
    for name in sorted((cluster_accounts & _our_accounts()) - {*names, sacctmgr.ACCOUNT}):
        yield from _remove("account", name, f"account {name}", f"cluster={cluster}")


# ---- users


def accounts_of_users(nodes: NodeFeatures) -> Dict[str, List[str]]:
    """Return each user's accounts, the default one first: those that list the user, else the cluster's own."""
    policy = nodes.slurm or SlurmPolicy()
    users = [JOB_USER, *(user.name for user in nodes.users), *(name for a in policy.accounts for name in a.users)]
    named = {user: [account.name for account in policy.accounts if user in account.users] for user in users}
    return {user: accounts or [sacctmgr.ACCOUNT] for user, accounts in named.items()}


def _set_users(nodes: NodeFeatures, cluster: str) -> Iterator[str]:
    associations = {row for row, _ in _associations(cluster) if row[1]}
    defaults = {user: account for (user, account), _ in _rows(("user",), ("User", "DefaultAccount"), {})}
    members = accounts_of_users(nodes)
    for user, accounts in members.items():
        user_accounts = [account for account, name in associations if name == user]
        if user_accounts and accounts == [sacctmgr.ACCOUNT] and not set(user_accounts) <= _our_accounts():
            continue  # somebody gave another account to the user
        for account in accounts:
            if (account, user) not in associations:
                sacctmgr.change("add", "user", user, f"account={account}", f"cluster={cluster}")
                yield f"added {user} to account {account}"
        if user_accounts and defaults.get(user) != accounts[0]:
            conditions = ("where", f"name={user}", f"cluster={cluster}")
            sacctmgr.change("modify", "user", *conditions, "set", f"DefaultAccount={accounts[0]}")
            yield f"{user}'s default account is {accounts[0]}"
    yield from _remove_users(associations, members, cluster)


def _our_accounts() -> "set[str]":
    return {name for (name, organization), _ in _rows(("account",), ("Account", "Org"), {}) if organization == OURS}


def _remove_users(
    associations: "set[Tuple[str, ...]]", members: Mapping[str, List[str]], cluster: str
) -> Iterator[str]:
    our_accounts = _our_accounts()
    for account, user in sorted(associations):
        is_removable = account != sacctmgr.ACCOUNT or user in members
        if account in our_accounts and is_removable and account not in members.get(user, ()):
            phrase = f"{user} from account {account}"
            yield from _remove("user", user, phrase, f"account={account}", f"cluster={cluster}")


# ---- sacctmgr


def _remove(kind: str, name: str, phrase: str, *conditions: str) -> Iterator[str]:
    """Remove it, unless its jobs run: the next boot tries again."""
    try:
        sacctmgr.change("remove", kind, "where", f"name={name}", *conditions)
        yield f"removed {phrase}"
    except CommandError as error:
        log.say(f"warning: {phrase} is not removed: {error}")


def _associations(cluster: str, columns: Mapping[str, Tuple[str, Shown]] = {}) -> List[Tuple[Tuple[str, ...], Options]]:
    """Return account, user ("" for the account's own) and options."""
    return _rows(("assoc", f"cluster={cluster}"), ("Account", "User"), columns)


def _rows(
    query: Sequence[str], keys: Sequence[str], columns: Mapping[str, Tuple[str, Shown]]
) -> List[Tuple[Tuple[str, ...], Options]]:
    """Return each row's keys, and its options as sacctmgr would take them."""
    names = [*keys, *(column for column, _ in columns.values())]
    rows = []
    for cells in sacctmgr.table(*query, columns=names):
        options = {name: shown(cells[names.index(column)]) for name, (column, shown) in columns.items()}
        rows.append((tuple(cells[: len(keys)]), options))
    return rows


def _changed(options: Options, current: Options) -> List[str]:
    return [f"{name}={value}" for name, value in options.items() if current[name] != value]


def _limit(number: "int | None") -> str:
    return NONE if number is None else str(number)


def _number(shown: str) -> str:
    return shown or NONE


def _names(shown: str) -> str:
    return ",".join(sorted(name for name in shown.split(",") if name))


def _resources(nodes: "int | None", gpus: "int | None") -> str:
    return f"{GPUS}={_limit(gpus)},{NODES}={_limit(nodes)}"


def _resources_shown(shown: str) -> str:
    limits = dict(item.split("=", 1) for item in shown.split(",") if item)
    return f"{GPUS}={limits.get(GPUS, NONE)},{NODES}={limits.get(NODES, NONE)}"


def _seconds(shown: str) -> str:
    """Return the seconds of [DAYS-]HOURS:MINUTES:SECONDS."""
    days, _, clock = shown.rpartition("-")
    hours, minutes, seconds = (int(part) for part in ("0:0:0:" + clock).split(":")[-3:]) if clock else (0, 0, 0)
    return str(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def _minutes(shown: str) -> str:
    return str(int(_seconds(shown)) // 60) if shown else NONE
