"""Print files, versions, units and Slurm's configuration of a node as JSON: ``{section: {key: value}}``.

``podwright collect`` sends this program to a node, where root runs it: Python 3.8, the standard library, one file. It
changes nothing. Session Manager may log what it prints, so it hides private values itself: a value is printed if it is
a plain number or if its key is listed here, and is ``text`` or ``hidden`` otherwise. It never reads munge's key.
"""

from __future__ import annotations

import grp
import json
import os
import platform
import pwd
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

COMMAND_LIMIT_S = 60
FILE_LIMIT_BYTES = 4 << 20
SLURM = Path("/opt/slurm")
HIDDEN, TEXT, PATH = "hidden", "text", "path"
SECRET = re.compile(r"pass|secret|token|auth.?key|api.?key|user$", re.IGNORECASE)
# Numbers with a unit and durations, as `scontrol show config` prints them, and words that Slurm uses for all keys.
PLAIN = re.compile(
    r"\(null( type)?\)|n/a|none|null|yes|no|true|false|infinite|unlimited|(\d+-)?\d+:\d\d(:\d\d)?|"
    r"-?\d+(\.\d+)*%?( ?(usec|msec|sec|seconds|min|/min|nodes/min|hours|days|percent|[kmgt]?i?b|[kmgt]))?",
    re.IGNORECASE,
)
WORDS = re.compile(r"[\w.,:;=/+()\[\]* %\"-]{1,400}")
# Below these folders are the image's own files; a path elsewhere may have a name of the user's.
IMAGE_PATHS = re.compile(
    r"/(opt/(slurm|sagemaker|amazon|aws|ml|nvidia)|usr(?!/local)|etc/slurm|var/(log|spool|run)/slurm\w*|run)\b"
)
# Keys of Slurm's files, of `scontrol show config` and of other programs whose values name behaviour, nobody's data.
SHOWN_KEYS = """
AccountingStorageEnforce AccountingStorageTRES AccountingStorageType AcctGatherEnergyType AuthAltTypes AuthInfo
AuthType AutoDetect BcastParameters CgroupAutomount CgroupMountpoint CgroupPlugin CommunicationParameters
ConstrainCores ConstrainDevices ConstrainRAMSpace ConstrainSwapSpace CpuFreqDef CpuFreqGovernors CredType
EnforcePartLimits GresTypes HashPlugin HealthCheckNodeState HealthCheckProgram IgnoreSystemd JobAcctGatherFrequency
JobAcctGatherParams JobAcctGatherType JobCompType JobContainerType JobSubmitPlugins LaunchParameters MpiDefault
MpiParams NodeFeaturesPlugins PlugStackConfig PluginDir PreemptMode PreemptType PrEpPlugins PriorityFlags PriorityType
ProctrackType PrologFlags PropagateResourceLimits PropagateResourceLimitsExcept RebootProgram
ResumeProgram ReturnToService SchedulerParameters SchedulerType SelectType SelectTypeParameters
SLURM_CONF SLURM_VERSION SlurmctldDebug SlurmctldLogFile SlurmctldParameters SlurmctldPidFile SlurmctldPort
SlurmctldSyslogDebug SlurmdDebug SlurmdLogFile SlurmdParameters SlurmdPidFile SlurmdPort SlurmdSpoolDir
SlurmdSyslogDebug SlurmUser SlurmdUser StateSaveLocation StorageType SuspendProgram SwitchParameters SwitchType
TLSType TaskPlugin TaskPluginParam TopologyParam TopologyPlugin UnkillableStepProgram
usepam passwordauthentication permitrootlogin kbdinteractiveauthentication pubkeyauthentication maxstartups
allowtcpforwarding
"""
SHOWN = set(SHOWN_KEYS.lower().split())
DYNAMIC = {"BOOT_TIME", "HASH_VAL", "NEXT_JOB_ID"}  # `scontrol show config` prints other values each time.
SLURM_FILES = (
    "slurm.conf",
    "cgroup.conf",
    "gres.conf",
    "topology.conf",
    "accounting.conf",
    "slurmdbd.conf",
    "acct_gather.conf",
)
SHAPED = {"nodename", "partitionname", "switchname", "blockname", "nodeset", "name"}  # Lines of several keys.
WORDS_OF_NODES = re.compile(
    r"(State=[A-Z]+|(Default|OverSubscribe)=[A-Z]+|(MaxTime|DefaultTime)=[A-Z0-9:-]+)", re.IGNORECASE
)
OWN_LINE = "podwright"  # Our part of slurm.conf is in a file of its own, which a line includes.
RESTORED = "#podwright: "  # before a line of the service that our part replaces
FILES = (
    *(f"/opt/slurm/etc/{name}" for name in SLURM_FILES),
    "/opt/slurm/etc/topology.yaml",
    "/opt/slurm/etc/plugstack.conf",
    "/opt/slurm/etc/plugstack.conf.d",
    "/etc/slurm",
    "/etc/munge/munge.key",
    "/etc/default/slurmd",
    "/etc/default/slurmctld",
    "/etc/apt/apt.conf.d/20auto-upgrades",
    "/etc/needrestart/needrestart.conf",
    "/etc/needrestart/conf.d",
    "/etc/security/limits.conf",
    "/etc/sudoers.d/90-cloud-init-users",
    "/opt/ml/config/resource_config.json",
    "/opt/ml/config/provisioning_parameters.json",
    "/opt/ml/config/cluster_agent.json",
    "/opt/dlami/nvme",
    "/opt/sagemaker",
    "/opt/aws",
    "/opt/amazon",
    "/var/log/provision",
    "/var/log/aws/clusters",
    "/var/log/slurm",
    "/var/spool/slurmd",
    "/var/spool/slurmctld",
    "/home/ubuntu",
    "/fsx",
)
SERVICE_JSON = ("resource_config.json", "cluster_agent.json")
SHOWN_JSON = {"ClusterType", "NodeType"}  # The service writes one of its own words there.
PARAMETER_KEYS = {  # The user writes this file; these are AWS's keys.
    *("version", "workload_manager", "controller_group", "login_group", "worker_groups", "fsx_dns_name"),
    *("fsx_mountname", "fsx_openzfs_dns_name", "instance_group_name", "partition_name", "slurm_configurations"),
}
JSON_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,60}")
SLURM_FOLDERS = re.compile(r"/opt/slurm[\d._-]*")
SLURM_NAMES = re.compile(
    r"sacct(mgr)?|sackd|salloc|sattach|sbatch|sbcast|scancel|scontrol|scrontab|scrun|sdiag|sgather|sh5util|sinfo|"
    r"slurm(ctld|d|dbd|restd|stepd)?|sprio|squeue|sreport|srun|sshare|sstat|strigger|sview|libslurm\S*|libpmi\S*|"
    r"auto_resume\S*|security|pkgconfig"
)
UNITS = re.compile(
    r"(slurm\w*|sackd|munge|ssh|sshd|amazon-\S+|\S*sagemaker\S*|\S*hyperpod\S*|needrestart\S*|unattended-upgrades|"
    r"apt-daily\S*|docker|containerd|enroot\S*|nvidia-\S+|dcgm\S*|efa\S*|lnet|lustre\S*|chrony\w*|systemd-timesyncd|"
    r"cloud-(init|config|final)\S*|multipathd|snapd|mariadb|mysql\w*|autofs|rpcbind|nfs-\S+)\.(service|socket|timer)"
)
# Their state does not depend on the time of day.
DAEMONS = re.compile(r"(slurm\w*|sackd|munge|ssh|chrony|docker|\S*sagemaker\S*|\S*hyperpod\S*)\.service")
UNIT_PROPERTIES = ("UnitFileState", "FragmentPath", "Type", "Restart", "KillMode", "Delegate")
PACKAGES = re.compile(
    r"(lib)?(nvidia|cuda|nccl|efa|fabric|rdmacm|lustre|docker|containerd|enroot|slurm|munge|pmix|openmpi|aws-neuronx|"
    r"amazon-|needrestart|unattended-upgrades|openssh-server|systemd$|python3$|python3\.\d+$|python3-(venv|pip)$|"
    r"linux-(image|modules|aws)|chrony|mariadb-server|mysql-server|gdrcopy|nfs-common|libpam-slurm).*"
)
PROGRAMS = (
    *("aws", "chronyc", "docker", "enroot", "findmnt", "git", "jq", "lctl", "lfs", "lnetctl", "mount.lustre"),
    *("mount.nfs", "needrestart", "nvidia-smi", "pip3", "python3", "sackd", "sacctmgr", "slurmctld", "slurmd"),
    *("slurmdbd", "/opt/amazon/efa/bin/fi_info", "/opt/amazon/openmpi/bin/mpirun", "/opt/aws/neuron/bin/neuron-ls"),
)
IMAGE_USERS = ("root", "slurm", "munge", "ubuntu", "ssm-user", "mysql", "nobody")
GPU_KEYS = {
    *("Driver Version", "CUDA Version", "Attached GPUs", "Product Name", "Product Architecture", "Persistence Mode"),
    *("Compute Mode", "VBIOS Version", "Addressing Mode", "Current", "GSP Firmware Version"),
}
MOUNTS = ("/", "/boot", "/fsx", "/home", "/opt/dlami/nvme", "/opt/sagemaker", "/sys/fs/cgroup")


def output(*words: str, stderr: int = subprocess.DEVNULL) -> str:
    """Return a command's output, or an empty text if it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=COMMAND_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def content(path: object) -> str:
    """Return a file's text, or an empty text if it is missing or no regular file."""
    file = Path(str(path))
    try:
        if not file.is_file() or file.stat().st_size > FILE_LIMIT_BYTES:
            return ""
        return file.read_text(errors="replace")
    except OSError:
        return ""


def shown(key: str, value: str) -> str:
    """Return a value if it describes behaviour, and its kind otherwise."""
    bare = value.strip().strip('"')
    name = re.sub(r"\[\d*\]", "", key)
    if not bare or bare == "(null)":
        return bare
    if SECRET.search(name) and name.lower() not in SHOWN:
        return HIDDEN
    if PLAIN.fullmatch(bare):
        return value.strip()
    if name.lower() not in SHOWN or not WORDS.fullmatch(bare):
        return PATH if bare.startswith("/") else TEXT
    if any(not IMAGE_PATHS.match(path) for path in re.findall(r"(?:^|[\s=,])(/\S*)", bare)):
        return PATH
    return value.strip()


def setting_lines(text: str) -> Iterator[str]:
    """Yield the lines of a Slurm file as the service wrote them: without comments and without our own."""
    for line in text.replace(RESTORED, "").replace("\\\n", " ").splitlines():
        stripped = re.sub(r"(^|\s)#.*", "", line).strip()
        if stripped and OWN_LINE not in stripped.lower():
            yield stripped


def slurm_file(text: str) -> dict[str, str]:
    """Return a Slurm file's keys and values; of a line of several keys, such as a node's, the keys and few values."""
    values: dict[str, list[str]] = {}
    for line in setting_lines(text):
        match = re.match(r"([A-Za-z_]\w*)\s*[=\s]\s*(.*)", line)
        if not match:
            continue
        key, value = match.groups()
        pairs = re.findall(r"(\w+)=(\S*)", value) if key.lower() in SHAPED else []
        names = sorted(f"{name}={word}" if WORDS_OF_NODES.fullmatch(f"{name}={word}") else name for name, word in pairs)
        is_named_here = key.lower() == "include" and value in SLURM_FILES
        item = f"with {', '.join(names)}" if names else value if is_named_here else shown(key, value)
        values.setdefault(key, []).append(item)
    return {key: " | ".join(sorted(set(items))) for key, items in values.items()}


def plugins(text: str) -> dict[str, str]:
    """Return the plugins that plugstack.conf names, without their arguments."""
    rows = [line.split() for line in setting_lines(text)]
    return {shown("PlugStackConfig", row[1]): row[0] for row in rows if len(row) > 1}


def scontrol() -> dict[str, str]:
    """Return what slurmctld says of its configuration."""
    pairs = re.findall(r"(?m)^(\w[\w\[\]]*)\s+= ?(.*)$", output(f"{SLURM}/bin/scontrol", "show", "config"))
    return {key: shown(key, value) for key, value in pairs if key not in DYNAMIC}


def os_release() -> dict[str, str]:
    """Return name and version of the operating system."""
    pairs = re.findall(r'(?m)^(\w+)="?([^"\n]*)"?$', content("/etc/os-release"))
    return {key: value for key, value in pairs if key in {"ID", "ID_LIKE", "VERSION_ID", "VERSION_CODENAME"}}


def first_group(pattern: str, text: str) -> str:
    """Return the first group of the first match, or an empty text."""
    match = re.search(pattern, text)
    return match[1] if match else ""


def system() -> dict[str, str]:
    """Return the versions of kernel, Python, systemd and sshd."""
    values = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "glibc": " ".join(platform.libc_ver()),
        "systemd": first_group(r"systemd (\d+)", output("systemctl", "--version")),
        "openssh": first_group(r"(OpenSSH_[\w.]+)", output("ssh", "-V", stderr=subprocess.STDOUT)),
        "cgroup": output("stat", "--file-system", "--format=%T", "/sys/fs/cgroup").strip(),
        "cgroup controllers": content("/sys/fs/cgroup/cgroup.controllers").strip(),
        "init": content("/proc/1/comm").strip(),
    }
    return {key: value for key, value in values.items() if value}


def slurm_folders() -> dict[str, str]:
    """Return the folders of Slurm below /opt, the versions of its programs, and the names in them."""
    values = {}
    folders = sorted(map(str, Path("/opt").glob("slurm*")))
    for folder in filter(SLURM_FOLDERS.fullmatch, folders):
        values[folder] = kind_of(Path(folder))
        values[f"{folder} slurmd"] = first_group(r"slurm(?:-wlm)? ([\w.-]+)", output(f"{folder}/sbin/slurmd", "-V"))
        for name in ("bin", "sbin", "lib"):
            for path in sorted(Path(folder, name).glob("*")):
                if SLURM_NAMES.fullmatch(path.name):  # Users may have put programs of their own beside these.
                    values[str(path)] = kind_of(path)
    return {key: value for key, value in values.items() if value}


def kind_of(path: Path) -> str:
    """Return what a path is: ``absent``, or kind, mode and owner; of a link, the target."""
    try:
        status = path.lstat()
    except OSError:
        return "absent"
    if stat.S_ISLNK(status.st_mode):
        target = str(Path(os.readlink(str(path))))  # noqa: PTH115 — Python 3.8 lacks Path.readlink
        return f"link to {target}" if "/" not in target or IMAGE_PATHS.match(target) else "link"
    kind = "folder" if stat.S_ISDIR(status.st_mode) else "file" if stat.S_ISREG(status.st_mode) else "other"
    return f"{kind} {stat.S_IMODE(status.st_mode):04o} {user_name(status.st_uid)}:{group_name(status.st_gid)}"


def user_name(number: int) -> str:
    """Return a user's name if the image has that user, else ``user``."""
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        return "unknown"
    return name if name in IMAGE_USERS else "user"


def group_name(number: int) -> str:
    """Return a group's name if the image has that group, else ``group``."""
    try:
        name = grp.getgrgid(number).gr_name
    except KeyError:
        return "unknown"
    return name if name in (*IMAGE_USERS, "adm", "syslog") else "group"


def users() -> dict[str, str]:
    """Return id, home and shell of the image's own users."""
    values = {}
    for name in IMAGE_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        values[name] = f"{entry.pw_uid}:{entry.pw_gid} {entry.pw_dir} {entry.pw_shell}"
    return values


def json_shape(text: str, keys: set[str] | None = None) -> dict[str, str]:
    """Return the paths of a JSON file with the types of their values; with ``keys``, only these keys' paths."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return {"": "not JSON"} if text else {}
    types: dict[str, set[str]] = {}
    add_shape(parsed, "", types, keys)
    return {path: " | ".join(sorted(names)) for path, names in types.items()}


def add_shape(value: Any, path: str, types: dict[str, set[str]], keys: set[str] | None) -> None:
    """Add the types of a value and of all values in it, by path."""
    if isinstance(value, dict):
        for key, item in value.items():
            is_name = JSON_KEY.fullmatch(key) and (keys is None or key in keys)
            add_shape(item, f"{path}.{key if is_name else '*'}".lstrip("."), types, keys if is_name else set())
    elif isinstance(value, list):
        for item in value:
            add_shape(item, f"{path}[]", types, keys)
    else:
        names = {str: TEXT, bool: "boolean", int: "number", float: "number", type(None): "null"}
        is_shown = path.rpartition(".")[2] in SHOWN_JSON and keys is None and str(value).isalpha()
        types.setdefault(path, set()).add(value if is_shown else names[type(value)])


def units() -> dict[str, str]:
    """Return the properties of the units that belong to the image and the service."""
    listed = output("systemctl", "list-unit-files", "--no-legend", "--no-pager", "--plain", "--full")
    names = [line.split()[0] for line in listed.splitlines() if line.split()]
    names = sorted(name for name in names if UNITS.fullmatch(name) and "@." not in name)
    if not names:
        return {}
    properties = f"--property=Id,{','.join(UNIT_PROPERTIES)},ActiveState"
    values = {}
    for block in output("systemctl", "show", "--no-pager", properties, *names).split("\n\n"):
        unit = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name = unit.get("Id", "")
        values[name] = ", ".join(f"{item}={unit[item]}" for item in UNIT_PROPERTIES if unit.get(item))
        if DAEMONS.fullmatch(name):
            values[f"{name} is"] = unit.get("ActiveState", "")
    return {name: value for name, value in values.items() if name and value}


def packages() -> dict[str, str]:
    """Return the versions of installed packages that the cluster's programs come from."""
    rows = output("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}|${Package}|${Version}\n").splitlines()
    installed = [row.split("|") for row in rows if row.startswith(("ii", "hi"))]
    return {name: version for _, name, version in installed if PACKAGES.fullmatch(name)}


def gpus() -> dict[str, str]:
    """Return the driver's and the GPUs' versions and modes; neither serial numbers nor UUIDs."""
    values: dict[str, set[str]] = {}
    for line in output("nvidia-smi", "-q").splitlines():
        key, _, value = (part.strip() for part in line.partition(" : "))
        if key in GPU_KEYS and value:
            values.setdefault(key, set()).add(value)
    return {key: " | ".join(sorted(items)) for key, items in values.items()}


def networks() -> dict[str, str]:
    """Return the networks of Lustre's LNet, without addresses."""
    types = re.findall(r"net type: (\w+)", output("lnetctl", "net", "show"))
    return {"types": ", ".join(sorted(types))} if types else {}


def mounts() -> dict[str, str]:
    """Return the types of the file systems that are mounted at known places."""
    rows = re.findall(r"(?m)^\S+ (\S+) (\S+) ", content("/proc/mounts"))
    return {place: kind for place, kind in rows if place in MOUNTS}


def programs() -> dict[str, str]:
    """Return which programs the node has, with their places."""
    path = f"{SLURM}/bin:{SLURM}/sbin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    places = {name: next(candidates(name, path), "absent") for name in PROGRAMS}
    return {name.rpartition("/")[2]: place for name, place in places.items()}


def candidates(name: str, path: str) -> Iterator[str]:
    """Yield the executable files of this name."""
    folders: Iterable[str] = [""] if "/" in name else (f"{folder}/" for folder in path.split(":"))
    return (f"{folder}{name}" for folder in folders if os.access(f"{folder}{name}", os.X_OK))


def sshd() -> dict[str, str]:
    """Return how sshd authenticates."""
    pairs = [line.split(" ", 1) for line in output("/usr/sbin/sshd", "-T").splitlines() if " " in line]
    return {key: shown(key, value) for key, value in pairs if key in SHOWN}


def environment_file(text: str) -> dict[str, str]:
    """Return the flags in the variables that Slurm's units read; no value of a flag."""
    pairs = re.findall(r"(?m)^\s*(?:export\s+)?(SLURM\w*_OPTIONS)=(.*)$", text)
    return {key: " ".join(re.findall(r"(?<!\S)[\"']?(--[a-z][a-z-]*|-[A-Za-z])", value)) for key, value in pairs}


def upgrades() -> dict[str, str]:
    """Return what apt does periodically, and how needrestart restarts services."""
    periodic = re.findall(r'(?m)^\s*(APT::Periodic::[\w-]+)\s+"(\d+)";', content("/etc/apt/apt.conf.d/20auto-upgrades"))
    values = dict(periodic)
    for path in [Path("/etc/needrestart/needrestart.conf"), *sorted(Path("/etc/needrestart/conf.d").glob("*.conf"))]:
        if OWN_LINE not in path.name:
            values.update(re.findall(r"(?m)^\s*\$nrconf\{(restart|kernelhints)\}\s*=\s*'?([\w-]+)'?;", content(path)))
    return values


def facts() -> dict[str, dict[str, str]]:
    """Return all sections that have anything."""
    etc = SLURM / "etc"
    config = Path("/opt/ml/config")
    plugstack = content(etc / "plugstack.conf") + "".join(map(content, sorted((etc / "plugstack.conf.d").glob("*"))))
    sections = {
        "os-release": os_release(),
        "system": system(),
        "slurm": slurm_folders(),
        "scontrol show config": scontrol(),
        **{name: slurm_file(content(etc / name)) for name in SLURM_FILES},
        "plugstack.conf": plugins(plugstack),
        **{name: json_shape(content(config / name)) for name in SERVICE_JSON},
        "provisioning_parameters.json": json_shape(content(config / "provisioning_parameters.json"), PARAMETER_KEYS),
        **{f"default/{name}": environment_file(content(f"/etc/default/{name}")) for name in ("slurmd", "slurmctld")},
        "files": {path: kind_of(Path(path)) for path in FILES},
        "units": units(),
        "packages": packages(),
        "programs": programs(),
        "users": users(),
        "sshd": sshd(),
        "upgrades": upgrades(),
        "nvidia-smi": gpus(),
        "lnet": networks(),
        "mounts": mounts(),
    }
    return {name: section for name, section in sections.items() if section}


if __name__ == "__main__":
    print(json.dumps(facts()))
