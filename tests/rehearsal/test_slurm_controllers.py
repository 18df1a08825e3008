"""Two controllers, a database apart that requires TLS, and a secret: the second takes over from the first."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from podwright_bootstrap.contract import Accounting, MultiHead, ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import NodeFeatures, Remediation
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_testing.boots import require_booted
from podwright_testing.web_server import Quiet, serving

pytestmark = pytest.mark.hosts
PRIMARY, BACKUP, COMPUTE, DATABASE = "ip-10-0-16-5", "ip-10-0-16-8", "ip-10-0-16-6", "ip-10-0-16-9"
GATE = "ip-10-0-16-10"  # of a second login group
SECRET_ARN = "arn:aws:secretsmanager:us-west-2:111122223333:secret:slurm"  # noqa: S105
PASSWORD = 'o"n\\e#t+w0='  # noqa: S105 -- what RDS might make up, and a quote
SECRET = {"username": "admin", "password": PASSWORD}  # what Secrets Manager says today
TOPIC_ARN = "arn:aws:sns:us-west-2:111122223333:demo"
PUBLISHED: list[dict[str, list[str]]] = []  # what Amazon SNS was asked for
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    controller_group="controller",
    login_group="login",
    more_login_groups=["gate"],
    worker_groups=[WorkerGroup("workers", "gpu")],
    fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    fsx_mountname="abcdefgh",
    region="us-west-2",
    accounting=Accounting(DATABASE, 3306, SECRET_ARN, certificates="", makes_user=True),
    multi_head=MultiHead(SECRET_ARN, DATABASE, "/fsx", slurm_sns_arn=TOPIC_ARN),
    nodes=NodeFeatures(remediation=Remediation()),
)


@pytest.fixture(scope="module")
def secrets_manager() -> Iterator[tuple[str, int]]:
    """AWS's API, as far as `aws secretsmanager get-secret-value` and `aws sns publish` ask it."""

    class Secret(Quiet, http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            text = json.dumps(SECRET)
            if "Publish" in asked.get("Action", ()):
                PUBLISHED.append(asked)
            body = json.dumps({"ARN": SECRET_ARN, "Name": "slurm", "SecretString": text}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Secret) as address:
        yield address


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority's certificate, the database's of it, and its key."""
    folder = tmp_path_factory.mktemp("authority")
    new = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    itself = ("-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    extensions = ("-addext", f"subjectAltName=DNS:{DATABASE}", "-addext", "basicConstraints=CA:FALSE")
    server = ("-subj", f"/CN={DATABASE}", *extensions)
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", "server.key", "-out", "server.pem")
    for arguments in ((*new, *itself), (*new, *server, *signed)):
        subprocess.run(arguments, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def cluster(make_cluster, make_node, secrets_manager, bundle, authority) -> NamespacedCluster:
    """A cluster of two controllers and two login groups that booted twice; a login node's MariaDB stands for RDS."""
    accounting = dataclasses.replace(PARAMETERS.accounting, certificates=(authority / "ca.pem").read_text())
    scripts = bundle(dataclasses.replace(PARAMETERS, accounting=accounting))
    cluster = make_cluster(
        relay=secrets_manager,
        nodes=[
            make_node(PRIMARY, role="controller"),
            make_node(BACKUP, role="controller"),
            dataclasses.replace(make_node(COMPUTE), accelerators=0),
            make_node(DATABASE, role="login"),
            dataclasses.replace(make_node(GATE, role="login"), instance_group="gate"),
        ],
        environment={
            "PODWRIGHT_PATIENCE": "0.5",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{secrets_manager[1]}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        },
    )
    cluster.start()
    shutil.copytree(scripts, cluster.directory / "fsx" / "scripts")
    cluster.path(DATABASE, "/etc/mysql/mariadb.conf.d/99-rds.cnf").write_text(
        "[mariadbd]\nbind_address=0.0.0.0\nrequire_secure_transport=ON\n"
        "ssl_cert=/etc/mysql/server.pem\nssl_key=/etc/mysql/server.key\n"
    )
    for name in ("server.pem", "server.key"):
        shutil.copy(authority / name, cluster.path(DATABASE, f"/etc/mysql/{name}"))
        cluster.run(f"chown mysql /etc/mysql/{name}", host=DATABASE, user="root")
    quoted = PASSWORD.replace("\\", "\\\\")
    grant = f"GRANT ALL ON *.* TO 'admin'@'%' IDENTIFIED BY '{quoted}' WITH GRANT OPTION"
    cluster.path(DATABASE, "/root/grant.sql").write_text(grant)
    cluster.run("systemctl start mariadb && mysql --skip-ssl < /root/grant.sql", host=DATABASE, user="root")
    for _ in range(2):
        require_booted(cluster.boot(scripts, timeout_s=600).values())
    cluster.wait_until_idle([COMPUTE], timeout_s=600)
    return cluster


def test_second_boot_changes_nothing(cluster):
    """Files are shared once, and whoever is second takes what it finds."""
    for hostname in (PRIMARY, BACKUP):
        assert ", 0 changes, " in (cluster.directory / f"{hostname}-boot-2.log").read_text()
        state = cluster.run("readlink -f /var/spool/slurmctld /opt/slurm/etc/slurm.conf", host=hostname).stdout
        root = "/fsx/aws/hyperpod/demo"
        assert state.split() == [f"{root}/var/spool/slurmctld", f"{root}/opt/slurm/etc/slurm.conf"]


def test_nodes_of_each_login_group_submit_jobs(cluster):
    """AWS's file names one login group and ours the others; nodes of both are login nodes."""
    for hostname in (DATABASE, GATE):
        assert cluster.run("srun --partition gpu hostname", host=hostname).stdout.strip() == COMPUTE
    listed = cluster.run("sinfo --noheader --Node --partition gpu --format %N", host=GATE).stdout.split()
    assert listed == [COMPUTE]


def test_the_password_is_nowhere_but_in_its_file(cluster):
    """The administrator's is on no controller; slurmdbd's own is in slurmdbd.conf and nowhere else."""
    logs = "".join(path.read_text(errors="replace") for path in cluster.directory.glob("*.log"))
    calls = "".join(line for name in (PRIMARY, BACKUP) for line in cluster.shim_calls(name))
    own = password_of(cluster, BACKUP)
    for password in ("t+w0=", own):
        assert password not in logs + calls
        found = cluster.run(f"grep -rFl '{password}' /fsx/aws /opt /tmp /run", host=BACKUP, user="root", check=False)
        assert found.stdout.split() == (["/opt/slurm/etc/slurmdbd.conf"] if password == own else [])


def test_each_slurmdbd_has_a_user_of_its_own_with_tls(cluster):
    """Each controller's user comes from its address alone, with TLS, and reads no other schema."""
    users = sql(cluster, "SELECT Host, ssl_type FROM mysql.user WHERE User = 'slurmdbd' ORDER BY Host")
    assert users.splitlines() == ["10.0.16.5\tANY", "10.0.16.8\tANY"]
    encrypted = sql(cluster, "SELECT COUNT(*) FROM information_schema.processlist WHERE USER = 'slurmdbd'")
    assert int(encrypted) >= 1
    login = f"mysql --user=slurmdbd --password={password_of(cluster, PRIMARY)} --host={DATABASE} --batch"
    plain = cluster.run(f"{login} --skip-ssl -e 'SELECT 1'", host=PRIMARY, user="root", check=False)
    assert re.search("Access denied|insecure transport", plain.stderr)  # MariaDB 10.11's words, and 11.8's
    authority = "--ssl-ca=/opt/podwright/accounting-ca.pem --ssl-verify-server-cert"
    shown = cluster.run(f"{login} {authority} -e \"SHOW STATUS LIKE 'Ssl_version'\"", host=PRIMARY, user="root").stdout
    assert "TLSv1." in shown
    denied = cluster.run(
        f"{login} {authority} -e 'SHOW CREATE TABLE mysql.user'", host=PRIMARY, user="root", check=False
    )
    assert "denied" in denied.stderr


def test_slurmdbd_refuses_a_database_of_another_authority(cluster):
    """With another authority in its file slurmdbd does not connect, and its log says what is wrong."""
    trusted = "/opt/podwright/accounting-ca.pem"
    cluster.run(f"cp {trusted} /root/ca.pem", host=BACKUP, user="root")
    other = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other -keyout /dev/null"
    cluster.run(f"{other} -out {trusted} && systemctl restart slurmdbd", host=BACKUP, user="root", check=False)
    log = "/var/log/slurm/slurmdbd.log"
    wait_for(
        lambda: "certificate" in cluster.run(f"tail -n 5 {log}", host=BACKUP, user="root").stdout.lower(),
        timeout_s=600,
        description=lambda: f"slurmdbd to refuse: {cluster.run(f'tail {log}', host=BACKUP, user='root').stdout}",
    )
    cluster.run(f"cp /root/ca.pem {trusted} && systemctl restart slurmdbd", host=BACKUP, user="root")


def test_the_administrators_new_password_changes_nothing(cluster):
    """After RDS has changed the administrator's password accounting goes on, and a boot changes nothing."""
    SECRET["password"] = "another"  # noqa: S105
    sql(cluster, "ALTER USER 'admin'@'%' IDENTIFIED BY 'another'")
    before = password_of(cluster, PRIMARY)
    boot_accounting(cluster)
    assert password_of(cluster, PRIMARY) == before
    assert "demo" in cluster.run("sacctmgr --noheader show cluster").stdout


def test_a_forgotten_user_is_made_again(cluster):
    """A boot makes slurmdbd's user again if the database does not know it, as after a restored backup."""
    before = password_of(cluster, PRIMARY)
    sql(cluster, "DROP USER 'slurmdbd'@'10.0.16.5'")
    boot_accounting(cluster)
    assert password_of(cluster, PRIMARY) != before
    assert "demo" in cluster.run("sacctmgr --noheader show cluster", host=PRIMARY).stdout


def sql(cluster: NamespacedCluster, statement: str) -> str:
    """Run SQL as the database host's root; the rows."""
    command = f'mysql --skip-ssl --batch --skip-column-names --execute "{statement}"'
    return str(cluster.run(command, host=DATABASE, user="root").stdout)


def boot_accounting(cluster: NamespacedCluster) -> None:
    """Run the step of the first controller again."""
    cluster.run("/fsx/scripts/on_create.sh --only accounting", host=PRIMARY, user="root")


def password_of(cluster: NamespacedCluster, hostname: str) -> str:
    """The password of a controller's slurmdbd."""
    text = cluster.path(hostname, "/opt/slurm/etc/slurmdbd.conf").read_text()
    (password,) = re.findall(r"^StoragePass=(\w+)$", text, re.MULTILINE)
    return str(password)


def remediate(cluster: NamespacedCluster, hostname: str) -> str:
    """Let a controller look at the compute node, which reports a fault; the node's reason in Slurm."""
    comment = f"Comment=podwright:reboot:{int(time.time())}:xid"
    command = f"scontrol update NodeName={COMPUTE} {comment} && systemctl start podwright-remediation"
    cluster.run(command, host=hostname, user="root")
    shown = cluster.run(f"scontrol show node {COMPUTE} --oneliner", host=hostname).stdout
    reason = re.search(r"Reason=(\S+)", shown)
    return reason[1] if reason else ""


def resume(cluster: NamespacedCluster, hostname: str) -> None:
    """Let the compute node take jobs again, as after HyperPod's reboot."""
    command = f"scontrol update NodeName={COMPUTE} Comment= State=RESUME"
    cluster.run(command, host=hostname, user="root")
    cluster.wait_until_idle([COMPUTE], timeout_s=600)


@pytest.mark.parametrize("host", [PRIMARY, BACKUP])
@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd"])
def test_a_killed_daemon_comes_back_on_its_host(cluster, host, daemon):
    """The first controller stays in control, the second stays its backup, and jobs run."""
    state = f"systemctl show --property=MainPID --value {daemon}"
    pid = cluster.run(state, host=host, user="root").stdout.strip()
    cluster.run(f"kill -KILL {pid}", host=host, user="root")
    wait_for(
        lambda: cluster.run(state, host=host, user="root").stdout.strip() not in {"0", pid},
        timeout_s=600,
        description=lambda: cluster.run(f"systemctl status {daemon}", host=host, user="root", check=False).stdout,
    )
    both = [f"(primary) at {PRIMARY} is UP", f"(backup) at {BACKUP} is UP"]
    wait_for(
        lambda: all(line in cluster.run("scontrol ping", host=BACKUP, check=False).stdout for line in both),
        timeout_s=600,
        description=lambda: cluster.run("scontrol ping", host=BACKUP, check=False).stdout,
    )
    assert cluster.run("srun --partition gpu hostname", host=GATE, timeout_s=600).stdout.strip() == COMPUTE


def test_the_second_takes_over(cluster):
    """After the first's loss the second runs jobs, says so once, and knows how a fault was remedied before.

    The first is lost while it replaces its heartbeat. sacct knows jobs of before and after.
    """

    def run(line: str) -> str:
        return cluster.run(line, host=BACKUP, check=False, timeout_s=600).stdout

    cluster.run("srun --partition gpu --job-name before true")
    state = cluster.directory / "fsx/aws/hyperpod/demo/var/spool/slurmctld/job_state"
    wait_for(
        lambda: (
            b"before" in (state.read_bytes() if state.exists() else b"")
            and "COMPLETED" in run("sacct --name before --noheader --format=State --allocations")
        ),
        timeout_s=600,
        description=lambda: f"the first job to be remembered: {run('sacct')}",
    )
    # On a busy machine the second may have taken over before, and given back. A controller that starts is no news.
    announced = [message["Message"][0].split()[0] for message in PUBLISHED]
    assert announced == [BACKUP, PRIMARY] * (len(announced) // 2)
    assert remediate(cluster, BACKUP) == ""  # not in control
    assert remediate(cluster, PRIMARY) == "Action:Reboot"
    resume(cluster, PRIMARY)
    nodes = state.with_name("node_state")  # written seconds later: the second would know the node as failed
    wait_for(
        lambda: nodes.exists() and b"Action:" not in nodes.read_bytes(),
        timeout_s=600,
        description=lambda: f"a state without it in {nodes}",
    )
    cluster.kill(PRIMARY, how="power")
    heartbeat = state.with_name("heartbeat")
    with contextlib.suppress(FileNotFoundError):  # by chance it was just there
        heartbeat.replace(heartbeat.with_name("heartbeat.new"))
    wait_for(
        lambda: "(backup) at ip-10-0-16-8 is UP" in run("scontrol ping"),
        timeout_s=600,
        description=lambda: f"the backup to take over: {run('scontrol ping; sinfo')}",
    )
    wait_for(
        lambda: cluster.run("srun --partition gpu --job-name after true", host=BACKUP, check=False).returncode == 0,
        timeout_s=600,
        description=lambda: f"a job to run: {run('sinfo; squeue')}",
    )
    wait_for(
        lambda: {"before", "after"} <= set(run("sacct --noheader --format=JobName --allocations").split()),
        timeout_s=600,
        description=lambda: f"both jobs in sacct: {run('sacct')}",
    )
    wait_for(
        lambda: len(PUBLISHED) > len(announced),
        timeout_s=600,
        description=lambda: "a message about the second controller",
    )
    (message,) = PUBLISHED[len(announced) :]
    assert message["TopicArn"] == [TOPIC_ARN]
    assert message["Message"][0].startswith(f"{BACKUP} controls Slurm now, in place of {PRIMARY}.")
    assert remediate(cluster, BACKUP) == "Action:Replace"  # the same fault within a day of a reboot
